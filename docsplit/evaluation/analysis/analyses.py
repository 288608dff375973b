"""All analyses of encoders: one sample, one loop over encoders, and a report with a section for each analysis."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from docsplit.data.segmentation import load_sentence_splitter
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.data.tagging import load_tagger
from docsplit.embedding.arguments import EncoderArguments
from docsplit.embedding.attention import GraphReadings, check_attention
from docsplit.embedding.encoder import Encoder, EncoderGroup
from docsplit.embedding.loading import has_graph_attention
from docsplit.evaluation.analysis.arguments import GRAPH_ATTENTION, NEED_A_TAGGER, AnalysisArguments
from docsplit.evaluation.analysis.attention_by_word import attention_analysis, attention_estimates, word_weights
from docsplit.evaluation.analysis.clustering import clustering_analysis, clusterings, one_label
from docsplit.evaluation.analysis.estimates import Estimates, mean_row, merge_estimates
from docsplit.evaluation.analysis.geometry import geometry, geometry_analysis
from docsplit.evaluation.analysis.graph_attention import graph_attention_analysis
from docsplit.evaluation.analysis.maps import check_method, map_analysis, project
from docsplit.evaluation.analysis.redundancy import redundancy, redundancy_section
from docsplit.evaluation.analysis.report import HTML_FILE, JSON_FILE, MARKDOWN_FILE, Section, count, write_report
from docsplit.evaluation.analysis.sample import (
    Documents,
    Embedded,
    choose_documents,
    embed,
    embed_tfidf,
    num_neighbours,
)
from docsplit.evaluation.analysis.similarity import similarity, similarity_analysis
from docsplit.evaluation.compare import LabelledEvaluation, Setup
from docsplit.evaluation.heads.tfidf import TFIDF
from docsplit.evaluation.results.report import Json, Report, Table, encoder_names, write_comparison
from docsplit.evaluation.results.result import CLUSTERING, Facts, Result, merge_members
from docsplit.runtime.files import versions

logger = logging.getLogger(__name__)


@dataclass
class Measured:
    """What the analyses say of an encoder, or of a group from several pretraining seeds; None: not asked for."""

    encoder: str
    members: list[str]  # of a group, also of one that has another name; else none
    info: Facts  # what a row says of the encoder
    similarity: Estimates | None = None
    attention: Estimates | None = None
    clustering: list[Result] | None = None  # of each kind of features
    geometry: Json | None = None  # numbers of an encoder, or the row of one or several
    graph_attention: GraphReadings | None = None
    map: tuple[np.ndarray, str] | None = None  # (D, 2), and how it was made


class EmbeddingAnalysis(LabelledEvaluation):
    """What embeddings see of documents, analysed for one encoder after another."""

    card_title = "Clusters"
    not_encoders = (TFIDF,)
    args: AnalysisArguments
    documents: Documents
    tagger: Any = None

    def __init__(self, data_args: LabelledArguments, args: AnalysisArguments):
        super().__init__(data_args, args)
        self.measured: list[Measured] = []
        self.passage_words: list[int] = []  # of each encoder with graph attention
        self.redundancy: Json | None = None

    def sample(self) -> list[str]:
        """Two test documents."""
        return self.split.test_texts[:2]

    def names(self, given: list[str]) -> list[str]:
        """All, or none where redundancy alone is asked for, which needs no encoder."""
        return given if {*self.args.analyses} != {"redundancy"} else []

    def check(self, encoder_args: EncoderArguments) -> None:
        """Check tagger, sentence splitter and map; without a tagger leave out what needs one.

        Raises:
            ValueError: if the pipeline was named and is not there, or no analysis is left.
        """
        options = self.args
        needed = [name for name in options.analyses if name in NEED_A_TAGGER]
        try:
            self.tagger = load_tagger(options.spacy_pipeline) if needed else None
        except (ValueError, ImportError):
            options.analyses = [name for name in options.analyses if name not in needed]
            if options.spacy_pipeline != AnalysisArguments.spacy_pipeline or not options.analyses:
                raise
            logger.warning(
                f"{' and '.join(needed)} are left out: they need parts of speech (python -m spacy download "
                f"{options.spacy_pipeline})."
            )
        analyses = {*options.analyses}
        load_sentence_splitter(options.sentence_splitter)
        if "map" in analyses:
            check_method(options.map_method)
        if encoder_args.smooth_neighbours and {"similarity", "geometry", "attention"} & analyses:
            logger.warning("--smooth_neighbours averages whole documents: not sentences, halves or attention.")
        if TFIDF in encoder_args.model_name_or_path and {"attention", GRAPH_ATTENTION} & analyses:
            logger.info("tfidf has no attention: that analysis is of the others.")

    def check_encoder(self, encoder: Encoder) -> None:
        """Check that attention can be read, and note how long the passages of a graph are."""
        if "attention" in self.args.analyses:
            check_attention(encoder.name, encoder.copy(), self.sample()[0])
        if GRAPH_ATTENTION in self.args.analyses and has_graph_attention(encoder.model):
            reader: Any = encoder.model[0]
            self.passage_words.append(reader.config.passage_words)

    def prepare(self, is_main: bool) -> None:
        """Choose and tag the sample; measure redundancy."""
        tagger = self.tagger if is_main else None
        self.documents = choose_documents(self.split, self.args, tagger, self.passage_words)
        if "redundancy" in self.args.analyses and is_main:
            self.redundancy = redundancy(self.split, self.tagger, self.args.seed)

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> Measured | None:
        """Embed by all processes; the first one measures."""
        if encoder is None:
            embedded = embed_tfidf(self.split, self.documents, self.args)
        else:
            embedded = embed(encoder, self.split, self.documents, self.args, is_main)
        return measure(name, embedded, self.split, self.documents, self.args) if is_main else None

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Keep what was measured of the encoders of a group, as one."""
        self.measured.append(merge(group.name, group.members, measured))

    def report(self, setup: Setup) -> str:
        """Write analysis.json, analysis.md and report.html, and of the clusters results.json and results.md."""
        contents, sections = self.analyse(setup)
        if clusters := contents.get("clustering"):
            compared = clusters["rows"], clusters["comparisons"], setup.settings, setup.statistics
            write_comparison(setup.folder, Report(CLUSTERING, *compared, self.card_title, setup.data))
        title, folder = f"Embedding analysis: {setup.data}", setup.folder
        about = {"title": title, "data": setup.data, "settings": setup.settings, "statistics": setup.statistics}
        write_report(folder, title, sections, about | {"versions": versions()} | contents)
        return (
            f"\nThe report is {folder / HTML_FILE}; all numbers are in {folder / JSON_FILE}, all tables in "
            f"{folder / MARKDOWN_FILE}, those of each picture in the CSV of its name.\n"
        )

    def analyse(self, setup: Setup) -> tuple[Json, list[Section]]:
        """Return what analysis.json says of each analysis that was asked for, and its section, figures written."""
        documents, args, split, folder = self.documents, self.args, self.split, setup.folder
        contents: Json = {}
        sections = [_about_data(setup.statistics, self.measured)]

        def add(name: str, analysed: tuple[Json, Section]) -> None:
            contents[name] = analysed[0]
            sections.append(analysed[1])

        def known(name: str) -> dict[str, Any]:
            """Return what an analysis measured, by encoder."""
            values = {one.encoder: getattr(one, name) for one in self.measured}
            return {encoder: value for encoder, value in values.items() if value is not None}

        if self.redundancy is not None:
            add("redundancy", (self.redundancy, redundancy_section(self.redundancy, setup.data, folder)))
        if estimates := known("similarity"):
            measured, splitter = [*estimates.values()], args.sentence_splitter
            add("similarity", similarity_analysis(measured, documents.sentences, splitter, setup.data, folder))
        if estimates := known("attention"):
            measured, pipeline = [*estimates.values()], documents.pipeline
            add("attention", attention_analysis(measured, len(documents.rows), pipeline, args.word_weight, folder))
        if results := [result for own in known("clustering").values() for result in own]:
            add("clustering", clustering_analysis(results, split, setup.data))
        if rows := [*known("geometry").values()]:
            tested = len(split.test_texts)
            add("geometry", geometry_analysis(rows, tested, len(documents.halves) // 2, num_neighbours(tested)))
        if readings := known("graph_attention"):
            number = int(documents.rows[documents.of_graph])
            add(GRAPH_ATTENTION, graph_attention_analysis(number, readings, folder))
        if maps := known("map"):
            chosen, labels = one_label(documents.classes)
            classes = np.full(len(documents.rows), -1)
            classes[chosen] = labels
            names = encoder_names({one.encoder: one.members for one in self.measured})
            several = any(len(one.members) > 1 for one in self.measured)
            note = " Of several pretraining seeds it is the first one's." if several else ""
            add("map", map_analysis(maps, names, documents.rows, classes, split.class_names, note, folder))
        return contents, sections


def measure(
    name: str, embedded: Embedded, split: LabelledSplit, documents: Documents, options: AnalysisArguments
) -> Measured:
    """Run the analyses on what was embedded with one encoder."""
    measured = Measured(name, [], embedded.info, graph_attention=embedded.graph_attention)
    test = embedded.parts["raw"]["test"]
    if "similarity" in options.analyses:
        logger.info(f"Measuring how alike the sentences of a document are to {name}")
        measured.similarity = Estimates(name, similarity(embedded.sentences, documents.sentences))
    if embedded.attention is not None:
        about, tokens = embedded.attention
        logger.info(f"Reading the attention of {name} in {len(documents.texts):,} documents")
        weights = [
            word_weights(text.weights, text.offsets, document.spans, options.word_weight)
            for text, document in zip(tokens, documents.words)
        ]
        values, counts = attention_estimates(documents.words, weights)
        measured.attention = Estimates(name, values, about | counts)
    if "clustering" in options.analyses:
        logger.info(f"Clustering vectors of {name}: {options.num_seeds} runs of k-means on each kind of features")
        about = {"info": embedded.info, "pretraining_seeds": None if embedded.info["num_parameters"] == 0 else 1}
        how = {"num_seeds": options.num_seeds, "seed": options.seed}
        measured.clustering = clusterings(name, embedded.parts, split, **how, **about)
    if "geometry" in options.analyses:
        assert embedded.halves is not None
        assert embedded.neighbours is not None
        halves = embedded.halves.reshape(-1, 2, embedded.halves.shape[1])
        measured.geometry = geometry(test, halves, embedded.neighbours)
    if "map" in options.analyses:
        logger.info(f"Drawing the map of {name}: {len(documents.rows):,} documents")
        measured.map = project(test[documents.rows], options.map_method, options.seed)
    return measured


def merge(name: str, members: Sequence[str], measured: Sequence[Measured]) -> Measured:
    """Join what was measured of encoders from several pretraining seeds; map and graph are the first one's."""
    first = measured[0]
    merged = Measured(name, [] if [name] == list(members) else list(members), first.info)
    merged.map, merged.graph_attention = first.map, first.graph_attention
    joins: dict[str, Any] = {"similarity": merge_estimates, "attention": merge_estimates, "geometry": mean_row}
    for kind, join in (joins | {"clustering": merge_members}).items():
        if getattr(first, kind) is not None:
            setattr(merged, kind, join(name, members, [getattr(one, kind) for one in measured]))
    return merged


def _about_data(statistics: Sequence[Json], measured: Sequence[Measured]) -> Section:
    """Size and length of the parts, and what decides each encoder's embeddings."""
    columns = ("part", "documents", "classes", "mean_words", "median_words", "max_words")
    cells = [[part["dataset"], *(count(part[name]) for name in columns)] for part in statistics]
    header = ["data set", *(name.replace("_", " ") for name in columns)]
    facts = ("pooling", "max_seq_length", "long_documents", "num_parameters", "dtype", "embedding_seconds")
    of_encoders = [[one.encoder, *(count(one.info.get(name)) for name in facts)] for one in measured]
    tables = [
        Table(header, cells, title="Documents."),
        Table(["encoder", *(name.replace("_", " ") for name in facts)], of_encoders, title="Encoders."),
    ]
    return Section("Data and encoders", ["Words are what stands between white space."], tables)
