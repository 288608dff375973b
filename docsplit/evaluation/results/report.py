"""The files of an evaluation: results.json with every number unrounded, results.md with every table."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.evaluation.results.contamination import contamination_note
from docsplit.evaluation.results.metrics import is_clear
from docsplit.evaluation.results.tables import (
    cost_table,
    detail_table,
    difference_table,
    encoder_names,
    encoder_table,
    result_tables,
    statistics_table,
    table_notes,
)
from docsplit.evaluation.results.task import Task
from docsplit.runtime.files import versions, write_text


def text_statistics(name: str, parts: dict[str, list[str]], num_classes: int | None) -> list[dict[str, Any]]:
    """Documents, classes and words (between white space) of each part, as in Table 1 of the DocSplit paper (v1)."""
    rows = []
    for part, texts in parts.items():
        words = [len(text.split()) for text in texts] or [0]
        rows.append(
            {
                "dataset": name,
                "part": part,
                "documents": len(texts),
                "classes": num_classes,
                "mean_words": float(np.mean(words)),
                "median_words": float(np.median(words)),
                "max_words": max(words),
            }
        )
    return rows


def write_comparison(
    output_dir: str | Path,
    task: Task,
    rows: Sequence[dict[str, Any]],
    differences: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    statistics: Sequence[dict[str, Any]] | None = None,
    title: str = "Results",
    notes: Sequence[str] = (),
    data: str = "",
) -> str:
    """Write results.json and results.md, each whole or not at all.

    Numbers in the JSON are not rounded; NaN and infinity, which JSON does not have, become null. What its columns mean
    stands beside them, as `task`.

    Args:
        rows, differences: what `docsplit.evaluation.results.comparison` makes of results.
        statistics: of `text_statistics`.
        data: what was measured on, of `docsplit.evaluation.results.data_names.describe_data`; it ends the title.

    Returns: what to print, the tables of results.
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{title}: {data}" if data else title
    contents = {
        "title": title,
        "data": data,
        "task": asdict(task),
        "rows": list(rows),
        "comparisons": list(differences),
        "statistics": list(statistics or []),
        "settings": settings,
        "notes": list(notes),
        "versions": versions(),
    }
    write_text(folder / "results.json", json.dumps(plain(contents), indent=2, allow_nan=False) + "\n")
    write_text(folder / "results.md", _markdown(task, rows, differences, statistics, title, notes))
    text = f"# {title}\n\n{result_tables(rows, task)}\n\n{_caption(rows, task)}\n"
    if differences:
        clear = [row for row in differences if is_clear(row)]
        ahead = sum(bool(row.get("ahead")) for row in clear)
        text += (
            f"\n{len(clear)} of {len(differences)} differences have a 95 % interval without 0"
            f"{' and a corrected p below 0.05' if 'p_holm' in differences[0] else ''}; in {ahead} of them "
            "neither is a single pretraining run.\n"
        )
    text += f"\nAll numbers are in {folder / 'results.json'}, all tables in {folder / 'results.md'}."
    return f"\n{text}\n"


def _markdown(
    task: Task,
    rows: Sequence[dict[str, Any]],
    differences: Sequence[dict[str, Any]],
    statistics: Sequence[dict[str, Any]] | None,
    title: str,
    notes: Sequence[str],
) -> str:
    parts = [f"# {' '.join(title.split())}"]
    if notes:
        parts.append("\n".join(f"- {' '.join(note.split())}" for note in notes))
    if statistics:
        parts.append(f"## Data\n\n{statistics_table(statistics)}\n\nWords are what stands between white space.")
    parts += [result_tables(rows, task), _caption(rows, task)]
    for detail, heading in task.details.items():
        if table := detail_table(rows, detail):
            parts.append(f"## {heading}\n\n{table}")
    if differences:
        table = difference_table(differences, task, encoder_names(rows))
        parts.append(f"## Differences\n\n{_explained(differences, task)}\n\n{table}")
    parts.append(f"## Encoders\n\n{encoder_table(rows)}")
    if task.has_training:
        parts.append(f"## Cost of the heads\n\nTraining, seconds a run.\n\n{cost_table(rows)}")
    parts.append("Unrounded numbers, settings and versions are in results.json.")
    return "\n\n".join(parts) + "\n"


def _explained(differences: Sequence[dict[str, Any]], task: Task) -> str:
    """What the table of differences has, and what its p-values are worth."""
    text = (
        "Points, first minus second encoder, each with the same features. Paired bootstrap over test items, runs of "
        "the head and, where there are several, pretraining seeds."
    )
    clear = "the 95 % interval leaves 0 out"
    corrected = (
        f"The {len(differences)} p-values are not corrected for their number: one in twenty falls below 0.05 where "
        "nothing differs."
    )
    if task.paired_test == "randomisation":
        text = (
            f"Points, first minus second. Intervals: paired bootstrap over {task.items} and, where there are several, "
            f"pretraining seeds. p: paired randomisation test over {task.items}, which takes the seeds as they are."
        )
        clear = "the interval leaves 0 out, the corrected p is below 0.05"
        corrected = f"Holm's correction is for the {len(differences)} tests of this table."
    return (
        f"{text} `seeds` are those of the two (- where nothing was pretrained). In bold, and named as ahead, where "
        f"{clear} and neither is a single pretraining run; with one, `one run says` so, and the next seed may say "
        f"otherwise. {corrected}"
    )


def _caption(rows: Sequence[dict[str, Any]], task: Task) -> str:
    caption = (
        f"In percent; ± is the standard deviation over {task.runs}. The best of a column is bold, which does not say "
        "that it is better: see the differences."
    )
    if any(row["features"] == "standardized" for row in rows):
        caption += (
            " Standardized: each number of the features shifted and scaled to mean 0 and deviation 1 over the "
            "training items."
        )
    notes = [f"- {note}" for note in (*table_notes(rows, task), contamination_note(rows)) if note]
    return "\n\n".join(filter(None, [f"{caption} {task.note}".strip(), "\n".join(notes)]))


def plain(value: Any) -> Any:
    """What JSON can hold: no numpy, no NaN, no infinity; anything else as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
