"""Two rankings as one: a weighted sum of their scores, its weight chosen on other queries, or reciprocal ranks.

The scores of either list are brought to 0 to 1 for each query, over the union of both: a document that is missing in a
list has that list's lowest score. The weight of a query's fold is the one with which all other folds are best by a
measure of `CHOOSING`, or one weight is chosen on queries that are not reported at all: never on what is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from docsplit.data.fusion import fuse
from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.evaluation.ranking.measures import dcg, grades_of, ideal_dcg

WEIGHTS = tuple(number / 20 for number in range(21))  # of the first list

# The measures that a weight can be chosen by, of `docsplit.evaluation.ranking.measures.MEASURES`: of the grades (Q, k)
# of the k best documents, and the ideal DCG at k, (Q,).
CHOOSING: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ndcg": lambda grades, ideal: dcg(grades, [grades.shape[1]])[:, 0] / ideal,
    "precision": lambda grades, ideal: (grades > 0).mean(axis=1),
    "mrr": lambda grades, ideal: np.where((grades > 0).any(axis=1), 1 / (1 + (grades > 0).argmax(axis=1)), 0),
}


@dataclass
class Union:
    """The documents of two lists of each query, and how good either list finds them, 0 to 1."""

    rows: np.ndarray  # (Q, U) int32, ascending; -1 in places that are empty
    first: np.ndarray  # (Q, U) float32
    second: np.ndarray  # (Q, U) float32

    def ranked(self, weights: np.ndarray, depth: int) -> Retrieved:
        """Rank by weight x first + (1 - weight) x second, one weight a query, (Q,)."""
        scores = weights[:, None] * self.first + (1 - weights[:, None]) * self.second
        return Retrieved.best(self.rows, np.where(self.rows >= 0, scores, -np.inf), depth)


def union_of(first: Retrieved, second: Retrieved) -> Union:
    """Join two lists of each query, their scores brought to 0 to 1."""
    lists = [np.union1d(left, right) for left, right in zip(first.rows, second.rows)]
    lists = [rows[rows >= 0] for rows in lists]
    joined = np.full((len(lists), max(1, *map(len, lists))), -1, dtype=np.int32)
    for row, documents in zip(joined, lists):
        row[: len(documents)] = documents
    return Union(joined, _scaled(joined, lists, first), _scaled(joined, lists, second))


def _scaled(joined: np.ndarray, lists: list[np.ndarray], retrieved: Retrieved) -> np.ndarray:
    """Scale the scores of one list to 0 to 1, in the places of the union, (Q, U)."""
    scaled = np.zeros(joined.shape, dtype=np.float32)
    for query_scores, union, rows, scores in zip(scaled, lists, retrieved.rows, retrieved.scores):
        is_there = rows >= 0
        known = scores[np.isfinite(scores)]  # of BM25 also the 0 of documents that were not found
        if known.size and known.max() > known.min():
            values = (scores[is_there] - known.min()) / (known.max() - known.min())
            query_scores[np.searchsorted(union, rows[is_there])] = values
    return scaled


def reciprocal_rank_fusion(first: Retrieved, second: Retrieved, depth: int) -> Retrieved:
    """Rank by the sum of 1 / (60 + rank) over both lists; ranks begin at 1."""
    rows = np.full((len(first.rows), depth), -1, dtype=np.int32)
    scores = np.full(rows.shape, -np.inf, dtype=np.float32)
    for number, lists in enumerate(zip(first.rows, second.rows)):
        fused = fuse([ranked[ranked >= 0].tolist() for ranked in lists])[:depth]
        rows[number, : len(fused)], scores[number, : len(fused)] = zip(*fused) if fused else ((), ())
    return Retrieved(rows, scores)


def cross_validated(union: Union, ranking: Ranking, folds: Sequence[np.ndarray], measure: str) -> np.ndarray:
    """Return the weight of each query, (Q,): the best by this measure for the queries of all other folds."""
    values, weights = values_of_weights(union, ranking, measure), np.empty(len(ranking.query_ids))
    for fold in folds:
        others = np.setdiff1d(np.arange(len(weights)), fold)
        weights[fold] = best_weight(values[:, others])
    return weights


def values_of_weights(union: Union, ranking: Ranking, measure: str) -> np.ndarray:
    """Return a measure of each query with each of `WEIGHTS`, (weights, Q).

    Args:
        measure: KIND_at_DEPTH, its kind one of `CHOOSING`.
    """
    kind, _, number = measure.partition("_at_")
    depth = int(number)
    grades, ideal = grades_of(union.rows, ranking), ideal_dcg(ranking, [depth])[:, 0]
    values = []
    for weight in WEIGHTS:
        scores = weight * union.first + (1 - weight) * union.second
        scores[union.rows < 0] = -1
        best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
        found = np.zeros((len(best), depth), dtype=grades.dtype)
        found[:, : best.shape[1]] = np.take_along_axis(grades, best, axis=1)
        values.append(CHOOSING[kind](found, ideal))
    return np.stack(values)


def best_weight(values: np.ndarray) -> float:
    """Return the weight with the highest mean of values (weights, queries); of several, the middle one."""
    means = values.mean(axis=1).round(12)
    best = np.flatnonzero(means == means.max())
    return WEIGHTS[int(best[(len(best) - 1) // 2])]
