"""The work beside the training steps, as callbacks of the stock Trainer: none of them needs a Trainer subclass."""

import logging
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import HubStrategy

from docsplit.data.streaming import DocumentStream
from docsplit.evaluation.analysis.geometry import embedding_geometry, spread, usage
from docsplit.release.hub import push_in_background
from docsplit.release.records import seal
from docsplit.runtime.sharing import from_first, on_all
from docsplit.training import checkpoints

logger = logging.getLogger(__name__)

NUM_SPREAD = 512  # documents: batches of two or of 36 say little of a rank


class DocSplitCallback(TrainerCallback):
    """Tell the collator which epoch it is, so that each draws other views, and add to the Trainer's log.

    `DocSplitCallback(trainer)` adds itself. The log gets loss parts, real tokens per second and the geometry of the
    embeddings:

    `contrastive_loss`, `mlm_loss`: the parts of the loss, before their weights.

    `positive_cosine`, `negative_cosine`: mean cosine similarity of the two views of a document, and of views of
    different documents of the batch. `alignment`, `uniformity`: Wang and Isola (2020), equations 1 and 2. Values are
    means over the steps since the last log; with several processes, of the main one.

    `dimension_std`, `dimension_correlation`, `effective_rank`: `docsplit.evaluation.analysis.geometry.spread` of first
    views, those of the main process since the last log, the last `NUM_SPREAD` of them. `NAME_active`, `NAME_entropy`:
    `docsplit.evaluation.analysis.geometry.usage` of each histogram of the objective, summed since the last log.

    `tokens_per_second`: of the views without padding and without the masked copies, over all processes; evaluation
    and saving do not count as time. `padding_share`: of the tokens that are computed. `loader_stall`: the share of
    the time in which the main process waits for batches, their copies to the device included. `masked_negatives`:
    pairs a step, over all processes, that did not count as negatives since both are the same document.

    A dataset with `set_epoch` is not exact: accelerate does not forward it after skipped batches. Workers get the
    number of the epoch through shared memory, at their start; so they must start anew in each epoch.
    """

    def __init__(self, trainer: Trainer):
        self.collator: Any = trainer.data_collator
        self.sums: dict[str, Any] = defaultdict(int)
        self.histograms: dict[str, Any] = defaultdict(int)
        self.vectors: Tensor | None = None  # (N, H)
        self.calls = 0
        self.seconds, self.stall = 0.0, 0.0
        self.total_tokens, self.total_seconds = 0.0, 0.0
        self.clock = time.perf_counter()
        self.args = trainer.args
        # Before the others: what `on_log` adds must be there when TensorBoard and the like read it.
        trainer.callback_handler.callbacks.insert(0, self)
        model: Any = trainer.model
        model.register_forward_hook(self._observe, with_kwargs=True)
        self.draw_batches: Any = trainer.get_batch_samples
        trainer.get_batch_samples = self._draw_and_count  # type: ignore[method-assign, assignment]

    @torch.no_grad()
    def _observe(self, model: nn.Module, args: Any, inputs: dict[str, Tensor], output: Any) -> None:
        if not model.training or output.loss is None:
            return
        self.calls += 1
        if output.contrastive_loss is not None:
            self.sums["contrastive_loss"] += output.contrastive_loss.detach()
            self.sums["masked_negatives"] += output.num_masked_negatives
            parts = {name: value.detach() for name, value in (output.objective_parts or {}).items()}
            for name, value in (parts | embedding_geometry(output.embeddings[:, :2])).items():
                self.sums[name] += value
            for name, counts in (output.objective_histograms or {}).items():
                self.histograms[name] += counts
            first = output.embeddings[:, 0].detach().float()
            self.vectors = (first if self.vectors is None else torch.cat([self.vectors, first]))[-NUM_SPREAD:]
        if output.mlm_loss is not None:
            self.sums["mlm_loss"] += output.mlm_loss.detach()
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
        """Start the clocks, and go on with the totals of a run that resumes.

        Raises:
            ValueError: for workers that outlive an epoch, which would keep its number.
        """
        if args.dataloader_persistent_workers:
            raise ValueError(
                "dataloader_persistent_workers=True would prefetch with the views of the epoch before: leave it off."
            )
        self._tick(counts=False)
        for entry in state.log_history:  # of the sessions before, if this one resumes
            self.total_tokens = entry.get("tokens_seen", self.total_tokens)
            self.total_seconds = entry.get("training_seconds", self.total_seconds)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Put the number of the epoch into the collator's shared memory."""
        self.collator.epoch.value = int(state.epoch or 0)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Count the time since the last step."""
        self._tick(counts=True)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Count the step."""
        self._tick(counts=True)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Leave the evaluation out of the clock."""
        self._tick(counts=False)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Leave the saving out of the clock."""
        self._tick(counts=False)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ):
        """Add the means since the last log."""
        logs = kwargs["logs"]
        if "loss" not in logs or not self.calls:
            return
        means = self.flush()
        logs.update(means)
        state.log_history[-1].update(means)  # Trainer has already put its copy there
        self._tick(counts=True)  # reading the losses waits for the device, not for the loader

    def flush(self) -> dict[str, float]:
        """Return means since the last call, and start anew."""
        names = [name for name in ("tokens", "computed_tokens", "masked_negatives") if name in self.sums]
        counts = [self.sums.pop(name) for name in names]  # tensors, or numbers that the host knows
        if self.args.world_size > 1:
            total = torch.stack([torch.as_tensor(count, device=self.args.device) for count in counts])
            dist.all_reduce(total)
            counts = total.tolist()
        tokens, computed, *masked = map(int, counts)
        sums = {name: float(value) for name, value in self.sums.items()}
        sums |= {"masked_negatives": float(masked[0])} if masked else {}
        means = {name: value / self.calls for name, value in sums.items()}
        seconds = max(self.seconds, 1e-9)
        means |= {"tokens_per_second": tokens / seconds, "padding_share": 1 - tokens / computed}
        means |= {"loader_stall": self.stall / seconds}
        if self.vectors is not None and len(self.vectors) > 1 and self.vectors.isfinite().all():
            means |= spread(self.vectors.cpu().numpy())
        for name, histogram in self.histograms.items():
            means |= {f"{name}_{measure}": value for measure, value in usage(histogram.cpu().numpy()).items()}
        self.total_tokens += tokens
        self.total_seconds += self.seconds
        self.sums.clear()
        self.histograms.clear()
        self.vectors = None
        self.calls, self.seconds, self.stall = 0, 0.0, 0.0
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
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
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
        if args.world_size > 1:
            self._bring_random_states(args, Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")
        if state.is_world_process_zero:
            output_dir = Path(str(args.output_dir))
            checkpoints.without_pickled_arguments(output_dir / f"checkpoint-{state.global_step}")
            seal(output_dir / f"checkpoint-{state.global_step}")
            if self.keep:
                checkpoints.rotate(output_dir, self.keep, state.best_model_checkpoint)

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


class PushCallback(TrainerCallback):
    """Put sealed checkpoints on the Hub while training goes on; to be added after `CheckpointCallback`.

    Trainer's push would replace our card, leave out the pooling, and upload whatever lies in the folder. As there, a
    checkpoint is passed over while the last one is still on its way, unless --hub_always_push.

    Args:
        repo_id: user/name, of a repository that exists.
    """

    def __init__(self, repo_id: str):
        self.repo_id = repo_id
        self.running: list[Future] = []

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Start the upload of the checkpoint, unless an earlier one is still on its way."""
        strategy = HubStrategy(args.hub_strategy)
        if not state.is_world_process_zero or strategy == HubStrategy.END:
            return
        if not args.hub_always_push and any(not push.done() for push in self.running):
            logger.info(f"The checkpoint of step {state.global_step} is not pushed: an earlier one is on its way.")
            return
        self._report()
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        self.running.append(push_in_background(checkpoint, self.repo_id, strategy.value))

    def wait(self) -> None:
        """Wait for running uploads; to be called after the last collective, or other processes would wait too."""
        wait(self.running)
        self._report()

    def _report(self) -> None:
        """Log which of the ended pushes failed: that is no reason to end a training."""
        for push in [push for push in self.running if push.done()]:
            self.running.remove(push)
            if error := push.exception():
                logger.warning(f"A checkpoint did not reach the Hub; training goes on: {error}")


class LastStepCallback(TrainerCallback):
    """Take no step where a run that has had its last one is resumed: stock Trainer looks only after one more."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Give the loop no batches if there is nothing left to train."""
        if state.global_step >= state.max_steps:
            logger.info(f"All {state.max_steps} steps have been trained: only what comes after them is done.")
            trainer: Any = self.trainer
            trainer.get_batch_samples = lambda *_: ([], None)


class InterruptCallback(TrainerCallback):
    """Let Ctrl-C, or a cluster's SIGTERM, finish the step, save a checkpoint and stop; a second one stops at once.

    `docsplit.training.finite.FiniteCallback` tells all processes, and calls `stop` on each after the same step: with
    several GPUs that is the step after the one in which the signal came.

    Attributes:
        received: this process got a signal.
        stopped: the training ends because a process got one.
    """

    def __init__(self) -> None:
        self.received, self.stopped = False, False
        self.previous: dict[int, Any] = {}

    def _receive(self, number: int, frame: Any) -> None:
        logger.warning("Stopping after this step; wait for its checkpoint. A second signal stops at once.")
        self.received = True
        signal.signal(number, self.previous[number])

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Take the signals over."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self.previous[number] = signal.signal(number, self._receive)

    def stop(self, control: TrainerControl) -> None:
        """Save a checkpoint and end the training."""
        self.stopped = control.should_save = control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Give the signals back; one that came after the last step counts where there is one process."""
        self.stopped |= self.received and args.world_size == 1
        for number, handler in self.previous.items():
            signal.signal(number, handler)
