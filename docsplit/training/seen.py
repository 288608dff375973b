"""The record of the documents that a run's steps saw, kept beside the weights of each checkpoint."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from docsplit.data.collators import Batch
from docsplit.data.seen_documents import (
    MOST_SKETCHES,
    TRAINING_DOCUMENTS_FILE,
    TrainingDocuments,
    training_documents_of,
)
from docsplit.training import checkpoints

logger = logging.getLogger(__name__)


class SeenDocumentsCallback(TrainerCallback):
    """Note the documents of each training batch; to be added before `CheckpointCallback`, which seals the record.

    The collator must have `sketches=True`. Documents are noted in the forward pass, so that prefetched batches, whose
    steps may never come, do not count. The processes bring their notes together when a checkpoint is saved.

    Args:
        start: the encoder that the weights are from, None for random ones.
        checkpoint: the one that the training resumes from.
    """

    def __init__(self, trainer: Trainer, start: str | None, checkpoint: Path | None):
        self.trainer = trainer
        # The checkpoint's record when resuming, else the start's; incomplete where there is none.
        place = checkpoint or start
        known = TrainingDocuments() if place is None else training_documents_of(str(place))
        self.record = known or TrainingDocuments(is_complete=False)
        if checkpoint is None:
            self.record = self.record.for_next_run()
        self.on_device: list[tuple[Tensor, Tensor]] = []  # ids (B,) and sketches (B, SKETCH_SIZE) of each batch
        self.noted: list[tuple[np.ndarray, np.ndarray]] = []  # the same, in memory
        model: Any = trainer.model
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model: nn.Module, args: Any, inputs: Batch) -> tuple[Any, Batch]:
        """Take the sketches out of the batch; a copy, since a worker's shared memory holds a file open.

        A batch of queries has the ids of all its texts with them, queries too.
        """
        sketches, ids = inputs.pop("sketches"), inputs.pop("seen_ids", inputs["document_ids"])
        if model.training:
            self.on_device.append((ids.clone(), sketches.clone()))
        return args, inputs

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Move the notes to memory when the run logs, which waits for the device anyway."""
        self.noted += [(ids.cpu().numpy(), sketches.cpu().numpy()) for ids, sketches in self.on_device]
        self.on_device.clear()

    def _gather(self) -> None:
        """Add what all processes noted since the last time to the record of the first."""
        self.on_log(self.trainer.args, self.trainer.state, self.trainer.control)
        notes_here = []
        if self.noted:
            ids, first = np.unique(np.concatenate([ids for ids, _ in self.noted]), return_index=True)
            notes_here = [(ids, np.concatenate([sketches for _, sketches in self.noted])[first].astype(np.uint32))]
        self.noted.clear()
        notes = gather_object(notes_here)
        if self.trainer.is_world_process_zero():
            had_sketches = self.record.run.sketches is not None
            for ids, sketches in notes:
                self.record.run.add(ids, sketches)
            if had_sketches and self.record.run.sketches is None:
                logger.warning(
                    f"The run has seen more than {MOST_SKETCHES:,} documents: from here on its record knows copies, "
                    "and no near-duplicates."
                )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Write the record into the checkpoint."""
        self._gather()
        if state.is_world_process_zero:
            self.record.save(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")

    def finish(self, kept_start: bool) -> dict[str, int]:
        """Write the record beside the weights that the run ends with, unless these are the start's, with its record.

        Returns: `documents_used` for all_results.json, the distinct documents that the steps of all sessions saw,
            but for sessions whose checkpoint had no record.
        """
        self._gather()
        args, best = self.trainer.args, self.trainer.state.best_model_checkpoint
        if self.trainer.is_world_process_zero() and not kept_start:
            if args.load_best_model_at_end and best is not None:
                checkpoints.copy_parts(Path(best), Path(str(args.output_dir)), [TRAINING_DOCUMENTS_FILE])
            else:
                self.record.save(Path(str(args.output_dir)))
        return {"documents_used": len(self.record.run)}
