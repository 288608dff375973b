"""Numbers that the papers print, from docs/papers, to stand beside those measured here.

A file has the tables of a paper, cell by cell. `columns` are pairs of a data set (null: the rows are data sets, or it
is of all) and a metric, under the names that results use where these have it; `rows` are named as the paper names
them. `part` names a part of a table that the paper divides, `head` the head of ours that a table belongs to (`heads`:
of single rows), `shots` its labels a class. `derived` and `claims` are what the paper's text says of its tables.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

COLUMN = "paper (other weights and data)"
PAPERS = ("docsplit_v2", "docsplit_v1", "simlte", "bregman", "graph")  # as numbers are looked for: the newest first
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


@dataclass(frozen=True)
class Beside:
    """What a paper has beside a row of results."""

    source: str  # the paper and its table
    note: str  # what to know of the table
    measures: tuple[str, ...]
    numbers: str  # `60.04 / 50.14`, of the measures in their order


@cache
def read_paper(name: str) -> Paper:
    """Read docs/papers/NAME.json, of a clone or of an installation."""
    package = Path(__file__).parents[2]
    folder = package / "papers"  # of an installation; those of a clone lie among its documents
    folder = folder if folder.is_dir() else package.parent / "docs" / "papers"
    contents = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"), parse_float=Decimal)
    tables = [PaperTable(**table) for table in contents["tables"]]
    stated = {name: contents[name] for name in ("short", "data", "methods", "derived", "claims")}
    return Paper(tables=tables, **stated)


def set_named(paper: Paper, data: str) -> str | None:
    """Return the paper's name of a data set, if a spelling of it begins at a word of what results call the data."""
    words = re.findall("[a-z0-9]+", data.lower())
    ends = ["".join(words[start:]) for start in range(len(words))]
    found = [name for name, spellings in paper.data.items() if any(end.startswith((*spellings,)) for end in ends)]
    return found[0] if found else None


def beside(paper: Paper, table: PaperTable, metric: str, data: str) -> str:
    """Return the number of the same data set, else the range over the table's: `1.06 to 1.12 (5 sets)`.

    Args:
        table: whose rows are data sets.
    """
    own = set_named(paper, data)
    if own is not None and own in table.rows:
        return str(table.value(own, metric))
    return f"{_span([table.value(name, metric) for name in table.rows])} ({len(table.rows)} sets)"


def beside_row(row: Mapping[str, Any], encoder: str, data: str) -> Beside | None:
    """Return what the papers have for the data set, head and labels of a row; None where they have nothing.

    The numbers are of the first table with the data set, head, measures and labels: those of the method that is named
    like the encoder; else the range over the methods with this head, or the only one with its name. Standardised
    features are in no paper.

    Args:
        row: of results.json.
        encoder: its name in tables.
        data: what results call the data.
    """
    head = row["head"].partition(" ")[0]  # BM25 has parameters behind it
    for paper in map(read_paper, PAPERS) if row["features"] == "raw" else ():
        own = set_named(paper, data)
        for table in paper.tables if own is not None else ():
            measures = tuple(str(metric) for of_set, metric in table.columns
                             if of_set == own and f"{metric}_mean" in row)  # fmt: skip
            if not measures or not table.methods(head) or not _has_shots(table, str(own), row["shots"]):
                continue
            methods, named = table.methods(head), method_named(paper, table, encoder)
            known = [name for name in methods if table.value(name, measures[0], own) is not None]
            shown = [named] if named in methods else known
            whose = "" if named in methods else f" ({len(shown)} methods)" if len(shown) > 1 else f" ({shown[0]})"
            numbers = " / ".join(
                _span([table.value(str(name), measure, own) for name in shown]) for measure in measures
            )
            part = f", {table.part}" if table.part else ""
            return Beside(f"{paper.short}, Table {table.table}{part}", table.note, measures, numbers + whose)
    return None


def paper_column(
    rows: Sequence[Mapping[str, Any] | None], titles: Mapping[str, str], names: Mapping[str, str], data: str
) -> list[str]:
    """Return the title of a column of the papers' numbers and a cell for each row; nothing if they have none.

    Args:
        rows: with the same number of labels; None: an empty cell.
        titles: of measures.
        names: of encoders, as tables have them.
        data: what results call the data.
    """
    found = [None if row is None or not data else beside_row(row, names[row["encoder"]], data) for row in rows]
    measures = next((one.measures for one in found if one), None)
    if measures is None:
        return []
    return [
        f"{' / '.join(titles[name] for name in measures)}, {COLUMN}",
        *(one.numbers if one else "" for one in found),
    ]


def paper_sources(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], data: str) -> str | None:
    """Say which tables of which papers the numbers beside rows are from; None where there are none."""
    found = [one for row in rows if (one := beside_row(row, names[row["encoder"]], data))]
    if not found:
        return None
    tables = "; ".join(sorted({one.source for one in found}))
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in sorted({one.note for one in found if one.note}))
    return f"The {COLUMN}: {tables}. An encoder with the name of a method has its number, any other the range.{notes}"


def method_named(paper: Paper, table: PaperTable, encoder: str) -> str | None:
    """Return the row of a table whose method is named like an encoder, or like the last part of its path."""
    plain = _plain(encoder.rstrip("/").rpartition("/")[2])
    for name in table.rows:
        if plain in (_plain(name), *paper.methods.get(name, {}).get("spellings", ())):
            return name
    return None


def _plain(text: str) -> str:
    return "".join(re.findall("[a-z0-9]+", text.lower()))


def _has_shots(table: PaperTable, data: str, shots: int | None) -> bool:
    """Whether a table has as many labels a class."""
    if table.shots is None or isinstance(table.shots, str):
        return (table.shots is None) == (shots is None)
    return table.shots[data] == shots


def _span(values: Sequence[Number | None]) -> str:
    """Return the number, or the lowest and highest: `1.06 to 1.12`; "-" for an empty cell."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return str(known[0]) if len(known) == 1 else f"{min(known)} to {max(known)}"
