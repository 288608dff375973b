"""Groups of documents on the map, each named by the words that set it apart."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from sklearn.cluster import KMeans

from docsplit.data.group_names import name_groups
from docsplit.data.words import tokenize

MOST_GROUPS = 40
NAMING_WORDS = 3  # of a group, at most


@dataclass(frozen=True)
class Group:
    """Documents that lie together on the map.

    Attributes:
        words: those that name it, the best first; none where nothing sets it apart.
        rows: (n,), its documents; the nearest to the centre come first.
    """

    words: list[str]
    rows: np.ndarray


def groups_of(points: np.ndarray, texts: Sequence[str]) -> list[Group]:
    """Group documents by k-means of their points (N, 2) on the map; the largest group comes first.

    There are 2/3 of the square root of N groups, at least 3 and at most `MOST_GROUPS`. `docsplit.data.group_names`
    says how words are chosen.
    """
    count = int(np.clip(round(np.sqrt(len(texts)) / 1.5), min(3, len(texts)), MOST_GROUPS))
    means = KMeans(min(count, len(np.unique(points, axis=0))), n_init=4, random_state=0).fit(points)
    names = _names(texts, means.labels_)
    groups = []
    for number, words in enumerate(names):
        rows = np.flatnonzero(means.labels_ == number)
        distances = np.linalg.norm(points[rows] - means.cluster_centers_[number], axis=1)
        groups.append(Group(words[:NAMING_WORDS], rows[distances.argsort(kind="stable")]))
    return sorted(groups, key=lambda group: -len(group.rows))


def _names(texts: Sequence[str], labels: np.ndarray) -> list[list[str]]:
    """Choose the words that name each group, from the labels (N,) of all documents, from 0."""
    tokens = tokenize(texts)
    words = sorted(tokens.vocab)
    lengths = np.fromiter(map(len, tokens.ids), np.int64, len(texts))
    numbers = np.fromiter(itertools.chain.from_iterable(tokens.ids), np.int64, lengths.sum())
    places = np.repeat(np.arange(len(texts)), lengths), numbers
    shape = len(texts), max(tokens.vocab.values(), default=-1) + 1
    counts = coo_array((np.ones(len(numbers)), places), shape=shape).tocsc()
    counts = counts[:, [tokens.vocab[word] for word in words]]  # (N, V)
    members = (labels[:, None] == np.arange(labels.max() + 1)).astype(float)  # (N, C)
    return name_groups(words, counts.T @ members, (counts > 0).astype(float).T @ members, members.sum(axis=0))
