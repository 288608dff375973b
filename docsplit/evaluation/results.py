"""What was measured of one head on one encoder: `Result`, and the functions that make one of a head's output.

A `Result` holds each measure of its task either as numerators and denominators of every test item, so that items can
be drawn again for intervals and paired tests, or as one value a run where it is no ratio of sums (macro-F1, ROC-AUC).
Whatever follows (rows, comparisons, tables) needs nothing else, so that a new evaluation is a `Task` and a function
like `classification_result`. Scores are measured and dropped here: kept are two numbers an item, not C.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from docsplit.data.labelled import LabelledSplit
from docsplit.evaluation import metrics
from docsplit.evaluation.heads import HeadOutput
from docsplit.evaluation.metrics import ItemScores
from docsplit.evaluation.tasks import CLASSIFICATION, LINKS, MULTI_LABEL_CLASSIFICATION, Task


@dataclass
class Result:
    """One head on one encoder, trained R times with the same number of labels, measured on M test items.

    Raises:
        ValueError: if the measures are not those of the task, the main one has no test items, or runs are missing.
    """

    task: Task
    encoder: str
    head: str
    shots: int | None  # labels per class; None: the full training set
    measured: dict[str, ItemScores | np.ndarray]  # of each measure: items, (R, M), or one value a run, (R,)
    seconds: float  # to train the head, mean over runs
    trainable_parameters: int
    info: dict[str, Any] = field(default_factory=dict)  # pooling, max_seq_length, features ...: copied into the row
    details: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # of each label, say: (R,), NaN for none
    trains_encoder: bool = False  # the trainable parameters include the encoder's
    is_baseline: bool = False  # a head without an encoder

    def __post_init__(self) -> None:
        name = _name(self.encoder, self.head, self.shots)
        if {*self.measured} != {*self.task.measures} or {*self.details} != {*self.task.details}:
            raise ValueError(
                f"{name} has measures {[*self.measured]} and details {[*self.details]}, its task "
                f"{self.task.name!r} expects {[*self.task.measures]} and {[*self.task.details]}."
            )
        if not isinstance(self.measured[self.task.main], ItemScores):
            raise ValueError(
                f"{name} has one value a run of {self.task.main}, by which encoders are compared: give the "
                "numerators and denominators of its test items."
            )
        values = [self.of_runs(measure) for measure in self.measured]
        values += [column for columns in self.details.values() for column in columns.values()]
        if wrong := [value.shape for value in values if value.shape != (self.runs,)]:
            raise ValueError(f"{name} has measures of shape {wrong}, expected one value for each of {self.runs} runs.")

    @property
    def features(self) -> str:
        """What the head was trained on: embeddings as they are, or standardised ones."""
        return self.info.get("features", "raw")

    @property
    def runs(self) -> int:
        """How often the head was trained, R."""
        return len(self.main_items.numerators)

    @property
    def main_items(self) -> ItemScores:
        """The main measure of each test item, by which encoders are compared."""
        items = self.measured[self.task.main]
        assert isinstance(items, ItemScores)
        return items

    def of_runs(self, measure: str) -> np.ndarray:
        """The value of a measure in each run, (R,)."""
        measured = self.measured[measure]
        return measured.of_runs() if isinstance(measured, ItemScores) else measured


def classification_result(
    encoder: str,
    head: str,
    shots: int | None,
    output: HeadOutput,
    split: LabelledSplit,
    info: dict[str, Any],
    trains_encoder: bool = False,
) -> Result:
    """Accuracy, macro- and micro-F1 of the classes or labels with the highest scores.

    With several labels a document, those whose probability is 0.5 or more are predicted, accuracy counts the documents
    with all labels right, and `per_label_f1` has the F1 of each label: NaN where it is neither true nor predicted.

    Args:
        output: scores (R, M, C) of the test documents of the split.

    Raises:
        ValueError: naming encoder and head, if scores and labels do not agree in shape, or a score is NaN.
    """
    labels, several = split.test_labels, split.multi_label
    name = _name(encoder, head, shots)
    _check_shape(name, output.scores, len(labels), len(split.class_names))
    predicted = _predictions(name, output.scores, several)  # (R, M) or (R, M, C)
    metric = metrics.ClassificationMetric()
    computed = [metric.compute(predictions=run, references=labels) for run in predicted]
    measured: dict[str, ItemScores | np.ndarray] = {
        "accuracy": metrics.accuracy_items(predicted, labels),
        "macro_f1": _column(computed, "macro_f1"),
        # With one label a document it is the accuracy, whose interval is enough.
        "micro_f1": metrics.micro_f1_items(predicted, labels) if several else _column(computed, "micro_f1"),
    }
    details = {}
    if several:
        details["per_label_f1"] = dict(zip(split.class_names, _column(computed, "per_label_f1").T))
    return Result(
        MULTI_LABEL_CLASSIFICATION if several else CLASSIFICATION,
        encoder,
        head,
        shots,
        measured,
        output.seconds,
        output.trainable_parameters,
        info,
        details,
        trains_encoder,
    )


def link_result(
    encoder: str,
    head: str,
    output: HeadOutput,
    labels: np.ndarray,
    info: dict[str, Any],
    threshold: float = 0.5,
    is_baseline: bool = False,
) -> Result:
    """Accuracy of linked or not, macro- and micro-F1 of these two classes, F1 of the links and ROC-AUC.

    Args:
        output: scores (R, M, C); the last column is higher where a pair is linked.
        labels: (M,) 0 or 1.
        threshold: at or above which a pair is taken for linked.

    Raises:
        ValueError: naming encoder and head, if scores and labels do not agree in shape, a score is NaN or the labels
            are not 0 and 1.
    """
    name = _name(encoder, head, None)
    _check_shape(name, output.scores, len(labels), output.scores.shape[-1])
    scores = output.scores[:, :, -1:]  # (R, M, 1)
    predicted = _predictions(name, scores, True, threshold)[:, :, 0]  # (R, M)
    classification, link = metrics.ClassificationMetric(), metrics.LinkMetric()
    computed = [
        classification.compute(predictions=run, references=labels)
        | link.compute(predictions=run, references=labels, scores=run_scores)
        for run, run_scores in zip(predicted, scores[:, :, 0])
    ]
    measured: dict[str, ItemScores | np.ndarray] = {measure: _column(computed, measure) for measure in LINKS.measures}
    measured["accuracy"] = metrics.accuracy_items(predicted, labels)
    return Result(
        LINKS,
        encoder,
        head,
        None,
        measured,
        output.seconds,
        output.trainable_parameters,
        info,
        is_baseline=is_baseline,
    )


def _name(encoder: str, head: str, shots: int | None) -> str:
    """For messages."""
    return f"{encoder!r} with head {head!r} (shots: {shots})"


def _column(computed: list[dict[str, Any]], measure: str) -> np.ndarray:
    """One measure of the dictionaries of the runs, (R,), or (R, C) of each label."""
    return np.array([run[measure] for run in computed])


def _check_shape(name: str, scores: np.ndarray, num_items: int, num_classes: int) -> None:
    if scores.ndim != 3 or scores.shape[1:] != (num_items, num_classes) or not len(scores):
        raise ValueError(
            f"Scores of {name} have shape {scores.shape}, expected (runs, {num_items} test items, {num_classes} "
            "classes): was the head trained on another split?"
        )


def _predictions(name: str, scores: np.ndarray, several: bool, threshold: float = 0.5) -> np.ndarray:
    """`metrics.predictions`, whose error names the head."""
    try:
        return metrics.predictions(scores, several, threshold)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
