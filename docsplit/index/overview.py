"""An overview of an index: documents that are nearly the same, and groups with the words that name them."""

import logging
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from tqdm.auto import tqdm

from docsplit.data.copies import jaccard_of_pairs
from docsplit.data.group_names import name_groups_of_texts
from docsplit.index.index import IndexReader

logger = logging.getLogger(__name__)

MOST_PAIRS = 100_000  # of near-duplicates: a thousand copies of one text are half a million
ROUNDING = 1e-6  # of the scalar product of a vector of length one with itself, which may be less than 1
VALUES_AT_ONCE = 2**24  # similarities at a time: 64 MB


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


def duplicates(index: IndexReader, threshold: float = 0.95) -> list[Pair]:
    """Find the pairs of documents whose vectors have this similarity or more, the most similar first.

    At most `MOST_PAIRS` are returned; a warning says how many there are.

    Raises:
        ValueError: for a threshold that no cosine reaches, or all.
    """
    if index.manifest.encoder["similarity"] == "cosine" and not 0 <= threshold <= 1:
        raise ValueError(f"--threshold {threshold:g}: give a number from 0 to 1; documents are compared by cosine.")
    if not len(index):
        return []
    pairs, scores, total = _most_similar(index.document_vectors(), threshold - ROUNDING)
    if total > len(pairs):
        logger.warning(f"{total:,} pairs: the {len(pairs):,} most similar are kept. Raise the threshold for fewer.")
    # The texts of the documents that are in pairs
    in_pairs, inverse = np.unique(pairs, return_inverse=True)
    places = list(index.documents())
    documents = [places[number] for number in in_pairs.tolist()]
    rows: np.ndarray = inverse.reshape(pairs.shape)  # (K, 2), of `documents`
    same_words = jaccard_of_pairs([segment.texts[row] for segment, row in documents], rows)
    names = [(segment.ids[row], segment.titles[row]) for segment, row in documents]
    return [
        Pair(names[first][0], names[second][0], score, same, names[first][1], names[second][1])
        for (first, second), score, same in zip(rows.tolist(), scores.tolist(), same_words.tolist())
    ]


def _most_similar(vectors: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Find the pairs of vectors (N, H) with a scalar product of `threshold` or more.

    Returns: at most `MOST_PAIRS` pairs (K, 2) and their products (K,), the highest first, of equal ones the lower
        rows; and how many pairs there are.
    """
    pairs, values, total = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32), 0
    least = threshold  # what a further pair must have; it rises once there are enough
    step = min(max(VALUES_AT_ONCE // max(len(vectors), 1), 1), 4096)
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


def clusters(index: IndexReader, count: int | None = None, seed: int = 0) -> list[Group]:
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
    if not count:
        return []
    vectors, places = index.document_vectors(), list(index.documents())
    means = MiniBatchKMeans(count, n_init=3, random_state=seed, batch_size=4096).fit(vectors)
    labels = means.labels_
    groups = []
    texts = (segment.texts[row] for segment, row in places)
    for number, names in enumerate(name_groups_of_texts(texts, labels, count)):
        rows = np.flatnonzero(labels == number)
        distances = np.linalg.norm(vectors[rows] - means.cluster_centers_[number], axis=1)
        nearest = [places[row] for row in rows[distances.argsort(kind="stable")]]
        ids = [segment.ids[row] for segment, row in nearest]
        groups.append(Group(len(rows), names, ids, [segment.titles[row] for segment, row in nearest]))
    return sorted(filter(lambda group: group.size, groups), key=lambda group: -group.size)
