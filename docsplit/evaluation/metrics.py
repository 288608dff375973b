"""Accuracy and F1, with a bootstrap that says how far they can be trusted.

The metrics are `evaluate.Metric`s computed by scikit-learn; nothing is downloaded and nothing is written to disk.

A "run" is one training of a head (one draw of few-shot labels, or one seed), R of them, each measured on the same M
test items. The bootstrap (Efron and Tibshirani, 1993) works on numerators and denominators for each item, (R, M), of
which a run's score is the ratio of the sums: this covers accuracy (correct / 1) and micro-F1
(2 tp / (2 tp + fp + fn)). Macro-F1 is no such ratio and has no interval here.
"""

import evaluate
import numpy as np
from datasets import Features, Sequence, Value
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
        kinds = (Sequence(Value("int8")), Value("int64"))
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


def predictions(scores: np.ndarray, multi_label: bool) -> np.ndarray:
    """Scores (..., C) to class indices (...,), or for multi-label (probabilities) to 0 or 1, (..., C).

    Raises:
        ValueError: if a score is NaN.
    """
    if bad := int(np.isnan(scores).any(axis=-1).sum()):
        raise ValueError(
            f"{bad} of {scores[..., 0].size} predictions have a score that is NaN: the embeddings or the training of "
            "the head went wrong; check them before measuring."
        )
    return (scores >= 0.5).astype(np.int8) if multi_label else scores.argmax(axis=-1)


def item_scores(predicted: np.ndarray, references: np.ndarray, multi_label: bool) -> tuple[np.ndarray, np.ndarray]:
    """What each test item adds to the two sides of a score.

    Args:
        predicted: (R, M) class indices, or (R, M, C) multi-hot: what `predictions` gives.
        references: (M,) or (M, C).

    Returns: numerators and denominators, each (R, M) float32: correct and 1 (accuracy), or for multi-label 2 tp and
        2 tp + fp + fn (micro-F1).
    """
    if multi_label:
        both = 2 * (predicted & references).sum(axis=2, dtype=np.float32)
        return both, predicted.sum(axis=2, dtype=np.float32) + references.sum(axis=1, dtype=np.float32)
    correct = (predicted == references).astype(np.float32)
    return correct, np.ones_like(correct)


def ratios(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """numerators / denominators in float64, 0 where both are 0 (no label true and none predicted)."""
    safe = np.where(denominators == 0, 1, denominators).astype(np.float64)
    return numerators / safe


def run_scores(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """The score of each run, (R,), from item scores (R, M)."""
    return ratios(numerators.sum(axis=1, dtype=np.float64), denominators.sum(axis=1, dtype=np.float64))


def resampled_scores(
    numerators: np.ndarray, denominators: np.ndarray, num_samples: int = NUM_SAMPLES, seed: int = 0
) -> np.ndarray:
    """The score of each run on `num_samples` sets of M test items drawn with replacement.

    The sets depend on M, `num_samples` and `seed` only, so that systems measured on the same items meet the same sets.

    Args:
        numerators, denominators: (R, M) of `item_scores`; runs of several systems may be stacked.

    Returns: (num_samples, R) float64.

    Raises:
        ValueError: if the shapes do not agree or there is no item.
    """
    if numerators.ndim != 2 or numerators.shape != denominators.shape or not numerators.size:
        raise ValueError(
            f"Item scores must be numerators and denominators of one shape, runs x test items and neither of them 0, "
            f"not {numerators.shape} and {denominators.shape}."
        )
    generator = np.random.default_rng(seed)
    num_items = numerators.shape[1]
    above, below = numerators.T.astype(np.float32), denominators.T.astype(np.float32)  # integers: sums are exact
    chunk = max(CHUNK_DRAWS // num_items, 1)
    samples = []
    for start in range(0, num_samples, chunk):
        size = min(chunk, num_samples - start)
        drawn = generator.integers(num_items, size=(size, num_items))
        drawn += num_items * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * num_items).reshape(size, num_items).astype(np.float32)
        samples.append(ratios(times @ above, times @ below))
    return np.concatenate(samples)


def interval(
    numerators: np.ndarray, denominators: np.ndarray, num_samples: int = NUM_SAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The 95 % percentile interval over test items of the mean score of R runs; the runs stay as they are."""
    return percentiles(resampled_scores(numerators, denominators, num_samples, seed).mean(axis=1))


def percentiles(samples: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the samples."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)


def paired_bootstrap(
    a: tuple[np.ndarray, np.ndarray],
    b: tuple[np.ndarray, np.ndarray],
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
) -> dict[str, float]:
    """Is system a better than system b on these test items, or is it noise?

    The null hypothesis is that both have the same expected score over test items and over runs. Test items are drawn
    with replacement, the same for both systems (paired bootstrap: Koehn, 2004), and so are the runs: together when
    both have the same number of them, for they are on the same few-shot draws, else each on its own. Of R runs R - 1
    are drawn: drawing R would make the spread of so few too small (Rao and Wu, 1988). With one run the result holds
    for that run only. Drawing items and runs independently errs on the side of too wide intervals (Owen, 2007).

    Args:
        a, b: numerators and denominators of `item_scores`, (R, M) each; the R may differ.

    Returns: `difference` (mean of a over its runs minus that of b), `low` and `high` (95 % percentile interval) and
        `p_value` (two-sided; twice the share of samples on the other side of 0, at least 2 / (num_samples + 1)).

    Raises:
        ValueError: if the systems were measured on different numbers of items.
    """
    if a[0].shape[1] != b[0].shape[1]:
        raise ValueError(
            f"A paired test needs the same test items for both systems, found {a[0].shape[1]} and {b[0].shape[1]}."
        )
    numerators, denominators = (np.concatenate(parts) for parts in zip(a, b))
    samples = resampled_scores(numerators, denominators, num_samples, seed)
    split = len(a[0])
    return paired_difference(run_scores(*a), run_scores(*b), samples[:, :split], samples[:, split:], seed)


def paired_difference(
    a: np.ndarray, b: np.ndarray, a_samples: np.ndarray, b_samples: np.ndarray, seed: int = 0
) -> dict[str, float]:
    """The end of `paired_bootstrap`, for callers that compare many systems: `resampled_scores` only once for each.

    Args:
        a, b: (R,) of `run_scores`.
        a_samples, b_samples: (num_samples, R) of `resampled_scores` with one seed.
    """
    generator = np.random.default_rng((seed, 1))  # another stream than that of the items
    if len(a) == len(b):
        samples = _resample_runs(a_samples - b_samples, generator)
    else:
        samples = _resample_runs(a_samples, generator) - _resample_runs(b_samples, generator)
    samples = samples.round(DECIMALS)
    low, high = percentiles(samples)
    other_side = min((samples <= 0).sum(), (samples >= 0).sum())
    return {
        "difference": float(np.round(a.mean() - b.mean(), DECIMALS)),
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
