"""The report of a reproduction: joint tables, verdicts, and where each number is from."""

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine.cells import command_of
from benchmarks.engine.results import Row
from benchmarks.engine.study import RECORD, Study, resolve
from benchmarks.engine.study import Cell as StudyCell
from benchmarks.studies.reproduction.figures import FIGURES, Reported, anchor_of, gains
from benchmarks.studies.reproduction.hypotheses import (
    VERDICTS,
    Hypothesis,
    Judged,
    combined,
    judge,
    verdict_rows,
)
from benchmarks.studies.reproduction.measure import DATA_SETS
from benchmarks.studies.reproduction.pages import Block, Cell, Heading, Source, Table, Text, as_html, as_markdown
from benchmarks.studies.reproduction.plan import FAMILIES, Plan, method_named
from benchmarks.studies.reproduction.tables import (
    NO_ENCODER,
    Figure,
    JointTable,
    Numbers,
    joint_tables,
    scaled,
)
from docsplit.runtime.files import ROOT, versions, write_text

TITLES = {"docsplit": "DocSplit", "bregman": "Self-contrastive Bregman divergence", "graph": "Graph document model"}
HOW_TO_READ = (
    "Each cell has our number, with the deviation over pretraining seeds (over trainings of the head where there is "
    "one encoder), and in brackets the paper's, which is of other weights and data: it is no target. Our number leads "
    "to its JSON and its command. A cell that could not be measured says why. † marks a head that gave nearly all "
    "test documents one class, with one seed at least."
)


def write_report(study: Study, plan: Plan, hypotheses: Mapping[str, Hypothesis], options: argparse.Namespace) -> str:
    """Write report.md, report.html and results.json; return what to print.

    Args:
        options: those of reproduce.py.
    """
    results = study.results()
    statuses: dict[str, str] = {}
    for cell in study.cells().values():
        record = study.record(cell)
        status = record.status if record is not None else "to do"
        known = statuses.get(cell.group, "done")
        statuses[cell.group] = next(one for one in ("failed", "to do", "done") if one in (status, known))
    numbers = Numbers(plan, results, statuses)
    tables = {family: list(joint_tables(plan, numbers, family)) for family in FAMILIES}
    reported = Reported(
        plan,
        study,
        results,
        numbers,
        judge(hypotheses, results.rows, partial(method_named, plan.recipe)),
        tables,
        options,
    )
    blocks, folder = list(blocks_of(reported)), options.output_dir
    write_text(folder / "report.md", as_markdown(blocks))
    write_text(folder / "report.html", as_html(plan.recipe["title"], blocks))
    write_text(folder / "results.json", json.dumps(contents_of(reported), indent=1) + "\n")
    shown = "\n".join(f"{one.name:16} {one.verdict:8} {one.stated['says']}" for one in reported.judged)
    return f"{shown}\nThe report is {folder / 'report.html'} and {folder / 'report.md'}."


def blocks_of(reported: Reported) -> Iterator[Block]:
    """Yield the report, block by block."""
    recipe = reported.plan.recipe
    yield Heading(1, recipe["title"])
    yield Text(HOW_TO_READ)
    yield Text(f"Made for {recipe['hardware']}, {recipe['hours']} hours; pretraining seeds: "
               f"{', '.join(map(str, recipe['seeds']))}. {_progress(reported)}")  # fmt: skip
    if "differences" in recipe:
        yield Text(f"What differs from the papers: {recipe['differences'].strip()}")
    yield from _verdicts(reported)
    for family in [family for family in FAMILIES if reported.tables[family]]:
        yield Heading(2, TITLES[family])
        for table in reported.tables[family]:
            yield from _table(reported, table)
        yield from gains(reported, family)
        for figure in FIGURES.get(family, ()):
            yield from figure(reported)
    yield from _trained(reported)
    yield Heading(2, "Where each number is from")
    for name in _groups(reported):
        yield _source(reported, name)


def _progress(reported: Reported) -> str:
    """Say how many cells ran, and of which trainings and evaluations some did not."""
    cells = reported.cells
    left = [cell.group for cell in cells if reported.study.record(cell) is None]
    to_do = Counter("trainings" if group.startswith("train ") else group.split(":")[0] for group in left)
    failed = [record.name for record in reported.results.failed]
    parts = [f"{len(cells) - to_do.total()} of {len(cells)} cells ran."]
    parts += [f"Not run: {', '.join(f'{name} ({count})' for name, count in to_do.items())}."] if to_do else []
    return " ".join([*parts, *([f"Failed: {', '.join(failed)}."] if failed else [])])


def _groups(reported: Reported) -> list[str]:
    done = {cell.group for cell in reported.cells if reported.study.record(cell) is not None}
    return [name for name in reported.study.groups if name in done]


def _cell(figure: Figure) -> Cell:
    paper = None if figure.paper is None else f"{figure.paper:,}"
    link = f"#{anchor_of(figure.group)}" if figure.ours is not None and figure.group else None
    return Cell(figure.text, link, paper, figure.ours is not None)


def _table(reported: Reported, table: JointTable) -> Iterator[Block]:
    yield Heading(3, f"{table.name}: {table.title}")
    notes = [f"The paper: {table.note}."] if table.note else []
    notes += [table.filled.differs] if table.filled.differs else []
    groups = {figure.group for figures in table.rows.values() for figure in figures if figure.ours is not None}
    cells = [cell for group in groups if group for cell in reported.cells_of(group)]
    commits = {record.commit for cell in cells if (record := reported.study.record(cell)) is not None}
    if len(commits) > 1:
        notes.append(f"Its cells were made by different code: commits {', '.join(sorted(map(str, commits)))}.")
    if notes:
        yield Text(" ".join(notes))
    rows: list[list[Cell | str]] = [
        [_named(name, figures), *map(_cell, figures)] for name, figures in table.rows.items()
    ]
    yield Table(["", *table.columns], rows)


def _named(row: str, figures: Sequence[Figure]) -> str:
    """Return the paper's name of a row, and ours where it is another one."""
    ours = list(dict.fromkeys(one.method for one in figures if one.method not in (None, row, NO_ENCODER)))
    return f"{row} (ours: {', '.join(ours)})" if ours and len(ours) < 3 else row


def _verdicts(reported: Reported) -> Iterator[Block]:
    yield Heading(2, "What the papers claim")
    yield Text(
        "Written before the run, unless the source says otherwise; judged by one head. shown: in every comparison the "
        "difference has the sign of the claim, after Holm's correction within the family; refuted: it has the other "
        "one in one comparison; level: it is smaller than a margin; open: else. Intervals are 95 %."
    )
    rows: list[list[Cell | str]] = [
        [one.name, one.verdict, one.stated["says"], one.stated["source"]] for one in reported.judged
    ]
    yield Table(["", "verdict", "claim", "source"], rows)
    yield Table(VERDICTS, list(verdict_rows(reported.judged)))


def _trained(reported: Reported) -> Iterator[Block]:
    """Equal budgets, stated twice: steps times documents, and tokens."""
    yield Heading(2, "What each method was trained on")
    yield Text("Tokens are those of the views that were read, mean over seeds; masked LM reads them once more.")
    found: dict[str, dict[str, list[float]]] = {}
    for row in reported.results.rows:
        if row["task"] == "pretraining":
            found.setdefault(row["method"], {}).setdefault(row["metric"], []).append(row["value"])
    rows = []
    for method, metrics in found.items():
        stated = reported.plan.study["groups"][f"train {method}"]["steps"][-1]["options"]
        documents = stated.get("max_steps", 0) * stated.get("per_device_train_batch_size", 0)
        tokens, seconds = (sum(values) / len(values) for values in (metrics["train_tokens"], metrics["train_runtime"]))
        rows.append([method, f"{documents:,}" if documents > 0 else "", f"{tokens:,.0f}", f"{seconds:,.0f}"])
    yield Table(["", "documents", "tokens", "seconds"], rows)


def _source(reported: Reported, group: str) -> Source:
    """Return where the numbers of a group are from; commands are those of its first cell."""
    cells, options = reported.cells_of(group), reported.options
    whole = (
        f"python reproduce.py {shlex.quote(str(options.recipe))} --output_dir {shlex.quote(str(options.output_dir))}"
    )
    commands = [f"{whole} --only {shlex.quote(group)}"]
    commands += [] if not cells else commands_of(reported.study, cells[0], options.output_dir)
    keys = [record.key for cell in cells if (record := reported.study.record(cell)) is not None]
    files = {key: f"cells/{key}/{RECORD}" for key in keys if (reported.study.work_dir / key / RECORD).exists()}
    return Source(anchor_of(group), group, {key: files.get(key) for key in keys}, commands)


def commands_of(study: Study, cell: StudyCell, output_dir: Path) -> list[str]:
    """Return the commands of a cell's steps, from the root of the repository."""
    variables = study.paths | study.folders_needed(cell) | {"folder": str(study.finished_folder(cell))}
    commands = [shlex.join(["python", *command_of(resolve(step, variables))]) for step in cell.steps]
    shorter = {f"{ROOT}/": "", str(study.work_dir): str(output_dir / "cells")}
    for long, short in shorter.items():
        commands = [command.replace(long, short) for command in commands]
    return commands


def contents_of(reported: Reported) -> dict[str, Any]:
    """Return results.json: a row for each cell of each joint table, and the verdicts."""
    rows: list[Row] = []
    for family, tables in reported.tables.items():
        for table in tables:
            for figure in (figure for figures in table.rows.values() for figure in figures):
                rows.append({
                    "family": family, "table": table.name, "row": figure.row, "column": figure.column,
                    "ours": scaled(figure, figure.ours), "std": scaled(figure, figure.std), "lacks": figure.lacks,
                    "paper": None if figure.paper is None else float(figure.paper),
                    "verdict": verdict_of(reported.judged, table, figure), "method": figure.method,
                    "percent": figure.percent, "one_class": figure.one_class, "source": figure.group,
                })  # fmt: skip
    verdicts = [
        {"name": one.name, "verdict": one.verdict, **one.stated,
         "comparisons": [vars(comparison) | {"found": comparison.found and vars(comparison.found),
                                             "verdict": comparison.verdict} for comparison in one.comparisons]}
        for one in reported.judged
    ]  # fmt: skip
    missing = [vars(one) for one in reported.plan.missing]
    return {"title": reported.plan.recipe["title"], "versions": versions(), "rows": rows,
            "hypotheses": _finite(verdicts), "missing": missing}  # fmt: skip


def _finite(value: Any) -> Any:
    """Return a value with None for NaN, which JSON has not."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def verdict_of(judged: Sequence[Judged], table: JointTable, figure: Figure) -> str:
    """Return the verdicts on the comparisons of a number's method, set and labels: "H1 shown; H4 open"."""
    parts = []
    for one in judged:
        verdicts = [
            comparison.verdict
            for comparison in one.comparisons
            if one.stated["evaluation"] == table.filled.evaluation
            and table.filled.head != DATA_SETS
            and figure.method is not None
            and comparison.favoured.get(str(figure.data)) == figure.method
            and (comparison.shots is None) == (table.shots is None)
        ]
        if verdicts:
            parts.append(f"{one.name} {combined(verdicts)}")
    return "; ".join(parts)
