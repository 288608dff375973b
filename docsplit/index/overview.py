"""What is in an index as a whole: documents that are nearly the same, and groups with the words that name them."""

import logging
from collections import defaultdict
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.cluster import MiniBatchKMeans
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from docsplit.data.preparation import jaccard
from docsplit.index.index import Index
from docsplit.index.segments import Segment

logger = logging.getLogger(__name__)

MOST_PAIRS = 100_000  # of near-duplicates: a thousand copies of one text are half a million
CHUNK_VALUES = 2**24  # similarities at a time: 64 MB
NAMING_WORDS = 6
FEWEST_DOCUMENTS = 2  # of a group of several that a naming word is in


def duplicates(index: Index, threshold: float = 0.95) -> list[dict[str, Any]]:
    """Pairs of documents whose vectors have this similarity or more, the most similar first.

    `score` is that of the vectors, which documents of the same content share in other words too; `same_words` is the
    Jaccard similarity of their runs of five words, 1 for copies. More than `MOST_PAIRS` are counted, and said.
    """
    vectors, places = index.document_vectors(), list(index.documents())
    pairs, values, total = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32), 0
    step = max(CHUNK_VALUES // max(len(vectors), 1), 1)
    for start in range(0, len(vectors), step):
        scores = vectors[start : start + step] @ vectors[start:].T
        found = np.argwhere(np.triu(scores >= threshold, k=1))  # each pair once
        pairs = np.concatenate([pairs, start + found])
        values = np.concatenate([values, scores[found[:, 0], found[:, 1]]])
        total += len(found)
        if len(values) > 2 * MOST_PAIRS or start + step >= len(vectors):
            order = np.argsort(-values, kind="stable")[:MOST_PAIRS]
            pairs, values = pairs[order], values[order]
    if total > len(pairs):
        logger.warning(f"{total:,} pairs: the {len(pairs):,} most similar are kept. Raise the threshold for fewer.")
    rows = []
    for (first, second), score in zip(pairs.tolist(), values.tolist()):
        (own, row), (other, column) = places[first], places[second]
        same_words = jaccard(own.texts[row], other.texts[column])
        rows.append({"id": own.ids[row], "other": other.ids[column], "score": score, "same_words": same_words})
    return rows


def clusters(index: Index, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """k-means of the documents' vectors: of each group its size, the words that name it, and its documents' ids.

    A word, no stop-word, names a group if its documents have it more often than those of others do: class-based TF-IDF
    (Grootendorst 2022), share in the group x log(1 + mean words of a group / count of the word in all). The ids are in
    the order of their distance to the centre, the nearest first; the largest group comes first.

    Raises:
        ValueError: if there are fewer documents than groups.
    """
    if count > len(index):
        raise ValueError(f"{count} groups of {len(index)} documents: lower --count.")
    vectors, places = index.document_vectors(), list(index.documents())
    means = MiniBatchKMeans(count, n_init=3, random_state=seed, batch_size=4096).fit(vectors)
    labels = means.labels_
    names, found = _names(index.segments, labels, count), []
    for number in range(count):
        rows = np.flatnonzero(labels == number)
        if not len(rows):
            continue
        distances = np.linalg.norm(vectors[rows] - means.cluster_centers_[number], axis=1)
        ids = [places[row][0].ids[places[row][1]] for row in rows[distances.argsort(kind="stable")]]
        found.append({"size": len(rows), "words": names[number], "ids": ids})
    return sorted(found, key=lambda group: -group["size"])


def _names(segments: list[Segment], labels: np.ndarray, count: int) -> list[list[str]]:
    """The words that name each group, of the labels (N,) of all documents."""
    totals: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(count))  # of words that a segment has twice
    in_documents: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(count))
    start = 0
    for segment in segments:
        own = np.full(len(segment.ids), count)
        own[segment.alive] = labels[start : start + segment.num_documents]
        start += segment.num_documents
        groups = scipy.sparse.csr_matrix((np.ones(len(own)), (np.arange(len(own)), own)), shape=(len(own), count + 1))[
            :, :count
        ]
        words = segment.words
        shape = len(own), len(words.words)
        for table, values in ((totals, words.counts), (in_documents, np.ones(len(words.counts)))):
            counts = scipy.sparse.csc_matrix((values, words.rows, words.starts), shape=shape)
            by_word = (counts.T @ groups).tocsr()  # (V, C)
            for row in np.flatnonzero(np.diff(by_word.indptr)):
                part = slice(by_word.indptr[row], by_word.indptr[row + 1])
                table[words.words[row]][by_word.indices[part]] += by_word.data[part]
    if not set(totals) - ENGLISH_STOP_WORDS:
        return [[] for _ in range(count)]
    words_of = sorted(set(totals) - ENGLISH_STOP_WORDS)
    matrix = np.stack([totals[word] for word in words_of])  # (V, C)
    fewest = np.minimum(np.bincount(labels, minlength=count), FEWEST_DOCUMENTS)
    matrix[np.stack([in_documents[word] for word in words_of]) < fewest] = 0
    sizes = np.maximum(matrix.sum(axis=0), 1)
    weights = matrix / sizes * np.log1p(sizes.mean() / np.maximum(matrix.sum(axis=1, keepdims=True), 1))
    best = np.argsort(-weights, axis=0, kind="stable")[:NAMING_WORDS]
    return [[words_of[row] for row in best[:, group] if weights[row, group] > 0] for group in range(count)]
