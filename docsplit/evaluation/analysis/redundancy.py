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

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.data.tagging import describe_tagger, tag
from docsplit.evaluation.analysis.estimates import columns_of, over_documents
from docsplit.evaluation.analysis.report import (
    BETWEEN,
    Figure,
    Section,
    Table,
    ends_of,
    number,
    save_figure,
    with_interval,
)
from docsplit.evaluation.results import paper_numbers
from docsplit.evaluation.results.bootstrap import ItemPairs, interval, rank_correlation, resample
from docsplit.evaluation.results.report import Json

logger = logging.getLogger(__name__)

PARTS = ("NOUN", "VERB", "PROPN")
MAX_DOCUMENTS = 10_000
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


def redundancy_rows(content: ContentWords, seed: int = 0) -> tuple[list[Json], list[Json]]:
    """Measure what is repeated, by variant and length class, and whether it grows with length.

    Returns: for each variant and class, `All` last, n documents, means of R and R_null, and R / R_null, the ratio of
        these means, with 95 % intervals over documents; `left_out` are documents without one of the words (D = 0).
        And for each variant Spearman's rank correlation of a document's words with R, R_null and R / R_null, with
        95 % intervals over documents: R grows with length beyond its null only where the last one is above 0. NaN
        where lengths or values are all equal, also in one of the drawn sets. The first less the second says
        nothing: R_null is a mean of draws, so that it follows length more closely, in shuffled text too.
    """
    rows, growth = list[Json](), list[Json]()
    classes = np.searchsorted(list(LENGTH_CLASSES.values()), content.words)
    for variant in VARIANTS:
        observed, null = redundancies(content, variant, seed)
        has_words = np.isfinite(observed) & np.isfinite(null)
        for place, name in enumerate([*LENGTH_CLASSES, ALL]):
            chosen = np.full(len(classes), True) if name == ALL else classes == place
            r, r_null = observed[chosen & has_words], null[chosen & has_words]
            row = {"variant": variant, "length": name, "n": len(r), "left_out": int((chosen & ~has_words).sum())}
            if len(r):
                parts = {"r": (r, ones := np.ones_like(r)), "r_null": (r_null, ones), "r_to_null": (r, r_null)}
                row |= columns_of(over_documents(parts))
            rows.append(row)
        growing = (content.words[has_words], observed[has_words], null[has_words])
        growth.append({"variant": variant, **_growth(*growing)})
    return rows, growth


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


def redundancy(split: LabelledSplit, tagger: Any, seed: int) -> Json:
    """Measure `redundancy_rows` on a random sample of the documents of all parts."""
    texts = [text for part in split.texts.values() for text in part]
    chosen = np.sort(np.random.default_rng((seed, 8)).permutation(len(texts))[:MAX_DOCUMENTS])
    sample = [texts[row] for row in chosen]
    pipeline = describe_tagger(tagger)
    logger.info(f"Tagging {len(sample):,} documents by {pipeline}")
    tagged = ((own.lemmas, own.parts_of_speech) for own in tag(tagger, sample))
    rows, growth = redundancy_rows(content_words(tagged, [len(text.split()) for text in sample]), seed)
    sampled = f" drawn from {len(texts):,}" if len(sample) < len(texts) else ", all parts together"
    about = {"documents": len(sample), "sampled": sampled, "pipeline": pipeline}
    return {"rows": rows, "growth": growth} | about


def redundancy_section(contents: Json, data: str, folder: Path) -> Section:
    """Show Table 4 of DocSplit's first version, which is Table 3 of SimLTE, with its null."""
    rows, paper = contents["rows"], paper_numbers.read_paper("docsplit_v1")
    titles = {"r": "R", "r_null": "R of the null", "r_to_null": "R / R of the null"}
    variants = {"nouns_verbs": "Nouns and verbs", "with_names": "Nouns, verbs and names (PROPN)",
                "lemma_alone": "Nouns and verbs, equal by lemma alone"}  # fmt: skip
    tables = []
    for variant, name in variants.items():
        own = [row for row in rows if row["variant"] == variant]
        cells = [[row["length"], f"{row['n']:,}", *(with_interval(row, key) for key in titles)] for row in own]
        header = ["words", "n", *titles.values()]
        if variant == "nouns_verbs":  # the papers'
            header.append(f"R, {paper_numbers.COLUMN}")
            for line, row in zip(cells, own):
                line.append(paper_numbers.beside(paper, paper.table("4"), f"R, {row['length']}", data))
        title = f"{name}. {BETWEEN} Left out, without any of them: {own[-1]['left_out']:,} documents."
        tables.append(Table(header, cells, title=title))
    cells = []
    for row in contents["growth"]:
        line = [variants[row["variant"]]]
        for name in titles:  # without the interval where a drawn set of documents had no correlation
            ends = [number(row[f"{name}_{end}"]) for end in ("low", "high")]
            line.append(number(row[name]) + (f" [{', '.join(ends)}]" if all(ends) else ""))
        cells.append(line)
    title = f"Spearman's rank correlation with the number of words of a document. {BETWEEN}"
    tables.append(Table(["", *titles.values()], cells, title=title))
    note = f"{contents['documents']:,} documents{contents['sampled']}, tagged by {contents['pipeline']}."
    return Section("Redundancy by length", [note], tables, [_plot(rows, titles, folder / "redundancy.png")])


def _plot(rows: Sequence[Json], titles: dict[str, str], path: Path) -> Figure:
    shown = [row for row in rows if row["variant"] == "nouns_verbs" and row["length"] != ALL and row["n"]]
    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    positions, cells = [list(LENGTH_CLASSES).index(row["length"]) for row in shown], []
    for name, label in titles.items():
        means, lows, highs, errors = ends_of(shown, name)
        axis.errorbar(positions, means, yerr=errors, marker="o", capsize=3, label=label)
        cells += [[label, row["length"], row["n"], *values] for row, *values in zip(shown, means, lows, highs)]
    axis.set_xticks(range(len(LENGTH_CLASSES)), list(LENGTH_CLASSES))
    axis.set(xlabel="words of the document", ylabel="nouns and verbs / distinct ones")
    axis.grid(alpha=0.3)
    axis.legend()
    return save_figure(figure, path, "Redundancy over length.", ["what", "words", "n", "mean", "low", "high"], cells)
