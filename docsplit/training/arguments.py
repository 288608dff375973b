"""The options of a run, checked: those of `docsplit.training.options` with transformers' TrainingArguments."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import TrainingArguments

from docsplit.data.views import QUERY_DOCUMENT
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.settings import Settings
from docsplit.runtime.arguments import first_lines
from docsplit.runtime.launching import (
    PRECISION,
    accelerator,
    check_precision,
    check_processes,
    connect,
    default_dtype,
    default_training_tokens,
    refuse_sharded_parameters,
)
from docsplit.runtime.names import command_name
from docsplit.training.options import DataArguments, ModelArguments, QueryArguments, TrainingOptions

NEGATIVES_FOLDER = "negatives"  # in the output folder: those that were mined
OPTIONS_OF_OBJECTIVES = {name: objective.Options for name, objective in OBJECTIVES.items()}


@dataclass
class PretrainingArguments(TrainingOptions, TrainingArguments):  # type: ignore[misc]  # None: chosen when it is made
    """The objective."""

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
        if self.fsdp or self.deepspeed:
            raise ValueError("--fsdp and --deepspeed shard parameters, and this training needs DDP: leave them out.")
        if self.hub_token is not None:
            raise ValueError("--hub_token would show in logs and process lists: `hf auth login`, or set HF_TOKEN.")
        if self.hub_revision is not None:
            raise ValueError("--hub_revision is not supported: a release goes to the branch main.")
        # Trainer's own push would overwrite the card and upload whatever lies in the folder.
        self.push_release, self.push_to_hub = self.push_to_hub, False
        check_processes(on_cpu=self.use_cpu)
        device = torch.device("cpu") if self.use_cpu else accelerator()
        self.use_cpu = device.type == "cpu"
        check_precision(self.fp16, self.bf16, device)
        if self.bf16 is None:
            native = default_dtype(device) == torch.bfloat16
            self.bf16 = not self.fp16 and (native or os.environ.get(PRECISION) == "bf16")
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
        connect(self.use_cpu, self.ddp_timeout, self.ddp_backend)
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
            self.micro_batch_tokens = default_training_tokens(self.device)


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
        if self.data.streaming:
            self._prepare_for_stream()
        if self.data.view == QUERY_DOCUMENT:
            self._check_query_view()
        elif given := self.queries.given():
            raise ValueError(f"{', '.join(given)} are for --view {QUERY_DOCUMENT}: leave them out, or name that view.")

    @property
    def output_dir(self) -> Path:
        """The folder that everything is written into."""
        return Path(str(self.training.output_dir))

    @property
    def start(self) -> str | None:
        """The name of the pretrained encoder; None: a random one."""
        return self.model.model_name_or_path

    def _prepare_for_stream(self) -> None:
        """Let a stream, which has no length, bound the run by steps and find its own place when the run resumes."""
        data, training = self.data, self.training
        if training.max_steps <= 0:
            raise ValueError(
                "--streaming needs --max_steps, since the number of documents is not known: one pass takes documents "
                "/ (--per_device_train_batch_size x processes x --gradient_accumulation_steps) steps."
            )
        if data.shuffle_buffer_size < 1:
            size = data.shuffle_buffer_size
            raise ValueError(f"--shuffle_buffer_size is {size}: expected 1 (no shuffling) or more.")
        if data.max_train_samples is not None:
            raise ValueError("--max_train_samples does not go with --streaming: --max_steps bounds the run.")
        training.ignore_data_skip = True
        training.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]

    def _check_query_view(self) -> None:
        """Refuse options of documents, which queries have no use for."""
        for option, default in (("streaming", False), ("text_column", "text"), ("probe_corpus", None)):
            if getattr(self.data, option) != default:
                raise ValueError(
                    f"--{option} does not go with --view {QUERY_DOCUMENT}: leave it out. Collections are read whole, "
                    f"and `{command_name('run_document_retrieval.py')}` measures."
                )
