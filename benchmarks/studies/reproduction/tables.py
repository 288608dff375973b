"""The papers' tables with our numbers in them: the paper's rows and columns, and ours that the paper has not.

`TABLES` says which evaluation of a recipe fills which table of docs/papers. A paper's row is filled by the methods of
the recipe that name it (`paper`); a method without such a row stands below. A paper's set is filled by the recipe's
set of the same name; a set that the paper has not, python_docs for example, is a column more.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.engine.results import Results, Row
from benchmarks.studies.reproduction.measure import DATA_SETS, PLACE, refuse_doubles
from benchmarks.studies.reproduction.paper_numbers import Number, PaperTable, read_paper
from benchmarks.studies.reproduction.plan import Plan, evaluation_group, methods_of, options_of, papers_rows

RAW, STANDARDIZED = "raw", "standardized"
NOT_IN_RECIPE, NOT_RUN, FAILED = "not in this recipe", "not run yet", "failed"
FEW_OF_OURS = 5  # labels a class, of sets that no paper has
MEAN = "mean "  # begins the metric of a column over all sets of a table
OF_CELLS = ("hours", "trained, %", "parameters")  # columns that are no measures of test items
COUNTS = ("documents", "classes", "mean words", "median words", "max words")  # shown without decimals
PERCENT_FROM = 1.5  # a paper's column with a larger number is in percent


@dataclass(frozen=True)
class Filled:
    """Which evaluation fills which table of a paper."""

    family: str
    paper: str
    table: str
    evaluation: str
    part: str = ""
    head: str | None = None  # in place of the table's
    features: str = RAW
    metrics: Mapping[str, str] = field(default_factory=dict)  # our names of the table's metrics, where they differ
    by_set: bool = False  # a row a data set, with the numbers of the first method of the evaluation
    with_paper: bool = True  # False: a head that the paper has not
    differs: str = ""  # from the paper's experiment, beside what the recipe says
    seed: int | None = None  # the one pretraining seed that counts, where rows have different numbers of them


def _classification(table: str, head: str, features: str) -> Filled:
    is_papers = (head, features) == ("mlp", RAW)
    differs = "" if is_papers else f"The head is {head} on {features} features, which the paper has not."
    return Filled("docsplit", "docsplit_v2", table, "classification", head=head, features=features,
                  with_paper=is_papers, differs=differs)  # fmt: skip


def _bregman(part: str, head: str, features: str) -> Filled:
    differs = "" if features == RAW else "The features are standardised, which the paper's are not."
    return Filled("bregman", "bregman", "2", "classification of the Bregman paper", part, head, features,
                  with_paper=features == RAW, differs=differs)  # fmt: skip


NO_ENCODER = "documents"  # the method whose words alone are counted
READ = "Ours are the documents whose words are counted, all parts together; other evaluations read other numbers."


def _factors(table: str) -> list[Filled]:
    by_mlp = "By the MLP on {} embeddings; the paper's are fine-tuned end to end. Each row is seed 0 alone."
    tuned = Filled("bregman", "bregman", table, "factors of the Bregman paper", seed=0,
                   differs="Each row is seed 0 alone.")  # fmt: skip
    return [tuned, *(replace(tuned, head="mlp", features=features, with_paper=features == RAW,
                             differs=by_mlp.format(features)) for features in (RAW, STANDARDIZED))]  # fmt: skip


TABLES = (
    Filled("docsplit", "docsplit_v1", "1", "words", head=DATA_SETS, by_set=True, differs=READ),
    Filled("docsplit", "docsplit_v2", "of section 4.2", "words", head=DATA_SETS, by_set=True, differs=READ),
    *(_classification("1", head, features) for head in ("mlp", "linear") for features in (RAW, STANDARDIZED)),
    *(_classification("2", head, features) for head in ("mlp", "linear") for features in (RAW, STANDARDIZED)),
    Filled("docsplit", "docsplit_v1", "3", "links"),
    Filled("docsplit", "docsplit_v1", "3", "links", features=STANDARDIZED, with_paper=False,
           differs="The features are standardised, which the paper's are not."),
    Filled("docsplit", "docsplit_v1", "4", "words", head="redundancy", by_set=True),
    Filled("docsplit", "docsplit_v1", "5", "sentences", head="similarity", by_set=True),
    _bregman("MLP", "mlp", RAW), _bregman("MLP", "mlp", STANDARDIZED),
    _bregman("linear layer", "linear", RAW), _bregman("linear layer", "linear", STANDARDIZED),
    Filled("bregman", "bregman", "2", "fine-tuning of the Bregman paper", "fine-tuning"),
    Filled("bregman", "bregman", "3", "few labels of the Bregman paper"),
    *_factors("4"),
    Filled("bregman", "bregman", "5", "classification of the Bregman paper", head="mlp"),
    *_factors("6"), *_factors("7"),
    Filled("graph", "graph", "1", "clusters", head="k-means"),
    Filled("graph", "graph", "2", "fine-tuning of the graph paper"),
    Filled("graph", "graph", "3", "ranking"),
    Filled("graph", "graph", "4", "ranking"),
    Filled("graph", "graph", "5", "ranking"),
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A number of ours, or why there is none, beside the paper's."""

    row: str
    column: str
    method: str | None
    data: str | None
    metric: str
    ours: float | None = None  # mean over pretraining seeds
    std: float | None = None  # over pretraining seeds; without them over trainings of the head
    lacks: str | None = None
    paper: Number | None = None
    group: str | None = None  # of the study, which measured it
    percent: bool = False
    one_class: bool = False  # the head gave nearly all test documents one class, with one seed at least

    @property
    def text(self) -> str:
        """Return our number as it is shown, or what it lacks."""
        if self.ours is None:
            return self.lacks or ""
        if self.metric in COUNTS:
            return f"{self.ours:,.0f}"
        scale, digits = (100, 1) if self.percent else (1, 3)
        spread = "" if self.std is None else f" ± {scale * self.std:.{digits}f}"
        return f"{scale * self.ours:.{digits}f}{spread}{'†' if self.one_class else ''}"


def scaled(figure: Figure, value: float | None) -> float | None:
    """Return a value in the paper's unit."""
    return value if value is None or not figure.percent else 100 * value


@dataclass(frozen=True)
class JointTable:
    """A table of a paper with our numbers."""

    filled: Filled
    title: str
    note: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Figure]]
    shots: Any  # of the paper's table

    @property
    def name(self) -> str:
        """Return the paper and the table, and the head where it is not the paper's."""
        part = f", {self.filled.part}" if self.filled.part else ""
        head = "" if self.filled.with_paper else f", {self.filled.head or 'mlp'} on {self.filled.features} features"
        return f"{read_paper(self.filled.paper).short}, Table {self.filled.table}{part}{head}"


class Numbers:
    """The rows of a run, to be looked up: means over pretraining seeds."""

    def __init__(self, plan: Plan, results: Results, statuses: Mapping[str, str]):
        """Take the results, and the status of each group: "done", "failed", or "to do"."""
        self.plan, self.results, self.statuses = plan, results, statuses
        self.rows: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        refuse_doubles(results.rows)
        for row in results.rows:
            if row["task"] != "pretraining":
                self.rows[tuple(row[name] for name in PLACE if name != "seed")].append(row)

    def look_up(self, *place: Any, seed: int | None = None) -> tuple[float, float | None] | None:
        """Return mean and deviation: over pretraining seeds; of one encoder, or seed, over trainings of the head."""
        rows = [row for row in self.rows.get(place, ()) if seed is None or row["seed"] == seed]
        if not rows:
            return None
        values = [row["value"] for row in rows]
        return statistics.mean(values), (statistics.stdev(values) if len(values) > 1 else rows[0].get("std"))

    def one_class(self, *place: Any, seed: int | None = None) -> bool:
        """Whether the head gave nearly all test documents one class with any seed, or that one (`Result.warning`)."""
        return any(row.get("warning") for row in self.rows.get(place, ()) if seed is None or row["seed"] == seed)

    def lacks(self, evaluation: str, data: str, method: str | None) -> str:
        """Say why there is no number."""
        missing = {(one.evaluation, one.data): one.needs for one in self.plan.missing}
        if (evaluation, data) in missing:
            return missing[evaluation, data]
        group = evaluation_group(evaluation, data, method) if method is not None else ""
        status = self.statuses.get(group)
        if status is None:
            return NOT_IN_RECIPE
        return "does not apply" if status == "done" else FAILED if status == "failed" else NOT_RUN


def joint_tables(plan: Plan, numbers: Numbers, family: str) -> Iterator[JointTable]:
    """Yield the tables of a family by the heads that the recipe has; of a recipe with hypotheses of its own those that
    it fills, without other rows."""
    for filled in TABLES:
        paper = read_paper(filled.paper).table(filled.table, filled.part)
        if filled.family == family and is_of_recipe(plan.recipe, filled, paper):
            table = by_set(filled, paper, numbers) if filled.by_set else by_method(plan, filled, paper, numbers)
            if "hypotheses" not in plan.recipe:
                yield table
            elif (ours := without_others(plan, table)).rows:
                yield ours


def is_of_recipe(recipe: Mapping[str, Any], filled: Filled, table: PaperTable) -> bool:
    """Whether a recipe measures a method by the head of a table; without the evaluation, whether the paper does."""
    head = filled.head or table.head
    if (evaluation := recipe["evaluations"].get(filled.evaluation)) is None:
        return filled.with_paper and head == (table.head or head)
    if evaluation["kind"] in ("analysis", "ranking") or head is None:
        return True
    methods = [recipe["methods"][name] for name in methods_of(recipe, filled.evaluation)]
    reads = [method.get("read", {}) for method in methods
             if filled.features == RAW or method.get("words") != "tfidf"]  # fmt: skip
    heads = set[str]()
    for own in evaluation["sets"].values():
        given = evaluation.get("options", {}) | (own or {}).get("options", {})
        known = options_of({"recipe": (own or {}).get("recipe"), "options": given}).get("heads", head)
        for stated in (read.get("heads", known) for read in reads):
            heads |= {stated} if isinstance(stated, str) else set(stated)
    return head in heads


def without_others(plan: Plan, table: JointTable) -> JointTable:
    """Return a table without the rows and columns of methods and sets that the recipe has not."""
    sets = plan.recipe["evaluations"].get(table.filled.evaluation, {}).get("sets", {})
    kept = {name: [figure for figure in figures if figure.data in sets] for name, figures in table.rows.items()
            if any(figure.method in plan.recipe["methods"] for figure in figures)}  # fmt: skip
    rows = {name: figures for name, figures in kept.items() if figures}
    columns = [figure.column for figure in next(iter(rows.values()), [])]
    return replace(table, note="", columns=columns, rows=rows)


def columns_of(plan: Plan, filled: Filled, table: PaperTable) -> list[tuple[str | None, str]]:
    """Return the paper's columns, and behind them those of the recipe's other sets with the paper's metrics."""
    columns = [(data, str(metric)) for data, metric in table.columns]
    metrics = list(dict.fromkeys(metric for data, metric in columns if data is not None))
    known = {data for data, _ in columns} | _sets_of_other_tables(filled)
    sets = plan.recipe["evaluations"].get(filled.evaluation, {}).get("sets", {})
    return columns + [(data, metric) for data in sets if data not in known for metric in metrics]


def _sets_of_other_tables(filled: Filled) -> set[str | None]:
    """Return the papers' sets that the same evaluation measures for other tables."""
    others = [other for other in TABLES if other.evaluation == filled.evaluation]
    tables = [read_paper(other.paper).table(other.table, other.part) for other in others]
    return {data for table in tables for data, _ in table.columns}


def rows_of(plan: Plan, filled: Filled, table: PaperTable) -> dict[str, list[str]]:
    """Return the rows, each with the methods that fill it: the paper's, then ours that no row of the paper names."""
    recipe, evaluation = plan.recipe, filled.evaluation
    methods = methods_of(recipe, evaluation) if evaluation in recipe["evaluations"] else []
    rows: dict[str, list[str]] = {name: [] for name in table.rows}
    others = [name for other in TABLES if other.evaluation == evaluation
              for name in read_paper(other.paper).table(other.table, other.part).rows]  # fmt: skip
    for method in methods:
        names = papers_rows(recipe["methods"][method])
        for name in names:
            if name in rows:
                rows[name].append(method)
        if not any(name in others for name in names):
            rows.setdefault(method, []).append(method)
    if not any(rows.values()):  # the paper's rows are of its own encoders alone
        rows |= {method: [method] for method in methods}
    return rows


def by_method(plan: Plan, filled: Filled, table: PaperTable, numbers: Numbers) -> JointTable:
    """Fill a table that has a row a method."""
    columns = columns_of(plan, filled, table)
    rows = {}
    for name, methods in rows_of(plan, filled, table).items():
        head = filled.head or table.heads.get(name, table.head) or ""
        head = "bm25" if methods == ["BM25"] else head
        figures = [_figure(plan, filled, table, numbers, name, methods, head, column) for column in columns]
        rows[name] = _with_means(figures)
    titles = [" ".join(part for part in column if part) for column in columns]
    return JointTable(filled, table.title, table.note, titles, rows, table.shots)


def _figure(
    plan: Plan, filled: Filled, table: PaperTable, numbers: Numbers, name: str, methods: Sequence[str], head: str,
    column: tuple[str | None, str],
) -> Figure:  # fmt: skip
    """Fill one cell."""
    data, metric = column
    is_papers = [data, metric] in [list(known) for known in table.columns]
    paper = table.value(name, metric, data) if is_papers and filled.with_paper and name in table.rows else None
    percent = (
        metric in _percents(table)
        if not is_papers
        else any((table.value(row, metric, data) or 0) > PERCENT_FROM for row in table.rows)
    )
    title = " ".join(part for part in column if part)
    if data is None:
        method = methods[0] if methods else None
        ours = _of_cells(plan, filled, numbers, method, metric) if metric in OF_CELLS and method else None
        lacks = None if ours is not None else NOT_IN_RECIPE if method is None else NOT_RUN
        return Figure(name, title, method, None, metric, ours, None, lacks, paper)
    shown = [method for method in methods if method in methods_of(plan.recipe, filled.evaluation, data)]
    method = shown[0] if shown else None
    shots = _shots(table, data)
    own = filled.metrics.get(metric, metric)
    place = (filled.evaluation, data, method, head, filled.features, shots, own)
    found = numbers.look_up(*place, seed=filled.seed) if method else None
    group = evaluation_group(filled.evaluation, data, method) if method else None
    if found is None:
        lacks = numbers.lacks(filled.evaluation, data, method)
        return Figure(name, title, method, data, metric, lacks=lacks, paper=paper, group=group, percent=percent)
    return Figure(name, title, method, data, metric, *found, paper=paper, group=group, percent=percent,
                  one_class=numbers.one_class(*place, seed=filled.seed))  # fmt: skip


def _percents(table: PaperTable) -> set[str]:
    """Return the metrics that a table has in percent."""
    columns = [list(map(str, column)) for column in table.columns]
    return {
        metric for number, (_, metric) in enumerate(columns)
        if any((values[number] or 0) > PERCENT_FROM for values in table.rows.values())
    }  # fmt: skip


def _shots(table: PaperTable, data: str) -> int | None:
    """Return the labels a class: the table's for a set, `FEW_OF_OURS` of one that it has not, None for all."""
    if table.shots is None:
        return None
    if isinstance(table.shots, str):  # the paper does not say how many
        return 4
    return table.shots.get(data, FEW_OF_OURS)


def _with_means(figures: Sequence[Figure]) -> list[Figure]:
    """Fill the columns that are means over the sets of the table, once all of its sets are measured."""
    filled = []
    for figure in figures:
        if figure.data is None and figure.metric.startswith(MEAN):
            metric = figure.metric.removeprefix(MEAN)
            of_sets = [one for one in figures if one.data not in (None, "python_docs") and one.metric == metric]
            lacking = [one for one in of_sets if one.ours is None]
            values = [one.ours for one in of_sets if one.ours is not None]
            whole = bool(values) and not lacking
            lacks = None if whole else f"needs all sets; lacks {', '.join(str(one.data) for one in lacking)}"
            figure = Figure(figure.row, figure.column, figure.method, None, figure.metric,
                            statistics.mean(values) if whole else None, None, lacks, figure.paper,
                            percent=bool(of_sets) and of_sets[0].percent)  # fmt: skip
        filled.append(figure)
    return filled


def _of_cells(plan: Plan, filled: Filled, numbers: Numbers, method: str, metric: str) -> float | None:
    """Return the hours of a method's cells in an evaluation, the share that is trained, or millions of parameters."""
    head = filled.head or "finetune"
    rows = [row for place, rows in numbers.rows.items() if place[0] == filled.evaluation and place[2] == method
            and place[3] == head for row in rows]  # fmt: skip
    if not rows:
        return None
    if metric == "hours":
        return sum({row["cell"]: row["seconds"] for row in rows}.values()) / 3600
    parameters, trained = rows[0].get("parameters"), rows[0].get("trained")
    if not parameters:
        return None
    if metric == "parameters":
        return parameters / 1e6
    return None if trained is None else 100 * trained / (parameters if head == "finetune" else parameters + trained)


def by_set(filled: Filled, table: PaperTable, numbers: Numbers) -> JointTable:
    """Fill a table that has a row a data set, with the numbers of one method."""
    evaluation = numbers.plan.recipe["evaluations"].get(filled.evaluation, {})
    titles = [str(metric) for _, metric in table.columns]
    method = methods_of(numbers.plan.recipe, filled.evaluation)[0] if evaluation else None
    rows = {}
    for data in dict.fromkeys((*table.rows, *evaluation.get("sets", {}))):
        figures = []
        for title in titles:
            found = numbers.look_up(filled.evaluation, data, method, filled.head, RAW, None, title)
            ours, deviation = found or (None, None)
            paper = table.value(data, title) if data in table.rows else None
            group = evaluation_group(filled.evaluation, data, str(method))
            lacks = None if found else numbers.lacks(filled.evaluation, data, method)
            figures.append(Figure(data, title, method, data, title, ours, deviation, lacks, paper, group))
        rows[data] = figures
    return JointTable(filled, table.title, table.note, titles, rows, table.shots)
