"""What encoders attend to: words, by part of speech, and of a graph document model the nodes of a document.

Words (SimLTE, section 3.6, Figure 3 and appendix C): a word's weight is the sum over its pieces (attention to a word:
Clark et al. 2019), or their mean. Special tokens are left out: most encoders put much of their attention on the last
one, so that their share is a number of its own, and weights are renormalised over words. Times the number of words of
the document, 1 is what uniform attention gives, in short documents and long ones. Names (PROPN) are nouns, auxiliaries
are `other`, punctuation is a class of its own. Nouns are rarer words than others, so the classes are also crossed with
three classes of inverse document frequency.

Nodes (graph document model, Figures 6 and 7), full graph beside section graph: all encoders show the same document.
Weights are those of the last layer, the mean over its heads; node 0 is the document, the others are its passages.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from docsplit.data.passages import to_passages
from docsplit.embedding.attention import GraphReadings
from docsplit.evaluation.analysis import report
from docsplit.evaluation.results.bootstrap import Resampled
from docsplit.evaluation.results.report import Json, names_of, records

CLASSES = ("noun", "verb", "adjective", "other", "punctuation")
_CLASS_OF = {"NOUN": 0, "PROPN": 0, "VERB": 1, "ADJ": 2, "PUNCT": 4}  # others: 3
TERCILES = ("frequent", "medium", "rare")  # by inverse document frequency, a third of the words each
PASSAGES_SHOWN = 50  # of the document whose graph is shown


# --- Words ---


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


def document_words(tagged: Iterable[tuple[Sequence[str], Sequence[str], np.ndarray]]) -> list[DocumentWords]:
    """Classes of the words of documents, given (words or lemmas, parts of speech, spans) of each.

    The thirds are of all words but punctuation, by the number of these documents that have the word; where many words
    are equally frequent a third may be larger or smaller.
    """
    kept = [
        (words, np.array([_CLASS_OF.get(part, 3) for part in parts], dtype=np.int64), spans)
        for words, parts, spans in tagged
    ]
    frequency = Counter(word for words, _, _ in kept for word in set(words))
    rarity = [np.array([-frequency[word] for word in words], dtype=np.int64) for words, _, _ in kept]
    proper = np.concatenate([own[classes != 4] for own, (_, classes, _) in zip(rarity, kept)] or [np.zeros(0)])
    edges = np.quantile(proper, [1 / 3, 2 / 3], method="inverted_cdf") if len(proper) else np.zeros(2)
    return [
        DocumentWords(spans, classes, np.searchsorted(edges, own)) for own, (_, classes, spans) in zip(rarity, kept)
    ]


def word_weights(weights: np.ndarray, offsets: np.ndarray, spans: np.ndarray, pieces: str = "sum") -> WordWeights:
    """Attention to tokens, (T,), as attention to words; a piece of several words counts for that of most letters.

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
    for weight, (start, end) in zip(weights.astype(np.float64), offsets):
        letters = word_of[start:end]
        found, sizes = np.unique(letters[letters >= 0], return_counts=True)
        if len(found):
            word = found[sizes.argmax()]
            totals[word] += weight
            counts[word] += 1
        elif end <= start:
            special += weight
        else:
            outside += weight
    if pieces == "mean":
        totals /= np.maximum(counts, 1)
    return WordWeights(np.where(counts > 0, totals, np.nan), float(special), float(outside))


def attention_estimates(
    documents: Sequence[DocumentWords], attention: Sequence[WordWeights]
) -> tuple[dict[str, Resampled], dict[str, Any]]:
    """Numbers of an encoder, with their values on other sets of the documents, and counts.

    Returns: for each class, and each class and third (`noun_rare`), `CLASS_to_uniform`: mean over all its words of all
        documents of their weights, which sum up to 1 over the words of a document that were read, times the number of
        these; `CLASS_weight`, of the classes alone: mean over the same words of the weights as they are (SimLTE's
        Figure 3); `CLASS_share`: mean over documents of its share of the mass. `special_share` and `outside_share`:
        means over documents. A class without a word is missing. And counts: `words_CLASS`, `documents` and
        `documents_without_a_word`.
    """
    names = [*CLASSES, *(f"{name}_{tercile}" for name in CLASSES[:4] for tercile in TERCILES)]
    shares, to_uniform, weights, words = np.zeros((4, len(names), len(documents)))
    read = np.zeros(len(documents))
    for column, (document, own) in enumerate(zip(documents, attention)):
        is_read = np.isfinite(own.weights)
        mass = own.weights[is_read].sum()
        if not mass:
            continue
        read[column] = 1
        share = own.weights[is_read] / mass
        classes, terciles = document.classes[is_read], document.terciles[is_read]
        crossed = np.where(classes < 4, len(CLASSES) + 3 * classes + terciles, len(names))
        for keys in (classes, crossed):
            count_of = partial(np.bincount, keys, minlength=len(names) + 1)
            shares[:, column] += count_of(share)[:-1]
            to_uniform[:, column] += count_of(share * len(share))[:-1]
            weights[:, column] += count_of(own.weights[is_read])[:-1]
            words[:, column] += count_of()[:-1]
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for row, name in enumerate(names):
        if words[row].any():
            parts |= {f"{name}_to_uniform": (to_uniform[row], words[row]), f"{name}_share": (shares[row], read)}
            parts |= {f"{name}_weight": (weights[row], words[row])} if name in CLASSES else {}
    parts["special_share"] = (np.array([own.special for own in attention]) * read, read)
    parts["outside_share"] = (np.array([own.outside for own in attention]) * read, read)
    counts = {f"words_{name}": int(own) for name, own in zip(names, words.sum(axis=1))}
    counts |= {"documents": int(read.sum()), "documents_without_a_word": int((1 - read).sum())}
    return report.over_documents(parts), counts


def attention_analysis(
    measured: Sequence[report.Estimates], num_documents: int, pipeline: str, word_weight: str, folder: Path
) -> tuple[Json, report.ReportSection]:
    """Return what analysis.json says, and Figure 3 of SimLTE, with length, special tokens and frequency controlled."""
    to_uniform = {f"{name}_to_uniform": name for name in CLASSES}
    frame, compared = report.table_rows(measured), report.differences(measured, [*to_uniform])
    listed, names = records(frame), names_of(frame)
    contents = {"rows": frame, "differences": compared, "documents": num_documents}
    contents |= {"pipeline": pipeline, "word_weight": word_weight}
    tables = []
    for kind, title, digits in (
        ("to_uniform", "Attention to a word, 1 is uniform: renormalised over words, times their number.", 2),
        ("share", "Share of a class in the attention to words, mean over documents.", 3),
    ):
        cells = [[names[row["encoder"]], *(report.with_interval(row, f"{name}_{kind}", digits) for name in CLASSES)]
                 for row in listed]  # fmt: skip
        tables.append(report.ResultsTable(["encoder", *CLASSES], cells, title=f"{title} {report.BETWEEN}"))
    # By frequency, each number with that of its words
    cells = []
    for row, name in ((row, name) for row in listed for name in CLASSES[:4]):
        shown = {tercile: report.with_interval(row, f"{name}_{tercile}_to_uniform") for tercile in TERCILES}
        thirds = (text and f"{text} n {row[f'words_{name}_{tercile}']:,}" for tercile, text in shown.items())
        cells.append([names[row["encoder"]], name, *thirds])
    title = "1 is uniform, by class and by thirds of the words' document frequency in these documents; n words."
    header = ["encoder", "class", *(f"{tercile} words" for tercile in TERCILES)]
    tables.append(report.ResultsTable(header, cells, title=title))
    titles = {key: f"{name}, 1 is uniform" for key, name in to_uniform.items()}
    tables.append(report.differences_table(compared, names, titles))
    # What was read
    columns = {"attended_from": "attention of", "max_tokens": "first tokens", "documents": "documents"}
    columns |= {"documents_without_a_word": "without a word"} | {f"words_{name}": f"{name} words" for name in CLASSES}
    shares = {"special_share": "share of special tokens", "outside_share": "share outside of words"}
    cells = [[names[row["encoder"]], *(report.count(row[name]) for name in columns),
              *(report.with_interval(row, name, 3) for name in shares)] for row in listed]  # fmt: skip
    tables.append(report.ResultsTable(["encoder", *columns.values(), *shares.values()], cells, title="What was read."))
    notes = [
        f"Last layer, mean over heads, {num_documents:,} documents, tagged by {pipeline}, {word_weight} of pieces."
    ]
    caption = "Attention to a word by class, 1 is uniform; mean and 95 % interval over documents."
    nouns = {names[row["encoder"]]: row.get("noun_to_uniform_mean") or 0.0 for row in listed}
    most = max(nouns, key=lambda name: nouns[name])
    message = f"{most} attends most to nouns: {nouns[most]:.2f} times uniform"
    about = "times uniform attention", folder / "attention.png", message, caption, 1.0
    figure = report.plot_bars(frame, names, to_uniform, *about)
    return contents, report.ReportSection("Attention by part of speech", notes, tables, [figure])


# --- Nodes ---


def choose_document(texts: Sequence[str], passage_words: Sequence[int]) -> int:
    """Return the number of the text with the most sections, and of these the most passages, but no more than 50.

    Args:
        passage_words: of the encoders that are shown. Each has 2 to 50 passages; those of the first one are compared.

    Raises:
        ValueError: if no text is so.
    """
    best, chosen = (0, 1), -1
    for place, text in enumerate(texts):
        cut = [to_passages(text, words) for words in passage_words]
        size = (len({passage.section for passage in cut[0]}), len(cut[0]))
        if all(2 <= len(passages) <= PASSAGES_SHOWN for passages in cut) and size > best:
            best, chosen = size, place
    if chosen < 0:
        raise ValueError(
            f"No document of the sample has 2 to {PASSAGES_SHOWN} passages for each encoder: leave graph_attention "
            "out of --analyses, or raise --sample_documents."
        )
    return chosen


def graph_attention_analysis(
    document: int, readings: Mapping[str, GraphReadings], folder: Path
) -> tuple[Json, report.ReportSection]:
    """Return what analysis.json says, the two figures, and the passages that the document's vector takes most from.

    Args:
        document: number of the test document that all encoders read.
    """
    cells = []
    for name, reading in readings.items():
        weights = reading.weights[reading.kind][0]
        heard = 1 + np.argsort(-weights[1:], kind="stable")[:5]
        for node in [0, *heard]:
            text = "the document" if node == 0 else " ".join(reading.passages[node - 1].split())[:200]
            cells.append([name, str(node), report.number(float(weights[node]), 3), text])
    notes = [f"Test document {document}, the one with the most sections. Last layer, mean over heads."]
    title = "The document node, and the passages it attends to most."
    table = report.ResultsTable(["encoder", "node", "weight", ""], cells, title=title)
    figures = [_draw(readings, folder, "document", 2.2), _draw(readings, folder, "nodes", 3.6)]
    return {"document": document, "encoders": readings}, report.ReportSection(
        "Graph attention", notes, [table], figures
    )


def _draw(readings: Mapping[str, GraphReadings], folder: Path, shown: str, height: float) -> report.Figure:
    """Draw a line of panels for each encoder, its graphs side by side.

    Args:
        shown: `document`, the document node's attention as bars (Figure 6), or `nodes`, that of all nodes as matrices
            (Figure 7).
    """
    columns = max(len(reading.weights) for reading in readings.values())
    size = (4.6 * columns, height * len(readings) + 0.6)
    figure, axes = plt.subplots(len(readings), columns, figsize=size, squeeze=False, layout="constrained")
    cells: list[list[Any]] = []
    for line, (name, reading) in zip(axes, readings.items()):
        for axis, (kind, weights) in zip(line, reading.weights.items()):
            trained = ", as it was trained" if kind == reading.kind else ", with the same weights"
            axis.set_title(report.literal(f"{name}: {kind} graph{trained}"), fontsize=8)
            if shown == "document":
                axis.bar(range(len(weights)), weights[0], color=["0.6"] + ["C0"] * (len(weights) - 1))
                axis.set(xlabel="node", ylabel="attention", ylim=(0, None))
                cells += [[name, kind, node, f"{weight:.5g}"] for node, weight in enumerate(weights[0])]
                continue
            # White where nodes are no neighbours: their weight is exactly 0.
            masked = np.ma.masked_equal(weights, 0)
            picture = axis.imshow(masked, cmap="viridis", interpolation="nearest", vmin=0)
            figure.colorbar(picture, ax=axis, fraction=0.046)
            axis.set(xlabel="attended to", ylabel="node")
            cells += [[name, kind, *place, f"{weight:.5g}"] for place, weight in np.ndenumerate(weights)]
    path, header = folder / f"graph_attention_{shown}.png", ["encoder", "graph", "node"]
    name, reading = next(iter(readings.items()))
    weights = reading.weights[reading.kind]
    if shown == "document":
        most = 1 + int(weights[0, 1:].argmax())
        message = f"The document node of {name} takes {weights[0, most]:.2f} from passage {most}, the most"
        return report.save_figure(figure, path, message, "Node 0, in grey, is itself.", [*header, "attention"], cells)
    message = f"The nodes of {name} differ by up to {np.ptp(weights, axis=0).max():.2f} in what they attend to"
    header += ["attended to", "attention"]
    return report.save_figure(figure, path, message, "White: no neighbours.", header, cells)
