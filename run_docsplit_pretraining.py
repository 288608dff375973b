"""Pretrain a document encoder: pull two halves of a document together, push other documents away.

    # from nothing, on the docstrings of the installed packages, in minutes on two cores
    accelerate launch run_docsplit_pretraining.py recipes/quickstart.yaml

    # the paper's DocSplit-BERT on English Wikipedia; any option can be overridden
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml --learning_rate 3e-5

    # your own documents, continuing from your own encoder
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml \
        --model_name_or_path path/or/hub-name --corpus folder/of/jsonl --text_column body --output_dir outputs/mine

    # a corpus that does not fit on the disk: read, segmented and tokenised while the model trains
    accelerate launch run_docsplit_pretraining.py recipes/docsplit_bert.yaml --streaming --max_steps 170000

    # after a crash, a kill or Ctrl-C: continue from the newest complete checkpoint
    accelerate launch run_docsplit_pretraining.py RECIPE --resume_from_checkpoint

Load what comes out with AutoModel.from_pretrained(output_dir) or SentenceTransformer(output_dir).
"""

import json
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer, EarlyStoppingCallback, Trainer, TrainingArguments, set_seed

from docsplit import checkpoints, corpora
from docsplit.arguments import parse_arguments, parse_config_overrides
from docsplit.callbacks import (
    CheckpointCallback,
    EpochCallback,
    InterruptCallback,
    MetricsCallback,
    ProbeCallback,
    PushCallback,
    StreamCallback,
)
from docsplit.collators import DocSplitCollator, truncated_shares
from docsplit.embedding import default_dtype
from docsplit.hub import create_repository, push_at_the_end, remove_what_was_on_its_way
from docsplit.labelled import LabelledSplit, probe_counts, split_labelled, without_test_documents
from docsplit.launching import explain_out_of_memory, refuse_sharded_parameters, use_all_cores
from docsplit.longformer_attention import use_blocked_attention
from docsplit.reporting import describe_run, write_results
from docsplit.segmentation import DEFAULT_SPLITTER
from docsplit.streaming import DocumentStream, take
from docsplit.tokenization import train_wordpiece
from docsplit.views import VIEWS
from modeling_docsplit import (
    ADAPTER_FOLDER,
    TRAINING_STATE_FILE,
    DocSplitForContrastivePretraining,
    Objective,
    Pooling,
    Similarity,
)

logger = logging.getLogger("docsplit")

DOCUMENTS_FOR_A_TOKENIZER = 100_000  # of a stream, to train one on
OF_TRAINING_ONLY = (TRAINING_STATE_FILE, ADAPTER_FOLDER)  # parts of a checkpoint


@dataclass
class ModelArguments:
    """The encoder and its embedding."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Masked language model to start from, on the Hub or here. Not given: random."}
    )
    model_type: str = field(default="bert", metadata={"help": "Architecture of a random start: bert, modernbert ..."})
    config_overrides: str | None = field(
        default=None, metadata={"help": "For a random start: 'hidden_size=128,num_hidden_layers=2,...'."}
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={"help": "Default: the model's; for a random start a WordPiece tokenizer trained on the corpus."},
    )
    vocab_size: int = field(default=30522, metadata={"help": "Number of ids of a tokenizer trained here."})
    pooling: Pooling | None = field(
        default=None, metadata={"help": "Token states to embedding. Default: the checkpoint's, else cls (the paper)."}
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens of a view, with special ones. Default: the checkpoint's, else 512."},
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "sdpa, flash_attention_2, eager ... A Longformer's is blocked; eager: as transformers has it."
        },
    )
    lora_r: int = field(
        default=0, metadata={"help": "LoRA: train updates of this rank instead of the encoder's weights; 0: no."}
    )

    def __post_init__(self) -> None:
        if self.lora_r < 0:
            raise ValueError(f"--lora_r is {self.lora_r}: expected the rank of LoRA's updates, or 0 for none.")
        if self.lora_r and self.model_name_or_path is None:
            raise ValueError("--lora_r adapts a pretrained encoder: give --model_name_or_path.")


@dataclass
class DataArguments:
    """The documents and their views."""

    corpus: str = field(
        default="python_docs",
        metadata={
            "help": "python_docs (docstrings of the installed packages), a file or folder (json, jsonl, csv, parquet, "
            "txt), or a Hub data set NAME or NAME:CONFIGURATION."
        },
    )
    text_column: str = field(
        default="text",
        metadata={"help": "Column with the documents; if missing, `sections` [{heading, text}]."},
    )
    sentence_splitter: str = field(
        default=DEFAULT_SPLITTER, metadata={"help": "rules, sentencizer, or an installed spaCy pipeline."}
    )
    view: str = field(
        default="docsplit",
        metadata={
            "choices": list(VIEWS),
            "help": "The two texts of a document. docsplit: each sentence in one of two halves at random; simcse: the "
            "same text twice; crop: two spans (Contriever); ict: a span and the rest; half: first and second half; "
            "passages: of about 100 words, half of them and the others; passage_vs_rest: one and the others.",
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read, segment and tokenise during training, without a copy on the disk; needs --max_steps. Each "
            "pass over the documents draws other views."
        },
    )
    shuffle_buffer_size: int = field(
        default=10_000,
        metadata={"help": "With --streaming: documents that are shuffled together, in the memory of each worker."},
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first N documents only."})
    max_eval_samples: int = field(
        default=500, metadata={"help": "Documents held out for eval_loss, if --eval_strategy is not 'no'."}
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenisation."})
    probe_corpus: str | None = field(
        default=None,
        metadata={
            "help": "Labelled documents (columns text and label; as --corpus) to probe the frozen encoder on, before, "
            "at each evaluation and after. Its test documents are kept out of pretraining."
        },
    )


@dataclass
class PretrainingArguments(TrainingArguments):
    """Trainer's arguments with the papers' values as defaults, and the objective's."""

    output_dir: str = field(default="outputs/docsplit", metadata={"help": "Where everything is written."})
    per_device_train_batch_size: int = field(default=36, metadata={"help": "Documents a process and step."})
    per_device_eval_batch_size: int | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Default: as in training, so that eval_loss has as many negatives."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Steps between logs, or below 1 their share of all."})
    learning_rate: float = field(default=5e-5, metadata={"help": "Peak learning rate of AdamW."})
    bf16: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Encoder in bfloat16 (autocast). Default: where the hardware multiplies it natively."},
    )
    dataloader_num_workers: int | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Processes that make batches. Default: 4 beside a GPU, 0 on a CPU."},
    )
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the documents."})
    weight_decay: float = field(default=0.01, metadata={"help": "Of AdamW, not on biases and norms."})
    warmup_steps: float = field(default=0.05, metadata={"help": "Warm-up steps, or below 1 their share of all."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "True would hide a loss that is nan."})
    dataloader_drop_last: bool = field(default=True, metadata={"help": "A smaller last batch has fewer negatives."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "There are none."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "The collator needs the columns."})

    objective: Objective | None = field(
        default=None,
        metadata={
            "help": "info_nce, or contrastive_tension: a second encoder is trained beside the first, on dot products, "
            "without dropout; needs --mlm_weight 0. Default: the checkpoint's, else info_nce."
        },
    )
    similarity: Similarity | None = field(
        default=None, metadata={"help": "Of embeddings in info_nce. Default: the checkpoint's, else cosine."}
    )
    momentum_queue_size: int | None = field(
        default=None,
        metadata={
            "help": "Negatives are the last N embeddings of a momentum encoder (MoCo, Contriever: 131072) instead of "
            "the batch; needs --mlm_weight 0. Default: the checkpoint's, else 0: none."
        },
    )
    momentum: float | None = field(
        default=None, metadata={"help": "Of the momentum encoder, a forward pass. Default: 0.9995 (Contriever)."}
    )
    contrastive_temperature: float | None = field(
        default=None, metadata={"help": "Divides similarities in info_nce. Default: the checkpoint's, else 0.05."}
    )
    contrastive_weight: float = field(
        default=1.0, metadata={"help": "Weight of the contrastive loss, 0: masked LM alone."}
    )
    mlm_weight: float = field(default=0.1, metadata={"help": "Weight of the masked-LM loss, 0: none."})
    symmetric_loss: bool | None = field(
        default=None,
        metadata={"help": "Compare view 2 with all views 1 too. Default: the checkpoint's, else False."},
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={"help": "Views x longest view of one forward pass: speed and memory. Default: 1024 (GPU 4096)."},
    )
    cache_gradients: bool = field(
        default=False, metadata={"help": "Keep the activations of one micro-batch only, for 1.4 times the time."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after N evaluations without a better --metric_for_best_model."}
    )
    overwrite_output_dir: bool = field(
        default=False,
        metadata={"help": "Start anew where an earlier run left checkpoints, and remove those."},
    )

    def __post_init__(self) -> None:
        refuse_sharded_parameters()
        if self.fsdp or self.deepspeed:
            raise ValueError("--fsdp and --deepspeed shard parameters: leave them out, DDP is what is needed here.")
        if self.hub_token is not None:
            raise ValueError("--hub_token would show in logs and process lists: `hf auth login`, or set HF_TOKEN.")
        if self.hub_revision is not None:
            raise ValueError("--hub_revision is not supported: a release goes to the branch main.")
        # Trainer's own push would overwrite the card and upload whatever lies in the folder.
        self.push_release, self.push_to_hub = self.push_to_hub, False
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        device = (None if self.use_cpu else torch.accelerator.current_accelerator()) or torch.device("cpu")
        if self.bf16 is None:
            self.bf16 = not self.fp16 and default_dtype(device) == torch.bfloat16
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = 0 if device.type == "cpu" else 4
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = self.per_device_train_batch_size
        # torch.compile is for the encoder: the rest, which decides on micro-batches, is no fixed program.
        self.compile_options = None
        if self.torch_compile or self.torch_compile_backend or self.torch_compile_mode:
            backend, mode = self.torch_compile_backend or "inductor", self.torch_compile_mode
            self.compile_options = {"backend": backend, "mode": mode}
            self.torch_compile, self.torch_compile_backend, self.torch_compile_mode = False, None, None
        super().__post_init__()
        if self.train_batch_size * self.world_size < 2:
            raise ValueError(
                "A batch of one document has no negatives, and accumulation adds none: raise "
                "--per_device_train_batch_size; --cache_gradients makes large batches fit into memory."
            )
        if self.eval_strategy != "no" and self.eval_batch_size * self.world_size < 2:
            raise ValueError("--per_device_eval_batch_size 1 would give an eval_loss without negatives: raise it.")
        if self.label_smoothing_factor:
            raise ValueError("--label_smoothing_factor smooths no loss of this model: leave it out.")
        if self.auto_find_batch_size:
            raise ValueError("--auto_find_batch_size would take negatives away: use --cache_gradients instead.")
        if self.dataloader_persistent_workers:
            raise ValueError("--dataloader_persistent_workers would prefetch with the views of the epoch before.")
        if self.n_gpu > 1:
            raise ValueError(
                f"{self.n_gpu} GPUs are visible to one process, and DataParallel would split the negatives: start "
                "with `accelerate launch` or `torchrun`, or choose one with CUDA_VISIBLE_DEVICES=0."
            )
        if self.early_stopping_patience is not None and not self.load_best_model_at_end:
            raise ValueError("--early_stopping_patience needs --load_best_model_at_end and --metric_for_best_model.")
        if self.micro_batch_tokens is None:
            self.micro_batch_tokens = 1024 if self.device.type == "cpu" else 4096


def main() -> None:
    model_args, data_args, args = parse_arguments(
        (ModelArguments, DataArguments, PretrainingArguments), description=str(__doc__)
    )
    logging.basicConfig(level=logging.INFO if args.should_log else logging.ERROR, format="%(levelname)s %(message)s")
    use_all_cores(args.device, args.world_size)
    if data_args.streaming:
        prepare_for_stream(data_args, args)
    output_dir = Path(args.output_dir)
    checkpoint = checkpoints.to_resume_from(output_dir, args.resume_from_checkpoint, args.overwrite_output_dir)
    if checkpoint is None:
        checkpoints.refuse_to_remove(output_dir, (model_args.model_name_or_path, model_args.tokenizer_name))
    if args.push_release and args.process_index == 0:
        remove_what_was_on_its_way(output_dir)
        args.hub_model_id = create_repository(args.hub_model_id or output_dir.resolve().name, args.hub_private_repo)
    set_seed(args.seed)

    load = stream_documents if data_args.streaming else load_documents
    train_dataset, eval_dataset, tokenizer, probe_split, results = load(model_args, data_args, args, checkpoint)
    model = load_model(model_args, args, tokenizer)
    if checkpoint is not None:
        checkpoints.check_same_model(checkpoint, json.loads(model.config.to_json_string()))
        model.load_training_state(checkpoint)
    settings = model.config.docsplit
    collator = DocSplitCollator(
        tokenizer, data_args.view, settings["max_seq_length"], mlm=settings["mlm_weight"] > 0, seed=args.seed
    )
    results |= {"documents_held_out": len(eval_dataset) if eval_dataset is not None else 0}
    stream = train_dataset if isinstance(train_dataset, DocumentStream) else None
    if stream is None:
        results |= truncated_shares(train_dataset, collator)
    logger.info(f"Documents: {json.dumps(results)}")

    trainer = Trainer(model, args, collator, train_dataset, eval_dataset, processing_class=tokenizer)
    metrics, interrupt, probe = MetricsCallback(trainer, model), InterruptCallback(), None
    if stream is not None:
        trainer.add_callback(StreamCallback(trainer, stream, checkpoint))
    for callback in (EpochCallback(collator), CheckpointCallback(args), interrupt):
        trainer.add_callback(callback)
    pushes = PushCallback(str(args.hub_model_id)) if args.push_release else None
    if pushes is not None:
        trainer.add_callback(pushes)
    if probe_split is not None:
        probe = ProbeCallback(trainer, model, tokenizer, probe_split)
        trainer.add_callback(probe)
        if checkpoint is None:
            probe.measure()  # logged by train(), whose clock should not count it
    if args.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(args.early_stopping_patience))

    if trainer.is_world_process_zero():
        checkpoints.remove_results(output_dir)
        if checkpoint is None:
            checkpoints.remove_earlier_run(output_dir, OF_TRAINING_ONLY)
    with explain_out_of_memory(args.micro_batch_tokens, args.cache_gradients):
        output = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if interrupt.received:
        logger.warning(f"Stopped at step {trainer.state.global_step}; go on with --resume_from_checkpoint.")
        sys.exit(130)

    trainer.save_model()
    checkpoints.without_pickled_arguments(output_dir)
    if model.training_state_lost and trainer.is_world_process_zero():  # the best weights are those of this checkpoint
        best = Path(str(trainer.state.best_model_checkpoint))
        checkpoints.copy_parts(best, output_dir, OF_TRAINING_ONLY)
    results |= {"train_loss": output.training_loss, **metrics.totals(trainer.state.log_history)}
    results |= {"global_step": trainer.state.global_step}
    if stream is not None:
        results |= {"documents_used": output.global_step * args.train_batch_size * args.world_size}
        results["documents_used"] *= args.gradient_accumulation_steps
        results["documents_dropped"] = sum(gather_object([stream.num_dropped.value]))
    if probe is not None:
        results |= probe.summary()
    if trainer.is_world_process_zero():
        run = describe_run(args.device.type, args.world_size, args.hub_model_id if args.push_release else None)
        write_results(output_dir, results, trainer.state.log_history, run)
        if pushes is not None:
            pushes.wait()
            push_at_the_end(output_dir, pushes.repo_id, outdated=["evaluations/*"])


def prepare_for_stream(data_args: DataArguments, args: PretrainingArguments) -> None:
    """A stream has no length, and finds its own place when it resumes."""
    if args.max_steps <= 0:
        raise ValueError(
            "--streaming needs --max_steps, since the number of documents is not known: one pass takes documents / "
            "(--per_device_train_batch_size x processes x --gradient_accumulation_steps) steps."
        )
    if data_args.shuffle_buffer_size < 1:
        raise ValueError(
            f"--shuffle_buffer_size is {data_args.shuffle_buffer_size}: expected 1 (no shuffling) or more."
        )
    if data_args.max_train_samples is not None:
        raise ValueError("--max_train_samples does not go with --streaming: --max_steps bounds the run.")
    args.ignore_data_skip = True
    args.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]


def load_documents(
    model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments, checkpoint: Path | None
) -> tuple[Dataset, Dataset | None, Any, LabelledSplit | None, dict[str, Any]]:
    """Documents to train on and held-out ones, tokenised once and cached; the tokenizer, the probe, and the counts."""
    with args.main_process_first(desc="reading the corpus"):  # the others find it in the cache
        corpus = corpora.add_text(corpora.load_corpus(data_args.corpus), data_args.text_column)
        if data_args.max_train_samples is not None:
            corpus = corpus.select(range(min(data_args.max_train_samples, len(corpus))))
        probe_split = split_labelled(corpora.load_corpus(data_args.probe_corpus)) if data_args.probe_corpus else None
        tokenizer = load_tokenizer(model_args, data_args, corpus, checkpoint)
        dataset, dropped = corpora.tokenize(
            corpus,
            tokenizer,
            data_args.text_column,
            data_args.sentence_splitter,
            num_proc=data_args.preprocessing_num_workers,
        )
    dropped.pop("used")
    counts = {"documents_dropped": sum(dropped.values())}
    counts |= {f"documents_dropped_{reason}": count for reason, count in dropped.items()}
    if probe_split is not None:
        dataset, kept_for_probe = without_test_documents(dataset, probe_split)
        counts |= kept_for_probe
    num_held_out = 0 if args.eval_strategy == "no" else data_args.max_eval_samples
    train_dataset, eval_dataset = corpora.hold_out(dataset, num_held_out, seed=args.seed)
    corpora.check_fills_a_batch(train_dataset, args.train_batch_size * args.world_size, "training")
    if eval_dataset is not None:
        corpora.check_fills_a_batch(eval_dataset, args.eval_batch_size * args.world_size, "evaluation")
    return train_dataset, eval_dataset, tokenizer, probe_split, counts | {"documents_used": len(train_dataset)}


def stream_documents(
    model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments, checkpoint: Path | None
) -> tuple[DocumentStream, Dataset | None, Any, LabelledSplit | None, dict[str, Any]]:
    """As `load_documents`, of a corpus that is read while the model trains: held out are its first documents."""
    corpus, fingerprint = corpora.stream_corpus(data_args.corpus)
    num_held_out = 0 if args.eval_strategy == "no" else data_args.max_eval_samples
    with args.main_process_first(desc="reading the beginning of the corpus"):
        has_tokenizer = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
        num_read = num_held_out if has_tokenizer else max(num_held_out, DOCUMENTS_FOR_A_TOKENIZER)
        head = take(corpus, max(num_read, 1), data_args.text_column)  # names the columns if this one is missing
        probe_split = split_labelled(corpora.load_corpus(data_args.probe_corpus)) if data_args.probe_corpus else None
        tokenizer = load_tokenizer(model_args, data_args, head, checkpoint)
        eval_dataset, excluded = None, set()
        if num_held_out:
            held_out = head.select(range(min(num_held_out, len(head))))
            eval_dataset, _ = corpora.tokenize(held_out, tokenizer, data_args.text_column, data_args.sentence_splitter)
            eval_dataset = corpora.with_fixed_draws(eval_dataset)
            corpora.check_fills_a_batch(eval_dataset, args.eval_batch_size * args.world_size, "evaluation")
            excluded = set(eval_dataset["document_id"][:].tolist())
    counts = {"shards": corpus.num_shards}
    if probe_split is not None:
        excluded |= {corpora.document_id(text) for text in probe_split.test_texts}
        counts |= probe_counts(probe_split)
    stream = DocumentStream(
        corpus,
        fingerprint,
        tokenizer,
        data_args.text_column,
        data_args.sentence_splitter,
        batch_size=args.train_batch_size,
        rank=args.process_index,
        world_size=args.world_size,
        seed=args.seed,
        buffer_size=data_args.shuffle_buffer_size,
        excluded=excluded,
    )
    return stream, eval_dataset, tokenizer, probe_split, counts


def load_tokenizer(
    model_args: ModelArguments, data_args: DataArguments, corpus: Dataset, checkpoint: Path | None
) -> Any:
    """The checkpoint's when resuming, else the one named, else the model's, else one trained on the corpus."""
    source = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    if source is not None:
        return AutoTokenizer.from_pretrained(source)
    return train_wordpiece(corpus, data_args.text_column, model_args.vocab_size, corpora.cache_directory())


def load_model(
    model_args: ModelArguments, args: PretrainingArguments, tokenizer: Any
) -> DocSplitForContrastivePretraining:
    """A pretrained encoder or a random one, with the settings of the command line."""
    settings: dict[str, Any] = {
        "pooling": model_args.pooling,
        "max_seq_length": model_args.max_seq_length,
        "objective": args.objective,
        "similarity": args.similarity,
        "momentum_queue_size": args.momentum_queue_size,
        "momentum": args.momentum,
        "contrastive_temperature": args.contrastive_temperature,
        "contrastive_weight": args.contrastive_weight,
        "mlm_weight": args.mlm_weight,
        "symmetric": args.symmetric_loss,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    attention = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if model_args.model_name_or_path is not None:
        if model_args.config_overrides is not None:
            raise ValueError("--config_overrides is for a random start: leave out --model_name_or_path or it.")
        model = DocSplitForContrastivePretraining.from_pretrained(
            model_args.model_name_or_path, dtype=torch.float32, **settings, **attention
        )
    else:
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
    if model.config.model_type == "longformer" and model_args.attn_implementation != "eager":
        use_blocked_attention(model)
    if model_args.lora_r:
        model.add_lora(model_args.lora_r)
    if model.config.model_type == "big_bird" and model.config.attention_type == "block_sparse":
        longest_full = (5 + 2 * model.config.num_random_blocks) * model.config.block_size
        logger.info(f"BigBird: views of up to {longest_full} tokens get full attention, longer ones block-sparse.")
    tokenizer.model_max_length = model.config.docsplit["max_seq_length"]
    if args.compile_options is not None:
        model.compile(**args.compile_options)
    model.micro_batch_tokens, model.cache_gradients = args.micro_batch_tokens, args.cache_gradients
    return model


if __name__ == "__main__":
    main()
