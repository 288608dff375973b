"""Pretrain a document encoder: pull two halves of a document together, push other documents away.

    # from nothing, on the docstrings of the installed packages, in minutes on two cores
    python run_docsplit_pretraining.py recipes/quickstart.yaml
    # the paper's DocSplit-BERT on English Wikipedia, its batch of 36 on four GPUs; any option can be overridden
    accelerate launch --quiet --multi_gpu --num_processes 4 run_docsplit_pretraining.py recipes/docsplit_bert.yaml \\
        --per_device_train_batch_size 9 --learning_rate 3e-5
    # your own documents, continuing from your own encoder, which stays of its kind
    python run_docsplit_pretraining.py recipes/adapt.yaml \\
        --model_name_or_path path/or/hub-name --corpus folder/of/jsonl --text_column body --output_dir outputs/mine
    # a corpus that does not fit on the disk: read, segmented and tokenised while the model trains
    python run_docsplit_pretraining.py recipes/docsplit_bert.yaml --streaming --max_steps 170000
    # for search: queries with relevant documents, and hard negatives; run_document_retrieval.py measures
    python run_docsplit_pretraining.py recipes/ranking_small.yaml
    # after a crash, a kill or Ctrl-C: continue from the newest complete checkpoint
    python run_docsplit_pretraining.py RECIPE --resume_from_checkpoint

Load the result with AutoModel.from_pretrained(output_dir) or SentenceTransformer(output_dir).
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import logging
from typing import TYPE_CHECKING

from docsplit.runtime.options import answer_help, parse_arguments
from docsplit.training.options import DataArguments, ModelArguments, QueryArguments, TrainingOptions

if TYPE_CHECKING:
    from transformers import Trainer

    from docsplit.data.collators import DocSplitCollator
    from docsplit.data.query_documents import QueryDocumentCollator
    from docsplit.training.run import Callbacks, Run


logger = logging.getLogger("docsplit")


def main() -> None:
    """Load documents and model, prepare the training, train, and write the release."""
    answer_help((ModelArguments, DataArguments, QueryArguments, TrainingOptions), str(__doc__))
    # Heavy imports come after --help
    from docsplit.training.run_arguments import ARGUMENTS, OBJECTIVES, RunOptions

    options = RunOptions(*parse_arguments(ARGUMENTS, str(__doc__), chosen_by=OBJECTIVES))
    # The rest comes after parsing: mistyped options are answered sooner
    from transformers import Trainer, set_seed

    from docsplit.embedding.encode import identity
    from docsplit.release.hub import prepare_release
    from docsplit.runtime.launching import refuse_one_process, start_logging, use_all_cores, warn_of_emulation
    from docsplit.training.models import load_model, prepare_model
    from docsplit.training.run import Run, find_checkpoint, load_data, refuse_folder_apart, take_output

    args = options.training
    start_logging(args.should_log)
    refuse_one_process(args.world_size)
    warn_of_emulation(bool(args.bf16), args.device)
    use_all_cores(args.device, args.world_size)
    if args.world_size > 1:
        size = args.per_device_train_batch_size
        logger.info(
            f"{args.world_size} processes of {size:,} documents: a contrastive batch of {args.world_size * size:,}."
        )

    # Load: before the documents, which take long, all that a mistyped option would stop
    folder = take_output(options)
    checkpoint = find_checkpoint(options)
    set_seed(args.seed)
    start = load_model(options)
    refuse_folder_apart(folder, options, start)
    if args.push_release and args.process_index == 0:
        args.hub_model_id = prepare_release(options.output_dir, args.hub_model_id, args.hub_private_repo)
    data = load_data(options, start, checkpoint)
    identity_of_start = identity(start.body) if start is not None else None

    # Prepare: the model for these documents, what its objective needs of the documents, and how both make batches
    model = prepare_model(start, options, data)
    run = Run(options, checkpoint, data, model, folder, identity_of_start)
    if run.has_ended():
        return
    run.refuse_changes()
    run.prepare_objective()
    collator = make_collator(run)
    run.count_documents(collator)
    trainer = Trainer(model, args, collator, data.train, data.held_out, processing_class=data.tokenizer)
    callbacks = add_callbacks(run, trainer)

    # Train, and finish: the better of trained encoder and start, its card and its results
    train_loss = run.train(trainer, callbacks)
    run.finish(trainer, callbacks, train_loss)


def make_collator(run: "Run") -> "DocSplitCollator | QueryDocumentCollator":
    """Make the collator: views by the options and the model's settings, in rows as the model takes them."""
    from docsplit.data.collators import COLLATORS
    from docsplit.data.views import QUERY_DOCUMENT
    from docsplit.modeling.families.table import family_of
    from docsplit.modeling.loading import prompts_of
    from docsplit.training.documents import make_query_collator

    model, data_args, seed = run.model, run.options.data, run.options.training.seed
    settings, kind = model.config.docsplit, COLLATORS[family_of(model.config).rows]
    longest = model.body.max_seq_length
    length, prompt = min(data_args.view_max_length or longest, longest), prompts_of(model.body)[0]
    if data_args.view == QUERY_DOCUMENT:
        return make_query_collator(model, run.data, run.options, length)
    return kind(run.data.tokenizer, settings["view"], length, settings["mlm_weight"] > 0, seed, prompt, sketches=True)


def add_callbacks(run: "Run", trainer: "Trainer") -> "Callbacks":
    """Give the Trainer its callbacks. It calls them in the order in which they are added here."""
    from transformers import EarlyStoppingCallback

    from docsplit.training import callbacks
    from docsplit.training.negatives import NegativesCallback
    from docsplit.training.probe import ProbeCallback
    from docsplit.training.resuming import ResumeCallback
    from docsplit.training.run import Callbacks
    from docsplit.training.screen import ScreenCallback

    options, args, checkpoint = run.options, run.options.training, run.checkpoint
    # Puts itself before all others: every log that is written has its numbers; an epoch draws views, then negatives
    metrics = callbacks.DocSplitCallback(trainer)
    # What goes into a checkpoint is written before the checkpoint is sealed
    if run.data.stream is not None:
        trainer.add_callback(callbacks.StreamCallback(trainer, run.data.stream, checkpoint))
    seen = callbacks.SeenDocumentsCallback(trainer, options.start, checkpoint)
    trainer.add_callback(seen)
    trainer.add_callback(ResumeCallback(trainer, run.record, checkpoint))
    if options.queries.phases:
        trainer.add_callback(NegativesCallback(trainer, options.queries, checkpoint))
    trainer.add_callback(callbacks.CheckpointCallback(args, run.folder.seen_by[args.process_index]))
    # The look for NaNs and signals comes after what asks for a checkpoint
    stop = callbacks.StopCallback(run.model)
    trainer.add_callback(stop)
    # The probe's numbers are among those that early stopping chooses by, and the screen prints what all measured
    probe = ProbeCallback(trainer, run.data.probe) if run.data.probe is not None else None
    if probe is not None:
        trainer.add_callback(probe)
    if args.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(args.early_stopping_patience))
    trainer.add_callback(ScreenCallback(trainer))
    return Callbacks(metrics, stop, seen, probe)


command = as_command(main)
if __name__ == "__main__":
    command()
