"""Which of the papers' explanations hold here: redundancy, similarity, attention and clusters of several encoders.

    python -m benchmarks.studies.claims.report --data_dir DIR --masked_lm outputs/small --model NAME \\
        --spacy_pipeline en_core_web_sm
    python -m benchmarks.studies.claims.report ... --list

DocSplit's first version explains its gains so: long documents say the same again (Table 4), sentences of one document
are alike (Table 5). SimLTE: after pretraining more attention goes to nouns (Figure 3). The graph document model shows
clusters (Table 1). The cells are those of study.yaml; DIR has the folders 20newsgroups, ecthr and wikipedia. Running
again goes on where it was stopped: see `benchmarks.engine.cells`.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.figures import save
from benchmarks.engine.results import Results, Row
from benchmarks.studies.claims.step import COMPARED, MEASURES
from docsplit.evaluation.analysis.redundancy import LENGTH_CLASSES
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.evaluation.results.plots import plt

STUDY = Path(__file__).with_name("study.yaml")
LENGTHS = tuple(LENGTH_CLASSES)
RATIOS = ("masked LM", "SimCSE", "random")
Rows = dict[tuple[str, str, str], Row]  # (data, metric, method) -> row


def by_name(rows: list[Row]) -> Rows:
    """Map data, metric and method to their row."""
    return {(row["data"], row["metric"], row["method"]): row for row in rows}


def _cell(row: Row | None, decimals: int = 2) -> str:
    """Return a value with its interval, or else its standard deviation over seeds."""
    if row is None:
        return ""
    text = f"{row['value']:.{decimals}f}"
    if row.get("low") is not None:
        return f"{text} [{row['low']:.{decimals}f}, {row['high']:.{decimals}f}]"
    return f"{text} ± {row['std']:.{decimals}f}" if row.get("std") else text


def _encoders(rows: Rows, metric: str) -> list[str]:
    return list(dict.fromkeys(method for _, name, method in rows if name == metric))


def redundancy_table(rows: Rows, sets: list[str]) -> str:
    """Return R over the R of the null, by length, and the correlation of each with length."""
    lines = []
    for data in sets:
        cells = []
        for length in LENGTHS:
            names = [f"redundancy {name}, {length} words" for name in ("r", "r_to_null")]
            r, ratio = (rows.get((data, name, "")) for name in names)
            cells.append(f"{r['value']:.2f}; {_cell(ratio)} ({r['n']:,})" if r and ratio else "")
        ranks = [
            rows.get((data, f"rank correlation of length and {name}", "")) for name in ("r", "r_null", "r_to_null")
        ]
        if any(cells):
            lines.append((data, *cells, *(_cell(rank) for rank in ranks)))
    if not lines:
        return ""
    header = ["", *(f"{length} words" for length in LENGTHS), "length and R", "and R of the null", "and their ratio"]
    return markdown_table(header, lines)


def table(rows: Rows, sets: list[str], metrics: Sequence[str], decimals: int = 2) -> str:
    """Return a row a set and metric, a column an encoder."""
    encoders = _encoders(rows, metrics[0])
    lines = [
        (data, metric.replace("_", " "), *(_cell(rows.get((data, metric, encoder)), decimals) for encoder in encoders))
        for data in sets
        for metric in metrics
        if any((data, metric, encoder) in rows for encoder in encoders)
    ]
    return markdown_table(["", "", *encoders], lines) if lines else ""


def ratio_table(rows: Rows, sets: list[str]) -> str:
    """Return how much more attention nouns get from DocSplit than from the others."""
    metric = f"{COMPARED}, ratio"
    lines = []
    for data in sets:
        cells = []
        for other in RATIOS:
            row = rows.get((data, metric, f"DocSplit / {other}"))
            turned = rows.get((data, metric, f"{other} / DocSplit"))
            if row is None and turned is not None:
                row = {"value": 1 / turned["value"], "low": 1 / turned["high"], "high": 1 / turned["low"]}
            cells.append(_cell(row))
        if any(cells):
            lines.append((data, *cells))
    return markdown_table(["", *(f"DocSplit / {other}" for other in RATIOS)], lines) if lines else ""


def markdown(results: Results) -> str:
    """Return the tables as Markdown."""
    rows = by_name(results.rows)
    sets = list(dict.fromkeys(data for data, _, _ in rows))
    tables = {
        "Redundancy: R, and R over that of as many nouns and verbs of other documents (documents); rank "
        "correlations:": redundancy_table(rows, sets),
        "Cosines of sentences of one document (inner), of two (inter) and of two of one class, and how often a pair "
        "of one document is the more alike (AUC; the second: than a pair of one class):": table(
            rows, sets, MEASURES["similarity"]
        ),
        "Attention to a word, 1 is uniform:": table(rows, sets, MEASURES["attention"]),
        "Attention to nouns, times that of others, on the same documents (SimLTE: more than 1.4 times BERT's and "
        "SimCSE's):": ratio_table(rows, sets),
        "k-means with as many clusters as classes; documents of one class alone:": table(
            rows, sets, MEASURES["clustering"], 3
        ),
        "Geometry:": table(rows, sets, MEASURES["geometry"]),
    }
    parts = [
        "# Which of the papers' explanations hold here",
        "In brackets 95 % intervals over documents, and over seeds where there are three (random, SimCSE, DocSplit); "
        "± is the standard deviation over seeds.",
        *(part for caption, table_text in tables.items() if table_text for part in (caption, table_text)),
        results.what_is_missing(),
    ]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Plot R over its null by length, inner and inter similarity, and attention to nouns, for each set."""
    rows = by_name(results.rows)
    sets = list(dict.fromkeys(data for data, _, _ in rows))
    shown = (("auc", "a pair of one document is the more alike (AUC)"),
             ("noun_to_uniform", "attention to nouns, 1 is uniform"))  # fmt: skip
    shown = tuple((metric, title) for metric, title in shown if _encoders(rows, metric))
    figure, all_axes = plt.subplots(1, 1 + len(shown), figsize=(1 + 4.4 * (1 + len(shown)), 4), squeeze=False)
    axes = all_axes[0]
    for data in sets:
        ratios = [rows.get((data, f"redundancy r_to_null, {length} words", "")) for length in LENGTHS]
        there = [(place, row["value"]) for place, row in enumerate(ratios) if row]
        if there:
            axes[0].plot(*zip(*there), marker="o", label=data)
    axes[0].axhline(1, color="grey", linewidth=1)
    axes[0].set_xticks(range(len(LENGTHS)), LENGTHS)
    axes[0].set_title("redundancy over that of its null, by words", fontsize=10)
    for axis, (metric, title) in zip(axes[1:], shown):
        encoders = _encoders(rows, metric)
        for number, data in enumerate(sets):
            of_encoders = [(place, rows.get((data, metric, encoder))) for place, encoder in enumerate(encoders)]
            points = [(place + 0.12 * (number - len(sets) / 2), row["value"]) for place, row in of_encoders if row]
            if points:
                axis.plot(*zip(*points), linestyle="", marker="o", label=data)
        axis.set_xticks(range(len(encoders)), encoders, rotation=30, ha="right", fontsize=8)
        axis.set_title(title, fontsize=10)
    handles = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels())}
    columns = min(len(sets), 2 if not shown else 5)
    below = 0.06 * -(-len(sets) // columns) + 0.02
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, fontsize=9)
    figure.tight_layout(rect=(0, below, 1, 1))
    save(figure, path, dpi=110)


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {
        "masked_lm": {"required": True, "help": "where SimCSE and DocSplit go on from, a folder"},
        "model": {"required": True, "help": "another encoder, which is adapted"},
        "spacy_pipeline": {"default": "en_core_web_sm"},
    }
    run_study(STUDY, __doc__, arguments, markdown, plot)


if __name__ == "__main__":
    main()
