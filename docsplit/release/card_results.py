"""The part of a card that says what was measured: tables and the model index, from the files of a checkpoint's folder.

`all_results.json` is of the pretraining; `evaluations/*/results.json` are what the probe and retrieval scripts put
there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from huggingface_hub import EvalResult

from docsplit.evaluation.results.markdown import bullets, image, inline
from docsplit.evaluation.results.report import (
    Json,
    Table,
    head_name,
    names_of,
    notes_of,
    read_rows,
    records,
    short_names,
    table_of,
)
from docsplit.evaluation.results.result import Task
from docsplit.release.probe_table import probe_table, table_of_probe
from docsplit.runtime import files
from docsplit.runtime.files import checked

RESULTS_FILE, EVALUATIONS = "all_results.json", "evaluations"
NUMBERS = re.compile(r"(global_step|train_|documents_|tokens_|probe_|tfidf_)")  # what names of numbers begin with
TRAINED = ("global_step", "train_tokens", "train_runtime", "train_tokens_per_second", "train_loss")
PROBED = (
    *("probe_classes", "probe_test_documents"),
    *(
        f"{prefix}_{number}"
        for prefix in ("probe_before", "probe_after", "tfidf")
        for number in ("5shot_accuracy", "5shot_accuracy_std", "accuracy")
    ),
)


@dataclass(frozen=True)
class CardEvaluation:
    """One evaluation in the folder of a checkpoint."""

    title: str  # of the section in the card
    dataset: str
    task: Task
    rows: pd.DataFrame
    encoder: str  # this checkpoint, as the rows have it
    plot: str | None = None  # address of the curve, relative to the card

    def to_json(self) -> Json:
        """Return the contents of its results.json."""
        contents = {"title": self.title, "dataset": self.dataset, "task": self.task.to_json()}
        return contents | {"rows": records(self.rows), "encoder": self.encoder}

    @classmethod
    def from_json(cls, contents: Json, plot: str | None = None) -> "CardEvaluation":
        """Read its results.json."""
        task, rows = read_rows(contents)
        texts = (checked(contents.get(name), str, name) for name in ("title", "dataset", "encoder"))
        title, dataset, encoder = texts
        return cls(title, dataset, task, rows, encoder, plot)


def read_json(path: Path) -> Json:
    """Read a JSON file; {} if it does not exist."""
    return files.read_json(path) if path.exists() else {}


def read_results(directory: Path) -> Json:
    """Read all_results.json of a checkpoint's folder; {} without it.

    Raises:
        ValueError: naming file and key, for what is no number where cards have one.
    """
    path = directory / RESULTS_FILE
    results = read_json(path)
    for name, value in results.items():
        if NUMBERS.match(name):
            checked(value, float | None, f"{path}: {name}")
    needed = [*(TRAINED if results else ()), *(PROBED if "probe_after_accuracy" in results else ())]
    for name in needed:
        if results.get(name) is None:
            raise ValueError(f"{path} has no {name}.")
    return results


def read_evaluations(directory: Path) -> list[CardEvaluation]:
    """Read the evaluations that `add_results` put there, with the address of each curve."""
    evaluations = []
    for path in sorted((directory / EVALUATIONS).glob("*/results.json")):
        plot = path.with_name("few_shot.png")
        address = plot.relative_to(directory).as_posix() if plot.exists() else None
        try:
            evaluations.append(CardEvaluation.from_json(read_json(path), address))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return evaluations


def without_paths(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Rows as a card may have them, local encoders by the names of their folders alone; and these names."""
    listed = records(rows)
    members = [member for row in listed for member in row.get("members") or [row["encoder"]]]
    shown = short_names((name for name in dict.fromkeys(members) if Path(name).exists()), longest=0)
    groups = {name: label for name, label in names_of(rows).items() if name not in members}
    for row in listed:
        row["encoder"] = (groups | shown).get(row["encoder"], row["encoder"])
        row["members"] = [shown.get(member, member) for member in row.get("members", [])]
    return pd.DataFrame(listed, dtype=object), shown


def model_index(options: dict[str, str], results: Json, evaluations: Sequence[CardEvaluation]) -> list[EvalResult]:
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
        task = evaluation.task
        for row in records(evaluation.rows):
            members = row.get("members") or [row["encoder"]]
            if evaluation.encoder not in members:
                continue
            number = members.index(evaluation.encoder)
            labels = "" if row["shots"] is None else f", {row['shots']} labels a class"
            for name in task.columns:
                of_seeds = row.get(f"{name}_of_seeds")
                value = row[f"{name}_mean"] if of_seeds is None else of_seeds[number]
                title = f"{name} ({head_name(row)}{labels})"
                entries.append(_entry(task.name, evaluation.dataset, title, value))
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


def tables_of_results(results: Json, evaluations: Sequence[CardEvaluation]) -> list[Table]:
    """All that was measured, as data: each table with its full title, and names as they are."""
    tables = [table_of_probe(results)] if "probe_after_accuracy" in results else []
    for evaluation in evaluations:
        title = " ".join(f"{evaluation.title}: {evaluation.dataset}".split())
        tables.append(replace(table_of(evaluation.rows, evaluation.task), title=title))
    return tables


def evaluation_text(results: Json, evaluations: Sequence[CardEvaluation]) -> str:
    """All that was measured, as Markdown tables with their headings."""
    parts = []
    if "probe_after_accuracy" in results:
        parts.append(f"### {table_of_probe(results).title}\n\n{probe_table(results)}")
    for evaluation in evaluations:
        rows, task = evaluation.rows, evaluation.task
        groups = [row for row in records(rows) if evaluation.encoder in row.get("members", [])]
        name = groups[0]["encoder"].partition("=")[0] if groups else evaluation.encoder
        is_mean = groups and len(groups[0]["members"]) > 1
        this = f"{inline(name)} is {'the mean over seeds of which this model is one' if is_mean else 'this model'}"
        tested = max((row.get(f"test_{task.items}") or 0 for row in records(rows)), default=0)
        note = f"{tested:,} test {inline(task.items)}. " if tested else ""
        note += (
            "Percent; ± is the standard deviation over draws of the labels, or over trainings of the head. "
            f"{this}; all rows are from one run."
        )
        note = "\n\n".join(filter(None, [note, bullets(notes_of(rows, task))]))
        title = inline(f"{evaluation.title}: {evaluation.dataset}")
        parts.append(f"### {title}\n\n{table_of(rows, task).markdown()}\n\n{note}")
        if evaluation.plot:
            parts.append(image("Over the number of labels", evaluation.plot))
    return "\n\n".join(parts) or "Nothing was measured."
