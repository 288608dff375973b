"""The options of the analyses. Nothing heavy is imported: `--help` reads this module."""

from dataclasses import dataclass, field

from docsplit.embedding.arguments import ComparisonArguments
from docsplit.runtime.options import COMMON

ANALYSES = ("redundancy", "similarity", "attention", "clustering", "map", "geometry")
GRAPH_ATTENTION = "graph_attention"  # another, for graph document models alone
NEED_A_TAGGER = ("redundancy", "attention")
MAP_METHODS = ("tsne", "umap", "pca")


@dataclass
class AnalysisArguments(ComparisonArguments):
    """What is analysed."""

    output_dir: str = field(
        default="outputs/analysis", metadata={COMMON: True, "help": "Folder of the report, tables and plots."}
    )
    analyses: list[str] = field(
        default_factory=lambda: [*ANALYSES],
        metadata={
            COMMON: True,
            "choices": [*ANALYSES, GRAPH_ATTENTION],
            "help": "Analyses: redundancy (how often documents repeat words; needs no encoder), similarity (of "
            "sentences), attention (to parts of speech), clustering, map and geometry. redundancy and attention need "
            "--spacy_pipeline. graph_attention, for graph document models, is not in the default.",
        },
    )
    spacy_pipeline: str = field(
        default="en_core_web_sm",
        metadata={COMMON: True, "help": "Name or folder of an installed spaCy pipeline that tags parts of speech."},
    )
    sentence_splitter: str = field(
        default="rules",
        metadata={
            "help": "How documents are split into sentences: rules (of this project), sentencizer (spaCy's), or the "
            "name of an installed spaCy pipeline."
        },
    )
    sample_documents: int = field(
        default=1000,
        metadata={
            COMMON: True,
            "help": "Most test documents of similarity, attention, map and geometry's halves; each class keeps its "
            "proportion.",
        },
    )
    word_weight: str = field(
        default="sum",
        metadata={
            "choices": ["sum", "mean"],
            "help": "Attention to a word, from that to its tokens: their sum or their mean.",
        },
    )
    map_method: str = field(
        default="tsne",
        metadata={
            COMMON: True,
            "choices": MAP_METHODS,
            "help": "Projection of the map: tsne, umap (needs umap-learn) or pca.",
        },
    )
    num_seeds: int = field(
        default=10, metadata={"help": "Runs of k-means on each embedding, with another seed each time."}
    )

    def __post_init__(self) -> None:
        if self.push_results and "clustering" not in self.analyses:
            raise ValueError("--push_results puts the table of clusters into cards: add clustering to --analyses.")
