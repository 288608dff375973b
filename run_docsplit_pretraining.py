"""Pretrain a document encoder: pull two halves of a document together, push other documents away.

    # from nothing, on the docstrings of the installed packages, in minutes on two cores
    accelerate launch run_docsplit_pretraining.py recipes/quickstart.yaml

    # the paper's DocSplit-BERT on English Wikipedia; any option can be overridden
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml --learning_rate 3e-5

    # your own documents, continuing from your own encoder, which stays of its kind
    accelerate launch run_docsplit_pretraining.py recipes/adapt.yaml \\
        --model_name_or_path path/or/hub-name --corpus folder/of/jsonl --text_column body --output_dir outputs/mine

    # a corpus that does not fit on the disk: read, segmented and tokenised while the model trains
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml --streaming --max_steps 170000

    # for search: queries with relevant documents, and hard negatives; run_document_retrieval.py measures
    accelerate launch run_docsplit_pretraining.py recipes/ranking_small.yaml

    # after a crash, a kill or Ctrl-C: continue from the newest complete checkpoint
    accelerate launch run_docsplit_pretraining.py RECIPE --resume_from_checkpoint

Load what comes out with AutoModel.from_pretrained(output_dir) or SentenceTransformer(output_dir).
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docsplit.data.views import QUERY_DOCUMENT
from docsplit.modeling.families.table import family_of
from docsplit.modeling.lora import ADAPTER_FOLDER
from docsplit.modeling.saving import TRAINING_STATE_FILE, split_release
from docsplit.modeling.sentence_transformers_files import prompt_of
from docsplit.runtime.arguments import parse_arguments
from docsplit.runtime.launching import explain_out_of_memory, start_logging, use_all_cores
from docsplit.training import checkpoints, models
from docsplit.training.arguments import (
    NEGATIVES_FOLDER,
    OPTIONS_OF_OBJECTIVES,
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    QueryArguments,
)
from modeling_docsplit import DocSplitForContrastivePretraining

if TYPE_CHECKING:
    from docsplit.data.collators import DocSplitCollator
    from docsplit.data.query_documents import QueryDocumentCollator

logger = logging.getLogger("docsplit")

ARGUMENTS = (ModelArguments, DataArguments, QueryArguments, PretrainingArguments)
TRAINING_ONLY_FILES = (TRAINING_STATE_FILE, ADAPTER_FOLDER, NEGATIVES_FOLDER)  # of a checkpoint, and of a run


def main() -> None:
    """Load, train, save, and say what came out."""
    model_args, data_args, query_args, args, objective_options = parse_arguments(
        ARGUMENTS, str(__doc__), chosen_by=OPTIONS_OF_OBJECTIVES
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from accelerate.utils import gather_object
    from transformers import EarlyStoppingCallback, Trainer, set_seed

    from docsplit.data.streaming import DocumentStream
    from docsplit.release import hub, reporting
    from docsplit.training import callbacks, documents, guard, negatives, queries, teacher
    from docsplit.training.finite import FiniteCallback
    from docsplit.training.probe import ProbeCallback
    from docsplit.training.seen import SeenDocumentsCallback

    start_logging(args.should_log)
    use_all_cores(args.device, args.world_size)
    if data_args.streaming:
        documents.prepare_for_stream(data_args, args)
    output_dir, checkpoint = Path(args.output_dir), checkpoint_of(model_args, args)
    set_seed(args.seed)
    settings = models.settings_of(model_args, args, objective_options)
    start = models.load_start(model_args, settings)
    if args.push_release and args.process_index == 0:
        args.hub_model_id = hub.prepare_release(output_dir, args.hub_model_id, args.hub_private_repo)

    load = queries.loader_of(data_args, query_args, start)
    train_dataset, eval_dataset, tokenizer, probe_split, results = load(model_args, data_args, args, checkpoint)
    model = models.prepare_model(start, model_args, data_args, args, tokenizer, settings)
    if checkpoint is not None:
        checkpoints.check_same_model(checkpoint, json.loads(model.config.to_json_string()))
        model.load_training_state(checkpoint)
    results |= teacher.give_targets(model, model_args, data_args, args, (train_dataset, eval_dataset), checkpoint)
    collator = collator_of(model, tokenizer, data_args, query_args, args.seed, (train_dataset, eval_dataset))
    results |= {"documents_held_out": len(eval_dataset) if eval_dataset is not None else 0}
    stream = train_dataset if isinstance(train_dataset, DocumentStream) else None
    if stream is None:
        results |= collator.shares(train_dataset)
    logger.info(f"Documents: {json.dumps(results)}")

    trainer = Trainer(model, args, collator, train_dataset, eval_dataset, processing_class=tokenizer)
    metrics, interrupt = callbacks.MetricsCallback(trainer, model), callbacks.InterruptCallback()
    pushes = callbacks.PushCallback(str(args.hub_model_id)) if args.push_release else None
    probe = ProbeCallback(trainer, model, tokenizer, probe_split) if probe_split is not None else None
    position = callbacks.StreamCallback(trainer, stream, checkpoint) if stream is not None else None
    patience = args.early_stopping_patience
    early_stopping = EarlyStoppingCallback(patience) if patience is not None else None
    seen = SeenDocumentsCallback(trainer, model, model_args.model_name_or_path, checkpoint)
    mined = negatives.callback_of(trainer, model, tokenizer, collator, train_dataset, query_args, checkpoint)
    sealing, epoch = callbacks.CheckpointCallback(args), callbacks.EpochCallback(collator)
    before, after = (position, seen, epoch, mined), (interrupt, FiniteCallback(model), pushes, probe, early_stopping)
    for callback in filter(None, (*before, sealing, *after)):  # in this order
        trainer.add_callback(callback)
    start_folder = guard.folder_of(models.name_of_start(model_args)) if probe is not None else None
    if probe is not None and checkpoint is None:
        probe.measure(with_test=True)  # logged by train(), whose clock should not count it

    if trainer.is_world_process_zero():
        checkpoints.make_room(output_dir, TRAINING_ONLY_FILES, resumes=checkpoint is not None)
    with explain_out_of_memory(args.micro_batch_tokens, args.cache_gradients):
        output = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if interrupt.received:
        logger.warning(f"Stopped at step {trainer.state.global_step}; go on with --resume_from_checkpoint.")
        sys.exit(130)

    if not (kept_start := guard.keeps_start(probe, start_folder, args)):
        save(trainer, model)
    results |= {"kept_start": kept_start, "train_loss": output.training_loss, "global_step": trainer.state.global_step}
    results |= metrics.totals(trainer.state.log_history) | seen.finish(kept_start)
    if stream is not None:
        results["documents_dropped"] = sum(gather_object([stream.num_dropped.value]))
    if probe is not None:
        results |= probe.summary()
    if trainer.is_world_process_zero():
        run = reporting.describe_run(args.device.type, args.world_size, pushes.repo_id if pushes else None)
        reporting.write_run(output_dir, results, trainer.state.log_history, run)
        if pushes is not None:
            pushes.wait()
            outdated = list(hub.RELEASE) if kept_start else ["evaluations/*"]
            hub.push_at_the_end(output_dir, pushes.repo_id, outdated=outdated)


def checkpoint_of(model_args: ModelArguments, args: PretrainingArguments) -> Path | None:
    """The one to resume from; None for a new run, which may remove an earlier one but not what it starts from."""
    output_dir = Path(args.output_dir)
    checkpoint = checkpoints.to_resume_from(output_dir, args.resume_from_checkpoint, args.overwrite_output_dir)
    if checkpoint is None:
        checkpoints.refuse_to_remove(output_dir, (model_args.model_name_or_path, model_args.tokenizer_name))
    return checkpoint


def collator_of(
    model: Any, tokenizer: Any, data_args: DataArguments, query_args: QueryArguments, seed: int, datasets: tuple
) -> "DocSplitCollator | QueryDocumentCollator":
    """Views as the command line and the model's settings want them, in rows as the model takes them."""
    from docsplit.data.collators import COLLATORS
    from docsplit.training import queries

    settings, kind = model.config.docsplit, COLLATORS[family_of(model.config).rows]
    length, prompt = models.length_of_views(settings, data_args.view_max_length), prompt_of(settings)
    if data_args.view == QUERY_DOCUMENT:
        return queries.collator_of(model, tokenizer, datasets, query_args, length, seed)
    return kind(tokenizer, data_args.view, length, settings["mlm_weight"] > 0, seed, prompt, sketches=True)


def save(trainer: Any, model: DocSplitForContrastivePretraining) -> None:
    """Write what the run ends with, as a release; beside the best weights, if they were loaded, their own state."""
    output_dir = Path(trainer.args.output_dir)
    trainer.save_model()
    checkpoints.without_pickled_arguments(output_dir)
    if model.training_state == "missing" and trainer.is_world_process_zero():
        best = Path(str(trainer.state.best_model_checkpoint))
        checkpoints.copy_parts(best, output_dir, TRAINING_ONLY_FILES)
    if trainer.is_world_process_zero():
        split_release(output_dir, model.start_pooler)


command = as_command(main)
if __name__ == "__main__":
    command()
