"""Numbers of an encoder that have an interval over documents, and what two encoders differ by on the same documents.

An analysis gives each number as a `Resampled`: its value, and its values on sets of documents drawn with replacement.
The sets are the same for all encoders (`docsplit.evaluation.results.bootstrap.item_draws`), so that differences are
paired.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from docsplit.evaluation.results.bootstrap import Resampled, interval, item_draws, paired_bootstrap, sample_deviation

Json = dict[str, Any]  # what analysis.json holds
Facts = dict[str, Any]  # counts and settings that a row has beside its numbers: an open set


@dataclass(frozen=True)
class Estimates:
    """What an analysis measured of one encoder, or of several that differ in their pretraining seed alone."""

    encoder: str
    values: dict[str, Resampled]
    facts: Facts = field(default_factory=dict)
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """One number of a row, the mean over pretraining seeds where there are several."""

    mean: float
    low: float | None = None  # 95 % interval; None: not measured
    high: float | None = None
    std: float | None = None  # over seeds
    of_seeds: list[float] | None = None  # None: not several

    def columns(self, name: str) -> Json:
        """Return the number as columns: NAME_mean, NAME_low and so on, as far as it has them."""
        columns: Json = {f"{name}_mean": self.mean}
        if self.low is not None:
            columns |= {f"{name}_low": self.low, f"{name}_high": self.high}
        if self.of_seeds is not None:
            columns |= {f"{name}_std": self.std, f"{name}_of_seeds": self.of_seeds}
        return columns


@dataclass(frozen=True)
class EstimateRow:
    """What an analysis says of an encoder, or of several that differ in their pretraining seed alone."""

    encoder: str
    members: list[str]
    numbers: dict[str, Estimate]
    facts: Facts = field(default_factory=dict)

    def to_json(self) -> Json:
        """Return encoder and members, the facts, and the columns of each number."""
        row: Json = {"encoder": self.encoder, "members": self.members, **self.facts}
        for name, estimate in self.numbers.items():
            row |= estimate.columns(name)
        return row


@dataclass(frozen=True)
class EncoderDifference:
    """A paired bootstrap over documents of two encoders, a - b, and the ratio a / b where both are above 0."""

    a: str
    b: str
    measure: str
    difference: float
    low: float  # 95 % interval
    high: float
    p_value: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def over_documents(parts: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Resampled]:
    """Compute ratios of sums over documents, each from numerators and denominators (D,) of the same documents.

    A mean over the documents that have a value has 1 as their denominators and 0 as those of the others. A set of
    documents of which none has a value gets that of all.
    """
    above, below = (np.stack([part[side] for part in parts.values()]).astype(np.float64) for side in (0, 1))  # (P, D)
    values = above.sum(axis=1) / below.sum(axis=1)  # (P,)
    samples = []
    for times in item_draws(above.shape[1]):
        sums, weights = times @ above.T, times @ below.T  # (N, P)
        samples.append(np.where(weights > 0, sums / np.where(weights > 0, weights, 1), values))
    drawn = np.concatenate(samples)
    return {name: Resampled(values[[row]], drawn[:, [row]]) for row, name in enumerate(parts)}


def merge_members(name: str, members: Sequence[str], parts: Sequence[Estimates]) -> Estimates:
    """Join the estimates of encoders from several pretraining seeds under one name; an encoder alone stays as it is.

    Where facts differ, all are kept, in the order of the members.
    """
    if [name] == list(members):
        return parts[0]
    values = {}
    for key in parts[0].values:
        resampled = [part.values[key] for part in parts]
        scores, samples = (
            np.concatenate([getattr(member, kind) for member in resampled], axis=-1) for kind in ("scores", "samples")
        )
        values[key] = Resampled(scores, samples, seeds=len(members))
    facts = {key: _one_or_all([part.facts[key] for part in parts]) for key in parts[0].facts}
    return Estimates(name, values, facts, tuple(members))


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values


def row_of(estimates: Estimates) -> EstimateRow:
    """Return the facts, and each number with its 95 % interval and its spread over seeds."""
    numbers = {}
    for name, value in estimates.values.items():
        ends = interval(value, is_share=name.endswith("share") or name.startswith("auc"))
        numbers[name] = Estimate(float(value.scores.mean()), *ends, *_spread(value.scores, estimates.members))
    return EstimateRow(estimates.encoder, list(estimates.members), numbers, estimates.facts)


def _spread(values: np.ndarray, members: Sequence[str]) -> tuple[float | None, list[float] | None]:
    """Return standard deviation and values of several members; nothing of one."""
    return (sample_deviation(values), values.tolist()) if len(members) > 1 else (None, None)


def differences(all_estimates: Iterable[Estimates], measures: Sequence[str]) -> list[EncoderDifference]:
    """Compare each two encoders that have a measure by `paired_bootstrap` over documents.

    Beside the difference a - b stands the `ratio` a / b with its interval, where both and their samples are above 0:
    that of the difference of logarithms, so that it is over pretraining seeds, too.
    """
    compared = []
    for a, b in combinations(all_estimates, 2):
        for measure in measures:
            if measure in a.values and measure in b.values:
                pair = a.values[measure], b.values[measure]
                tested = asdict(paired_bootstrap(*pair))
                ratio, low, high = _ratio(*pair)
                compared.append(
                    EncoderDifference(
                        a.encoder, b.encoder, measure, **tested, ratio=ratio, ratio_low=low, ratio_high=high
                    )
                )
    return compared


def _ratio(a: Resampled, b: Resampled) -> tuple[float | None, float | None, float | None]:
    """Return a / b and the ends of its interval, or nothing where one of them is not above 0."""
    if min(part.min() for system in (a, b) for part in (system.scores, system.samples)) <= 0:
        return None, None, None
    logs = paired_bootstrap(_logarithms(a), _logarithms(b))
    ratio = float(a.scores.mean() / b.scores.mean())
    return ratio, float(np.exp(logs.low)), float(np.exp(logs.high))


def _logarithms(system: Resampled) -> Resampled:
    """Take logarithms of the scores, and of the mean over seeds in each set of documents."""
    means = np.log(system.samples.mean(axis=1, keepdims=True))
    return Resampled(np.log(system.scores), np.broadcast_to(means, system.samples.shape), system.seeds)


def mean_row(encoder: str, members: Sequence[str], values: Sequence[Mapping[str, float]]) -> EstimateRow:
    """Return numbers without interval: of one encoder, or means over several and their standard deviations."""
    numbers = {}
    for name in values[0]:
        of_members = np.array([numbers_of_member[name] for numbers_of_member in values])
        std, of_seeds = _spread(of_members, members)
        numbers[name] = Estimate(float(of_members.mean()), std=std, of_seeds=of_seeds)
    return EstimateRow(encoder, list(members) if list(members) != [encoder] else [], numbers)
