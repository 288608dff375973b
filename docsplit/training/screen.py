"""What a person sees of a training: one line a log, one line an evaluation, and a bar where there is a terminal.

    step  50/200  loss 3.46 (contrastive 2.70, MLM 7.58)  519 tokens/s  2 min left
    step 100/200  held-out loss 3.10  probe, 5 labels: 43.2 %, all: 61.0 %

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

from docsplit.data.sets.labelled import SHOTS
from docsplit.modeling.checkpoint import trust_argument
from docsplit.modeling.objectives.base import Objective
from docsplit.release.model_card import table_of_probe
from docsplit.runtime.command import command_line
from docsplit.runtime.files import JsonObject
from docsplit.training.run_arguments import RunOptions

COUNTS = {  # titles of counts whose names do not say it
    "documents_in_corpus": "in the corpus, usable",
    "documents_kept_for_evaluations": "kept for evaluations, not read",
    "documents_kept_for_probe": "kept for the probe, not read",
    "documents_held_out": "held out, for the loss in evaluations",
    "documents_truncated_share": "with a truncated view",
    "tokens_truncated_share": "tokens lost by truncation",
}
PROBE = {"probe_5shot_accuracy": "5 labels", "probe_accuracy": "all"}


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
        elif "probe_test_accuracy" in logs:  # once, with the probe of the start
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
    return (names if has_contrast else {}) | {"mlm_loss": "MLM"}


def training_line(logs: Mapping[str, float], names: Mapping[str, str]) -> str:
    """Return loss, its parts and the speed; a loss of one part is called by its name."""
    parts = {name: logs[key] for key, name in names.items() if key in logs}
    text = f"loss {number(logs['loss'])}"
    if len(parts) == 1:
        text = f"{next(iter(parts))} {text}"
    elif parts:
        text += f" ({', '.join(f'{name} {number(value)}' for name, value in parts.items())})"
    return text + (f"  {logs['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in logs else "")


def evaluation_parts(metrics: Mapping[str, float]) -> list[str]:
    """Return the held-out loss and the probe's accuracies on validation documents, those that were measured."""
    parts = [f"held-out loss {number(metrics['loss'])}"] if "loss" in metrics else []
    shown = [f"{title}: {100 * metrics[name]:.1f} %" for name, title in PROBE.items() if name in metrics]
    return parts + ([f"probe, {', '.join(shown)}"] if shown else [])


def counts_table(counts: Mapping[str, int | float | None]) -> str:
    """Return documents and shares, one a line; what is unknown, or none, has no line, nor has the probe."""
    rows = []
    for name, value in counts.items():
        if value and not name.startswith("probe_") and name != "documents_dropped":  # each reason has its line
            title = name.replace("documents_dropped_", "left out: ")
            title = COUNTS.get(name, title.removeprefix("documents_").replace("_", " "))
            share = f"{100 * value:.1f} %" if name.endswith("_share") else None
            rows.append((title, share or (f"{value:,.1f}" if isinstance(value, float) else f"{value:,}")))
    left, right = (max(map(len, column)) for column in zip(("", ""), *rows))
    return "\n".join(["Documents", *(f"  {title:<{left}}  {value:>{right}}" for title, value in rows)])


def closing_text(options: RunOptions, results: JsonObject) -> str:
    """Return what ends a run: the probe before and after, the time, what was written, and how it is used."""
    folder, parts = options.output_dir, []
    if "probe_after_5shot_accuracy" in results:
        tested = f"{results['probe_test_documents']:,} sealed test documents; ± over 10 draws of the labels."
        parts.append(f"{table_of_probe(results).text()}\nAccuracy on {tested}")
        if seen := results.get("probe_seen_in_pretraining_share"):
            parts[-1] += f" Pretraining read {100 * seen:.1f} % of them."
        parts[-1] += f"\n{verdict(results)}"
    parts.append(
        f"{results['global_step']:,} steps took {duration(results['train_runtime'])} "
        f"({results['train_tokens_per_second']:,.0f} tokens/s), mean loss {number(results['train_loss'])}."
    )
    made = "the start, unchanged" if results["kept_start"] else "the encoder, its card (README.md)"
    search = "search.py", "build", "YOUR_DOCUMENTS", "--model", folder, "--index_dir", f"{folder}.index"
    parts[-1] += f"\nWrote {folder}: {made}, all_results.json.\n{use_of(folder, 'To search', *search)}"
    return "\n\n".join(parts)


def verdict(results: JsonObject) -> str:
    """Say in one line whether training beat its start and TF-IDF, on validation documents; beyond the noise or not."""
    parts = []
    for name, other in (("its start", "start"), ("TF-IDF", "tfidf")):
        ahead, low, high = (100 * results[f"probe_against_{other}{end}"] for end in ("", "_low", "_high"))
        word = "better than" if low > 0 else "worse than" if high < 0 else "within the noise of"
        parts.append(f"{word} {name} ({ahead:+.1f} points [{low:.1f}, {high:.1f}])")
    documents = f"{results['probe_validation_documents']:,} validation documents"
    return f"Trained, it is {' and '.join(parts)}, with {SHOTS} labels a class on {documents}."


def use_of(folder: Path, purpose: str, *command: object) -> str:
    """Say how the encoder in a folder is loaded, and by which command it is used."""
    loading = f"SentenceTransformer({str(folder)!r}{trust_argument(folder)})"
    return f"In Python, {loading} loads it. {purpose}:\n    {command_line(*map(str, command))}"


def number(value: float) -> str:
    """Return a loss with two decimals, or with three digits where it is below 1."""
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:#.3g}"


def duration(seconds: float) -> str:
    """Return seconds in the units that matter: 40 s, 12 min, 3 h 20 min."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
