"""The options of pretraining, with the papers' values as defaults. Nothing heavy is imported: `--help` reads this."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import TrainingArguments

from docsplit.data.segmentation import DEFAULT_SPLITTER
from docsplit.data.views import OF_PASSAGES, QUERY_DOCUMENT, VIEWS
from docsplit.modeling.families.table import family_named
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.modeling.settings import Pooling, Settings
from docsplit.runtime.arguments import check_choices, first_lines
from docsplit.runtime.launching import default_dtype, default_training_tokens, refuse_sharded_parameters

NEGATIVES_FOLDER = "negatives"  # in the output folder: those that were mined
KINDS_OF_NEGATIVES = ("random", "bm25", "self")
OPTIONS_OF_OBJECTIVES = {name: objective.Options for name, objective in OBJECTIVES.items()}


@dataclass
class ModelArguments:
    """The encoder and its embedding."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Masked language model or SentenceTransformer to start from, a Hub name or a folder. None: random."
        },
    )
    model_type: str = field(
        default="bert",
        metadata={
            "help": "Architecture of a random start: bert, modernbert ... graph_document reads a graph of passages; "
            "--model_name_or_path is its passage encoder or a checkpoint of this kind. Without it: a random BERT."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "Sizes of a random start: 'hidden_size=128,num_hidden_layers=2,...'. A graph_document takes its "
            "graph's options with any start: 'graph_kind=section,graph_layers=2,graph_hidden_size=512,...'."
        },
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={
            "help": "Hub name or folder. Default: the start's; for a random start one is trained on the corpus."
        },
    )
    vocab_size: int = field(default=30522, metadata={"help": "Number of ids of a tokenizer trained here."})
    pooling: Pooling | None = field(
        default=None,
        metadata={"help": "Token states to embedding. Default: the checkpoint's, else cls (the paper's)."},
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens read of a text, special ones included. Default: the checkpoint's, else 512."},
    )
    new_mlm_head: bool = field(
        default=False, metadata={"help": "Give a checkpoint without a masked-LM head a random one, to be trained."}
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "How attention is computed: sdpa, flash_attention_2, eager ... A Longformer computes it in tiles; "
            "eager gives it transformers' own. Default: transformers' choice."
        },
    )
    lora_r: int = field(
        default=0, metadata={"help": "Rank of LoRA updates, trained in place of the encoder's weights; 0: no LoRA."}
    )

    def __post_init__(self) -> None:
        if self.lora_r < 0:
            raise ValueError(f"--lora_r is {self.lora_r}: expected the rank of LoRA's updates, or 0 for none.")
        if self.lora_r and self.model_name_or_path is None:
            raise ValueError("--lora_r adapts a pretrained encoder: give --model_name_or_path.")
        if self.new_mlm_head and self.model_name_or_path is None:
            raise ValueError("--new_mlm_head is for a checkpoint: a random start has a head. Leave it out.")
        is_built = family_named(self.model_type).built_on is not None
        if self.config_overrides is not None and self.model_name_or_path is not None and not is_built:
            raise ValueError(
                "--config_overrides is for a random start, or for --model_type graph_document: leave out "
                "--model_name_or_path or it."
            )


@dataclass
class DataArguments:
    """The documents and their views."""

    corpus: str = field(
        default="python_docs",
        metadata={
            "help": "python_docs (docstrings of the installed packages), a file or folder (json, jsonl, csv, parquet, "
            "txt, md, html, pdf, docx ..., also mixed), or a Hub data set NAME or NAME:CONFIGURATION."
        },
    )
    text_column: str = field(
        default="text",
        metadata={"help": "Documents: strings or lists of paragraphs; if missing, `sections` [{heading, text}]."},
    )
    sentence_splitter: str = field(
        default=DEFAULT_SPLITTER, metadata={"help": "Splits by: rules, sentencizer, or an installed spaCy pipeline."}
    )
    view: str = field(
        default="docsplit",
        metadata={
            "choices": [*VIEWS, QUERY_DOCUMENT],
            "help": f"The two texts of a document. {first_lines(VIEWS)} {QUERY_DOCUMENT}: a query and a relevant "
            "document of a collection, which --corpus names as run_document_retrieval.py's --collection does.",
        },
    )
    passage_words: int = field(
        default=100,
        metadata={
            "help": "Words of a passage, about, for the views passages and passage_vs_rest; it ends with a sentence "
            "and where a section does. Documents of one passage are dropped: take fewer words for short documents."
        },
    )
    view_max_length: int | None = field(
        default=None,
        metadata={"help": "Tokens of a view in training, at most --max_seq_length. Default: --max_seq_length."},
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Tokenise documents during training, without a copy on the disk; needs --max_steps. Each pass "
            "over the documents draws other views."
        },
    )
    shuffle_buffer_size: int = field(
        default=10_000, metadata={"help": "Documents that each worker shuffles together in memory, with --streaming."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first N documents."})
    max_eval_samples: int = field(
        default=500, metadata={"help": "Documents held out for eval_loss, if --eval_strategy is not 'no'."}
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenisation."})
    probe_corpus: str | None = field(
        default=None,
        metadata={
            "help": "Labelled documents (columns text and label) to probe the frozen encoder on: test documents "
            "before and after training, validation documents at each evaluation. Both are kept out of pretraining."
        },
    )

    def __post_init__(self) -> None:
        if self.passage_words < 1:
            raise ValueError(f"--passage_words is {self.passage_words}: expected 1 or more, 100 in the paper.")

    @property
    def words_of_passages(self) -> int | None:
        """`passage_words`; None for a view that needs no passages."""
        return self.passage_words if self.view in OF_PASSAGES else None


@dataclass
class QueryArguments:
    """The queries and negatives of --view query_document."""

    queries: Literal["title", "first_sentence", "first_line"] | None = field(
        default=None, metadata={"help": "Make queries from the corpus, as run_document_retrieval.py does."}
    )
    split: str | None = field(
        default=None, metadata={"help": "Part of the queries. Default: train; with --fold test, or the only part."}
    )
    folds: str = field(
        default="5", metadata={"help": "Number of folds, or a JSON file with lists of query ids; needs --fold."}
    )
    fold: int | None = field(
        default=None,
        metadata={
            "help": "Fold of queries to leave for run_document_retrieval.py --fold, counted from 0. The next fold is "
            "for eval_loss and the hybrid's weight; all others are trained on. Default: no folds."
        },
    )
    negatives: list[str] = field(
        default_factory=lambda: ["in_batch"],
        metadata={
            "help": "Negatives of a query. in_batch: other queries' documents alone. random adds random documents of "
            "the collection, bm25 and self add hard ones, which rank high by BM25 or by the encoder in training (by "
            "the start, and anew when half the epochs are over). Two values: one for each half, such as bm25 self."
        },
    )
    negatives_per_query: int | None = field(
        default=None, metadata={"help": "Negatives beside other queries' documents. Default: 1, with in_batch 0."}
    )
    negatives_depth: int = field(
        default=100, metadata={"help": "Mine hard negatives among the N best-ranked documents."}
    )
    negatives_min_rank: int = field(default=0, metadata={"help": "Skip the N best-ranked documents when mining."})
    negatives_margin: float | None = field(
        default=None,
        metadata={
            "help": "Skip documents that score above s - |s| x this; s is the score of the best relevant document. "
            "Default: no limit."
        },
    )

    def __post_init__(self) -> None:
        check_choices("negatives", self.negatives, ("in_batch", *KINDS_OF_NEGATIVES))
        if "in_batch" in self.negatives and self.negatives != ["in_batch"]:
            raise ValueError(
                f"--negatives {' '.join(self.negatives)}: in_batch negatives are always there: leave it out."
            )
        if not 1 <= len(self.negatives) <= 2:
            raise ValueError(f"--negatives {' '.join(self.negatives)}: expected one kind, or one for each half.")
        if self.negatives_per_query is not None and (self.negatives_per_query < 1 or not self.phases):
            raise ValueError(
                f"--negatives_per_query is {self.negatives_per_query}: expected 1 or more, with --negatives "
                f"{', '.join(KINDS_OF_NEGATIVES)}."
            )
        if not 0 <= self.negatives_min_rank < self.negatives_depth:
            raise ValueError(
                f"--negatives_min_rank is {self.negatives_min_rank}: expected 0 or more, and less than "
                f"--negatives_depth, {self.negatives_depth}."
            )

    @property
    def phases(self) -> list[str]:
        """The kinds of negatives beside those in the batch: none, one for all epochs, or one for each half."""
        kinds = [kind for kind in self.negatives if kind in KINDS_OF_NEGATIVES]
        return ["self", "self"] if kinds == ["self"] else kinds

    @property
    def number_of_negatives(self) -> int:
        """Negatives of each query, beside those in the batch."""
        return (self.negatives_per_query or 1) if self.phases else 0

    def given(self) -> list[str]:
        """Return the options that are not at their defaults."""
        defaults: Any = QueryArguments()
        names = [option.name for option in fields(self)]
        return [f"--{name}" for name in names if getattr(self, name) != getattr(defaults, name)]


@dataclass
class PretrainingArguments(TrainingArguments):
    """The loss and the run.

    Trainer's arguments get the papers' values as defaults.
    """

    output_dir: str = field(default="outputs/docsplit", metadata={"help": "Where everything is written."})
    per_device_train_batch_size: int = field(default=36, metadata={"help": "Documents a step, of each process."})
    per_device_eval_batch_size: int | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Documents a step of eval_loss. Default: as in training."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Steps between logs; below 1, a share of all steps."})
    learning_rate: float = field(default=5e-5, metadata={"help": "Peak learning rate of AdamW."})
    bf16: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Encoder in bfloat16 (autocast). Default: where the hardware multiplies it natively."},
    )
    dataloader_num_workers: int | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Processes that make batches. Default: 4 with a GPU, 0 without."}
    )
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the documents."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW, except on biases and norms."})
    warmup_steps: float = field(default=0.05, metadata={"help": "Warm-up steps; below 1, a share of all steps."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide a loss that is NaN from the log."})
    dataloader_drop_last: bool = field(
        default=True, metadata={"help": "Drop a smaller last batch: it has fewer negatives."}
    )
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "There are none."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "The collator needs all columns."})

    objective: str | None = field(
        default=None,
        metadata={
            "choices": list(OBJECTIVES),
            "help": f"{first_lines(OBJECTIVES)} Those with a second encoder need --mlm_weight 0. Default: the "
            "checkpoint's, else info_nce.",
        },
    )
    contrastive_weight: float | None = field(
        default=None,
        metadata={
            "help": "Weight of the contrastive loss; 0: masked LM alone. Default: the checkpoint's, else 1; give it "
            "where the checkpoint's is 0."
        },
    )
    mlm_weight: float | None = field(
        default=None,
        metadata={"help": "Weight of the masked-LM loss; 0: no such loss. Default: the checkpoint's, else 0.1."},
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={"help": "Most tokens of a forward pass, with padding: speed and memory. Default: 1024 (GPU 4096)."},
    )
    cache_gradients: bool = field(
        default=False, metadata={"help": "Keep one micro-batch's activations only: less memory, 1.4 times the time."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after N evaluations without a better --metric_for_best_model."}
    )
    keep_better_start: bool = field(
        default=True,
        metadata={
            "help": "Release the start's files, unchanged, if training did not beat the start on the validation "
            "documents of --probe_corpus. false: release the trained weights in any case."
        },
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Start anew where an earlier run left checkpoints, and remove them."}
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
            self.micro_batch_tokens = default_training_tokens(self.device)


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
                    "and run_document_retrieval.py measures."
                )
