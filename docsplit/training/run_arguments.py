"""The options of a run, checked: those of `docsplit.training.options` with transformers' TrainingArguments."""

import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from docsplit.data.sets.set_arguments import check_folds
from docsplit.data.views import QUERY_DOCUMENT, VIEWS
from docsplit.modeling.distributed import WITHOUT_QUEUE
from docsplit.modeling.encoding import default_training_tokens
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.start import Settings
from docsplit.runtime.bounds import check_bounds, option
from docsplit.runtime.gpus import refuse_unusable_gpu
from docsplit.runtime.launching import (
    PRECISION,
    accelerator,
    check_precision,
    check_processes,
    connect,
    default_dtype,
    refuse_sharded_parameters,
)
from docsplit.runtime.options import TOKEN_REFUSED, check_choices, first_lines
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
UNSUPPORTED = {  # options of transformers, and why they are refused
    "fsdp": "shards parameters, and this training needs DDP: leave it out",
    "deepspeed": "shards parameters, and this training needs DDP: leave it out",
    "hub_token": f"is refused: {TOKEN_REFUSED.removesuffix('.')}",
    "hub_always_push": "is not supported: a release is pushed when it is done",
    "remove_unused_columns": "would take away the columns that views are made of: leave it out",
    "label_smoothing_factor": "changes nothing here: no loss of this training has labels",
    "hub_revision": "is not supported: a release goes to the branch main",
    "auto_find_batch_size": "would take negatives away: use --cache_gradients instead",
    "dataloader_multiprocessing_context": "is not supported: only forked workers learn which epoch it is",
    "dataloader_persistent_workers": "would prefetch with the views of the epoch before: leave it out",
    "ignore_data_skip": "would train on documents again when the run resumes: leave it out",
    "save_on_each_node": "would write checkpoints without the parts of other machines: share --output_dir instead",
}


@dataclass
class PretrainingArguments(TrainingOptions, TrainingArguments):  # type: ignore[misc]  # None: chosen when it is made
    """The loss and the run."""

    objective: str | None = option(
        None,
        lambda: (
            f"Loss that compares the views. {first_lines(OBJECTIVES)} Those with a second encoder need --mlm_weight "
            "0. Default: the checkpoint's, else info_nce."
        ),
        choices=OBJECTIVES,
    )

    def __post_init__(self) -> None:
        refuse_sharded_parameters()
        _refuse_unsupported(self)
        # Trainer's own push would overwrite the card and upload whatever lies in the folder.
        self.push_release, self.push_to_hub = self.push_to_hub, False
        self.restore_callback_states_from_checkpoint = True  # the patience of early stopping
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
        _refuse_contradictions(self)
        _refuse_trackers(self)
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


def _refuse_unsupported(args: PretrainingArguments) -> None:
    """Refuse what this training cannot do with transformers' options, and a best checkpoint that nothing chooses."""
    for name, reason in UNSUPPORTED.items():
        if getattr(args, name):
            raise ValueError(f"--{name} {reason}.")
    if args.hub_strategy != "every_save":
        raise ValueError(f"--hub_strategy {args.hub_strategy} is not supported: a release is pushed when it is done.")
    if args.early_stopping_patience is not None and not args.load_best_model_at_end:
        raise ValueError("--early_stopping_patience needs --load_best_model_at_end and --metric_for_best_model.")
    if (args.load_best_model_at_end or args.save_strategy == "best") and args.eval_strategy == "no":
        raise ValueError(
            "The best checkpoint is chosen by evaluations, and there are none: add --eval_strategy steps."
        )


def _refuse_contradictions(args: PretrainingArguments) -> None:
    """Refuse what cannot go together in a run, though each option alone can be."""
    if args.train_batch_size * args.world_size < 2:
        raise ValueError("A batch of one document has no negatives: raise --per_device_train_batch_size.")
    if args.eval_strategy != "no" and args.eval_batch_size * args.world_size < 2:
        raise ValueError("--per_device_eval_batch_size 1 would give an eval_loss without negatives: raise it.")
    chooses = args.load_best_model_at_end or args.save_strategy == "best"
    first = max(args.eval_steps or args.logging_steps, args.eval_delay + 1)
    if chooses and args.eval_strategy == "steps" and 0 < args.max_steps < first:
        raise ValueError(
            f"The best checkpoint is chosen by evaluations, and the first would come at step {first:g}, after "
            f"--max_steps {args.max_steps}: lower --eval_steps or --eval_delay."
        )
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process, and DataParallel would split the negatives: start with "
            "`accelerate launch`, or choose one with CUDA_VISIBLE_DEVICES=0."
        )
    keywords = args.lr_scheduler_kwargs or {}
    if not isinstance(keywords, dict):
        raise ValueError(f"--lr_scheduler_kwargs {keywords}: give JSON such as '{{\"num_cycles\": 2}}'.")
    for name, value in keywords.items():
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ValueError(f"--lr_scheduler_kwargs {name}={value} makes a learning rate below 0 or no number.")


def _refuse_trackers(args: PretrainingArguments) -> None:
    """Make the trackers as Trainer does, which comes after the documents."""
    names: Any = args.report_to  # a list by now
    try:
        for tracker in get_reporting_integration_callbacks(names):
            tracker()
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"--report_to {' '.join(names)}: {error}") from error


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
        data, training = self.data, self.training
        for options in (self.model, data, self.queries, training):
            check_bounds(options)
        if data.streaming:  # a stream has no length, and finds its own place when the run resumes
            if training.max_steps <= 0:
                raise ValueError("--streaming needs --max_steps, since the number of documents is not known.")
            if data.max_train_samples is not None:
                raise ValueError("--max_train_samples does not go with --streaming: --max_steps bounds the run.")
            training.ignore_data_skip = True
            training.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]
        metric = (training.metric_for_best_model or "loss").removeprefix("eval_")
        if metric in PROBE_METRICS and data.probe_corpus is None:
            raise ValueError(f"--metric_for_best_model {metric} needs --probe_corpus, on which it is measured.")
        check_choices("metric_for_best_model", [metric], ("loss", *PROBE_METRICS))
        if self.start is None:
            self.choose_view({})
        elif data.view is not None:
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

    def _check_view(self) -> None:
        """Refuse options of queries for documents, and for queries folds that cannot be and options of documents."""
        if self.data.view != QUERY_DOCUMENT:
            if given := self.queries.given():
                raise ValueError(f"{', '.join(given)} are for --view {QUERY_DOCUMENT}: leave them out, or name it.")
            return
        check_folds(self.queries.folds, self.queries.fold)
        for name, default in (("streaming", False), ("text_column", "text"), ("probe_corpus", None)):
            if getattr(self.data, name) != default:
                raise ValueError(f"--{name} does not go with --view {QUERY_DOCUMENT}: leave it out.")
