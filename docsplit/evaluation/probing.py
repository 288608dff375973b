"""Heads on frozen embeddings: how much can be read out of them, with few labels and with all.

Each document is embedded once; the heads `mlp`, `linear` and `knn` then share the array. All of them are trained once
per `Run`: on each few-shot draw, or with each seed on the whole training part. The runs depend on the labels and a
seed alone, so every encoder, and TF-IDF, is measured on the same ones.
"""

from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from docsplit.data.labelled import SHOTS, LabelledSplit
from docsplit.evaluation.heads import Run, knn, linear
from docsplit.evaluation.mlp_head import mlp


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


HEADS = {"mlp": mlp, "linear": linear, "knn": knn}


def tfidf_features(train_texts: list[str], *others: list[str]) -> tuple[Any, ...]:
    """The baseline everyone should have to beat: sparse (N, H); the vocabulary is that of the whole training part."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    train = vectorizer.fit_transform(train_texts)
    return train, *(vectorizer.transform(texts) for texts in others)


def probe_accuracy(split: LabelledSplit, train: Any, test: Any) -> dict[str, float]:
    """Accuracy of logistic regression on given features: with 5 labels a class (mean over draws) and with all.

    The quick probe beside pretraining: C = 1, no cross-validation. Features are taken as they are: standardising them
    rescues encoders whose vectors all point the same way.

    Args:
        train: (N, H), dense or sparse, the features of `split.train_texts`.
        test: (M, H), the features of `split.test_texts`.
    """
    few = [_accuracy(split, train, test, draw) for draw in split.draws()]
    return {
        f"{SHOTS}shot_accuracy": float(np.mean(few)),
        f"{SHOTS}shot_accuracy_std": float(np.std(few)),
        "accuracy": _accuracy(split, train, test, np.arange(len(split.train_labels))),
    }


def _accuracy(split: LabelledSplit, train: Any, test: Any, chosen: np.ndarray) -> float:
    classifier = LogisticRegression(max_iter=1000)
    classifier.fit(train[chosen], split.train_labels[chosen])
    return float(classifier.score(test, split.test_labels))


def tfidf_accuracy(split: LabelledSplit) -> dict[str, float]:
    """`probe_accuracy` of TF-IDF."""
    return probe_accuracy(split, *tfidf_features(split.train_texts, split.test_texts))
