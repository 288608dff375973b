"""The quick probe beside pretraining: logistic regression, its C chosen on validation documents."""

from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from docsplit.data.sets.labelled import SHOTS, LabelledSplit
from docsplit.evaluation.heads.frozen import in_row_space
from docsplit.evaluation.heads.tfidf import tfidf_features

PROBE_C = (1.0, 10.0, 100.0)


def probe_accuracy(split: LabelledSplit, features: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Measure logistic regression on given features: with 5 labels a class (mean over draws) and with all.

    C is the one of `PROBE_C` with the highest accuracy on the validation documents, the smallest if several have it;
    one C for all draws, and one for all labels. Features are taken as they are: standardising them rescues encoders
    whose vectors all point the same way.

    Args:
        features: (N, H), dense or sparse, of the documents of each part: train, validation and perhaps test.

    Returns: for validation, and for test if there are features of it, `5shot_accuracy`, `5shot_accuracy_std` (sample
        standard deviation over draws), `accuracy`, and the chosen `5shot_c` and `c`.
    """
    measured = [part for part in ("validation", "test") if part in features]
    results: dict[str, dict[str, float]] = {part: {} for part in measured}
    for prefix, draws in ((f"{SHOTS}shot_", split.draws()), ("", [np.arange(len(split.train_labels))])):
        # One thread a fit, several fits at a time, as in `docsplit.evaluation.heads.frozen.linear`.
        with threadpool_limits(1, user_api="blas"):
            jobs = (delayed(_accuracies)(split, features, measured, draw) for draw in draws)
            accuracies = np.array(Parallel(n_jobs=-1, prefer="threads")(jobs))  # (draws, C, parts)
        chosen = int(accuracies[:, :, 0].mean(axis=0).argmax())  # the first part is validation
        for number, part in enumerate(measured):
            of_draws = accuracies[:, chosen, number]
            results[part] |= {f"{prefix}accuracy": float(of_draws.mean()), f"{prefix}c": PROBE_C[chosen]}
            if len(draws) > 1:
                results[part][f"{prefix}accuracy_std"] = float(of_draws.std(ddof=1))
    return results


def _accuracies(
    split: LabelledSplit, features: dict[str, Any], measured: list[str], chosen: np.ndarray
) -> list[list[float]]:
    """Return the accuracy for each C on each part, fitted to the chosen training documents.

    Each fit starts from the solution of the one before.
    """
    train, *others = in_row_space(features["train"][chosen], *(features[part] for part in measured))
    classifier = LogisticRegression(max_iter=1000, warm_start=True)
    accuracies = []
    for c in PROBE_C:
        classifier.set_params(C=c).fit(train, split.train_labels[chosen])
        labels = (getattr(split, f"{part}_labels") for part in measured)
        accuracies.append([float(classifier.score(part, part_labels)) for part, part_labels in zip(others, labels)])
    return accuracies


def tfidf_accuracy(split: LabelledSplit) -> dict[str, dict[str, float]]:
    """Return `probe_accuracy` of TF-IDF."""
    return probe_accuracy(split, dict(zip(split.texts, tfidf_features(*split.texts.values()))))
