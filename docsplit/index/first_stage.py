"""Exact search in the segments of an index: by the nearest passages, and by words."""

from collections.abc import Iterator, Sequence

import numpy as np

from docsplit.index.segments import Segment, bm25

BLOCK_VALUES = 2**20  # similarities at a time: 4 MB
Key = tuple[int, int]  # number of a segment, row in it
Scored = list[tuple[Key, float]]  # documents and their scores


def nearest(segments: Sequence[Segment], vectors: np.ndarray, count: int) -> list[Scored]:
    """Find the documents with the nearest passages to each query (Q, H), exactly, the best first.

    Segments are read through their mapping in blocks, so that memory does not grow with them.
    """
    from docsplit.runtime.vectors import best_of_blocks  # it needs torch, as a search by words does not

    blocks = (scores for segment in segments for scores in _scores(segment, vectors))
    return _keyed(segments, *best_of_blocks(blocks, len(vectors), count), above=-np.inf)


def _scores(segment: Segment, vectors: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the similarity of each query and each document (Q, N'), a block of documents after another."""
    starts, passages = segment.passage_starts, segment.passage_vectors
    step = max(BLOCK_VALUES * len(starts) // (len(vectors) * len(passages)), 1)  # documents
    for first in range(0, len(starts), step):
        block = np.asarray(starts[first : first + step])
        end = segment.passages_of(first + len(block) - 1).stop
        scores = vectors @ passages[block[0] : end].T  # (Q, P')
        if len(block) < scores.shape[1]:
            scores = np.maximum.reduceat(scores, block - block[0], axis=1)  # (Q, N')
        scores[:, ~segment.alive[first : first + len(block)]] = -np.inf
        yield scores


def best_by_words(segments: Sequence[Segment], words: Sequence[str], count: int) -> Scored:
    """Find the documents with the highest BM25 among those that have one of the words, the best first."""
    scores = np.concatenate([np.empty(0, dtype=np.float32), *bm25(segments, words)])
    rows = np.flatnonzero(scores)  # BM25 is never below 0
    if len(rows) > count:
        least = np.partition(scores[rows], -count)[-count]
        rows = rows[scores[rows] >= least]  # also all that equal the last one
    rows = rows[np.argsort(-scores[rows], kind="stable")[:count]]
    (ranking,) = _keyed(segments, rows[None], scores[None, rows], above=0)
    return ranking


def _keyed(segments: Sequence[Segment], rows: np.ndarray, scores: np.ndarray, above: float) -> list[Scored]:
    """Keys and scores above `above` of each query, from rows (Q, K) that are counted through all segments."""
    ends = np.cumsum([len(segment.ids) for segment in segments])
    numbers = np.searchsorted(ends, rows, side="right")
    starts = np.concatenate([[0], ends])
    return [
        [((number, row), score) for number, row, score in zip(*ranking) if score > above]
        for ranking in zip(numbers.tolist(), (rows - starts[numbers]).tolist(), scores.tolist())
    ]
