"""All analyses of encoders: what `EmbeddingAnalysis` measures of each, and how the reports are put together."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
from docsplit.evaluation.analysis import estimates, sections
from docsplit.evaluation.analysis.arguments import GRAPH_ATTENTION, NEED_A_TAGGER, AnalysisArguments
from docsplit.evaluation.analysis.attention_by_word import CLASSES, attention_estimates, word_weights
from docsplit.evaluation.analysis.clustering import clusterings, one_label
from docsplit.evaluation.analysis.contents import (
    AttentionContents,
    ClusterContents,
    GeometryContents,
    GraphAttentionContents,
    MapContents,
    RedundancyContents,
    SimilarityContents,
)
from docsplit.evaluation.analysis.embedded import Embedded, embed, embed_tfidf, num_neighbours
from docsplit.evaluation.analysis.estimates import EstimateRow, Estimates, Facts
from docsplit.evaluation.analysis.geometry import geometry
from docsplit.evaluation.analysis.graph_attention import graph_attention_section
from docsplit.evaluation.analysis.maps import MappedDocuments, check_method, plot_maps, project
from docsplit.evaluation.analysis.report import HTML_FILE, JSON_FILE, MARKDOWN_FILE, Section, Table, write_report
from docsplit.evaluation.analysis.sample import Documents, choose_documents, redundancy
from docsplit.evaluation.analysis.similarity import COMPARED, similarity
from docsplit.evaluation.compare import LabelledEvaluation, Setup
from docsplit.evaluation.heads.tfidf import TFIDF
from docsplit.evaluation.results import comparison
from docsplit.evaluation.results import result as results
from docsplit.evaluation.results.records import Report, TextStatistics
from docsplit.evaluation.results.report import write_comparison
from docsplit.evaluation.results.result import Result
from docsplit.evaluation.results.tables import encoder_names
from docsplit.evaluation.results.task import CLUSTERING
from docsplit.runtime.files import versions

logger = logging.getLogger(__name__)

Contents = dict[str, Any]  # of each analysis its contents, by name


@dataclass
class Measured:
    """What the analyses say of an encoder, or of a group from several pretraining seeds; None: not asked for."""

    encoder: str
    members: list[str]  # of a group, also of one that has another name; else none
    info: Facts  # what a row says of the encoder
    similarity: Estimates | None = None
    attention: Estimates | None = None
    clustering: list[Result] | None = None  # of each kind of features
    geometry: dict[str, float] | None = None
    geometry_row: EstimateRow | None = None  # the same of a group
    graph_attention: GraphReadings | None = None
    map: tuple[np.ndarray, str] | None = None  # (D, 2), and how it was made


FIGURES = ("redundancy", "similarity", "attention", "graph_attention_document", "graph_attention_nodes", "map")


class EmbeddingAnalysis(LabelledEvaluation):
    """What embeddings see of documents, analysed for one encoder after another."""

    card_title = "Clusters"
    files = (
        *(*LabelledEvaluation.files, JSON_FILE, MARKDOWN_FILE, HTML_FILE),
        *(f"{figure}.{kind}" for figure in FIGURES for kind in ("png", "csv")),
    )
    not_encoders = (TFIDF,)
    args: AnalysisArguments
    documents: Documents
    tagger: Any = None

    def __init__(self, data_args: LabelledArguments, args: AnalysisArguments):
        super().__init__(data_args, args)
        self.measured: list[Measured] = []
        self.passage_words: list[int] = []  # of each encoder with graph attention
        self.redundancy: RedundancyContents | None = None

    def sample(self) -> list[str]:
        """Two test documents."""
        return self.split.test_texts[:2]

    def names(self, given: list[str]) -> list[str]:
        """All, or none where redundancy alone is asked for, which needs no encoder."""
        return given if {*self.args.analyses} != {"redundancy"} else []

    def check(self, encoder_args: EncoderArguments) -> None:
        """Check tagger, sentence splitter and map."""
        analyses = {*self.args.analyses}
        if analyses & {*NEED_A_TAGGER}:
            self.tagger = load_tagger(self.args.spacy_pipeline)
        load_sentence_splitter(self.args.sentence_splitter)
        if "map" in analyses:
            check_method(self.args.map_method)
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
        contents = self.contents()
        shown = self._sections(contents, setup)
        if clusters := contents.get("clustering"):
            compared = clusters.rows, clusters.comparisons, setup.settings, setup.statistics
            write_comparison(setup.folder, Report(CLUSTERING, *compared, self.card_title, setup.data))
        title, folder = f"Embedding analysis: {setup.data}", setup.folder
        about = {"title": title, "data": setup.data, "settings": setup.settings, "statistics": setup.statistics}
        write_report(folder, title, shown, about | {"versions": versions()} | contents)
        return (
            f"\nThe report is {folder / HTML_FILE}; all numbers are in {folder / JSON_FILE}, all tables in "
            f"{folder / MARKDOWN_FILE}, those of each picture in the CSV of its name.\n"
        )

    def contents(self) -> Contents:
        """Return what analysis.json says of each analysis that was asked for, but for the map."""
        contents: Contents = {} if self.redundancy is None else {"redundancy": self.redundancy}
        documents, args = self.documents, self.args
        if measured := [encoder.similarity for encoder in self.measured if encoder.similarity is not None]:
            sentences = documents.sentences
            contents["similarity"] = SimilarityContents(
                rows=[estimates.row_of(encoder) for encoder in measured],
                differences=estimates.differences(measured, COMPARED),
                documents=len(documents.rows),
                counts=sentences.counts,
                inter_pairs=len(sentences.inter),
                same_class_pairs=len(sentences.same_class),
                splitter=args.sentence_splitter,
            )
        if measured := [encoder.attention for encoder in self.measured if encoder.attention is not None]:
            contents["attention"] = AttentionContents(
                rows=[estimates.row_of(encoder) for encoder in measured],
                differences=estimates.differences(measured, [f"{name}_to_uniform" for name in CLASSES]),
                documents=len(documents.rows),
                pipeline=documents.pipeline,
                word_weight=args.word_weight,
            )
        if clusters := [result for encoder in self.measured for result in encoder.clustering or []]:
            contents["clustering"] = cluster_contents(clusters, self.split)
        if rows := [encoder.geometry_row for encoder in self.measured if encoder.geometry_row is not None]:
            tested = len(self.split.test_texts)
            halved = len(documents.halves) // 2
            contents["geometry"] = GeometryContents(rows, tested, halved, num_neighbours(tested))
        all_readings = {encoder.encoder: encoder.graph_attention for encoder in self.measured}
        if readings := {name: reading for name, reading in all_readings.items() if reading is not None}:
            number = int(documents.rows[documents.of_graph])
            contents[GRAPH_ATTENTION] = GraphAttentionContents(number, readings)
        return contents

    def _sections(self, contents: Contents, setup: Setup) -> list[Section]:
        """Return the report, section by section; that of the map adds its own contents."""
        folder = setup.folder
        shown = [_about_data(setup.statistics, self.measured)]
        if "redundancy" in contents:
            shown.append(sections.redundancy_section(contents["redundancy"], setup.data, folder))
        if "similarity" in contents:
            shown.append(sections.similarity_section(contents["similarity"], setup.data, folder))
        if "attention" in contents:
            shown.append(sections.attention_section(contents["attention"], folder))
        if "clustering" in contents:
            shown.append(sections.clustering_section(contents["clustering"], setup.data))
        if "geometry" in contents:
            shown.append(sections.geometry_section(contents["geometry"]))
        if GRAPH_ATTENTION in contents:
            shown.append(graph_attention_section(contents[GRAPH_ATTENTION], folder))
        if "map" in self.args.analyses:
            shown.append(self._map_section(contents, folder))
        return shown

    def _map_section(self, contents: Contents, folder: Path) -> Section:
        names, rows = encoder_names({one.encoder: one.members for one in self.measured}), self.documents.rows
        maps = {one.encoder: one.map for one in self.measured if one.map is not None}
        how = next(iter(maps.values()))[1]
        chosen, labels = one_label(self.documents.classes)
        classes = np.full(len(rows), -1)
        classes[chosen] = labels
        named = {names[encoder]: points for encoder, (points, _) in maps.items()}
        mapped = MappedDocuments(rows, classes, self.split.class_names)
        figure = plot_maps(named, mapped, folder / "map.png", how)
        several = any(len(one.members) > 1 for one in self.measured)
        note = " Of several pretraining seeds it is the first one's." if several else ""
        points = {encoder: points for encoder, (points, _) in maps.items()}
        contents["map"] = MapContents(len(rows), how, note, rows, points)
        return sections.map_section(contents["map"], figure)


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
        labels = {"train": split.train_labels, "test": split.test_labels}
        seeds = None if embedded.info["num_parameters"] == 0 else 1
        arguments = (embedded.parts, labels, embedded.info, options.num_seeds, options.seed, seeds)
        measured.clustering = list(clusterings(name, *arguments))
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
    if first.similarity is not None:
        merged.similarity = estimates.merge_members(name, members, [one.similarity for one in measured])  # type: ignore[misc]
    if first.attention is not None:
        merged.attention = estimates.merge_members(name, members, [one.attention for one in measured])  # type: ignore[misc]
    if first.clustering is not None:
        merged.clustering = results.merge_members(name, members, [one.clustering or [] for one in measured])
    if first.geometry is not None:
        merged.geometry_row = estimates.mean_row(name, members, [one.geometry or {} for one in measured])
    return merged


def cluster_contents(clusters: list[Result], split: LabelledSplit) -> ClusterContents:
    """Return what analysis.json says of clusters."""
    kept = {
        part: one_label(labels)[1] for part, labels in (("train", split.train_labels), ("test", split.test_labels))
    }
    left_out = len(split.train_texts) + len(split.test_texts) - sum(map(len, kept.values()))
    return ClusterContents(
        rows=comparison.rows(clusters),
        comparisons=comparison.comparisons(clusters),
        train_documents=len(kept["train"]),
        test_documents=len(kept["test"]),
        clusters=len(np.unique(kept["train"])),
        largest_class=float(np.bincount(kept["test"]).max() / len(kept["test"])),
        left_out=f" Left out: {left_out:,} documents with several labels or none." if left_out else "",
    )


def _about_data(statistics: Sequence[TextStatistics], measured: Sequence[Measured]) -> Section:
    """Size and length of the parts, and what decides each encoder's embeddings."""
    columns = ("part", "documents", "classes", "mean_words", "median_words", "max_words")
    cells = [[part.dataset, *(sections.cell(getattr(part, name)) for name in columns)] for part in statistics]
    tables = [Table("Documents.", ["data set", *(name.replace("_", " ") for name in columns)], cells)]
    facts = ("pooling", "max_seq_length", "long_documents", "num_parameters", "dtype", "embedding_seconds")
    cells = [[one.encoder, *(sections.cell(one.info.get(name)) for name in facts)] for one in measured]
    tables.append(Table("Encoders.", ["encoder", *(name.replace("_", " ") for name in facts)], cells))
    return Section("Data and encoders", ["Words are what stands between white space."], tables)
