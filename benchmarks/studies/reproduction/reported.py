"""What the report of a reproduction is made of."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.engine.results import Results
from benchmarks.engine.study import Cell, Study
from benchmarks.studies.reproduction.hypotheses import Judged
from benchmarks.studies.reproduction.plan import Plan
from benchmarks.studies.reproduction.tables import JointTable, Numbers


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

    def cells_of(self, group: str) -> list[Cell]:
        """Return the cells of a group of the study."""
        return [cell for cell in self.study.cells()[0].values() if cell.group == group]


def anchor_of(group: str) -> str:
    """Return the anchor of a group's numbers."""
    return "from-" + "".join(letter if letter.isalnum() else "-" for letter in group.lower())
