"""What was measured of one head on one encoder: `Result`, and the functions that make one of a head's output.

A `Result` holds each measure of its task either as numerators and denominators of every test item, so that items can
be drawn again for intervals and paired tests, or as one value a run where it is no ratio of sums (macro-F1, ROC-AUC).
Whatever follows (rows, comparisons, tables) needs nothing else, so that a new evaluation is a `Task` and a function
like `classification_result`. Scores are measured and dropped here: kept are two numbers an item, not C.

Encoders that differ in their pretraining seed alone are one `Result` of several seeds: `merge_seeds` makes it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadOutput
from docsplit.evaluation.results import metrics
from docsplit.evaluation.results.metrics import ItemScores
from docsplit.evaluation.results.task import CLASSIFICATION, LINKS, MULTI_LABEL_CLASSIFICATION, Task

logger = logging.getLogger(__name__)

# What a row of a baseline says of the encoder that it has not.
NO_ENCODER: dict[str, Any] = dict.fromkeys(
    (
        *("pooling", "max_seq_length", "num_parameters", "dtype"),
        *("long_documents", "smooth_neighbours", "embedding_seconds"),
    )
)
ONE_CLASS_SHARE = 0.95  # of the test items: a head that gives more of them one class has hardly learnt anything


@dataclass
class Result:
    """One head on one encoder, trained R times with the same number of labels, measured on M test items.

    Or on S encoders of one kind, from S pretraining seeds: then what has R values here has S x R, seed after seed.

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
    preset: str | None = None  # of the head's training: a row of `docsplit.evaluation.heads.presets.PRESETS`
    pretraining_seeds: int | None = 1  # S; None where nothing was pretrained: TF-IDF, BM25
    members: tuple[str, ...] = ()  # the S encoders, where they are several or have another name
    test_documents: int | None = None  # distinct ones; None: as many as there are test items
    one_class: np.ndarray | None = None  # (R,) the largest share of the test items that a run gives one class
    curves: list[list[dict[str, float]]] = field(default_factory=list)  # of each run, as `HeadOutput.curves`

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
        """How often the head was trained, over all pretraining seeds."""
        return len(self.main_items.numerators)

    @property
    def warning(self) -> str | None:
        """What to say where runs give nearly all test items one class; the mean over runs may hide a single one."""
        alike = 0 if self.one_class is None else int((self.one_class > ONE_CLASS_SHARE).sum())
        if not alike:
            return None
        runs = f"{alike} of {self.runs} runs" if self.runs > 1 else "its one run"
        what = "set of labels" if self.task == MULTI_LABEL_CLASSIFICATION else "class"
        return f"predicts one {what} for more than {100 * ONE_CLASS_SHARE:g} % of the test {self.task.items} in {runs}"

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

    def of_seeds(self, measure: str) -> np.ndarray:
        """The mean over runs of each pretraining seed, (S,)."""
        return self.of_runs(measure).reshape(self.pretraining_seeds or 1, -1).mean(axis=1)


def merge_members(name: str, members: Sequence[str], of_members: Sequence[Sequence[Result]]) -> list[Result]:
    """`merge_seeds` of each head: the first result of all members, the second of all ...; of itself alone its own."""
    if [name] == list(members):
        return list(of_members[0]) if of_members else []
    return [merge_seeds(name, members, of_one_head) for of_one_head in zip(*of_members)]


def merge_seeds(name: str, members: Sequence[str], results: Sequence[Result]) -> Result:
    """Results of the same head on encoders from several pretraining seeds, as one result.

    Of what they say about themselves (`info`) equal values stay, the seconds of embedding are added up, of other
    numbers the largest is kept, so that no member's share of seen documents is hidden; None, unknown, wins over all.

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
    measured: dict[str, ItemScores | np.ndarray] = {}
    for measure, values in first.measured.items():
        columns: list[Any] = [result.measured[measure] for result in results]
        if isinstance(values, ItemScores):
            parts = ([column.numerators for column in columns], [column.denominators for column in columns])
            measured[measure] = ItemScores(*map(np.concatenate, parts))
        else:
            measured[measure] = np.concatenate(columns)
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
        info={key: _of_all(key, [result.info.get(key) for result in results]) for key in first.info},
        pretraining_seeds=len(members),
        members=tuple(members),
        one_class=np.concatenate(shares) if shares else None,
        curves=[curve for result in results for curve in result.curves],
    )


def _of_all(key: str, values: list[Any]) -> Any:
    """One value of `info` for several encoders."""
    if None in values:
        return None
    if key != "embedding_seconds" and all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, int | float) for value in values):
        return sum(values) if key == "embedding_seconds" else max(values)
    return " / ".join(dict.fromkeys(map(str, values)))


def classification_result(
    encoder: str,
    head: str,
    shots: int | None,
    output: HeadOutput,
    split: LabelledSplit,
    info: dict[str, Any],
    trains_encoder: bool = False,
    preset: str | None = None,
    pretraining_seeds: int | None = 1,
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
    metric, number = metrics.ClassificationMetric(), None if several else len(split.class_names)
    computed = [metric.compute(predictions=run, references=labels, num_classes=number) for run in predicted]
    measured: dict[str, ItemScores | np.ndarray] = {
        "accuracy": metrics.accuracy_items(predicted, labels),
        "macro_f1": _column(computed, "macro_f1"),
        # With one label a document it is the accuracy, whose interval is enough.
        "micro_f1": metrics.micro_f1_items(predicted, labels) if several else _column(computed, "micro_f1"),
    }
    details = {}
    if several:
        measured["macro_f1_lexglue"] = _column(computed, "macro_f1_lexglue")
        details["per_label_f1"] = dict(zip(split.class_names, _column(computed, "per_label_f1").T))
    return _with_warning(
        Result(
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
            preset=preset,
            pretraining_seeds=pretraining_seeds,
            one_class=_largest_shares(predicted),
            curves=output.curves,
        )
    )


def link_result(
    encoder: str,
    head: str,
    output: HeadOutput,
    labels: np.ndarray,
    info: dict[str, Any],
    threshold: float = 0.5,
    is_baseline: bool = False,
    preset: str | None = None,
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
    name = _name(encoder, head, None)
    _check_shape(name, output.scores, len(labels), output.scores.shape[-1])
    scores = output.scores[:, :, -1:]  # (R, M, 1)
    predicted = _predictions(name, scores, True, threshold)[:, :, 0]  # (R, M)
    classification, link = metrics.ClassificationMetric(), metrics.LinkMetric()
    computed = [
        classification.compute(predictions=run, references=labels, num_classes=2)
        | link.compute(predictions=run, references=labels, scores=run_scores)
        for run, run_scores in zip(predicted, scores[:, :, 0])
    ]
    measured: dict[str, ItemScores | np.ndarray] = {measure: _column(computed, measure) for measure in LINKS.measures}
    measured["accuracy"] = metrics.accuracy_items(predicted, labels)
    return _with_warning(
        Result(
            LINKS,
            encoder,
            head,
            None,
            measured,
            output.seconds,
            output.trainable_parameters,
            info,
            is_baseline=is_baseline,
            preset=preset,
            pretraining_seeds=None if is_baseline else 1,
            test_documents=test_documents,
            one_class=_largest_shares(predicted),
        )
    )


def _name(encoder: str, head: str, shots: int | None) -> str:
    """For messages."""
    return f"{encoder!r} with head {head!r} (shots: {shots})"


def _largest_shares(predicted: np.ndarray) -> np.ndarray:
    """Of each run, the share of the test items that get the most frequent class, or set of labels, (R,)."""
    return np.array([np.unique(run, axis=0, return_counts=True)[1].max() / len(run) for run in predicted])


def _with_warning(result: Result) -> Result:
    if result.warning:
        logger.warning(f"{_name(result.encoder, result.head, result.shots)}, {result.features}: {result.warning}.")
    return result


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
