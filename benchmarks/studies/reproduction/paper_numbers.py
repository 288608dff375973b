"""Numbers that the papers print, from docs/papers.

A file has the tables of a paper, cell by cell. `columns` are pairs of a data set (null: the rows are data sets, or it
is of all) and a metric, under the names that results use where these have it; `rows` are named as the paper names
them. `part` names a part of a table that the paper divides, `head` the head of ours that a table belongs to (`heads`:
of single rows), `shots` its labels a class. `derived` and `claims` are what the paper's text says of its tables.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

from docsplit.runtime.files import ROOT

COLUMN = "paper (other weights and data)"
Number = Decimal | int  # with the digits that the paper prints


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper, or a part of it."""

    table: str  # its number; another name where the paper gives it none
    title: str
    columns: Sequence[Sequence[str | None]]  # data set, metric
    rows: Mapping[str, Sequence[Number | None]]  # None: an empty cell
    part: str = ""
    note: str = ""
    head: str | None = None  # None: it stands beside no row of results
    heads: Mapping[str, str] = field(default_factory=dict)  # of rows that have another one
    shots: Mapping[str, int] | str | None = None  # labels a class by data set; "few": how many is not said; None: all

    def value(self, row: str, metric: str, data: str | None = None) -> Number | None:
        """Return a cell."""
        return self.rows[row][[*map(list, self.columns)].index([data, metric])]

    def methods(self, head: str) -> list[str]:
        """Return the rows that belong to a head."""
        return [name for name in self.rows if self.heads.get(name, self.head) == head]


@dataclass(frozen=True)
class Paper:
    """The tables of a paper, and the names under which results may have its data sets and methods."""

    short: str
    data: Mapping[str, Sequence[str]]  # spellings, small letters and digits alone
    methods: Mapping[str, Mapping[str, Any]]
    tables: Sequence[PaperTable]
    derived: Sequence[Mapping[str, Any]]
    claims: Sequence[Mapping[str, Any]]

    def table(self, number: str, part: str = "") -> PaperTable:
        """Return the table of this number, or a part of it."""
        return next(table for table in self.tables if (table.table, table.part) == (number, part))


@cache
def read_paper(name: str) -> Paper:
    """Read docs/papers/NAME.json."""
    contents = json.loads((ROOT / "docs/papers" / f"{name}.json").read_text(encoding="utf-8"), parse_float=Decimal)
    tables = [PaperTable(**table) for table in contents["tables"]]
    stated = {name: contents[name] for name in ("short", "data", "methods", "derived", "claims")}
    return Paper(tables=tables, **stated)
