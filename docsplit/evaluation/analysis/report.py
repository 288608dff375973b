"""What analyses measure and show: numbers with intervals over documents, and sections of notes, tables and figures.

An analysis gives each number as a `Resampled`: its value, and its values on sets of documents drawn with replacement.
The sets are the same for all encoders (`docsplit.evaluation.results.bootstrap.item_draws`), so that differences are
paired. A `ReportSection` is the same in analysis.md and report.html; a figure is written with the CSV of what it
shows, under the same name (`save_figure`).
"""

import base64
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jinja2 import Environment

from docsplit.evaluation.results import plots
from docsplit.evaluation.results.bootstrap import (
    Resampled,
    interval,
    is_clear,
    item_draws,
    paired_bootstrap,
)
from docsplit.evaluation.results.markdown import bullets, image, inline
from docsplit.evaluation.results.report import Json, ResultsTable, over_seeds, plain, records
from docsplit.evaluation.results.result import Facts
from docsplit.runtime.files import write_text

TEMPLATE = Path(__file__).parents[2] / "report.html"
JSON_FILE, MARKDOWN_FILE, HTML_FILE = "analysis.json", "analysis.md", "report.html"
BETWEEN = "95 % interval over documents in brackets."


# --- Numbers of an encoder ---


@dataclass(frozen=True)
class Estimates:
    """What an analysis measured of one encoder, or of several that differ in their pretraining seed alone."""

    encoder: str
    values: dict[str, Resampled]
    facts: Facts = field(default_factory=dict)
    members: tuple[str, ...] = ()


def over_documents(parts: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Resampled]:
    """Compute ratios of sums over documents, each from numerators and denominators (D,) of the same documents.

    A mean over the documents that have a value has 1 as their denominators and 0 as those of the others. A set of
    documents of which none has a value gets that of all.
    """
    above, below = (np.stack([part[side] for part in parts.values()]).astype(np.float64) for side in (0, 1))  # (P, D)
    values = above.sum(axis=1) / below.sum(axis=1)  # (P,)
    samples = []
    for times in item_draws(above.shape[1]):
        sums, weights = times @ above.T, times @ below.T  # (N, P)
        samples.append(np.where(weights > 0, sums / np.where(weights > 0, weights, 1), values))
    drawn = np.concatenate(samples)
    return {name: Resampled(values[[row]], drawn[:, [row]]) for row, name in enumerate(parts)}


def merge_estimates(name: str, members: Sequence[str], parts: Sequence[Estimates]) -> Estimates:
    """Join the estimates of encoders from several pretraining seeds under one name; an encoder alone stays as it is.

    Where facts differ, all are kept, in the order of the members.
    """
    if [name] == list(members):
        return parts[0]
    values, facts = {}, {}
    for key in parts[0].values:
        scores = np.concatenate([part.values[key].scores for part in parts])
        samples = np.concatenate([part.values[key].samples for part in parts], axis=1)
        values[key] = Resampled(scores, samples, seeds=len(members))
    for key, first in parts[0].facts.items():
        all_facts = [part.facts[key] for part in parts]
        facts[key] = first if all(fact == first for fact in all_facts) else all_facts
    return Estimates(name, values, facts, tuple(members))


def columns_of(values: Mapping[str, Resampled]) -> Json:
    """Return each number as columns: NAME_mean, and NAME_low and NAME_high, its 95 % interval."""
    columns: Json = {}
    for name, value in values.items():
        low, high = interval(value, is_share=name.endswith("share") or name.startswith("auc"))
        columns |= {f"{name}_mean": float(value.scores.mean()), f"{name}_low": low, f"{name}_high": high}
    return columns


def table_rows(measured: Iterable[Estimates]) -> pd.DataFrame:
    """Return a row an encoder: its facts, and each number with its 95 % interval and its spread over seeds."""
    rows = []
    for one in measured:
        row = {"encoder": one.encoder, "members": list(one.members), **one.facts, **columns_of(one.values)}
        for name, value in one.values.items():
            row |= over_seeds(name, value.scores) if one.members else {}
        rows.append(row)
    return pd.DataFrame(plain(rows), dtype=object)


def mean_row(encoder: str, members: Sequence[str], values: Sequence[Mapping[str, float]]) -> Json:
    """Return a row of numbers without interval: of one encoder, or means over several and their deviations."""
    row: Json = {"encoder": encoder, "members": list(members) if list(members) != [encoder] else []}
    for name in values[0]:
        of_members = np.array([own[name] for own in values])
        row |= {f"{name}_mean": float(of_members.mean())} | over_seeds(name, of_members)
    return row


def differences(all_estimates: Iterable[Estimates], measures: Sequence[str]) -> list[Json]:
    """Compare each two encoders that have a measure by `paired_bootstrap` over documents.

    Beside the difference a - b stands the `ratio` a / b with its interval, where both and their samples are above 0:
    that of the difference of logarithms, so that it is over pretraining seeds, too.
    """
    compared = []
    for a, b in combinations(all_estimates, 2):
        for measure in measures:
            if measure in a.values and measure in b.values:
                pair = a.values[measure], b.values[measure]
                row = {"a": a.encoder, "b": b.encoder, "measure": measure, **asdict(paired_bootstrap(*pair))}
                compared.append(row | _ratio(*pair))
    return compared


def _ratio(a: Resampled, b: Resampled) -> Json:
    """Return a / b and the ends of its interval, or None where one of them is not above 0."""
    if min(part.min() for system in (a, b) for part in (system.scores, system.samples)) <= 0:
        return dict.fromkeys(("ratio", "ratio_low", "ratio_high"))
    logs = []
    for system in (a, b):  # of the scores, and of the mean over seeds in each set of documents
        means = np.log(system.samples.mean(axis=1, keepdims=True))
        logs.append(Resampled(np.log(system.scores), np.broadcast_to(means, system.samples.shape), system.seeds))
    found = paired_bootstrap(logs[0], logs[1])
    ends = {"ratio_low": float(np.exp(found.low)), "ratio_high": float(np.exp(found.high))}
    return {"ratio": float(a.scores.mean() / b.scores.mean()), **ends}


# --- Cells and tables ---


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


def differences_table(rows: Sequence[Json], names: Mapping[str, str], titles: Mapping[str, str]) -> ResultsTable:
    """Show the paired tests of `differences`.

    Args:
        names: of encoders.
        titles: of measures.
    """
    cells = []
    for row in rows:
        text = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        ratio = f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]" if row["ratio"] else ""
        pair, measure = f"{names[row['a']]} v {names[row['b']]}", titles[row["measure"]]
        clear = "yes" if is_clear(row["low"], row["high"]) else ""
        cells.append([pair, measure, text, ratio, f"{row['p_value']:.3f}", clear])
    title = f"First minus second, and first / second; paired bootstrap. {len(cells)} p-values, not corrected."
    return ResultsTable(["encoders", "measure", "difference", "ratio", "p", "without 0"], cells, title=title)


# --- Figures and sections ---


@dataclass(frozen=True)
class Figure:
    """A picture, and what it shows in the CSV of its name."""

    message: str  # its title
    caption: str
    picture: Path


@dataclass(frozen=True)
class ReportSection:
    """One analysis."""

    title: str
    notes: Sequence[str] = ()
    tables: Sequence[ResultsTable] = ()
    figures: Sequence[Figure] = ()


def literal(name: str) -> str:
    """Return a name for matplotlib, which would read what is between two dollars as a formula."""
    return name.replace("$", r"\$")


def save_figure(
    figure: Any, path: Path, message: str, caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> Figure:
    """Write a matplotlib figure, its message above it, as PNG and what it shows as CSV beside it."""
    figure.suptitle(textwrap.fill(literal(message), int(12 * figure.get_figwidth())), fontsize=10)
    plots.save_plot(figure, path, header, rows)
    return Figure(message, caption, path)


def plot_bars(
    frame: pd.DataFrame, names: Mapping[str, str], measures: Mapping[str, str], axis_title: str, path: Path,
    message: str, caption: str, line: float | None = None,
) -> Figure:  # fmt: skip
    """Draw for each encoder a group of bars with intervals.

    Args:
        message: what the bars show, as the title.
        names: of encoders.
        measures: what is drawn, and its labels.
        line: a height that is marked.
    """
    listed, width, cells = records(frame), 0.8 / len(measures), []
    figure, axis = plt.subplots(figsize=(2 + len(listed) * max(0.35 * len(measures), 0.9), 3.6), layout="constrained")
    for place, (name, label) in enumerate(measures.items()):
        numbers = [index for index, row in enumerate(listed) if f"{name}_mean" in row]
        means, lows, highs = (
            np.array([listed[index][f"{name}_{end}"] for index in numbers]) for end in ("mean", "low", "high")
        )
        errors = np.maximum([means - lows, highs - means], 0)
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
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    return save_figure(figure, path, message, caption, ["of", "what", "mean", "low", "high"], cells)


def write_report(folder: Path, title: str, sections: Sequence[ReportSection], contents: Mapping[str, object]) -> None:
    """Write analysis.json (all of `contents`), analysis.md and report.html, which holds its pictures, each whole.

    Tables without a line are left out: a single encoder has no differences.
    """
    title = " ".join(title.split())
    write_text(folder / JSON_FILE, json.dumps(plain(contents), indent=2, allow_nan=False) + "\n")
    parts = [f"# {inline(title)}"]
    for section in sections:
        parts += [f"## {inline(section.title)}", bullets(section.notes)]
        for figure in section.figures:
            numbers = inline(figure.picture.with_suffix(".csv").name)
            parts.append(f"{image(figure.caption, figure.picture.name)}\n\nIn numbers: {numbers}.")
        parts += [f"{inline(table.title)}\n\n{table.markdown()}" for table in section.tables if table.rows]
    write_text(folder / MARKDOWN_FILE, "\n\n".join(filter(None, parts)) + "\n")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["picture"] = lambda figure: (
        f"data:image/png;base64,{base64.b64encode(figure.picture.read_bytes()).decode()}"
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    write_text(folder / HTML_FILE, template.render(title=title, sections=sections))
