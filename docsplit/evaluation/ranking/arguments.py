"""The options of ranking. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, field

from docsplit.data.sets.arguments import check_folds
from docsplit.embedding.arguments import ComparisonArguments
from docsplit.runtime.arguments import check_choices
from docsplit.runtime.bounds import check_bounds
from docsplit.runtime.help import COMMON

BM25 = "bm25"
RANKING_METHODS = ("dense", BM25, "hybrid", "rrf")
BM25_PARAMETERS = {BM25: {"k1": 1.5, "b": 0.75}, "bm25 k1=0.9 b=0.4": {"k1": 0.9, "b": 0.4}}  # bm25s's and Anserini's


@dataclass
class RetrievalArguments(ComparisonArguments):
    """How documents are ranked, and which queries are measured."""

    output_dir: str = field(
        default="outputs/retrieval", metadata={COMMON: True, "help": "Folder of the results, tables and plots."}
    )
    methods: list[str] = field(
        default_factory=lambda: [*RANKING_METHODS],
        metadata={
            COMMON: True,
            "help": "How documents are ranked: dense (by an encoder), bm25 (by words), hybrid (weighted sum of both "
            "scores) and rrf (reciprocal rank fusion of both). With bm25 as the only encoder, only bm25 runs.",
        },
    )
    query_prompt: str | None = field(
        default=None,
        metadata={
            "help": "Text to put before each query; --prompt goes before each document. Default: the encoder's own."
        },
    )
    folds: str = field(
        default="5",
        metadata={
            "help": "Number of folds of queries, or a JSON file with lists of query ids. The hybrid's weight for a "
            "fold is chosen on the others."
        },
    )
    fold: int | None = field(
        default=None,
        metadata={
            COMMON: True,
            "help": "Measure on the queries of this fold only (counted from 0), which the encoder was trained "
            "without. The hybrid's weight is chosen on the next fold. Default: all folds.",
        },
    )
    selection_split: str | None = field(
        default=None,
        metadata={
            "help": "Choose the hybrid's weight on queries of this split, at most 1,000. Default: on the other folds."
        },
    )

    def __post_init__(self) -> None:
        check_choices("methods", self.methods, RANKING_METHODS)
        check_bounds(self)
        check_folds(self.folds, self.fold)
        if self.fold is not None and self.selection_split is not None:
            raise ValueError("--fold and --selection_split both say which queries choose the weight: leave one out.")
