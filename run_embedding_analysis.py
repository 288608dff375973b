"""What embeddings see of documents: redundancy, similarity, attention, clusters, maps and geometry, side by side.

    # what needs no part-of-speech tagger, on the docstrings of the installed packages
    python run_embedding_analysis.py --model_name_or_path outputs/quickstart tfidf \\
        --analyses similarity clustering map geometry

    # all, on files of your own, with an installed spaCy pipeline
    accelerate launch run_embedding_analysis.py --model_name_or_path outputs/docsplit outputs/simcse tfidf \\
        --train_file train.jsonl --test_file test.jsonl --spacy_pipeline en_core_web_sm --output_dir outputs/analysis

Redundancy is of the documents of all parts, clusters are fitted on train and measured on test, the rest is of test
documents: geometry of all, the others of a sample that is the same for all encoders. Tables, pictures and their CSV
are in report.html, one file that opens offline; analysis.json has every number, analysis.md the tables.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docsplit.data.sets.arguments import LabelledArguments as DataArguments
from docsplit.embedding.encoders import ComparisonArguments, EncoderArguments, members_of
from docsplit.evaluation.heads.presets import ANALYSES, GRAPH_ATTENTION, MAP_METHODS, NEED_A_TAGGER, TFIDF
from docsplit.runtime.arguments import check_choices, parse_arguments

if TYPE_CHECKING:
    from docsplit.data.sets.labelled import LabelledSplit
    from docsplit.evaluation.analysis.analyses import Documents

logger = logging.getLogger("docsplit")


@dataclass
class AnalysisArguments(ComparisonArguments):
    """What is analysed."""

    output_dir: str = field(default="outputs/analysis", metadata={"help": "Where everything is written."})
    analyses: list[str] = field(
        default_factory=lambda: [*ANALYSES],
        metadata={
            "help": "redundancy (of the documents, without encoder) and attention need a spaCy pipeline; similarity "
            "(of sentences), clustering, map, geometry. Not in the default: graph_attention, of graph document models."
        },
    )
    spacy_pipeline: str = field(
        default="en_core_web_sm", metadata={"help": "An installed one that tags parts of speech, or its folder."}
    )
    sentence_splitter: str = field(
        default="rules", metadata={"help": "rules, sentencizer, or an installed spaCy pipeline."}
    )
    sample_documents: int = field(
        default=1000,
        metadata={"help": "Test documents of similarity, attention, map and halves: at most so many, stratified."},
    )
    word_weight: str = field(default="sum", metadata={"help": "Attention to a word, over its pieces: sum or mean."})
    map_method: str = field(default="tsne", metadata={"help": "tsne, umap (needs umap-learn) or pca."})
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


def main() -> None:
    """Read the documents, choose and tag the sample, analyse one encoder after another, report after each."""
    encoder_args, data_args, args = parse_arguments(
        (EncoderArguments, DataArguments, AnalysisArguments), description=str(__doc__)
    )
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    from docsplit.evaluation.analysis.analyses import choose_documents, redundancy
    from docsplit.evaluation.results.report import read_labelled
    from docsplit.runtime.launching import join_processes

    state = join_processes()
    split, statistics = read_labelled(data_args, args.data_name, args.seed, state)
    tagger = check(encoder_args, args, split)

    documents = choose_documents(split, args, tagger if state.is_main_process else None)
    found: dict[str, Any] = {"encoders": []}
    if "redundancy" in args.analyses and state.is_main_process:
        found["redundancy"] = redundancy(split, tagger, args.seed)
    names = list(dict.fromkeys(encoder_args.model_name_or_path)) if set(args.analyses) - {"redundancy"} else []
    for name in names:
        measured = analyse(name, split, documents, encoder_args, args, is_main=state.is_main_process)
        if state.is_main_process:  # so far: what comes later may fail
            found["encoders"].append(measured)
            report(found, split, documents, statistics, [encoder_args, data_args, args], last=name == names[-1])
        state.wait_for_everyone()
    if not names and state.is_main_process:
        report(found, split, documents, statistics, [encoder_args, data_args, args], last=True)


def check(encoder_args: EncoderArguments, args: AnalysisArguments, split: "LabelledSplit") -> Any:
    """Whatever can fail, before any long work: tagger, sentence splitter, map and encoders. Returns the tagger."""
    from docsplit.data.segmentation import load_sentence_splitter
    from docsplit.data.tagging import load_tagger
    from docsplit.embedding.attention import check_attention
    from docsplit.evaluation.analysis.maps import check_method

    tagger = load_tagger(args.spacy_pipeline) if set(args.analyses) & set(NEED_A_TAGGER) else None
    load_sentence_splitter(args.sentence_splitter)
    if "map" in args.analyses:
        check_method(args.map_method)
    if encoder_args.smooth_neighbours and {"similarity", "geometry", "attention"} & set(args.analyses):
        logger.warning("--smooth_neighbours averages whole documents: not sentences, halves or attention.")
    if TFIDF in encoder_args.model_name_or_path and {"attention", GRAPH_ATTENTION} & set(args.analyses):
        logger.info("tfidf has no attention: that analysis is of the others.")
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    if set(args.analyses) == {"redundancy"}:
        return tagger
    for name in dict.fromkeys(encoder_args.model_name_or_path):
        if name != TFIDF:
            encoder_args.check(name, split.test_texts[:2])
            for member in members_of(name) if "attention" in args.analyses else ():
                check_attention(member, encoder_args.load(member), split.test_texts[0])
    return tagger


def analyse(
    name: str,
    split: "LabelledSplit",
    documents: "Documents",
    encoder_args: EncoderArguments,
    args: AnalysisArguments,
    is_main: bool,
) -> dict[str, Any]:
    """What each analysis finds of an encoder, or of those of several pretraining seeds together.

    All processes embed; the main one alone measures.
    """
    from docsplit.evaluation.analysis.analyses import measure, merge

    members = members_of(name)
    measured = []
    for member in members:
        embedded = embed_tfidf(split, documents, args) if name == TFIDF else embed(
            member, split, documents, encoder_args, args, is_main
        )  # fmt: skip
        if is_main:
            measured.append(measure(member, embedded, split, documents, args))
    return merge(name, members, measured) if is_main else {}


def embed(
    name: str,
    split: "LabelledSplit",
    documents: "Documents",
    encoder_args: EncoderArguments,
    args: AnalysisArguments,
    is_main: bool,
) -> dict[str, Any]:
    """All vectors of an encoder that the analyses read, and the attention to the sample's words."""
    from dataclasses import replace

    from docsplit.embedding.attention import attention_to_tokens, describe_attention
    from docsplit.embedding.graphs import attention_by_kind
    from docsplit.embedding.loading import resolve_prompt, says_pooling
    from docsplit.embedding.neighbours import nearest
    from docsplit.evaluation.analysis.analyses import NEIGHBOURS
    from docsplit.runtime.vectors import unit

    parts = {"train": split.train_texts} if "clustering" in args.analyses else {}
    reads_all = {"clustering", "map", "geometry"} & set(args.analyses)
    parts["test"] = split.test_texts if reads_all else documents.texts  # of the sample: what they cost is reported
    vectors, info = encoder_args.embed_parts(name, parts, is_main)
    found: dict[str, Any] = {"info": info, "parts": {"raw": vectors}}
    if "clustering" in args.analyses and info["pooling"] == "cls" and not says_pooling(name):
        logger.info(f"{name} says nothing about pooling: clusters of its mean pooling, too.")
        pooled, _ = replace(encoder_args, override_pooling="mean").embed_parts(name, parts, is_main)
        found["parts"]["mean pooling"] = pooled
    model = encoder_args.load(name)
    if "similarity" in args.analyses:
        found["sentences"] = encoder_args.embed(model, documents.sentences.texts, show_progress=is_main)[0]
    if "geometry" in args.analyses:
        found["halves"] = encoder_args.embed(model, documents.halves, show_progress=is_main)[0]
        found["neighbours"] = nearest(unit(vectors["test"]), min(NEIGHBOURS, len(split.test_texts) - 1))[0]
    if "attention" in args.analyses and is_main:
        tokens = encoder_args.embedding_tokens or 2048  # (heads, T, T) of every layer
        arguments = documents.texts, resolve_prompt(model, encoder_args.prompt), tokens
        found["attention"] = describe_attention(model), attention_to_tokens(model, *arguments)
    if GRAPH_ATTENTION in args.analyses:
        found[GRAPH_ATTENTION] = attention_by_kind(model, name, documents.texts[documents.of_graph])
    return found


def embed_tfidf(split: "LabelledSplit", documents: "Documents", args: AnalysisArguments) -> dict[str, Any]:
    """TF-IDF of the sentences, and of documents and halves the latent semantic analysis of it."""
    from docsplit.embedding.neighbours import nearest
    from docsplit.evaluation.analysis.analyses import NEIGHBOURS
    from docsplit.evaluation.analysis.clustering import tfidf_svd
    from docsplit.evaluation.heads.table import tfidf_features
    from docsplit.runtime.vectors import unit

    names = ("train", "test", "halves", "sentences")
    texts = (split.train_texts, split.test_texts, documents.halves or [""], documents.sentences.texts or [""])
    features = dict(zip(names, tfidf_features(*texts)))
    sentences = features.pop("sentences")
    dense = tfidf_svd(features, args.seed)
    unused = dict.fromkeys(["max_seq_length", "dtype", "long_documents", "smooth_neighbours"])
    info = {"pooling": None, "num_parameters": 0, "embedding_seconds": 0.0} | unused
    found = {"info": info, "parts": {"raw": dense}, "sentences": sentences, "halves": dense["halves"]}
    if "geometry" in args.analyses:
        found["neighbours"] = nearest(unit(dense["test"]), min(NEIGHBOURS, len(split.test_texts) - 1))[0]
    return found


def report(
    found: dict[str, Any],
    split: "LabelledSplit",
    documents: "Documents",
    statistics: list[Any],
    arguments: list[Any],
    last: bool,
) -> None:
    """analysis.json, analysis.md, report.html, and of the clusters results.json, results.md and the cards."""
    import torch
    from accelerate import PartialState

    from docsplit.evaluation.analysis.analyses import write
    from docsplit.evaluation.results.data_names import describe_data
    from docsplit.release.model_card import add_results

    encoder_args, data_args, args = arguments
    data = describe_data(data_args, args.data_name)
    settings = {name: value for group in arguments for name, value in asdict(group).items()}
    settings |= {"data_fingerprint": split.fingerprint(), "documents_dropped": split.counts}
    settings |= {"class_names": split.class_names, "processes": PartialState().num_processes}
    settings |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    text = write(found, split, documents, args, data, statistics, settings)
    if last:
        print(text)
        if args.push_results:
            add_results(list(dict.fromkeys(encoder_args.model_name_or_path)), "Clusters", data, Path(args.output_dir))


command = as_command(main)
if __name__ == "__main__":
    command()
