"""The work beside the training steps, as callbacks of the stock Trainer: none of them needs a Trainer subclass.

    DocSplitCallback          other views in each epoch; loss parts, geometry and speed in the log
    SeenDocumentsCallback     the record of the documents that the steps saw, beside each checkpoint
    StreamCallback            the position of a stream, in each checkpoint
    CheckpointCallback        a checkpoint counts when all of it is on the disk; older ones go only then
    StopCallback              the first NaN, or a signal, ends the training on all processes after the same step

Resuming (`docsplit.training.resuming`), negatives (`docsplit.training.negatives`), the probe
(`docsplit.training.probe`) and the screen (`docsplit.training.screen`) have files of their own.
"""

import functools
import logging
import os
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from docsplit.data.collators import Batch
from docsplit.data.preparation import refuse_fewer_than_a_batch
from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE, TrainingDocuments, training_documents_of
from docsplit.data.streaming import DocumentStream
from docsplit.evaluation.analysis.geometry import embedding_geometry, spread, usage
from docsplit.modeling.distributed import fetch
from docsplit.release.records import seal
from docsplit.runtime.sharing import from_first, on_all
from docsplit.training import checkpoints

logger = logging.getLogger(__name__)

NUM_SPREAD = 512  # documents: batches of two or of 36 say little of a rank


def checkpoint_of(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder that Trainer writes its checkpoint of this step into."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


class DocSplitCallback(TrainerCallback):
    """Tell the collator which epoch it is, so that each draws other views, and add to the Trainer's log.

    `DocSplitCallback(trainer)` adds itself. The log gets loss parts, real tokens per second and the geometry of the
    embeddings:

    `contrastive_loss`, `mlm_loss`: the parts of the loss, before their weights.

    `positive_cosine`, `negative_cosine`: mean cosine similarity of the two views of a document, and of views of
    different documents of the batch. `alignment`, `uniformity`: Wang and Isola (2020), equations 1 and 2. Values are
    means over the batches of all processes since the last log, those that have the value: one document alone has no
    negatives.

    `dimension_std`, `dimension_correlation`, `effective_rank`: `docsplit.evaluation.analysis.geometry.spread` of first
    views, those of the main process since the last log, the last `NUM_SPREAD` of them. `NAME_active`, `NAME_entropy`:
    `docsplit.evaluation.analysis.geometry.usage` of each histogram of the objective, summed over processes since the
    last log.

    `tokens_per_second`: of the views without padding and without the masked copies, over all processes; evaluation
    and saving do not count as time. `padding_share`: of the tokens that are computed. `loader_stall`: the share of
    the time in which the main process waits for batches, their copies to the device included. `masked_negatives`:
    pairs a step, over all processes, that did not count as negatives since both are the same document.

    A dataset with `set_epoch` is not exact: accelerate does not forward it after skipped batches. Workers get the
    number of the epoch through shared memory, at their start; so they must start anew in each epoch.

    Several processes read a dataset without a length each for itself (`dispatch_batches=False`), unless the Trainer's
    arguments say otherwise: accelerate would join batches of one process, which are of several lengths.

    Raises:
        ValueError: if documents do not fill a batch, and incomplete ones are dropped; if processes do not meet.

    Example:
        >>> from datasets import Dataset
        >>> from transformers import AutoTokenizer, Trainer, TrainingArguments
        >>> from docsplit import DocSplitCallback, DocSplitCollator, DocSplitForContrastivePretraining
        >>> from docsplit.data.preparation import tokenize
        >>> tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
        >>> model = DocSplitForContrastivePretraining.from_pretrained("bert-base-uncased", pooling="mean")
        >>> texts = ["The ship sails at dawn. The tide turns at noon.", "Mix flour and salt. Heat the oven."]
        >>> documents, _ = tokenize(Dataset.from_dict({"text": texts}), tokenizer)
        >>> args = TrainingArguments("outputs/run", max_steps=1, logging_steps=1, remove_unused_columns=False)
        >>> collator = DocSplitCollator.for_model(model, tokenizer)
        >>> trainer = Trainer(model, args, collator, documents.with_format("numpy"))
        >>> callback = DocSplitCallback(trainer)
        >>> output = trainer.train()
        {'loss': ...'contrastive_loss': ...
    """

    def __init__(self, trainer: Trainer):
        self.collator: Any = trainer.data_collator
        args, loading = trainer.args, trainer.accelerator.dataloader_config
        if (started := int(os.environ.get("WORLD_SIZE", 1))) > args.world_size:
            raise ValueError(
                f"{started} processes were started, and each would train alone: where there is no GPU for each, give "
                "TrainingArguments use_cpu=True."
            )
        loading.dispatch_batches = bool(loading.dispatch_batches)
        documents = {"training": (trainer.train_dataset, args.train_batch_size)}
        if args.eval_strategy != "no":
            documents["evaluation"] = trainer.eval_dataset, args.eval_batch_size
        for purpose, (dataset, size) in documents.items():
            if args.dataloader_drop_last and isinstance(dataset, Sized) and not isinstance(dataset, Mapping):
                processes = 1 if loading.split_batches else args.world_size
                refuse_fewer_than_a_batch(len(dataset), size, purpose, processes)
        self._start_anew()
        self.total_tokens, self.total_seconds = 0.0, 0.0
        self.clock = time.perf_counter()
        self.epoch = 0  # that comes next
        self.hook: Any = None
        # Before the others: what `on_log` adds must be there when TensorBoard and the like read it.
        trainer.callback_handler.callbacks.insert(0, self)
        self.draw_batches: Any = trainer.get_batch_samples
        trainer.get_batch_samples = self._draw_and_count  # type: ignore[method-assign, assignment]
        evaluate = trainer.evaluate

        def evaluate_apart(*given: Any, **how: Any) -> Any:
            """Draw nothing that the training would: a run resumed after an evaluation has not made it."""
            with torch.random.fork_rng(devices=[]):
                return evaluate(*given, **how)

        trainer.evaluate = evaluate_apart  # type: ignore[method-assign]

    def _start_anew(self) -> None:
        """Forget what was summed since the last log."""
        self.sums: dict[str, Any] = defaultdict(int)
        self.counts: dict[str, Any] = defaultdict(int)  # of the batches that have a value whose mean is logged
        self.histograms: dict[str, Any] = defaultdict(int)
        self.vectors: Tensor | None = None  # (N, H)
        self.calls, self.seconds, self.stall = 0, 0.0, 0.0

    @torch.no_grad()
    def _observe(self, model: nn.Module, args: Any, inputs: dict[str, Tensor], output: Any) -> None:
        if not model.training or output.loss is None:
            return
        self.calls += 1
        measured = {} if output.mlm_loss is None else {"mlm_loss": output.mlm_loss}
        if output.contrastive_loss is not None:
            measured |= {"contrastive_loss": output.contrastive_loss} | (output.objective_parts or {})
            measured |= embedding_geometry(output.embeddings[:, :2])
            self.sums["masked_negatives"] += output.num_masked_negatives
            for name, counts in (output.objective_histograms or {}).items():
                self.histograms[name] += counts
            first = output.embeddings[:, 0].detach().float()
            self.vectors = (first if self.vectors is None else torch.cat([self.vectors, first]))[-NUM_SPREAD:]
        for name, value in measured.items():
            self.sums[name] += value.detach()
            self.counts[name] += 1
        self.sums["tokens"] += inputs["attention_mask"].sum()
        self.sums["computed_tokens"] += output.num_computed_tokens

    def _draw_and_count(self, *given: Any) -> Any:
        """Draw the batches of a step, as Trainer does, and count how long that takes."""
        start = time.perf_counter()
        batches = self.draw_batches(*given)
        self.stall += time.perf_counter() - start
        return batches

    def _tick(self, counts: bool) -> None:
        now = time.perf_counter()
        passed, self.clock = now - self.clock, now
        self.seconds += passed if counts else 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Start the clocks, and go on with the epoch and the totals of a run that resumes.

        The model is known now: with `model_init` each training has another.

        Raises:
            ValueError: for workers that outlive an epoch, which would keep its number.
        """
        if args.dataloader_persistent_workers:
            raise ValueError(
                "dataloader_persistent_workers=True would prefetch with the views of the epoch before: leave it off."
            )
        if self.hook is not None:
            self.hook.remove()
        self.hook = kwargs["model"].register_forward_hook(self._observe, with_kwargs=True)
        self.epoch = int(state.epoch or 0)
        self._tick(counts=False)
        for entry in state.log_history:  # of the sessions before, if this one resumes
            self.total_tokens = entry.get("tokens_seen", self.total_tokens)
            self.total_seconds = entry.get("training_seconds", self.total_seconds)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Put the number of the epoch into the collator's shared memory.

        It is counted here: of a data set without a length Trainer takes all steps for one epoch.
        """
        self.collator.epoch.value = self.epoch
        self.epoch += 1

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Count the time since the last step, in which the batch was drawn; at its end, the step."""
        self._tick(counts=True)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Leave evaluating and saving out of the clock."""
        self._tick(counts=False)

    on_step_end, on_save = on_step_begin, on_evaluate

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Add the means since the last log."""
        logs = kwargs["logs"]
        if "loss" not in logs or not self.calls:
            return
        means = self.flush()
        logs.update(means)
        state.log_history[-1].update(means)  # Trainer has already put its copy there
        self._tick(counts=True)  # reading the losses waits for the device, not for the loader

    def flush(self) -> dict[str, float]:
        """Return means since the last call, and start anew; all processes call it.

        A loss is scaled so that its mean over the processes is its value. A part may be there on some alone, so the
        sums go with their names.
        """
        own = [{name: float(value) for name, value in self.sums.items()}, self.counts]
        own.append({name: value.cpu().numpy() for name, value in self.histograms.items()})
        of_all: tuple[dict[str, Any], ...] = (defaultdict(int), defaultdict(int), defaultdict(int))
        for of_process in on_all(lambda: own):
            for total, values in zip(of_all, of_process):
                for name, value in values.items():
                    total[name] += value
        sums, counts, histograms = of_all
        tokens, computed = int(sums["tokens"]), int(sums["computed_tokens"])
        means = {name: sums[name] / count for name, count in counts.items()}
        if "masked_negatives" in sums:
            means["masked_negatives"] = sums["masked_negatives"] / self.calls
        seconds = max(self.seconds, 1e-9)
        means |= {"tokens_per_second": tokens / seconds, "padding_share": 1 - tokens / computed}
        means |= {"loader_stall": self.stall / seconds}
        if self.vectors is not None and len(self.vectors) > 1 and self.vectors.isfinite().all():
            means |= spread(self.vectors.cpu().numpy())
        for name, histogram in histograms.items():
            means |= {f"{name}_{measure}": value for measure, value in usage(histogram).items()}
        self.total_tokens += tokens
        self.total_seconds += self.seconds
        self._start_anew()
        totals = {"tokens_seen": self.total_tokens, "training_seconds": self.total_seconds}
        return {name: round(value, 6) for name, value in (means | totals).items()}

    def totals(self, log_history: list[dict[str, float]]) -> dict[str, float]:
        """Return seconds, real tokens and the mean logged loss, if any, over all sessions of a resumed run."""
        if self.calls:
            self.flush()
        losses = [entry["loss"] for entry in log_history if "loss" in entry]
        mean_loss = {"train_loss": sum(losses) / len(losses)} if losses else {}
        return mean_loss | {
            "train_runtime": self.total_seconds,
            "train_tokens": int(self.total_tokens),
            "train_tokens_per_second": self.total_tokens / max(self.total_seconds, 1e-9),
        }


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
        place = checkpoint or start  # whose record goes on; incomplete where there is none
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
            for ids, sketches in notes:
                self.record.run.add(ids, sketches)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Write the record into the checkpoint."""
        self._gather()
        if state.is_world_process_zero:
            self.record.save(checkpoint_of(args, state))

    def finish(self, kept_start: bool) -> dict[str, int]:
        """Write the record beside the weights that the run ends with, unless these are the start's, with its record.

        Returns: `documents_used` for all_results.json, the distinct documents that the steps of all sessions saw,
            but for sessions whose checkpoint had no record.
        """
        self._gather()
        args, best = self.trainer.args, self.trainer.state.best_model_checkpoint
        if self.trainer.is_world_process_zero() and not kept_start:
            if args.load_best_model_at_end and best is not None:
                if (record := Path(best) / TRAINING_DOCUMENTS_FILE).exists():
                    shutil.copy2(record, str(args.output_dir))
            else:
                self.record.save(Path(str(args.output_dir)))
        return {"documents_used": len(self.record.run)}


class StreamCallback(TrainerCallback):
    """Note the position of a stream in each checkpoint, and go on from there; to be added before `CheckpointCallback`.

    Args:
        checkpoint: the one that the training resumes from.
    """

    def __init__(self, trainer: Trainer, stream: DocumentStream, checkpoint: Path | None):
        self.trainer, self.stream, self.checkpoint = trainer, stream, checkpoint
        if checkpoint is not None:  # the first process compares: paths and times of files differ between machines
            workers = trainer.args.dataloader_num_workers
            stream.first_batch = from_first(lambda: stream.resume(checkpoint, workers))

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Restore the random state once more, at the first step of a resumed run."""
        if self.checkpoint is not None:  # the loader's start has drawn from the generator that dropout draws from
            self.trainer._load_rng_state(str(self.checkpoint))
            self.checkpoint = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Note the position of the stream in the checkpoint."""
        if state.is_world_process_zero:
            checkpoint = checkpoint_of(args, state)
            num_batches = state.global_step * args.gradient_accumulation_steps
            self.stream.save(checkpoint, num_batches, args.dataloader_num_workers)


class CheckpointCallback(TrainerCallback):
    """Seal each checkpoint after all processes have written their part, and rotate only then.

    Stock rotation deletes older checkpoints before anything says that the new one is whole, so this takes
    `save_total_limit` over.

    Args:
        is_seen_here: whether this process sees the output folder of the first one. If not, Trainer writes the random
            state of this process into a temporary folder, which takes the place of --output_dir, and it is sent.
    """

    def __init__(self, args: TrainingArguments, is_seen_here: bool = True):
        self.keep, args.save_total_limit = args.save_total_limit, None
        self.temporary = None if is_seen_here else tempfile.TemporaryDirectory(prefix="docsplit-")
        if self.temporary is not None:
            args.output_dir = self.temporary.name

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Seal the checkpoint, and only then remove old ones."""
        checkpoint = checkpoint_of(args, state)
        if args.world_size > 1:
            self._bring_random_states(args, checkpoint)
        if state.is_world_process_zero:
            (checkpoint / "training_args.bin").unlink(missing_ok=True)  # only pickle reads it
            seal(checkpoint)
            if self.keep:
                checkpoints.rotate(checkpoint.parent, self.keep, state.best_model_checkpoint)

    def _bring_random_states(self, args: TrainingArguments, checkpoint: Path) -> None:
        """Put the random states of processes on other machines into the checkpoint; all have written theirs then."""
        own = checkpoint / f"rng_state_{args.process_index}.pth"  # none with --save_only_model
        is_sent = self.temporary is not None and own.exists()
        states = on_all(lambda: own.read_bytes() if is_sent else None)
        if self.temporary is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)
        if args.process_index == 0:
            for rank, state in enumerate(states):
                if state is not None:
                    (checkpoint / f"rng_state_{rank}.pth").write_bytes(state)


class StopCallback(TrainerCallback):
    """End the training on all processes after the same step: at the first NaN or infinity, or where a signal came.

    Ctrl-C, or a cluster's SIGTERM, lets the step finish and a checkpoint be saved; a second one stops at once.

    To be added after callbacks that ask for a checkpoint. Whether losses and parameters are finite, and whether a
    process was told to stop, is worked out on the device, reduced over the processes once, and copied to the host
    without waiting: on a GPU the answer is read one step later, before anything is saved at once. `save_pretrained`
    refuses such weights once more, so that none lie on the disk. Gradients that are not finite are no reason to stop:
    under fp16 the gradient scaler skips their step, and without it they reach the parameters.

    Args:
        model: the one that is trained. Its parameters are equal on all processes; a loss may be NaN on one alone.

    Attributes:
        received: this process got a signal.
        stopped: the training ends because a process got one.
    """

    def __init__(self, model: nn.Module):
        self.received, self.stopped = False, False
        self.handlers: dict[int, Any] = {}  # of signals, before
        self.parameters: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        dtypes = [parameter.dtype for parameter in self.parameters]
        self.dtype = functools.reduce(torch.promote_types, dtypes, torch.float32)  # of losses and norms
        self.losses: list[Tensor] = []  # of the micro-steps since the last step
        self.pending: tuple[int, Tensor, Any] | None = None  # step, answers on the host, when they have arrived
        model.register_forward_hook(self._observe)

    def _receive(self, number: int, frame: Any) -> None:
        logger.warning("Stopping after this step; wait for its checkpoint. A second signal stops at once.")
        self.received = True
        signal.signal(number, self.handlers[number])

    def _observe(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if model.training and output.loss is not None:
            self.losses.append(output.loss.detach().to(self.dtype))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Take the signals over."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._receive)

    @torch.no_grad()
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Ask for the answers of this step, and look at the last; at these too if the weights are used next."""
        # One NaN or infinity stays in a norm. (So it is with a parameter above 1e19, whose square is infinite.)
        norms = torch._foreach_norm(self.parameters, 2, self.dtype)
        finite = torch.stack([*self.losses, *norms]).isfinite().all()
        self.losses.clear()
        goes_on = torch.full_like(finite, not self.received)
        answers = torch.stack([finite, goes_on]).int()
        if args.world_size > 1:  # signals reach the processes at different steps; all must stop after the same one
            dist.all_reduce(answers, op=dist.ReduceOp.MIN)
        elif self.received:
            self._stop(control)
        self._look(args, control)
        self.pending = state.global_step, *fetch(answers)
        is_here = self.pending[2] is None
        if is_here or control.should_save or control.should_evaluate or control.should_training_stop:
            self._look(args, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Look at the last answers: a checkpoint may follow."""
        self._look(args, control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Look at the last answers, and give the signals back; one after the last step counts for one process."""
        self._look(args, control)
        self.stopped |= self.received and args.world_size == 1
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _stop(self, control: TrainerControl) -> None:
        """Save a checkpoint and end the training."""
        self.stopped = control.should_save = control.should_training_stop = True

    def _look(self, args: TrainingArguments, control: TrainerControl) -> None:
        """Read the answers that are on their way, if there are any.

        Raises:
            FloatingPointError: naming the step and the remedy.
        """
        if self.pending is None:
            return
        step, answers, arrival = self.pending
        self.pending = None
        if arrival is not None:
            arrival.synchronize()
        finite, goes_on = answers.tolist()
        if not finite:
            raise FloatingPointError(
                f"The loss or the parameters are not finite after step {step}: the training stops, and nothing of it "
                "is written. Start anew, or from the weights of a checkpoint (--model_name_or_path), with a lower "
                f"--learning_rate than {args.learning_rate}, --max_grad_norm 1, or --bf16 in place of --fp16."
            )
        if not goes_on:
            self._stop(control)
