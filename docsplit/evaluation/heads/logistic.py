"""Logistic regression: the one linear head of probes, of `adapt.py` and of the classifier.

fit_head, fit_path      a head, or one for each C
fit_self_trained        a head that learns from documents without labels too
fit_labelled            the same of some labelled documents, and of seeds of the classes' names
qualities               what the heads of each C are worth, which chooses among them
held_out                scores of documents by heads that did not see them
calibration             what makes scores probabilities
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse
from scipy.special import expit, log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from docsplit.evaluation.heads.class_names import NamedClasses
from docsplit.evaluation.results.bootstrap import ItemScores, accuracy_items, micro_f1_items

C = 10.0  # of a head whose C nothing chooses: the classifier's
MAX_ITERATIONS = 2000
MAX_ROW_SPACE = 7500  # documents, up to which sparse features are rotated into the space that they span
LEAST_SQUARE = 1e-8  # of a coordinate, beside the longest row's
LIKE_KEPT = 0.75  # of the documents of a class, that a head must have seen to calibrate the one that is kept
ABSENT = -30.0  # the score of a class that no document has
# Of self-training, chosen among five settings on seven sets (docs/classifying.md)
ROUNDS, SHARPNESS, PILE_WEIGHT = 3, 2.0, 3.0


def at_once(jobs: Iterable[Any], progress: str | None = None) -> list[Any]:
    """Run fits, joblib's `delayed`, several at a time with one thread each.

    Args:
        progress: what a bar says, after some seconds; None: there is no bar.

    The matrices are small, and threads of one product that wait for each other are slow on a busy machine, by a factor
    of 100 on two cores.
    """
    with threadpool_limits(1, user_api="blas"):
        done = Parallel(n_jobs=-1, prefer="threads", return_as="generator")(jobs)
        return list(tqdm(done, progress, unit="head", delay=5, leave=False, disable=progress is None))


@dataclass(frozen=True)
class RowSpace:
    """Sparse rows of few documents, (n, F), as coordinates in the space that they span, (n, n): X X' = Z Z'.

    The weights of logistic regression with an L2 penalty lie in that space (Kimeldorf and Wahba, 1971), and the
    penalty does not change under rotation: the same probabilities, for a fraction of the time. Z is triangular
    (Cholesky), which costs less than eigenvectors do. Dense or many rows stay as they are.

    Attributes:
        rows: X.
        factor: Z; None where rows stay as they are.
    """

    rows: Any
    factor: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Any) -> "RowSpace":
        """Rotate rows, (n, F)."""
        if not issparse(rows) or not rows.nnz or rows.shape[0] > min(MAX_ROW_SPACE, rows.shape[1]):
            return cls(rows)
        in_all = np.bincount(rows.indices, minlength=rows.shape[1]) == rows.shape[0]  # an encoder's dimensions
        dense, sparse = rows[:, in_all].toarray().astype(np.float64), rows[:, ~in_all].astype(np.float64)
        gram = dense @ dense.T + (sparse @ sparse.T).toarray()
        gram[np.diag_indices_from(gram)] += LEAST_SQUARE * gram.max()  # for equal documents
        return cls(rows, cholesky(gram, lower=True, overwrite_a=True, check_finite=False))

    @property
    def coordinates(self) -> Any:
        """Z, (n, n) float32, or the rows."""
        return self.rows if self.factor is None else self.factor.astype(np.float32)

    def points(self, others: Any) -> Any:
        """Return the coordinates of other rows, (m, F)."""
        if self.factor is None:
            return others
        products = (self.rows @ others.T).toarray().astype(np.float64)
        return solve_triangular(self.factor, products, lower=True, check_finite=False).T.astype(np.float32)

    def weights(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the weights of features, (F, C), that weights of coordinates, (n, C), stand for."""
        if self.factor is None:
            return coefficients
        dual = solve_triangular(self.factor, coefficients, trans=1, lower=True, check_finite=False)
        return (self.rows.T @ dual).astype(np.float32)


def in_row_space(train: Any, *others: Any) -> tuple[Any, ...]:
    """Return the coordinates of rows and of others in the space of the first."""
    space = RowSpace.of(train)
    return space.coordinates, *map(space.points, others)


def fit_path(
    features: Any, targets: np.ndarray, num_classes: int, grid: Sequence[float], weights: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Fit logistic regression for each C, from the solution of the one before; several labels one against rest.

    Args:
        features: (N, F), dense or sparse.
        targets: class indices (N,), or with several labels 0 and 1, (N, C). A class that no document has, or every
            one, gets a constant score.
        weights: (N,) of the documents' losses; None: 1.

    Yields: coefficients (F, C) and intercepts (C,); scores are features @ coefficients + intercepts.
    """
    several = targets.ndim == 2
    columns: list[Any] = list(range(num_classes)) if several else [slice(None)]
    heads = [LogisticRegression(max_iter=MAX_ITERATIONS, warm_start=True) for _ in columns]
    for c in grid:
        coefficients = np.zeros((features.shape[1], num_classes), dtype=np.float32)
        intercepts = np.full(num_classes, ABSENT, dtype=np.float32)
        for head, column in zip(heads, columns):
            of_column = targets[:, column] if several else targets
            present = np.unique(of_column)
            if len(present) < 2:
                intercepts[column if several else present] = -ABSENT if not several or present[0] else ABSENT
                continue
            head.set_params(C=c).fit(features, of_column, weights)
            if several:
                coefficients[:, column], intercepts[column] = head.coef_[0], head.intercept_[0]
            elif len(present) == 2:  # scikit-learn has one score for both
                coefficients[:, present[1]], intercepts[present] = head.coef_[0], [0, head.intercept_[0]]
            else:
                coefficients[:, present], intercepts[present] = head.coef_.T, head.intercept_
        yield coefficients, intercepts


def fit_head(features: Any, targets: np.ndarray, num_classes: int, c: float = C) -> tuple[np.ndarray, np.ndarray]:
    """`fit_path` of one C."""
    return next(fit_path(features, targets, num_classes, (c,)))


def fit_self_trained(
    features: Any, targets: np.ndarray, num_classes: int, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a head to labelled documents and to its own guesses of others, in rounds (pseudo-labels, Lee 2013).

    In each round p = softmax(2 scores) of the head before; each document without a label takes its likeliest class
    with the weight p. All together weigh three times what the labelled do, and none more than a labelled one.

    Args:
        features: (N + U, F): of N labelled documents, then of U others, which may be none.
        targets: class indices of the labelled, (N,).
        weights: of the labelled, (N,), at most 1; None: 1.

    Returns: as `fit_head`.
    """
    known, others = features[: len(targets)], features[len(targets) :]
    given = np.ones(len(targets)) if weights is None else weights
    head = next(fit_path(known, targets, num_classes, (C,), given))
    if not others.shape[0]:
        return head
    for _ in range(ROUNDS):
        probabilities = softmax(SHARPNESS * (others @ head[0] + head[1]), axis=1)
        sure = probabilities.max(axis=1)
        sure *= min(1.0, PILE_WEIGHT * given.sum() / sure.sum())
        guessed = np.concatenate([targets, probabilities.argmax(axis=1)])
        head = next(fit_path(features, guessed, num_classes, (C,), np.concatenate([given, sure])))
    return head


def fit_labelled(
    features: Any, targets: np.ndarray, num_classes: int, train: np.ndarray, named: NamedClasses | None = None
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Fit a head to some of the labelled documents, to seeds of the classes' names, and to all without labels.

    Args:
        features: (N + U, F): of N labelled documents, then of U others, which may be none.
        targets: (N,), or with several labels (N, C), where there are no others.
        train: labelled documents that the head sees.

    Returns: the head; and the class indices of all that it was given, (T,), or targets.
    """
    pile = np.arange(len(targets), features.shape[0])
    rows, given, weights = train, targets[train], None
    if named is not None:
        seeds, classes, of_seeds = named.seeds(train, given, pile)
        rows, given = np.concatenate([train, seeds]), np.concatenate([given, classes])
        weights = np.concatenate([np.ones(len(train)), of_seeds])
        pile = np.setdiff1d(pile, seeds)
    return fit_self_trained(features[np.concatenate([rows, pile])], given, num_classes, weights), given


def qualities(
    features: Any,
    targets: np.ndarray,
    num_classes: int,
    grid: Sequence[float],
    parts: Sequence[tuple[Any, np.ndarray]],
) -> list[list[ItemScores]]:
    """Return what each document adds to the accuracy of each C on each part, or with several labels to the micro-F1.

    Args:
        features, targets: to fit.
        parts: features and targets of documents.
    """
    return [
        [items_of(part @ coefficients + intercepts, of_part, 0) for part, of_part in parts]
        for coefficients, intercepts in fit_path(features, targets, num_classes, grid)
    ]


def items_of(scores: np.ndarray, targets: np.ndarray, threshold: float = 0.5) -> ItemScores:
    """Return what each document adds to the accuracy, or with several labels to the micro-F1.

    Args:
        scores: (N, C); of several labels those from the threshold on are given.
    """
    if targets.ndim == 1:
        return accuracy_items(scores.argmax(axis=1)[None], targets)
    return micro_f1_items((scores >= threshold)[None].astype(np.int8), targets)


@dataclass(frozen=True)
class HeldOut:
    """Documents by heads that did not see them: what probabilities are made of, by any head that gives scores.

    Attributes:
        scores: (M, C).
        targets: (M,), or with several labels (M, C).
        rows: (M,), the number of each document.
        folds: (M,), the fold that held each out.
        calibrate: (M,), whether the head saw nearly as many documents of the class as the one that is kept: of a class
            of two it saw one, and finds the other less often. Where that is so of none, all calibrate.
    """

    scores: np.ndarray
    targets: np.ndarray
    rows: np.ndarray
    folds: np.ndarray
    calibrate: np.ndarray

    def calibrated(self) -> np.ndarray:
        """Turn the scores into probabilities (M, C), those of each fold by a calibration on the others."""
        probabilities = np.empty(self.scores.shape)
        for fold in np.unique(self.folds):
            held = self.folds == fold
            others = ~held & self.calibrate
            scale_and_shift = calibration(self.scores[others], self.targets[others])
            probabilities[held] = probabilities_of(self.scores[held], *scale_and_shift, self.targets.ndim == 2)
        return probabilities


def held_out(
    features: Any, targets: np.ndarray, num_classes: int, folds: list[Any], named: NamedClasses | None = None
) -> HeldOut:
    """Fit a head without each fold and score the fold, but for documents of classes that the head did not see.

    Args:
        features: (N + U, F), or a list with those of each fold; heads are self-trained on the U rows without targets.
        folds: rows to train on and rows held out.
        named: the names of the classes, of whose seeds each head learns too.
    """

    def scores_of(features: Any, train: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (coefficients, intercepts), given = fit_labelled(features, targets, num_classes, train, named)
        calibrate = np.ones(len(held), dtype=bool)
        if targets.ndim == 1:
            seen, all_of = (np.bincount(of, minlength=num_classes)[targets[held]] for of in (given, targets))
            held, calibrate = held[seen > 0], (seen >= LIKE_KEPT * all_of)[seen > 0]
        return held, features[held] @ coefficients + intercepts, calibrate

    of_folds = features if isinstance(features, list) else [features] * len(folds)
    parts = at_once((delayed(scores_of)(of_fold, *fold) for of_fold, fold in zip(of_folds, folds)), "Heads of folds")
    if not parts:
        return HeldOut(np.zeros((0, num_classes)), targets[:0], *np.zeros((3, 0), dtype=np.int64))
    rows, scores, calibrate = map(np.concatenate, zip(*parts))
    numbers = np.repeat(np.arange(len(parts)), [len(rows) for rows, _, _ in parts])
    return HeldOut(scores, targets[rows], rows, numbers, calibrate | ~calibrate.any())


def calibration(scores: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Return the scale, and with several labels the shift, that make scores (N, C) probabilities.

    The scale has the highest likelihood (temperature scaling, Guo et al. 2017), with a normal prior of its logarithm,
    since a few labels say little; with several labels both are Platt's (1999).
    """
    if targets.ndim == 2:
        if not targets.size or targets.min() == targets.max():
            return 1.0, 0.0
        fitted = LogisticRegression().fit(scores.reshape(-1, 1), targets.ravel())
        return max(float(fitted.coef_[0, 0]), 0.01), float(fitted.intercept_[0])
    rows = np.arange(len(targets))

    def loss(log_scale: float) -> float:
        return log_scale**2 / 2 - float(log_softmax(np.exp(log_scale) * scores, axis=1)[rows, targets].sum())

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)), 0.0


def probabilities_of(scores: np.ndarray, scale: float, shift: float, several: bool) -> np.ndarray:
    """Turn scores (N, C) of a head into probabilities."""
    scores = scale * np.asarray(scores, dtype=np.float64) + shift
    return expit(scores) if several else softmax(scores, axis=1)
