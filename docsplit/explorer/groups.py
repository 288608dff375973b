"""Groups of documents on the map, each named by the words that set it apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import CountVectorizer

MOST_GROUPS = 40
NAMING_WORDS = 3
FEWEST_DOCUMENTS = 2  # of a group of several that have a naming word
MOST_WORDS = 50_000  # that are counted
PLURALS = (("ices", "ix"), ("ices", "ex"), ("ies", "y"), ("es", ""), ("s", ""))  # their endings, and the singulars'


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

    There are 2/3 of the square root of N groups, at least 3 and at most `MOST_GROUPS`.
    """
    count = int(np.clip(round(np.sqrt(len(texts)) / 1.5), min(3, len(texts)), MOST_GROUPS))
    means = KMeans(min(count, len(np.unique(points, axis=0))), n_init=4, random_state=0).fit(points)
    names = naming_words(texts, means.labels_)
    groups = []
    for number, words in enumerate(names):
        rows = np.flatnonzero(means.labels_ == number)
        distances = np.linalg.norm(points[rows] - means.cluster_centers_[number], axis=1)
        groups.append(Group(words, rows[distances.argsort(kind="stable")]))
    return sorted(groups, key=lambda group: -len(group.rows))


def naming_words(texts: Sequence[str], groups: np.ndarray, count: int = NAMING_WORDS) -> list[list[str]]:
    """Choose the words that name each group: no number, no English stop word, and no word for two groups.

    A word counts for the group where its class-based TF-IDF (Grootendorst 2022) is highest: its share of the group x
    log(1 + mean words of a group / count of the word in all). A document counts each of its words once. Singular and
    plural are one word.

    Args:
        groups: (N,), the number of each document's group, from 0.

    Returns: at most `count` words of each group.
    """
    num_groups = int(groups.max()) + 1
    counter = CountVectorizer(
        stop_words="english", token_pattern=r"(?u)\b[^\W\d_]{3,}\b", binary=True, max_features=MOST_WORDS
    )
    try:
        present = counter.fit_transform(texts)  # (N, V)
    except ValueError:  # no text has a word: the only error of `fit_transform` for texts
        return [[] for _ in range(num_groups)]
    words = counter.get_feature_names_out()
    members = np.zeros((num_groups, len(texts)), dtype=np.int64)
    members[groups, np.arange(len(texts))] = 1
    counts = (present.T @ members.T).T  # (C, V) documents of a group with a word
    counts, words = _without_plurals(counts, words)
    # Words that one document of a group has say nothing about the others.
    counts = np.where(counts >= np.minimum(members.sum(axis=1), FEWEST_DOCUMENTS)[:, None], counts, 0)
    sizes = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    weights = counts / sizes * np.log1p(sizes.mean() / np.maximum(counts.sum(axis=0), 1))
    weights[np.arange(num_groups)[:, None] != weights.argmax(axis=0)] = 0  # each word to one group
    best = np.argsort(-weights, axis=1, kind="stable")[:, :count]
    return [[str(words[word]) for word in best[group] if weights[group, word] > 0] for group in range(num_groups)]


def _without_plurals(counts: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add the counts (C, V) of English plurals to those of their singulars, and keep the more frequent form."""
    number_of = {word: number for number, word in enumerate(words)}
    totals, counts, shown = counts.sum(axis=0), counts.copy(), words.copy()
    kept = np.ones(len(words), dtype=bool)
    for word, number in number_of.items():
        singulars = [word[: -len(end)] + other for end, other in PLURALS if word.endswith(end)]
        singular = next((number_of[form] for form in singulars if form in number_of), None)
        if singular is not None and kept[singular]:
            counts[:, singular] += counts[:, number]
            kept[number] = False
            if totals[number] > totals[singular]:
                shown[singular] = word
    return counts[:, kept], shown[kept]
