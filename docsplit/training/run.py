"""A pretraining run: everything is loaded, the model is trained, and the results are written."""

import json
import logging
import socket
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from tqdm.contrib.logging import logging_redirect_tqdm
from transformers import Trainer

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.data.streaming import LAYOUT_FILE
from docsplit.data.views import QUERY_DOCUMENT
from docsplit.modeling.checkpoint import ADAPTER_FOLDER
from docsplit.modeling.loading import pooling_of
from docsplit.modeling.objectives.table import OBJECTIVES, option_names, prepared_files
from docsplit.release import hub, model_card
from docsplit.release.records import MANIFEST, RunRecord, why_incomplete
from docsplit.runtime.bounds import options_that_decide
from docsplit.runtime.files import PARTIAL, FileRecord, fingerprint, flush, name_failed_writes
from docsplit.runtime.launching import explain_out_of_memory
from docsplit.runtime.sharing import OutputFolder, begun_before, from_first, on_all, refuse_differences, remove
from docsplit.training import checkpoints, models
from docsplit.training.callbacks import DocSplitCallback, SeenDocumentsCallback, StopCallback
from docsplit.training.documents import TrainingData, load_documents, load_queries, note_sections, stream_documents
from docsplit.training.negatives import NOTE
from docsplit.training.probe import ProbeCallback, folder_of, put_back_better_start
from docsplit.training.resuming import TrainingRecord
from docsplit.training.run_arguments import NEGATIVES_FOLDER, RunOptions
from docsplit.training.screen import closing_text, counts_table
from docsplit.training.teacher import provide_targets
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger("docsplit")

# What a new run removes of an earlier one in its folder, as patterns of Path.glob, and nothing else
IN_A_CHECKPOINT = (
    *(name for name in hub.WRITTEN if name not in (*checkpoints.RESULTS, "README.md", "training.png")),
    *(TRAINING_DOCUMENTS_FILE, LAYOUT_FILE, NOTE, TrainingRecord.file, f"{ADAPTER_FOLDER}/adapter_*"),
    *("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "trainer_state.json", "training_args.bin"),
    *(MANIFEST, f".*{PARTIAL}", ".tmp??????"),  # the last two are left by a kill
)
RUN_PARTS = (
    f"{ADAPTER_FOLDER}/adapter_*",
    *(f"{NEGATIVES_FOLDER}/{'[0-9a-f]' * 24}*/*", f"{NEGATIVES_FOLDER}/encoder/**/*"),
)


def take_output(options: RunOptions) -> OutputFolder:
    """Return the output folder, which the first process takes: another run, or files of others, stop this one.

    All processes must call it. Where not all see the folder, the first process's is written, and no other.

    Raises:
        ValueError: naming the remedy.
        OSError: if nothing can be written there.
    """
    command = "run_docsplit_pretraining.py"
    folder = OutputFolder(options.output_dir, command, "--output_dir", hub.WRITTEN, checkpoints.is_sealed)
    return folder.take_for_all()


def refuse_folder_apart(
    folder: OutputFolder, options: RunOptions, start: DocSplitForContrastivePretraining | None
) -> None:
    """Stop if not all processes see the output folder, and one writes files there that all read while the run goes on.

    All processes must call it.

    Raises:
        ValueError: naming the processes and the remedy.
    """
    if all(folder.seen_by):
        return
    places = on_all(lambda: (socket.gethostname(), folder.path))
    host, path = places[0]
    others = [f"rank {rank} on {name}" for rank, (name, _) in enumerate(places) if not folder.seen_by[rank]]
    apart = f"{path} of rank 0 on {host} is not seen by {', '.join(others)}"
    objective = start.config.docsplit["objective"] if start is not None else options.training.objective
    needed_by = ["--load_best_model_at_end"] if options.training.load_best_model_at_end else []
    needed_by += [f"--negatives {phase}" for phase in options.queries.phases if phase != "random"]
    needed_by += [f"--objective {objective}"] if objective and OBJECTIVES[objective].prepared_files else []
    if needed_by:
        raise ValueError(
            f"{apart}, and {', '.join(needed_by)} needs that: put --output_dir on a file system that all machines "
            "share, or leave the option out."
        )
    logger.info(f"{apart}: checkpoints and the release are on rank 0's machine alone. To resume, copy one first.")


def find_checkpoint(options: RunOptions) -> Path | None:
    """Find the checkpoint to resume from; None for a new run, which removes an earlier one but not its start.

    The first process chooses. All processes must call it.

    Raises:
        ValueError: on all processes, if one of them cannot go on from the same checkpoint.
    """
    args, output_dir = options.training, options.output_dir

    def choose() -> tuple[str, bool, FileRecord] | None:
        if (begun := begun_before(output_dir)) is not None:
            checkpoint = checkpoints.to_go_on_from(output_dir, begun)
        else:
            checkpoint = checkpoints.to_resume_from(output_dir, args.resume_from_checkpoint, args.overwrite_output_dir)
        if checkpoint is None:
            checkpoints.refuse_to_remove(output_dir, (options.start, options.model.tokenizer_name))
            return None
        logger.info(f"Continuing from {checkpoint}.")
        is_inside = checkpoint.resolve().parent == output_dir.resolve()  # which may be another on each machine
        return checkpoint.name if is_inside else str(checkpoint), is_inside, FileRecord.of(checkpoint / MANIFEST)

    chosen = from_first(choose)
    if chosen is None:
        return None
    name, is_inside, manifest = chosen
    checkpoint = output_dir / name if is_inside else Path(name)
    on_all(lambda: checkpoints.refuse_another(checkpoint, manifest) if args.process_index else None)
    return checkpoint


def load_data(
    options: RunOptions, start: DocSplitForContrastivePretraining | None, checkpoint: Path | None
) -> TrainingData:
    """Load documents, a stream of documents, or queries, as the options say."""
    if options.data.view == QUERY_DOCUMENT:
        return load_queries(options, checkpoint, start)
    return (stream_documents if options.data.streaming else load_documents)(options, checkpoint, start)


@dataclass
class Callbacks:
    """The callbacks that a run uses after training."""

    metrics: DocSplitCallback
    stop: StopCallback
    seen: SeenDocumentsCallback
    probe: ProbeCallback | None


@dataclass
class Run:
    """The options of a run, its documents and its model, for objective, collator and callbacks.

    Attributes:
        checkpoint: that the run resumes from; None for a new one.
        folder: that everything is written into; the first process has taken it.
        start: the identity of the pretrained encoder; None for a random one.
    """

    options: RunOptions
    checkpoint: Path | None
    data: TrainingData
    model: DocSplitForContrastivePretraining
    folder: OutputFolder
    start: str | None = None

    def __post_init__(self) -> None:
        self.results = self.data.counts  # the same dict, for all_results.json: what is prepared adds its counts
        self.start_folder: Path | None = None  # of the encoder to start from, if it may be better than what comes out

    def refuse_changes(self) -> None:
        """Refuse options, data and a model that are not those of all processes, and of the checkpoint."""
        refuse_differences(lambda: self._facts("training", "release", "session"))
        if self.checkpoint is not None:
            self.record.go_on_from(self.checkpoint, chooses=self.options.training.load_best_model_at_end)

    def has_ended(self) -> bool:
        """Tell, and say, whether a run that resumes ended before with what it was given, so that nothing is to do."""
        begins = self.options.training.resume_from_checkpoint is None
        if begins or not from_first(lambda: self.folder.has_ended(*self._end(self.checkpoint))):
            return False
        logger.info(
            f"The run in {self.options.output_dir} has ended: it stays as it is. To train anew leave "
            "--resume_from_checkpoint out."
        )
        self.folder.close()
        return True

    def _end(self, last: Path | None) -> tuple[str, str]:
        """Return what tells the end of this run from those of others: options and data; and its last checkpoint."""
        streamed = self.data.stream and self.data.stream.state["corpus"]
        return fingerprint(self._facts("training", "release"), streamed), last.resolve().name if last else ""

    def prepare_objective(self) -> None:
        """Let the objective prepare its data."""
        own = self.model.objective.prepared_files
        if self.checkpoint is None and self.options.training.process_index == 0:
            # Of an earlier run in this folder; the objective replaces its own files once nothing can be refused
            remove(self.folder.path, [name for name in prepared_files() if name not in own])
        self.model.objective.prepare(self)

    @cached_property
    def record(self) -> TrainingRecord:
        """What decides the weights, for checkpoints."""
        args = self.options.training
        return TrainingRecord(
            self._facts("training"), f"{args.world_size} x {args.per_device_train_batch_size} documents"
        )

    def _facts(self, *kinds: str) -> dict[str, str]:
        """Return options that decide one of these (`docsplit.runtime.bounds.DECIDES`), all data, and the model.

        Options have the values that are in effect; names are those that messages have.
        """
        args: Any = self.options.training
        body, processes = self.model.body, args.world_size
        groups = (self.options.data, self.options.queries, self.options.model, args)
        values = {name: value for group in groups for name, value in options_that_decide(group, *kinds).items()}
        config = checkpoints.of_the_model(json.loads(self.model.config.to_json_string()))
        settings = config.pop("docsplit")
        known = values.keys() | option_names(settings["objective"])
        config |= {name: settings.pop(name) for name in [*settings] if name not in known}
        values |= settings | {"pooling": pooling_of(body), "max_seq_length": body.max_seq_length}
        values["per_device_train_batch_size x processes"] = args.per_device_train_batch_size * processes
        if args.eval_strategy != "no":
            values["per_device_eval_batch_size x processes"] = args.per_device_eval_batch_size * processes
        values["accelerator_config"] = replace(args.accelerator_config, non_blocking=False)
        if "release" in kinds:
            values["push_to_hub"] = args.push_release
        facts = {f"--{name}": value for name, value in values.items()}
        facts["the encoder (--model_name_or_path)"] = self.start
        facts |= {f"{name} of the model": value for name, value in config.items()}
        return {
            name: str(getattr(value, "value", value)) for name, value in (facts | self.data.fingerprints()).items()
        }

    def neighbour_targets(self, options: Any) -> Path:
        """Return the file of the start's vectors, averaged with neighbours' (`docsplit.training.teacher`)."""
        return provide_targets(self.options, options, self.model, self.data, self.checkpoint)

    def count_documents(self, collator: Any) -> None:
        """Count held-out and truncated documents for the results, and print all counts."""
        note_sections(self.model.config, self.data.documents)
        self.results["documents_held_out"] = len(self.data.held_out) if self.data.held_out is not None else 0
        if self.data.stream is None:
            self.results |= collator.shares(self.data.train)
        if self.options.training.process_index == 0:
            print(counts_table(self.results), flush=True)

    def train(self, trainer: Trainer, callbacks: Callbacks) -> float:
        """Measure the start, make room for new checkpoints, and train; a signal ends the process with code 130.

        Returns: the mean loss.
        """
        args = self.options.training
        if callbacks.probe is not None:
            self.start_folder = folder_of(models.name_of_start(self.options.model))
            if self.checkpoint is None:
                callbacks.probe.measure(with_test=True)  # logged by train(), whose clock should not count it
        if self.checkpoint is not None:
            self.record.check_length(trainer, self.checkpoint, len(self.options.queries.phases) > 1)
        if trainer.is_world_process_zero():
            remove(self.folder.path, checkpoints.RESULTS)  # of weights that are about to change
            if self.checkpoint is None:
                remove(self.folder.path, RUN_PARTS)
                for checkpoint in checkpoints.checkpoints(self.folder.path):
                    remove(checkpoint, IN_A_CHECKPOINT)
            self.folder.note_begin(self.checkpoint)
        resumed = str(self.checkpoint) if self.checkpoint else None
        memory = explain_out_of_memory(args.micro_batch_tokens, args.cache_gradients)
        with memory, name_failed_writes(self.options.output_dir), logging_redirect_tqdm():  # messages above the bar
            output = trainer.train(resume_from_checkpoint=resumed)
        if callbacks.stop.stopped:
            logger.warning(f"Stopped at step {trainer.state.global_step}; go on with --resume_from_checkpoint.")
            sys.exit(130)
        best = trainer.state.best_model_checkpoint if args.load_best_model_at_end else None
        if args.load_best_model_at_end and best is None:
            raise ValueError(
                "--load_best_model_at_end found no evaluated checkpoint: add --resume_from_checkpoint "
                "--load_best_model_at_end false, which releases the last weights."
            )
        if best is not None and (reason := why_incomplete(Path(best))):
            raise ValueError(
                f"The best checkpoint, {best}, cannot be released: {reason}. Mend it from a copy, or add "
                "--resume_from_checkpoint --load_best_model_at_end false, which releases the last weights."
            )
        return output.training_loss

    def finish(self, trainer: Trainer, callbacks: Callbacks, train_loss: float) -> None:
        """Save the better of trained encoder and start, and write and push the results; all processes call it."""
        args, probe, history = self.options.training, callbacks.probe, trainer.state.log_history
        output_dir = self.options.output_dir
        if trainer.is_world_process_zero():
            self.folder.begin_results()
        kept_start = put_back_better_start(probe, self.start_folder, args)
        if not kept_start:
            with name_failed_writes(output_dir):
                trainer.save_model()
                (output_dir / "training_args.bin").unlink(missing_ok=True)  # only pickle reads it

        # Results that all processes take part in
        self.results |= {"kept_start": kept_start, "train_loss": train_loss, "global_step": trainer.state.global_step}
        self.results |= callbacks.metrics.totals(history) | callbacks.seen.finish(kept_start)
        if self.data.stream is not None:
            self.results["documents_dropped"] = sum(gather_object([self.data.stream.num_dropped.value]))
        if probe is not None:
            self.results |= probe.summary()
        if not trainer.is_world_process_zero():
            return

        # Results say that the weights are there: these are on the disk first
        files = hub.release_files(output_dir)
        for path in [*files, *{file.parent for file in files}]:
            flush(path)
        repo_id = args.hub_model_id if args.push_release else None  # which `prepare_release` made
        changes = self.record.changes
        description = RunRecord.of_this_run(args.device.type, args.world_size, repo_id, self.data.lexical, changes)
        loss_name = self.model.objective.loss_name
        model_card.write_run(output_dir, self.results, history, description, loss_name)
        if repo_id is not None:
            outdated = list(hub.RELEASE) if kept_start else ["evaluations/*"]
            hub.push_at_the_end(output_dir, repo_id, outdated=outdated)
        self.folder.note_end(hub.release_files(output_dir), *self._end(checkpoints.newest_sealed(output_dir)))
        self.folder.close()
        print(f"\n{closing_text(self.options, self.results)}")
