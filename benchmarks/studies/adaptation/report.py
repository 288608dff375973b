"""Does adapting an encoder to unlabelled documents help? Methods, data sets and levers, from one start.

    python -m benchmarks.studies.adaptation.report --data_dir DIR --model DIR_OR_NAME
    python -m benchmarks.studies.adaptation.report --data_dir DIR --model DIR_OR_NAME --list

The cells are those of study.yaml: words and trainings on five sets, with three seeds, and what needs no training
beside them. DIR has the folders 20newsgroups, aan, cranfield, ecthr and wikipedia; python_docs is built in.
Running again goes on where it was stopped: see `benchmarks.engine.cells`.
"""

import statistics
from collections import defaultdict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.engine.cells import Arguments, run_study
from benchmarks.engine.results import SAMPLES, Results, Row
from docsplit.evaluation.results.plots import plt

STUDY = Path(__file__).with_name("study.yaml")
SIZES = ("documents", "tokens", "steps")
SEARCH_SETS = ("cranfield", "python_docs_search", "wikipedia_titles")
NAMES = {  # of methods and sets, in a reader's words
    "start": "the encoder as it is",
    "words": "adapted (words, no training)",
    "static": "adapted, static",
    "adapt": "trained on the documents",
    "adapt + words": "trained, and words",
    "model2vec": "model2vec's static",
    "TF-IDF": "TF-IDF",
}
SETS = {
    "20news": "newsgroup posts",
    "python_docs": "Python docstrings",
    "aan": "citations of papers",
    "cranfield": "search in abstracts",
    "ecthr": "court judgments",
}
METRICS = {
    "5shot_accuracy": "accuracy, 5 labels a class",
    "roc_auc": "ROC-AUC",
    "ndcg_at_10": "nDCG@10",
    "micro_f1": "micro-F1, all labels",
}
PARTS = {  # of the tables, with their titles
    "methods": "",
    "search": "Search, nDCG@10; the weight of BM25 is chosen on the queries of the other folds",
    "weak_start": "From a weak start; differences to that",
    "masked_lm": "From the masked LM; differences to that",
    "curve": "By the number of steps, each with its own schedule",
    "limits": "Other documents to adapt on, and another question",
}
COLOURS = {  # of what the figure shows: words, training, neither
    **dict.fromkeys(("words", "static"), "tab:orange"),
    **dict.fromkeys(("adapt", "adapt + words"), "tab:blue"),
    "TF-IDF": "tab:gray",
}


@dataclass
class Summary:
    """The values of a method on a set, over its seeds."""

    metric: str
    value: float
    difference: float  # to the start
    low: float
    high: float
    seeds: int
    trained: bool


Summaries = dict[tuple[str, str], Summary]  # (data, method)


def summaries(rows: list[Row]) -> Summaries:
    """Map (data, method) to the mean over seeds of the set's metric and of its difference to the start, on test items.

    The interval holds 95 % of the differences on drawn test items of all seeds together: items and seeds vary.
    """
    rows_of: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if "difference" in row and row["part"] == "test":
            # "5shot_accuracy, smoothed": of the method's vectors, averaged with their neighbours.
            metric, _, then = row["metric"].partition(", ")
            rows_of[row["data"], f"{row['method']}, {then}" if then else row["method"]].append(
                row | {"metric": metric}
            )
    summary_of = {key: _summary(seeds) for key, seeds in rows_of.items()}
    # The start first, then what was trained, then what needs no training.
    return dict(sorted(summary_of.items(), key=lambda item: (not item[0][1].endswith("start"), not item[1].trained)))


def _summary(seeds: list[Row]) -> Summary:
    """Return the rows of a method's seeds as one."""
    low, high = np.percentile(np.concatenate([row[SAMPLES] for row in seeds]), [2.5, 97.5])
    value, difference = (statistics.mean(row[name] for row in seeds) for name in ("value", "difference"))
    is_trained = seeds[0]["seed"] is not None
    return Summary(seeds[0]["metric"], value, difference, float(low), float(high), len(seeds), is_trained)


def comparison(summary_of: Summaries) -> list[list[str]]:
    """Return a line a method, a column a data set: the value, and the difference to the start with its interval."""
    data, methods = (list(dict.fromkeys(key[place] for key in summary_of)) for place in (0, 1))
    metrics = {name: summary.metric for (name, _), summary in reversed(summary_of.items())}
    table = [["", *(f"{name}, {metrics[name]}" for name in data)]]
    for method in methods:
        table.append([method, *(_cell(method, summary_of.get((name, method))) for name in data)])
    return table


def short(summary_of: Summaries) -> list[list[str]]:
    """Return the methods of `NAMES` on the sets of `SETS`, in a reader's words."""
    metrics = {data: summary.metric for (data, _), summary in summary_of.items()}
    data = [name for name in SETS if name in metrics]
    header = ["", *(f"{SETS[name]}, {METRICS.get(metrics[name], metrics[name])}" for name in data)]
    lines = [[NAMES[method], *(_short_cell(method, summary_of.get((name, method))) for name in data)]
             for method in NAMES]  # fmt: skip
    return [header, *(line for line in lines if any(line[1:]))]


def _short_cell(method: str, summary: Summary | None) -> str:
    if summary is None or method == "start":
        return "" if summary is None else f"{100 * summary.value:.1f}"
    mark = "**" if summary.low > 0 else ""
    return f"{mark}{100 * summary.value:.1f}{mark} ({100 * summary.difference:+.1f})"


def _cell(method: str, summary: Summary | None) -> str:
    """Format a value in percent; empty where nothing was measured."""
    if summary is None:
        return ""
    text = f"{100 * summary.value:.1f}"
    if method.endswith("start"):
        return text
    seeds = f", {summary.seeds} seed{'s' if summary.seeds > 1 else ''}" if summary.trained else ""
    low, high = 100 * summary.low, 100 * summary.high
    return f"{text} ({100 * summary.difference:+.1f}; {low:+.1f} to {high:+.1f}{seeds})"


def with_all_labels(rows: list[Row]) -> list[list[str]]:
    """Return a line a method: its accuracy with all labels on each set, the mean over seeds, in percent."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.get("part") == "test" and row["metric"] == "accuracy" and ", " not in row["data"]:
            values[row["method"]][row["data"]].append(row["value"])
    data = list(dict.fromkeys(name for of_method in values.values() for name in of_method))
    lines = [[method, *(f"{100 * statistics.mean(of[name]):.1f}" if name in of else "" for name in data)]
             for method, of in values.items()]  # fmt: skip
    return [["", *data], *lines] if data else []


def markdown(results: Results) -> str:
    """Return the tables as Markdown."""
    rows = results.rows
    summary_of = summaries(rows)
    parts: dict[str, Summaries] = defaultdict(dict)
    for key, summary in summary_of.items():
        parts[_part_of(*key)][key] = summary
    lines = ["Percent, and the difference to the encoder as it is; bold: its 95 % interval is above 0.", ""]
    lines += [*table(short(parts["methods"])), ""]
    lines += ["All methods, in brackets the difference to the start and its interval over test items and seeds:", ""]
    for name, title in PARTS.items():
        if parts[name]:
            cells = comparison(parts[name])
            cells = _transposed(cells) if name in ("curve", "limits") else cells
            lines += [*([f"{title}:", ""] if title else []), *table(cells), ""]
    if compared := against(rows, "words", "adapt"):
        lines += ["`words` less `adapt`, on the same test items, over the seeds of `adapt`:", "", *table(compared), ""]
    if body := with_all_labels(rows):
        lines += ["Accuracy with all labels:", "", *table(body), ""]
    lines += [results.what_is_missing()]
    return "\n".join(lines) + "\n"


def _part_of(data: str, method: str) -> str:
    """Return the name of a row's table."""
    if ", " in data:
        return "limits"
    if data in SEARCH_SETS and (data != "cranfield" or method.endswith(" + BM25")):
        return "search"
    for prefix, name in (("masked LM, ", "masked_lm"), ("weak start, ", "weak_start")):
        if method.startswith(prefix):
            return name
    return "curve" if " steps" in method else "methods"


def against(rows: list[Row], method: str, other: str) -> list[list[str]]:
    """Return the difference of two methods on each set, with its interval over test items and the other's seeds."""
    samples: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["part"] == "test" and SAMPLES in row and ", " not in row["metric"] and ", " not in row["data"]:
            samples[row["data"], row["method"]].append(row)
    lines = []
    for data in dict.fromkeys(name for name, _ in samples):
        firsts, seconds = samples.get((data, method), []), samples.get((data, other), [])
        if not firsts or not seconds:
            continue
        pairs = [(first, second) for first in firsts for second in seconds]
        drawn = np.concatenate([np.subtract(first[SAMPLES], second[SAMPLES]) for first, second in pairs])
        mean = statistics.mean(first["difference"] - second["difference"] for first, second in pairs)
        low, high = np.percentile(drawn, [2.5, 97.5])
        lines.append([data, f"{100 * mean:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"])
    return [["", f"{method} - {other}", "interval"], *lines] if lines else []


def table(cells: list[list[str]]) -> list[str]:
    """Return Markdown of a table whose first line is its head."""
    return [f"| {' | '.join(line)} |" for line in [cells[0], ["---"] * len(cells[0]), *cells[1:]]]


def _transposed(cells: list[list[str]]) -> list[list[str]]:
    """Return the table with data sets as lines, where there are few methods or one data set."""
    return [list(column) for column in zip(*cells)] if len(cells) <= len(cells[0]) else cells


def plot(results: Results, path: Path) -> None:
    """Plot the difference to the start of the methods of `COLOURS`, with its interval, a panel a data set."""
    summary_of = {key: summary for key, summary in summaries(results.rows).items() if _part_of(*key) == "methods"}
    methods = [name for name in COLOURS if any(name == method for _, method in summary_of)]
    data = [name for name in SETS if any(name == key[0] for key in summary_of)]
    if not methods:
        return
    columns = min(len(data), 3)  # so that the figure can be read at 700 pixels
    lines = -(-len(data) // columns)
    size = (2.1 * columns + 2.4, (0.3 * len(methods) + 1) * lines + 0.5)
    figure, axes = plt.subplots(
        lines, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes.flat, data):
        for height, method in enumerate(reversed(methods)):
            if summary := summary_of.get((name, method)):
                low, difference, high = (100 * value for value in (summary.low, summary.difference, summary.high))
                axis.plot([low, high], [height] * 2, color=COLOURS[method], linewidth=2)
                axis.plot(difference, height, "o", color=COLOURS[method])
                place = axis.get_yaxis_transform()  # the number stands right of the panel, where no interval is
                axis.text(1.03, height, f"{difference:+.1f}", transform=place, va="center", fontsize=9)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(f"{SETS[name]}\n", fontsize=11, loc="left")
        metric = next(summary.metric for (other, _), summary in summary_of.items() if other == name)
        axis.text(0, 1.03, METRICS.get(metric, metric), transform=axis.transAxes, fontsize=9, color="0.3")
        axis.set_yticks(range(len(methods)), [NAMES[method] for method in reversed(methods)])
        axis.tick_params(labelbottom=True)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(data) :]:
        axis.set_axis_off()
    figure.suptitle("Points of difference to the encoder as it is, and their 95 % interval", fontsize=12)
    drawn = BytesIO()  # a PNG as small as it can be without losing a pixel; it has no transparent parts
    figure.savefig(drawn, format="png", dpi=120)
    plt.close(figure)
    Image.open(drawn).convert("RGB").save(path, "png", optimize=True, dpi=(120, 120))


def main() -> None:
    """Run the cells, then write the results so far."""
    arguments: Arguments = {
        "data_dir": {"required": True, "help": "folder with a folder of each data set"},
        "model": {"required": True, "help": "the start: a SentenceTransformer, here or on the Hub"},
        "weak_start": {"help": "a start that knows little, for words"},
        "model2vec": {"help": "folder of model2vec's distillation of the start"},
        **{name: {"type": int, "help": "default: study.yaml's"} for name in SIZES},
    }
    run_study(STUDY, __doc__, arguments, markdown, plot)


if __name__ == "__main__":
    main()
