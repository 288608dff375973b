"""What results.json holds, as dataclasses: rows, paired comparisons, statistics of the data.

They become JSON once, where a file is written, and are read from it once, for the cards.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from docsplit.data.seen_documents import SHARES
from docsplit.evaluation.results.bootstrap import Difference, is_clear
from docsplit.evaluation.results.task import Task
from docsplit.runtime.files import checked, record_of

# What a row says of its encoder and data: an open set of columns, for each evaluation and encoder has its own.
Facts = dict[str, Any]
Json = dict[str, Any]
FACTS = {"max_seq_length": int | None, "num_parameters": int | None, **dict.fromkeys(SHARES, float | None)}  # some


@dataclass(frozen=True)
class Measured:
    """One measure of a row: mean and standard deviation, over runs or over several pretraining seeds.

    In results.json each of these numbers is a column, `accuracy_mean` and so on.
    """

    mean: float
    std: float | None  # of a sample; None: a single run or seed
    std_runs: float | None = None  # over the runs within a seed
    of_seeds: Sequence[float] | None = None  # the mean of each seed; None: not several
    low: float | None = None  # 95 % interval of the mean; None: the test items are unknown
    high: float | None = None

    def columns(self, name: str) -> Json:
        """Mean and deviations as columns; the interval stands at the end of the row."""
        columns = {f"{name}_mean": self.mean, f"{name}_std": self.std}
        if self.of_seeds is None:
            return columns
        return columns | {f"{name}_std_runs": self.std_runs, f"{name}_of_seeds": list(self.of_seeds)}

    def interval(self, name: str) -> Json:
        """Return the interval as columns, if there is one."""
        return {} if self.low is None else {f"{name}_low": self.low, f"{name}_high": self.high}

    @classmethod
    def read(cls, name: str, columns: Json, where: str) -> "Measured":
        """Take a measure out of the columns of a row; `where` is the row, for errors."""
        stated = {kind.name: columns.pop(f"{name}_{kind.name}", None) for kind in fields(cls)}
        return record_of(cls, stated, f"{where}: {name}")


@dataclass(frozen=True)
class Row:
    """One head on one encoder, with the same number of labels: a row of results."""

    task: Task
    encoder: str
    head: str
    shots: int | None  # labels per class; None: the full training set
    runs: int
    measures: dict[str, Measured]
    features: str = "raw"
    preset: str | None = None
    pretraining_seeds: int | None = None
    test_documents: int | None = None
    test_items: int | None = None
    warning: str | None = None
    members: Sequence[str] = ()  # the encoders of a group of seeds, or of one with another name
    seconds: float = 0.0  # of training, mean over runs
    trainable_parameters: int = 0
    trainable_share: float | None = None  # None: no parameters, or unknown ones
    validation_curves: list[list[dict[str, float]]] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)
    details: dict[str, dict[str, float | None]] = field(default_factory=dict)  # one: {label: value}

    @property
    def head_title(self) -> str:
        """The head, and its preset where it is not the default one."""
        return self.head if self.preset in (None, "docsplit") else f"{self.head} ({self.preset})"

    @property
    def head_name(self) -> str:
        """The head, its preset and the features that it was trained on, where these are not the default, or raw."""
        return self.head_title if self.features == "raw" else f"{self.head_title}, {self.features}"

    @property
    def main(self) -> Measured:
        """The measure that encoders are compared by."""
        return self.measures[self.task.main]

    def to_json(self) -> Json:
        """All columns. Where one run is all there is, each mean also stands under the bare name of its measure."""
        row: Json = {"encoder": self.encoder, "head": self.head, "shots": self.shots}
        row |= {"features": self.features, "preset": self.preset}
        row |= {"pretraining_seeds": self.pretraining_seeds, "runs": self.runs}
        row |= {"test_documents": self.test_documents, f"test_{self.task.items}": self.test_items}
        row["warning"] = self.warning
        for name, measured in self.measures.items():
            row |= measured.columns(name)
        if self.members:
            row["members"] = list(self.members)
        row |= {"seconds": self.seconds, "trainable_parameters": self.trainable_parameters}
        row["trainable_share"] = self.trainable_share
        if self.validation_curves:
            row["validation_curves"] = self.validation_curves
        row |= {name: value for name, value in self.facts.items() if name not in row} | self.details
        for name, measured in self.measures.items():
            row |= measured.interval(name)
        if not self.task.has_training:
            row |= {name: measured.mean for name, measured in self.measures.items()}
        return row

    @classmethod
    def from_json(cls, columns: Json, task: Task, where: str = "a row") -> "Row":
        """Read a row of results.json; what is no column of every row is a fact.

        Args:
            where: the row is, for errors.

        Raises:
            ValueError: naming row and column, if a value is missing or of another type.
        """
        rest = {name: value for name, value in columns.items() if name not in task.measures}
        measures = {name: Measured.read(name, rest, where) for name in task.measures if f"{name}_mean" in rest}
        details = {name: rest.pop(name) for name in task.details if name in rest}
        tested = rest.pop(f"test_{task.items}", None)
        known = {kind.name for kind in fields(cls)} - {"task", "measures", "facts", "details", "test_items"}
        columns = {name: rest.pop(name) for name in known if name in rest}
        if task.items == "documents":
            columns["test_documents"] = tested
        if missing := [name for name in (task.main, *task.columns) if name not in measures]:
            raise ValueError(f"{where} has no {missing[0]}_mean.")
        for name in FACTS.keys() & rest.keys():
            checked(rest[name], FACTS[name], f"{where}: {name}")
        stated = {"task": task, "measures": measures, "facts": rest, "details": details, "test_items": tested}
        return record_of(cls, stated | columns, where)


@dataclass(frozen=True)
class Comparison:
    """A paired test of two encoders, or of two heads."""

    head: str
    shots: int | None
    features: str
    a: str  # encoders
    b: str
    measure: str
    difference: Difference  # a - b
    pretraining_seeds: Sequence[int | None]  # of both; None where nothing was pretrained
    heads: Sequence[str] | None = None  # of both, where the task has pairs of them
    p_holm: float | None = None  # p corrected for the number of tests, where the task asks for it

    @property
    def head_name(self) -> str:
        """The head, or both where they differ, and the features, where these are not raw."""
        if self.heads is not None:
            return " - ".join(dict.fromkeys(self.heads))
        return self.head if self.features == "raw" else f"{self.head}, {self.features}"

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out, and a corrected p is below 0.05."""
        return is_clear(self.difference.low, self.difference.high, self.p_holm)

    @property
    def ahead(self) -> str | None:
        """The better encoder where the difference is clear and neither is a single pretraining run.

        Another seed may turn a difference between two of these round, and the test items know nothing of it.
        """
        if not self.is_clear or 1 in self.pretraining_seeds:
            return None
        return self.a if self.difference.difference > 0 else self.b

    def to_json(self) -> Json:
        """All columns."""
        row: Json = {"head": self.head, "shots": self.shots, "features": self.features}
        row |= {"a": self.a, "b": self.b, "measure": self.measure, **asdict(self.difference)}
        row |= {} if self.heads is None else {"heads": list(self.heads)}
        row["pretraining_seeds"] = list(self.pretraining_seeds)
        row |= {} if self.p_holm is None else {"p_holm": self.p_holm}
        return row | {"ahead": self.ahead}


@dataclass(frozen=True)
class TextStatistics:
    """Size and length of one part of the data; words are what stands between white space."""

    dataset: str
    part: str
    documents: int
    classes: int | None
    mean_words: float
    median_words: float
    max_words: int


def text_statistics(name: str, parts: dict[str, list[str]], num_classes: int | None) -> list[TextStatistics]:
    """Count documents, classes and words of each part, as in Table 1 of the DocSplit paper (v1)."""
    statistics = []
    for part, texts in parts.items():
        words = [len(text.split()) for text in texts] or [0]
        lengths = (float(np.mean(words)), float(np.median(words)), max(words))
        statistics.append(TextStatistics(name, part, len(texts), num_classes, *lengths))
    return statistics


@dataclass(frozen=True)
class Report:
    """All that results.json and results.md say of one evaluation."""

    task: Task
    rows: Sequence[Row]
    comparisons: Sequence[Comparison]
    settings: Facts = field(default_factory=dict)  # options and data, an open set
    statistics: Sequence[TextStatistics] = ()
    heading: str = "Results"
    data: str = ""  # of `docsplit.evaluation.results.data_names.describe_data`; it ends the title
    notes: Sequence[str] = ()  # above the tables

    @property
    def title(self) -> str:
        """The heading, and what was measured on."""
        return f"{self.heading}: {self.data}" if self.data else self.heading

    def to_json(self) -> Json:
        """Return the contents of results.json, but for the versions of packages."""
        return {
            "title": self.title,
            "data": self.data,
            "task": self.task.to_json(),
            "rows": [row.to_json() for row in self.rows],
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "statistics": [asdict(part) for part in self.statistics],
            "settings": self.settings,
            "notes": list(self.notes),
        }
