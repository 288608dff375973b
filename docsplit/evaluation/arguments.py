"""The options of classification and of links. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, field, replace

from docsplit.embedding.arguments import ComparisonArguments
from docsplit.evaluation.heads.presets import PRESETS, FineTuning
from docsplit.runtime.arguments import check_choices
from docsplit.runtime.help import COMMON

LINK_HEADS = ("mlp", "cosine")
LINK_BASELINES = ("bm25", "popularity")  # those that need no encoder


@dataclass
class ProbeArguments(ComparisonArguments):
    """Which heads are trained on the embeddings, and how."""

    output_dir: str = field(default="outputs/probe", metadata={COMMON: True, "help": "Where everything is written."})
    heads: list[str] = field(
        default_factory=lambda: ["mlp", "linear", "knn"],
        metadata={
            COMMON: True,
            "help": "Heads on frozen embeddings: mlp (the paper's), linear (logistic regression), knn. Heads that "
            "train the encoder: finetune on the full data (the ceiling), setfit on the few-shot draws. tfidf has "
            "linear and knn.",
        },
    )
    probe_preset: str = field(
        default="docsplit",
        metadata={
            "help": "The paper whose mlp, linear and finetune are trained: docsplit (linear: logistic regression), "
            "bregman (tanh, AdamW; linear: one layer by gradient), graph, graph_arxiv or graph_hyperpartisan "
            "(docsplit's heads; finetune of 20 epochs or 15)."
        },
    )
    shots: list[int] = field(
        default_factory=lambda: [5],
        metadata={COMMON: True, "help": "Numbers of labels a class, each a row of results. 0: full data only."},
    )
    num_draws: int = field(
        default=10, metadata={COMMON: True, "help": "Number of few-shot draws, the same for every encoder."}
    )
    finetune_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Peak learning rate of AdamW. Default: the preset's, 2e-5 (bregman 3e-5, graph 5e-5)."},
    )
    finetune_epochs: float | None = field(
        default=None, metadata={"help": "Passes over the training documents. Default: the preset's, 3 (graph 20)."}
    )
    finetune_batch_size: int | None = field(
        default=None, metadata={"help": "Documents a step, over all processes. Default: the preset's, 16 (graph 32)."}
    )

    def __post_init__(self) -> None:
        from docsplit.evaluation.heads.table import HEADS, TUNING_HEADS

        super().__post_init__()
        check_choices("heads", self.heads, (*HEADS, *TUNING_HEADS))
        check_choices("probe_preset", [self.probe_preset], PRESETS)
        self.shots = sorted({shots for shots in self.shots if shots != 0})
        for name, values in {"shots": self.shots, "num_draws": [self.num_draws]}.items():
            if any(value < 1 for value in values):
                raise ValueError(f"--{name} is {values}: expected 1 or more.")
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
class LinkArguments(ComparisonArguments):
    """Which heads are compared on pairs of papers."""

    output_dir: str = field(
        default="outputs/retrieval", metadata={COMMON: True, "help": "Where everything is written."}
    )
    heads: list[str] = field(
        default_factory=lambda: [*LINK_HEADS, *LINK_BASELINES],
        metadata={
            COMMON: True,
            "help": "mlp (the paper's, on [a; b]), cosine (untrained, threshold from the training pairs); and without "
            "encoder bm25 and popularity (ids and degrees only).",
        },
    )
    probe_preset: str = field(
        default="docsplit", metadata={"help": "Which paper's probe mlp is: docsplit, or bregman (tanh, AdamW)."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("heads", self.heads, (*LINK_HEADS, *LINK_BASELINES))
        check_choices("probe_preset", [self.probe_preset], PRESETS)
