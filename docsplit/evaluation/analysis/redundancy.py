"""How often documents say the same words again, by length, beside what their length alone would bring.

R = N / D: N nouns and verbs of a document, D distinct ones among them (equation 2 of SimLTE, appendix A, and of
DocSplit's first version, A.2). R grows with length in any text, also in one whose words were shuffled among documents
(the law of types and tokens). So each document has a null: as many nouns and as many verbs, drawn from those of all
other documents together. What a document repeats by being about something is R / R_null.

    variant         which words count, and which of them are the same
    nouns_verbs     NOUN and VERB; equal if lemma and part of speech are
    with_names      and PROPN: news is names
    lemma_alone     NOUN and VERB; a verb and a noun of one lemma are equal
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from docsplit.evaluation.analysis.estimates import Estimate, Json, over_documents
from docsplit.evaluation.results.bootstrap import interval, resample
from docsplit.evaluation.results.items import ItemPairs, rank_correlation

PARTS = ("NOUN", "VERB", "PROPN")
VARIANTS = {"nouns_verbs": PARTS[:2], "with_names": PARTS, "lemma_alone": PARTS[:2]}
LENGTH_CLASSES = {"0-50": 50, "51-100": 100, "101-200": 200, "201-300": 300, "> 300": np.inf}  # words, at most
ALL = "All"
NUM_DRAWS = 5  # of the null, of each document


@dataclass(frozen=True)
class ContentWords:
    """The nouns, verbs and names of documents, one after another."""

    lemmas: np.ndarray  # (T,) numbers of lemmas
    parts: np.ndarray  # (T,) indices into `PARTS`
    lengths: np.ndarray  # (D,) of each document, T in all
    words: np.ndarray  # (D,) words between white space


def content_words(tagged: Iterable[tuple[Sequence[str], Sequence[str]]], words: Sequence[int]) -> ContentWords:
    """Collect the content words of documents from lemmas and parts of speech (`docsplit.data.tagging.TaggedText`)."""
    numbers: dict[str, int] = {}
    part_numbers = {part: number for number, part in enumerate(PARTS)}
    lemmas: list[int] = []
    parts: list[int] = []
    lengths = []
    for own_lemmas, own_parts in tagged:
        before = len(lemmas)
        for lemma, part in zip(own_lemmas, own_parts):
            if part in part_numbers:
                lemmas.append(numbers.setdefault(lemma, len(numbers)))
                parts.append(part_numbers[part])
        lengths.append(len(lemmas) - before)
    return ContentWords(
        np.array(lemmas, dtype=np.int64), np.array(parts, dtype=np.int64), np.array(lengths), np.array(words)
    )


def redundancies(content: ContentWords, variant: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """R and R_null of each document, (D,) each; NaN where a document has none of these words.

    R_null is the mean over `NUM_DRAWS` draws, without replacement; with it where the others have too few words.
    """
    kept = np.isin(content.parts, [PARTS.index(part) for part in VARIANTS[variant]])
    documents = np.repeat(np.arange(len(content.lengths)), content.lengths)[kept]
    lemmas, parts = content.lemmas[kept], content.parts[kept]
    keys = lemmas if variant == "lemma_alone" else lemmas * len(PARTS) + parts
    counts = np.bincount(documents, minlength=len(content.lengths))
    starts = np.concatenate([[0], np.cumsum(counts)])
    pools = [_Pool(keys[parts == part], documents[parts == part]) for part in np.unique(parts)]
    generator = np.random.default_rng((seed, 5))
    observed, null = np.full((2, len(counts)), np.nan)
    for document, count in enumerate(counts):
        if count:
            observed[document] = count / len(np.unique(keys[starts[document] : starts[document + 1]]))
            drawn = [[pool.draw(document, generator) for pool in pools] for _ in range(NUM_DRAWS)]
            null[document] = np.mean([_ratio(np.concatenate(one)) for one in drawn])
    return observed, null


@dataclass(frozen=True)
class RedundancyRow:
    """What the documents of one class of lengths repeat, by one variant."""

    variant: str
    length: str
    n: int  # documents
    left_out: int  # documents without one of the words
    numbers: dict[str, Estimate]  # r, r_null and r_to_null; none of no documents

    def to_json(self) -> Json:
        """Return the row with the columns of each number."""
        row = {"variant": self.variant, "length": self.length, "n": self.n, "left_out": self.left_out}
        return row | {
            column: value
            for name, estimate in self.numbers.items()
            for column, value in estimate.columns(name).items()
        }


class _Pool:
    """The words of one part of speech of all documents, in the order of the documents."""

    def __init__(self, keys: np.ndarray, documents: np.ndarray):
        self.keys, self.documents = keys, documents

    def draw(self, document: int, generator: np.random.Generator) -> np.ndarray:
        """As many words as the document has, of others."""
        start, end = np.searchsorted(self.documents, [document, document + 1])
        others = len(self.keys) - (end - start)
        if others == 0:
            return self.keys[:0]
        drawn = generator.choice(others, end - start, replace=end - start > others, shuffle=False)
        return self.keys[drawn + (end - start) * (drawn >= start)]


def _ratio(keys: np.ndarray) -> float:
    return len(keys) / len(np.unique(keys)) if len(keys) else np.nan


def length_class(words: np.ndarray) -> np.ndarray:
    """Return the index of each document's class in `LENGTH_CLASSES`, (D,)."""
    return np.searchsorted(list(LENGTH_CLASSES.values()), words)


def redundancy_rows(content: ContentWords, seed: int = 0) -> tuple[list[RedundancyRow], list[Json]]:
    """Measure what is repeated, by variant and length class, and whether it grows with length.

    Returns: for each variant and class, `All` last, n documents, means of R and R_null, and R / R_null, the ratio of
        these means, with 95 % intervals over documents; `left_out` are documents without one of the words (D = 0).
        And for each variant Spearman's rank correlation of a document's words with R, R_null and R / R_null, with
        95 % intervals over documents: R grows with length beyond its null only where the last one is above 0. NaN
        where lengths or values are all equal, also in one of the drawn sets. The first less the second says
        nothing: R_null is a mean of draws, so that it follows length more closely, in shuffled text too.
    """
    rows, growth = [], []
    classes = length_class(content.words)
    for variant in VARIANTS:
        observed, null = redundancies(content, variant, seed)
        has_words = np.isfinite(observed) & np.isfinite(null)
        for number, name in enumerate([*LENGTH_CLASSES, ALL]):
            chosen = np.full(len(classes), True) if name == ALL else classes == number
            sizes = int((chosen & has_words).sum()), int((chosen & ~has_words).sum())
            numbers = _estimates(observed[chosen & has_words], null[chosen & has_words])
            rows.append(RedundancyRow(variant, name, *sizes, numbers))
        growing = (content.words[has_words], observed[has_words], null[has_words])
        growth.append({"variant": variant, **_growth(*growing)})
    return rows, growth


def _estimates(r: np.ndarray, r_null: np.ndarray) -> dict[str, Estimate]:
    """Return values and intervals for the documents of a cell, if there are any."""
    if not len(r):
        return {}
    ones = np.ones_like(r)
    resampled = over_documents({"r": (r, ones), "r_null": (r_null, ones), "r_to_null": (r, r_null)})
    return {name: Estimate(float(value.scores.mean()), *interval(value)) for name, value in resampled.items()}


def _growth(words: np.ndarray, r: np.ndarray, r_null: np.ndarray) -> dict[str, float]:
    """Return the rank correlations with the number of words, and their intervals."""
    values = {"r": r, "r_null": r_null, "r_to_null": r / r_null}
    if not len(words):
        return dict.fromkeys([f"{name}{end}" for name in values for end in ("", "_low", "_high")], np.nan)
    systems = [ItemPairs(words[None], value[None]) for value in values.values()]
    row: dict[str, float] = {}
    for name, system in zip(values, resample(systems, statistic=rank_correlation)):
        low, high = interval(system, is_share=False)
        row |= {name: float(system.scores[0]), f"{name}_low": low, f"{name}_high": high}
    return row
