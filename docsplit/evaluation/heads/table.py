"""Heads on frozen embeddings: how much can be read out of them, with few labels and with all.

Each document is embedded once; the heads `mlp`, `linear` and `knn` then share the array. All of them are trained once
per `Run`: on each few-shot draw, or with each seed on the whole training part. The runs depend on the labels and a
seed alone, so every encoder, and TF-IDF, is measured on the same ones.
"""

from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from docsplit.data.sets.labelled import SHOTS, LabelledSplit
from docsplit.evaluation.heads.frozen import Run, in_row_space, knn, linear
from docsplit.evaluation.heads.mlp import mlp


def few_shot_runs(split: LabelledSplit, shots: int, num_draws: int, seed: int = 0) -> list[Run]:
    """One run per few-shot draw; they depend on the labels, the shots and the seed alone."""
    draws = split.draws(shots, num_draws, seed)
    return [Run(indices, seed + number) for number, indices in enumerate(draws)]


def full_runs(split: LabelledSplit, num_seeds: int, seed: int = 0) -> list[Run]:
    """`num_seeds` runs on all training documents."""
    return [Run(np.arange(len(split.train_texts)), seed + number) for number in range(num_seeds)]


def runs_of(split: LabelledSplit, shots: int | None, num_draws: int, num_seeds: int, seed: int = 0) -> list[Run]:
    """`few_shot_runs` of that many labels a class, or for None `full_runs`."""
    if shots is None:
        return full_runs(split, num_seeds, seed)
    return few_shot_runs(split, shots, num_draws, seed)


PROBE_C = (1.0, 10.0, 100.0)  # of the quick probe's logistic regression
HEADS = {"mlp": mlp, "linear": linear, "knn": knn}


def tfidf_features(train_texts: list[str], *others: list[str]) -> tuple[Any, ...]:
    """The baseline everyone should have to beat: sparse (N, H); the vocabulary is that of the whole training part."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    train = vectorizer.fit_transform(train_texts)
    return train, *(vectorizer.transform(texts) for texts in others)


def probe_accuracy(split: LabelledSplit, features: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Accuracy of logistic regression on given features: with 5 labels a class (mean over draws) and with all.

    The quick probe beside pretraining, without cross-validation: C is the one of `PROBE_C` with the highest accuracy
    on the validation documents, the smallest if several have it; one C for all draws, and one for all labels. Features
    are taken as they are: standardising them rescues encoders whose vectors all point the same way.

    Args:
        features: of each part its documents in order, (N, H), dense or sparse; of train, validation and perhaps test.

    Returns: for validation, and for test if there are features of it, `5shot_accuracy`, `5shot_accuracy_std` (sample
        standard deviation over draws), `accuracy`, and the chosen `5shot_c` and `c`.
    """
    measured = [part for part in ("validation", "test") if part in features]
    results: dict[str, dict[str, float]] = {part: {} for part in measured}
    for prefix, draws in ((f"{SHOTS}shot_", split.draws()), ("", [np.arange(len(split.train_labels))])):
        # One thread a fit, several fits at a time, as in `heads.linear`.
        with threadpool_limits(1, user_api="blas"):
            jobs = (delayed(_accuracies)(split, features, measured, draw) for draw in draws)
            accuracies = np.array(Parallel(n_jobs=-1, prefer="threads")(jobs))  # (draws, C, parts)
        chosen = int(accuracies[:, :, 0].mean(axis=0).argmax())  # the first part is validation
        for number, part in enumerate(measured):
            own = accuracies[:, chosen, number]
            results[part] |= {f"{prefix}accuracy": float(own.mean()), f"{prefix}c": PROBE_C[chosen]}
            if len(draws) > 1:
                results[part][f"{prefix}accuracy_std"] = float(own.std(ddof=1))
    return results


def _accuracies(
    split: LabelledSplit, features: dict[str, Any], measured: list[str], chosen: np.ndarray
) -> list[list[float]]:
    """Accuracy for each C on each part, fitted to the chosen training documents; each starts where the last ended."""
    train, *others = in_row_space(features["train"][chosen], *(features[part] for part in measured))
    classifier = LogisticRegression(max_iter=1000, warm_start=True)
    accuracies = []
    for c in PROBE_C:
        classifier.set_params(C=c).fit(train, split.train_labels[chosen])
        labels = (getattr(split, f"{part}_labels") for part in measured)
        accuracies.append([float(classifier.score(part, its_labels)) for part, its_labels in zip(others, labels)])
    return accuracies


def tfidf_accuracy(split: LabelledSplit) -> dict[str, dict[str, float]]:
    """`probe_accuracy` of TF-IDF."""
    return probe_accuracy(split, dict(zip(split.texts, tfidf_features(*split.texts.values()))))
