"""A pretraining run: everything is loaded, the model is trained, and the results are written."""

import json
import logging
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from tqdm.contrib.logging import logging_redirect_tqdm
from transformers import Trainer

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.data.streaming import LAYOUT_FILE
from docsplit.data.views import QUERY_DOCUMENT
from docsplit.modeling.lora import ADAPTER_FOLDER
from docsplit.modeling.objectives.table import OBJECTIVES, prepared_files
from docsplit.modeling.saving import TRAINING_STATE_FILE
from docsplit.release import hub, model_card
from docsplit.release.records import RunRecord
from docsplit.runtime.files import PARTIAL, flush, name_failed_writes
from docsplit.runtime.launching import begun_before, explain_out_of_memory, note_begin
from docsplit.runtime.options import given_options
from docsplit.runtime.sharing import OutputFolder, from_first, on_all, refuse_differences, remove
from docsplit.training import checkpoints, guard, models
from docsplit.training.arguments import NEGATIVES_FOLDER, RunOptions
from docsplit.training.callbacks import DocSplitCallback, InterruptCallback, PushCallback
from docsplit.training.documents import TrainingData, load_documents, note_sections, stream_documents
from docsplit.training.negatives import NOTE
from docsplit.training.probe import ProbeCallback
from docsplit.training.ranking_data import load_queries
from docsplit.training.screen import closing_text, counts_table
from docsplit.training.seen import SeenDocumentsCallback
from docsplit.training.teacher import provide_targets
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger("docsplit")

COMMAND = "run_docsplit_pretraining.py"
BATCH_SIZE = "per_device_train_batch_size"
TRAINING_ONLY_FILES = (TRAINING_STATE_FILE, ADAPTER_FOLDER, NEGATIVES_FOLDER)  # of a checkpoint, and of a run
# What a new run removes of an earlier one in its folder, as patterns of Path.glob, and nothing else
IN_A_CHECKPOINT = (
    *(set(hub.WRITTEN) - {*checkpoints.RESULTS, "README.md", "training.png"}),
    *(TRAINING_DOCUMENTS_FILE, LAYOUT_FILE, NOTE, TRAINING_STATE_FILE, f"{ADAPTER_FOLDER}/adapter_*"),
    *("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "trainer_state.json", "training_args.bin"),
    *(checkpoints.MANIFEST, f".*{PARTIAL}", ".tmp??????"),  # the last two are left by a kill
)
PARTS = (
    *(TRAINING_STATE_FILE, f"{ADAPTER_FOLDER}/adapter_*"),
    *(f"{NEGATIVES_FOLDER}/{'[0-9a-f]' * 24}*/*", f"{NEGATIVES_FOLDER}/encoder/**/*"),
)

MAY_DIFFER = {  # options that are places on a machine, or of the machine: what is read there is compared
    *("output_dir", "logging_dir", "run_name", "local_rank", "resume_from_checkpoint", "hub_model_id"),
    *("corpus", "probe_corpus", "model_name_or_path", "tokenizer_name", "queries", "preprocessing_num_workers"),
    *("disable_tqdm", "log_level", "log_level_replica", "ddp_backend", "ddp_timeout"),
}


def take_output(options: RunOptions) -> OutputFolder:
    """Return the output folder, which the first process takes: another run, or files of others, stop this one.

    All processes must call it. Where not all see the folder, the first process's is written, and no other.

    Raises:
        ValueError: naming the remedy.
        OSError: if nothing can be written there.
    """
    folder = OutputFolder(options.output_dir, COMMAND, "--output_dir", hub.WRITTEN, checkpoints.is_sealed)
    folder.take_for_all()
    refuse_folder_apart(folder, needs_shared_folder(options))
    if apart := where_apart(folder):
        logger.info(f"{apart}: checkpoints and the release are on rank 0's machine alone. To resume, copy one first.")
    return folder


def needs_shared_folder(options: RunOptions) -> list[str]:
    """List the options of this run for which one process writes files that all read while the run goes on."""
    names = ["--load_best_model_at_end"] if options.training.load_best_model_at_end else []
    mined = [phase for phase in options.queries.phases if phase != "random"]
    names += [f"--negatives {' '.join(mined)}"] if mined else []
    objective = options.training.objective
    prepares = objective is not None and OBJECTIVES[objective].prepared_files
    return names + ([f"--objective {objective}"] if prepares else [])


def where_apart(folder: OutputFolder) -> str:
    """Say which processes do not see the output folder that the first one writes; "" if all do. All must call it."""
    if all(folder.seen_by):
        return ""
    places = on_all(lambda: (socket.gethostname(), folder.path))
    others = [f"rank {rank} on {host}" for rank, (host, _) in enumerate(places) if not folder.seen_by[rank]]
    host, path = places[0]
    return f"{path} of rank 0 on {host} is not seen by {', '.join(others)}"


def refuse_folder_apart(folder: OutputFolder, needed_by: Sequence[str]) -> None:
    """Stop if something needs that all processes see the output folder, and not all do; all processes must call it.

    Raises:
        ValueError: naming the processes and the remedy.
    """
    if needed_by and (apart := where_apart(folder)):
        raise ValueError(
            f"{apart}, and {', '.join(needed_by)} needs that: put --output_dir on a file system that all machines "
            "share, or leave the option out."
        )


def compared_options(options: RunOptions) -> dict[str, str]:
    """Return the options that all processes must have in common, as text; names and places may differ."""
    groups = (options.data, options.queries, options.model, options.training)
    values = {name: value for group in groups for name, value in vars(group).items()} | options.objective
    own = {field.name for group in groups for field in fields(group)} - MAY_DIFFER
    return {f"--{name}": str(value) for name, value in values.items() if name in own or name in options.objective}


def find_checkpoint(options: RunOptions) -> Path | None:
    """Find the checkpoint to resume from; None for a new run, which removes an earlier one but not its start.

    The first process chooses. All processes must call it.

    Raises:
        ValueError: on all processes, if one of them cannot go on from the same checkpoint.
    """
    chosen = from_first(lambda: _choose_checkpoint(options))
    on_all(lambda: chosen.refuse_another(options.output_dir) if options.training.process_index else None)
    return chosen.path_in(options.output_dir)


def _choose_checkpoint(options: RunOptions) -> checkpoints.Chosen:
    args, output_dir = options.training, options.output_dir
    if (begun := begun_before(output_dir)) is not None:
        return checkpoints.Chosen.of(checkpoints.to_go_on_from(output_dir, begun), output_dir, True, begun.time)
    checkpoint = checkpoints.to_resume_from(output_dir, args.resume_from_checkpoint, args.overwrite_output_dir)
    if checkpoint is None:
        checkpoints.refuse_to_remove(output_dir, (options.start, options.model.tokenizer_name))
    else:
        logger.info(f"Continuing from {checkpoint}.")
    resumes_newest = checkpoints.is_newest(args.resume_from_checkpoint)
    is_new = args.resume_from_checkpoint is None and not args.overwrite_output_dir
    return checkpoints.Chosen.of(checkpoint, output_dir, resumes_newest or is_new)


def note_batch(options: RunOptions) -> None:
    """Log the contrastive batch of several processes; warn where each takes a recipe's number, for it multiplies."""
    args = options.training
    processes, documents = args.world_size, args.per_device_train_batch_size
    if processes == 1:
        return
    text = f"{processes} processes of {documents:,} documents: a contrastive batch of {processes * documents:,}."
    typed = any(word.replace("-", "_").startswith(f"__{BATCH_SIZE}") for word in sys.argv)
    if typed or given_options()[0] is None:
        logger.info(text)
        return
    most = max(number for number in range(1, processes + 1) if documents % number == 0)
    of_all = f"{most} process{'es' if most > 1 else ''} with " if most < processes else ""
    logger.warning(f"{text} For the recipe's {documents:,} in all: {of_all}--{BATCH_SIZE} {documents // most}.")


def load_data(
    options: RunOptions, start: DocSplitForContrastivePretraining | None, checkpoint: Path | None
) -> TrainingData:
    """Load documents, a stream of documents, or queries, as the options say."""
    if options.data.view == QUERY_DOCUMENT:
        return load_queries(options, checkpoint, start)
    return (stream_documents if options.data.streaming else load_documents)(options, checkpoint)


@dataclass
class Callbacks:
    """The callbacks that a run uses after training; None where the options want none."""

    metrics: DocSplitCallback
    interrupt: InterruptCallback
    seen: SeenDocumentsCallback
    probe: ProbeCallback | None
    pushes: PushCallback | None


@dataclass
class Run:
    """The options of a run, its documents and its model, for objective, collator and callbacks.

    Attributes:
        checkpoint: that the run resumes from; None for a new one.
        folder: that everything is written into; the first process has taken it.
    """

    options: RunOptions
    checkpoint: Path | None
    data: TrainingData
    model: DocSplitForContrastivePretraining
    folder: OutputFolder

    def __post_init__(self) -> None:
        self.results = self.data.counts  # the same dict, for all_results.json: what is prepared adds its counts
        self.start_folder: Path | None = None  # of the encoder to start from, if it may be better than what comes out

    def prepare_objective(self) -> None:
        """Load a checkpoint's training state, and let the objective prepare its data."""
        refuse_differences(self._compared)
        refuse_folder_apart(self.folder, self.model.objective.prepared_files)
        if self.checkpoint is not None:
            checkpoints.check_same_model(self.checkpoint, json.loads(self.model.config.to_json_string()))
            self.model.load_training_state(self.checkpoint)
        elif self.options.training.process_index == 0:
            # Of an earlier run in this folder; the objective replaces its own files once nothing can be refused
            remove(self.folder.path, set(prepared_files()) - set(self.model.objective.prepared_files))
        self.model.objective.prepare(self)

    def _compared(self) -> dict[str, str]:
        """Return what all processes must have in common: else they would average gradients of different trainings."""
        model = checkpoints.of_the_model(json.loads(self.model.config.to_json_string()))
        return (
            self.data.fingerprints()
            | compared_options(self.options)
            | {"the model": json.dumps(model, sort_keys=True)}
        )

    def neighbour_targets(self, options: Any) -> Path:
        """Return the file of the start's vectors, averaged with neighbours' (`docsplit.training.teacher`)."""
        return provide_targets(self.options, options, self.model.config, self.data, self.checkpoint)

    def count_documents(self, collator: Any) -> None:
        """Count held-out and truncated documents for the results, and print all counts."""
        note_sections(self.model.config, self.data.train)
        self.results["documents_held_out"] = len(self.data.held_out) if self.data.held_out is not None else 0
        if self.data.stream is None:
            self.results |= collator.shares(self.data.train)
        if self.options.training.process_index == 0:
            print(f"\n{counts_table(self.results)}\n", flush=True)

    def train(self, trainer: Trainer, callbacks: Callbacks) -> float:
        """Measure the start, make room for new checkpoints, and train; a signal ends the process with code 130.

        Returns: the mean loss.
        """
        args = self.options.training
        if callbacks.probe is not None:
            self.start_folder = guard.folder_of(models.name_of_start(self.options.model))
            if self.checkpoint is None:
                callbacks.probe.measure(with_test=True)  # logged by train(), whose clock should not count it
        if trainer.is_world_process_zero():
            remove(self.folder.path, checkpoints.RESULTS)  # of weights that are about to change
            if self.checkpoint is None:
                remove(self.folder.path, PARTS)
                for checkpoint in checkpoints.checkpoints(self.folder.path):
                    remove(checkpoint, IN_A_CHECKPOINT)
            note_begin(self.options.output_dir, self.checkpoint)
        memory = explain_out_of_memory(args.micro_batch_tokens, args.cache_gradients)
        disk = name_failed_writes(self.options.output_dir)
        with memory, disk, logging_redirect_tqdm():  # messages stand above the bar
            output = trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)
        if callbacks.interrupt.stopped:
            logger.warning(f"Stopped at step {trainer.state.global_step}; go on with --resume_from_checkpoint.")
            sys.exit(130)
        if args.load_best_model_at_end:
            checkpoints.refuse_damaged_best(trainer.state.best_model_checkpoint)
        return output.training_loss

    def finish(self, trainer: Trainer, callbacks: Callbacks, train_loss: float) -> None:
        """Save the better of trained encoder and start, and write and push the results; all processes call it."""
        args, probe, history = self.options.training, callbacks.probe, trainer.state.log_history
        if trainer.is_world_process_zero():
            self.folder.begin_results()
        kept_start = guard.keeps_start(probe, self.start_folder, args)
        if not kept_start:
            with name_failed_writes(self.options.output_dir):
                self._save(trainer)

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
        files = hub.release_files(self.options.output_dir)
        for path in [*files, *{file.parent for file in files}]:
            flush(path)
        repo_id = callbacks.pushes.repo_id if callbacks.pushes is not None else None
        description = RunRecord.of_this_run(args.device.type, args.world_size, repo_id)
        loss_name = self.model.objective.loss_name
        model_card.write_run(self.options.output_dir, self.results, history, description, loss_name)
        if callbacks.pushes is not None:
            callbacks.pushes.wait()
            outdated = list(hub.RELEASE) if kept_start else ["evaluations/*"]
            hub.push_at_the_end(self.options.output_dir, callbacks.pushes.repo_id, outdated=outdated)
        self.folder.close()
        print(f"\n{closing_text(self.options, self.results)}")

    def _save(self, trainer: Trainer) -> None:
        """Write the weights as a release; where the best ones were loaded, their training state beside them."""
        output_dir = self.options.output_dir
        trainer.save_model()
        checkpoints.without_pickled_arguments(output_dir)
        if not trainer.is_world_process_zero():
            return
        if self.model.training_state == "missing":
            best = Path(str(trainer.state.best_model_checkpoint))
            checkpoints.copy_parts(best, output_dir, TRAINING_ONLY_FILES)
