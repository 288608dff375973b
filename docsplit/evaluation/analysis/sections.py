"""What each analysis shows of its rows: notes that say what was measured on how much, tables, figures.

Every function takes what analysis.json keeps of the analysis, and the folder that figures and their CSV go to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from docsplit.evaluation.analysis.attention_by_word import CLASSES, TERCILES
from docsplit.evaluation.analysis.contents import (
    AttentionContents,
    ClusterContents,
    GeometryContents,
    MapContents,
    RedundancyContents,
    SimilarityContents,
)
from docsplit.evaluation.analysis.estimates import EncoderDifference, Estimate, EstimateRow
from docsplit.evaluation.analysis.redundancy import ALL, LENGTH_CLASSES, VARIANTS, RedundancyRow
from docsplit.evaluation.analysis.report import Figure, Section, Table, literal, number, save_figure, with_interval
from docsplit.evaluation.analysis.similarity import MAX_SENTENCES, MEASURES, MIN_WORDS
from docsplit.evaluation.results import paper_numbers
from docsplit.evaluation.results.bootstrap import Difference
from docsplit.evaluation.results.records import Measured
from docsplit.evaluation.results.tables import encoder_names, names_of
from docsplit.evaluation.results.task import CLUSTERING

matplotlib.use("Agg")  # no screen needed
BETWEEN = "95 % interval over documents in brackets."
MAIN_VARIANT = "nouns_verbs"  # the papers'
VARIANT_NAMES = {
    "nouns_verbs": "Nouns and verbs",
    "with_names": "Nouns, verbs and names (PROPN)",
    "lemma_alone": "Nouns and verbs, equal by lemma alone",
}


def _names(rows: Sequence[EstimateRow]) -> dict[str, str]:
    return encoder_names({row.encoder: row.members for row in rows})


def redundancy_section(contents: RedundancyContents, data: str, folder: Path) -> Section:
    """Show Table 4 of DocSplit's first version, which is Table 3 of SimLTE, with its null."""
    rows, paper = contents.rows, paper_numbers.read_paper("docsplit_v1")
    published = paper.table("4")
    tables = []
    for variant in VARIANTS:
        of_variant = [row for row in rows if row.variant == variant]
        cells = [
            [
                row.length,
                f"{row.n:,}",
                *(with_interval(row.numbers.get(name)) for name in ("r", "r_null", "r_to_null")),
                *(
                    [paper_numbers.beside(paper, published, f"R, {row.length}", data)]
                    if variant == MAIN_VARIANT
                    else []
                ),
            ]
            for row in of_variant
        ]
        header = ["words", "n", "R", "R of the null", "R / R of the null"]
        header += [f"R, {paper_numbers.COLUMN}"] if variant == MAIN_VARIANT else []
        left_out = of_variant[-1].left_out
        caption = f"{VARIANT_NAMES[variant]}. {BETWEEN}"
        tables.append(Table(f"{caption} Left out, without any of them: {left_out:,} documents.", header, cells))
    correlations = {"r": "R", "r_null": "R of the null", "r_to_null": "R / R of the null"}
    cells = [
        [VARIANT_NAMES[row["variant"]], *(_correlation(row, name) for name in correlations)] for row in contents.growth
    ]
    caption = f"Spearman's rank correlation with the number of words of a document. {BETWEEN}"
    tables.append(Table(caption, ["", *correlations.values()], cells))
    notes = [
        f"{contents.documents:,} documents{contents.sampled}, tagged by {contents.pipeline}.",
        "R: nouns and verbs of a document / distinct ones among them. The null has as many nouns and as many verbs, "
        "drawn from all other documents: R grows with length in any text, and says something where R / R of the null "
        "does.",
    ]
    return Section("Redundancy by length", notes, tables, [_plot_redundancy(rows, folder / "redundancy.png")])


def _plot_redundancy(rows: list[RedundancyRow], path: Path) -> Figure:
    shown = [row for row in rows if row.variant == MAIN_VARIANT and row.length != ALL and row.n]
    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    positions = [list(LENGTH_CLASSES).index(row.length) for row in shown]
    cells = []
    for name, label in (("r", "R"), ("r_null", "R of the null"), ("r_to_null", "R / R of the null")):
        means, lows, highs = _ends([row.numbers[name] for row in shown])
        errors = np.maximum([means - lows, highs - means], 0)
        axis.errorbar(positions, means, yerr=errors, marker="o", capsize=3, label=label)
        cells += [[label, row.length, row.n, *values] for row, *values in zip(shown, means, lows, highs)]
    axis.set_xticks(range(len(LENGTH_CLASSES)), list(LENGTH_CLASSES))
    axis.set(xlabel="words of the document", ylabel="nouns and verbs / distinct ones")
    axis.grid(alpha=0.3)
    axis.legend()
    return save_figure(figure, path, "Redundancy over length.", ["what", "words", "n", "mean", "low", "high"], cells)


def _correlation(row: dict[str, Any], name: str) -> str:
    """`0.62 [0.60, 0.64]`; without the interval where a drawn set of documents had no correlation."""
    interval = [number(row.get(f"{name}_{end}")) for end in ("low", "high")]
    return number(row.get(name)) + (f" [{', '.join(interval)}]" if all(interval) else "")


def _ends(estimates: Sequence[Estimate]) -> list[np.ndarray]:
    """Return means, lower and upper ends of the intervals."""
    return [np.array([getattr(estimate, end) for estimate in estimates]) for end in ("mean", "low", "high")]


def similarity_section(contents: SimilarityContents, data: str, folder: Path) -> Section:
    """Show Table 5 of DocSplit's first version, with what compares across encoders."""
    rows, counts = contents.rows, contents.counts
    names, paper = _names(rows), paper_numbers.read_paper("docsplit_v1")
    shown = [name for name in MEASURES if any(name in row.numbers for row in rows)]
    cells = [[names[row.encoder], *(with_interval(row.numbers.get(name), 3) for name in shown)] for row in rows]
    beside = {name: paper_numbers.beside(paper, paper.table("5"), name, data) for name in ("inner", "inter")}
    cells.append([paper_numbers.COLUMN, *(beside.get(name, "") for name in shown)])
    notes = [
        f"{counts['sentences']:,} distinct sentences of {MIN_WORDS} or more words of {contents.documents:,} test "
        f"documents, {counts['documents_without_pair']:,} of which have fewer than two and no inner pair. Left out: "
        f"{counts['short']:,} shorter ones, {counts['duplicates']:,} exact duplicates, {counts['beyond_the_cap']:,} "
        f"beyond {MAX_SENTENCES} of a document. Sentences are those of the splitter {contents.splitter!r}.",
        f"{contents.inter_pairs:,} pairs of two documents and {contents.same_class_pairs:,} of two that share a "
        "class, the same for all encoders.",
        "Cosines do not compare across encoders: where all vectors point the same way all are high. AUC does: how "
        "often a pair of one document is more alike than one of two, 0.5 at random.",
    ]
    table = Table(f"Cosines of sentences. {BETWEEN}", ["encoder", *(MEASURES[name] for name in shown)], cells)
    figure = _plot_similarity(rows, names, shown, folder / "similarity.png")
    return Section(
        "Sentences of one document and of two",
        notes,
        [table, _differences(contents.differences, names, MEASURES)],
        [figure],
    )


def _plot_similarity(rows: list[EstimateRow], names: dict[str, str], shown: Sequence[str], path: Path) -> Figure:
    groups = {name: MEASURES[name] for name in ("inner", "same_class", "inter") if name in shown}
    caption = "Cosines of pairs of sentences, mean and 95 % interval over documents."
    return _plot_bars(rows, names, _Bars(groups, "cosine", caption), path)


@dataclass(frozen=True)
class _Bars:
    """What a picture of bars shows of each encoder."""

    measures: dict[str, str]  # measure: its label
    axis: str  # what the height is
    caption: str
    line: float | None = None  # a height that is marked


def _plot_bars(rows: list[EstimateRow], names: dict[str, str], bars: _Bars, path: Path) -> Figure:
    """Draw for each encoder a group of bars with intervals."""
    groups = bars.measures
    figure, axis = plt.subplots(figsize=(2 + 0.35 * len(rows) * len(groups), 3.6), layout="constrained")
    width, cells = 0.8 / len(groups), []
    for place, (name, label) in enumerate(groups.items()):
        measured = [(index, row) for index, row in enumerate(rows) if name in row.numbers]
        means, lows, highs = _ends([row.numbers[name] for _, row in measured])
        positions = [index + (place - (len(groups) - 1) / 2) * width for index, _ in measured]
        axis.bar(positions, means, width, yerr=np.maximum([means - lows, highs - means], 0), capsize=2, label=label)
        cells += [[row.encoder, label, *values] for (_, row), *values in zip(measured, means, lows, highs)]
    if bars.line is not None:
        axis.axhline(bars.line, color="0.4", linewidth=0.8)
    axis.set_xticks(range(len(rows)), [literal(names[row.encoder]) for row in rows], rotation=20, ha="right")
    axis.set_ylabel(bars.axis)
    axis.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save_figure(figure, path, bars.caption, ["encoder", "what", "mean", "low", "high"], cells)


def _differences(rows: Sequence[EncoderDifference], names: dict[str, str], titles: dict[str, str]) -> Table:
    """Show pairs of encoders, in bold where the interval leaves 0 out."""
    cells = []
    for row in rows:
        text = f"{row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} [{row.ratio_low:.2f}, {row.ratio_high:.2f}]"
        pair = f"{names[row.a]} v {names[row.b]}"
        verdict = "yes" if row.is_clear else ""
        cells.append([pair, titles.get(row.measure, row.measure), text, ratio, f"{row.p_value:.3f}", verdict])
    caption = (
        "Two encoders on the same documents, first minus second and first / second: paired bootstrap over documents, "
        f"and over pretraining seeds where there are several. The {len(cells)} p-values are not corrected for "
        "their number."
    )
    return Table(caption, ["encoders", "measure", "difference", "ratio", "p", "without 0"], cells)


ATTENTION_KINDS = {  # of weights: caption, digits
    "to_uniform": ("Attention to a word, 1 is uniform: renormalised over words, times their number.", 2),
    "share": ("Share of a class in the attention to words, mean over documents.", 3),
    "weight": ("Attention to a word as it is, mean over all words of all documents.", 5),
    "renormalized": ("The same, renormalised over words.", 5),
}


def attention_section(contents: AttentionContents, folder: Path) -> Section:
    """Show Figure 3 of SimLTE, with length, special tokens and frequency controlled."""
    rows = contents.rows
    names, figure_3 = _names(rows), paper_numbers.read_paper("simlte").table("figure 3")
    tables = []
    for kind, (caption, digits) in ATTENTION_KINDS.items():
        cells = [
            [names[row.encoder], *(with_interval(row.numbers.get(f"{name}_{kind}"), digits) for name in CLASSES)]
            for row in rows
        ]
        tables.append(Table(f"{caption} {BETWEEN}", ["encoder", *CLASSES], cells))
    header = ["encoder", "class", *(f"{tercile} words" for tercile in TERCILES)]
    cells = [
        [names[row.encoder], name, *(_third(row, f"{name}_{tercile}") for tercile in TERCILES)]
        for row in rows
        for name in CLASSES[:4]
    ]
    caption = "1 is uniform, by class and by thirds of the words' document frequency in these documents; n words."
    tables.append(Table(caption, header, cells))
    tables.append(
        _differences(contents.differences, names, {f"{name}_to_uniform": f"{name}, 1 is uniform" for name in CLASSES})
    )
    tables.append(_what_was_read(rows, names))
    ratio = figure_3.value("NYT", "noun_ratio")
    notes = [
        f"Last layer, mean over heads, of {contents.documents:,} test documents, tagged by "
        f"{contents.pipeline}. A word's weight is the {contents.word_weight} over its pieces.",
        "Names (PROPN) are nouns, auxiliaries are other words. Mismatched pieces are part of several words and count "
        "for the one of which they have most letters.",
        f"Attention to nouns / that of BERT and of SimCSE, {paper_numbers.COLUMN}: more than {ratio} on NYT. See the "
        "ratios of two encoders.",
    ]
    groups = {f"{name}_to_uniform": name for name in CLASSES}
    caption = "Attention to a word by class, 1 is uniform; mean and 95 % interval over documents."
    bars = _Bars(groups, "times uniform attention", caption, line=1.0)
    figure = _plot_bars(rows, names, bars, folder / "attention.png")
    return Section("Attention by part of speech", notes, tables, [figure])


def _third(row: EstimateRow, name: str) -> str:
    """Show the number of a class and third, and of how many words it is."""
    shown = with_interval(row.numbers.get(f"{name}_to_uniform"))
    return shown and f"{shown} n {cell(row.facts[f'words_{name}'])}"


def _what_was_read(rows: list[EstimateRow], names: dict[str, str]) -> Table:
    columns = {"attended_from": "attention of", "max_tokens": "first tokens"}
    columns |= {"documents": "documents", "documents_without_a_word": "without a word"}
    columns |= {f"words_{name}": f"{name} words" for name in CLASSES}
    columns |= {"mismatches": "mismatched pieces", "pieces": "of pieces"}
    shares = {"special_share": "share of special tokens", "outside_share": "share outside of words"}
    cells = [
        [
            names[row.encoder],
            *(cell(row.facts[name]) for name in columns),
            *(with_interval(row.numbers.get(name), 3) for name in shares),
        ]
        for row in rows
    ]
    return Table("What was read.", ["encoder", *columns.values(), *shares.values()], cells)


def cell(value: Any) -> str:
    """Show a count, number or word; nothing for None."""
    if isinstance(value, float):
        return number(value, 0 if abs(value) >= 10 else 1)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def clustering_section(contents: ClusterContents, data: str) -> Section:
    """Show Table 1 of the graph document model's paper, with every mean of the NMI."""
    rows, task = contents.rows, CLUSTERING
    names = names_of(rows)
    header = ["encoder", "features", *(task.measures[name] for name in task.columns), "purity, 95 % interval"]
    cells = [
        [names[row.encoder], row.features, *(_mean_and_spread(row.measures[name]) for name in task.columns),
         f"[{row.main.low:.3f}, {row.main.high:.3f}]"]
        for row in rows
    ]  # fmt: skip
    tables = [
        Table(
            "Mean and standard deviation over seeds of k-means, and over pretraining seeds where there are several.",
            header,
            cells,
        )
    ]
    paper = paper_numbers.read_paper("graph")
    published, set_name = paper.table("1"), paper_numbers.set_named(paper, data)
    sets = list(dict.fromkeys(name for name, _ in published.columns))
    sets = [set_name] if set_name in sets else sets
    cells = [[f"{name}, {model}", *(str(published.value(model, measure, name)) for measure in ("nmi", "purity"))]
             for name in sets for model in published.rows]  # fmt: skip
    tables.append(Table(f"Table 1 of the {paper_numbers.COLUMN}.", ["data, model", "NMI", "purity"], cells))
    tables.append(
        Table(
            "Purity of two encoders: paired bootstrap over test documents, and over pretraining seeds where there are "
            f"several. The {len(contents.comparisons)} p-values are not corrected for their number.",
            ["encoders", "features", "difference", "p"],
            [[f"{names[row.a]} v {names[row.b]}", row.head_name, *_difference(row.difference)]
             for row in contents.comparisons],
        )
    )  # fmt: skip
    notes = [
        f"{contents.train_documents:,} training documents, on which k-means is fitted, {contents.test_documents:,} "
        f"test documents, which are assigned; {contents.clusters} clusters, as many as classes.{contents.left_out} "
        f"The largest class has {contents.largest_class:.3f} of the test documents: less than that no purity can be.",
        task.note,
    ]
    return Section("Clusters", notes, tables)


def _difference(measured: Difference) -> list[str]:
    text = f"{measured.difference:+.3f} [{measured.low:+.3f}, {measured.high:+.3f}]"
    return [text, f"{measured.p_value:.3f}"]


def _mean_and_spread(measured: Measured) -> str:
    return number(measured.mean, 3) + (f" ± {measured.std:.3f}" if measured.std is not None else "")


GEOMETRY = {  # measure: title
    "alignment": "alignment of halves",
    "uniformity": "uniformity",
    "mean_cosine": "mean cosine",
    "effective_rank": "effective rank",
    "width": "width",
    "dimension_std": "deviation x sqrt(width)",
    "dimension_correlation": "correlation of dimensions",
    "hubness": "hubness",
    "largest_hub": "largest hub",
    "antihubs": "antihubs",
}


def geometry_section(contents: GeometryContents) -> Section:
    """Show how the embeddings lie in space."""
    rows = contents.rows
    names = _names(rows)
    cells = [
        [
            names[row.encoder],
            *(
                f"{number(row.numbers[name].mean, 0 if name == 'width' else 3)}{_deviation(row.numbers[name])}"
                for name in GEOMETRY
            ),
        ]
        for row in rows
    ]
    notes = [
        f"{contents.documents:,} test documents, of length one; alignment and uniformity of the embeddings of two "
        f"random halves (sentences to one of two) of {contents.halved:,} of them.",
        "Alignment: mean squared distance of the halves of a document, low is good; uniformity: log of the mean of "
        "exp(-2 squared distance) of halves of two, low is good (Wang and Isola 2020).",
        f"Collapse: a mean cosine near 1, an effective rank far below the width (or the {contents.documents:,} "
        "documents), a deviation of a dimension x sqrt(width) far below 1, correlated dimensions.",
        f"Hubness: skewness of the number of documents that have one among their {contents.neighbours} nearest; "
        "largest hub: its maximum / mean; antihubs: share of documents that nobody has among the nearest.",
    ]
    return Section("Geometry", notes, [Table("", ["encoder", *GEOMETRY.values()], cells)])


def _deviation(estimate: Estimate) -> str:
    return f" ± {estimate.std:.3f}" if estimate.std else ""


def map_section(contents: MapContents, figure: Figure) -> Section:
    """Show figures 3 and 4 of the graph document model's paper."""
    notes = [
        f"{contents.documents:,} test documents, {contents.method}. Numbers stand at the median of a class."
        f"{contents.note}"
    ]
    return Section("Map", notes, [], [figure])
