"""The files of an evaluation: results.json with every number unrounded, results.md with every table."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.evaluation.results.contamination import contamination_note
from docsplit.evaluation.results.markdown import bullets, inline
from docsplit.evaluation.results.paper_numbers import paper_sources
from docsplit.evaluation.results.records import Comparison, Report, Row
from docsplit.evaluation.results.tables import (
    cost_table,
    detail_table,
    difference_table,
    encoder_table,
    names_of,
    result_tables,
    statistics_table,
    table_notes,
)
from docsplit.evaluation.results.task import Task
from docsplit.evaluation.results.verdict import verdict
from docsplit.runtime.files import versions, write_text


def write_comparison(output_dir: str | Path, report: Report, further: Sequence[str] = ()) -> str:
    """Write results.json and results.md, each whole or not at all.

    Numbers in the JSON are not rounded; NaN and infinity, which JSON does not have, become null. What its columns mean
    stands beside them, as `task`.

    Args:
        further: lines on other files, for the screen.

    Returns: what to print: the tables of results, where everything is, and the verdict.
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    contents = report.to_json() | {"versions": versions()}
    write_text(folder / "results.json", json.dumps(plain(contents), indent=2, allow_nan=False) + "\n")
    write_text(folder / "results.md", _markdown(report))
    files = [f"All numbers are in {folder / 'results.json'}, all tables in {folder / 'results.md'}.", *further]
    parts = [
        f"# {report.title}",
        result_tables(report.rows, report.task, report.data),
        _caption(report),
        "\n".join(files),
    ]
    if sentences := verdict(report):
        parts.append("\n".join(sentences))
    return "\n" + "\n\n".join(parts) + "\n"


def _markdown(report: Report) -> str:
    task, rows = report.task, report.rows
    parts = [f"# {inline(report.title)}"]
    if sentences := verdict(report):
        parts.append(f"## In short\n\n{bullets(sentences)}")
    if report.notes:
        parts.append(f"## Notes\n\n{bullets(report.notes)}")
    if report.statistics:
        table = statistics_table(report.statistics)
        parts.append(f"## Data\n\n{table}\n\nWords are what stands between white space.")
    parts += [result_tables(rows, task, report.data), _caption(report)]
    for detail, heading in task.details.items():
        if table := detail_table(rows, detail):
            parts.append(f"## {inline(heading)}\n\n{table}")
    if report.comparisons:
        table = difference_table(report.comparisons, task, names_of(rows))
        parts.append(f"## Differences\n\n{_explained(len(report.comparisons), task)}\n\n{table}")
    parts.append(f"## Encoders\n\n{encoder_table(rows)}")
    if task.has_training:
        parts.append(f"## Cost of the heads\n\nTraining, seconds a run.\n\n{cost_table(rows)}")
    parts.append("Unrounded numbers, settings and versions are in results.json.")
    return "\n\n".join(parts) + "\n"


def _explained(num_tests: int, task: Task) -> str:
    """Say what the table of differences has, and what its p-values are worth."""
    text = (
        "Points, first minus second encoder, each with the same features. Paired bootstrap over test items, runs of "
        "the head and, where there are several, pretraining seeds."
    )
    clear = "the 95 % interval leaves 0 out"
    corrected = (
        f"The {num_tests} p-values are not corrected for their number: one in twenty falls below 0.05 where "
        "nothing differs."
    )
    if task.paired_test == "randomisation":
        text = (
            f"Points, first minus second. Intervals: paired bootstrap over {task.items} and, where there are several, "
            f"pretraining seeds. p: paired randomisation test over {task.items}, which takes the seeds as they are."
        )
        clear = "the interval leaves 0 out, the corrected p is below 0.05"
        corrected = f"Holm's correction is for the {num_tests} tests of this table."
    return (
        f"{text} `seeds` are those of the two (- where nothing was pretrained). In bold, and named as ahead, where "
        f"{clear} and neither is a single pretraining run; with one, `one run says` so, and the next seed may say "
        f"otherwise. {corrected}"
    )


def _caption(report: Report) -> str:
    rows, task = report.rows, report.task
    caption = (
        f"In percent; ± is the standard deviation over {inline(task.runs)}. The best of a column is bold, which does "
        "not say that it is better: see the differences."
    )
    if any(row.features == "standardized" for row in rows):
        caption += (
            " Standardized: each number of the features shifted and scaled to mean 0 and deviation 1 over the "
            "training items."
        )
    papers = paper_sources(rows, names_of(rows), report.data)
    notes = bullets(filter(None, (*table_notes(rows, task), contamination_note(rows), papers)))
    return "\n\n".join(filter(None, [f"{caption} {inline(task.note)}".strip(), notes]))


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold: no numpy, NaN or infinity; anything else as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Row | Comparison):
        return plain(value.to_json())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
