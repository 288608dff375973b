"""The options of pretraining, with the papers' values as defaults. Nothing heavy is imported: `--help` reads this."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from docsplit.data.segmentation import DEFAULT_SPLITTER
from docsplit.data.views import OF_PASSAGES, QUERY_DOCUMENT, VIEWS
from docsplit.modeling.pooling import Pooling
from docsplit.runtime.command import command_name
from docsplit.runtime.files import refuse_missing_path
from docsplit.runtime.options import COMMON, check_choices, first_lines

DEFAULT_VIEW = "docsplit"
DEFAULT_PASSAGE_WORDS = 100
KINDS_OF_NEGATIVES = ("random", "bm25", "self")


@dataclass
class ModelArguments:
    """The encoder and its embedding."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Encoder to start from: Hub name or folder of a masked language model or a SentenceTransformer. "
            "Default: none, a random start.",
        },
    )
    model_type: str = field(
        default="bert",
        metadata={
            COMMON: True,
            "help": "Architecture of a random start, such as bert or modernbert. graph_document is a graph over "
            "passages: --model_name_or_path names its passage encoder, or a checkpoint of this kind; without it the "
            "passage encoder is a random BERT.",
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "Sizes of a random start, as 'hidden_size=128,num_hidden_layers=2'. With --model_type "
            "graph_document it sets options of the graph, whatever the start: "
            "'graph_kind=section,graph_layers=2,graph_hidden_size=512'."
        },
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={
            "help": "Tokenizer: Hub name or folder. Default: that of the start; for a random start one is trained on "
            "the corpus."
        },
    )
    vocab_size: int = field(default=30522, metadata={"help": "Vocabulary size of a tokenizer that is trained here."})
    pooling: Pooling | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "How token vectors become one embedding: cls (the first token's), mean, max, lasttoken, "
            "weightedmean. Default: the checkpoint's, else cls (decoders: lasttoken). With weightedmean, later tokens "
            "weigh more.",
        },
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Tokens read of each text, special ones included; the rest is cut off. Default: the "
            "checkpoint's, else 512.",
        },
    )
    new_mlm_head: bool = field(
        default=False, metadata={"help": "Add a random masked-LM head to a checkpoint without one, and train it."}
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "How attention is computed: sdpa, flash_attention_2, eager or another name of transformers. A "
            "Longformer computes it in tiles, unless this is eager. Default: transformers' choice."
        },
    )
    lora_r: int = field(
        default=0,
        metadata={
            COMMON: True,
            "help": "Rank of LoRA updates, trained in place of all weights; 0: train all weights.",
        },
    )

    def __post_init__(self) -> None:
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
            "help": "Documents to train on: a file or folder (json, jsonl, csv, parquet, txt, md, html, pdf, docx "
            "..., also mixed), a Hub data set NAME or NAME:CONFIGURATION, or python_docs, the docstrings of the "
            "installed packages. A .txt file has a document in each line; in a folder, it is one document.",
        },
    )
    text_column: str = field(
        default="text",
        metadata={
            COMMON: True,
            "help": "Column of the documents, which are strings or lists of paragraphs; a corpus without it may have "
            "`sections`, lists of {heading, text}.",
        },
    )
    encoding: str | None = field(
        default=None, metadata={"help": "Encoding of local text files (default: UTF-8, or what is detected)."}
    )
    sentence_splitter: str = field(
        default=DEFAULT_SPLITTER,
        metadata={
            "help": "How documents are split into sentences: rules (of this project), sentencizer (spaCy's), or the "
            "name of an installed spaCy pipeline."
        },
    )
    view: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": lambda: (
                f"The two texts (views) of each document. {first_lines(VIEWS)} {QUERY_DOCUMENT}: a "
                "query and a relevant document of a collection, which --corpus names. Default: the checkpoint's, else "
                f"{DEFAULT_VIEW}."
            ),
        },
    )
    passage_words: int | None = field(
        default=None,
        metadata={
            "help": "Approximate words per passage (views passages, passage_vs_rest). A passage always ends at a "
            "sentence, and where a section does. Documents of one passage are dropped: lower this for short "
            f"documents. Default: the checkpoint's, else {DEFAULT_PASSAGE_WORDS}."
        },
    )
    view_max_length: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of each view in training; the rest of a view is cut off. Less than --max_seq_length "
            "saves time and memory. Default: --max_seq_length."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            COMMON: True,
            "help": "Read and tokenise documents during training, without a copy on the disk; needs --max_steps. "
            "Each pass over the documents draws other views.",
        },
    )
    shuffle_buffer_size: int = field(
        default=10_000, metadata={"help": "Documents that each worker shuffles together in memory, with --streaming."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={COMMON: True, "help": "Train on the first N documents only. Default: all."}
    )
    max_eval_samples: int = field(
        default=500, metadata={"help": "Documents held out to measure eval_loss, unless --eval_strategy is no."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenise the corpus. Default: one."}
    )
    probe_corpus: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Labelled documents (columns text and label) to measure the encoder on, by classifying its "
            "embeddings: test documents before and after training, validation documents at each evaluation. Both are "
            "kept out of pretraining.",
        },
    )

    def __post_init__(self) -> None:
        check_choices("view", filter(None, [self.view]), (*VIEWS, QUERY_DOCUMENT))
        for corpus in filter(None, (self.corpus, self.probe_corpus)):
            refuse_missing_path(corpus, "a file or folder that is there, a data set of the Hub, or python_docs")

    @property
    def words_of_passages(self) -> int | None:
        """`passage_words`; None for a view that needs no passages."""
        return self.passage_words if self.view in OF_PASSAGES else None


@dataclass
class QueryArguments:
    """The queries and negatives of --view query_document."""

    queries: Literal["title", "first_sentence", "first_line"] | None = field(
        default=None,
        metadata={
            "help": "Make a query of each document: its title, first sentence or first line, which is taken out of "
            "it. Default: the queries of the collection."
        },
    )
    split: str | None = field(
        default=None, metadata={"help": "Split of the queries. Default: train; with --fold, test or the only split."}
    )
    folds: str = field(
        default="5",
        metadata={"help": "Number of folds of queries, or a JSON file with lists of query ids; needs --fold."},
    )
    fold: int | None = field(
        default=None,
        metadata={
            "help": "Keep the queries of this fold (counted from 0) for "
            f"`{command_name('run_document_retrieval.py')} --fold`. The next fold gives eval_loss and the hybrid's "
            "weight; all others are trained on. Default: no folds."
        },
    )
    negatives: list[str] = field(
        default_factory=lambda: ["in_batch"],
        metadata={
            "choices": ["in_batch", *KINDS_OF_NEGATIVES],
            "help": "Documents that each query is pushed away from. in_batch: relevant documents of the batch's "
            "other queries. random adds random documents of the collection; bm25 and self add hard negatives, which "
            "BM25 or the encoder itself ranks high (the start ranks first, the trained encoder again after half the "
            "epochs). Two values, such as bm25 self: one for each half of the training.",
        },
    )
    negatives_per_query: int | None = field(
        default=None, metadata={"help": "Negatives added to each query by random, bm25 or self. Default: 1."}
    )
    negatives_depth: int = field(
        default=100, metadata={"help": "Draw hard negatives from the N best-ranked documents."}
    )
    negatives_min_rank: int = field(
        default=0, metadata={"help": "Skip the N best-ranked documents, which may be relevant, though unjudged."}
    )
    negatives_margin: float | None = field(
        default=None,
        metadata={
            "help": "Skip hard negatives that score above s - |s| x this, where s is the score of the best relevant "
            "document: they may be relevant too. Default: no limit."
        },
    )

    def __post_init__(self) -> None:
        if "in_batch" in self.negatives and self.negatives != ["in_batch"]:
            raise ValueError(
                f"--negatives {' '.join(self.negatives)}: in_batch negatives are always there: leave it out."
            )
        if not 1 <= len(self.negatives) <= 2:
            raise ValueError(f"--negatives {' '.join(self.negatives)}: expected one kind, or one for each half.")
        if self.negatives_per_query is not None and not self.phases:
            raise ValueError(
                f"--negatives_per_query is for --negatives {', '.join(KINDS_OF_NEGATIVES)}: name one, or leave it out."
            )
        if self.negatives_min_rank >= self.negatives_depth:
            raise ValueError(
                f"--negatives_min_rank {self.negatives_min_rank} skips all of --negatives_depth "
                f"{self.negatives_depth}: lower it, or raise the depth."
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
    """What transformers' TrainingArguments do not have, and the papers' values as defaults of what they have."""

    output_dir: str = field(
        default="outputs/docsplit",
        metadata={COMMON: True, "help": "Folder of checkpoints, encoder, card and results."},
    )
    per_device_train_batch_size: int = field(
        default=36,
        metadata={
            COMMON: True,
            "help": "Documents per step in each process. The other documents of a step, of all processes, are the "
            "negatives: with more of them the task is harder.",
        },
    )
    per_device_eval_batch_size: int | None = field(
        default=None, metadata={"help": "Documents per step in each process for eval_loss. Default: as in training."}
    )
    logging_steps: float = field(
        default=50, metadata={"help": "Steps between two logs; below 1, a share of all steps."}
    )
    learning_rate: float = field(default=5e-5, metadata={COMMON: True, "help": "Peak learning rate of AdamW."})
    bf16: bool | None = field(
        default=None,
        metadata={
            "help": "Compute the encoder in bfloat16 (autocast). Default: where the hardware multiplies it natively."
        },
    )
    dataloader_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that prepare batches. Default: 4 with a GPU, 0 without."}
    )
    num_train_epochs: float = field(default=1.0, metadata={COMMON: True, "help": "Passes over the documents."})
    max_steps: int = field(
        default=-1, metadata={COMMON: True, "help": "Stop after N steps, whatever --num_train_epochs says."}
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW; biases and norms have none."})
    warmup_steps: float = field(
        default=0.05, metadata={"help": "Steps of a rising learning rate; below 1, a share of all steps."}
    )
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Leave NaN and infinite losses out of the log: each step then waits for the GPU."},
    )
    dataloader_drop_last: bool = field(
        default=True, metadata={"help": "Drop the last batch of an epoch where it is smaller: it has fewer negatives."}
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Look for parameters without a gradient: there are none."}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "Drop columns: batches need all of them."})

    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Continue from this checkpoint; without a value, from the newest complete one in --output_dir.",
        },
    )
    push_to_hub: bool = field(
        default=False, metadata={COMMON: True, "help": "Upload the trained encoder, with its card, to the Hub."}
    )

    contrastive_weight: float | None = field(
        default=None,
        metadata={
            "help": "Weight of the contrastive loss; 0: train by masked LM alone. Give it where the checkpoint's is "
            "0. Default: the checkpoint's, else 1."
        },
    )
    mlm_weight: float | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Weight of the masked-LM loss, which is added to the contrastive one; 0: no masked LM. Default: "
            "the checkpoint's, else 0.1.",
        },
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of one forward pass, padding included. It changes speed and memory, not the loss: "
            "lower it if memory runs out. Default: 1024; on a GPU 32768, or 8192 below 40 GB."
        },
    )
    packed_sequences: str = field(
        default="auto",
        metadata={
            "choices": ["auto", "true", "false"],
            "help": "Put views one after another, do not pad them. auto: on NVIDIA GPUs in 16-bit precision, "
            "for encoders that can. There attention weights get no dropout; false keeps it. Default: auto.",
        },
    )
    cache_gradients: bool = field(
        default=False,
        metadata={
            COMMON: True,
            "help": "Keep the activations of one micro-batch at a time: large batches fit into little memory, in 1.4 "
            "times the time.",
        },
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after N evaluations without a better --metric_for_best_model; needs "
            "--load_best_model_at_end."
        },
    )
    keep_better_start: bool = field(
        default=True,
        metadata={
            "help": "Release the start, unchanged, if training did not beat it on the validation documents of "
            "--probe_corpus. Off: release the trained weights in any case."
        },
    )
    overwrite_output_dir: bool = field(
        default=False,
        metadata={COMMON: True, "help": "Start anew where an earlier run left checkpoints, and remove them."},
    )
