"""Encoders side by side: rows of results, paired tests, tables, curves and `results.json`.

What the probe and the retrieval script measured comes in as `Result`s, scores of every run on every test item, so
that all encoders are measured by the same few lines, and compared on the same items.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from docsplit.evaluation import metrics
from docsplit.evaluation.tables import (
    cost_table,
    difference_table,
    encoder_table,
    per_label_table,
    result_tables,
    statistics_table,
)
from docsplit.runtime.files import versions, write_text

matplotlib.use("Agg")  # no screen needed; before pyplot is imported
ENCODER_TRAINED = ("finetune", "setfit")  # heads whose trainable parameters include the encoder's
BASELINE_HEADS = ("bm25", "popularity")  # heads of pairs of papers without any encoder


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


def comparisons(
    results: Sequence[Result], test_labels: np.ndarray, multi_label: bool, baseline_opponent: str = "mlp"
) -> list[dict[str, Any]]:
    """A paired bootstrap for each two encoders with the same head, number of labels and features.

    The measure is accuracy, or micro-F1 where items have several labels. BM25 and popularity, which are heads without
    an encoder, are compared with the head `baseline_opponent` of every encoder.

    Returns: `head`, `shots`, `features`, `a`, `b` (encoders), `measure`, and `difference` (a - b), `low`, `high`,
        `p_value` as `docsplit.evaluation.metrics.paired_bootstrap` gives them, not corrected for their number.

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
    write_text(folder / "results.json", json.dumps(_plain(contents), indent=2, allow_nan=False) + "\n")
    write_text(folder / "results.md", _markdown(rows, comparisons, statistics, title, notes))
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
