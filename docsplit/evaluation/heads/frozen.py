"""Heads on frozen embeddings that scikit-learn trains: logistic regression and nearest neighbours.

TF-IDF, the baseline everyone should have to beat, stands among the encoders under the name `TFIDF`. `probe_accuracy`
is the quick probe beside pretraining: logistic regression, its C chosen on validation documents.
"""

import logging
import time
import warnings
from itertools import groupby
from typing import Any

import numpy as np
from joblib import delayed
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors

from docsplit.data.sets.labelled import SHOTS, LabelledSplit, folds_of
from docsplit.data.words import tfidf_counter
from docsplit.evaluation.heads.base import HeadInput, HeadOutput
from docsplit.evaluation.heads.logistic import (
    MAX_ITERATIONS,
    at_once,
    fit_head,
    in_row_space,
    probabilities_of,
    qualities,
)
from docsplit.evaluation.results.bootstrap import ItemScores

logger = logging.getLogger(__name__)

TFIDF = "tfidf"
FOLDS = 5  # that choose C
C_GRID = (0.01, 0.1, 1.0, 10.0, 100.0)
PROBE_C = (1.0, 10.0, 100.0)
NUM_NEIGHBOURS = 10


def linear(data: HeadInput) -> HeadOutput:
    """Fit logistic regression, its C chosen by cross-validation on each run's training documents.

    C is the one of `C_GRID` with the highest accuracy over stratified folds, shuffled by the run's seed, with near
    copies in one fold; the smallest one if several have it. Several labels are fitted one against rest; they share a
    C, the one with the highest micro-F1 over plain folds. A label that all documents of a run have, or none, gets a
    constant probability. The validation part is not used. Features, dense or sparse, are read in float32.
    """
    start = time.perf_counter()
    runs = data.runs
    train, test = (features.astype(np.float32, copy=False) for features in (data.train, data.test))
    # Prepare each run: its features, (n, H) and (M, H), its labels and its folds
    parts = [(*in_row_space(train[run.indices], test), data.labels[run.indices]) for run in runs]
    folds = [list(folds_of(labels, data.groups_of(run), FOLDS, run.seed)) for run, (_, _, labels) in zip(runs, parts)]
    if unfolded := sum(not run_folds for run_folds in folds):
        logger.warning(f"{unfolded} of {len(runs)} runs of the linear head have too few documents to choose C: 1.")

    def fold_qualities(number: int, fitted: np.ndarray, held: np.ndarray) -> list[float]:
        features, _, labels = parts[number]
        held_out = [(features[held], labels[held])]
        found = qualities(features[fitted], labels[fitted], data.num_classes, C_GRID, held_out)
        return [float(of_c.of_runs()[0]) for (of_c,) in found]

    def probabilities(number: int, c: float) -> np.ndarray:
        features, others, labels = parts[number]
        coefficients, intercepts = fit_head(features, labels, data.num_classes, c)
        return probabilities_of(others @ coefficients + intercepts, 1, 0, data.multi_label)

    jobs = [(number, *fold) for number, run_folds in enumerate(folds) for fold in run_folds]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        measured, chosen = at_once(delayed(fold_qualities)(*job) for job in jobs), [1.0] * len(runs)
        for number, of_run in groupby(zip(jobs, measured), key=lambda pair: pair[0][0]):
            chosen[number] = C_GRID[int(np.argmax(np.mean([of_fold for _, of_fold in of_run], axis=0)))]
        scores = at_once(delayed(probabilities)(number, c) for number, c in enumerate(chosen))
    if failed := sum(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        logger.warning(f"{failed} fits of logistic regression did not converge in {MAX_ITERATIONS} iterations.")
    logger.debug(f"C of the linear head's runs: {chosen}")
    return HeadOutput(
        scores=np.stack(scores).astype(np.float32),
        seconds=(time.perf_counter() - start) / len(runs),
        trainable_parameters=(train.shape[1] + 1) * data.num_classes,
    )


def knn(data: HeadInput) -> HeadOutput:
    """Return the share of each label among the nearest training documents by cosine: `NUM_NEIGHBOURS`, or fewer.

    Few-shot there are no more than the smallest class of the draw has documents. Of equal shares the first class wins.
    With all training documents nothing depends on the seed, so the output has a single run. The validation part is not
    used.
    """
    start = time.perf_counter()
    runs = data.runs if data.few_shot else data.runs[:1]
    has_label = data.labels if data.multi_label else np.eye(data.num_classes, dtype=np.int8)[data.labels]  # (N, C)
    scores = np.empty((len(runs), data.test.shape[0], data.num_classes), dtype=np.float32)
    for number, run in enumerate(runs):
        chosen = has_label[run.indices]
        limit = max(int(chosen.sum(axis=0).min()), 1) if data.few_shot else len(chosen)
        search = NearestNeighbors(n_neighbors=min(NUM_NEIGHBOURS, limit, len(chosen)), metric="cosine")
        neighbours = search.fit(data.train[run.indices]).kneighbors(data.test, return_distance=False)  # (M, k)
        scores[number] = chosen[neighbours].mean(axis=1, dtype=np.float32)
    return HeadOutput(scores, (time.perf_counter() - start) / len(runs), trainable_parameters=0)


def standardize(train: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Shift and scale each feature to mean 0 and standard deviation 1 over the training documents.

    Fitted once on the whole training part, whose labels it does not read, few-shot too: with few documents in a draw
    it would be noise. It rescues encoders whose vectors all point the same way and can change the order of encoders,
    so its rows stand second, and say so. A feature that does not vary becomes 0.
    """
    mean = train.mean(axis=0, dtype=np.float64)
    deviation = train.std(axis=0, dtype=np.float64)
    # A constant column has a deviation of rounding errors, hardly ever 0.
    deviation[deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-30)] = np.inf
    return tuple(((features - mean) / deviation).astype(np.float32) for features in (train, *others))


def probe_accuracy(split: LabelledSplit, features: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Measure logistic regression on given features: with 5 labels a class (mean over draws) and with all.

    C is the one of `PROBE_C` with the highest accuracy on the validation documents, the smallest if several have it;
    one C for all draws, and one for all labels. Features are taken as they are: standardising them rescues encoders
    whose vectors all point the same way.

    Args:
        features: (N, H), dense or sparse, of the documents of each part: train, validation and perhaps test.

    Returns: for validation, and for test if there are features of it, `5shot_accuracy`, `5shot_accuracy_std` (sample
        standard deviation over draws), `accuracy`, and the chosen `5shot_c` and `c`; for validation `5shot_right` too,
        the share of draws in which each document is found, (M,).
    """
    measured = [part for part in ("validation", "test") if part in features]
    labels = [split.labels[part] for part in measured]

    def items_of_draw(chosen: np.ndarray) -> list[list[ItemScores]]:
        train, *others = in_row_space(features["train"][chosen], *(features[part] for part in measured))
        parts = list(zip(others, labels))
        return qualities(train, split.train_labels[chosen], len(split.class_names), PROBE_C, parts)

    results: dict[str, dict[str, Any]] = {part: {} for part in measured}
    for prefix, draws in ((f"{SHOTS}shot_", split.draws()), ("", [np.arange(len(split.train_labels))])):
        items = at_once(delayed(items_of_draw)(draw) for draw in draws)  # (draws, C, parts)
        accuracies = np.array([[[float(one.of_runs()[0]) for one in of_c] for of_c in of_draw] for of_draw in items])
        chosen = int(accuracies[:, :, 0].mean(axis=0).argmax())  # the first part is validation
        for number, part in enumerate(measured):
            of_draws = accuracies[:, chosen, number]
            results[part] |= {f"{prefix}accuracy": float(of_draws.mean()), f"{prefix}c": PROBE_C[chosen]}
            if len(draws) > 1:
                results[part][f"{prefix}accuracy_std"] = float(of_draws.std(ddof=1))
        if len(draws) > 1:
            right = ItemScores.joined([of_draw[chosen][0] for of_draw in items]).numerators.mean(axis=0)
            results["validation"][f"{prefix}right"] = right.round(3).tolist()
    return results


def tfidf_accuracy(split: LabelledSplit) -> dict[str, dict[str, Any]]:
    """Return `probe_accuracy` of TF-IDF."""
    return probe_accuracy(split, dict(zip(split.texts, tfidf_features(*split.texts.values()))))


def tfidf_features(train_texts: list[str], *others: list[str]) -> tuple[Any, ...]:
    """Return sparse features (N, V) of each list of texts; the vocabulary is that of the whole training part.

    Where no training text has a word, there is a single feature, which is zero.
    """
    counter = tfidf_counter()
    try:
        train = counter.fit_transform(train_texts)
    except ValueError:  # its only error for texts
        logger.warning(f"None of the {len(train_texts):,} texts has a word that TF-IDF counts: its features are zero.")
        return tuple(csr_matrix((len(texts), 1)) for texts in (train_texts, *others))
    return train, *(counter.transform(texts) for texts in others)
