"""Attention to words, by part of speech (SimLTE, section 3.6, Figure 3 and appendix C).

A word's weight is the sum over its pieces (attention to a word: Clark et al. 2019), or their mean. Special tokens are
left out: most encoders put much of their attention on the last one, so that their share is a number of its own, and
weights are renormalised over words. Times the number of words of the document, 1 is what uniform attention gives, in
short documents and long ones. Names (PROPN) are nouns, auxiliaries are `other`, punctuation is a class of its own.

Nouns are rarer words than others, so the classes are also crossed with three classes of inverse document frequency.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.evaluation.analysis.estimates import Estimates, differences, over_documents, rows_of
from docsplit.evaluation.analysis.report import (
    BETWEEN,
    Section,
    Table,
    count,
    differences_table,
    plot_bars,
    with_interval,
)
from docsplit.evaluation.results import paper_numbers
from docsplit.evaluation.results.bootstrap import Resampled
from docsplit.evaluation.results.report import Json, names_of, records

CLASSES = ("noun", "verb", "adjective", "other", "punctuation")
_CLASS_OF = {"NOUN": 0, "PROPN": 0, "VERB": 1, "ADJ": 2, "PUNCT": 4}  # others: 3
TERCILES = ("frequent", "medium", "rare")  # by inverse document frequency, a third of the words each


@dataclass(frozen=True)
class DocumentWords:
    """The words of a document that the tags know, for all encoders alike."""

    spans: np.ndarray  # (W, 2) letters
    classes: np.ndarray  # (W,) indices into `CLASSES`
    terciles: np.ndarray  # (W,) indices into `TERCILES`


@dataclass(frozen=True)
class WordWeights:
    """The attention to the words of a document that an encoder read."""

    weights: np.ndarray  # (W,) of each word; NaN beyond what was read
    special: float  # the share of special tokens, and of the prompt
    outside: float  # the share of pieces that are part of no word
    mismatches: int  # pieces that are part of two words or more: they count for the one of which they have most
    pieces: int  # that are no special tokens


def document_words(tagged: Iterable[tuple[Sequence[str], Sequence[str], np.ndarray]]) -> list[DocumentWords]:
    """Classes of the words of documents, given (words or lemmas, parts of speech, spans) of each.

    The thirds are of all words but punctuation, by the number of these documents that have the word; where many words
    are equally frequent a third may be larger or smaller.
    """
    kept = [
        (words, np.array([_CLASS_OF.get(part, 3) for part in parts], dtype=np.int64), spans)
        for words, parts, spans in tagged
    ]
    frequency: dict[str, int] = {}
    for words, _, _ in kept:
        for word in set(words):
            frequency[word] = frequency.get(word, 0) + 1
    rarity = [np.array([-frequency[word] for word in words], dtype=np.int64) for words, _, _ in kept]
    proper = np.concatenate([own[classes != 4] for own, (_, classes, _) in zip(rarity, kept)] or [np.zeros(0)])
    edges = np.quantile(proper, [1 / 3, 2 / 3], method="inverted_cdf") if len(proper) else np.zeros(2)
    return [
        DocumentWords(spans, classes, np.searchsorted(edges, own)) for own, (_, classes, spans) in zip(rarity, kept)
    ]


def word_weights(weights: np.ndarray, offsets: np.ndarray, spans: np.ndarray, pieces: str = "sum") -> WordWeights:
    """Attention to tokens, (T,), as attention to words.

    Args:
        offsets: (T, 2) letters of each token; (0, 0) for those that are no part of the text.
        spans: (W, 2) letters of the words, ascending.
        pieces: `sum` or `mean` over the pieces of a word.
    """
    end_of_text = max(int(offsets[:, 1].max(initial=0)), int(spans[:, 1].max(initial=0)))
    word_of = np.full(end_of_text + 1, -1)
    for word, (start, end) in enumerate(spans):
        word_of[start:end] = word
    totals, counts = np.zeros(len(spans)), np.zeros(len(spans), dtype=np.int64)
    special = outside = 0.0
    mismatches = num_pieces = 0
    for weight, (start, end) in zip(weights.astype(np.float64), offsets):
        if end <= start:
            special += weight
            continue
        num_pieces += 1
        words = word_of[start:end]
        words = words[words >= 0]
        if not len(words):
            outside += weight
            continue
        found, letters = np.unique(words, return_counts=True)
        mismatches += len(found) > 1
        word = found[letters.argmax()]
        totals[word] += weight
        counts[word] += 1
    if pieces == "mean":
        totals /= np.maximum(counts, 1)
    return WordWeights(
        np.where(counts > 0, totals, np.nan), float(special), float(outside), int(mismatches), num_pieces
    )


def attention_estimates(
    documents: Sequence[DocumentWords], attention: Sequence[WordWeights]
) -> tuple[dict[str, Resampled], dict[str, Any]]:
    """Numbers of an encoder, with their values on other sets of the documents, and counts.

    Returns: for each class, and each class and third (`noun_rare`), `CLASS_weight`: mean weight over all its words of
        all documents; `CLASS_renormalized`: the same of weights that sum up to 1 over the words of a document;
        `CLASS_to_uniform`: these times the number of words that were read; `CLASS_share`: mean over documents of its
        share of the mass. `special_share` and `outside_share`: means over documents. A class without a word is
        missing. Counts: `words_CLASS`, `documents`, `mismatches`, `pieces`.
    """
    names = [*CLASSES, *(f"{name}_{tercile}" for name in CLASSES[:4] for tercile in TERCILES)]
    sums = {kind: np.zeros((len(names), len(documents))) for kind in ("weight", "renormalized", "to_uniform", "words")}
    read = np.zeros(len(documents))
    for number, (document, own) in enumerate(zip(documents, attention)):
        is_read = np.isfinite(own.weights)
        mass = own.weights[is_read].sum()
        if not mass:
            continue
        read[number] = 1
        shares = own.weights[is_read] / mass
        classes, terciles = document.classes[is_read], document.terciles[is_read]
        crossed = np.where(classes < 4, len(CLASSES) + 3 * classes + terciles, -1)
        values = {"weight": own.weights[is_read], "renormalized": shares, "to_uniform": shares * len(shares)}
        for kind, value in (values | {"words": np.ones(len(shares))}).items():
            for keys in (classes, crossed):
                sums[kind][:, number] += np.bincount(keys[keys >= 0], value[keys >= 0], len(names))
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for row, name in enumerate(names):
        if sums["words"][row].any():
            for kind in ("weight", "renormalized", "to_uniform"):
                parts[f"{name}_{kind}"] = (sums[kind][row], sums["words"][row])
            parts[f"{name}_share"] = (sums["renormalized"][row], read)
    parts["special_share"] = (np.array([own.special for own in attention]) * read, read)
    parts["outside_share"] = (np.array([own.outside for own in attention]) * read, read)
    counts = {f"words_{name}": int(own) for name, own in zip(names, sums["words"].sum(axis=1))}
    counts |= {"documents": int(read.sum()), "documents_without_a_word": int((1 - read).sum())}
    counts |= {"mismatches": sum(own.mismatches for own in attention), "pieces": sum(own.pieces for own in attention)}
    return over_documents(parts), counts


def attention_analysis(
    measured: Sequence[Estimates], num_documents: int, pipeline: str, word_weight: str, folder: Path
) -> tuple[Json, Section]:
    """Return what analysis.json says, and Figure 3 of SimLTE, with length, special tokens and frequency controlled."""
    to_uniform = {f"{name}_to_uniform": name for name in CLASSES}
    frame, compared = rows_of(measured), differences(measured, [*to_uniform])
    listed, names = records(frame), names_of(frame)
    contents = {"rows": frame, "differences": compared, "documents": num_documents}
    contents |= {"pipeline": pipeline, "word_weight": word_weight}
    tables = []
    for kind, title, digits in (
        ("to_uniform", "Attention to a word, 1 is uniform: renormalised over words, times their number.", 2),
        ("share", "Share of a class in the attention to words, mean over documents.", 3),
        ("weight", "Attention to a word as it is, mean over all words of all documents.", 5),
        ("renormalized", "The same, renormalised over words.", 5),
    ):
        cells = [[names[row["encoder"]], *(with_interval(row, f"{name}_{kind}", digits) for name in CLASSES)]
                 for row in listed]  # fmt: skip
        tables.append(Table(["encoder", *CLASSES], cells, title=f"{title} {BETWEEN}"))
    # By frequency, each number with that of its words
    cells = []
    for row, name in ((row, name) for row in listed for name in CLASSES[:4]):
        shown = {tercile: with_interval(row, f"{name}_{tercile}_to_uniform") for tercile in TERCILES}
        thirds = (text and f"{text} n {count(row[f'words_{name}_{tercile}'])}" for tercile, text in shown.items())
        cells.append([names[row["encoder"]], name, *thirds])
    title = "1 is uniform, by class and by thirds of the words' document frequency in these documents; n words."
    tables.append(Table(["encoder", "class", *(f"{tercile} words" for tercile in TERCILES)], cells, title=title))
    titles = {key: f"{name}, 1 is uniform" for key, name in to_uniform.items()}
    tables.append(differences_table(compared, names, titles))
    # What was read
    columns = {"attended_from": "attention of", "max_tokens": "first tokens", "documents": "documents"}
    columns |= {"documents_without_a_word": "without a word"} | {f"words_{name}": f"{name} words" for name in CLASSES}
    columns |= {"mismatches": "mismatched pieces", "pieces": "of pieces"}
    shares = {"special_share": "share of special tokens", "outside_share": "share outside of words"}
    cells = [[names[row["encoder"]], *(count(row[name]) for name in columns),
              *(with_interval(row, name, 3) for name in shares)] for row in listed]  # fmt: skip
    tables.append(Table(["encoder", *columns.values(), *shares.values()], cells, title="What was read."))
    ratio = paper_numbers.read_paper("simlte").table("figure 3").value("NYT", "noun_ratio")
    notes = [
        f"Last layer, mean over heads, of {num_documents:,} test documents, tagged by {pipeline}. A word's weight is "
        f"the {word_weight} over its pieces.",
        f"Attention to nouns / that of BERT and of SimCSE, {paper_numbers.COLUMN}: more than {ratio} on NYT. See the "
        "ratios of two encoders.",
    ]
    caption = "Attention to a word by class, 1 is uniform; mean and 95 % interval over documents."
    figure = plot_bars(frame, names, to_uniform, "times uniform attention", folder / "attention.png", caption, 1.0)
    return contents, Section("Attention by part of speech", notes, tables, [figure])
