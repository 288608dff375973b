"""The documents of an index that are nearest to a query, or have its words."""

from collections.abc import Sequence

import numpy as np
import torch

from docsplit.index.segments import Segment, bm25

CHUNK_VALUES = 2**20  # similarities at a time: 4 MB
Key = tuple[int, int]  # number of a segment, row in it


def nearest(segments: Sequence[Segment], vectors: np.ndarray, count: int) -> list[list[tuple[Key, float]]]:
    """The documents with the nearest passages to each query (Q, H), exactly: key and similarity, the best first.

    Segments are read through their mapping in chunks, so that what is in memory does not grow with them.
    """
    found: list[list[tuple[Key, float]]] = [[] for _ in vectors]
    for number, segment in enumerate(segments):
        starts, passages = segment.passage_starts, segment.passage_vectors
        step = max(CHUNK_VALUES * len(starts) // (len(vectors) * len(passages)), 1)  # documents
        for first in range(0, len(starts), step):
            own = np.asarray(starts[first : first + step])
            end = segment.passages_of(first + len(own) - 1).stop
            scores = vectors @ passages[own[0] : end].T  # (Q, P')
            if len(own) < scores.shape[1]:
                scores = np.maximum.reduceat(scores, own - own[0], axis=1)  # (Q, N')
            scores[:, ~segment.alive[first : first + len(own)]] = -np.inf
            best, rows = torch.from_numpy(scores).topk(min(count, len(own)), dim=1)
            for ranking, own_best, own_rows in zip(found, best.tolist(), rows.tolist()):
                ranking += [
                    ((number, first + row), score) for row, score in zip(own_rows, own_best) if score > -np.inf
                ]
    return [sorted(ranking, key=lambda one: (-one[1], one[0]))[:count] for ranking in found]


def best_by_words(segments: Sequence[Segment], words: Sequence[str], count: int) -> list[tuple[Key, float]]:
    """The documents with the highest BM25, of those that have one of the words: key and score, the best first."""
    found = []
    for number, scores in enumerate(bm25(segments, words)):
        rows = np.argpartition(-scores, count)[:count] if count < len(scores) else np.arange(len(scores))
        found += [((number, int(row)), float(scores[row])) for row in rows if scores[row] > 0]
    return sorted(found, key=lambda one: (-one[1], one[0]))[:count]
