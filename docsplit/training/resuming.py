"""What a run must have in common with the checkpoint that it resumes from, and how it goes on as if never stopped.

Options, data and model that decide the weights are in each checkpoint, and are compared when a run resumes: the
optimizer and the schedule go on with what they were made of, and documents are skipped by their number, so that
another value would be ignored, or would give some documents twice and others never. The same batch may be computed
by other processes, and the training may get another length; that is said, and recorded.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SchedulerType

from docsplit.release.records import Record
from docsplit.runtime.files import read_json
from docsplit.training.callbacks import checkpoint_of

logger = logging.getLogger(__name__)

# What chooses the checkpoint to release: without a choice, its last weights are released, whatever it was before.
OF_THE_CHOICE = ("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "early_stopping_patience")


@dataclass
class TrainingRecord(Record):
    """What decided the weights of a checkpoint.

    Attributes:
        decided: values, as text, by what messages call them: options, data, entries of the model's configuration.
        batch: the processes and the documents of each.
        changes: in the sessions of the run until now, a sentence each.
    """

    file = "training_options.json"

    decided: dict[str, str]
    batch: str
    changes: list[str] = field(default_factory=list)

    def go_on_from(self, checkpoint: Path, chooses: bool) -> None:
        """Refuse what the checkpoint was not trained with, and note other processes.

        Args:
            chooses: whether the best checkpoint is released.

        Raises:
            ValueError: naming what differs, both values and the remedy.
        """
        there, weights = TrainingRecord.read(checkpoint), f"with --model_name_or_path {checkpoint}"
        if there is None:
            raise ValueError(f"{checkpoint} has no {self.file}: start a new run from its weights {weights}.")
        left_out = () if chooses else [f"--{name}" for name in OF_THE_CHOICE]
        different = [
            f"{name} {there.decided.get(name, 'none')} there, {self.decided.get(name, 'none')} here"
            for name in there.decided | self.decided
            if there.decided.get(name) != self.decided.get(name) and name not in left_out
        ]
        if different:
            raise ValueError(
                f"{checkpoint} was trained with others than these: {'; '.join(different)}. Give those of the "
                f"checkpoint, or start a new run from its weights {weights}."
            )
        self.changes = list(there.changes)
        if there.batch != self.batch:
            self._note(f"After step {_state(checkpoint)['global_step']}: {self.batch}; before {there.batch}.")

    def check_length(self, trainer: Trainer, checkpoint: Path, changes_negatives: bool) -> None:
        """Note another length of the training; refuse one that the checkpoint is beyond, or that stopped early.

        Args:
            changes_negatives: whether negatives change when half of it is over.

        Raises:
            ValueError: naming both numbers.
        """
        args, state = trainer.args, _state(checkpoint)
        step, before = state["global_step"], state["max_steps"]
        steps = trainer.set_initial_training_values(args, trainer.get_train_dataloader())[-1]
        if steps != before and _has_stopped_early(state["stateful_callbacks"]):
            raise ValueError(
                f"{checkpoint} is the end of a run of {before} steps, which stopped early, and --max_steps and "
                f"--num_train_epochs ask for {steps}: leave them as they were, or start a new run."
            )
        if steps < step:
            raise ValueError(
                f"{checkpoint} has been trained for {step} steps, and --max_steps and --num_train_epochs ask for "
                f"{steps}: raise them, or name an earlier checkpoint."
            )
        if steps != before:
            kind = f"the {SchedulerType(args.lr_scheduler_type).value} schedule of the learning rate"
            half = " So negatives change at another step, unless they have." if changes_negatives else ""
            self._note(f"After step {step}: {kind} is one of {steps} steps; before {before}.{half}")

    def _note(self, change: str) -> None:
        logger.info(change)
        self.changes.append(change)


def _state(checkpoint: Path) -> dict[str, Any]:
    return read_json(checkpoint / "trainer_state.json")


def _has_stopped_early(states: dict[str, Any]) -> bool:
    """Whether patience ran out, by the states of callbacks in a checkpoint."""
    if (stopping := states.get("EarlyStoppingCallback")) is None:
        return False
    counter, patience = stopping["attributes"]["early_stopping_patience_counter"], stopping["args"]
    return counter >= patience["early_stopping_patience"]


class ResumeCallback(TrainerCallback):
    """Go on as the run would have without a stop, and write its record into each checkpoint.

    Trainer restores the patience of early stopping. This callback takes no step where the run has had its last one,
    after which stock Trainer takes one more; it finds the best checkpoint where the folder has moved, and lets new
    numbers of steps between logs and checkpoints count. To be added before `CheckpointCallback`, which seals the
    record.

    Args:
        checkpoint: the one that the training resumes from.
    """

    def __init__(self, trainer: Trainer, record: TrainingRecord, checkpoint: Path | None):
        self.trainer, self.record, self.checkpoint = trainer, record, checkpoint
        self.is_over = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Mend the state that Trainer has read, and give the loop no batches if there is nothing left to train."""
        if self.checkpoint is None:
            return
        state.compute_steps(args, state.max_steps)
        best, schedule = self.checkpoint.with_name(f"checkpoint-{state.best_global_step}"), kwargs["lr_scheduler"]
        if best.is_dir():
            state.best_model_checkpoint = str(best)
        if _state(self.checkpoint)["max_steps"] != state.max_steps and isinstance(schedule, LambdaLR):
            schedule.last_epoch -= 1
            schedule.step()  # the rate of the next step was set by the schedule before
        states: Any = state.stateful_callbacks
        self.is_over = state.global_step >= state.max_steps or _has_stopped_early(states)
        if self.is_over:
            logger.info(f"All {state.global_step} steps have been trained: only what comes after them is done.")
            trainer: Any = self.trainer
            trainer.get_batch_samples = lambda *_: ([], None)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """End the loop where the run is over."""
        control.should_training_stop |= self.is_over

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Ask for no evaluation and no checkpoint where the run is over: they are there."""
        if self.is_over:
            control.should_evaluate = control.should_save = False

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Write the record into the checkpoint."""
        if state.is_world_process_zero:
            self.record.write(checkpoint_of(args, state))
