"""Words that name groups of documents: frequent in one group, rare in the others."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from docsplit.data.passages import HAN_AND_KANA
from docsplit.data.words import WORDS, Stems

MOST_NAMES, FEWEST_NAMES = 6, 2  # words of a group; below the second number it shares words with other groups
FEWEST_DOCUMENTS, LEAST_SHARE = 2, 0.05  # of a group of several that a word is in
FEWEST_TIMES_AS_FREQUENT = 2.0  # in the group's documents than in those of others
# Words of web addresses, mail and code, which do not say what documents are about.
_BOILERPLATE = """
    http https www com org net edu gov html htm url mailto ftp email nbsp amp quot
    use uses used using user users writes wrote article subject lines organization nntp posting host reply distribution
    don doesn didn isn wasn just like know does did
    def self args kwargs param params arg none true false bool str int obj isinstance elif
"""
UNWANTED = ENGLISH_STOP_WORDS | frozenset(_BOILERPLATE.split())


def name_groups_of_texts(texts: Iterable[str], labels: Iterable[int], count: int) -> list[list[str]]:
    """Choose up to `MOST_NAMES` words for each of `count` groups of texts, whose labels are from 0."""
    cutter, sizes = Stems(WORDS), np.zeros(count)
    totals, in_documents = ([Counter[str]() for _ in range(count)] for _ in range(2))
    for text, label in zip(texts, labels):
        words = cutter.of_runs(text)
        totals[label].update(words)
        in_documents[label].update({*words})
        sizes[label] += 1
    vocabulary = sorted({word for counter in totals for word in counter})
    of_groups, of_documents = (
        np.array([[counter[word] for counter in counters] for word in vocabulary], dtype=float).reshape(-1, count)
        for counters in (totals, in_documents)
    )
    return name_groups(vocabulary, of_groups, of_documents, sizes)


def name_groups(
    words: Sequence[str], totals: np.ndarray, in_documents: np.ndarray, sizes: np.ndarray
) -> list[list[str]]:
    """Choose up to `MOST_NAMES` words for each group, the best first.

    The score of a word in a group is p (1 + log t) log(p / q): p and q are the shares of the group's and of all other
    documents that have it, smoothed, and t is how often a document has it that has it. A word names the one group
    where it scores highest, and so do a plural and its singular; a group that is left with fewer than `FEWEST_NAMES`
    shares words with others.

    Args:
        words: V of them, in small letters.
        totals: how often each group has each word, (V, C).
        in_documents: how many documents of each group have each word, (V, C).
        sizes: documents of each group, (C,).
    """
    is_name = np.array([_may_name(word) for word in words], dtype=bool)
    names = [word for word, may in zip(words, is_name) if may]
    scores = _scores(totals[is_name], in_documents[is_name], sizes)  # (V', C)
    best = np.argsort(-scores, axis=0, kind="stable")[:60]  # (K, C), candidates of each group
    pairs = [(float(scores[row, group]), row, group) for group in range(len(sizes)) for row in best[:, group]]
    pairs = sorted((pair for pair in pairs if pair[0] > 0), key=lambda pair: (-pair[0], pair[1]))
    chosen: list[list[str]] = [[] for _ in sizes]
    taken: set[str] = set()
    for _, row, group in pairs:
        if len(chosen[group]) < MOST_NAMES and (key := _singular(names[row])) not in taken:
            chosen[group].append(names[row])
            taken.add(key)
    for _, row, group in pairs:
        if len(chosen[group]) < FEWEST_NAMES and _singular(names[row]) not in map(_singular, chosen[group]):
            chosen[group].append(names[row])
    return chosen


def _scores(totals: np.ndarray, in_documents: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Score each word in each group, (V, C); 0 where it is not frequent enough to name it."""
    others = in_documents.sum(axis=1, keepdims=True) - in_documents
    inside = in_documents / np.maximum(sizes, 1)
    ratio = ((in_documents + 0.5) / (sizes + 1)) / ((others + 0.5) / (sizes.sum() - sizes + 1))
    scores = inside * (1 + np.log(np.maximum(totals, 1) / np.maximum(in_documents, 1))) * np.log(ratio)
    fewest = np.minimum(sizes, np.maximum(FEWEST_DOCUMENTS, LEAST_SHARE * sizes))
    enough = (in_documents >= fewest) & (in_documents > 0)
    return np.where(enough & (ratio >= FEWEST_TIMES_AS_FREQUENT), scores, 0)


def _may_name(word: str) -> bool:
    """Whether a word is one of a language, of three letters but for Chinese and Japanese, and says something."""
    is_long = len(word) >= 3 or re.match(f"[{HAN_AND_KANA}]", word) is not None
    return is_long and not re.search(r"[\d_]", word) and word not in UNWANTED


def _singular(word: str) -> str:
    """Take an English plural's ending off, so that it equals its singular."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "yses", "is")):  # an axis as well
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us")) else word
