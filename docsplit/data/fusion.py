"""Two rankings as one: the weighted sum of a similarity and BM25, or reciprocal ranks.

    score = w (c - l) / (max c - l) + (1 - w) b / max b

c is the similarity of a document and the query, b its BM25; the maxima are over the documents that either ranking
finds. l is the lowest similarity there can be: -1 of a cosine; a dot product has none, and 0 stands there. So a
document's score does not depend on documents that nobody finds, and a weight means the same on each query. Bruch, Gai
and Ingber (2023, "An analysis of fusion functions for hybrid retrieval") compare such sums with reciprocal ranks
(Cormack et al. 2009) and find the sum ahead, as docs/searching.md does.
"""

from collections.abc import Sequence

import numpy as np

FUSIONS = ("sum", "rrf")
WEIGHT = 0.8  # of the similarity
LOWEST = {"cosine": -1.0, "dot": 0.0}


def scaled(scores: np.ndarray, lowest: float = 0.0) -> np.ndarray:
    """Scale the scores of each query's candidates (..., U) so that `lowest` becomes 0 and the highest 1."""
    highest = scores.max(axis=-1, initial=-np.inf, where=np.isfinite(scores), keepdims=True)
    span = np.abs(highest - lowest)
    return (scores - lowest) / np.where(np.isfinite(span) & (span > 0), span, 1)


def sum_of_scores(
    similarities: np.ndarray, bm25: np.ndarray, weight: float | np.ndarray = WEIGHT, lowest: float = -1.0
) -> np.ndarray:
    """Add the similarities and BM25 of each query's candidates (..., U), both scaled, with these weights.

    Args:
        similarities: -inf of what is no candidate.
    """
    is_candidate = np.isfinite(similarities)
    dense = np.where(is_candidate, scaled(similarities, lowest), 0)
    return np.where(is_candidate, weight * dense + (1 - weight) * scaled(bm25), -np.inf)


def reciprocal_ranks(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Fuse rankings of documents: each scores the sum of 1 / (60 + rank), and the highest comes first."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, document in enumerate(ranking, start=1):
            scores[document] = scores.get(document, 0.0) + 1 / (60 + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
