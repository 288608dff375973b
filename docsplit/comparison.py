"""Encoders side by side: rows of results, paired tests, tables, curves and `results.json`.

What the probe and the retrieval script measured comes in as `Result`s, scores of every run on every test item, so
that all encoders are measured by the same few lines, and compared on the same items.
"""

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from pathlib import Path
from platform import python_version
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen needed; before pyplot is imported
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullLocator

from docsplit import metrics

PACKAGES = (
    *("torch", "transformers", "sentence-transformers", "datasets", "evaluate", "scikit-learn", "numpy", "scipy"),
    *("accelerate", "setfit", "bm25s"),
)
ENCODER_TRAINED = ("finetune", "setfit")  # heads whose trainable parameters include the encoder's
BASELINE_HEADS = ("bm25", "popularity")  # heads of pairs of papers without any encoder
SHIFT = 0.045  # between the points of two encoders at the same number of labels, in doublings
LONGEST_NAME = 24  # characters of an encoder's name, in tables and pictures, before it is shortened
NUMBERS = {
    "accuracy": "Accuracy",
    "micro_f1": "Micro-F1",
    "macro_f1": "Macro-F1",
    "f1": "F1",
    "roc_auc": "ROC-AUC",
}


@dataclass
class Result:
    """One head on one encoder, trained R times with the same number of labels, measured on M test items."""

    encoder: str
    head: str
    shots: int | None  # labels per class; None: the full training set
    scores: np.ndarray  # (R, M, C) float32; pairs of papers: (R, M, 1)
    seconds: float  # to train the head, mean over runs
    trainable_parameters: int
    info: dict[str, Any] = field(default_factory=dict)  # pooling, max_seq_length, features ...: copied into the row
    predicted: np.ndarray | None = None  # (R, M) 0 or 1, pairs of papers whose threshold is not 0.5

    @property
    def features(self) -> str:
        return self.info.get("features", "raw")


# Rows


def classification_rows(
    results: Sequence[Result], test_labels: np.ndarray, class_names: Sequence[str], multi_label: bool
) -> list[dict[str, Any]]:
    """One row for each result: means and standard deviations (numpy's, of the runs themselves) over runs.

    `accuracy_low` and `accuracy_high` are the 95 % bootstrap interval over test items of the mean over runs. With
    several labels accuracy counts the items with all labels right, and the row has `micro_f1_low` and `micro_f1_high`
    too, and `per_label_f1`: a label without any true and predicted item in all runs is None.

    Args:
        test_labels: (M,) class indices, or (M, C) multi-hot.

    Raises:
        ValueError: if scores and labels do not agree in shape, or a score is NaN.
    """
    predicted = _predictions(results, test_labels, multi_label, len(class_names))
    metric = metrics.ClassificationMetric()
    rows = []
    for result, runs in zip(results, predicted):
        measured = [metric.compute(predictions=run, references=test_labels) for run in runs]
        row = _row(result, measured, ("accuracy", "macro_f1", "micro_f1"))
        if multi_label:
            per_label = np.array([values["per_label_f1"] for values in measured])  # (R, C)
            row["per_label_f1"] = {
                name: float(np.nanmean(column)) if np.isfinite(column).any() else None
                for name, column in zip(class_names, per_label.T)
            }
        rows.append(row)
    _add_intervals(rows, [_accuracy_items(runs, test_labels) for runs in predicted], "accuracy")
    if multi_label:
        _add_intervals(rows, [metrics.item_scores(runs, test_labels, True) for runs in predicted], "micro_f1")
    return rows


def link_rows(results: Sequence[Result], test_labels: np.ndarray) -> list[dict[str, Any]]:
    """Rows for pairs of papers, linked or not: also F1 of the links and ROC-AUC, mean and deviation over runs.

    Macro- and micro-F1 are those of the two classes, linked and not.

    Args:
        test_labels: (M,) 0 or 1.

    Raises:
        ValueError: if scores and labels do not agree in shape, a score is NaN or the labels are not 0 and 1.
    """
    predicted = _predictions(results, test_labels, False, 1)
    link, classification = metrics.LinkMetric(), metrics.ClassificationMetric()
    rows = []
    for result, runs in zip(results, predicted):
        measured = [
            classification.compute(predictions=run, references=test_labels)
            | link.compute(predictions=run, references=test_labels, scores=scores)
            for run, scores in zip(runs, result.scores[:, :, 0])
        ]
        rows.append(_row(result, measured, ("accuracy", "macro_f1", "micro_f1", "f1", "roc_auc")))
    _add_intervals(rows, [_accuracy_items(runs, test_labels) for runs in predicted], "accuracy")
    return rows


def _row(result: Result, measured: list[dict], names: Iterable[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"encoder": result.encoder, "head": result.head, "shots": result.shots}
    for name in names:
        values = [run[name] for run in measured]
        row |= {f"{name}_mean": float(np.mean(values)), f"{name}_std": float(np.std(values))}
    row |= {"runs": len(measured), "seconds": result.seconds, "trainable_parameters": result.trainable_parameters}
    row["trainable_share"] = _trainable_share(result)
    row["features"] = result.features
    return row | {name: value for name, value in result.info.items() if name not in row}


def _trainable_share(result: Result) -> float | None:
    """Trained parameters / those of encoder and head together; None where there are none, or none are known."""
    encoder = result.info.get("num_parameters")
    if encoder is None:
        return None
    head = 0 if result.head in ENCODER_TRAINED else result.trainable_parameters
    total = max(encoder + head, result.trainable_parameters)
    return result.trainable_parameters / total if total else None


def _predictions(
    results: Sequence[Result], test_labels: np.ndarray, multi_label: bool, num_classes: int | None = None
) -> list[np.ndarray]:
    """(R, M) classes or (R, M, C) labels of each result, once its shapes are known to be right."""
    predicted = []
    for result in results:
        name = f"{result.encoder!r} with head {result.head!r} (shots: {result.shots})"
        num_scores = result.scores.shape[-1]
        expected = (len(test_labels), num_scores if num_classes is None else num_classes)
        if result.scores.ndim != 3 or result.scores.shape[1:] != expected or not len(result.scores):
            raise ValueError(
                f"Scores of {name} have shape {result.scores.shape}, expected (runs, {expected[0]} test items, "
                f"{expected[1]} classes): was the head trained on another split?"
            )
        pairs = num_scores == 1 and not multi_label
        try:
            runs = metrics.predictions(result.scores, multi_label or pairs)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if pairs:
            runs = runs[:, :, 0] if result.predicted is None else result.predicted
        if runs.shape[:2] != result.scores.shape[:2]:
            raise ValueError(f"`predicted` of {name} has shape {runs.shape}, expected {result.scores.shape[:2]}.")
        predicted.append(runs)
    return predicted


def _accuracy_items(predicted: np.ndarray, test_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R, M) items with everything right, and ones."""
    if test_labels.ndim == 2:
        predicted, test_labels = (predicted == test_labels).all(axis=2), np.ones(len(test_labels), bool)
    return metrics.item_scores(predicted, test_labels, multi_label=False)


def _add_intervals(rows: list[dict[str, Any]], items: list[tuple[np.ndarray, np.ndarray]], name: str) -> None:
    """Put `name`_low and `name`_high into each row; the test items are drawn once for all."""
    for row, samples in zip(rows, _resampled(items)):
        row[f"{name}_low"], row[f"{name}_high"] = metrics.percentiles(samples.mean(axis=1))


def _resampled(items: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """`metrics.resampled_scores` of each system, (num_samples, R) each."""
    if not items:
        return []
    numerators, denominators = (np.concatenate(parts) for parts in zip(*items))
    ends = np.cumsum([len(system[0]) for system in items])
    return np.split(metrics.resampled_scores(numerators, denominators), ends[:-1], axis=1)


# Differences


def comparisons(
    results: Sequence[Result], test_labels: np.ndarray, multi_label: bool, baseline_opponent: str = "mlp"
) -> list[dict[str, Any]]:
    """A paired bootstrap for each two encoders with the same head, number of labels and features.

    The measure is accuracy, or micro-F1 where items have several labels. BM25 and popularity, which are heads without
    an encoder, are compared with the head `baseline_opponent` of every encoder.

    Returns: `head`, `shots`, `features`, `a`, `b` (encoders), `measure`, and `difference` (a - b), `low`, `high`,
        `p_value` as `docsplit.metrics.paired_bootstrap` gives them. P-values are not corrected for their number.

    Raises:
        ValueError: if scores and labels do not agree in shape, or a score is NaN.
    """
    items = [
        metrics.item_scores(runs, test_labels, multi_label) for runs in _predictions(results, test_labels, multi_label)
    ]
    means, samples = [metrics.run_scores(*item) for item in items], _resampled(items)
    rows = []
    for one, two in combinations(range(len(results)), 2):
        if results[one].head in BASELINE_HEADS:
            one, two = two, one  # the encoder first
        a, b = results[one], results[two]
        against_baseline = a.head == baseline_opponent and b.head in BASELINE_HEADS
        same = (a.head, a.features) == (b.head, b.features) or against_baseline
        if not same or a.shots != b.shots or a.encoder == b.encoder:
            continue
        rows.append(
            {
                "head": a.head,
                "shots": a.shots,
                "features": a.features,
                "a": a.encoder,
                "b": b.encoder,
                "measure": "micro_f1" if multi_label else "accuracy",
                **metrics.paired_difference(means[one], means[two], samples[one], samples[two]),
            }
        )
    return rows


# Statistics of the data


def text_statistics(name: str, parts: dict[str, list[str]], num_classes: int) -> list[dict[str, Any]]:
    """Documents, classes and words (between white space) of each part, as in Table 1 of the DocSplit paper (v1)."""
    rows = []
    for part, texts in parts.items():
        words = [len(text.split()) for text in texts] or [0]
        rows.append(
            {
                "dataset": name,
                "part": part,
                "documents": len(texts),
                "classes": num_classes,
                "mean_words": float(np.mean(words)),
                "median_words": float(np.median(words)),
                "max_words": max(words),
            }
        )
    return rows


# Tables


def short_names(names: Iterable[str], longest: int = LONGEST_NAME) -> dict[str, str]:
    """Names for tables and pictures: long ones by their last path component, or by as many as keep them distinct."""
    unique = list(dict.fromkeys(names))
    if all(len(name) <= longest for name in unique):
        return {name: name for name in unique}

    def tail(name: str, depth: int) -> str:
        parts = name.strip("/").split("/")
        return "/".join(parts[-depth:]) if depth < len(parts) else name

    depths = dict.fromkeys(unique, 1)
    while True:
        short = {name: tail(name, depth) for name, depth in depths.items()}
        shown = list(short.values())
        clashing = [name for name in unique if shown.count(short[name]) > 1 and short[name] != name]
        if not clashing:
            return short
        for name in clashing:
            depths[name] += 1


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up on screen; numbers, after the first column, to the right."""
    lines = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    rule = ["-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    padded = [
        [
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths))
        ]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (padded[0], rule, *padded[1:]))


def _percent(row: dict[str, Any], name: str) -> tuple[float, str]:
    """62.1 for comparing, and 62.1 ± 1.3 to show, or only 62.1 where there was one run."""
    mean = round(100 * row[f"{name}_mean"], 1)
    return mean, f"{mean:.1f} ± {100 * row[f'{name}_std']:.1f}" if row["runs"] > 1 else f"{mean:.1f}"


def _bold_best(cells: list[list[tuple[float, str] | None]]) -> list[list[str]]:
    """Cells of `_percent` as text, the best of a column in bold: equal as shown, equally bold."""
    best = [max((cell[0] for cell in column if cell), default=None) for column in zip(*cells)]
    return [
        ["" if cell is None else f"**{cell[1]}**" if cell[0] == top else cell[1] for cell, top in zip(line, best)]
        for line in cells
    ]


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _head(row: dict[str, Any]) -> str:
    return row["head"] if row["features"] == "raw" else f"{row['head']} ({row['features']})"


def _shots(shots: int | None) -> str:
    return "all" if shots is None else str(shots)


def _measures(rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """The two numbers of a table or picture: micro-F1 in place of accuracy where documents have several labels."""
    return ("micro_f1" if any("per_label_f1" in row for row in rows) else "accuracy", "macro_f1")


def result_tables(rows: Sequence[dict[str, Any]]) -> str:
    """Encoders x heads for the full training set (DocSplit, Table 1) and for each number of labels (Table 2)."""
    names = short_names(row["encoder"] for row in rows)
    if rows and "roc_auc_mean" in rows[0]:
        return _link_table(rows, names)
    sections = []
    for shots in sorted({row["shots"] for row in rows}, key=lambda shots: shots or 0):  # the full set first
        chosen = {(row["encoder"], _head(row)): row for row in rows if row["shots"] == shots}
        encoders, heads = (_unique(part) for part in zip(*chosen))
        columns = [(head, measure) for head in heads for measure in _measures(rows)]
        cells = [
            [_percent(chosen[encoder, head], name) if (encoder, head) in chosen else None for head, name in columns]
            for encoder in encoders
        ]
        title = "Full training set" if shots is None else f"{shots} labels per class"
        header = ["encoder", *(f"{head}: {NUMBERS[measure]}" for head, measure in columns)]
        body = [[names[encoder], *line] for encoder, line in zip(encoders, _bold_best(cells))]
        sections.append(f"## {title}\n\n{markdown_table(header, body)}")
    return "\n\n".join(sections)


def _link_table(rows: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
    """One line for each encoder and head (DocSplit v1, Table 3, has accuracy alone)."""
    columns = ["accuracy", "f1", "roc_auc"]
    texts = _bold_best([[_percent(row, name) for name in columns] for row in rows])
    intervals = [f"[{100 * row['accuracy_low']:.1f}, {100 * row['accuracy_high']:.1f}]" for row in rows]
    body = [
        [names[row["encoder"]], _head(row), *line, interval] for row, line, interval in zip(rows, texts, intervals)
    ]
    header = ["encoder", "head", *(NUMBERS[name] for name in columns), "accuracy, 95 % interval"]
    return f"## Linked or not\n\n{markdown_table(header, body)}"


def difference_table(differences: Sequence[dict[str, Any]]) -> str:
    """All pairs of encoders, in points, with interval and p; intervals without 0 in bold."""
    names = short_names(name for row in differences for name in (row["a"], row["b"]))
    body = []
    for row in differences:
        text = f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        text = f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text
        encoders = f"{names[row['a']]} - {names[row['b']]}"
        measure, p_value = NUMBERS[row["measure"]], f"{row['p_value']:.3f}"
        body.append([encoders, _head(row), _shots(row["shots"]), measure, text, p_value])
    return markdown_table(["encoders", "head", "labels per class", "measure", "difference [95 % interval]", "p"], body)


def per_label_table(rows: Sequence[dict[str, Any]]) -> str:
    """F1 of each label with the full training set, one column for each encoder and head."""
    chosen = [row for row in rows if "per_label_f1" in row and row["shots"] is None]
    if not chosen:
        return ""
    names = short_names(row["encoder"] for row in rows)

    def cell(label: str, row: dict[str, Any]) -> str:
        value = row["per_label_f1"][label]
        return "" if value is None else f"{100 * value:.1f}"

    header = ["label", *(f"{names[row['encoder']]}: {_head(row)}" for row in chosen)]
    return markdown_table(
        header, [[label, *(cell(label, row) for row in chosen)] for label in chosen[0]["per_label_f1"]]
    )


def encoder_table(rows: Sequence[dict[str, Any]]) -> str:
    """What was measured: the full name, pooling, length and size of each encoder."""
    columns = {
        "pooling": "pooling",
        "max_seq_length": "maximum length",
        "long_documents": "long documents",
        "num_parameters": "parameters",
        "dtype": "dtype",
        "embedding_seconds": "seconds to embed",
    }
    lines = _unique((row["encoder"], *(_value(row.get(name)) for name in columns)) for row in rows)
    return markdown_table(["encoder", *columns.values()], lines)


def cost_table(rows: Sequence[dict[str, Any]]) -> str:
    """Training time and trained parameters of each head, as Table 2 of the Bregman paper gives them."""
    names = short_names(row["encoder"] for row in rows)
    all_shots = sorted({row["shots"] for row in rows}, key=lambda shots: shots or 0)
    body = []
    for encoder, head in _unique((row["encoder"], _head(row)) for row in rows):
        own = {row["shots"]: row for row in rows if (row["encoder"], _head(row)) == (encoder, head)}
        seconds = [f"{own[shots]['seconds']:.2f}" if shots in own else "" for shots in all_shots]
        row = next(iter(own.values()))
        share = "" if row["trainable_share"] is None else f"{100 * row['trainable_share']:.3g} %"
        body.append([names[encoder], head, *seconds, _value(row["trainable_parameters"]), share])
    labels = [f"seconds, {_shots(shots)}" for shots in all_shots]
    return markdown_table(["encoder", "head", *labels, "trained parameters", "share"], body)


def statistics_table(statistics: Sequence[dict[str, Any]]) -> str:
    columns = {"part": "part", "documents": "documents", "classes": "classes", "mean_words": "mean words"}
    columns |= {"median_words": "median words", "max_words": "maximum words"}
    body = [[row["dataset"], *(_value(row[name]) for name in columns)] for row in statistics]
    return markdown_table(["data set", *columns.values()], body)


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# Files


def write_results(
    output_dir: str | Path,
    rows: Sequence[dict[str, Any]],
    comparisons: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    statistics: Sequence[dict[str, Any]] | None = None,
    title: str = "Results",
    notes: Sequence[str] = (),
) -> str:
    """Write results.json and results.md, each whole or not at all.

    Numbers in the JSON are not rounded; NaN and infinity, which JSON does not have, become null.

    Returns: what to print, the tables of results.
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "title": title,
        "rows": list(rows),
        "comparisons": list(comparisons),
        "statistics": list(statistics or []),
        "settings": settings,
        "notes": list(notes),
        "versions": versions(),
    }
    _write(folder / "results.json", json.dumps(_plain(contents), indent=2, allow_nan=False) + "\n")
    _write(folder / "results.md", _markdown(rows, comparisons, statistics, title, notes))
    clear = sum(row["low"] > 0 or row["high"] < 0 for row in comparisons)
    text = f"# {title}\n\n{result_tables(rows)}\n\n{_caption(rows)}\n"
    if comparisons:
        text += f"\n{clear} of {len(comparisons)} differences between encoders have a 95 % interval without 0.\n"
    text += f"\nAll numbers are in {folder / 'results.json'}, all tables in {folder / 'results.md'}."
    return f"\n{text}\n"


def _markdown(
    rows: Sequence[dict[str, Any]],
    differences: Sequence[dict[str, Any]],
    statistics: Sequence[dict[str, Any]] | None,
    title: str,
    notes: Sequence[str],
) -> str:
    parts = [f"# {' '.join(title.split())}"]
    if notes:
        parts.append("\n".join(f"- {' '.join(note.split())}" for note in notes))
    if statistics:
        parts.append(f"## Data\n\n{statistics_table(statistics)}\n\nWords are what stands between white space.")
    parts += [result_tables(rows), _caption(rows)]
    if labels := per_label_table(rows):
        parts.append(f"## F1 of each label, full training set\n\n{labels}")
    if differences:
        explained = (
            "Points, first minus second encoder. Paired bootstrap over test items and runs; in bold where the 95 % "
            f"interval leaves 0 out. The {len(differences)} p-values are not corrected for their number: one in "
            "twenty falls below 0.05 where nothing differs."
        )
        parts.append(f"## Differences\n\n{explained}\n\n{difference_table(differences)}")
    parts.append(f"## Encoders\n\n{encoder_table(rows)}")
    parts.append(f"## Cost of the heads\n\nTraining, seconds a run.\n\n{cost_table(rows)}")
    parts.append("Unrounded numbers, settings and versions are in results.json.")
    return "\n\n".join(parts) + "\n"


def _caption(rows: Sequence[dict[str, Any]]) -> str:
    caption = (
        "In percent; ± is the standard deviation over runs: draws of the labels with few, seeds with the full "
        "training set. The best of a column is bold, which does not say that it is better: see the differences."
    )
    if "per_label_f1" in (rows[0] if rows else {}):
        caption += " Share of documents with all labels right: accuracy in results.json."
    return caption


def versions() -> dict[str, str | None]:
    """Python and the libraries that numbers can depend on; None for those that are not installed."""
    found: dict[str, str | None] = {"python": python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _plain(value: Any) -> Any:
    """What JSON can hold: no numpy, no NaN, no infinity; anything else as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _write(path: Path, text: str) -> None:
    """Under another name first, so that a reader, or a kill, never meets half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8", errors="replace")
    os.replace(temporary, path)


# Curves


def plot_few_shot(rows: Sequence[dict[str, Any]], path: str | Path) -> bool:
    """Accuracy and macro-F1 over the number of labels per class as PNG (Figure 2 of the DocSplit paper, v2).

    One column of panels for each head, one line for each encoder, a band of one standard deviation over the draws;
    the full training set as a separate point on the right.

    Returns: False, and nothing is drawn or left from an earlier run, if no row has few labels.
    """
    few = [row for row in rows if row["shots"] is not None]
    if not few:
        Path(path).unlink(missing_ok=True)
        return False
    heads, shots = _unique(_head(row) for row in few), sorted({row["shots"] for row in few})
    shown = [row for row in rows if _head(row) in heads]
    names = short_names(row["encoder"] for row in rows)
    full = shots[-1] * (max(shots[-1] / shots[-2], 1.6) if len(shots) > 1 else 2)  # where the full set is drawn
    ticks = {shot: str(shot) for shot in shots}
    if any(row["shots"] is None for row in shown):
        ticks[full] = "all"
    size = (1.8 + 3.4 * len(heads), 6)
    figure, axes = plt.subplots(
        2, len(heads), figsize=size, squeeze=False, sharex=True, sharey="row", layout="constrained"
    )
    for line, measure in zip(axes, _measures(rows)):
        line[0].set_ylabel(f"{NUMBERS[measure]} (%)")
        for axis, head in zip(line, heads):
            for number, encoder in enumerate(names):
                own = [row for row in shown if (row["encoder"], _head(row)) == (encoder, head)]
                shift = 2 ** (SHIFT * (number - (len(names) - 1) / 2))
                _curve(axis, own, measure, full, shift, label=names[encoder], **_style(number))
            if full in ticks:
                axis.axvline((full * shots[-1]) ** 0.5, color="0.8", linewidth=0.8)
            axis.grid(alpha=0.3)
    for above, below, head in zip(*axes, heads):
        above.set_title(head)
        below.set_xscale("log", base=2)
        below.set_xlabel("labels per class")
        below.xaxis.set_minor_locator(NullLocator())
        below.set_xticks(list(ticks), list(ticks.values()))
    handles = {text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _style(number: int) -> dict[str, Any]:
    """A colour and a marker for each encoder; colours come back after ten, with another line."""
    return {
        "color": f"C{number % 10}",
        "marker": "osD^vPX<>p"[number % 10],
        "linestyle": ("-", "--", ":")[number // 10 % 3],
        "markersize": 5,
    }


def _curve(axis: Any, rows: list[dict[str, Any]], measure: str, full: float, shift: float, **style: Any) -> None:
    """Mean and band over the numbers of labels, and the full training set at x = `full`.

    A single point, which a band cannot surround, has an error bar, a little (factor `shift`) beside those of others.
    """
    few = sorted((row for row in rows if row["shots"] is not None), key=lambda row: row["shots"])
    if len(few) > 1:
        mean, spread = (np.array([100 * row[f"{measure}_{part}"] for row in few]) for part in ("mean", "std"))
        shots = [row["shots"] for row in few]
        axis.plot(shots, mean, **style)
        axis.fill_between(shots, mean - spread, mean + spread, color=style["color"], alpha=0.1, linewidth=0)
    for row in rows:
        if row["shots"] is None or len(few) == 1:
            point, spread = 100 * row[f"{measure}_mean"], 100 * row[f"{measure}_std"]
            x = shift * (full if row["shots"] is None else row["shots"])
            yerr = [spread] if row["runs"] > 1 else None
            changed = {"linestyle": "", "markersize": 4, "label": None if len(few) > 1 else style["label"]}
            axis.errorbar([x], [point], yerr=yerr, capsize=2, **style | changed)
