"""Accuracy and F1, with a bootstrap that says how far they can be trusted.

The metrics are `evaluate.Metric`s computed by scikit-learn; nothing is downloaded and nothing is written to disk.

A "run" is one training of a head (one draw of few-shot labels, or one seed), R of them, each measured on the same M
test items. The bootstrap (Efron and Tibshirani, 1993) works on numerators and denominators for each item, (R, M), of
which a run's score is the ratio of the sums: this covers accuracy (correct / 1), micro-F1
(2 tp / (2 tp + fp + fn)) and means over items such as nDCG (nDCG of a query / 1). Macro-F1 is no such ratio and has no
interval here. `resample` draws the items once for all systems; `interval` and `paired_bootstrap` read what it gives.

A system may be S encoders that differ in their pretraining seed alone: then there are R runs of each, seed after seed,
and the bootstrap has two levels, seeds and test items. Without the first a difference between two methods is called
real in 30 % of the cases where there is none, for pretraining runs differ. Items, runs and seeds are crossed: each
item is met by each run of each seed, and each is drawn independently of the others (Owen, 2007).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import evaluate
import numpy as np
from datasets import Features, Value
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

NUM_SAMPLES = 2000
NUM_RANDOMISATIONS = 10_000
CHUNK_DRAWS = 2**21  # items drawn at a time: bounds the memory
DECIMALS = 12  # what a sum in another order may change; differences below that are ties


class ClassificationMetric(evaluate.Metric):
    """Accuracy, macro-F1 and micro-F1 of class indices (M,), or of multi-hot labels (M, C).

    Multi-label: accuracy is the share of items with all labels right, and `per_label_f1` has the F1 of each label.
    Macro-F1 is scikit-learn's over all labels with `zero_division=0`: a label that is neither true nor predicted
    counts as 0 (in `per_label_f1`, which tells it from one that is always wrong, it is NaN). `macro_f1_lexglue`, of
    multi-hot labels, is the same with a column more: 1 where an item has no label (Chalkidis et al., 2022, LexGLUE).

    Args of `compute`:
        num_classes: with class indices, which labels there are; by default those that are true or predicted.
    """

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        kinds = (datasets.Sequence(Value("int8")), Value("int64"))
        return evaluate.MetricInfo(
            description="Accuracy, macro-F1 and micro-F1.",
            citation="",
            inputs_description="predictions, references: class indices, or multi-hot lists.",
            features=[Features({"predictions": kind, "references": kind}) for kind in kinds],
        )

    def _build_data_dir(self) -> str:
        return ""  # the parent would make a folder in the user's cache, which this metric never uses

    def _compute(self, predictions: list, references: list, num_classes: int | None = None) -> dict:
        predicted, true = np.asarray(predictions), np.asarray(references)
        several = true.ndim == 2
        labels = None if several or num_classes is None else np.arange(num_classes)
        values = {
            "accuracy": float(accuracy_score(true, predicted)),
            "macro_f1": float(f1_score(true, predicted, labels=labels, average="macro", zero_division=0)),
            "micro_f1": float(f1_score(true, predicted, average="micro", zero_division=0)),
        }
        if several:
            values["per_label_f1"] = f1_score(true, predicted, average=None, zero_division=np.nan).tolist()
            with_none = [np.column_stack([part, ~part.any(axis=1)]) for part in (true, predicted)]
            values["macro_f1_lexglue"] = float(f1_score(*with_none, average="macro", zero_division=0))
        return values


class LinkMetric(evaluate.Metric):
    """Accuracy, F1 of the links and ROC-AUC for yes/no pairs: predictions and references 0 or 1, and real scores."""

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Accuracy, F1 and ROC-AUC of links.",
            citation="",
            inputs_description="predictions, references: 0 or 1; scores: higher for a link.",
            features=Features(
                {"predictions": Value("int64"), "references": Value("int64"), "scores": Value("float64")}
            ),
        )

    def _build_data_dir(self) -> str:
        return ""  # the parent would make a folder in the user's cache, which this metric never uses

    def _compute(self, predictions: list, references: list, scores: list) -> dict:
        if set(references) != {0, 1}:
            raise ValueError(
                f"Link labels must be 0 and 1, both of them, found {sorted(set(references))}: ROC-AUC needs linked "
                "and unlinked pairs in the test part."
            )
        return {
            "accuracy": float(accuracy_score(references, predictions)),
            "f1": float(f1_score(references, predictions, zero_division=0)),
            "roc_auc": float(roc_auc_score(references, scores)),
        }


def predictions(scores: np.ndarray, multi_label: bool, threshold: float = 0.5) -> np.ndarray:
    """Scores (..., C) to class indices (...,), or for multi-label to 0 or 1, (..., C): 1 from the threshold on.

    Raises:
        ValueError: if a score is NaN.
    """
    if bad := int(np.isnan(scores).any(axis=-1).sum()):
        raise ValueError(
            f"{bad} of {scores[..., 0].size} predictions have a score that is NaN: the embeddings or the training of "
            "the head went wrong; check them before measuring."
        )
    return (scores >= threshold).astype(np.int8) if multi_label else scores.argmax(axis=-1)


@dataclass(frozen=True)
class ItemScores:
    """What each test item adds to the two sides of a score, in each run."""

    numerators: np.ndarray  # (R, M) float32
    denominators: np.ndarray  # (R, M) float32

    def __post_init__(self) -> None:
        shape = self.numerators.shape
        if len(shape) != 2 or shape != self.denominators.shape or not self.numerators.size:
            raise ValueError(
                "Item scores must be numerators and denominators of one shape, runs x test items and neither of them "
                f"0, not {shape} and {self.denominators.shape}."
            )

    def of_runs(self) -> np.ndarray:
        """The score of each run, (R,) float64: the ratio of the sums over test items."""
        return _ratios(self.numerators.sum(axis=1, dtype=np.float64), self.denominators.sum(axis=1, dtype=np.float64))


def accuracy_items(predicted: np.ndarray, references: np.ndarray) -> ItemScores:
    """Correct and 1; with several labels an item is correct if all its labels are.

    Args:
        predicted: (R, M) class indices, or (R, M, C) multi-hot: what `predictions` gives.
        references: (M,) or (M, C).
    """
    correct = predicted == references
    correct = (correct.all(axis=2) if correct.ndim == 3 else correct).astype(np.float32)
    return ItemScores(correct, np.ones_like(correct))


def micro_f1_items(predicted: np.ndarray, references: np.ndarray) -> ItemScores:
    """2 tp and 2 tp + fp + fn of each item's labels.

    Args:
        predicted: (R, M, C) multi-hot.
        references: (M, C) multi-hot.
    """
    both = 2 * (predicted & references).sum(axis=2, dtype=np.float32)
    return ItemScores(both, predicted.sum(axis=2, dtype=np.float32) + references.sum(axis=1, dtype=np.float32))


def _ratios(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """numerators / denominators in float64, 0 where both are 0 (no label true and none predicted)."""
    return numerators / np.where(denominators == 0, 1, denominators).astype(np.float64)


@dataclass(frozen=True)
class Resampled:
    """The scores of a system's S x R runs, seed after seed, on the test items as they are and on N sets of them."""

    scores: np.ndarray  # (S x R,)
    samples: np.ndarray  # (N, S x R)
    seeds: int = 1  # pretraining seeds, S

    @property
    def runs(self) -> int:
        """Trainings of the head on each encoder, R."""
        return len(self.scores) // self.seeds


def resample(
    systems: Sequence[ItemScores],
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
    pretraining_seeds: Sequence[int] | None = None,
) -> list[Resampled]:
    """Scores of each system on `num_samples` sets of M test items drawn with replacement.

    The sets depend on M, `num_samples` and `seed` only, so that all systems meet the same sets.

    Args:
        systems: measured on the same M items; their numbers of runs may differ.
        pretraining_seeds: of each system: its runs are those of so many encoders, one after another. Default: one.

    Raises:
        ValueError: if the systems were measured on different numbers of items.
    """
    if not systems:
        return []
    sizes = list(dict.fromkeys(system.numerators.shape[1] for system in systems))
    if len(sizes) > 1:
        raise ValueError(
            f"A paired test needs the same test items for all systems, found {' and '.join(map(str, sizes))}."
        )
    numerators = np.concatenate([system.numerators for system in systems])  # (all runs, M)
    denominators = np.concatenate([system.denominators for system in systems])
    ends = np.cumsum([len(system.numerators) for system in systems])
    samples = np.split(_sampled_scores(numerators, denominators, num_samples, seed), ends[:-1], axis=1)
    counts = pretraining_seeds or [1] * len(systems)
    return [Resampled(system.of_runs(), drawn, count) for system, drawn, count in zip(systems, samples, counts)]


def item_draws(num_items: int, num_samples: int = NUM_SAMPLES, seed: int = 0) -> Iterator[np.ndarray]:
    """How often each item is in each of `num_samples` sets of so many items, drawn with replacement.

    Yields: (S, num_items) float32, some of the sets at a time, which bounds the memory.
    """
    generator = np.random.default_rng(seed)
    chunk = max(CHUNK_DRAWS // num_items, 1)
    for start in range(0, num_samples, chunk):
        size = min(chunk, num_samples - start)
        drawn = generator.integers(num_items, size=(size, num_items))
        drawn += num_items * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * num_items).reshape(size, num_items).astype(np.float32)


def _sampled_scores(numerators: np.ndarray, denominators: np.ndarray, num_samples: int, seed: int) -> np.ndarray:
    """(R, M) each to the scores (num_samples, R) on items drawn with replacement."""
    above, below = _summable(numerators.T), _summable(denominators.T)
    draws = item_draws(numerators.shape[1], num_samples, seed)
    return np.concatenate([_ratios(times @ above, times @ below) for times in draws])


def _summable(values: np.ndarray) -> np.ndarray:
    """Whole numbers in float32, where their sums are exact; others in float64, where ties stay ties (`DECIMALS`)."""
    return values.astype(np.float32 if (values == np.rint(values)).all() else np.float64)


def interval(system: Resampled, seed: int = 0, is_share: bool = True) -> tuple[float, float]:
    """The 95 % percentile interval of the mean score, over test items and pretraining seeds; the head's runs stay.

    With one seed it is over test items alone.

    Args:
        seed: of the draws of pretraining seeds.
        is_share: scores cannot leave the range from 0 to 1; the interval of two seeds that are far apart would.
    """
    samples = system.samples.mean(axis=1) + _seed_deviations([system], len(system.samples), (seed, 2))
    if is_share and system.samples.min() >= 0 and system.samples.max() <= 1:
        samples = samples.clip(0, 1)
    return _percentiles(samples)


def _percentiles(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the samples."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)


def paired_bootstrap(a: Resampled, b: Resampled, seed: int = 0) -> dict[str, float]:
    """Is system a better than system b on these test items, or is it noise?

    The null hypothesis is that both have the same expected score over test items, over runs and, where a system has
    several, over pretraining seeds. Test items are drawn with replacement, the same for both systems (paired
    bootstrap: Koehn, 2004), and so are the runs: together when both have the same number of them, for they are on the
    same few-shot draws, else each on its own. Of R runs R - 1 are drawn: drawing R would make the spread of so few too
    small (Rao and Wu, 1988). With one run the result holds for that run only, and with one seed for that seed only.
    Seeds of a and b are independent, whatever their order (`_seed_deviations`). Drawing items, runs and seeds
    independently errs on the side of too wide intervals (Owen, 2007).

    Args:
        a, b: of one call of `resample`.
        seed: of the draws of runs and of pretraining seeds.

    Returns: `difference` (mean of a over its runs minus that of b), `low` and `high` (95 % percentile interval) and
        `p_value` (two-sided; twice the share of samples on the other side of 0, at least 2 / (num_samples + 1)).
    """
    generator = np.random.default_rng((seed, 1))  # another stream than that of the items
    if a.runs == b.runs:
        samples = _resample_runs(_over_seeds(a) - _over_seeds(b), generator)
    else:
        samples = _resample_runs(_over_seeds(a), generator) - _resample_runs(_over_seeds(b), generator)
    samples += _seed_deviations([a, b], len(samples), (seed, 2))
    samples = samples.round(DECIMALS)
    low, high = _percentiles(samples)
    other_side = min((samples <= 0).sum(), (samples >= 0).sum())
    return {
        "difference": float(np.round(a.scores.mean() - b.scores.mean(), DECIMALS)),
        "low": low,
        "high": high,
        "p_value": min(1.0, 2 * (1 + int(other_side)) / (1 + len(samples))),
    }


def is_clear(difference: dict[str, Any]) -> bool:
    """Whether the interval leaves 0 out and, where p is corrected for the number of tests, it is below 0.05."""
    leaves_zero_out = difference["low"] > 0 or difference["high"] < 0
    return leaves_zero_out and difference.get("p_holm", 0.0) < 0.05


def paired_randomisation(a: ItemScores, b: ItemScores, num_samples: int = NUM_RANDOMISATIONS, seed: int = 0) -> float:
    """Two-sided p of a difference of two means over items, the systems of each item exchanged at random.

    As information retrieval tests over queries (Smucker et al., 2007). Scores of an item are means over the runs and
    pretraining seeds of a system, which the test takes as they are: what other seeds would give, it does not know.
    """
    differences = (_ratios(a.numerators, a.denominators).mean(axis=0)) - _ratios(b.numerators, b.denominators).mean(
        axis=0
    )
    observed, generator, extreme = abs(differences.sum()), np.random.default_rng(seed), 0
    chunk = max(CHUNK_DRAWS // len(differences), 1)
    for start in range(0, num_samples, chunk):
        size = (min(chunk, num_samples - start), len(differences))
        sums = np.abs((1 - 2 * generator.integers(2, size=size, dtype=np.int8)) @ differences)
        extreme += int((sums >= observed - 10.0**-DECIMALS * max(observed, 1)).sum())
    return (1 + extreme) / (1 + num_samples)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests corrected for their number (Holm, 1979), in their order."""
    order, corrected, largest = np.argsort(p_values, kind="stable"), np.empty(len(p_values)), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected.tolist()


def sample_deviation(values: np.ndarray) -> float | None:
    """The standard deviation of a sample (ddof 1); None of a single value, which has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _over_seeds(system: Resampled) -> np.ndarray:
    """(N, S x R) to the mean over pretraining seeds, (N, R): each of these is on the same runs."""
    return system.samples.reshape(-1, system.seeds, system.runs).mean(axis=1)


def _resample_runs(samples: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(num_samples, R) to the mean over R - 1 runs drawn with replacement, (num_samples,)."""
    num_samples, num_runs = samples.shape
    drawn = max(num_runs - 1, 1)
    times = generator.multinomial(drawn, np.full(num_runs, 1 / num_runs), size=num_samples)
    return (times * samples).sum(axis=1) / drawn


def _seed_deviations(systems: Sequence[Resampled], num_samples: int, seed: tuple[int, int]) -> np.ndarray:
    """How far the mean of one system, or the difference of two, would lie off with other pretraining seeds, (N,).

    A multiplier bootstrap: each seed's deviation from the mean of its system is weighted with a normal number, which
    gives the variance s^2 / S of a mean, with the unbiased s^2. The sum is divided by the root of a chi-squared number
    over its degrees of freedom, which gives Student's t for one system and Welch's (1947) for two: so few seeds say
    little about their own spread. Seeds drawn with replacement do not know that: three of them called 11 % of equal
    systems different at the level of 5 %, and two of them 25 % (simulated). Systems of one seed do not deviate.
    """
    generator = np.random.default_rng(seed)
    total, variances, freedoms = np.zeros(num_samples), [], []
    for system in systems:
        if system.seeds == 1:
            continue
        means = system.scores.reshape(system.seeds, system.runs).mean(axis=1)  # (S,)
        freedoms.append(system.seeds - 1)
        variances.append(means.var(ddof=1) / system.seeds)
        weights = generator.standard_normal((num_samples, system.seeds))
        total += weights @ (means - means.mean()) / np.sqrt(system.seeds * freedoms[-1])
    if not any(variances):
        return total
    freedom = sum(variances) ** 2 / sum(variance**2 / own for variance, own in zip(variances, freedoms))
    return total / np.sqrt(generator.chisquare(freedom, num_samples) / freedom)
