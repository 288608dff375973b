"""What a person sees of a training: one line a log, one line an evaluation, and a bar where there is a terminal.

    step  50/200  loss 3.46 (contrastive 2.70, masked LM 7.58)  519 tokens/s  2 min left
    step 100/200  held-out loss 3.10  probe, 5 labels a class: 43.2 %, all labels: 61.0 %

Everything else that is logged is in `log_history` of trainer_state.json, and in the trackers of --report_to.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from docsplit.data.corpora import PYTHON_DOCS
from docsplit.data.views import QUERY_DOCUMENT
from docsplit.modeling.objectives.base import Objective
from docsplit.modeling.sentence_transformers_files import trust_argument
from docsplit.release.model_card import probe_table
from docsplit.runtime.command import command_line
from docsplit.runtime.files import JsonObject
from docsplit.training.arguments import RunOptions

COUNTS = {  # titles of counts whose names do not say it
    "documents_in_corpus": "in the corpus, usable",
    "documents_kept_for_evaluations": "kept for evaluations, not read",
    "documents_kept_for_probe": "kept for the probe, not read",
    "documents_held_out": "held out, for the loss in evaluations",
    "documents_truncated_share": "with a truncated view",
    "tokens_truncated_share": "tokens lost by truncation",
}
PROBE = {"probe_5shot_accuracy": "5 labels a class", "probe_accuracy": "all labels"}
BEFORE = "probe_test_accuracy"  # is logged once, with the probe of the start


class ScreenCallback(TrainerCallback):
    """Print lines in place of the dictionaries that the Trainer prints; to be added after all other callbacks.

    The main process alone prints. The bar needs a terminal, and goes away with --disable_tqdm; the lines stay.
    """

    def __init__(self, trainer: Trainer):
        for theirs in (PrinterCallback, DEFAULT_PROGRESS_CALLBACK):
            trainer.remove_callback(theirs)
        model: Any = trainer.model
        self.loss_names = loss_names(model.objective, has_contrast=bool(model.config.docsplit["contrastive_weight"]))
        self.bar: Any = None
        self.first_step, self.started = 0, 0.0  # of this session

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Show the bar, from the step that a run resumes at."""
        self.started = 0.0
        if state.is_world_process_zero:
            hidden = True if args.disable_tqdm else None  # None: shown on a terminal alone
            self.bar = tqdm(
                total=state.max_steps, initial=state.global_step, leave=False, dynamic_ncols=True, disable=hidden
            )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Start the clock with the first step: a run that resumes has skipped its batches by then."""
        if not self.started:
            self.first_step, self.started = state.global_step, time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Move the bar."""
        if self.bar is not None:
            self.bar.update(1)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Print the line of training steps, or the probe of the start."""
        logs = kwargs["logs"]
        if "loss" in logs:
            self._print(state, training_line(logs, self.loss_names), self._time_left(state))
        elif BEFORE in logs:
            self._print(state, *evaluation_parts(logs))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Print the line of an evaluation, the probe's numbers among its metrics."""
        metrics = {name.removeprefix("eval_"): value for name, value in kwargs["metrics"].items()}
        self._print(state, *evaluation_parts(metrics))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _time_left(self, state: TrainerState) -> str:
        """Return the time that the remaining steps will take at this session's pace, evaluations included."""
        done, remaining = state.global_step - self.first_step, state.max_steps - state.global_step
        if not self.started or done <= 0 or remaining <= 0:
            return ""
        return f"{duration((time.perf_counter() - self.started) / done * remaining)} left"

    def _print(self, state: TrainerState, *parts: str) -> None:
        if state.is_world_process_zero:
            step = f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}"
            tqdm.write("  ".join([step, *filter(None, parts)]))  # above the bar, if there is one
            sys.stdout.flush()  # lines reach a file while the training goes on


def loss_names(objective: Objective, has_contrast: bool) -> dict[str, str]:
    """Return the names of the parts of the loss, by their keys in the log."""
    names = dict(objective.loss_parts) or {"contrastive_loss": objective.loss_name}
    return (names if has_contrast else {}) | {"mlm_loss": "masked LM"}


def training_line(logs: Mapping[str, float], names: Mapping[str, str]) -> str:
    """Return loss, its parts and the speed; a loss of one part is called by its name."""
    parts = {name: logs[key] for key, name in names.items() if key in logs}
    if len(parts) == 1:
        text = f"{next(iter(parts))} loss {number(logs['loss'])}"
    else:
        text = f"loss {number(logs['loss'])}"
        text += f" ({', '.join(f'{name} {number(value)}' for name, value in parts.items())})" if parts else ""
    return text + (f"  {logs['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in logs else "")


def evaluation_parts(metrics: Mapping[str, float]) -> list[str]:
    """Return the held-out loss and the probe's accuracies on validation documents, those that were measured."""
    parts = [f"held-out loss {number(metrics['loss'])}"] if "loss" in metrics else []
    shown = [f"{title}: {100 * metrics[name]:.1f} %" for name, title in PROBE.items() if name in metrics]
    return parts + ([f"probe, {', '.join(shown)}"] if shown else [])


def counts_table(counts: Mapping[str, int | float | None]) -> str:
    """Return documents and shares, one a line; what is unknown, or none, has no line."""
    rows = []
    for name, value in counts.items():
        if value and name != "documents_dropped":  # each reason has its line
            title = name.replace("documents_dropped_", "left out: ").replace("probe_", "probe: ")
            title = COUNTS.get(name, title.removeprefix("documents_").replace("_", " "))
            rows.append((title, _count(name, value)))
    if not rows:
        return ""
    left, right = (max(map(len, column)) for column in zip(*rows))
    return "\n".join(["Documents", *(f"  {title:<{left}}  {value:>{right}}" for title, value in rows)])


def _count(name: str, value: float) -> str:
    if name.endswith("_share"):
        return f"{100 * value:.1f} %"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def closing_text(options: RunOptions, results: JsonObject) -> str:
    """Return what ends a run: the probe before and after, what was written, and the next commands."""
    folder = options.output_dir
    measured = (
        f"{results['global_step']:,} steps of training took {duration(results['train_runtime'])}, "
        f"{results['train_tokens_per_second']:,.0f} tokens/s."
    )
    if results["kept_start"]:
        written = f"Wrote {folder}: the start, unchanged, and results (all_results.json) and plot of the training."
    else:
        written = f"Wrote {folder}: the encoder, its card (README.md), results (all_results.json) and plot."
    lines = [written, f"In Python, SentenceTransformer({str(folder)!r}{trust_argument(folder)}) loads it. Next:"]
    lines += [f"    {command}" for command in next_commands(options, None if results["kept_start"] else options.start)]
    return "\n\n".join([probe_table(results), *probe_sentences(results), measured, "\n".join(lines)])


def probe_sentences(results: JsonObject) -> list[str]:
    """Return what the probe says, for people: with few labels, before, after and beside TF-IDF; [] without a probe."""
    if "probe_after_5shot_accuracy" not in results:
        return []
    names = ("probe_before", "probe_after", "tfidf")
    before, after, tfidf = (100 * results[f"{name}_5shot_accuracy"] for name in names)
    spread = 100 * max(results[f"{name}_5shot_accuracy_std"] for name in names[1:])
    text = (
        f"With 5 labels a class, accuracy went from {before:.1f} to {after:.1f} %, on "
        f"{results['probe_test_documents']:,} test documents. TF-IDF, which counts words and needs no training, has "
        f"{tfidf:.1f} %"
    )
    if tfidf - after > spread:  # more than draws of the labels differ
        return [f"{text}: prefer it to this encoder. Train longer, or start from a good encoder."]
    return [f"{text}."]


def next_commands(options: RunOptions, start: str | None) -> list[str]:
    """Return two commands that use the encoder of a run: one measures it, beside its start, one searches with it."""
    folder, corpus, probe = options.output_dir, options.data.corpus, options.data.probe_corpus
    if options.data.view == QUERY_DOCUMENT:
        folds = ["--fold", options.queries.fold, "--folds", options.queries.folds]
        fold = [] if options.queries.fold is None else folds
        words = ["--collection", corpus, *fold, "--model_name_or_path", folder, "bm25"]
        measure = command_line("run_document_retrieval.py", *words)
    else:
        labelled = ["--train_file", probe or "YOUR_LABELLED_DOCUMENTS.jsonl"]
        if PYTHON_DOCS in (probe, corpus):  # which the script has by default
            labelled = []
        elif probe is not None and not Path(probe).exists():  # on the Hub
            labelled = ["--dataset_name", probe]
        words = ["--model_name_or_path", *filter(None, [start]), folder, "tfidf", *labelled]
        measure = command_line("run_probe_classification.py", *words)
    documents = corpus if corpus == PYTHON_DOCS or Path(corpus).exists() else "YOUR_DOCUMENTS"
    column = ["--text_column", options.data.text_column] if options.data.text_column != "text" else []
    column += ["--encoding", options.data.encoding] if options.data.encoding else []
    words = ["build", documents, "--model", folder, "--index_dir", f"{folder}.index", *column]
    return [measure, command_line("search.py", *words)]


def number(value: float) -> str:
    """Return a loss with two decimals, or with three digits where it is below 1."""
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:#.3g}"


def duration(seconds: float) -> str:
    """Return seconds in the two units that matter: 40 s, 12 min, 3 h 20 min, 2 days 4 h."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} {'day' if days == 1 else 'days'} {hours} h"
