"""The figures of classes, labels and links: metrics of the package `evaluate`, and what each test item adds to them.

The metrics are `evaluate.Metric`s computed by scikit-learn; nothing is downloaded.
"""

import tempfile

import datasets
import evaluate
import numpy as np
from datasets import Features, Value
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from docsplit.evaluation.results.items import ItemScores


class _Metric(evaluate.Metric):
    """A metric in memory; the folder that its parent makes is not in the user's cache."""

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True, cache_dir=tempfile.gettempdir())


class ClassificationMetric(_Metric):
    """Accuracy, macro-F1 and micro-F1 of class indices (M,), or of multi-hot labels (M, C).

    Multi-label: accuracy is the share of items with all labels right, and `per_label_f1` has the F1 of each label.
    Macro-F1 is scikit-learn's over all labels with `zero_division=0`: a label that is neither true nor predicted
    counts as 0 (in `per_label_f1`, which tells it from one that is always wrong, it is NaN). `macro_f1_lexglue`, of
    multi-hot labels, is the same with a column more: 1 where an item has no label (Chalkidis et al., 2022, LexGLUE).

    Args of `compute`:
        num_classes: with class indices, which labels there are; by default those that are true or predicted.
    """

    def _info(self) -> evaluate.MetricInfo:
        kinds = (datasets.Sequence(Value("int8")), Value("int64"))
        return evaluate.MetricInfo(
            description="Accuracy, macro-F1 and micro-F1.",
            citation="",
            inputs_description="predictions, references: class indices, or multi-hot lists.",
            features=[Features({"predictions": kind, "references": kind}) for kind in kinds],
        )

    def _compute(self, predictions: list, references: list, num_classes: int | None = None) -> dict:
        predicted, true = np.asarray(predictions), np.asarray(references)
        is_multi_label = true.ndim == 2
        labels = None if is_multi_label or num_classes is None else np.arange(num_classes)
        values = {
            "accuracy": float(accuracy_score(true, predicted)),
            "macro_f1": float(f1_score(true, predicted, labels=labels, average="macro", zero_division=0)),
            "micro_f1": float(f1_score(true, predicted, average="micro", zero_division=0)),
        }
        if is_multi_label:
            values["per_label_f1"] = f1_score(true, predicted, average=None, zero_division=np.nan).tolist()
            with_none = [np.column_stack([part, ~part.any(axis=1)]) for part in (true, predicted)]
            values["macro_f1_lexglue"] = float(f1_score(*with_none, average="macro", zero_division=0))
        return values


class LinkMetric(_Metric):
    """Accuracy, F1 of the links and ROC-AUC for yes/no pairs: predictions and references 0 or 1, and real scores."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Accuracy, F1 and ROC-AUC of links.",
            citation="",
            inputs_description="predictions, references: 0 or 1; scores: higher for a link.",
            features=Features(
                {"predictions": Value("int64"), "references": Value("int64"), "scores": Value("float64")}
            ),
        )

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
