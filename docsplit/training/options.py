"""The options of pretraining, with the papers' values as defaults. Nothing heavy is imported: `--help` reads this."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from docsplit.data.segmentation import DEFAULT_SPLITTER
from docsplit.data.views import QUERY_DOCUMENT, VIEWS
from docsplit.data.words import ENGLISH, LANGUAGES
from docsplit.modeling.pooling import PoolingMode
from docsplit.runtime.bounds import Bound, Count, Length, Positive, Weight, Whole, option
from docsplit.runtime.command import command_name
from docsplit.runtime.files import refuse_missing_path
from docsplit.runtime.options import check_choices, first_lines

DEFAULT_VIEW = "docsplit"
DEFAULT_PASSAGE_WORDS = 100
KINDS_OF_NEGATIVES = ("random", "bm25", "self")


@dataclass
class ModelArguments:
    """The encoder and its embedding."""

    model_name_or_path: str | None = option(
        None,
        "Encoder to start from: Hub name or folder of a masked language model or a SentenceTransformer. Default: "
        "none, a random start.",
        common=True,
        decides="process",
    )
    model_type: str = option(
        "bert",
        "Architecture of a random start, such as bert or modernbert. graph_document is a graph over passages: "
        "--model_name_or_path names its passage encoder, or a checkpoint of this kind; without it the passage "
        "encoder is a random BERT.",
        common=True,
    )
    config_overrides: str | None = option(
        None,
        "Sizes of a random start, as 'hidden_size=128,num_hidden_layers=2'. With --model_type graph_document it sets "
        "options of the graph, whatever the start: 'graph_kind=section,graph_layers=2,graph_hidden_size=512'.",
    )
    tokenizer_name: str | None = option(
        None,
        "Tokenizer: Hub name or folder. Default: that of the start; for a random start one is trained on the corpus.",
        decides="process",
    )
    lexical_start: bool = option(
        False,
        "Give a random start token embeddings made of the corpus (docs/recipes.md).",
        common=True,
    )
    vocab_size: Annotated[int, Bound(100)] = option(30522, "Vocabulary size of a tokenizer that is trained here.")
    pooling: PoolingMode | None = option(
        None,
        "How token vectors become one embedding: cls (the first token's), mean, max, lasttoken, weightedmean. "
        "Default: the checkpoint's, else cls (decoders: lasttoken). With weightedmean, later tokens weigh more.",
        common=True,
    )
    max_seq_length: Length | None = option(
        None,
        "Tokens read of each text, special ones included; the rest is cut off. Default: the start's own; 512 of a "
        "random one.",
        common=True,
    )
    new_mlm_head: bool = option(False, "Add a random masked-LM head to a checkpoint without one, and train it.")
    attn_implementation: str | None = option(
        None,
        "How attention is computed: sdpa, flash_attention_2, eager or another name of transformers. A Longformer "
        "computes it in tiles, unless this is eager. Default: transformers' choice.",
        decides="session",
    )
    lora_r: Whole = option(0, "Rank of LoRA updates, trained in place of all weights; 0: none.", common=True)

    def __post_init__(self) -> None:
        if self.lora_r and self.model_name_or_path is None:
            raise ValueError("--lora_r adapts a pretrained encoder: give --model_name_or_path.")
        if self.lexical_start and self.model_name_or_path is not None:
            raise ValueError("--lexical_start is for a random start: leave out one of the two.")
        from docsplit.modeling.families.table import family_named

        is_built = family_named(self.model_type).built_on is not None
        if self.config_overrides is not None and self.model_name_or_path is not None and not is_built:
            raise ValueError("--config_overrides is for a random start, or for --model_type graph_document.")


@dataclass
class DataArguments:
    """The documents and their views."""

    corpus: str = option(
        "python_docs",
        "Documents to train on: a file or folder (json, jsonl, csv, parquet, txt, md, html, pdf, docx ..., also "
        "mixed), a Hub data set NAME or NAME:CONFIGURATION, or python_docs, the docstrings of the installed "
        "packages. A .txt file has a document in each line; in a folder, it is one document.",
        common=True,
        decides="process",
    )
    text_column: str = option(
        "text",
        "Column of the documents, which are strings or lists of paragraphs; a corpus without it may have `sections`, "
        "lists of {heading, text}.",
        common=True,
    )
    encoding: str | None = option(None, "Encoding of local text files (default: UTF-8, or what is detected).")
    sentence_splitter: str = option(
        DEFAULT_SPLITTER,
        "How documents are split into sentences: rules (of this project), sentencizer (spaCy's), or the name of an "
        "installed spaCy pipeline.",
    )
    view: str | None = option(
        None,
        lambda: (
            f"The two texts (views) of each document. {first_lines(VIEWS)} {QUERY_DOCUMENT}: a query and a relevant "
            f"document of a collection, which --corpus names. Default: the checkpoint's, else {DEFAULT_VIEW}."
        ),
        common=True,
    )
    passage_words: Count | None = option(
        None,
        "Approximate words per passage (views passages, passage_vs_rest). A passage always ends at a "
        "sentence, and where a section does. Documents of one passage are dropped: lower this for short "
        f"documents. Default: the checkpoint's, else {DEFAULT_PASSAGE_WORDS}.",
    )
    view_max_length: Length | None = option(
        None,
        "Tokens of each view in training; the rest of a view is cut off. Less than --max_seq_length saves time and "
        "memory. Default: --max_seq_length.",
    )
    streaming: bool = option(
        False,
        "Read and tokenise documents during training, without a copy on the disk; needs --max_steps. Each pass over "
        "the documents draws other views.",
        common=True,
    )
    shuffle_buffer_size: Count = option(
        10_000, "Documents that each worker shuffles together in memory, with --streaming."
    )
    max_train_samples: Count | None = option(None, "Train on the first N documents only. Default: all.", common=True)
    max_eval_samples: Count = option(500, "Documents held out to measure eval_loss, unless --eval_strategy is no.")
    preprocessing_num_workers: Count | None = option(
        None, "Processes that tokenise the corpus. Default: one.", decides="process"
    )
    probe_corpus: str | None = option(
        None,
        "Labelled documents (columns text and label) to measure the encoder on, by classifying its embeddings: test "
        "documents before and after training, validation documents at each evaluation. Both are kept out of "
        "pretraining.",
        common=True,
        decides="process",
    )

    def __post_init__(self) -> None:
        check_choices("view", filter(None, [self.view]), (*VIEWS, QUERY_DOCUMENT))
        for corpus in filter(None, (self.corpus, self.probe_corpus)):
            refuse_missing_path(corpus, "a file or folder that is there, a data set of the Hub, or python_docs")


@dataclass
class QueryArguments:
    """The queries and negatives of --view query_document."""

    queries: Literal["title", "first_sentence", "first_line"] | None = option(
        None,
        "Make a query of each document: its title, first sentence or first line, which is taken out of it. Default: "
        "the queries of the collection.",
    )
    split: str | None = option(None, "Split of the queries. Default: train; with --fold, test or the only split.")
    folds: str = option("5", "Number of folds of queries, or a JSON file with lists of query ids; needs --fold.")
    fold: Whole | None = option(
        None,
        "Keep the queries of this fold (counted from 0) for "
        f"`{command_name('run_document_retrieval.py')} --fold`. The next fold gives eval_loss and the hybrid's "
        "weight; all others are trained on. Default: no folds.",
    )
    negatives: list[str] = option(
        ["in_batch"],
        "Documents that each query is pushed away from. in_batch: relevant documents of the batch's other queries. "
        "random adds random documents of the collection; bm25 and self add hard negatives, which BM25 or the encoder "
        "itself ranks high (the start ranks first, the trained encoder again after half the epochs). Two values, "
        "such as bm25 self: one for each half of the training.",
        choices=["in_batch", *KINDS_OF_NEGATIVES],
    )
    negatives_per_query: Count | None = option(
        None, "Negatives added to each query by random, bm25 or self. Default: 1."
    )
    language: str = option(
        ENGLISH, "Language of the stems by which bm25 finds negatives; none: whole words.", choices=LANGUAGES
    )
    negatives_depth: Count = option(100, "Draw hard negatives from the N best-ranked documents.")
    negatives_min_rank: Whole = option(0, "Skip the N best-ranked documents, which may be relevant, though unjudged.")
    negatives_margin: Annotated[float, Bound()] | None = option(
        None,
        "Skip hard negatives that score above s - |s| x this, where s is the score of the best relevant document: "
        "they may be relevant too. Default: no limit.",
    )

    def __post_init__(self) -> None:
        if "in_batch" in self.negatives and self.negatives != ["in_batch"]:
            raise ValueError("--negatives: in_batch negatives are always there: leave it out beside others.")
        if not 1 <= len(self.negatives) <= 2:
            raise ValueError(f"--negatives {' '.join(self.negatives)}: expected one kind, or one for each half.")
        if self.negatives_per_query is not None and not self.phases:
            raise ValueError(f"--negatives_per_query is for --negatives {', '.join(KINDS_OF_NEGATIVES)}: name one.")
        if self.negatives_min_rank >= self.negatives_depth:
            raise ValueError(f"--negatives_min_rank skips all of --negatives_depth {self.negatives_depth}: lower it.")

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
    """What transformers' TrainingArguments do not have, and the papers' values as defaults of what they have.

    Attributes:
        inherited_bounds: of numbers that transformers declares.
        inherited_decides: what options of transformers decide, by kind (`docsplit.runtime.bounds.DECIDES`).
    """

    inherited_bounds: ClassVar[dict[str, Bound]] = {
        **dict.fromkeys(("max_grad_norm", "neftune_noise_alpha", "eval_delay"), Bound(0)),
        **dict.fromkeys(("adam_epsilon", "save_steps", "eval_steps"), Bound(0, above=True)),
        **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), Bound(0, 1)),
        **dict.fromkeys(("gradient_accumulation_steps", "eval_accumulation_steps", "save_total_limit"), Bound(1)),
        **dict.fromkeys(("dataloader_prefetch_factor", "torch_empty_cache_steps"), Bound(1)),
        **dict.fromkeys(("ddp_bucket_cap_mb", "ddp_timeout"), Bound(1)),
        **dict.fromkeys(("seed", "data_seed"), Bound(0, 2**31 - 1)),
        "local_rank": Bound(0, special=-1),
    }
    inherited_decides: ClassVar[dict[str, tuple[str, ...]]] = {
        "release": ("hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision"),
        "session": (
            *("logging_strategy", "logging_first_step", "log_on_each_node", "include_num_input_tokens_seen"),
            *("report_to", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
            *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "save_on_each_node"),
            *("enable_jit_checkpoint", "restore_callback_states_from_checkpoint", "skip_memory_metrics", "debug"),
            *("use_cpu", "full_determinism", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
            *("activation_checkpointing", "activation_checkpointing_kwargs", "torch_empty_cache_steps"),
            *("gradient_checkpointing", "gradient_checkpointing_kwargs", "use_cache", "eval_accumulation_steps"),
            *("dataloader_pin_memory", "dataloader_prefetch_factor", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
            *("ddp_static_graph", "accelerator_config", "do_train", "do_eval", "do_predict"),
        ),
        "process": (
            *("run_name", "local_rank", "hub_model_id", "hub_token", "disable_tqdm"),
            *("log_level", "log_level_replica", "ddp_backend", "ddp_timeout"),
        ),
    }

    output_dir: str = option(
        "outputs/docsplit", "Folder of checkpoints, encoder, card and results.", common=True, decides="process"
    )
    per_device_train_batch_size: Count = option(
        36,
        "Documents per step in each process. The other documents of a step, of all processes, are the negatives: "
        "with more of them the task is harder.",
        common=True,
        decides="session",
    )
    per_device_eval_batch_size: Count | None = option(
        None,
        "Documents per step in each process for eval_loss. Default: as in training.",
        decides="session",
    )
    logging_steps: Positive = option(50, "Steps between two logs; below 1, a share of all steps.", decides="session")
    learning_rate: Weight = option(5e-5, "Peak learning rate of AdamW.", common=True)
    bf16: bool | None = option(
        None, "Compute the encoder in bfloat16 (autocast). Default: where the hardware multiplies it natively."
    )
    dataloader_num_workers: Whole | None = option(
        None,
        "Processes that prepare batches. Default: 4 with a GPU, 0 without.",
        decides="session",
    )
    num_train_epochs: Positive = option(1.0, "Passes over the documents.", common=True, decides="release")
    max_steps: Annotated[int, Bound(1, special=-1)] = option(
        -1,
        "Stop after N steps, whatever --num_train_epochs says.",
        common=True,
        decides="release",
    )
    weight_decay: Weight = option(0.01, "Weight decay of AdamW; biases and norms have none.")
    warmup_steps: Weight = option(0.05, "Steps of a rising learning rate; below 1, a share of all steps.")
    logging_nan_inf_filter: bool = option(
        False,
        "Leave NaN and infinite losses out of the log: each step then waits for the GPU.",
        decides="session",
    )
    dataloader_drop_last: bool = option(
        True, "Drop the last batch of an epoch where it is smaller: it has fewer negatives."
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Look for parameters without a gradient: there are none.", decides="session"
    )
    remove_unused_columns: bool = option(False, "Drop columns: batches need all of them.")

    resume_from_checkpoint: str | None = option(
        None,
        "Continue from this checkpoint; without a value, from the newest complete one in --output_dir.",
        common=True,
        decides="process",
    )
    push_to_hub: bool = option(
        False, "Upload the trained encoder, with its card, to the Hub at the end.", common=True, decides="release"
    )

    contrastive_weight: Weight | None = option(
        None,
        "Weight of the contrastive loss; 0: train by masked LM alone. Give it where the checkpoint's is 0. Default: "
        "the checkpoint's, else 1.",
    )
    mlm_weight: Weight | None = option(
        None,
        "Weight of the masked-LM loss, which is added to the contrastive one; 0: no masked LM. Default: the "
        "checkpoint's, else 0.1.",
        common=True,
    )
    micro_batch_tokens: Count | None = option(
        None,
        "Most tokens of one forward pass, padding included. It changes speed and memory, not the loss: lower it if "
        "memory runs out. Default: 1024; on a GPU 32768, or 8192 below 40 GB.",
        decides="session",
    )
    packed_sequences: str = option(
        "auto",
        "Put views one after another, do not pad them. auto: on NVIDIA GPUs in 16-bit precision, for encoders that "
        "can. There attention weights get no dropout; false keeps it. Default: auto.",
        choices=["auto", "true", "false"],
    )
    cache_gradients: bool = option(
        False,
        "Keep the activations of one micro-batch at a time: large batches fit into little memory, in 1.4 times the "
        "time.",
        common=True,
        decides="session",
    )
    early_stopping_patience: Count | None = option(
        None, "Stop after N evaluations without a better --metric_for_best_model; needs --load_best_model_at_end."
    )
    keep_better_start: bool = option(
        True,
        "Release the start, unchanged, if training did not beat it on the validation documents of --probe_corpus. "
        "Off: release the trained weights in any case.",
        decides="release",
    )
    overwrite_output_dir: bool = option(
        False,
        "Start anew where an earlier run left checkpoints, and remove them.",
        common=True,
        decides="process",
    )
