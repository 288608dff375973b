"""Encoders side by side: one row for each `Result`, and a paired test for each two encoders.

All results of an evaluation were measured on the same test items, so these are drawn once for all of them. The `Task`
says how a measure is computed: the same few lines serve classes, links and rank correlations.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from docsplit.data.seen_documents import SHARES
from docsplit.evaluation.results.bootstrap import (
    holm,
    interval,
    paired_bootstrap,
    paired_randomisation,
    resample,
    sample_deviation,
)
from docsplit.evaluation.results.items import Items, ratio_of_sums
from docsplit.evaluation.results.records import Comparison, Measured, Row
from docsplit.evaluation.results.result import Result


def rows(results: Sequence[Result]) -> list[Row]:
    """One row for each result: means and standard deviations (of a sample: ddof 1).

    Where the test items are known, a measure has the 95 % bootstrap interval over test items (and pretraining seeds)
    of the mean over runs. The deviation is over runs, None for a single one. With several pretraining seeds it is over
    these, `std_runs` is over the runs within one, and `of_seeds` has the mean of each of the `members`. Details are
    means over those runs that have the label, None where none has.

    Raises:
        ValueError: if the results are of several tasks, or of different test items.
    """
    _check_one_task(results)
    measures: list[dict[str, Measured]] = [{} for _ in results]
    for measure in results[0].task.measures if results else ():
        for result, measured, ends in zip(results, measures, _intervals(results, measure)):
            measured[measure] = replace(_spread(result, measure), low=ends[0], high=ends[1])
    return [_row(result, measured) for result, measured in zip(results, measures)]


def _check_one_task(results: Sequence[Result]) -> None:
    if any(result.task != results[0].task for result in results):
        names = sorted({result.task.name for result in results})
        raise ValueError(f"These results are of several tasks ({', '.join(names)}): compare those of one at a time.")


def _intervals(results: Sequence[Result], measure: str) -> list[tuple[float | None, float | None]]:
    """Return the interval of a measure of each result; None where it has no test items."""
    statistic = results[0].task.statistic(measure)
    with_items = [result for result in results if isinstance(result.measured[measure], Items)]
    resampled = resample(
        [result.items(measure) for result in with_items],
        pretraining_seeds=[result.pretraining_seeds or 1 for result in with_items],
        statistic=statistic,
    )
    intervals = iter([interval(system, is_share=statistic is ratio_of_sums) for system in resampled])
    return [next(intervals) if isinstance(result.measured[measure], Items) else (None, None) for result in results]


def _row(result: Result, measures: dict[str, Measured]) -> Row:
    num_items = result.main_items.size
    return Row(
        result.task,
        result.encoder,
        result.head,
        result.shots,
        result.runs,
        measures,
        result.features,
        result.preset,
        result.pretraining_seeds,
        test_documents=num_items if result.task.items == "documents" else result.test_documents or num_items,
        test_items=num_items,
        warning=result.warning,
        members=result.members,
        seconds=result.seconds,
        trainable_parameters=result.trainable_parameters,
        trainable_share=_trainable_share(result),
        validation_curves=result.curves,
        facts=dict.fromkeys(SHARES) | result.info,  # a baseline was not pretrained
        details={
            name: {label: _mean_of_known(values) for label, values in details.items()}
            for name, details in result.details.items()
        },
    )


def _spread(result: Result, measure: str) -> Measured:
    """Mean and standard deviation, over runs, or over pretraining seeds and within them."""
    values = result.of_runs(measure)
    if len(result.members) < 2:
        return Measured(float(values.mean()), sample_deviation(values))
    seeds, runs = result.of_seeds(measure), values.reshape(len(result.members), -1)
    within = float(np.sqrt(runs.var(axis=1, ddof=1).mean())) if runs.shape[1] > 1 else None
    return Measured(float(values.mean()), sample_deviation(seeds), within, seeds.tolist())


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


def comparisons(results: Sequence[Result]) -> list[Comparison]:
    """Return a paired test for each two encoders with the same head, number of labels and features.

    The measure is the main one of the task. Baselines, which are heads without an encoder, are compared with the head
    `baseline_opponent` of every encoder; and where the task names `head_pairs`, so are these, of one encoder or with a
    baseline. Intervals are the paired bootstrap's. So is p, unless the task asks for randomisation, which is corrected
    for the number of comparisons (Holm).

    Raises:
        ValueError: if the results are of several tasks, or of different test items.
    """
    if not results:
        return []
    _check_one_task(results)
    task = results[0].task
    seeds = [result.pretraining_seeds for result in results]
    items, counts = [result.main_items for result in results], [count or 1 for count in seeds]
    resampled = resample(items, pretraining_seeds=counts, statistic=task.statistic(task.main))
    compared = []
    for first, second in combinations(range(len(results)), 2):
        pair = (results[second].head, results[first].head)
        if pair in task.head_pairs or (results[first].is_baseline and not results[second].is_baseline):
            first, second = second, first  # as the task names them, the encoder first
        a, b = results[first], results[second]
        if not _are_compared(a, b):
            continue
        difference = paired_bootstrap(resampled[first], resampled[second])
        if task.paired_test == "randomisation":
            difference = replace(difference, p_value=paired_randomisation(items[first], items[second]))
        heads = (a.head, b.head) if task.head_pairs else None
        kind, both = (a.head, a.shots, a.features), (seeds[first], seeds[second])
        compared.append(Comparison(*kind, a.encoder, b.encoder, task.main, difference, both, heads))
    if task.paired_test == "randomisation":
        corrected = holm([comparison.difference.p_value for comparison in compared])
        compared = [replace(comparison, p_holm=p) for comparison, p in zip(compared, corrected)]
    return compared


def _are_compared(a: Result, b: Result) -> bool:
    if a.shots != b.shots:
        return False
    if (a.head, b.head) in a.task.head_pairs and (b.is_baseline or a.encoder == b.encoder):
        return True
    against_baseline = a.head == a.task.baseline_opponent and b.is_baseline
    return ((a.head, a.features) == (b.head, b.features) or against_baseline) and a.encoder != b.encoder
