"""An overview of an index: documents that are nearly the same, and groups with the words that name them."""

import logging
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from sklearn.cluster import MiniBatchKMeans
from tqdm.auto import tqdm

from docsplit.data.group_names import name_groups
from docsplit.data.preparation import jaccard_of_pairs
from docsplit.index.index import Index
from docsplit.index.store import Segment

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
    places = list(index.documents())
    pairs, scores, total = _most_similar(index.document_vectors(), threshold)
    if total > len(pairs):
        logger.warning(f"{total:,} pairs: the {len(pairs):,} most similar are kept. Raise the threshold for fewer.")
    in_pairs, inverse = np.unique(pairs, return_inverse=True)
    documents = [places[number] for number in in_pairs.tolist()]
    rows_of: np.ndarray = inverse.reshape(pairs.shape)  # (K, 2), of `documents`
    same_words = jaccard_of_pairs([segment.texts[row] for segment, row in documents], rows_of)
    names = [(segment.ids[row], segment.titles[row]) for segment, row in documents]
    rows = []
    for (first, second), score, same in zip(rows_of.tolist(), scores.tolist(), same_words.tolist()):
        (id_, title), (other, other_title) = names[first], names[second]
        rows.append(Pair(id_, other, score, same, title, other_title))
    return rows


def _most_similar(vectors: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Find the pairs of vectors (N, H) with a scalar product of `threshold` or more.

    Returns: at most `MOST_PAIRS` pairs (K, 2) and their products (K,), the highest first, of equal ones the lower
        rows; and how many pairs there are.
    """
    pairs, values, total = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32), 0
    least = threshold  # what a further pair must have; it rises once there are enough
    step = min(max(CHUNK_VALUES // max(len(vectors), 1), 1), 4096)
    with tqdm(total=len(vectors), desc="Comparing documents", unit="document", delay=1) as progress:
        for start in range(0, len(vectors), step):
            scores = vectors[start : start + step] @ vectors[start:].T
            size, width = scores.shape
            scores[:, :size][np.tri(size, dtype=bool)] = -np.inf  # each pair once
            total += np.count_nonzero(scores >= threshold)
            if np.count_nonzero(scores >= least) > MOST_PAIRS:  # keep the best, and all that equal the last of them
                least = max(least, np.partition(scores, -MOST_PAIRS, axis=None)[-MOST_PAIRS])
            similar = np.flatnonzero(scores >= least)
            pairs = np.concatenate([pairs, start + np.stack(np.divmod(similar, width), axis=1)])
            values = np.concatenate([values, scores.ravel()[similar]])
            if len(values) > 2 * MOST_PAIRS or start + step >= len(vectors):
                order = np.argsort(-values, kind="stable")[:MOST_PAIRS]
                pairs, values = pairs[order], values[order]
            if len(values) == MOST_PAIRS:
                least = np.nextafter(values.min(), np.float32(np.inf))
            progress.update(size)
    return pairs, values, total


def clusters(index: Index, count: int | None = None, seed: int = 0) -> list[Group]:
    """Group documents by k-means of their vectors, and name each group by words; the largest group comes first.

    `docsplit.data.group_names` says how words are chosen.

    Args:
        count: of the groups; None: 10, or as many as documents where they are fewer.

    Raises:
        ValueError: if there are fewer documents than `count`.
    """
    count = min(10, len(index)) if count is None else count
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
        size = len(segment.ids)
        group_of = np.full(size, count)  # one group more, of the deleted
        group_of[segment.alive] = labels[start : start + segment.entry.documents]
        start += segment.entry.documents
        groups = scipy.sparse.csr_matrix((np.ones(size), (np.arange(size), group_of)), shape=(size, count + 1))
        groups = groups[:, :count]  # (N, C)
        shape = size, len(segment.words)
        for table, values in ((totals, segment.word_counts), (in_documents, np.ones(len(segment.word_rows)))):
            counts = scipy.sparse.csc_matrix((values, segment.word_rows, segment.word_starts), shape=shape)
            in_groups = (counts.T @ groups).tocsr()  # (V, C)
            for row in np.flatnonzero(np.diff(in_groups.indptr)):
                part = slice(in_groups.indptr[row], in_groups.indptr[row + 1])
                table[segment.words[row]][in_groups.indices[part]] += in_groups.data[part]
    if not totals:
        return [[] for _ in range(count)]
    words_of, sizes = list(totals), np.bincount(labels, minlength=count)
    by_word, documents = (np.stack([table[word] for word in words_of]) for table in (totals, in_documents))  # (V, C)
    return name_groups(words_of, by_word, documents, sizes)
