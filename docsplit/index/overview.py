"""An overview of an index: documents that are nearly the same, and groups with the words that name them."""

import logging
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from sklearn.cluster import MiniBatchKMeans

from docsplit.data.group_names import name_groups
from docsplit.data.preparation import jaccard
from docsplit.index.index import Index
from docsplit.index.segments import Segment

logger = logging.getLogger(__name__)

MOST_PAIRS = 100_000  # of near-duplicates: a thousand copies of one text are half a million
CHUNK_VALUES = 2**24  # similarities at a time: 64 MB


@dataclass(frozen=True)
class Pair:
    """Two documents that are nearly the same."""

    id: str
    other: str
    score: float  # similarity of the vectors: high for the same content in other words, too
    same_words: float  # Jaccard similarity of their runs of five words, 1 for copies
    title: str = ""
    other_title: str = ""


@dataclass(frozen=True)
class Group:
    """Documents that a cluster holds."""

    size: int
    words: list[str]  # that name the group
    ids: list[str]  # the nearest to the centre first
    titles: list[str]  # of the same documents


def duplicates(index: Index, threshold: float = 0.95) -> list[Pair]:
    """Find the pairs of documents whose vectors have this similarity or more, the most similar first.

    At most `MOST_PAIRS` are returned; a warning says how many there are.
    """
    vectors, places = index.document_vectors(), list(index.documents())
    pairs, values, total = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32), 0
    step = max(CHUNK_VALUES // max(len(vectors), 1), 1)
    for start in range(0, len(vectors), step):
        scores = vectors[start : start + step] @ vectors[start:].T
        similar = np.argwhere(np.triu(scores >= threshold, k=1))  # each pair once
        pairs = np.concatenate([pairs, start + similar])
        values = np.concatenate([values, scores[similar[:, 0], similar[:, 1]]])
        total += len(similar)
        if len(values) > 2 * MOST_PAIRS or start + step >= len(vectors):
            order = np.argsort(-values, kind="stable")[:MOST_PAIRS]
            pairs, values = pairs[order], values[order]
    if total > len(pairs):
        logger.warning(f"{total:,} pairs: the {len(pairs):,} most similar are kept. Raise the threshold for fewer.")
    rows = []
    for (first, second), score in zip(pairs.tolist(), values.tolist()):
        (segment, row), (other, other_row) = places[first], places[second]
        same_words = jaccard(segment.texts[row], other.texts[other_row])
        titles = segment.titles[row], other.titles[other_row]
        rows.append(Pair(segment.ids[row], other.ids[other_row], score, same_words, *titles))
    return rows


def clusters(index: Index, count: int, seed: int = 0) -> list[Group]:
    """Group documents by k-means of their vectors, and name each group by words; the largest group comes first.

    `docsplit.data.group_names` says how words are chosen.

    Raises:
        ValueError: if there are fewer documents than groups.
    """
    if count > len(index):
        raise ValueError(f"{count} groups of {len(index)} documents: lower --count.")
    vectors, places = index.document_vectors(), list(index.documents())
    means = MiniBatchKMeans(count, n_init=3, random_state=seed, batch_size=4096).fit(vectors)
    labels = means.labels_
    names, groups = _names(index.segments, labels, count), []
    for number in range(count):
        rows = np.flatnonzero(labels == number)
        if not len(rows):
            continue
        distances = np.linalg.norm(vectors[rows] - means.cluster_centers_[number], axis=1)
        nearest = [places[row] for row in rows[distances.argsort(kind="stable")]]
        ids = [segment.ids[row] for segment, row in nearest]
        groups.append(Group(len(rows), names[number], ids, [segment.titles[row] for segment, row in nearest]))
    return sorted(groups, key=lambda group: -group.size)


def _names(segments: list[Segment], labels: np.ndarray, count: int) -> list[list[str]]:
    """Choose the words that name each group, from the labels (N,) of all documents."""
    totals: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(count))  # of words that a segment has twice
    in_documents: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(count))
    start = 0
    for segment in segments:
        size, words = len(segment.ids), segment.words
        group_of = np.full(size, count)  # one group more, of the deleted
        group_of[segment.alive] = labels[start : start + segment.num_documents]
        start += segment.num_documents
        groups = scipy.sparse.csr_matrix((np.ones(size), (np.arange(size), group_of)), shape=(size, count + 1))
        groups = groups[:, :count]  # (N, C)
        shape = size, len(words.words)
        for table, values in ((totals, words.counts), (in_documents, np.ones(len(words.counts)))):
            counts = scipy.sparse.csc_matrix((values, words.rows, words.starts), shape=shape)
            in_groups = (counts.T @ groups).tocsr()  # (V, C)
            for row in np.flatnonzero(np.diff(in_groups.indptr)):
                part = slice(in_groups.indptr[row], in_groups.indptr[row + 1])
                table[words.words[row]][in_groups.indices[part]] += in_groups.data[part]
    if not totals:
        return [[] for _ in range(count)]
    words_of, sizes = list(totals), np.bincount(labels, minlength=count)
    by_word, documents = (np.stack([table[word] for word in words_of]) for table in (totals, in_documents))  # (V, C)
    return name_groups(words_of, by_word, documents, sizes)
