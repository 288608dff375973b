"""Exact search in the segments of an index: by the nearest passages, and by words.

BM25 is computed from the counts of segments when a query comes, for its words alone: the statistics of the collection
(documents that have a word, mean length) change with each document that comes or goes. bm25s, which the evaluations
use, weighs all words of all documents beforehand; the scores are the same.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from docsplit.index.segments import Segment

K1, B = 1.5, 0.75  # bm25s's defaults
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


def bm25(segments: Sequence[Segment], words: Sequence[str]) -> list[np.ndarray]:
    """Compute BM25 (Lucene's form, as bm25s has it) of all documents of some segments for the words of a query.

    Only documents that are in the index count: after an addition or a deletion, the scores are those of an index that
    was built so.

    Returns: scores (N,) float32 of each segment, 0 for documents without any of the words and for deleted ones.
    """
    num_documents = sum(segment.num_documents for segment in segments)
    total = sum(int(segment.words.lengths[segment.alive].sum()) for segment in segments)
    mean_length = max(total / max(num_documents, 1), 1e-9)
    scores = [np.zeros(len(segment.ids), dtype=np.float32) for segment in segments]
    for word, times in Counter(words).items():  # a word that the query has twice counts twice
        postings = []
        for number, segment in enumerate(segments):
            rows, counts = segment.words.postings(word)
            is_alive = segment.alive[rows]
            postings.append((number, rows[is_alive], counts[is_alive]))
        frequency = sum(len(rows) for _, rows, _ in postings)
        weight = times * np.log(1 + (num_documents - frequency + 0.5) / (frequency + 0.5))
        for number, rows, counts in postings:
            lengths = segments[number].words.lengths[rows]
            scores[number][rows] += weight * counts / (counts + K1 * (1 - B + B * lengths / mean_length))
    return scores


def _keyed(segments: Sequence[Segment], rows: np.ndarray, scores: np.ndarray, above: float) -> list[Scored]:
    """Keys and scores above `above` of each query, from rows (Q, K) that are counted through all segments."""
    ends = np.cumsum([len(segment.ids) for segment in segments])
    numbers = np.searchsorted(ends, rows, side="right")
    starts = np.concatenate([[0], ends])
    return [
        [((number, row), score) for number, row, score in zip(*ranking) if score > above]
        for ranking in zip(numbers.tolist(), (rows - starts[numbers]).tolist(), scores.tolist())
    ]
