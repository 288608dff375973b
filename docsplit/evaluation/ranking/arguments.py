"""The options of ranking. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, field

from docsplit.data.sets.arguments import check_folds
from docsplit.embedding.arguments import ComparisonArguments
from docsplit.runtime.options import COMMON

BM25 = "bm25"
RANKING_METHODS = ("dense", BM25, "hybrid", "rrf")
HYBRID_MEASURES = ["ndcg_at_10", "ndcg_at_20", "precision_at_5", "precision_at_10", "precision_at_20", "mrr_at_10",
                   "mrr_at_100"]  # fmt: skip
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
            "choices": RANKING_METHODS,
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

    hybrid_measure: str = field(
        default="ndcg_at_10",
        metadata={
            "choices": HYBRID_MEASURES,
            "help": "Measure that the hybrid's weight is chosen by: that of the paper for the collection, such as "
            "ndcg_at_20 for Robust04 and mrr_at_100 for MS MARCO.",
        },
    )
    encoders_by_fold: bool = field(
        default=False,
        metadata={
            "help": "NAME=PATH,PATH,... names an encoder for each fold, in their order, trained without that fold's "
            "queries. Each is measured on these alone; the row is of all queries."
        },
    )

    def __post_init__(self) -> None:
        check_folds(self.folds, self.fold)
        if self.fold is not None and self.selection_split is not None:
            raise ValueError("--fold and --selection_split both say which queries choose the weight: leave one out.")
        if self.encoders_by_fold and (self.fold is not None or self.selection_split is not None):
            raise ValueError(
                "--encoders_by_fold measures all folds, each chosen by the next: leave out --fold and "
                "--selection_split."
            )
        if self.encoders_by_fold and self.push_results:
            raise ValueError(
                "--push_results adds to an encoder's card, and --encoders_by_fold gives one row of "
                "several encoders: leave one out."
            )
