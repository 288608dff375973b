"""What was measured of one head on one encoder: `Result`, and the functions that make it from a head's output.

A `Result` holds each measure of its task either as test items, which the bootstrap can draw again for intervals and
paired tests, or as one value a run (macro-F1, ROC-AUC). Rows, comparisons and tables need nothing else: a new
evaluation is a `Task` and a function like `classification_result`. Scores are measured and dropped here: two numbers
an item are kept, not C.

Encoders that differ in their pretraining seed alone are one `Result` of several seeds: `merge_seeds` makes it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadOutput
from docsplit.evaluation.results import metrics
from docsplit.evaluation.results.items import Items
from docsplit.evaluation.results.records import Facts
from docsplit.evaluation.results.task import CLASSIFICATION, LINKS, MULTI_LABEL_CLASSIFICATION, Task

logger = logging.getLogger(__name__)

# The columns of an encoder in the row of a baseline, which has none.
NO_ENCODER: Facts = dict.fromkeys(
    (
        *("pooling", "max_seq_length", "num_parameters", "dtype"),
        *("long_documents", "smooth_neighbours", "embedding_seconds"),
    )
)
ONE_CLASS_SHARE = 0.95  # of the test items: a head that gives more of them one class has hardly learnt anything


@dataclass(kw_only=True)
class System:
    """A head on an encoder, trained with some number of labels: what is measured."""

    encoder: str
    head: str
    shots: int | None = None  # labels per class; None: the full training set
    info: Facts = field(default_factory=dict)  # pooling, max_seq_length, features ...: copied into the row
    trains_encoder: bool = False  # the trainable parameters include the encoder's
    is_baseline: bool = False  # a head without an encoder
    preset: str | None = None  # of the head's training: a row of `docsplit.evaluation.heads.presets.PRESETS`
    pretraining_seeds: int | None = 1  # S; None where nothing was pretrained: TF-IDF, BM25

    @property
    def name(self) -> str:
        """Encoder and head, for messages."""
        return f"{self.encoder!r} with head {self.head!r} (shots: {self.shots})"

    @property
    def features(self) -> str:
        """The features that the head was trained on: raw embeddings or standardised ones."""
        return self.info.get("features", "raw")


@dataclass(kw_only=True)
class Result(System):
    """One head on one encoder, trained R times with the same number of labels, measured on M test items.

    Or on S encoders of one kind, from S pretraining seeds: then what has R values here has S x R, seed after seed.

    Raises:
        ValueError: if the measures are not those of the task, the main one has no test items, or runs are missing.
    """

    task: Task
    measured: Mapping[str, Items | np.ndarray]  # of each measure: items, (R, M), or one value a run, (R,)
    seconds: float = 0.0  # to train the head, mean over runs
    trainable_parameters: int = 0
    details: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # of each label, say: (R,), NaN for none
    members: tuple[str, ...] = ()  # the S encoders, where they are several or have another name
    test_documents: int | None = None  # distinct ones; None: as many as there are test items
    one_class: np.ndarray | None = None  # (R,) the largest share of the test items that a run gives one class
    curves: list[list[dict[str, float]]] = field(default_factory=list)  # of each run, as `HeadOutput.curves`

    def __post_init__(self) -> None:
        if {*self.measured} != {*self.task.measures} or {*self.details} != {*self.task.details}:
            raise ValueError(
                f"{self.name} has measures {[*self.measured]} and details {[*self.details]}, its task "
                f"{self.task.name!r} expects {[*self.task.measures]} and {[*self.task.details]}."
            )
        if not isinstance(self.measured[self.task.main], Items):
            raise ValueError(
                f"{self.name} has one value a run of {self.task.main}, by which encoders are compared: give its "
                "test items (docsplit.evaluation.results.items)."
            )
        values = [self.of_runs(measure) for measure in self.measured]
        values += [column for columns in self.details.values() for column in columns.values()]
        if wrong := [value.shape for value in values if value.shape != (self.runs,)]:
            raise ValueError(
                f"{self.name} has measures of shape {wrong}, expected one value for each of {self.runs} runs."
            )

    @property
    def runs(self) -> int:
        """How often the head was trained, over all pretraining seeds."""
        return self.main_items.runs

    @property
    def warning(self) -> str | None:
        """A warning where runs give nearly all test items one class; the mean over runs may hide such a run."""
        alike = 0 if self.one_class is None else int((self.one_class > ONE_CLASS_SHARE).sum())
        if not alike:
            return None
        runs = f"{alike} of {self.runs} runs" if self.runs > 1 else "its one run"
        what = "set of labels" if self.task == MULTI_LABEL_CLASSIFICATION else "class"
        return f"predicts one {what} for more than {100 * ONE_CLASS_SHARE:g} % of the test {self.task.items} in {runs}"

    @property
    def main_items(self) -> Items:
        """The test items of the main measure, by which encoders are compared."""
        return self.items(self.task.main)

    def items(self, measure: str) -> Items:
        """Return the test items of a measure that has them."""
        items = self.measured[measure]
        assert isinstance(items, Items)
        return items

    def of_runs(self, measure: str) -> np.ndarray:
        """Return the value of a measure in each run, (R,)."""
        measured = self.measured[measure]
        return self.task.statistic(measure)(measured) if isinstance(measured, Items) else measured

    def of_seeds(self, measure: str) -> np.ndarray:
        """Return the mean over runs of each pretraining seed, (S,)."""
        return self.of_runs(measure).reshape(self.pretraining_seeds or 1, -1).mean(axis=1)


def merge_members(name: str, members: Sequence[str], of_members: Sequence[Sequence[Result]]) -> list[Result]:
    """Merge the results of a group of seeds, head by head; an encoder alone keeps its own."""
    if [name] == list(members):
        return list(of_members[0]) if of_members else []
    return [merge_seeds(name, members, of_one_head) for of_one_head in zip(*of_members)]


def merge_seeds(name: str, members: Sequence[str], results: Sequence[Result]) -> Result:
    """Join results of the same head on encoders from several pretraining seeds.

    Equal facts (`info`) stay. Seconds of embedding are added up. The largest of other numbers is kept, so that no
    member's share of seen documents is hidden; None, unknown, wins over all.

    Args:
        name: of all together, as it was typed.
        members: their names.
        results: one for each member.

    Raises:
        ValueError: if they are of different tasks, heads, features or numbers of runs.
    """
    first = results[0]
    kinds = {(result.task.name, result.head, result.shots, result.features, result.runs) for result in results}
    if len(kinds) > 1 or len(results) != len(members):
        raise ValueError(f"The members of {name!r} were not measured alike: {sorted(map(str, kinds))}.")
    measured: dict[str, Items | np.ndarray] = {}
    for measure, values in first.measured.items():
        columns: list[Any] = [result.measured[measure] for result in results]
        measured[measure] = values.joined(columns) if isinstance(values, Items) else np.concatenate(columns)
    details = {
        detail: {label: np.concatenate([result.details[detail][label] for result in results]) for label in labels}
        for detail, labels in first.details.items()
    }
    shares = [result.one_class for result in results if result.one_class is not None]
    return replace(
        first,
        encoder=name,
        measured=measured,
        details=details,
        seconds=float(np.mean([result.seconds for result in results])),
        info={key: _merged_fact(key, [result.info.get(key) for result in results]) for key in first.info},
        pretraining_seeds=len(members),
        members=tuple(members),
        one_class=np.concatenate(shares) if shares else None,
        curves=[curve for result in results for curve in result.curves],
    )


def join_folds(name: str, results: Sequence[Result], folds: Sequence[np.ndarray]) -> Result:
    """Join results of one method on disjoint parts of the test items to one on all of them.

    Equal facts (`info`) stay, and others are merged as those of seeds are; seconds are added up.

    Args:
        name: of all together, as it was typed.
        results: one for each part, of one run each, whose measures all have items.
        folds: the numbers of the items in each part.
    """
    order = np.argsort(np.concatenate(folds))
    measured: dict[str, Items | np.ndarray] = {}
    for measure in results[0].measured:
        items: Any = results[0].measured[measure]
        columns: list[Any] = [result.measured[measure].arrays() for result in results]  # type: ignore[union-attr]
        measured[measure] = type(items)(*(np.concatenate(parts, axis=1)[:, order] for parts in zip(*columns)))
    info = {key: _merged_fact(key, [result.info.get(key) for result in results]) for key in results[0].info}
    seconds = sum(result.seconds for result in results)
    return replace(results[0], encoder=name, measured=measured, info=info, seconds=seconds)


def _merged_fact(key: str, values: list[Any]) -> Any:
    """One fact of several encoders."""
    if None in values:
        return None
    if key != "embedding_seconds" and all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, int | float) for value in values):
        return sum(values) if key == "embedding_seconds" else max(values)
    return " / ".join(dict.fromkeys(map(str, values)))


def classification_result(system: System, output: HeadOutput, split: LabelledSplit) -> Result:
    """Accuracy, macro- and micro-F1 of the classes or labels with the highest scores.

    With several labels a document, those whose probability is 0.5 or more are predicted, accuracy counts the documents
    with all labels right, and `per_label_f1` has the F1 of each label: NaN where it is neither true nor predicted.

    Args:
        output: scores (R, M, C) of the test documents of the split.

    Raises:
        ValueError: naming encoder and head, if scores and labels do not agree in shape, or a score is NaN.
    """
    labels, is_multi_label = split.test_labels, split.multi_label
    _check_shape(system, output.scores, len(labels), len(split.class_names))
    predicted = _predictions(system, output.scores, is_multi_label)  # (R, M) or (R, M, C)
    metric, number = metrics.ClassificationMetric(), None if is_multi_label else len(split.class_names)
    computed = [metric.compute(predictions=run, references=labels, num_classes=number) for run in predicted]
    measured: dict[str, Items | np.ndarray] = {
        "accuracy": metrics.accuracy_items(predicted, labels),
        "macro_f1": _column(computed, "macro_f1"),
        # With one label a document it is the accuracy, whose interval is enough.
        "micro_f1": metrics.micro_f1_items(predicted, labels) if is_multi_label else _column(computed, "micro_f1"),
    }
    details = {}
    if is_multi_label:
        measured["macro_f1_lexglue"] = _column(computed, "macro_f1_lexglue")
        details["per_label_f1"] = dict(zip(split.class_names, _column(computed, "per_label_f1").T))
    task = MULTI_LABEL_CLASSIFICATION if is_multi_label else CLASSIFICATION
    result = _result(system, task, measured, output, predicted)
    return _with_warning(replace(result, details=details, curves=output.curves))


def link_result(
    system: System,
    output: HeadOutput,
    labels: np.ndarray,
    threshold: float = 0.5,
    test_documents: int | None = None,
) -> Result:
    """Accuracy of linked or not, macro- and micro-F1 of these two classes, F1 of the links and ROC-AUC.

    Args:
        output: scores (R, M, C); the last column is higher where a pair is linked.
        labels: (M,) 0 or 1.
        threshold: at or above which a pair is taken for linked.
        test_documents: the distinct papers of the test pairs.

    Raises:
        ValueError: naming encoder and head, if scores and labels do not agree in shape, a score is NaN or the labels
            are not 0 and 1.
    """
    _check_shape(system, output.scores, len(labels), output.scores.shape[-1])
    scores = output.scores[:, :, -1:]  # (R, M, 1)
    predicted = _predictions(system, scores, True, threshold)[:, :, 0]  # (R, M)
    classification, link = metrics.ClassificationMetric(), metrics.LinkMetric()
    computed = [
        classification.compute(predictions=run, references=labels, num_classes=2)
        | link.compute(predictions=run, references=labels, scores=run_scores)
        for run, run_scores in zip(predicted, scores[:, :, 0])
    ]
    measured: dict[str, Items | np.ndarray] = {measure: _column(computed, measure) for measure in LINKS.measures}
    measured["accuracy"] = metrics.accuracy_items(predicted, labels)
    result = _result(system, LINKS, measured, output, predicted)
    return _with_warning(replace(result, test_documents=test_documents))


def _result(
    system: System, task: Task, measured: dict[str, Items | np.ndarray], output: HeadOutput, predicted: np.ndarray
) -> Result:
    return Result(
        **{kind.name: getattr(system, kind.name) for kind in fields(System)},
        task=task,
        measured=measured,
        seconds=output.seconds,
        trainable_parameters=output.trainable_parameters,
        details={detail: {} for detail in task.details},
        one_class=_largest_shares(predicted),
    )


def _largest_shares(predicted: np.ndarray) -> np.ndarray:
    """Return the share of the test items that get the most frequent class, or set of labels, in each run, (R,)."""
    return np.array([np.unique(run, axis=0, return_counts=True)[1].max() / len(run) for run in predicted])


def _with_warning(result: Result) -> Result:
    if result.warning:
        logger.warning(f"{result.name}, {result.features}: {result.warning}.")
    return result


def _column(computed: Sequence[dict[str, Any]], measure: str) -> np.ndarray:
    """One measure of the dictionaries of the runs, (R,), or (R, C) of each label."""
    return np.array([run[measure] for run in computed])


def _check_shape(system: System, scores: np.ndarray, num_items: int, num_classes: int) -> None:
    if scores.ndim != 3 or scores.shape[1:] != (num_items, num_classes) or not len(scores):
        raise ValueError(
            f"Scores of {system.name} have shape {scores.shape}, expected (runs, {num_items} test items, "
            f"{num_classes} classes): was the head trained on another split?"
        )


def _predictions(system: System, scores: np.ndarray, is_multi_label: bool, threshold: float = 0.5) -> np.ndarray:
    """`metrics.predictions`, whose error names the head."""
    try:
        return metrics.predictions(scores, is_multi_label, threshold)
    except ValueError as error:
        raise ValueError(f"{system.name}: {error}") from None
