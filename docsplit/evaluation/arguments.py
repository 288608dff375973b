"""The options of classification and of links. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, field, replace

from docsplit.embedding.arguments import ComparisonArguments
from docsplit.evaluation.heads.presets import PRESETS, FineTuning
from docsplit.runtime.options import COMMON, check_choices

LINK_HEADS = ("mlp", "cosine")
LINK_BASELINES = ("bm25", "popularity")  # those that need no encoder


@dataclass
class HeadArguments(ComparisonArguments):
    """How often heads are trained."""

    num_seeds: int = field(
        default=3, metadata={COMMON: True, "help": "Trainings of each head on all labels, each with another seed."}
    )


@dataclass
class ProbeArguments(HeadArguments):
    """Which heads are trained on the embeddings, and how."""

    output_dir: str = field(
        default="outputs/probe", metadata={COMMON: True, "help": "Folder of the results, tables and plots."}
    )
    heads: list[str] = field(
        default_factory=lambda: ["mlp", "linear", "knn"],
        metadata={
            COMMON: True,
            "help": "Heads to train: mlp (as in the paper), linear (logistic regression) and knn, on frozen "
            "embeddings; or with the encoder, finetune (on all labels: the ceiling) and setfit (on the few-shot "
            "draws). tfidf takes linear and knn.",
        },
    )
    probe_preset: str = field(
        default="docsplit",
        metadata={
            "choices": list(PRESETS),
            "help": "Paper whose mlp, linear and finetune are trained. docsplit: linear is logistic regression. "
            "bregman: mlp with tanh and AdamW, linear trained by gradient. graph, graph_arxiv and "
            "graph_hyperpartisan: heads as docsplit's, finetune for 20 epochs or 15.",
        },
    )
    probe_epochs: int | None = field(
        default=None,
        metadata={
            "help": "Most passes of mlp, and of bregman's linear, over all labels; a validation part stops them "
            "earlier. Default: the preset's, 50 (bregman 30)."
        },
    )
    shots: list[int] = field(
        default_factory=lambda: [5],
        metadata={COMMON: True, "help": "Labels per class, one row of results for each number; 0: all labels only."},
    )
    num_draws: int = field(
        default=10, metadata={COMMON: True, "help": "Random draws of those labels, the same for every encoder."}
    )
    finetune_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate of finetune (AdamW). Default: the preset's, 2e-5 (bregman 3e-5, graph 5e-5)."
        },
    )
    finetune_epochs: float | None = field(
        default=None,
        metadata={"help": "Passes of finetune over the training documents. Default: the preset's, 3 (graph 20)."},
    )
    finetune_batch_size: int | None = field(
        default=None,
        metadata={"help": "Documents per step of finetune, over all processes. Default: the preset's, 16 (graph 32)."},
    )

    def __post_init__(self) -> None:
        from docsplit.evaluation.heads.table import HEADS, TUNING_HEADS

        check_choices("heads", self.heads, (*HEADS, *TUNING_HEADS))
        self.shots = sorted({shots for shots in self.shots if shots != 0})
        by_gradient = {"mlp", "linear"} if PRESETS[self.probe_preset].linear else {"mlp"}
        if self.probe_epochs is not None and not by_gradient & set(self.heads):
            raise ValueError(
                f"--probe_epochs is for heads that are trained by gradient: add {' or '.join(sorted(by_gradient))} to "
                "--heads."
            )
        if "setfit" in self.heads and not self.shots:
            raise ValueError("The head setfit is for few-shot draws: give --shots.")

    @property
    def finetuning(self) -> FineTuning:
        """The preset's options of `finetune`, and in their place those that are given."""
        preset = PRESETS[self.probe_preset].finetuning
        return replace(
            preset,
            learning_rate=preset.learning_rate if self.finetune_learning_rate is None else self.finetune_learning_rate,
            num_epochs=preset.num_epochs if self.finetune_epochs is None else self.finetune_epochs,
            batch_size=preset.batch_size if self.finetune_batch_size is None else self.finetune_batch_size,
        )


@dataclass
class LinkArguments(HeadArguments):
    """Which heads are compared on pairs of papers."""

    output_dir: str = field(
        default="outputs/retrieval", metadata={COMMON: True, "help": "Folder of the results, tables and plots."}
    )
    heads: list[str] = field(
        default_factory=lambda: [*LINK_HEADS, *LINK_BASELINES],
        metadata={
            COMMON: True,
            "choices": [*LINK_HEADS, *LINK_BASELINES],
            "help": "How a pair is judged: mlp (trained on [a; b], as in the paper) or cosine (a threshold chosen on "
            "the training pairs); without an encoder bm25 (by words) or popularity (by ids and numbers of links "
            "alone).",
        },
    )
    probe_preset: str = field(
        default="docsplit",
        metadata={
            "choices": list(PRESETS),
            "help": "Paper whose mlp is trained: docsplit, or bregman (tanh, AdamW).",
        },
    )
