"""The options of a run, checked: those of `docsplit.training.options` with transformers' TrainingArguments."""

import importlib.util
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from transformers import TrainingArguments

from docsplit.data.sets.arguments import check_folds
from docsplit.data.views import QUERY_DOCUMENT, VIEWS
from docsplit.modeling.distributed import WITHOUT_QUEUE
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.pretrained import Settings
from docsplit.runtime.command import command_name
from docsplit.runtime.launching import (
    PRECISION,
    accelerator,
    check_precision,
    check_processes,
    connect,
    default_dtype,
    default_training_tokens,
    refuse_sharded_parameters,
    refuse_unusable_gpu,
)
from docsplit.runtime.options import TOKEN_REFUSED, check_bounds, check_choices, first_lines
from docsplit.training.options import (
    DEFAULT_PASSAGE_WORDS,
    DEFAULT_VIEW,
    DataArguments,
    ModelArguments,
    QueryArguments,
    TrainingOptions,
)

NEGATIVES_FOLDER = "negatives"  # in the output folder: those that were mined
PROBE_METRICS = ("probe_5shot_accuracy", "probe_accuracy")  # what a run may choose by, beside eval_loss
OPTIONS_OF_OBJECTIVES = {name: objective.Options for name, objective in OBJECTIVES.items()}


@dataclass
class PretrainingArguments(TrainingOptions, TrainingArguments):  # type: ignore[misc]  # None: chosen when it is made
    """The loss and the run."""

    objective: str | None = field(
        default=None,
        metadata={
            "choices": list(OBJECTIVES),
            "help": f"Loss that compares the views. {first_lines(OBJECTIVES)} Those with a second encoder need "
            "--mlm_weight 0. Default: the checkpoint's, else info_nce.",
        },
    )

    def __post_init__(self) -> None:
        refuse_sharded_parameters()
        refuse_first(unsupported(self))
        refuse_first(what_does_not_choose(self))
        # Trainer's own push would overwrite the card and upload whatever lies in the folder.
        self.push_release, self.push_to_hub = self.push_to_hub, False
        if not self.use_cpu:
            refuse_unusable_gpu()
        check_processes(on_cpu=self.use_cpu)
        self._choose_for(torch.device("cpu") if self.use_cpu else accelerator())
        # torch.compile is for the encoder: the rest, which decides on micro-batches, is no fixed program.
        self.compile_options = None
        if self.torch_compile or self.torch_compile_backend or self.torch_compile_mode:
            backend, mode = self.torch_compile_backend or "inductor", self.torch_compile_mode
            self.compile_options = {"backend": backend, "mode": mode}
            self.torch_compile, self.torch_compile_backend, self.torch_compile_mode = False, None, None
        try:
            super().__post_init__()
        except (ValueError, TypeError, ImportError, AttributeError, KeyError) as error:
            raise ValueError(f"transformers refuses these options: {' '.join(str(error).split())}") from error
        refuse_first(contradictions(self))
        if self.micro_batch_tokens is None:
            self.micro_batch_tokens = default_training_tokens(self.device)

    @cached_property
    def _setup_devices(self) -> torch.device:
        """Connect the processes of a launch where transformers does, but with --ddp_timeout on CPUs too."""
        connect(self.use_cpu, self.ddp_timeout, self.ddp_backend)
        return super()._setup_devices

    def _choose_for(self, device: torch.device) -> None:
        """Fill in what depends on the device, where no option says it."""
        if self.full_determinism:  # read at cuBLAS's first product; Trainer may set it too late
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.use_cpu = device.type == "cpu"
        check_precision(self.fp16, self.bf16, device)
        if self.bf16 is None:
            native = default_dtype(device) == torch.bfloat16
            self.bf16 = not self.fp16 and (native or os.environ.get(PRECISION) == "bf16")
        if self.dataloader_num_workers is None:
            self.dataloader_num_workers = 0 if device.type == "cpu" else 4
        if self.accelerator_config is None and self.dataloader_pin_memory and device.type not in WITHOUT_QUEUE:
            self.accelerator_config = {"non_blocking": True}  # copies from pinned memory: no wait for the last step
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = self.per_device_train_batch_size


def refuse_first(reasons: Iterator[str]) -> None:
    """Raise the first reason why options cannot be.

    Raises:
        ValueError: if there is one.
    """
    for reason in reasons:
        raise ValueError(reason)


def unsupported(args: PretrainingArguments) -> Iterator[str]:
    """Yield options of transformers that this training has no use for, with the remedy."""
    if args.fsdp or args.deepspeed:
        yield "--fsdp and --deepspeed shard parameters, and this training needs DDP: leave them out."
    if args.hub_token is not None:
        yield f"hub_token: {TOKEN_REFUSED}"
    if args.hub_revision is not None:
        yield "--hub_revision is not supported: a release goes to the branch main."
    if args.label_smoothing_factor:
        yield "--label_smoothing_factor smooths no loss of this model: leave it out."
    if args.auto_find_batch_size:
        yield "--auto_find_batch_size would take negatives away: use --cache_gradients instead."
    if args.dataloader_persistent_workers:
        yield "--dataloader_persistent_workers would prefetch with the views of the epoch before."
    if args.dataloader_multiprocessing_context not in (None, "fork"):
        yield "--dataloader_multiprocessing_context: only forked workers learn which epoch it is: leave it out."
    if args.save_on_each_node:
        yield (
            "--save_on_each_node would give each machine a checkpoint without the parts of the others, and write a "
            "shared one twice at once: leave it out. Rank 0 writes all; share --output_dir, or copy the checkpoint."
        )
    if args.remove_unused_columns:
        yield "--remove_unused_columns would drop columns that views are made of: leave it out."
    if args.debug:
        yield "--debug looks at numbers alone, and this model gives masks too: leave it out."
    if args.use_liger_kernel and importlib.util.find_spec("liger_kernel") is None:
        yield "--use_liger_kernel needs liger-kernel, which is not installed: leave it out."


def what_does_not_choose(args: PretrainingArguments) -> Iterator[str]:
    """Yield why the best checkpoint cannot be chosen, or a metric has nothing to choose."""
    evaluates, steps = args.eval_strategy != "no", args.eval_steps or args.logging_steps
    if args.early_stopping_patience is not None and not args.load_best_model_at_end:
        yield "--early_stopping_patience needs --load_best_model_at_end and --metric_for_best_model."
    chooses = "--load_best_model_at_end" if args.load_best_model_at_end else ""
    chooses = chooses or ("--save_strategy best" if args.save_strategy == "best" else "")
    if chooses and not evaluates:
        yield f"{chooses} chooses by evaluations, and there are none: add --eval_strategy steps or epoch."
    if chooses and args.save_strategy == "no":
        yield f"{chooses} loads a checkpoint, and --save_strategy no writes none: leave that out."
    if chooses and args.eval_strategy == "steps" and 0 < args.max_steps < steps:
        yield f"{chooses} chooses by evaluations, and --eval_steps {steps:g} comes after --max_steps {args.max_steps}."
    if chooses and args.eval_strategy == "steps" and 0 < args.max_steps <= args.eval_delay:
        yield f"{chooses} chooses by evaluations, and --eval_delay {args.eval_delay:g} puts them behind the last step."
    if args.metric_for_best_model is not None and not evaluates and "probe" not in args.metric_for_best_model:
        yield "--metric_for_best_model names a result of evaluations: add --eval_strategy steps or epoch."


def contradictions(args: PretrainingArguments) -> Iterator[str]:
    """Yield what cannot go together in a run, though each option alone can be."""
    if args.train_batch_size * args.world_size < 2:
        yield (
            "A batch of one document has no negatives, and accumulation adds none: raise "
            "--per_device_train_batch_size; --cache_gradients makes large batches fit into memory."
        )
    if args.eval_strategy != "no" and args.eval_batch_size * args.world_size < 2:
        yield "--per_device_eval_batch_size 1 would give an eval_loss without negatives: raise it."
    if args.n_gpu > 1:
        yield (
            f"{args.n_gpu} GPUs are visible to one process, and DataParallel would split the negatives: start "
            "with `accelerate launch` or `torchrun`, or choose one with CUDA_VISIBLE_DEVICES=0."
        )
    if args.dataloader_prefetch_factor is not None and not args.dataloader_num_workers:
        yield "--dataloader_prefetch_factor is for --dataloader_num_workers above 0: add them, or leave it out."
    keywords = args.lr_scheduler_kwargs or {}
    if not isinstance(keywords, dict):
        yield f"--lr_scheduler_kwargs {keywords}: give JSON such as '{{\"num_cycles\": 2}}'."
        return
    for name, value in keywords.items():
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            yield f"--lr_scheduler_kwargs {name}={value} makes a learning rate that is negative or no number."


ARGUMENTS = (ModelArguments, DataArguments, QueryArguments, PretrainingArguments)  # what the command line gives


@dataclass
class RunOptions:
    """All options of a run, as recipe and command line give them.

    Attributes:
        objective: the options of the objective that were given, by name.

    Raises:
        ValueError: if options do not go together.
    """

    model: ModelArguments
    data: DataArguments
    queries: QueryArguments
    training: PretrainingArguments
    objective: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        for options in (self.model, self.data, self.queries, self.training):
            check_bounds(options)
        if self.data.streaming:
            self._prepare_for_stream()
        self._check_metric()
        if self.start is None:
            self.choose_view({})
        elif self.data.view is not None:
            self._check_view()

    @property
    def output_dir(self) -> Path:
        """The folder that everything is written into."""
        return Path(str(self.training.output_dir))

    @property
    def start(self) -> str | None:
        """The name of the pretrained encoder; None: a random one."""
        return self.model.model_name_or_path

    def choose_view(self, of_start: Settings) -> None:
        """Fill in the view, and the words of passages, that are not given: the start's, else the defaults.

        Raises:
            ValueError: if other options do not go with the view, or the start has one that does not exist.
        """
        self.data.view = self.data.view or of_start.get("view") or DEFAULT_VIEW
        self.data.passage_words = self.data.passage_words or of_start.get("passage_words") or DEFAULT_PASSAGE_WORDS
        check_choices("view", [self.data.view], (*VIEWS, QUERY_DOCUMENT))
        self._check_view()

    def _prepare_for_stream(self) -> None:
        """Let a stream, which has no length, bound the run by steps and find its own place when the run resumes."""
        data, training = self.data, self.training
        if training.max_steps <= 0:
            raise ValueError(
                "--streaming needs --max_steps, since the number of documents is not known: one pass takes documents "
                "/ (--per_device_train_batch_size x processes x --gradient_accumulation_steps) steps."
            )
        if data.max_train_samples is not None:
            raise ValueError("--max_train_samples does not go with --streaming: --max_steps bounds the run.")
        training.ignore_data_skip = True
        training.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]

    def _check_metric(self) -> None:
        """Refuse a metric to choose by that no evaluation of this run measures."""
        metric = (self.training.metric_for_best_model or "loss").removeprefix("eval_")
        if metric in PROBE_METRICS and self.data.probe_corpus is None:
            raise ValueError(
                f"--metric_for_best_model {metric} needs --probe_corpus, on which it is measured: add it."
            )
        check_choices("metric_for_best_model", [metric], ("loss", *PROBE_METRICS))

    def _check_view(self) -> None:
        """Refuse options of queries for documents, and for queries folds that cannot be and options of documents."""
        if self.data.view != QUERY_DOCUMENT:
            if given := self.queries.given():
                raise ValueError(
                    f"{', '.join(given)} are for --view {QUERY_DOCUMENT}: leave them out, or name that view."
                )
            return
        check_folds(self.queries.folds, self.queries.fold)
        for option, default in (("streaming", False), ("text_column", "text"), ("probe_corpus", None)):
            if getattr(self.data, option) != default:
                raise ValueError(
                    f"--{option} does not go with --view {QUERY_DOCUMENT}: leave it out. Collections are read whole, "
                    f"and `{command_name('run_document_retrieval.py')}` measures."
                )
