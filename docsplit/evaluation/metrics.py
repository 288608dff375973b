"""Accuracy and F1, with a bootstrap that says how far they can be trusted.

The metrics are `evaluate.Metric`s computed by scikit-learn; nothing is downloaded and nothing is written to disk.

A "run" is one training of a head (one draw of few-shot labels, or one seed), R of them, each measured on the same M
test items. The bootstrap (Efron and Tibshirani, 1993) works on numerators and denominators for each item, (R, M), of
which a run's score is the ratio of the sums: this covers accuracy (correct / 1), micro-F1
(2 tp / (2 tp + fp + fn)) and means over items such as nDCG (nDCG of a query / 1). Macro-F1 is no such ratio and has no
interval here. `resample` draws the items once for all systems; `interval` and `paired_bootstrap` read what it gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import datasets
import evaluate
import numpy as np
from datasets import Features, Value
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

NUM_SAMPLES = 2000
CHUNK_DRAWS = 2**21  # items drawn at a time: bounds the memory
DECIMALS = 12  # what a sum in another order may change; differences below that are ties


class ClassificationMetric(evaluate.Metric):
    """Accuracy, macro-F1 and micro-F1 of class indices (M,), or of multi-hot labels (M, C).

    Multi-label: accuracy is the share of items with all labels right, and `per_label_f1` has the F1 of each label.
    A class or label without any true and any predicted item has no F1: it is left out of the macro mean, as
    scikit-learn does it for class indices, and is NaN in `per_label_f1`. One that is only predicted counts as 0.
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

    def _compute(self, predictions: list, references: list) -> dict:
        predicted, true = np.asarray(predictions), np.asarray(references)
        values = {
            "accuracy": float(accuracy_score(true, predicted)),
            "macro_f1": 0.0,
            "micro_f1": float(f1_score(true, predicted, average="micro", zero_division=0)),
        }
        per_label = f1_score(true, predicted, average=None, zero_division=np.nan)
        if not np.isnan(per_label).all():
            values["macro_f1"] = float(np.nanmean(per_label))
        if true.ndim == 2:
            values["per_label_f1"] = per_label.tolist()
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
    """The scores of a system's R runs, on the test items as they are and on S sets drawn from them."""

    scores: np.ndarray  # (R,)
    samples: np.ndarray  # (S, R)


def resample(systems: Sequence[ItemScores], num_samples: int = NUM_SAMPLES, seed: int = 0) -> list[Resampled]:
    """Scores of each system on `num_samples` sets of M test items drawn with replacement.

    The sets depend on M, `num_samples` and `seed` only, so that all systems meet the same sets.

    Args:
        systems: measured on the same M items; their numbers of runs may differ.

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
    return [Resampled(system.of_runs(), drawn) for system, drawn in zip(systems, samples)]


def _sampled_scores(numerators: np.ndarray, denominators: np.ndarray, num_samples: int, seed: int) -> np.ndarray:
    """(R, M) each to the scores (num_samples, R) on items drawn with replacement."""
    generator = np.random.default_rng(seed)
    num_items = numerators.shape[1]
    above, below = _summable(numerators.T), _summable(denominators.T)
    chunk = max(CHUNK_DRAWS // num_items, 1)
    samples = []
    for start in range(0, num_samples, chunk):
        size = min(chunk, num_samples - start)
        drawn = generator.integers(num_items, size=(size, num_items))
        drawn += num_items * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * num_items).reshape(size, num_items).astype(np.float32)
        samples.append(_ratios(times @ above, times @ below))
    return np.concatenate(samples)


def _summable(values: np.ndarray) -> np.ndarray:
    """Whole numbers in float32, where their sums are exact; others in float64, where ties stay ties (`DECIMALS`)."""
    return values.astype(np.float32 if (values == np.rint(values)).all() else np.float64)


def interval(system: Resampled) -> tuple[float, float]:
    """The 95 % percentile interval over test items of the mean score of the runs; the runs stay as they are."""
    return _percentiles(system.samples.mean(axis=1))


def _percentiles(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the samples."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)


def paired_bootstrap(a: Resampled, b: Resampled, seed: int = 0) -> dict[str, float]:
    """Is system a better than system b on these test items, or is it noise?

    The null hypothesis is that both have the same expected score over test items and over runs. Test items are drawn
    with replacement, the same for both systems (paired bootstrap: Koehn, 2004), and so are the runs: together when
    both have the same number of them, for they are on the same few-shot draws, else each on its own. Of R runs R - 1
    are drawn: drawing R would make the spread of so few too small (Rao and Wu, 1988). With one run the result holds
    for that run only. Drawing items and runs independently errs on the side of too wide intervals (Owen, 2007).

    Args:
        a, b: of one call of `resample`.
        seed: of the draws of runs.

    Returns: `difference` (mean of a over its runs minus that of b), `low` and `high` (95 % percentile interval) and
        `p_value` (two-sided; twice the share of samples on the other side of 0, at least 2 / (num_samples + 1)).
    """
    generator = np.random.default_rng((seed, 1))  # another stream than that of the items
    if len(a.scores) == len(b.scores):
        samples = _resample_runs(a.samples - b.samples, generator)
    else:
        samples = _resample_runs(a.samples, generator) - _resample_runs(b.samples, generator)
    samples = samples.round(DECIMALS)
    low, high = _percentiles(samples)
    other_side = min((samples <= 0).sum(), (samples >= 0).sum())
    return {
        "difference": float(np.round(a.scores.mean() - b.scores.mean(), DECIMALS)),
        "low": low,
        "high": high,
        "p_value": min(1.0, 2 * (1 + int(other_side)) / (1 + len(samples))),
    }


def _resample_runs(samples: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(num_samples, R) to the mean over R - 1 runs drawn with replacement, (num_samples,)."""
    num_samples, num_runs = samples.shape
    drawn = max(num_runs - 1, 1)
    times = generator.multinomial(drawn, np.full(num_runs, 1 / num_runs), size=num_samples)
    return (times * samples).sum(axis=1) / drawn
