"""Figures of runs and results, as PNG files: no screen is needed."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from docsplit.evaluation.results.report import Json, head_name, names_of, records
from docsplit.evaluation.results.result import Task
from docsplit.runtime.files import write_text, write_whole

matplotlib.use("Agg")  # no screen needed
SHIFT = 0.045  # between the points of two encoders at the same number of labels, in doublings


def save_plot(figure: Any, path: Path, header: Sequence[str] = (), rows: Iterable[Sequence[Any]] = ()) -> None:
    """Write a figure as PNG and, where there is a header, what it shows as CSV beside it, each whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda to: figure.savefig(to, format="png", dpi=130, metadata={"Software": None}))
    plt.close(figure)
    if header:
        write_csv(path.with_suffix(".csv"), header, rows)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as CSV, whole or not at all."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(header)
    table.writerows(rows)
    write_text(path, written.getvalue())


def style(number: int) -> dict[str, Any]:
    """Return a colour and a marker for each encoder; colours come back after ten, with another line."""
    marker, line = "osD^vPX<>p"[number % 10], ("-", "--", ":")[number // 10 % 3]
    return {"color": f"C{number % 10}", "marker": marker, "linestyle": line, "markersize": 5}


def _draw_line(axis: Any, x: Any, mean: np.ndarray, deviation: np.ndarray, look: dict[str, Any]) -> None:
    """Draw a line with a band of one deviation."""
    axis.plot(x, mean, **look)
    axis.fill_between(x, mean - deviation, mean + deviation, color=look["color"], alpha=0.1, linewidth=0)


def plot_few_shot(frame: pd.DataFrame, task: Task, path: Path) -> bool:
    """Plot the task's measures over the number of labels per class as PNG (Figure 2 of the DocSplit paper, v2).

    The main measure on raw features, a panel a head; one line for each encoder, a band of one standard deviation over
    the draws, or over pretraining seeds where there are several; the full training set is a point on the right.

    Returns: False, and nothing is drawn or left from an earlier run, if no row has few labels.
    """
    listed, names = [row for row in records(frame) if row["features"] == "raw"], names_of(frame)
    heads = list(dict.fromkeys(head_name(row) for row in listed if row["shots"] is not None))
    if not heads:
        path.unlink(missing_ok=True)
        return False
    shown = [row for row in listed if head_name(row) in heads]
    shots = sorted({row["shots"] for row in shown} - {None})
    full = shots[-1] * (max(shots[-1] / shots[-2], 1.6) if len(shots) > 1 else 2)  # where the full set is drawn
    has_full = any(row["shots"] is None for row in shown)
    size = (1.8 + 3.2 * len(heads), 3.2)
    figure, axes = plt.subplots(1, len(heads), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, head in zip(axes.flat, heads):
        for number, encoder in enumerate(names):
            own = [row for row in shown if (row["encoder"], head_name(row)) == (encoder, head)]
            shift = 2 ** (SHIFT * (number - (len(names) - 1) / 2))
            _draw_curve(axis, own, task.main, full, shift, style(number) | {"label": names[encoder]})
        if has_full:
            axis.axvline((full * shots[-1]) ** 0.5, color="0.8", linewidth=0.8)
        axis.grid(alpha=0.3)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks([*shots, *[full][:has_full]], [*map(str, shots), *["all"][:has_full]])
        axis.set(title=head, xlabel="labels per class")
    axes[0, 0].set_ylabel(f"{task.measures[task.main]} (%)")
    handles = {text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    save_plot(figure, path)
    return True


def _draw_curve(
    axis: Any, rows: Sequence[Json], measure: str, full: float, shift: float, look: dict[str, Any]
) -> None:
    """Draw means over the numbers of labels, and the full training set at x = `full`.

    A single point, which a band cannot surround, has an error bar, a little (factor `shift`) beside those of others.
    """
    points = [(row["shots"], 100 * row[f"{measure}_mean"], 100 * (row[f"{measure}_std"] or 0.0)) for row in rows]
    few = sorted(point for point in points if point[0] is not None)
    if len(few) > 1:
        shots, means, deviations = map(np.array, zip(*few))
        _draw_line(axis, shots, means, deviations, look)
    for number, mean, deviation in points:
        if number is None or len(few) == 1:
            x = shift * (full if number is None else number)
            changed = {"linestyle": "", "markersize": 4, "label": None if len(few) > 1 else look["label"]}
            axis.errorbar([x], [mean], yerr=[deviation] if deviation else None, capsize=2, **look | changed)


def plot_convergence(frame: pd.DataFrame, task: Task, path: Path) -> bool:
    """Fine-tuning on the validation part, epoch by epoch, as PNG (graph document model, Figure 5).

    A panel for each measure, a line for each encoder: the mean over runs, with a band of one standard deviation. The
    numbers are `validation_curves` of results.json.

    Returns: False, and nothing is drawn or left from an earlier run, if no row has such curves.
    """
    tuned = [row for row in records(frame) if row.get("validation_curves")]
    if not tuned:
        path.unlink(missing_ok=True)
        return False
    names = names_of(frame)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for axis, measure in zip(axes, ("accuracy", "macro_f1")):
        for number, row in enumerate(tuned):
            curves = row["validation_curves"]
            measured = 100 * np.array([[point[measure] for point in curve] for curve in curves])  # (R, E)
            look = style(number) | {"label": names[row["encoder"]]}
            epochs = [point["epoch"] for point in curves[0]]
            _draw_line(axis, epochs, measured.mean(axis=0), measured.std(axis=0), look)
        axis.set(xlabel="epoch of fine-tuning", ylabel=f"{task.measures[measure]} on validation (%)")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    save_plot(figure, path)
    return True


def plot_ranking(curves: dict[str, dict[str, np.ndarray]], depths: Sequence[int], path: Path) -> None:
    """nDCG and recall over the number of documents read, a line for each encoder and method, as PNG.

    Args:
        curves: of `docsplit.evaluation.ranking.curves`, by what the legend calls them.
        depths: at which they were measured.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for axis, measure, title in zip(axes, ("ndcg", "recall"), ("nDCG", "Recall")):
        for number, (name, values) in enumerate(curves.items()):
            axis.plot(depths, 100 * values[measure], label=name, **style(number) | {"markersize": 3})
        axis.set(xscale="log", xlabel="depth: documents of each list", ylabel=f"{title}@depth (%)", ylim=(0, None))
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize="small")
    save_plot(figure, path)


def loss_parts(log_history: list[dict[str, float]], loss_name: str) -> dict[str, list[tuple[float, float]]]:
    """Label -> (step, value) of each part of the loss: the objective's, masked LM, and those that an objective logs.

    Args:
        loss_name: of the objective's loss, which logs call `contrastive_loss`.
    """
    names = {name for entry in log_history for name in entry if name.endswith("_loss")}
    labels = {"contrastive_loss": loss_name, "mlm_loss": "masked LM"}
    parts = sorted(name for name in names - labels.keys() if not name.startswith(("train_", "eval_")))
    labels |= {name: f"{name.removesuffix('_loss').replace('_', ' ')}, unweighted" for name in parts}
    points = {
        label: [(entry["step"], entry[name]) for entry in log_history if name in entry]
        for name, label in labels.items()
    }
    return {label: values for label, values in points.items() if values}


def plot_training(
    log_history: list[dict[str, float]], results: Json, path: Path, loss_name: str = "contrastive"
) -> None:
    """Loss parts over steps and, where measured, probe accuracy on validation documents beside TF-IDF, as PNG."""
    probed = [entry for entry in log_history if "probe_accuracy" in entry]
    size = (10 if probed else 5.5, 3.8)
    figure, axes = plt.subplots(1, 2 if probed else 1, figsize=size, squeeze=False, layout="constrained")
    for label, points in loss_parts(log_history, loss_name).items():
        axes[0, 0].plot(*zip(*points), label=label)
    axes[0, 0].set(xlabel="step", ylabel="loss", title="Training loss", ylim=(0, None))
    for name, label, color in (("5shot_accuracy", "5 labels a class", "C2"), ("accuracy", "all labels", "C3")):
        if probed:
            steps, values = ([entry[key] for entry in probed] for key in ("step", f"probe_{name}"))
            spreads = [entry.get(f"probe_{name}_std", 0.0) for entry in probed]
            axes[0, 1].errorbar(steps, values, yerr=spreads, fmt="o-", capsize=3, color=color, label=label)
            if (height := results.get(f"tfidf_validation_{name}")) is not None:
                axes[0, 1].axhline(height, color=color, linestyle=":", label=f"TF-IDF, {label}")
            title = "Probe on validation documents, ± std over draws"
            axes[0, 1].set(xlabel="step", ylabel="accuracy", title=title, ylim=(0, 1))
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:  # no loss where the run was shorter than --logging_steps
            axis.legend(fontsize="small")
    save_plot(figure, path)
