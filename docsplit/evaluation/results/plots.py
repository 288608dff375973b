"""Figures of runs and results, as PNG files: no screen is needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullLocator

from docsplit.evaluation.results.records import Json, Row
from docsplit.evaluation.results.tables import names_of, unique
from docsplit.evaluation.results.task import Task
from docsplit.runtime.files import write_text

matplotlib.use("Agg")  # no screen needed
FINETUNING_MEASURES = ("accuracy", "macro_f1")  # of each epoch, on the validation part
SHIFT = 0.045  # between the points of two encoders at the same number of labels, in doublings


def plot_few_shot(rows: Sequence[Row], task: Task, path: str | Path) -> bool:
    """Plot the task's measures over the number of labels per class as PNG (Figure 2 of the DocSplit paper, v2).

    A row of panels for each of the task's columns (accuracy and macro-F1, say), a column of them for each head; one
    line for each encoder, a band of one standard deviation over the draws, or over pretraining seeds where there are
    several; the full training set as a separate point on the right.

    Returns: False, and nothing is drawn or left from an earlier run, if no row has few labels.
    """
    few = [row for row in rows if row.shots is not None]
    if not few:
        Path(path).unlink(missing_ok=True)
        return False
    heads, shots = unique(row.head_name for row in few), sorted({row.shots for row in few if row.shots is not None})
    shown = [row for row in rows if row.head_name in heads]
    names = names_of(rows)
    full = shots[-1] * (max(shots[-1] / shots[-2], 1.6) if len(shots) > 1 else 2)  # where the full set is drawn
    ticks: dict[float, str] = {shot: str(shot) for shot in shots}
    if any(row.shots is None for row in shown):
        ticks[full] = "all"
    shape = (len(task.columns), len(heads))
    size = (1.8 + 3.4 * len(heads), 3 * len(task.columns))
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, sharex=True, sharey="row", layout="constrained")
    for panels, measure in zip(axes, task.columns):
        panels[0].set_ylabel(f"{task.measures[measure]} (%)")
        for axis, head in zip(panels, heads):
            for number, encoder in enumerate(names):
                of_line = [row for row in shown if (row.encoder, row.head_name) == (encoder, head)]
                shift = 2 ** (SHIFT * (number - (len(names) - 1) / 2))
                _curve(axis, of_line, measure, full, shift, label=names[encoder], **_style(number))
            if full in ticks:
                axis.axvline((full * shots[-1]) ** 0.5, color="0.8", linewidth=0.8)
            axis.grid(alpha=0.3)
    for top, below, head in zip(axes[0], axes[-1], heads):
        top.set_title(head)
        below.set_xscale("log", base=2)
        below.set_xlabel("labels per class")
        below.xaxis.set_minor_locator(NullLocator())
        below.set_xticks(list(ticks), list(ticks.values()))
    handles = {text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def plot_convergence(rows: Sequence[Row], task: Task, path: Path) -> bool:
    """Fine-tuning on the validation part, epoch by epoch, as PNG and CSV (graph document model, Figure 5).

    A panel for each measure, a line for each encoder: the mean over runs, with a band of one standard deviation.

    Returns: False, and nothing is drawn or left from an earlier run, if no row has such curves.
    """
    tuned = [row for row in rows if row.validation_curves]
    if not tuned:
        for each in (path, path.with_suffix(".csv")):
            each.unlink(missing_ok=True)
        return False
    names, lines = names_of(tuned), ["encoder,run,epoch,step," + ",".join(FINETUNING_MEASURES)]
    figure, axes = plt.subplots(1, len(FINETUNING_MEASURES), figsize=(10, 3.8), squeeze=False, layout="constrained")
    for number, row in enumerate(tuned):
        curves = row.validation_curves
        for run, curve in enumerate(curves):
            for point in curve:
                values = [f"{point[name]}" for name in ("epoch", "step", *FINETUNING_MEASURES)]
                lines.append(",".join(['"' + row.encoder.replace('"', '""') + '"', f"{run}", *values]))
        epochs = [point["epoch"] for point in curves[0]]
        for axis, measure in zip(axes[0], FINETUNING_MEASURES):
            measured = 100 * np.array([[point[measure] for point in curve] for curve in curves])  # (R, E)
            mean, deviation = measured.mean(axis=0), measured.std(axis=0)
            style = _style(number)
            axis.plot(epochs, mean, label=names[row.encoder], **style)
            axis.fill_between(epochs, mean - deviation, mean + deviation, color=style["color"], alpha=0.1, linewidth=0)
            axis.set(xlabel="epoch of fine-tuning", ylabel=f"{task.measures[measure]} on validation (%)")
            axis.grid(alpha=0.3)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
    write_text(path.with_suffix(".csv"), "\n".join(lines) + "\n")
    return True


def _style(number: int) -> dict[str, Any]:
    """Return a colour and a marker for each encoder; colours come back after ten, with another line."""
    return {
        "color": f"C{number % 10}",
        "marker": "osD^vPX<>p"[number % 10],
        "linestyle": ("-", "--", ":")[number // 10 % 3],
        "markersize": 5,
    }


def _curve(axis: Any, rows: Sequence[Row], measure: str, full: float, shift: float, **style: Any) -> None:
    """Mean and band over the numbers of labels, and the full training set at x = `full`.

    A single point, which a band cannot surround, has an error bar, a little (factor `shift`) beside those of others.
    """
    few = sorted((row for row in rows if row.shots is not None), key=lambda row: row.shots or 0)
    if len(few) > 1:
        mean = np.array([100 * row.measures[measure].mean for row in few])
        deviation = np.array([_spread(row, measure) for row in few])
        shots = [row.shots for row in few]
        axis.plot(shots, mean, **style)
        axis.fill_between(shots, mean - deviation, mean + deviation, color=style["color"], alpha=0.1, linewidth=0)
    for row in rows:
        if row.shots is None or len(few) == 1:
            point, spread = 100 * row.measures[measure].mean, _spread(row, measure)
            x = shift * (full if row.shots is None else row.shots)
            yerr = [spread] if spread else None
            changed = {"linestyle": "", "markersize": 4, "label": None if len(few) > 1 else style["label"]}
            axis.errorbar([x], [point], yerr=yerr, capsize=2, **style | changed)


def _spread(row: Row, measure: str) -> float:
    """Return the standard deviation in points; of a single run none, which is drawn as 0."""
    return 100 * (row.measures[measure].std or 0.0)


def plot_ranking(curves: dict[str, dict[str, np.ndarray]], depths: Sequence[int], path: str | Path) -> None:
    """nDCG and recall over the number of documents read, a line for each encoder and method, as PNG.

    Args:
        curves: of `docsplit.evaluation.ranking.measures.curves`, by what the legend calls them.
        depths: at which they were measured.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for axis, measure, title in zip(axes, ("ndcg", "recall"), ("nDCG", "Recall")):
        for number, (name, values) in enumerate(curves.items()):
            axis.plot(depths, 100 * values[measure], label=name, **_style(number) | {"markersize": 3})
        axis.set(xscale="log", xlabel="depth: documents of each list", ylabel=f"{title}@depth (%)", ylim=(0, None))
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize="small")
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def loss_parts(
    log_history: list[dict[str, float]], loss_name: str = "contrastive"
) -> dict[str, list[tuple[float, float]]]:
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
    figure, axes = plt.subplots(1, 2 if probed else 1, figsize=(10 if probed else 5.5, 3.8), squeeze=False)
    losses = axes[0, 0]
    for label, points in loss_parts(log_history, loss_name).items():
        losses.plot(*zip(*points), label=label)
    losses.set(xlabel="step", ylabel="loss", title="Training loss", ylim=(0, None))
    if losses.lines:  # none where the run was shorter than --logging_steps
        losses.legend()
    if probed:
        axis = axes[0, 1]
        for name, label, color in (("5shot_accuracy", "5 labels a class", "C2"), ("accuracy", "all labels", "C3")):
            spreads = [entry.get(f"probe_{name}_std", 0.0) for entry in probed]
            axis.errorbar(
                [entry["step"] for entry in probed],
                [entry[f"probe_{name}"] for entry in probed],
                yerr=spreads if any(spreads) else None,
                fmt="o-",
                capsize=3,
                color=color,
                label=f"{label} (± std over draws)" if any(spreads) else label,
            )
            if f"tfidf_validation_{name}" in results:
                axis.axhline(results[f"tfidf_validation_{name}"], color=color, linestyle=":", label=f"TF-IDF, {label}")
        axis.set(xlabel="step", ylabel="accuracy", title="Probe of the frozen encoder (validation)", ylim=(0, 1))
        axis.legend(fontsize="small", loc="lower right")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
