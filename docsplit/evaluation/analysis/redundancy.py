"""How often documents say the same words again, by length, beside what their length alone would bring.

R = N / D: N nouns and verbs of a document, D distinct ones among them (equation 2 of SimLTE, appendix A, and of
DocSplit's first version, A.2). R grows with length in any text, also in one whose words were shuffled among documents
(the law of types and tokens). So each document has a null: as many nouns and as many verbs, drawn from those of all
other documents together. What a document repeats by being about something is R / R_null.
Words are equal if lemma and part of speech are.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.data.tagging import describe_tagger, tag
from docsplit.evaluation.analysis import report
from docsplit.evaluation.results.bootstrap import Resampled, interval, item_draws
from docsplit.evaluation.results.report import Json

logger = logging.getLogger(__name__)

REDUNDANCY_PARTS = ("NOUN", "VERB")
MAX_DOCUMENTS = 10_000
LENGTH_CLASSES = {"0-50": 50, "51-100": 100, "101-200": 200, "201-300": 300, "> 300": np.inf}  # words, at most
ALL = "All"
REDUNDANCY_DRAWS = 5  # of the null, of each document


@dataclass(frozen=True)
class ContentWords:
    """The nouns and verbs of documents, one after another."""

    lemmas: np.ndarray  # (T,) numbers of lemmas
    parts: np.ndarray  # (T,) indices into `REDUNDANCY_PARTS`
    documents: np.ndarray  # (T,) the document of each, ascending
    words: np.ndarray  # (D,) words between white space of each document


def content_words(tagged: Iterable[tuple[Sequence[str], Sequence[str]]], words: Sequence[int]) -> ContentWords:
    """Collect the content words of documents from lemmas and parts of speech (`docsplit.data.tagging.TaggedText`)."""
    numbers: dict[str, int] = {}
    found = [
        (numbers.setdefault(lemma, len(numbers)), REDUNDANCY_PARTS.index(part), document)
        for document, (lemmas, parts) in enumerate(tagged)
        for lemma, part in zip(lemmas, parts)
        if part in REDUNDANCY_PARTS
    ]
    of_lemmas, of_parts, documents = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return ContentWords(of_lemmas, of_parts, documents, np.array(words))


def redundancies(content: ContentWords, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """R and R_null of each document, (D,) each; NaN where a document has none of these words.

    R_null is the mean over `REDUNDANCY_DRAWS` draws, without replacement; with it where the others have too few words.
    """
    parts, documents = content.parts, content.documents
    keys = content.lemmas * len(REDUNDANCY_PARTS) + parts
    pools = [(keys[parts == part], documents[parts == part]) for part in np.unique(parts)]
    generator = np.random.default_rng((seed, 5))
    observed, null = np.full((2, len(content.words)), np.nan)
    for document in np.unique(documents):
        start, end = np.searchsorted(documents, [document, document + 1])
        observed[document] = _ratio(keys[start:end])
        drawn = [[_drawn(*pool, document, generator) for pool in pools] for _ in range(REDUNDANCY_DRAWS)]
        null[document] = np.mean([_ratio(np.concatenate(one)) for one in drawn])
    return observed, null


def _drawn(keys: np.ndarray, documents: np.ndarray, document: int, generator: np.random.Generator) -> np.ndarray:
    """Draw as many words of one part of speech as a document has, of those of the others."""
    start, end = np.searchsorted(documents, [document, document + 1])
    others = len(keys) - (end - start)
    if others == 0:
        return keys[:0]
    drawn = generator.choice(others, end - start, replace=end - start > others, shuffle=False)
    return keys[drawn + (end - start) * (drawn >= start)]


def _ratio(keys: np.ndarray) -> float:
    return len(keys) / len(np.unique(keys)) if len(keys) else np.nan


def redundancy_rows(content: ContentWords, seed: int = 0) -> tuple[list[Json], dict[str, float]]:
    """Measure what is repeated, by length class, and whether it grows with length.

    Returns: for each class, `All` last, n documents, means of R and R_null, and R / R_null, the ratio of these means,
        with 95 % intervals over documents; `left_out` are documents without one of the words (D = 0). And Spearman's
        rank correlation of a document's words with R, R_null and R / R_null, with 95 % intervals over documents: R
        grows with length beyond its null only where the last one is above 0. NaN where lengths or values are all
        equal, also in one of the drawn sets. The first less the second says nothing: R_null is a mean of draws, so
        that it follows length more closely, in shuffled text too.
    """
    rows = list[Json]()
    classes = np.searchsorted(list(LENGTH_CLASSES.values()), content.words)
    observed, null = redundancies(content, seed)
    has_words = np.isfinite(observed) & np.isfinite(null)
    for place, name in enumerate([*LENGTH_CLASSES, ALL]):
        chosen = np.full(len(classes), True) if name == ALL else classes == place
        r, r_null = observed[chosen & has_words], null[chosen & has_words]
        row = {"length": name, "n": len(r), "left_out": int((chosen & ~has_words).sum())}
        if len(r):
            parts = {"r": (r, ones := np.ones_like(r)), "r_null": (r_null, ones), "r_to_null": (r, r_null)}
            row |= report.columns_of(report.over_documents(parts))
        rows.append(row)
    return rows, _growth(content.words[has_words], observed[has_words], null[has_words])


def _growth(words: np.ndarray, r: np.ndarray, r_null: np.ndarray) -> dict[str, float]:
    """Return the rank correlations with the number of words, and their intervals."""
    names, values = ("r", "r_null", "r_to_null"), np.stack([words, r, r_null, r / r_null])
    if not len(words):
        return dict.fromkeys([f"{name}{end}" for name in names for end in ("", "_low", "_high")], np.nan)
    places, row = np.arange(len(words)), dict[str, float]()
    samples = [
        _rank_correlations(values[:, np.repeat(places, times.astype(np.int64))])
        for draws in item_draws(len(words))
        for times in draws
    ]
    for name, score, drawn in zip(names, _rank_correlations(values), np.transpose(samples)):
        low, high = interval(Resampled(score[None], drawn[:, None]), is_share=False)
        row |= {name: float(score), f"{name}_low": low, f"{name}_high": high}
    return row


def _rank_correlations(values: np.ndarray) -> np.ndarray:
    """Spearman's correlation of the first line of values with each other one; NaN where all of a line are equal."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.corrcoef(rankdata(values, axis=1))[0, 1:]


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


def redundancy_section(contents: Json, folder: Path) -> report.ReportSection:
    """Show Table 4 of DocSplit's first version, which is Table 3 of SimLTE, with its null."""
    rows, growth = contents["rows"], contents["growth"]
    titles = {"r": "R", "r_null": "R of the null", "r_to_null": "R / R of the null"}
    cells = [[row["length"], f"{row['n']:,}", *(report.with_interval(row, key) for key in titles)] for row in rows]
    title = f"Nouns and verbs. {report.BETWEEN} Left out, without any of them: {rows[-1]['left_out']:,} documents."
    tables = [report.ResultsTable(["words", "n", *titles.values()], cells, title=title)]
    line = []
    for name in titles:  # without the interval where a drawn set of documents had no correlation
        ends = [report.number(growth[f"{name}_{end}"]) for end in ("low", "high")]
        line.append(report.number(growth[name]) + (f" [{', '.join(ends)}]" if all(ends) else ""))
    title = f"Spearman's rank correlation with the number of words of a document. {report.BETWEEN}"
    tables.append(report.ResultsTable([*titles.values()], [line], title=title))
    note = f"{contents['documents']:,} documents{contents['sampled']}, tagged by {contents['pipeline']}."
    # The picture: a group of bars for each length
    shown = [{"encoder": row["length"], **row} for row in rows if row["n"]]
    names, bars = {length: length for length in (*LENGTH_CLASSES, ALL)}, {"r": "R", "r_null": "R by chance"}
    message = "".join(  # of the longest, before the line of all; nothing where no document has such words
        f"Documents of {row['length']} words repeat their words {row['r_to_null_mean']:.2f} times as often as chance"
        for row in shown[-2:-1]
    )
    caption = "R by words of the document; by chance: that of words drawn from other documents."
    about = "nouns and verbs / distinct ones", folder / "redundancy.png", message, caption
    figure = report.plot_bars(pd.DataFrame(shown), names, bars, *about)
    return report.ReportSection("Redundancy by length", [note], tables, [figure])
