"""Encoders side by side: one row for each `Result`, and a paired test for each two encoders.

All results of an evaluation were measured on the same test items, so these are drawn once for all of them, and what a
column means is stated by their `Task`: the same few lines serve classes, links and whatever comes.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from docsplit.data.seen_documents import SHARES
from docsplit.evaluation.results.metrics import (
    ItemScores,
    holm,
    interval,
    is_clear,
    paired_bootstrap,
    paired_randomisation,
    resample,
    sample_deviation,
)
from docsplit.evaluation.results.result import Result


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each result: means and standard deviations (of a sample: ddof 1).

    For a measure NAME the row has `NAME_mean`, `NAME_std` and, where the test items are known, `NAME_low` and
    `NAME_high`: the 95 % bootstrap interval over test items (and pretraining seeds) of the mean over runs. The
    deviation is over runs, None for a single one. With several pretraining seeds it is over these, `NAME_std_runs` is
    over the runs within one, and `NAME_of_seeds` has the mean of each of the `members`. Details are means over those
    runs that have the label, None where none has.

    Raises:
        ValueError: if the results are of several tasks, or of different test items.
    """
    _check_one_task(results)
    table = [_row(result) for result in results]
    for measure in results[0].task.measures if results else ():
        with_items = [
            (row, result.pretraining_seeds or 1, measured)
            for row, result in zip(table, results)
            if isinstance(measured := result.measured[measure], ItemScores)
        ]
        resampled = resample([items for _, _, items in with_items], pretraining_seeds=[n for _, n, _ in with_items])
        for (row, _, _), samples in zip(with_items, resampled):
            row[f"{measure}_low"], row[f"{measure}_high"] = interval(samples)
    return table


def _check_one_task(results: Sequence[Result]) -> None:
    if any(result.task != results[0].task for result in results):
        names = sorted({result.task.name for result in results})
        raise ValueError(f"These results are of several tasks ({', '.join(names)}): compare those of one at a time.")


def _row(result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {"encoder": result.encoder, "head": result.head, "shots": result.shots}
    row |= {"features": result.features, "preset": result.preset}
    row |= {"pretraining_seeds": result.pretraining_seeds, "runs": result.runs}
    row["test_documents"] = result.test_documents or result.main_items.numerators.shape[1]
    row |= {f"test_{result.task.items}": result.main_items.numerators.shape[1]}
    row["warning"] = result.warning
    for measure in result.task.measures:
        row |= _spread(measure, result)
    if result.members:
        row["members"] = list(result.members)
    row |= {"seconds": result.seconds, "trainable_parameters": result.trainable_parameters}
    row["trainable_share"] = _trainable_share(result)
    if result.curves:
        row["validation_curves"] = result.curves
    info = dict.fromkeys(SHARES) | result.info  # a baseline was not pretrained
    row |= {name: value for name, value in info.items() if name not in row}
    return row | {
        name: {label: _mean_of_known(values) for label, values in details.items()}
        for name, details in result.details.items()
    }


def _spread(measure: str, result: Result) -> dict[str, Any]:
    """Mean and standard deviation, over runs, or over pretraining seeds and within them."""
    values = result.of_runs(measure)
    if len(result.members) < 2:
        return {f"{measure}_mean": float(values.mean()), f"{measure}_std": sample_deviation(values)}
    seeds, runs = result.of_seeds(measure), values.reshape(len(result.members), -1)
    within = np.sqrt(runs.var(axis=1, ddof=1).mean()) if runs.shape[1] > 1 else None
    return {
        f"{measure}_mean": float(values.mean()),
        f"{measure}_std": sample_deviation(seeds),
        f"{measure}_std_runs": None if within is None else float(within),
        f"{measure}_of_seeds": seeds.tolist(),
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
    """A paired test for each two encoders with the same head, number of labels and features.

    The measure is the main one of the task. Baselines, which are heads without an encoder, are compared with the head
    `baseline_opponent` of every encoder; and where the task names `head_pairs`, so are these, of one encoder or with a
    baseline. Intervals are the paired bootstrap's. So is p, unless the task asks for randomisation, which is corrected
    for the number of comparisons (Holm).

    "Ahead" is one of them where the difference is clear (`is_clear`) and neither is a single pretraining run: another
    seed may turn a difference between two of these round, and the test items know nothing of it.

    Returns: `head`, `shots`, `features`, `a`, `b` (encoders), `measure`, and `difference` (a - b), `low`, `high`,
        `p_value` as `docsplit.evaluation.results.metrics.paired_bootstrap` gives them, not corrected for their
        number, or that of `paired_randomisation` with `p_holm`; `heads` of both where the task has pairs of them;
        `pretraining_seeds` of both (None where nothing was pretrained) and `ahead`, a, b or None.

    Raises:
        ValueError: if the results are of several tasks, or of different test items.
    """
    _check_one_task(results)
    seeds = [result.pretraining_seeds for result in results]
    resampled = resample([result.main_items for result in results], pretraining_seeds=[count or 1 for count in seeds])
    found = []
    for one, two in combinations(range(len(results)), 2):
        pair = (results[two].head, results[one].head)
        if pair in results[one].task.head_pairs or (results[one].is_baseline and not results[two].is_baseline):
            one, two = two, one  # as the task names them, the encoder first
        a, b = results[one], results[two]
        if not _are_compared(a, b):
            continue
        measured: dict[str, Any] = paired_bootstrap(resampled[one], resampled[two])
        if a.task.paired_test == "randomisation":
            measured["p_value"] = paired_randomisation(a.main_items, b.main_items)
        if a.task.head_pairs:
            measured["heads"] = [a.head, b.head]
        found.append(
            {
                "head": a.head,
                "shots": a.shots,
                "features": a.features,
                "a": a.encoder,
                "b": b.encoder,
                "measure": a.task.main,
                **measured,
                "pretraining_seeds": [seeds[one], seeds[two]],
            }
        )
    if results and results[0].task.paired_test == "randomisation":
        for row, p_value in zip(found, holm([row["p_value"] for row in found])):
            row["p_holm"] = p_value
    for row in found:
        is_ahead = is_clear(row) and 1 not in row["pretraining_seeds"]
        row["ahead"] = (row["a"] if row["difference"] > 0 else row["b"]) if is_ahead else None
    return found


def _are_compared(a: Result, b: Result) -> bool:
    if a.shots != b.shots:
        return False
    if (a.head, b.head) in a.task.head_pairs and (b.is_baseline or a.encoder == b.encoder):
        return True
    against_baseline = a.head == a.task.baseline_opponent and b.is_baseline
    return ((a.head, a.features) == (b.head, b.features) or against_baseline) and a.encoder != b.encoder
