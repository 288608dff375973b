"""Pretrain a document encoder: pull two halves of a document together, push other documents away.

    # from nothing, on the docstrings of the installed packages, in minutes on two cores
    accelerate launch run_docsplit_pretraining.py recipes/quickstart.yaml

    # the paper's DocSplit-BERT on English Wikipedia; any option can be overridden
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml --learning_rate 3e-5

    # your own documents, continuing from your own encoder
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml \\
        --model_name_or_path path/or/hub-name --corpus folder/of/jsonl --text_column body --output_dir outputs/mine

    # a corpus that does not fit on the disk: read, segmented and tokenised while the model trains
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml --streaming --max_steps 170000

    # after a crash, a kill or Ctrl-C: continue from the newest complete checkpoint
    accelerate launch run_docsplit_pretraining.py RECIPE --resume_from_checkpoint

Load what comes out with AutoModel.from_pretrained(output_dir) or SentenceTransformer(output_dir).
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from docsplit.modeling.long_documents import block_attention
from docsplit.modeling.lora import ADAPTER_FOLDER
from docsplit.modeling.saving import TRAINING_STATE_FILE
from docsplit.modeling.settings import checked_settings
from docsplit.runtime.arguments import parse_arguments, parse_config_overrides
from docsplit.runtime.launching import explain_out_of_memory, start_logging, use_all_cores
from docsplit.training import checkpoints
from docsplit.training.arguments import OPTIONS_OF_OBJECTIVES, DataArguments, ModelArguments, PretrainingArguments
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger("docsplit")

TRAINING_ONLY_FILES = (TRAINING_STATE_FILE, ADAPTER_FOLDER)  # parts of a checkpoint


def main() -> None:
    """Load, train, save, and say what came out."""
    model_args, data_args, args, objective_options = parse_arguments(
        (ModelArguments, DataArguments, PretrainingArguments), str(__doc__), chosen_by=OPTIONS_OF_OBJECTIVES
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from accelerate.utils import gather_object
    from transformers import EarlyStoppingCallback, Trainer, set_seed

    from docsplit.data.collators import DocSplitCollator, truncated_shares
    from docsplit.data.streaming import DocumentStream
    from docsplit.release import hub, reporting
    from docsplit.training import callbacks, documents
    from docsplit.training.finite import FiniteCallback

    start_logging(args.should_log)
    use_all_cores(args.device, args.world_size)
    if data_args.streaming:
        documents.prepare_for_stream(data_args, args)
    settings = settings_of(model_args, args, objective_options)
    output_dir, checkpoint = Path(args.output_dir), checkpoint_of(model_args, args)
    if args.push_release and args.process_index == 0:
        hub.remove_stale_uploads(output_dir)
        name = args.hub_model_id or output_dir.resolve().name
        args.hub_model_id = hub.create_repository(name, args.hub_private_repo)
    set_seed(args.seed)

    load = documents.stream_documents if data_args.streaming else documents.load_documents
    train_dataset, eval_dataset, tokenizer, probe_split, results = load(model_args, data_args, args, checkpoint)
    model = load_model(model_args, args, tokenizer, settings)
    if checkpoint is not None:
        checkpoints.check_same_model(checkpoint, json.loads(model.config.to_json_string()))
        model.load_training_state(checkpoint)
    length, mlm = model.config.docsplit["max_seq_length"], model.config.docsplit["mlm_weight"] > 0
    collator = DocSplitCollator(tokenizer, data_args.view, length, mlm=mlm, seed=args.seed)
    results |= {"documents_held_out": len(eval_dataset) if eval_dataset is not None else 0}
    stream = train_dataset if isinstance(train_dataset, DocumentStream) else None
    if stream is None:
        results |= truncated_shares(train_dataset, collator)
    logger.info(f"Documents: {json.dumps(results)}")

    trainer = Trainer(model, args, collator, train_dataset, eval_dataset, processing_class=tokenizer)
    metrics, interrupt = callbacks.MetricsCallback(trainer, model), callbacks.InterruptCallback()
    pushes = callbacks.PushCallback(str(args.hub_model_id)) if args.push_release else None
    probe = callbacks.ProbeCallback(trainer, model, tokenizer, probe_split) if probe_split is not None else None
    position = callbacks.StreamCallback(trainer, stream, checkpoint) if stream is not None else None
    patience = args.early_stopping_patience
    early_stopping = EarlyStoppingCallback(patience) if patience is not None else None
    sealing, epoch = callbacks.CheckpointCallback(args), callbacks.EpochCallback(collator)
    finite = FiniteCallback(model)
    for callback in (position, epoch, sealing, interrupt, finite, pushes, probe, early_stopping):  # in this order
        if callback is not None:
            trainer.add_callback(callback)
    if probe is not None and checkpoint is None:
        probe.measure()  # logged by train(), whose clock should not count it

    if trainer.is_world_process_zero():
        checkpoints.remove_results(output_dir)
        if checkpoint is None:
            checkpoints.remove_earlier_run(output_dir, TRAINING_ONLY_FILES)
    with explain_out_of_memory(args.micro_batch_tokens, args.cache_gradients):
        output = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if interrupt.received:
        logger.warning(f"Stopped at step {trainer.state.global_step}; go on with --resume_from_checkpoint.")
        sys.exit(130)

    save(trainer, model)
    results |= {"train_loss": output.training_loss, **metrics.totals(trainer.state.log_history)}
    results |= {"global_step": trainer.state.global_step}
    if stream is not None:
        results["documents_used"] = output.global_step * args.gradient_accumulation_steps
        results["documents_used"] *= args.train_batch_size * args.world_size
        results["documents_dropped"] = sum(gather_object([stream.num_dropped.value]))
    if probe is not None:
        results |= probe.summary()
    if trainer.is_world_process_zero():
        run = reporting.describe_run(args.device.type, args.world_size, pushes.repo_id if pushes else None)
        reporting.write_run(output_dir, results, trainer.state.log_history, run)
        if pushes is not None:
            pushes.wait()
            hub.push_at_the_end(output_dir, pushes.repo_id, outdated=["evaluations/*"])


def checkpoint_of(model_args: ModelArguments, args: PretrainingArguments) -> Path | None:
    """The one to resume from; None for a new run, which may remove an earlier one but not what it starts from."""
    output_dir = Path(args.output_dir)
    checkpoint = checkpoints.to_resume_from(output_dir, args.resume_from_checkpoint, args.overwrite_output_dir)
    if checkpoint is None:
        checkpoints.refuse_to_remove(output_dir, (model_args.model_name_or_path, model_args.tokenizer_name))
    return checkpoint


def settings_of(
    model_args: ModelArguments, args: PretrainingArguments, objective_options: dict[str, Any]
) -> dict[str, Any]:
    """The settings of the model that the command line gives; the others are the checkpoint's, or defaults.

    Raises:
        ValueError: if they cannot work with this encoder or each other: now, before any long work.
    """
    from transformers import AutoConfig

    settings: dict[str, Any] = {
        "pooling": model_args.pooling,
        "max_seq_length": model_args.max_seq_length,
        "objective": args.objective,
        "contrastive_weight": args.contrastive_weight,
        "mlm_weight": args.mlm_weight,
    }
    settings = {name: value for name, value in settings.items() if value is not None} | objective_options
    if model_args.model_name_or_path is not None:
        config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    else:
        overrides = parse_config_overrides(model_args.model_type, model_args.config_overrides)
        config = AutoConfig.for_model(model_args.model_type, **overrides)
    checked_settings(config, settings)
    return settings


def load_model(
    model_args: ModelArguments, args: PretrainingArguments, tokenizer: Any, settings: dict[str, Any]
) -> DocSplitForContrastivePretraining:
    """A pretrained encoder or a random one, with the settings of the command line."""
    attention = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if model_args.model_name_or_path is not None:
        if model_args.config_overrides is not None:
            raise ValueError("--config_overrides is for a random start: leave out --model_name_or_path or it.")
        model = DocSplitForContrastivePretraining.from_pretrained(
            model_args.model_name_or_path, dtype=torch.float32, **settings, **attention
        )
    else:
        from transformers import AutoConfig

        overrides = parse_config_overrides(model_args.model_type, model_args.config_overrides)
        known, names = AutoConfig.for_model(model_args.model_type), ("pad", "bos", "eos", "cls", "sep")
        ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in names}
        ids = {name: value for name, value in ids.items() if hasattr(known, name)}
        config = AutoConfig.for_model(model_args.model_type, vocab_size=len(tokenizer), **ids, **overrides)
        config._attn_implementation = model_args.attn_implementation
        model = DocSplitForContrastivePretraining(config, **settings)
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} ids, but the encoder embeds {model.config.vocab_size}: leave out "
            "--tokenizer_name to use the encoder's own."
        )
    block_attention(model, model_args.attn_implementation)
    if model_args.lora_r:
        model.add_lora(model_args.lora_r)
    tokenizer.model_max_length = model.config.docsplit["max_seq_length"]
    if args.compile_options is not None:
        model.compile(**args.compile_options)
    model.micro_batch_tokens, model.cache_gradients = args.micro_batch_tokens, args.cache_gradients
    return model


def save(trainer: Any, model: DocSplitForContrastivePretraining) -> None:
    """Write what the run ends with; where the best weights were loaded again, with the training state beside them."""
    output_dir = Path(trainer.args.output_dir)
    trainer.save_model()
    checkpoints.without_pickled_arguments(output_dir)
    if model.training_state == "missing" and trainer.is_world_process_zero():
        best = Path(str(trainer.state.best_model_checkpoint))
        checkpoints.copy_parts(best, output_dir, TRAINING_ONLY_FILES)


command = as_command(main)
if __name__ == "__main__":
    command()
