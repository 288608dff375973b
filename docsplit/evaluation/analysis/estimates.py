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


@dataclass(frozen=True)
class Estimates:
    """What an analysis measured of one encoder, or of several that differ in their pretraining seed alone."""

    encoder: str
    values: dict[str, Resampled]
    facts: dict[str, Any] = field(default_factory=dict)  # counts and settings, copied into the row
    members: tuple[str, ...] = ()


def over_documents(parts: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Resampled]:
    """Ratios of sums over documents: of each name the numerators and denominators (D,) of the same documents.

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
    """The estimates of encoders from several pretraining seeds, as one of that name; of the encoder itself its own.

    Of facts that differ, all are kept, in the order of the members.
    """
    if [name] == list(members):
        return parts[0]
    values = {}
    for key in parts[0].values:
        own = [part.values[key] for part in parts]
        scores, samples = (
            np.concatenate([getattr(one, kind) for one in own], axis=-1) for kind in ("scores", "samples")
        )
        values[key] = Resampled(scores, samples, seeds=len(members))
    facts = {key: _one_or_all([part.facts[key] for part in parts]) for key in parts[0].facts}
    return Estimates(name, values, facts, tuple(members))


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values


def row_of(estimates: Estimates) -> dict[str, Any]:
    """`encoder`, the facts, and of each number NAME_mean, NAME_low and NAME_high (95 %), and over seeds NAME_std."""
    row: dict[str, Any] = {"encoder": estimates.encoder, "members": list(estimates.members), **estimates.facts}
    for name, value in estimates.values.items():
        low, high = interval(value, is_share=name.endswith("share") or name.startswith("auc"))
        row |= {f"{name}_mean": float(value.scores.mean()), f"{name}_low": low, f"{name}_high": high}
        if len(estimates.members) > 1:
            row |= {f"{name}_std": sample_deviation(value.scores), f"{name}_of_seeds": value.scores.tolist()}
    return row


def differences(all_estimates: Iterable[Estimates], measures: Sequence[str]) -> list[dict[str, Any]]:
    """A paired bootstrap over documents for each two encoders that have a measure, as `paired_bootstrap` gives it.

    Beside the difference a - b stands the `ratio` a / b with its interval, where both and their samples are above 0:
    that of the difference of logarithms, so that it is over pretraining seeds, too.
    """
    found = []
    for a, b in combinations(all_estimates, 2):
        for measure in measures:
            if measure in a.values and measure in b.values:
                pair = a.values[measure], b.values[measure]
                found.append(
                    {
                        "a": a.encoder,
                        "b": b.encoder,
                        "measure": measure,
                        **asdict(paired_bootstrap(*pair)),
                        **_ratio(*pair),
                    }
                )
    return found


def _ratio(a: Resampled, b: Resampled) -> dict[str, float | None]:
    if min(part.min() for one in (a, b) for part in (one.scores, one.samples)) <= 0:
        return dict.fromkeys(("ratio", "ratio_low", "ratio_high"))
    logs = paired_bootstrap(_logarithms(a), _logarithms(b))
    ratio = float(a.scores.mean() / b.scores.mean())
    return {"ratio": ratio, "ratio_low": float(np.exp(logs.low)), "ratio_high": float(np.exp(logs.high))}


def _logarithms(system: Resampled) -> Resampled:
    """Of the scores, and of the mean over seeds in each set of documents."""
    means = np.log(system.samples.mean(axis=1, keepdims=True))
    return Resampled(np.log(system.scores), np.broadcast_to(means, system.samples.shape), system.seeds)


def mean_row(encoder: str, members: Sequence[str], values: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """A row of numbers without interval: of one encoder, or means over several and their standard deviations."""
    row: dict[str, Any] = {"encoder": encoder, "members": list(members) if list(members) != [encoder] else []}
    for name in values[0]:
        own = np.array([one[name] for one in values])
        row[f"{name}_mean"] = float(own.mean())
        if len(members) > 1:
            row |= {f"{name}_std": sample_deviation(own), f"{name}_of_seeds": own.tolist()}
    return row
