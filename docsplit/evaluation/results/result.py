"""What was measured of one head on one encoder: `Result`, and the tasks that say what is measured.

A `Result` holds each measure of its task either as test items, which the bootstrap can draw again for intervals and
paired tests, or as one value a run (macro-F1, ROC-AUC). Rows, comparisons and tables need nothing else: a new
evaluation is a `Task` and a function like `classification_result`. Scores are measured and dropped here: two numbers
an item are kept, not C. Encoders that differ in their pretraining seed alone are one `Result` of several seeds.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from sklearn.metrics import f1_score, roc_auc_score

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadOutput
from docsplit.evaluation.results.bootstrap import ItemScores, accuracy_items, micro_f1_items
from docsplit.runtime.files import checked

logger = logging.getLogger(__name__)

Facts = dict[str, Any]  # what a row says of its encoder and data: an open set of columns
# The columns of an encoder in the row of a baseline, which has none.
NO_ENCODER: Facts = dict.fromkeys(
    ("pooling", "max_seq_length", "num_parameters", "dtype", "long_documents", "smooth_neighbours",
     "embedding_seconds")
)  # fmt: skip
ONE_CLASS_SHARE = 0.95  # of the test items: a head that gives more of them one class has hardly learnt anything


# --- Tasks ---


@dataclass(frozen=True)
class Task:
    """Measures of an evaluation, how they are compared and shown.

    The columns of a row in results.json mean what the task beside them says; nothing is read off their names.
    """

    name: str  # as the Hub names tasks
    measures: dict[str, str]  # every measure, in the order of a row, and the title that tables give it
    main: str  # the measure that encoders are compared by: the one that must know its test items
    columns: Sequence[str]  # the measures that tables, pictures and cards show
    details: dict[str, str] = field(default_factory=dict)  # numbers of each label, say, and the heading of their table
    note: str = ""  # on the measures, in results.md
    baseline_opponent: str | None = None  # the head of every encoder that baselines without an encoder meet
    items: str = "documents"  # what is tested: a row has their number as `test_documents`, `test_pairs` ...
    head_title: str = "head"  # what tables call a head
    head_pairs: Sequence[Sequence[str]] = ()  # heads that are compared on one encoder, or with one of a baseline
    paired_test: Literal["bootstrap", "randomisation"] = "bootstrap"  # the latter is corrected by Holm
    runs: str = "runs: draws of the labels with few, seeds of the head with the full training set"  # what ± is over
    has_training: bool = True  # of heads, on labels

    def to_json(self) -> dict[str, Any]:
        """Return what results.json states: all that its tables need."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, contents: dict[str, Any]) -> "Task":
        """Return the task that a results.json states.

        Raises:
            ValueError: naming the key, if a value is missing or of another type.
        """
        task = checked(contents.get("task"), cls, "task")
        return replace(task, columns=tuple(task.columns), head_pairs=tuple(map(tuple, task.head_pairs)))


_CLASS_MEASURES = {"accuracy": "Accuracy", "macro_f1": "Macro-F1", "micro_f1": "Micro-F1"}

CLASSIFICATION = Task("text-classification", _CLASS_MEASURES, main="accuracy", columns=("accuracy", "macro_f1"))
MULTI_LABEL_CLASSIFICATION = Task(
    "text-classification",
    _CLASS_MEASURES | {"macro_f1_lexglue": "Macro-F1, LexGLUE"},
    main="micro_f1",
    columns=("micro_f1", "macro_f1", "macro_f1_lexglue"),
    details={"per_label_f1": "F1 of each label, full training set"},
    note="LexGLUE's macro-F1 has a column more, for documents without a label. Share of documents with all labels "
    "right: accuracy in results.json.",
)
LINKS = Task(
    "text-ranking",
    _CLASS_MEASURES | {"f1": "F1", "roc_auc": "ROC-AUC"},
    main="accuracy",
    columns=("accuracy", "f1", "roc_auc"),
    baseline_opponent="mlp",
    items="pairs",
)
RANKING = Task(
    "text-ranking",
    {"ndcg_at_10": "nDCG@10", "ndcg_at_20": "nDCG@20", "precision_at_5": "P@5", "precision_at_10": "P@10",
     "precision_at_20": "P@20", "mrr_at_10": "MRR@10", "mrr_at_100": "MRR@100", "recall_at_100": "Recall@100",
     "map": "MAP", "judged_at_10": "judged@10", "judged_at_20": "judged@20"},
    main="ndcg_at_10",
    columns=("ndcg_at_10", "ndcg_at_20", "precision_at_5", "precision_at_10", "precision_at_20", "mrr_at_10",
             "mrr_at_100", "recall_at_100", "map", "judged_at_10"),
    items="queries",
    head_title="method",
    head_pairs=(("dense", "bm25"), ("hybrid", "bm25"), ("rrf", "bm25"), ("hybrid", "dense"), ("rrf", "dense"),
                ("bm25", "bm25 k1=0.9 b=0.4")),
    paired_test="randomisation",
    runs="pretraining seeds",
    has_training=False,
)  # fmt: skip
CLUSTERING = Task(
    "text-clustering",
    {"nmi": "NMI", "nmi_sqrt": "NMI, geometric mean", "nmi_max": "NMI, maximum", "purity": "Purity",
     "v_measure": "V-measure", "ari": "ARI"},
    main="purity",
    columns=("nmi", "nmi_sqrt", "nmi_max", "purity", "v_measure", "ari"),
    note="k-means with as many clusters as classes, fitted on the training documents; ± is over its seeds. V-measure "
    "is the NMI with the arithmetic mean.",
)  # fmt: skip


# --- Measures ---


def class_measures(predicted: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """Accuracy, macro-F1 and micro-F1 of class indices (M,), or of multi-hot labels (M, C), by scikit-learn.

    Macro-F1 is over the classes that are true or predicted of an item. Multi-label: accuracy is the share of items
    with all labels right, and `per_label_f1` has the F1 of each label. In macro-F1 a label that is neither true nor
    predicted counts as 0 (in `per_label_f1`, which tells it from one that is always wrong, it is NaN).
    `macro_f1_lexglue`, of multi-hot labels, is the same with a column more: 1 where an item has no label (Chalkidis et
    al., 2022, LexGLUE).
    """
    is_multi_label = true.ndim == 2
    right = (predicted == true).all(axis=1) if is_multi_label else predicted == true
    values = {
        "accuracy": float(right.mean()),
        "macro_f1": float(f1_score(true, predicted, average="macro", zero_division=0)),
        "micro_f1": float(f1_score(true, predicted, average="micro", zero_division=0)),
    }
    if is_multi_label:
        values["per_label_f1"] = f1_score(true, predicted, average=None, zero_division=np.nan)
        with_none = [np.column_stack([part, ~part.any(axis=1)]) for part in (true, predicted)]
        values["macro_f1_lexglue"] = float(f1_score(*with_none, average="macro", zero_division=0))
    return values


def predictions(scores: np.ndarray, multi_label: bool, threshold: float = 0.5, name: str = "The head") -> np.ndarray:
    """Scores (..., C) to class indices (...,), or for multi-label to 0 or 1, (..., C): 1 from the threshold on.

    Raises:
        ValueError: naming the head, if a score is NaN.
    """
    if bad := int(np.isnan(scores).any(axis=-1).sum()):
        raise ValueError(f"{name}: {bad} of {scores[..., 0].size} predictions have a score that is NaN.")
    return (scores >= threshold).astype(np.int8) if multi_label else scores.argmax(axis=-1)


# --- Results ---


@dataclass(kw_only=True)
class Result:
    """One head on one encoder, trained R times with the same number of labels, measured on M test items.

    Or on S encoders of one kind, from S pretraining seeds: then what has R values here has S x R, seed after seed.
    """

    task: Task
    encoder: str
    head: str
    measured: Mapping[str, ItemScores | np.ndarray]  # of each measure: items, (R, M), or one value a run, (R,)
    shots: int | None = None  # labels per class; None: the full training set
    info: Facts = field(default_factory=dict)  # pooling, max_seq_length, features ...: copied into the row
    trains_encoder: bool = False  # the trainable parameters include the encoder's
    is_baseline: bool = False  # a head without an encoder
    preset: str | None = None  # of the head's training: a row of `docsplit.evaluation.heads.presets.PRESETS`
    pretraining_seeds: int | None = 1  # S; None where nothing was pretrained: TF-IDF, BM25
    seconds: float = 0.0  # to train the head, mean over runs
    trainable_parameters: int = 0
    details: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # of each label, say: (R,), NaN for none
    members: tuple[str, ...] = ()  # the S encoders, where they are several or have another name
    test_documents: int | None = None  # distinct ones; None: as many as there are test items
    one_class: np.ndarray | None = None  # (R,) the largest share of the test items that a run gives one class
    curves: list[list[dict[str, float]]] = field(default_factory=list)  # of each run, as `HeadOutput.curves`
    further: Mapping[str, ItemScores] = field(default_factory=dict)  # numbers of each test item that rows leave out

    @property
    def features(self) -> str:
        """The features that the head was trained on: raw embeddings or standardised ones."""
        return self.info.get("features", "raw")

    @property
    def runs(self) -> int:
        """How often the head was trained, over all pretraining seeds."""
        return self.items(self.task.main).runs

    @property
    def warning(self) -> str | None:
        """A warning where runs give nearly all test items one class; the mean over runs may hide such a run."""
        alike = 0 if self.one_class is None else int((self.one_class > ONE_CLASS_SHARE).sum())
        if not alike:
            return None
        runs = f"{alike} of {self.runs} runs" if self.runs > 1 else "its one run"
        kind = "set of labels" if self.task == MULTI_LABEL_CLASSIFICATION else "class"
        return f"predicts one {kind} for more than {100 * ONE_CLASS_SHARE:g} % of the test {self.task.items} in {runs}"

    def items(self, measure: str) -> ItemScores:
        """Return the test items of a measure that has them."""
        items = self.measured[measure]
        assert isinstance(items, ItemScores), f"{measure} has one value a run: give its test items (ItemScores)"
        return items

    def of_runs(self, measure: str) -> np.ndarray:
        """Return the value of a measure in each run, (R,)."""
        measured = self.measured[measure]
        return measured.of_runs() if isinstance(measured, ItemScores) else measured


def classification_result(output: HeadOutput, split: LabelledSplit, **about: Any) -> Result:
    """Accuracy, macro- and micro-F1 of the classes or labels with the highest scores.

    With several labels a document, those whose probability is 0.5 or more are predicted, accuracy counts the documents
    with all labels right, and `per_label_f1` has the F1 of each label: NaN where it is neither true nor predicted.

    Args:
        output: scores (R, M, C) of the test documents of the split.
        about: encoder, head and further fields of `Result`.

    Raises:
        ValueError: naming encoder and head, if a score is NaN.
    """
    labels, names, is_multi_label = split.test_labels, split.class_names, split.multi_label
    predicted = predictions(output.scores, is_multi_label, name=_name(about))  # (R, M) or (R, M, C)
    values = _of_runs([class_measures(run, labels) for run in predicted])
    task, measured, details = CLASSIFICATION, values | {"accuracy": accuracy_items(predicted, labels)}, {}
    if is_multi_label:  # with one label a document micro-F1 is the accuracy, whose interval is enough
        details["per_label_f1"] = dict(zip(names, measured.pop("per_label_f1").T))
        measured["micro_f1"] = micro_f1_items(predicted, labels)
        task = MULTI_LABEL_CLASSIFICATION
    return _result(output, predicted, task=task, measured=measured, details=details, curves=output.curves, **about)


def link_result(output: HeadOutput, labels: np.ndarray, threshold: float = 0.5, **about: Any) -> Result:
    """Accuracy of linked or not, macro- and micro-F1 of these two classes, F1 of the links and ROC-AUC.

    Args:
        output: scores (R, M, C); the last column is higher where a pair is linked.
        labels: (M,) 0 or 1.
        threshold: at or above which a pair is taken for linked.
        about: encoder, head and further fields of `Result`.

    Raises:
        ValueError: naming encoder and head, if a score is NaN; if labels are all alike.
    """
    if {*labels.tolist()} != {0, 1}:
        raise ValueError("The test part needs linked and unlinked pairs, for ROC-AUC.")
    scores = output.scores[:, :, -1:]
    predicted = predictions(scores, True, threshold, _name(about))[:, :, 0]  # (R, M)
    computed = [
        class_measures(run, labels)
        | {"f1": f1_score(labels, run, zero_division=0), "roc_auc": roc_auc_score(labels, run_scores)}
        for run, run_scores in zip(predicted, scores[:, :, 0].astype(np.float64))
    ]
    measured = _of_runs(computed) | {"accuracy": accuracy_items(predicted, labels)}
    return _result(output, predicted, task=LINKS, measured=measured, **about)


def _name(about: Facts) -> str:
    return f"{about['encoder']!r} with head {about['head']!r} (shots: {about.get('shots')})"


def _of_runs(computed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each measure of the dictionaries of the runs, (R,), or (R, C) of each label."""
    return {measure: np.array([run[measure] for run in computed]) for measure in computed[0]}


def _result(output: HeadOutput, predicted: np.ndarray, **about: Any) -> Result:
    """Make the result, and warn where a run gives nearly all test items one class, or one set of labels."""
    shares = [np.unique(run, axis=0, return_counts=True)[1].max() / len(run) for run in predicted]
    costs: Facts = {"seconds": output.seconds, "trainable_parameters": output.trainable_parameters}
    result = Result(one_class=np.array(shares), **costs, **about)
    if result.warning:
        logger.warning(f"{_name(about)}, {result.features}: {result.warning}.")
    return result


# --- Several encoders as one ---


def merge_members(name: str, members: Sequence[str], of_members: Sequence[Sequence[Result]]) -> list[Result]:
    """Merge the results of a group of seeds, head by head; an encoder alone keeps its own."""
    if [name] == list(members):
        return list(of_members[0])
    return [merge_seeds(name, members, of_one_head) for of_one_head in zip(*of_members)]


def merge_seeds(name: str, members: Sequence[str], results: Sequence[Result]) -> Result:
    """Join results of the same head on encoders from several pretraining seeds.

    Equal facts (`info`) stay. Seconds of embedding are added up; `kept_start` names the members whose training did not
    beat their start. The largest of other numbers is kept, so that no member's share of seen documents is hidden;
    None, unknown, wins over all.

    Args:
        name: of all together, as it was typed.
        members: their names.
        results: one for each member, with the same number of runs.
    """
    first = results[0]
    details = {
        detail: {label: np.concatenate([result.details[detail][label] for result in results]) for label in labels}
        for detail, labels in first.details.items()
    }
    shares = [result.one_class for result in results if result.one_class is not None]
    return replace(
        first,
        encoder=name,
        measured=_joined([result.measured for result in results]),
        further=_joined([result.further for result in results]),
        details=details,
        seconds=float(np.mean([result.seconds for result in results])),
        info=_merged_facts(results),
        pretraining_seeds=len(members),
        members=tuple(members),
        one_class=np.concatenate(shares) if shares else None,
        curves=[curve for result in results for curve in result.curves],
    )


def join_folds(name: str, results: Sequence[Result], folds: Sequence[np.ndarray]) -> Result:
    """Join results of one method on disjoint parts of the test items to one on all of them.

    Facts (`info`) are merged as those of seeds are; seconds are added up.

    Args:
        name: of all together, as it was typed.
        results: one for each part, of one run each, whose measures all have items.
        folds: the numbers of the items in each part.
    """
    order = np.argsort(np.concatenate(folds))
    measured, further = (
        {name: ItemScores(items.numerators[:, order], items.denominators[:, order]) for name, items in both.items()}
        for both in (_joined([getattr(result, kind) for result in results], 1) for kind in ("measured", "further"))
    )
    about: Facts = {"info": _merged_facts(results), "seconds": sum(result.seconds for result in results)}
    return replace(results[0], encoder=name, measured=measured, further=further, **about)


def _joined(parts: Sequence[Mapping[str, Any]], axis: int = 0) -> dict[str, Any]:
    """Join each measure of several results: their runs, or with axis 1 their items."""
    joined: dict[str, Any] = {}
    for measure, values in parts[0].items():
        columns: list[Any] = [part[measure] for part in parts]
        join = partial(ItemScores.joined, axis=axis) if isinstance(values, ItemScores) else np.concatenate
        joined[measure] = join(columns)
    return joined


def _merged_facts(results: Sequence[Result]) -> Facts:
    """Merge the facts of several encoders, as `merge_seeds` says."""
    merged: Facts = {}
    for key in results[0].info:
        values: list[Any] = [result.info.get(key) for result in results]
        if None in values:
            merged[key] = None
        elif key == "embedding_seconds":
            merged[key] = sum(values)
        elif key == "kept_start":
            merged[key] = [result.encoder for result in results if result.info[key]]
        elif all(value == values[0] for value in values):
            merged[key] = values[0]
        elif all(isinstance(value, int | float) for value in values):
            merged[key] = max(values)
        else:
            merged[key] = " / ".join(dict.fromkeys(map(str, values)))
    return merged
