"""Encoders side by side: one row for each `Result`, and a paired test for each two encoders.

All results of an evaluation were measured on the same test items, so these are drawn once for all of them, and what a
column means is stated by their `Task`: the same few lines serve classes, links and whatever comes.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from docsplit.data.seen_documents import SHARES
from docsplit.evaluation.metrics import ItemScores, interval, paired_bootstrap, resample
from docsplit.evaluation.results import Result


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each result: means and standard deviations (numpy's, of the runs themselves) over runs.

    For a measure NAME the row has `NAME_mean`, `NAME_std` and, where the test items are known, `NAME_low` and
    `NAME_high`: the 95 % bootstrap interval over test items of the mean over runs. Details are means over those runs
    that have the label, None where none has.

    Raises:
        ValueError: if the results are of several tasks, or of different test items.
    """
    _check_one_task(results)
    table = [_row(result) for result in results]
    for measure in results[0].task.measures if results else ():
        known = [(row, result.measured[measure]) for row, result in zip(table, results)]
        with_items = [(row, measured) for row, measured in known if isinstance(measured, ItemScores)]
        for (row, _), resampled in zip(with_items, resample([measured for _, measured in with_items])):
            row[f"{measure}_low"], row[f"{measure}_high"] = interval(resampled)
    return table


def _check_one_task(results: Sequence[Result]) -> None:
    if any(result.task != results[0].task for result in results):
        names = sorted({result.task.name for result in results})
        raise ValueError(f"These results are of several tasks ({', '.join(names)}): compare those of one at a time.")


def _row(result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {"encoder": result.encoder, "head": result.head, "shots": result.shots}
    for measure in result.task.measures:
        values = result.of_runs(measure)
        row |= {f"{measure}_mean": float(np.mean(values)), f"{measure}_std": float(np.std(values))}
    row |= {"runs": result.runs, "seconds": result.seconds, "trainable_parameters": result.trainable_parameters}
    row["trainable_share"] = _trainable_share(result)
    row["features"] = result.features
    info = dict.fromkeys(SHARES) | result.info  # a baseline was not pretrained
    row |= {name: value for name, value in info.items() if name not in row}
    return row | {
        name: {label: _mean_of_known(values) for label, values in details.items()}
        for name, details in result.details.items()
    }


def _mean_of_known(values: np.ndarray) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _trainable_share(result: Result) -> float | None:
    """Trained parameters / those of encoder and head together; None where there are none, or none are known."""
    encoder = result.info.get("num_parameters")
    if encoder is None:
        return None
    head = 0 if result.trains_encoder else result.trainable_parameters
    total = max(encoder + head, result.trainable_parameters)
    return result.trainable_parameters / total if total else None


def comparisons(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A paired bootstrap for each two encoders with the same head, number of labels and features.

    The measure is the main one of the task. Baselines, which are heads without an encoder, are compared with the head
    `baseline_opponent` of every encoder.

    Returns: `head`, `shots`, `features`, `a`, `b` (encoders), `measure`, and `difference` (a - b), `low`, `high`,
        `p_value` as `docsplit.evaluation.metrics.paired_bootstrap` gives them, not corrected for their number.

    Raises:
        ValueError: if the results are of several tasks, or of different test items.
    """
    _check_one_task(results)
    resampled = resample([result.main_items for result in results])
    found = []
    for one, two in combinations(range(len(results)), 2):
        if results[one].is_baseline:
            one, two = two, one  # the encoder first
        a, b = results[one], results[two]
        if not _are_compared(a, b):
            continue
        found.append(
            {
                "head": a.head,
                "shots": a.shots,
                "features": a.features,
                "a": a.encoder,
                "b": b.encoder,
                "measure": a.task.main,
                **paired_bootstrap(resampled[one], resampled[two]),
            }
        )
    return found


def _are_compared(a: Result, b: Result) -> bool:
    against_baseline = a.head == a.task.baseline_opponent and b.is_baseline
    same = (a.head, a.features) == (b.head, b.features) or against_baseline
    return same and a.shots == b.shots and a.encoder != b.encoder
