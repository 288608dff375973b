"""The options of pretraining, with the papers' values as defaults. Nothing heavy is imported: `--help` reads this."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from docsplit.data.segmentation import DEFAULT_SPLITTER
from docsplit.data.views import OF_PASSAGES, QUERY_DOCUMENT, VIEWS
from docsplit.modeling.pooling import Pooling
from docsplit.runtime.arguments import check_choices, first_lines
from docsplit.runtime.files import refuse_missing_path
from docsplit.runtime.help import COMMON

KINDS_OF_NEGATIVES = ("random", "bm25", "self")


@dataclass
class ModelArguments:
    """The encoder and its embedding."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Masked language model or SentenceTransformer to start from: a Hub name or folder. None: random.",
        },
    )
    model_type: str = field(
        default="bert",
        metadata={
            COMMON: True,
            "help": "Architecture of a random start, such as bert or modernbert. graph_document reads a graph of "
            "passages: --model_name_or_path is its passage encoder or a checkpoint of this kind; else a random BERT.",
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
        metadata={
            COMMON: True,
            "help": "Token states to embedding. Default: the checkpoint's, else cls (the paper's), of a decoder "
            "lasttoken.",
        },
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Tokens read of a text, special ones included. Default: the checkpoint's, else 512.",
        },
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
        default=0,
        metadata={
            COMMON: True,
            "help": "Rank of LoRA updates, trained in place of the encoder's weights; 0: no LoRA.",
        },
    )

    def __post_init__(self) -> None:
        if self.lora_r < 0:
            raise ValueError(f"--lora_r is {self.lora_r}: expected the rank of LoRA's updates, or 0 for none.")
        if self.lora_r and self.model_name_or_path is None:
            raise ValueError("--lora_r adapts a pretrained encoder: give --model_name_or_path.")
        if self.new_mlm_head and self.model_name_or_path is None:
            raise ValueError("--new_mlm_head is for a checkpoint: a random start has a head. Leave it out.")
        from docsplit.modeling.families.table import family_named

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
            COMMON: True,
            "help": "python_docs (docstrings of the installed packages), a file or folder (json, jsonl, csv, parquet, "
            "txt, md, html, pdf, docx ..., also mixed), or a Hub data set NAME or NAME:CONFIGURATION.",
        },
    )
    text_column: str = field(
        default="text",
        metadata={
            COMMON: True,
            "help": "Documents: strings or lists of paragraphs; if missing, `sections` [{heading, text}].",
        },
    )
    sentence_splitter: str = field(
        default=DEFAULT_SPLITTER, metadata={"help": "Splits by: rules, sentencizer, or an installed spaCy pipeline."}
    )
    view: str = field(
        default="docsplit",
        metadata={
            COMMON: True,
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
            COMMON: True,
            "help": "Tokenise documents during training, without a copy on the disk; needs --max_steps. Each pass "
            "over the documents draws other views.",
        },
    )
    shuffle_buffer_size: int = field(
        default=10_000, metadata={"help": "Documents that each worker shuffles together in memory, with --streaming."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={COMMON: True, "help": "Train on the first N documents."}
    )
    max_eval_samples: int = field(
        default=500, metadata={"help": "Documents held out for eval_loss, if --eval_strategy is not 'no'."}
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for tokenisation."})
    probe_corpus: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Labelled documents (columns text and label) to probe the frozen encoder on: test documents "
            "before and after training, validation documents at each evaluation. Both are kept out of pretraining.",
        },
    )

    def __post_init__(self) -> None:
        for corpus in filter(None, (self.corpus, self.probe_corpus)):
            refuse_missing_path(corpus, "a file or folder that is there, a data set of the Hub, or python_docs")
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
class TrainingOptions:
    """The loss and the run.

    Trainer's arguments get the papers' values as defaults.
    """

    output_dir: str = field(
        default="outputs/docsplit", metadata={COMMON: True, "help": "Where everything is written."}
    )
    per_device_train_batch_size: int = field(
        default=36, metadata={COMMON: True, "help": "Documents a step, of each process."}
    )
    per_device_eval_batch_size: int | None = field(
        default=None, metadata={"help": "Documents a step of eval_loss. Default: as in training."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Steps between logs; below 1, a share of all steps."})
    learning_rate: float = field(default=5e-5, metadata={COMMON: True, "help": "Peak learning rate of AdamW."})
    bf16: bool | None = field(
        default=None,
        metadata={"help": "Encoder in bfloat16 (autocast). Default: where the hardware multiplies it natively."},
    )
    dataloader_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that make batches. Default: 4 with a GPU, 0 without."}
    )
    num_train_epochs: float = field(default=1.0, metadata={COMMON: True, "help": "Passes over the documents."})
    max_steps: int = field(
        default=-1, metadata={COMMON: True, "help": "Stop after N steps, whatever --num_train_epochs says."}
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW, except on biases and norms."})
    warmup_steps: float = field(default=0.05, metadata={"help": "Warm-up steps; below 1, a share of all steps."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide a loss that is NaN from the log."})
    dataloader_drop_last: bool = field(
        default=True, metadata={"help": "Drop a smaller last batch: it has fewer negatives."}
    )
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "There are none."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "The collator needs all columns."})

    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Continue from this checkpoint; without a value from the newest complete one.",
        },
    )
    push_to_hub: bool = field(default=False, metadata={COMMON: True, "help": "Upload the release, with its card."})

    contrastive_weight: float | None = field(
        default=None,
        metadata={
            "help": "Weight of the contrastive loss; 0: masked LM alone. Default: the checkpoint's, else 1; give it "
            "where the checkpoint's is 0."
        },
    )
    mlm_weight: float | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Weight of the masked-LM loss; 0: no such loss. Default: the checkpoint's, else 0.1.",
        },
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={"help": "Most tokens of a forward pass, with padding: speed and memory. Default: 1024 (GPU 4096)."},
    )
    cache_gradients: bool = field(
        default=False,
        metadata={COMMON: True, "help": "Keep one micro-batch's activations only: less memory, 1.4 times the time."},
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
        default=False,
        metadata={COMMON: True, "help": "Start anew where an earlier run left checkpoints, and remove them."},
    )
