"""Documents as sentences: those that are shown, those that say something, and those of two documents that match."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from docsplit.data.segmentation import load_sentence_splitter
from docsplit.data.words import stem_tokens

SENTENCES_SHOWN = 30  # of a document
LONGEST_SHOWN = 400  # letters
_NUMBER = re.compile(r"\d+")
_SIGN = re.compile(r"[\W\d_](?<!\s)")
_CODE = re.compile(r"\s*(?:>>>|\.\.\.|\$|#|//|\|)")
_BOILERPLATE = re.compile(r"(?i)all rights reserved|\blicen[cs]ed under\b|\bcopyright (?:\(c\)|©|\d)|©")


@dataclass(frozen=True)
class ShownText:
    """A document as the page shows it.

    Attributes:
        sentences: the first `SENTENCES_SHOWN`, long ones cut.
        breaks: how many line breaks stand before each, 2 for a new paragraph.
        left_out: how many more sentences there are.
    """

    sentences: list[str]
    breaks: list[int]
    left_out: int


class SentencePair(NamedTuple):
    """The two sentences of a document and its neighbour that match best: their numbers, and their cosine."""

    here: int
    there: int
    cosine: float


def split_texts(texts: Sequence[str]) -> list[ShownText]:
    """Split clean texts into sentences, and keep those that are shown."""
    split, shown = load_sentence_splitter(), []
    for text in tqdm(texts, desc="Splitting into sentences", unit="doc"):
        sentences = split(text)
        left_out = max(len(sentences) - SENTENCES_SHOWN, 0)
        sentences = sentences[:SENTENCES_SHOWN]
        breaks = _breaks(text, sentences)
        shown.append(ShownText([_cut(" ".join(sentence.split())) for sentence in sentences], breaks, left_out))
    return shown


def _breaks(text: str, sentences: Sequence[str]) -> list[int]:
    """Count the line breaks before each sentence, up to 2. Between sentences a text has white space alone."""
    end, breaks = 0, []
    for sentence in sentences:
        start = text.index(sentence, end)
        breaks.append(min(text.count("\n", end, start), 2))
        end = start + len(sentence)
    return breaks


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= LONGEST_SHOWN else sentence[:LONGEST_SHOWN].rstrip() + " …"


def words_of_sentences(documents: Sequence[Sequence[str]]) -> list[list[tuple[int, ...]]]:
    """Return the words of each sentence of each document as numbers: lower case, no stop words, all numbers alike."""
    flat = [_NUMBER.sub("00", sentence) for sentence in chain.from_iterable(documents)]
    numbers = iter(stem_tokens(flat).ids)
    return [[tuple(next(numbers)) for _ in sentences] for sentences in documents]


def telling_sentences(
    documents: Sequence[Sequence[str]], words: Sequence[Sequence[tuple[int, ...]]]
) -> list[np.ndarray]:
    """Choose the sentences of each document that say something about it.

    Left out are sentences that more than two documents have (but for case, numbers and punctuation), that have fewer
    than five different words but stop words, code, rows of tables, and notices of copyright. A document with short
    sentences alone keeps those that two documents have at most.

    Args:
        words: of each sentence, from `words_of_sentences`.

    Returns: the numbers of the sentences, of each document; none where all is boilerplate.
    """
    frequency = Counter(chain.from_iterable(set(sentences) for sentences in words))
    chosen = []
    for sentences, keys in zip(documents, words):
        rare = [number for number, key in enumerate(keys) if key and frequency[key] <= 2]
        said = [number for number in rare if len(set(keys[number])) >= 5 and is_prose(sentences[number])]
        chosen.append(np.array(said or rare, dtype=int))
    return chosen


def is_prose(sentence: str) -> bool:
    """Whether a sentence is no code, no notice of copyright, and no table: few of its letters are digits and signs."""
    if _CODE.match(sentence) or _BOILERPLATE.search(sentence):
        return False
    return len(_SIGN.findall(sentence)) <= 0.15 * len(sentence)


def best_sentences(
    vectors: np.ndarray, candidates: Sequence[np.ndarray], neighbours: np.ndarray
) -> list[list[SentencePair | None]]:
    """Choose the two sentences with the highest cosine, for each document and each of its neighbours.

    Args:
        vectors: (S, H), of length one: of the candidates, document after document.
        candidates: the numbers of the sentences to choose among, of each document.
        neighbours: (N, k), rows of documents.

    Returns: a pair for each document and neighbour; None where one of the two has no candidate.
    """
    of_document = np.split(vectors, np.cumsum([len(numbers) for numbers in candidates])[:-1])
    matches = []
    for row, others in enumerate(tqdm(neighbours, desc="Matching sentences", unit="doc")):
        pairs: list[SentencePair | None] = []
        for other in others:
            cosines = of_document[row] @ of_document[other].T
            if cosines.size == 0:
                pairs.append(None)
                continue
            here, there = np.unravel_index(cosines.argmax(), cosines.shape)
            numbers = int(candidates[row][here]), int(candidates[other][there])
            pairs.append(SentencePair(*numbers, float(cosines[here, there])))
        matches.append(pairs)
    return matches


def opening_document(
    matches: Sequence[Sequence[SentencePair | None]],
    neighbours: np.ndarray,
    words: Sequence[Sequence[tuple[int, ...]]],
) -> int:
    """Choose the document that shows best what an encoder sees: its neighbours say the same in other words.

    It is the one with the highest mean of cosine x (1 - Jaccard similarity of the words) over the best pairs of
    sentences with its first three neighbours.
    """
    values = [
        np.mean([_same_in_other_words(pair, words[row], words[other]) for pair, other in zip(pairs, others)])
        for row, (pairs, others) in enumerate(zip(matches, neighbours[:, :3]))
    ]
    return int(np.argmax(values))


def _same_in_other_words(
    pair: SentencePair | None, here: Sequence[Iterable[int]], there: Sequence[Iterable[int]]
) -> float:
    if pair is None:
        return 0.0
    first, second = set(here[pair.here]), set(there[pair.there])
    return pair.cosine * (1 - len(first & second) / max(len(first | second), 1))
