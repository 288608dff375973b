"""The options of the evaluations. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from docsplit.data.fusion import FUSIONS, WEIGHT
from docsplit.data.sets.set_arguments import check_folds
from docsplit.data.words import ENGLISH, LANGUAGES
from docsplit.embedding.encoder_arguments import ComparisonArguments
from docsplit.evaluation.heads.presets import PRESETS, FineTuning
from docsplit.runtime.bounds import Bound, Count, Positive, Share, Whole, option
from docsplit.runtime.options import check_choices

LINK_HEADS = ("mlp", "cosine")
LINK_BASELINES = ("bm25", "popularity")  # those that need no encoder
BM25 = "bm25"
RANKING_METHODS = ("dense", BM25, "hybrid")
HYBRID_MEASURES = ["ndcg_at_10", "ndcg_at_20", "precision_at_5", "precision_at_10", "precision_at_20", "mrr_at_10",
                   "mrr_at_100"]  # fmt: skip
BM25_PARAMETERS = {BM25: {"k1": 1.5, "b": 0.75}, "bm25 k1=0.9 b=0.4": {"k1": 0.9, "b": 0.4}}  # bm25s's and Anserini's
ANALYSES = ("redundancy", "similarity", "attention", "clustering", "map", "geometry")
GRAPH_ATTENTION = "graph_attention"  # another, for graph document models alone
NEED_A_TAGGER = ("redundancy", "attention")
READ_ALL = {"clustering", "map", "geometry"}  # analyses of all test documents, and not of the sample alone
MAP_METHODS = ("tsne", "umap", "pca")


@dataclass
class HeadArguments(ComparisonArguments):
    """How often heads are trained."""

    num_seeds: Count = option(3, "Trainings of each head on all labels, each with another seed.", common=True)


@dataclass
class ProbeArguments(HeadArguments):
    """Which heads are trained on the embeddings, and how."""

    output_dir: str = option("outputs/probe", "Folder of the results, tables and plots.", common=True)
    heads: list[str] = option(
        ["mlp", "linear", "knn"],
        "Heads to train: mlp (as in the paper), linear (logistic regression) and knn, on frozen embeddings; or with "
        "the encoder, finetune (on all labels: the ceiling) and setfit (on the few-shot draws). tfidf takes linear "
        "and knn.",
        common=True,
    )
    probe_preset: str = option(
        "docsplit",
        "Paper whose mlp, linear and finetune are trained. docsplit: linear is logistic regression. bregman: mlp with "
        "tanh and AdamW, linear trained by gradient. graph, graph_arxiv and graph_hyperpartisan: heads as docsplit's, "
        "finetune for 20 epochs or 15.",
        choices=list(PRESETS),
    )
    probe_epochs: Count | None = option(
        None,
        "Most passes of mlp, and of bregman's linear, over all labels; a validation part stops them earlier. Default: "
        "the preset's, 50 (bregman 30).",
    )
    shots: list[Whole] = option(
        [5], "Labels per class, one row of results for each number; 0: all labels only.", common=True
    )
    num_draws: Count = option(10, "Random draws of those labels, the same for every encoder.", common=True)
    finetune_learning_rate: Positive | None = option(
        None, "Peak learning rate of finetune (AdamW). Default: the preset's, 2e-5 (bregman 3e-5, graph 5e-5)."
    )
    finetune_epochs: Positive | None = option(
        None, "Passes of finetune over the training documents. Default: the preset's, 3 (graph 20)."
    )
    finetune_batch_size: Count | None = option(
        None, "Documents per step of finetune, over all processes. Default: the preset's, 16 (graph 32)."
    )

    def __post_init__(self) -> None:
        from docsplit.evaluation.heads.table import HEADS, TUNING_HEADS

        check_choices("heads", self.heads, (*HEADS, *TUNING_HEADS))
        self.shots = sorted({shots for shots in self.shots if shots != 0})
        by_gradient = {"mlp", "linear"} if PRESETS[self.probe_preset].linear else {"mlp"}
        if self.probe_epochs is not None and not by_gradient & set(self.heads):
            raise ValueError(f"--probe_epochs is for heads trained by gradient: {' or '.join(sorted(by_gradient))}.")
        if "setfit" in self.heads and not self.shots:
            raise ValueError("The head setfit is for few-shot draws: give --shots.")

    @property
    def finetuning(self) -> FineTuning:
        """The preset's options of `finetune`, and in their place those that are given."""
        given = {"learning_rate": self.finetune_learning_rate, "num_epochs": self.finetune_epochs,
                 "batch_size": self.finetune_batch_size}  # fmt: skip
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(PRESETS[self.probe_preset].finetuning, **changes)


@dataclass
class LinkArguments(HeadArguments):
    """Which heads are compared on pairs of papers."""

    output_dir: str = option("outputs/retrieval", "Folder of the results, tables and plots.", common=True)
    language: str = option(ENGLISH, "Language of the stems that bm25 counts; none: whole words.", choices=LANGUAGES)
    heads: list[str] = option(
        [*LINK_HEADS, *LINK_BASELINES],
        "How a pair is judged: mlp (trained on [a; b], as in the paper) or cosine (a threshold chosen on the training "
        "pairs); without an encoder bm25 (by words) or popularity (by ids and numbers of links alone).",
        common=True,
        choices=[*LINK_HEADS, *LINK_BASELINES],
    )
    probe_preset: str = option(
        "docsplit", "Paper whose mlp is trained: docsplit, or bregman (tanh, AdamW).", choices=list(PRESETS)
    )


@dataclass
class RetrievalArguments(ComparisonArguments):
    """How documents are ranked, and which queries are measured."""

    output_dir: str = option("outputs/retrieval", "Folder of the results, tables and plots.", common=True)
    methods: list[str] = option(
        [*RANKING_METHODS],
        "How documents are ranked: dense (by an encoder), bm25 (by words) and hybrid (by both). With bm25 as the only "
        "encoder, only bm25 runs.",
        common=True,
        choices=RANKING_METHODS,
    )
    fusion: list[str] = option(
        ["sum"],
        "How a hybrid joins both, a row each: sum (of both scores, scaled) or rrf (reciprocal ranks).",
        common=True,
        choices=FUSIONS,
    )
    weight: Share = option(WEIGHT, "Weight of the encoder in the sum; the rest is that of BM25.", common=True)
    choose_weight: bool = option(
        False,
        "Choose the weight of the sum on queries of the other folds (--folds), or of the next one (--fold).",
    )
    language: str = option(ENGLISH, "Language of the stems that BM25 counts; none: whole words.", choices=LANGUAGES)
    folds: str = option(
        "5",
        "Number of folds of queries, or a JSON file with lists of query ids. With --choose_weight, the weight for a "
        "fold is chosen on the others.",
    )
    fold: Whole | None = option(
        None,
        "Measure on the queries of this fold only (counted from 0), which the encoder was trained without. With "
        "--choose_weight, the weight is chosen on the next fold. Default: all folds.",
        common=True,
    )
    selection_split: str | None = option(
        None, "Choose the weight of the sum on queries of this split, at most 1,000. Default: on the other folds."
    )
    hybrid_measure: str = option(
        "ndcg_at_10",
        "Measure that the hybrid's weight is chosen by: that of the paper for the collection, such as ndcg_at_20 for "
        "Robust04 and mrr_at_100 for MS MARCO.",
        choices=HYBRID_MEASURES,
    )
    encoders_by_fold: bool = option(
        False,
        "NAME=PATH,PATH,... names an encoder for each fold, in their order, trained without that fold's queries. Each "
        "is measured on these alone; the row is of all queries.",
    )

    def __post_init__(self) -> None:
        check_folds(self.folds, self.fold)
        self.choose_weight |= self.selection_split is not None
        if self.selection_split is not None and (self.fold is not None or self.encoders_by_fold):
            raise ValueError("--fold and --encoders_by_fold say which queries choose: leave out --selection_split.")
        if self.encoders_by_fold and self.fold is not None:
            raise ValueError("--encoders_by_fold measures all folds: leave out --fold.")
        if self.encoders_by_fold and self.push_results:
            raise ValueError("--encoders_by_fold gives one row of several encoders: leave out --push_results.")


@dataclass
class AnalysisArguments(ComparisonArguments):
    """What is analysed."""

    output_dir: str = option("outputs/analysis", "Folder of the report, tables and plots.", common=True)
    analyses: list[str] = option(
        [*ANALYSES],
        "Analyses: redundancy (how often documents repeat words; needs no encoder), similarity (of sentences), "
        "attention (to parts of speech), clustering, map and geometry. redundancy and attention need "
        "--spacy_pipeline. graph_attention, for graph document models, is not in the default.",
        common=True,
        choices=[*ANALYSES, GRAPH_ATTENTION],
    )
    spacy_pipeline: str = option(
        "en_core_web_sm", "Name or folder of an installed spaCy pipeline that tags parts of speech.", common=True
    )
    sentence_splitter: str = option(
        "rules",
        "How documents are split into sentences: rules (of this project), sentencizer (spaCy's), or the name of an "
        "installed spaCy pipeline.",
    )
    sample_documents: Annotated[int, Bound(4)] = option(
        1000,
        "Most test documents of similarity, attention, map and geometry's halves; each class keeps its proportion.",
        common=True,
    )
    word_weight: str = option(
        "sum", "Attention to a word, from that to its tokens: their sum or their mean.", choices=["sum", "mean"]
    )
    map_method: str = option(
        "tsne",
        "Projection of the map: tsne, umap (needs umap-learn) or pca.",
        common=True,
        choices=MAP_METHODS,
    )
    num_seeds: Count = option(10, "Runs of k-means on each embedding, with another seed each time.")

    def __post_init__(self) -> None:
        if self.push_results and "clustering" not in self.analyses:
            raise ValueError("--push_results puts the table of clusters into cards: add clustering to --analyses.")
