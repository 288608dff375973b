"""Ridge regression from sparse features to vectors, in closed form where that fits and by conjugate gradients else.

W = argmin |XW - T|^2 + penalty |W|^2, without an intercept, for all H targets at once. Three ways give the same W:

dual        (N, N): XX' + penalty is factored
primal      (P, P): X'X + penalty is factored, for few features
gradients   block conjugate gradients on the sparse X, for many documents and features

Leave-one-out needs no refitting (Allen 1974; Hastie, Tibshirani and Friedman, section 7.10): the residual of document
i, by a W fitted without it, is its residual by the common W divided by 1 - h_i, where
h = diag X (X'X + penalty)^-1 X'. By C = XX' + penalty, that quotient is (C^-1 T)_i / (C^-1)_ii.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.linalg import cho_factor, cho_solve, eigh
from scipy.sparse import csr_matrix
from torch import Tensor

logger = logging.getLogger(__name__)

DUAL_DOCUMENTS = 4096  # above, the (N, N) matrix takes minutes
PRIMAL_FEATURES = 6000
FOLDS = 5  # that take the place of leave-one-out where h is too dear
TOLERANCE = 1e-4  # of a residual, relative to the right side
MOST_ITERATIONS = 1000  # a penalty of 0.1 or more needs 50 to 150
BLOCK_TARGETS = 64  # at a time
BLOCK = 2048  # rows at a time
LEAST = 1e-12  # that is divided by: 1 - h of a document that shares no feature, at a tiny penalty


@dataclass(frozen=True)
class Decomposed:
    """The eigenvalues (N,) and eigenvectors (N, N) of X X', for one penalty after another."""

    values: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, features: csr_matrix) -> "Decomposed":
        """Decompose X X' in double precision; O(N^3)."""
        values, vectors = eigh(_gram(features), overwrite_a=True, check_finite=False)
        return cls(np.maximum(values, 0), vectors)

    def leave_one_out(self, targets: np.ndarray, penalty: float) -> np.ndarray:
        """Return (N, H): what a W fitted without a document gives for it."""
        inverse = 1 / (self.values + penalty)
        dual = self.vectors @ (inverse[:, None] * (self.vectors.T @ targets))
        return targets - dual / (np.square(self.vectors) @ inverse)[:, None]


def weights(features: csr_matrix, targets: np.ndarray, penalty: float) -> np.ndarray:
    """Return W (P, H) float32, by the way that fits the size.

    Args:
        features: X, (N, P).
        targets: T, (N, H).
        penalty: above 0.
    """
    documents, pieces = features.shape
    if documents <= DUAL_DOCUMENTS:
        dual = cho_solve(_factor(features, penalty), targets, check_finite=False)
        return np.asarray(features.T @ dual, dtype=np.float32)
    if pieces <= PRIMAL_FEATURES:
        right = features.T.astype(np.float64) @ targets
        return cho_solve(_factor(features.T, penalty), right, check_finite=False).astype(np.float32)
    return conjugate_gradients(features, targets, penalty)


def _factor(rows: csr_matrix, penalty: float) -> tuple[np.ndarray, bool]:
    """Factor rows rows' + penalty in double precision, for solving with it."""
    gram = _gram(rows)
    gram[np.diag_indices_from(gram)] += penalty
    return cho_factor(gram, overwrite_a=True, check_finite=False)


def _gram(rows: csr_matrix) -> np.ndarray:
    """Return rows rows', (M, M), summed in double precision: sums over many documents lose their digits in single.

    Beside it there is one block of its lines at a time, and `rows` twice in double precision.
    """
    rows = rows.tocsr().astype(np.float64)
    columns, gram = rows.T.tocsr(), np.empty((rows.shape[0], rows.shape[0]))
    for start, block in zip(range(0, len(gram), BLOCK), _blocks(rows)):
        gram[start : start + BLOCK] = (block @ columns).toarray()
    return gram


def _inverse(rows: csr_matrix, penalty: float) -> np.ndarray:
    factor = _factor(rows, penalty)
    return cho_solve(factor, np.eye(rows.shape[0]), overwrite_b=True, check_finite=False)


def conjugate_gradients(
    features: csr_matrix, targets: np.ndarray, penalty: float, tolerance: float = TOLERANCE
) -> np.ndarray:
    """Return W (P, H) by conjugate gradients on the normal equations, each target with its own step.

    The diagonal of X'X is the preconditioner: frequent features would slow it down otherwise. Some targets at a time,
    whose vectors fit into the cache. A warning says where the residuals are still above `tolerance` of the right side
    after `MOST_ITERATIONS`.
    """
    rows, columns = features.astype(np.float32), features.T.tocsr().astype(np.float32)  # both products go by rows
    squares = np.bincount(rows.indices, np.square(rows.data), minlength=rows.shape[1]).astype(np.float32)
    scale = torch.from_numpy(1 / (squares[:, None] + np.float32(penalty)))  # (P, 1)
    solution, worst = np.empty((features.shape[1], targets.shape[1]), dtype=np.float32), 0.0
    for start in range(0, targets.shape[1], BLOCK_TARGETS):
        block = slice(start, start + BLOCK_TARGETS)
        right = _product(columns, torch.from_numpy(np.ascontiguousarray(targets[:, block], dtype=np.float32)))

        def apply(vectors: Tensor) -> Tensor:  # X'X + penalty
            return _product(columns, _product(rows, vectors)).add_(vectors, alpha=penalty)

        solved, distance = _iterate(apply, right, scale, tolerance)
        solution[:, block], worst = solved.numpy(), max(worst, distance)
    if worst > tolerance:
        logger.warning(
            f"Words are fitted up to a residual of {worst:.1e}, not {tolerance:.0e}: conjugate gradients stopped "
            f"after {MOST_ITERATIONS:,} steps. A penalty above {penalty:g} needs fewer."
        )
    return solution


def _iterate(
    apply: Callable[[Tensor], Tensor], right: Tensor, scale: Tensor, tolerance: float
) -> tuple[Tensor, float]:
    """Return the solution (P, h) for right sides (P, h), and how large its worst residual is relative to these."""
    residuals, solution = right.clone(), torch.zeros_like(right)
    direction = scale * residuals
    length = (residuals * direction).sum(dim=0)
    sizes = right.norm(dim=0).clamp(min=LEAST)
    least = torch.finfo(right.dtype).tiny  # a target may be a dead dimension of the encoder, all near 0
    for _ in range(MOST_ITERATIONS):
        product = apply(direction)
        step = length / (direction * product).sum(dim=0).clamp(min=least)
        solution += step * direction
        residuals -= step * product
        if bool((residuals.norm(dim=0) <= tolerance * sizes).all()):
            break
        preconditioned = scale * residuals
        next_length = (residuals * preconditioned).sum(dim=0)
        direction = preconditioned.addcmul_(direction, next_length / length.clamp(min=least))
        length = next_length
    return solution, float((residuals.norm(dim=0) / sizes).max())


def _product(sparse: csr_matrix, dense: Tensor) -> Tensor:
    """Multiply (M, N) by (N, h) as a sum over embeddings: several times as fast as scipy, on all threads."""
    indices, starts, values = map(torch.from_numpy, (sparse.indices, sparse.indptr, sparse.data))
    return F.embedding_bag(indices, dense, starts, mode="sum", per_sample_weights=values, include_last_offset=True)


def leave_one_out(features: csr_matrix, targets: np.ndarray, penalty: float) -> np.ndarray:
    """Return (N, H): what a W fitted without a document gives for it.

    Exact, but where there are many documents and many features: there a document is left out together with a fifth of
    all, drawn with a fixed seed.
    """
    documents, pieces = features.shape
    if documents <= DUAL_DOCUMENTS:
        inverse = _inverse(features, penalty)
        return targets - (inverse @ targets) / inverse.diagonal()[:, None]
    if pieces <= PRIMAL_FEATURES:
        inverse = _inverse(features.T, penalty)
        residuals = targets - features @ (inverse @ (features.T.astype(np.float64) @ targets))
        leverages = np.concatenate(
            [np.asarray(part.multiply(part @ inverse).sum(axis=1)) for part in _blocks(features)]
        )
        return targets - residuals / np.maximum(1 - leverages.reshape(-1, 1), LEAST)
    outputs = np.empty(targets.shape, dtype=np.float32)
    fold_of = np.random.default_rng(0).permutation(documents) % FOLDS
    for fold in range(FOLDS):
        outside, inside = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        outputs[inside] = features[inside] @ weights(features[outside], targets[outside], penalty)
    return outputs


def _blocks(features: csr_matrix) -> Iterator[csr_matrix]:
    for start in range(0, features.shape[0], BLOCK):
        yield features[start : start + BLOCK]


def explained(vectors: np.ndarray, directions: np.ndarray) -> float:
    """Return the share of the variance of vectors (N, H) that directions (N, H) explain, scaled and shifted at best.

    It is the squared correlation of both around their means: a direction that all documents share counts for nothing.
    Its sign is that of the correlation.
    """
    vectors, directions = (rows - rows.mean(axis=0) for rows in (vectors, directions))
    scale = np.square(vectors).sum() * np.square(directions).sum()
    correlation = float((vectors * directions).sum() / np.sqrt(max(scale, LEAST)))
    return correlation * abs(correlation)
