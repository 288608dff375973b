"""The part of a card that says what was measured: tables and the model index, from the files of a checkpoint's folder.

`all_results.json` is of the pretraining; `evaluations/*/results.json` are what the probe and retrieval scripts put
there.
"""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from docsplit.evaluation.results.contamination import contamination_note
from docsplit.evaluation.results.tables import (
    Table,
    encoder_names,
    head_name,
    probe_table,
    short_names,
    table_notes,
    table_of_probe,
    tables_of_rows,
)
from docsplit.evaluation.results.task import task_of_file

RESULTS_FILE, EVALUATIONS = "all_results.json", "evaluations"


def read_json(path: Path) -> dict[str, Any]:
    """Return the contents of a file; nothing if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_evaluations(directory: Path) -> list[dict[str, Any]]:
    """The results that `add_results` put there, with the address of the curve, if there is one."""
    evaluations = []
    for path in sorted((directory / EVALUATIONS).glob("*/results.json")):
        plot = path.with_name("few_shot.png")
        address = plot.relative_to(directory).as_posix().replace(" ", "%20") if plot.exists() else None
        evaluations.append(read_json(path) | {"plot": address})
    return evaluations


def plain(text: object) -> str:
    """One line that Markdown and HTML show as it is."""
    return re.sub(r"([\\`*\[\]#])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def code(text: object) -> str:
    """The same, in the letters of a program."""
    return "`" + " ".join(str(text).split()).replace("`", "'") + "`"


def without_paths(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows as a card may have them, local encoders by the names of their folders alone; and these names."""
    members = [member for row in rows for member in row.get("members", [row["encoder"]])]
    shown = short_names((name for name in dict.fromkeys(members) if Path(name).exists()), longest=0)
    groups = {name: label for name, label in encoder_names(rows).items() if name not in members}
    plain_rows = [
        row
        | {"encoder": (groups | shown).get(row["encoder"], row["encoder"])}
        | ({"members": [shown.get(member, member) for member in row["members"]]} if row.get("members") else {})
        for row in rows
    ]
    return plain_rows, shown


def model_index(
    options: dict[str, str], results: dict[str, Any], evaluations: list[dict[str, Any]]
) -> list[EvalResult]:
    """One entry for each measured number of this checkpoint; of a group of seeds its own one, not their mean.

    Args:
        options: of the run.
    """
    entries = []
    corpus = "python_docs" if options.get("probe_corpus") == "python_docs" else "probe"
    if "probe_after_accuracy" in results:
        entries += [
            _entry("text-classification", corpus, title, results[key])
            for key, title in (("probe_after_5shot_accuracy", "Accuracy, 5 labels a class"),
                               ("probe_after_accuracy", "Accuracy"))
        ]  # fmt: skip
    for evaluation in evaluations:
        task = task_of_file(evaluation)
        for row in evaluation["rows"]:
            members = row.get("members", [row["encoder"]])
            if evaluation["encoder"] not in members:
                continue
            labels = "" if row["shots"] is None else f", {row['shots']} labels a class"
            for measure in task.columns:
                title = f"{measure} ({head_name({'features': 'raw'} | row)}{labels})"
                values = row.get(f"{measure}_of_seeds", [row[f"{measure}_mean"]])
                value = values[members.index(evaluation["encoder"])]
                entries.append(_entry(task.name, evaluation["dataset"], title, value))
    # Once each: it may have been measured alone and as one of a group.
    return list({(entry.dataset_name, entry.metric_name): entry for entry in entries}.values())


def _entry(task: str, dataset: str, title: str, value: float) -> EvalResult:
    dataset = " ".join(dataset.split())
    name = dataset.partition(",")[0]  # without what was done to it
    kind = re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-") or "unnamed"
    metric = re.match(r"\w+", title.lower())
    return EvalResult(
        task_type=task,
        dataset_type=kind,
        dataset_name=dataset,
        metric_type=metric[0] if metric else "accuracy",
        metric_name=title,
        metric_value=round(value, 4),
    )


def tables_of_results(results: dict[str, Any], evaluations: list[dict[str, Any]]) -> list[Table]:
    """All that was measured, as data: each table with its full title, and names as they are."""
    tables = [table_of_probe(results)] if "probe_after_accuracy" in results else []
    for evaluation in evaluations:
        title = f"{evaluation['title']}: {evaluation['dataset']}"
        shown = tables_of_rows(_with_features(evaluation), task_of_file(evaluation))
        tables += [replace(table, title=" ".join(f"{title} · {table.title}".split())) for table in shown]
    return tables


def _with_features(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"features": "raw"} | row for row in evaluation["rows"]]


def evaluation_text(results: dict[str, Any], evaluations: list[dict[str, Any]]) -> str:
    """All that was measured, as Markdown tables with their headings."""
    parts = []
    if "probe_after_accuracy" in results:
        parts.append(f"### {table_of_probe(results).title}\n\n{probe_table(results)}")
    for evaluation in evaluations:
        rows = [row | {"encoder": plain(row["encoder"])} for row in _with_features(evaluation)]
        task = task_of_file(evaluation)
        tables = "\n\n".join(f"#### {table.title}\n\n{table.markdown()}" for table in tables_of_rows(rows, task))
        groups = [row["encoder"] for row in rows if evaluation["encoder"] in row.get("members", ())]
        this = (
            f"{groups[0].partition('=')[0]} is the mean over seeds of which this model is one"
            if groups
            else (f"{plain(evaluation['encoder'])} is this model")
        )
        note = (
            "Percent; ± is the standard deviation over draws of the labels, or over trainings of the head. "
            f"{this}; all rows are from one run."
        )
        lines = [*table_notes(rows, task), contamination_note(rows)]
        note = "\n".join([note, "", *(f"- {line}" for line in lines if line)])
        title = f"{plain(evaluation['title'])}: {plain(evaluation['dataset'])}"
        parts.append(f"### {title}\n\n{tables}\n\n{note}")
        if evaluation["plot"]:
            parts.append(f"![Over the number of labels]({evaluation['plot']})")
    return "\n\n".join(parts) or "Nothing was measured."
