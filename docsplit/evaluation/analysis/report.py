"""What an analysis shows: notes, tables and figures, the same for analysis.md and report.html.

A figure is written with the CSV of what it shows, under the same name (`save_figure`).
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jinja2 import Environment

from docsplit.evaluation.results import plots
from docsplit.evaluation.results.bootstrap import is_clear
from docsplit.evaluation.results.markdown import bullets, image, inline
from docsplit.evaluation.results.report import Json, Table, plain, records
from docsplit.runtime.files import write_text

TEMPLATE = Path(__file__).parents[2] / "report.html"
JSON_FILE, MARKDOWN_FILE, HTML_FILE = "analysis.json", "analysis.md", "report.html"
BETWEEN = "95 % interval over documents in brackets."


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
    figures: Sequence[Figure] = ()


def number(value: float | None, digits: int = 2) -> str:
    """Return the text of a cell; nothing for None and NaN."""
    return "" if value is None or value != value else f"{value:,.{digits}f}"


def count(value: Any) -> str:
    """Show a count, number or word; nothing for None."""
    if isinstance(value, float):
        return number(value, 0 if abs(value) >= 10 else 1)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def with_interval(row: Json, name: str, digits: int = 2) -> str:
    """Return `1.28 [1.25, 1.31]` of the columns of a number; nothing where a row does not have it."""
    if row.get(f"{name}_mean") is None:
        return ""
    mean, low, high = (number(row.get(f"{name}_{end}"), digits) for end in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def with_deviation(row: Json, name: str, digits: int = 3) -> str:
    """Return `0.412 ± 0.013`, or the mean alone."""
    std = row.get(f"{name}_std")
    return number(row[f"{name}_mean"], digits) + (f" ± {std:.3f}" if std else "")


def literal(name: str) -> str:
    """Return a name for matplotlib, which would read what is between two dollars as a formula."""
    return name.replace("$", r"\$")


def save_figure(figure: Any, path: Path, caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Figure:
    """Write a matplotlib figure as PNG and what it shows as CSV beside it."""
    plots.save(figure, path, header, rows)
    return Figure(caption, path, path.with_suffix(".csv"))


def ends_of(rows: Sequence[Json], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return means, lower and upper ends, and the lengths below and above of error bars, (2, N)."""
    means, lows, highs = (np.array([row[f"{name}_{end}"] for row in rows]) for end in ("mean", "low", "high"))
    return means, lows, highs, np.maximum([means - lows, highs - means], 0)


def plot_bars(
    frame: pd.DataFrame, names: Mapping[str, str], measures: Mapping[str, str], axis_title: str, path: Path,
    caption: str, line: float | None = None,
) -> Figure:  # fmt: skip
    """Draw for each encoder a group of bars with intervals.

    Args:
        names: of encoders.
        measures: what is drawn, and its labels.
        line: a height that is marked.
    """
    listed, width, cells = records(frame), 0.8 / len(measures), []
    figure, axis = plt.subplots(figsize=(2 + 0.35 * len(listed) * len(measures), 3.6), layout="constrained")
    for place, (name, label) in enumerate(measures.items()):
        numbers = [index for index, row in enumerate(listed) if f"{name}_mean" in row]
        means, lows, highs, errors = ends_of([listed[index] for index in numbers], name)
        positions = [index + (place - (len(measures) - 1) / 2) * width for index in numbers]
        axis.bar(positions, means, width, yerr=errors, capsize=2, label=label)
        encoders = [listed[index]["encoder"] for index in numbers]
        cells += [[encoder, label, *values] for encoder, *values in zip(encoders, means, lows, highs)]
    if line is not None:
        axis.axhline(line, color="0.4", linewidth=0.8)
    shown = [literal(names[row["encoder"]]) for row in listed]
    axis.set_xticks(range(len(listed)), shown, rotation=20, ha="right")
    axis.set_ylabel(axis_title)
    axis.grid(alpha=0.3, axis="y")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save_figure(figure, path, caption, ["encoder", "what", "mean", "low", "high"], cells)


def differences_table(rows: Sequence[Json], names: Mapping[str, str], titles: Mapping[str, str]) -> Table:
    """Show the paired tests of `docsplit.evaluation.analysis.estimates.differences`."""
    cells = []
    for row in rows:
        text = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
        pair = f"{names[row['a']]} v {names[row['b']]}"
        clear = "yes" if is_clear(row["low"], row["high"]) else ""
        cells.append([pair, titles.get(row["measure"], row["measure"]), text, ratio, f"{row['p_value']:.3f}", clear])
    title = (
        "Two encoders on the same documents, first minus second and first / second: paired bootstrap over documents, "
        f"and over pretraining seeds where there are several. The {len(cells)} p-values are not corrected for "
        "their number."
    )
    return Table(["encoders", "measure", "difference", "ratio", "p", "without 0"], cells, title=title)


def write_report(folder: Path, title: str, sections: Sequence[Section], contents: Mapping[str, object]) -> None:
    """Write analysis.json (all of `contents`), analysis.md and report.html, which holds its pictures, each whole."""
    title = " ".join(title.split())
    # A single encoder has no differences.
    sections = [replace(section, tables=[table for table in section.tables if table.rows]) for section in sections]
    write_text(folder / JSON_FILE, json.dumps(plain(contents), indent=2, allow_nan=False) + "\n")
    parts = [f"# {inline(title)}"]
    for section in sections:
        parts += [f"## {inline(section.title)}", bullets(section.notes)]
        parts += [f"{inline(table.title)}\n\n{table.markdown()}" for table in section.tables]
        for figure in section.figures:
            parts.append(f"{image(figure.caption, figure.picture.name)}\n\nIn numbers: {inline(figure.numbers.name)}.")
    write_text(folder / MARKDOWN_FILE, "\n\n".join(filter(None, parts)) + "\n")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["picture"] = lambda figure: (
        f"data:image/png;base64,{base64.b64encode(figure.picture.read_bytes()).decode()}"
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    write_text(folder / HTML_FILE, template.render(title=title, sections=sections))
