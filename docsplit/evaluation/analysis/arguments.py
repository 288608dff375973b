"""The options of the analyses. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, field

from docsplit.embedding.arguments import ComparisonArguments
from docsplit.runtime.arguments import check_choices
from docsplit.runtime.help import COMMON

ANALYSES = ("redundancy", "similarity", "attention", "clustering", "map", "geometry")
GRAPH_ATTENTION = "graph_attention"  # another, for graph document models alone
NEED_A_TAGGER = ("redundancy", "attention")
MAP_METHODS = ("tsne", "umap", "pca")


@dataclass
class AnalysisArguments(ComparisonArguments):
    """What is analysed."""

    output_dir: str = field(
        default="outputs/analysis", metadata={COMMON: True, "help": "Where everything is written."}
    )
    analyses: list[str] = field(
        default_factory=lambda: [*ANALYSES],
        metadata={
            COMMON: True,
            "help": "redundancy (of the documents, without encoder) and attention need a spaCy pipeline; similarity "
            "(of sentences), clustering, map, geometry. Not in the default: graph_attention, of graph documents.",
        },
    )
    spacy_pipeline: str = field(
        default="en_core_web_sm",
        metadata={COMMON: True, "help": "An installed one that tags parts of speech, or its folder."},
    )
    sentence_splitter: str = field(
        default="rules", metadata={"help": "rules, sentencizer, or an installed spaCy pipeline."}
    )
    sample_documents: int = field(
        default=1000,
        metadata={
            COMMON: True,
            "help": "Test documents of similarity, attention, map and halves: at most so many, stratified.",
        },
    )
    word_weight: str = field(default="sum", metadata={"help": "Attention to a word, over its pieces: sum or mean."})
    map_method: str = field(default="tsne", metadata={COMMON: True, "help": "tsne, umap (needs umap-learn) or pca."})
    num_seeds: int = field(default=10, metadata={"help": "Runs of k-means on each embedding."})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices("analyses", self.analyses, (*ANALYSES, GRAPH_ATTENTION))
        check_choices("word_weight", [self.word_weight], ("sum", "mean"))
        check_choices("map_method", [self.map_method], MAP_METHODS)
        if self.sample_documents < 4:
            raise ValueError(f"--sample_documents is {self.sample_documents}: expected 4 or more.")
        if self.push_results and "clustering" not in self.analyses:
            raise ValueError("--push_results puts the table of clusters into cards: add clustering to --analyses.")
