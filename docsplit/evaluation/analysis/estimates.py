"""Numbers of an encoder that have an interval over documents, and what two encoders differ by on the same documents.

An analysis gives each number as a `Resampled`: its value, and its values on sets of documents drawn with replacement.
The sets are the same for all encoders (`docsplit.evaluation.results.bootstrap.item_draws`), so that differences are
paired.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations

import numpy as np
import pandas as pd

from docsplit.evaluation.results.bootstrap import Resampled, interval, item_draws, paired_bootstrap, sample_deviation
from docsplit.evaluation.results.report import Json, plain
from docsplit.evaluation.results.result import Facts


@dataclass(frozen=True)
class Estimates:
    """What an analysis measured of one encoder, or of several that differ in their pretraining seed alone."""

    encoder: str
    values: dict[str, Resampled]
    facts: Facts = field(default_factory=dict)
    members: tuple[str, ...] = ()


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


def merge_estimates(name: str, members: Sequence[str], parts: Sequence[Estimates]) -> Estimates:
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
    facts = {}
    for key, first in parts[0].facts.items():
        all_facts = [part.facts[key] for part in parts]
        facts[key] = first if all(fact == first for fact in all_facts) else all_facts
    return Estimates(name, values, facts, tuple(members))


def columns_of(values: Mapping[str, Resampled]) -> Json:
    """Return each number as columns: NAME_mean, and NAME_low and NAME_high, its 95 % interval."""
    columns: Json = {}
    for name, value in values.items():
        low, high = interval(value, is_share=name.endswith("share") or name.startswith("auc"))
        columns |= {f"{name}_mean": float(value.scores.mean()), f"{name}_low": low, f"{name}_high": high}
    return columns


def over_seeds(name: str, values: np.ndarray) -> Json:
    """Return the columns of a number's spread over several members, NAME_std and NAME_of_seeds; none of one."""
    if len(values) < 2:
        return {}
    return {f"{name}_std": sample_deviation(values), f"{name}_of_seeds": values.tolist()}


def rows_of(measured: Iterable[Estimates]) -> pd.DataFrame:
    """Return a row an encoder: its facts, and each number with its 95 % interval and its spread over seeds."""
    rows = []
    for one in measured:
        row = {"encoder": one.encoder, "members": list(one.members), **one.facts, **columns_of(one.values)}
        for name, value in one.values.items():
            row |= over_seeds(name, value.scores) if len(one.members) > 1 else {}
        rows.append(row)
    return pd.DataFrame(plain(rows), dtype=object)


def differences(all_estimates: Iterable[Estimates], measures: Sequence[str]) -> list[Json]:
    """Compare each two encoders that have a measure by `paired_bootstrap` over documents.

    Beside the difference a - b stands the `ratio` a / b with its interval, where both and their samples are above 0:
    that of the difference of logarithms, so that it is over pretraining seeds, too.
    """
    compared = []
    for a, b in combinations(all_estimates, 2):
        for measure in measures:
            if measure in a.values and measure in b.values:
                pair = a.values[measure], b.values[measure]
                ratios = dict(zip(("ratio", "ratio_low", "ratio_high"), _ratio(*pair)))
                names = {"a": a.encoder, "b": b.encoder, "measure": measure}
                compared.append(names | asdict(paired_bootstrap(*pair)) | ratios)
    return compared


def _ratio(a: Resampled, b: Resampled) -> tuple[float | None, float | None, float | None]:
    """Return a / b and the ends of its interval, or nothing where one of them is not above 0."""
    if min(part.min() for system in (a, b) for part in (system.scores, system.samples)) <= 0:
        return None, None, None
    logs = []
    for system in (a, b):  # of the scores, and of the mean over seeds in each set of documents
        means = np.log(system.samples.mean(axis=1, keepdims=True))
        logs.append(Resampled(np.log(system.scores), np.broadcast_to(means, system.samples.shape), system.seeds))
    found = paired_bootstrap(logs[0], logs[1])
    return float(a.scores.mean() / b.scores.mean()), float(np.exp(found.low)), float(np.exp(found.high))


def mean_row(encoder: str, members: Sequence[str], values: Sequence[Mapping[str, float]]) -> Json:
    """Return a row of numbers without interval: of one encoder, or means over several and their deviations."""
    row: Json = {"encoder": encoder, "members": list(members) if list(members) != [encoder] else []}
    for name in values[0]:
        of_members = np.array([own[name] for own in values])
        row |= {f"{name}_mean": float(of_members.mean())} | over_seeds(name, of_members)
    return row
