"""The papers' figures that are numbers, and what their texts compute from their tables, as tables of ours.

Maps and attention are in the cells' own report.html.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.engine.results import Results
from benchmarks.engine.study import Cell as StudyCell
from benchmarks.engine.study import Study
from benchmarks.studies.reproduction.hypotheses import Judged
from benchmarks.studies.reproduction.measure import DRAWN, WEIGHTS
from benchmarks.studies.reproduction.pages import Block, Cell, Heading, Table, Text
from benchmarks.studies.reproduction.paper_numbers import read_paper
from benchmarks.studies.reproduction.plan import Plan, evaluation_group
from benchmarks.studies.reproduction.tables import (
    NOT_IN_RECIPE,
    RAW,
    TABLES,
    Filled,
    JointTable,
    Numbers,
    by_method,
    scaled,
)


@dataclass
class Reported:
    """What the report is made of."""

    plan: Plan
    study: Study
    results: Results
    numbers: Numbers
    judged: Sequence[Judged]
    tables: Mapping[str, Sequence[JointTable]]  # by family
    options: argparse.Namespace  # of reproduce.py

    @cached_property
    def cells(self) -> list[StudyCell]:
        """All cells of the study."""
        return list(self.study.cells().values())

    def cells_of(self, group: str) -> list[StudyCell]:
        """Return the cells of a group of the study."""
        return [cell for cell in self.cells if cell.group == group]


def anchor_of(group: str) -> str:
    """Return the anchor of a group's numbers."""
    return "from-" + "".join(letter if letter.isalnum() else "-" for letter in group.lower())


TUNED = "fine-tuning of the graph paper"


def labels_curve(reported: Reported) -> Iterator[Block]:
    """Figure 2: accuracy by the number of labels a class."""
    rows = [row for row in reported.results.rows if row["task"] == "classification" and row["metric"] == "accuracy"
            and row["features"] == "raw" and row["head"] in ("mlp", "linear")]  # fmt: skip
    places = list(dict.fromkeys((row["data"], row["head"], row["method"]) for row in rows))
    labels = sorted({row["shots"] for row in rows if row["shots"] is not None})
    yield Heading(3, f"{read_paper('docsplit_v2').short}, Figure 2: accuracy by labels a class")
    lines: list[list[Cell | str]] = []
    for data, head, method in places:
        link = f"#{anchor_of(evaluation_group('classification', data, method))}"
        cells: list[Cell | str] = []
        for shots in (*labels, None):
            place = ("classification", data, method, head, "raw", shots, "accuracy")
            found, mark = reported.numbers.look_up(*place), "†" if reported.numbers.one_class(*place) else ""
            cells.append("" if found is None else Cell(f"{100 * found[0]:.1f}{mark}", link))
        lines.append([f"{method}, {head}, {data}", *cells])
    yield Table(["", *map(str, labels), "all"], lines)


def attention(reported: Reported) -> Iterator[Block]:
    """Figure 3 of SimLTE: attention of the last layer to the words of each part of speech."""
    yield Heading(3, f"{read_paper('simlte').short}, Figure 3: attention by part of speech")
    yield Text("Attention to a word, 1 if all words of its document had as much; then as it is, x 1,000, as the paper "
               "has it. Mean over words and seeds. The paper prints no number: it says that SimLTE has on nouns more "
               "than 1.4 times BERT's and SimCSE's (NYT).")  # fmt: skip
    rows: list[list[Cell | str]] = []
    for (evaluation, data, method), group in reported.plan.evaluated.items():
        if evaluation != "attention":
            continue
        row: list[Cell | str] = [f"{method}, {data}"]
        for metric in (*DRAWN["attention"], *WEIGHTS):
            found = reported.numbers.look_up("attention", data, method, "attention", RAW, None, metric)
            if found is None:
                row.append(reported.numbers.lacks("attention", data, method))
                continue
            mean, deviation = found
            scale = 1000 if metric in WEIGHTS else 1
            spread = "" if deviation is None else f" ± {scale * deviation:.2f}"
            row.append(Cell(f"{scale * mean:.2f}{spread}", f"#{anchor_of(group)}"))
        rows.append(row)
    missing = sorted({one.needs for one in reported.plan.missing if one.evaluation == "attention"})
    if rows:
        titles = [name.removesuffix("_to_uniform") for name in DRAWN["attention"]]
        yield Table(["", *titles, *(f"{title}, x 1,000" for title in titles)], rows)
    if missing or not rows:
        yield Text(f"Not measured: {'; '.join(missing) or NOT_IN_RECIPE}.")


def convergence(reported: Reported) -> Iterator[Block]:
    """Figure 5: the validation accuracy while the encoder is fine-tuned, epoch by epoch."""
    yield Heading(3, f"{read_paper('graph').short}, Figure 5: validation accuracy while fine-tuning")
    curves = [row for row in reported.results.rows if row.get("curve") and row["task"] == TUNED]
    if not curves:
        yield Text("Not run yet.")
        return
    longest = max(len(row["curve"]) for row in curves)
    rows: list[list[Cell | str]] = []
    for row in curves:
        values = [entry.get("accuracy", entry.get("macro_f1")) for entry in row["curve"]]
        link = f"#{anchor_of(evaluation_group(row['task'], row['data'], row['method']))}"
        shown: list[Cell | str] = [Cell(f"{100 * value:.1f}", link) if value is not None else "" for value in values]
        rows.append([f"{row['method']}, {row['data']}, seed {row['seed']}", *shown, *[""] * (longest - len(values))])
    yield Table(["", *(f"epoch {number}" for number in range(1, longest + 1))], rows)


def gains(reported: Reported, family: str) -> Iterator[Block]:
    """Yield the gains that a paper's text computes from its tables: again from its cells, and from ours."""
    first = Filled("docsplit", "docsplit_v1", "2", "classification", "all labels")  # v2 names no gain of these cells
    rows: list[list[Cell | str]] = []
    for filled in (one for one in (first, *TABLES) if one.family == family and one.with_paper):
        paper = read_paper(filled.paper)
        table = paper.table(filled.table, filled.part)
        for entry in paper.derived:
            if (entry["table"], entry.get("part", "")) != (filled.table, filled.part) or "over" not in entry:
                continue
            figures = by_method(reported.plan, filled, table, reported.numbers).rows
            pairs = [
                (own, other) for own, other in zip(figures[entry["of"]], figures[entry["over"]])
                if own.metric == entry["metric"] and own.data == entry.get("data", own.data)
                and own.data != entry.get("without") and None not in (own.paper, other.paper)
            ]  # fmt: skip
            measured = [(own, other) for own, other in pairs if None not in (own.ours, other.ours)]
            if not measured and "hypotheses" in reported.plan.recipe:
                continue
            is_share = "relative" in entry["how"]
            rows.append([
                f"{paper.short}, {entry['where']}: {entry['of']} over {entry['over']}, {entry['metric']}",
                entry.get("says", f"{entry['printed']} {'%' if is_share else 'points'}"),
                _gain([(own.paper, other.paper) for own, other in pairs], is_share),
                _gain([(scaled(own, own.ours), scaled(other, other.ours)) for own, other in measured], is_share)
                if measured
                else next(one.lacks or "" for pair in pairs for one in pair if one.ours is None),
                ", ".join(str(own.data) for own, _ in measured),
            ])  # fmt: skip
    if rows:
        yield Heading(3, "Gains that the papers' texts name")
        yield Text("A gain in % is the mean over sets of relative gains. Ours is over the sets that were measured.")
        yield Table(["", "the paper says", "from its cells", "ours", "over"], rows)


def _gain(pairs: Sequence[tuple[Any, Any]], is_share: bool) -> str:
    return f"{statistics.mean(100 * (own / other - 1) if is_share else own - other for own, other in pairs):.2f}"


FIGURES = {  # below the tables of a family
    "docsplit": (labels_curve, attention),
    "graph": (convergence,),
}
