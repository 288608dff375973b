"""What an analysis shows: notes, tables and figures, the same for analysis.md and report.html.

A figure is written with the CSV of what it shows, under the same name (`save_figure`).
"""

import base64
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment

from docsplit.evaluation.analysis.contents import as_json
from docsplit.evaluation.analysis.estimates import Estimate
from docsplit.evaluation.results.markdown import bullets, image, inline, markdown_table
from docsplit.evaluation.results.report import plain
from docsplit.runtime.files import write_text, write_whole

TEMPLATE = Path(__file__).parents[2] / "report.html"
JSON_FILE, MARKDOWN_FILE, HTML_FILE = "analysis.json", "analysis.md", "report.html"


@dataclass(frozen=True)
class Table:
    """Cells as they are shown."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A picture and the numbers in it, files of the same folder."""

    caption: str
    picture: Path
    numbers: Path


@dataclass(frozen=True)
class Section:
    """One analysis."""

    title: str
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = field(default_factory=list)


def number(value: float | None, digits: int = 2) -> str:
    """Return the text of a cell; nothing for None and NaN."""
    return "" if value is None or value != value else f"{value:,.{digits}f}"


def with_interval(estimate: Estimate | None, digits: int = 2) -> str:
    """Return `1.28 [1.25, 1.31]`; nothing for None."""
    if estimate is None:
        return ""
    low, high = (number(end, digits) for end in (estimate.low, estimate.high))
    return f"{number(estimate.mean, digits)} [{low}, {high}]"


def literal(name: str) -> str:
    """Return a name for matplotlib, which would read what is between two dollars as a formula."""
    return name.replace("$", r"\$")


def save_figure(figure: Any, path: Path, caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Figure:
    """Write a matplotlib figure as PNG and what it shows as CSV beside it, each whole or not at all."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda to: figure.savefig(to, format="png", dpi=130, metadata={"Software": None}))
    plt.close(figure)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path.with_suffix(".csv"), text.getvalue())
    return Figure(caption, path, path.with_suffix(".csv"))


def write_report(folder: Path, title: str, sections: Sequence[Section], contents: Mapping[str, object]) -> None:
    """Write analysis.json (all of `contents`), analysis.md and report.html, which holds its pictures, each whole."""
    title = " ".join(title.split())
    # A single encoder has no differences.
    sections = [replace(section, tables=[table for table in section.tables if table.rows]) for section in sections]
    write_text(folder / JSON_FILE, json.dumps(plain(as_json(contents)), indent=2, allow_nan=False) + "\n")
    write_text(folder / MARKDOWN_FILE, markdown(title, sections))
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["picture"] = _inside
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    write_text(folder / HTML_FILE, template.render(title=title, sections=sections))


def markdown(title: str, sections: Sequence[Section]) -> str:
    """All notes and tables, and where the figures are."""
    parts = [f"# {inline(title)}"]
    for section in sections:
        parts.append(f"## {inline(section.title)}")
        if section.notes:
            parts.append(bullets(section.notes))
        for table in section.tables:
            parts.append(f"{inline(table.caption)}\n\n{markdown_table(table.header, table.rows)}")
        parts += [
            f"{image(figure.caption, figure.picture.name)}\n\nIn numbers: {inline(figure.numbers.name)}."
            for figure in section.figures
        ]
    return "\n\n".join(parts) + "\n"


def _inside(figure: Figure) -> str:
    return f"data:image/png;base64,{base64.b64encode(figure.picture.read_bytes()).decode()}"
