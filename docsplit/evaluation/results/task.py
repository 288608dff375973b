"""What an evaluation measures, and how its tables show it: stated once, for rows, tests, tables, plots and cards.

The columns of a row in results.json mean what the `Task` beside them says; nothing is read off their names.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from docsplit.evaluation.results.items import Statistic, ratio_of_sums
from docsplit.runtime.files import checked, record_of


@dataclass(frozen=True)
class Task:
    """Measures of an evaluation, how they are computed from test items, compared and shown."""

    name: str  # as the Hub names tasks
    measures: dict[str, str]  # every measure, in the order of a row, and the title that tables give it
    main: str  # the measure that encoders are compared by: the one that must know its test items
    columns: Sequence[str]  # the measures that tables, pictures and cards show
    layout: Literal["grid", "lines"]  # encoders x heads for each number of labels; or a line an encoder and head
    heading: str = "Results"  # of the table of lines; a grid is headed by the number of labels
    details: dict[str, str] = field(default_factory=dict)  # numbers of each label, say, and the heading of their table
    note: str = ""  # said under the tables
    baseline_opponent: str | None = None  # the head of every encoder that baselines without an encoder meet
    items: str = "documents"  # what is tested: a row has their number as `test_documents`, `test_pairs` ...
    head_title: str = "head"  # what tables call a head
    head_pairs: Sequence[tuple[str, str]] = ()  # heads that are compared on one encoder, or with one of a baseline
    paired_test: Literal["bootstrap", "randomisation"] = "bootstrap"  # the latter is corrected by Holm
    runs: str = "runs: draws of the labels with few, seeds of the head with the full training set"  # what ± is over
    has_training: bool = True  # of heads, on labels
    statistics: Mapping[str, Statistic] = field(default_factory=dict)  # of measures that are no ratio of sums

    def __post_init__(self) -> None:
        if unknown := [name for name in (self.main, *self.columns, *self.statistics) if name not in self.measures]:
            raise ValueError(f"{', '.join(unknown)} of task {self.name!r} is no measure of it: {[*self.measures]}.")
        if self.paired_test == "randomisation" and self.main in self.statistics:
            raise ValueError(
                f"The randomisation test of task {self.name!r} exchanges the means of items, and {self.main} is no "
                "ratio of sums: use the bootstrap."
            )

    def statistic(self, measure: str) -> Statistic:
        """Return the function that computes a measure from test items, for their scores and in the bootstrap."""
        return self.statistics.get(measure, ratio_of_sums)

    def to_json(self) -> dict[str, Any]:
        """Return what results.json states: all that its tables need."""
        stated = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "statistics"}
        return json.loads(json.dumps(stated))


_CLASS_MEASURES = {"accuracy": "Accuracy", "macro_f1": "Macro-F1", "micro_f1": "Micro-F1"}

CLASSIFICATION = Task(
    name="text-classification",
    measures=_CLASS_MEASURES,
    main="accuracy",
    columns=("accuracy", "macro_f1"),
    layout="grid",
)
MULTI_LABEL_CLASSIFICATION = Task(
    name="text-classification",
    measures=_CLASS_MEASURES | {"macro_f1_lexglue": "Macro-F1, LexGLUE"},
    main="micro_f1",
    columns=("micro_f1", "macro_f1", "macro_f1_lexglue"),
    layout="grid",
    details={"per_label_f1": "F1 of each label, full training set"},
    note="LexGLUE's macro-F1 has a column more, for documents without a label. Share of documents with all labels "
    "right: accuracy in results.json.",
)
LINKS = Task(
    name="text-ranking",
    measures=_CLASS_MEASURES | {"f1": "F1", "roc_auc": "ROC-AUC"},
    main="accuracy",
    columns=("accuracy", "f1", "roc_auc"),
    layout="lines",
    heading="Linked or not",
    baseline_opponent="mlp",
    items="pairs",
)

RANKING = Task(
    name="text-ranking",
    measures={
        "ndcg_at_10": "nDCG@10",
        "ndcg_at_20": "nDCG@20",
        "precision_at_5": "P@5",
        "precision_at_10": "P@10",
        "precision_at_20": "P@20",
        "mrr_at_10": "MRR@10",
        "mrr_at_100": "MRR@100",
        "recall_at_100": "Recall@100",
        "map": "MAP",
        "judged_at_10": "judged@10",
        "judged_at_20": "judged@20",
    },
    main="ndcg_at_10",
    columns=("ndcg_at_10", "ndcg_at_20", "precision_at_5", "precision_at_10", "precision_at_20", "mrr_at_10",
             "mrr_at_100", "recall_at_100", "map", "judged_at_10"),
    layout="lines",
    heading="Documents ranked for queries",
    items="queries",
    head_title="method",
    head_pairs=(("dense", "bm25"), ("hybrid", "bm25"), ("rrf", "bm25"), ("hybrid", "dense"), ("rrf", "dense"),
                ("bm25", "bm25 k1=0.9 b=0.4")),
    paired_test="randomisation",
    runs="pretraining seeds",
    has_training=False,
)  # fmt: skip

CLUSTERING = Task(
    name="text-clustering",
    measures={
        "nmi": "NMI",
        "nmi_sqrt": "NMI, geometric mean",
        "nmi_max": "NMI, maximum",
        "purity": "Purity",
        "v_measure": "V-measure",
        "ari": "ARI",
    },
    main="purity",
    columns=("nmi", "nmi_sqrt", "nmi_max", "purity", "v_measure", "ari"),
    layout="lines",
    heading="Clusters of the test documents",
    note="k-means with as many clusters as classes, fitted on the training documents; ± is over its seeds. V-measure "
    "is the NMI with the arithmetic mean.",
)


def task_of_file(contents: dict[str, Any]) -> Task:
    """Return the task that a results.json states.

    Raises:
        ValueError: naming the key, if a value is missing or of another type.
    """
    if "task" not in contents:
        raise ValueError("This results.json states no task, as files of before 0.1: run the evaluation again.")
    stated = {name: value for name, value in checked(contents["task"], dict, "task").items() if name != "statistics"}
    pairs = tuple(tuple(pair) for pair in checked(stated.get("head_pairs", []), list[list[str]], "task: head_pairs"))
    task = record_of(Task, stated | {"head_pairs": []}, "task")
    return replace(task, columns=tuple(task.columns), head_pairs=pairs)  # JSON has lists
