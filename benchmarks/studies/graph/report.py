"""When does a graph of passages pay? Graphs with and without contrast beside DocSplit of the same encoder.

    python -m benchmarks.studies.graph.report --data_dir DIR --start outputs/small_mlm --budget_hours 6
    python -m benchmarks.studies.graph.report --data_dir DIR --start outputs/small_mlm --list

The cells are those of study.yaml: full and section graph, and DocSplit read to its maximum length and by
chunk_mean, trained on as many tokens. DIR has the folders wikipedia, 20newsgroups, ecthr and aan. The start is a
masked LM: the header of study.yaml has the command. Running again goes on where it was stopped: see
`benchmarks.engine.cells`. The tables have each set's metric, and the same by length of document.
"""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.figures import save
from benchmarks.engine.results import SAMPLES, Results, Row
from benchmarks.studies.graph.step import THIRDS
from docsplit.evaluation.results.bootstrap import Resampled, holm, is_clear, paired_bootstrap
from docsplit.evaluation.results.markdown import markdown_table
from docsplit.evaluation.results.plots import plt

STUDY = Path(__file__).with_name("study.yaml")
SIZES = ("steps", "docsplit_steps", "documents")
COMPARED = (
    ("graph", "graph, no contrast"),
    ("graph", "mean of passages"),
    ("graph", "DocSplit"),
    ("graph", "DocSplit, chunk_mean"),
    ("graph", "start, mean, chunk_mean"),
    ("mean of passages", "DocSplit, chunk_mean"),
    ("DocSplit, chunk_mean", "DocSplit"),
    ("DocSplit, chunk_mean", "start, mean, chunk_mean"),
    ("graph", "TF-IDF + SVD"),
    ("graph of sections", "graph"),
    ("graph of sections", "graph of sections, no contrast"),
)
KINDS = {"length": THIRDS, "raw": (", raw",)}
TITLES = {
    "all": "All test documents, standardised vectors:",
    "length": "By length of the test documents, three classes of as many:",
    "raw": "Raw vectors, of length one; k-means is fitted on training documents, ten seeds:",
    "pretraining": "What was read in pretraining after the start, tokens in millions:",
    "fine-tuned": "Fine-tuned, on held-out documents of the train part:",
}
PLOTTED = (  # the best on short posts first
    "TF-IDF",
    "DocSplit, chunk_mean",
    "DocSplit",
    "start, mean, chunk_mean",
    "graph",
    "mean of passages",
    "graph, no contrast",
)
PANELS = {"20news": "newsgroup posts: accuracy with 5 labels a class (%)", "ecthr": "court judgments: micro-F1 (%)"}
MARKERS, COLOURS = "os^", ("tab:orange", "tab:blue", "black")  # of the three classes of length


def method_of(row: Row) -> str:
    """Return the name of a line: the method, and how it reads long documents."""
    return row["method"] + (", chunk_mean" if row.get("read") == "chunk_mean" else "")


def values_of(rows: list[Row], name: str = "value") -> dict[tuple[str, str], dict[str, list[Any]]]:
    """Map (data, metric) to method to the values of its seeds."""
    values: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if name in row:
            values[row["data"], row["metric"]][method_of(row)].append(row[name])
    return {key: dict(of_method) for key, of_method in values.items()}


def differences(rows: list[Row]) -> list[list[str]]:
    """Return a line for each set, metric and two methods: over the same test items, and over seeds where there are
    some.

    p is corrected for the pairs of a set and metric. A method is ahead if the difference is clear, and if both have
    several pretraining seeds or need none.
    """
    values, drawn = values_of(rows), values_of(rows, SAMPLES)
    trained = {method_of(row) for row in rows if row.get("seed") is not None}
    lines = []
    for key, of_method in drawn.items():
        resampled = {
            method: Resampled(np.array(values[key][method]), np.array(samples).T, seeds=len(samples))
            for method, samples in of_method.items()
        }
        pairs = [pair for pair in COMPARED if all(method in resampled for method in pair)]
        compared = [paired_bootstrap(resampled[first], resampled[second]) for first, second in pairs]
        corrected = holm([test.p_value for test in compared])
        for pair, test, p_holm in zip(pairs, compared, corrected):
            numbers = [resampled[method].seeds if method in trained else 0 for method in pair]
            clear = is_clear(test.low, test.high, p_holm) and 1 not in numbers
            difference, low, high = (f"{100 * value:+.1f}" for value in (test.difference, test.low, test.high))
            seeds = " / ".join(str(number or "-") for number in numbers)
            ahead = pair[test.difference < 0] if clear else ""
            lines.append([*key, " - ".join(pair), difference, f"{low} to {high}", f"{p_holm:.3f}", seeds, ahead])
    return lines


def shown(values: list[float], factor: float = 100) -> str:
    """Return the mean, and the deviation where there are several seeds."""
    spread = f" ± {factor * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{factor * statistics.mean(values):,.1f}{spread}"


def kind_of(data: str, metric: str) -> str:
    """Return the table that a metric stands in."""
    if data == "pretraining" or metric.startswith("fine-tuned"):
        return data if data == "pretraining" else "fine-tuned"
    return next((kind for kind, ends in KINDS.items() if metric.endswith(ends)), "all")


def markdown(results: Results) -> str:
    """Return a table a kind of metrics, and in it a line a method; then differences."""
    values_by = values_of(results.rows)
    parts = ["# Graphs of passages beside DocSplit", "In percent; ± is the deviation over pretraining seeds."]
    for kind, title in TITLES.items():
        columns = [key for key in values_by if kind_of(*key) == kind]
        methods = dict.fromkeys(method for column in columns for method in values_by[column])
        factors = [{"tokens": 1e-6, "seconds": 1}.get(metric, 100) for _, metric in columns]
        lines = [
            [method, *(shown(values, factor) if (values := values_by[column].get(method)) else ""
                       for column, factor in zip(columns, factors))]
            for method in methods
        ]  # fmt: skip
        if lines:
            parts += [title, markdown_table(["method", *(f"{data} {metric}" for data, metric in columns)], lines)]
    if compared := differences(results.rows):
        parts += [
            "Differences in points, 95 % intervals over test items and pretraining seeds (paired bootstrap; of one "
            "seed over items alone; -: it needs none); p by Holm over the pairs of a set and metric:"
        ]
        header = ["data", "metric", "methods", "difference", "95 % interval", "p", "seeds", "ahead"]
        parts += [markdown_table(header, compared)]
    words = {(row["data"], row["metric"].rpartition(", ")[2]): row["words"] for row in results.rows if "words" in row}
    parts += [f"{data}, {third}: {low:,} to {high:,} words." for (data, third), (low, high) in words.items()]
    return "\n\n".join([*parts, results.what_is_missing()]) + "\n"


def plot(results: Results, path: Path) -> None:
    """Plot a panel a set, a line for each method of `PLOTTED`, a dot a class of length; then fine-tuning."""
    values_by = values_of(results.rows)
    sets = {data: metric.rpartition(",")[0] for data, metric in values_by if metric.endswith(THIRDS)}
    if not sets:
        return
    tuned = [row for row in results.rows if "curve" in row]
    panels = len(sets) + bool(tuned)
    figure, axes = plt.subplots(panels, 1, figsize=(7, 2.3 * panels + 0.5), squeeze=False, layout="constrained")
    heights = np.arange(len(PLOTTED), 0, -1)
    for axis, (data, metric) in zip(axes[:, 0], sets.items()):
        for place, third in enumerate(THIRDS):
            of_method = values_by[data, f"{metric}, {third}"]
            means = [100 * statistics.mean(of_method[name]) if name in of_method else np.nan for name in PLOTTED]
            axis.plot(means, heights - 0.2 * (place - 1), MARKERS[place], color=COLOURS[place], label=third)
        axis.set_yticks(heights, PLOTTED)
        axis.set_title(PANELS.get(data, f"{data}, {metric} (%)"), loc="left", fontsize=11)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(title="documents", loc="lower right")
    for row, style in zip(tuned, ("o-", "s--")):  # Figure 5
        points = [(point["epoch"], 100 * point["accuracy"]) for point in row["curve"]]
        axes[-1, 0].plot(*zip(*points), style, label=f"{row['method']}: {points[-1][1]:.1f} % at the end")
        axes[-1, 0].set_title(f"{row['data']}, fine-tuned: validation accuracy (%) by epoch", loc="left", fontsize=11)
        axes[-1, 0].legend(loc="lower right")
        axes[-1, 0].grid(alpha=0.3)
    figure.suptitle(_message(values_by, sets), fontsize=12)
    save(figure, path)


def _message(values_by: dict[tuple[str, str], dict[str, list[Any]]], sets: dict[str, str]) -> str:
    """Return the title: in how many classes of length the graph has a lower mean than DocSplit."""
    of_classes = [values_by[data, f"{metric}, {third}"] for data, metric in sets.items() for third in THIRDS]
    pairs = [
        [statistics.mean(of_class[method]) for method in ("graph", "DocSplit, chunk_mean")]
        for of_class in of_classes
        if {"graph", "DocSplit, chunk_mean"} <= of_class.keys()
    ]
    behind = sum(graph < docsplit for graph, docsplit in pairs)
    return f"Short, medium or long: the graph is behind DocSplit in {behind} of {len(pairs)} cases"


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {
        "start": {"required": True, "help": "the masked LM to start from, a folder"},
        **{name: {"type": int, "help": "default: study.yaml's"} for name in SIZES},
    }
    run_study(STUDY, __doc__, arguments, markdown, plot)


if __name__ == "__main__":
    main()
