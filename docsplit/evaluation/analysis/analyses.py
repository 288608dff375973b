"""All analyses of encoders: one sample of test documents, one loop over encoders, a section of a report for each."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers.util import is_sentence_transformer_model

from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.sets.labelled import LabelledSplit, stratified_sample
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.data.tagging import describe_tagger, load_tagger, tag
from docsplit.embedding.attention import (
    GraphReadings,
    attention_by_kind,
    attention_to_tokens,
    check_attention,
    describe_attention,
)
from docsplit.embedding.encoder import Encoder, EncoderGroup
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.neighbours import nearest
from docsplit.evaluation.analysis import attention, clustering, geometry, maps, redundancy, report, similarity
from docsplit.evaluation.compare import TFIDF_FACTS, LabelledEvaluation
from docsplit.evaluation.heads.frozen import TFIDF, tfidf_features
from docsplit.evaluation.results.markdown import one_line
from docsplit.evaluation.results.report import (
    ENCODER_FACTS,
    STATISTICS,
    Json,
    Report,
    encoder_names,
    facts_table,
    verdict,
    write_comparison,
)
from docsplit.evaluation.results.result import CLUSTERING, Facts, Result, merge_members
from docsplit.evaluation.task_arguments import GRAPH_ATTENTION, NEED_A_TAGGER, READ_ALL, AnalysisArguments
from docsplit.modeling.loading import has_graph_attention
from docsplit.runtime.files import versions
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

NEIGHBOURS = 10  # of hubness, where there are so many others
ATTENTION_TOKENS = 2048  # texts x longest text of a forward pass that gives attention, (heads, T, T) of every layer


# --- The sample ---


@dataclass(frozen=True)
class AnalysedDocuments:
    """The sample of test documents, and what all encoders get of them, as far as the analyses need it."""

    rows: np.ndarray  # (D,) of the test documents
    texts: list[str]
    classes: np.ndarray  # (D,) class indices, or (D, C) multi-hot
    sentences: similarity.Sentences | None = None
    halves: list[str] = field(default_factory=list)  # two for each document with two sentences, one after the other
    pipeline: str = ""
    words: list[attention.DocumentWords] = field(default_factory=list)  # of the main process
    of_graph: int = 0  # number in the sample of the document whose graph is shown


def choose_documents(
    split: LabelledSplit, options: AnalysisArguments, tagger: Any, passage_words: Sequence[int] = ()
) -> AnalysedDocuments:
    """Draw the sample; cut it into sentences and halves, and tag it, as far as the analyses need that.

    Args:
        tagger: of `docsplit.data.tagging.load_tagger`; None where nothing is tagged.
        passage_words: of the encoders whose graphs are shown.

    Raises:
        ValueError: if there are too few documents, sentences or labels for an analysis, before any long work.
    """
    labels, analyses = split.test_labels, options.analyses
    strata = labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    rows = stratified_sample(strata, options.sample_documents, options.seed)
    train, test = (clustering.one_label(part)[1] for part in (split.train_labels, split.test_labels))
    if "clustering" in analyses and (len(np.unique(train)) < 2 or not len(test)):
        raise ValueError("Clusters need documents with exactly one label: leave clustering out of --analyses.")
    texts, classes = [split.test_texts[row] for row in rows], labels[rows]
    chosen: dict[str, Any] = {}
    if GRAPH_ATTENTION in analyses and passage_words:
        chosen["of_graph"] = attention.choose_document(texts, passage_words)
    if {"similarity", "geometry"} & set(analyses):
        cut = load_sentence_splitter(options.sentence_splitter)
        sentences = [cut(clean_text(text)) for text in texts]
        if "similarity" in analyses:
            chosen["sentences"] = similarity.choose_sentences(sentences, classes, options.seed)
        if "geometry" in analyses:
            chosen["halves"] = random_halves(sentences, options.seed)
    if "attention" in analyses and tagger is not None:
        logger.info(f"Tagging {len(texts):,} documents by {describe_tagger(tagger)}")
        tagged = ((own.lemmas, own.parts_of_speech, own.spans) for own in tag(tagger, texts))
        chosen |= {"words": attention.document_words(tagged), "pipeline": describe_tagger(tagger)}
    return AnalysedDocuments(rows, texts, classes, **chosen)


def random_halves(sentences: Sequence[Sequence[str]], seed: int) -> list[str]:
    """Each sentence to one of two halves at random, as DocSplit's view does: two texts for each document.

    A document of fewer than two sentences has none; an empty half is drawn again.

    Raises:
        ValueError: if fewer than two documents have two sentences.
    """
    generator, halves = np.random.default_rng((seed, 7)), []
    for own in sentences:
        if len(own) > 1:
            while (first := generator.random(len(own)) < 0.5).all() or not first.any():
                pass
            halves += [" ".join(one for one, is_in in zip(own, chosen) if is_in) for chosen in (first, ~first)]
    if len(halves) < 4:
        raise ValueError(f"{len(halves) // 2} documents have two sentences: alignment needs two or more.")
    return halves


# --- The loop ---


@dataclass(frozen=True)
class Measured:
    """What the analyses say of an encoder, or of a group from several pretraining seeds; None: not asked for.

    Of a group, map and graph are the first one's.
    """

    encoder: str
    info: Facts  # what a row says of the encoder
    members: Sequence[str] = ()  # of a group, also of one that has another name; else none
    similarity: report.Estimates | None = None
    attention: report.Estimates | None = None
    clustering: list[Result] | None = None  # of each kind of features
    geometry: Json | None = None  # numbers of an encoder, or the row of one or several
    graph_attention: GraphReadings | None = None
    map: tuple[np.ndarray, str] | None = None  # (D, 2), and how it was made


class EmbeddingAnalysis(LabelledEvaluation):
    """What embeddings see of documents, analysed for one encoder after another."""

    card_title = "Clusters"
    not_encoders = (TFIDF,)
    args: AnalysisArguments
    documents: AnalysedDocuments
    tagger: Any = None
    redundancy: Json | None = None

    def __init__(self, data_args: LabelledArguments, args: AnalysisArguments):
        super().__init__(data_args, args)
        self.measured: list[Measured] = []
        self.passage_words: list[int] = []  # of each encoder with graph attention

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
        load_sentence_splitter(options.sentence_splitter)
        if "map" in options.analyses and options.map_method == "umap" and find_spec("umap") is None:
            raise ValueError("--map_method umap needs UMAP: pip install umap-learn, or take the default, tsne.")
        if encoder_args.smooth_neighbours and {"similarity", "geometry", "attention"} & {*options.analyses}:
            logger.warning("--smooth_neighbours averages whole documents: not sentences, halves or attention.")

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
            self.redundancy = redundancy.redundancy(self.split, self.tagger, self.args.seed)

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> Measured | None:
        """Embed by all processes; the first one measures."""
        split, documents, options, analyses = self.split, self.documents, self.args, self.args.analyses
        sentences: Any = None  # their vectors, (S, H), sparse of TF-IDF
        halves = graph = None
        if encoder is None:
            given = documents.sentences.texts if documents.sentences else [""]
            texts = (split.train_texts, split.test_texts, documents.halves or [""], given)
            train, test, of_halves, sentences = tfidf_features(*texts)
            dense = clustering.tfidf_svd({"train": train, "test": test, "halves": of_halves}, options.seed)
            info, kinds, halves = TFIDF_FACTS, {"raw": dense}, dense["halves"]
        else:
            parts = {"train": split.train_texts} if "clustering" in analyses else {}
            # Of the sample alone where that is enough: what the embeddings cost is reported.
            parts["test"] = split.test_texts if READ_ALL & set(analyses) else documents.texts
            vectors, facts = encoder.embed_parts(parts, is_main)
            info, kinds = facts, {"raw": vectors}
            is_by_default = facts["pooling"] == "cls" and not is_sentence_transformer_model(encoder.name)
            if "clustering" in analyses and is_by_default:
                logger.info(f"{name} says nothing about pooling: clusters of its mean pooling, too.")
                kinds["mean pooling"], _ = encoder.with_pooling("mean").embed_parts(parts, is_main)
            if documents.sentences:
                sentences = encoder.embed(documents.sentences.texts, is_main)
            if "geometry" in analyses:
                halves = encoder.embed(documents.halves, is_main)
            if GRAPH_ATTENTION in analyses:
                graph = attention_by_kind(encoder.model, name, documents.texts[documents.of_graph])
        if not is_main:
            return None

        # What the vectors say
        logger.info(f"Analysing {name}: {', '.join(analyses)}")
        tested, found = kinds["raw"]["test"], dict[str, Any]()
        if documents.sentences:
            found["similarity"] = report.Estimates(name, similarity.similarity(sentences, documents.sentences))
        if "attention" in analyses and encoder is not None:
            found["attention"] = self._attention(encoder)
        if "clustering" in analyses:
            about = info, None if encoder is None else 1
            found["clustering"] = clustering.clusterings(name, kinds, split, options.num_seeds, options.seed, *about)
        if "geometry" in analyses:
            assert halves is not None
            neighbours = nearest(unit(tested), min(NEIGHBOURS, len(tested) - 1))[0]  # (N, k)
            found["geometry"] = geometry.geometry(tested, halves.reshape(-1, 2, halves.shape[1]), neighbours)
        if "map" in analyses:
            found["map"] = maps.project(tested[documents.rows], options.map_method, options.seed)
        return Measured(name, info, graph_attention=graph, **found)

    def _attention(self, encoder: Encoder) -> report.Estimates:
        """Read the attention of an encoder to the words of the sample."""
        documents = self.documents
        model = encoder.copy()  # it is left with eager attention
        most = encoder.options.embedding_tokens or ATTENTION_TOKENS
        weights = [
            attention.word_weights(read.weights, read.offsets, document.spans, self.args.word_weight)
            for read, document in zip(
                attention_to_tokens(model, documents.texts, encoder.prompt, most), documents.words
            )
        ]
        values, counts = attention.attention_estimates(documents.words, weights)
        return report.Estimates(encoder.name, values, describe_attention(model) | counts)

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Keep what was measured of the encoders of a group, as one."""
        name, members, merged = group.name, group.members, dict[str, Any]()
        joins: dict[str, Any] = dict.fromkeys(("similarity", "attention"), report.merge_estimates)
        for kind, join in (joins | {"geometry": report.mean_row, "clustering": merge_members}).items():
            if getattr(measured[0], kind) is not None:
                merged[kind] = join(name, members, [getattr(one, kind) for one in measured])
        members = [] if [name] == members else members
        self.measured.append(replace(measured[0], encoder=name, members=members, **merged))

    # --- The report ---

    def report(self, folder: Path, **about: Any) -> str:
        """Write analysis.json, analysis.md and report.html, and of the clusters results.json and results.md."""
        analysed = self.analyse(folder)
        contents, sections = ({name: both[side] for name, both in analysed.items()} for side in (0, 1))
        said = [figure.message for section in sections.values() for figure in section.figures]
        if clusters := contents.get("clustering"):
            compared = clusters["rows"], clusters["comparisons"]
            clustered = Report(CLUSTERING, *compared, heading=self.card_title, **about)
            write_comparison(folder, clustered)
            said += verdict(clustered)
        title = f"Embedding analysis: {about['data']}"
        encoders = [one.info | {"encoder": one.encoder} for one in self.measured]
        tables = [
            replace(facts_table(about["statistics"], STATISTICS), title="Documents."),
            replace(facts_table(encoders, ENCODER_FACTS), title="Encoders."),
        ]
        about_data = report.ReportSection("Data and encoders", ["Words are split at white space."], tables)
        about |= {"title": title, "versions": versions()} | contents
        report.write_report(folder, title, [about_data, *sections.values()], about)
        beside = f"all numbers: {report.JSON_FILE}, all tables: {report.MARKDOWN_FILE}"
        return "\n".join(["", *map(one_line, said), "", f"Open {folder / report.HTML_FILE} ({beside})."])

    def analyse(self, folder: Path) -> dict[str, tuple[Any, Any]]:
        """Return what analysis.json says of each analysis that was asked for, and its section, figures written."""
        documents, args, split = self.documents, self.args, self.split
        analysed: dict[str, tuple[Any, Any]] = {}

        def known(name: str) -> dict[str, Any]:
            """Return what an analysis measured, by encoder."""
            values = {one.encoder: getattr(one, name) for one in self.measured}
            return {encoder: value for encoder, value in values.items() if value is not None}

        if self.redundancy is not None:
            analysed["redundancy"] = self.redundancy, redundancy.redundancy_section(self.redundancy, folder)
        if estimates := [*known("similarity").values()]:
            assert documents.sentences is not None
            analysed["similarity"] = similarity.similarity_analysis(
                estimates, documents.sentences, args.sentence_splitter, folder
            )
        if estimates := [*known("attention").values()]:
            about = documents.pipeline, args.word_weight, folder
            analysed["attention"] = attention.attention_analysis(estimates, len(documents.rows), *about)
        if results := [result for own in known("clustering").values() for result in own]:
            analysed["clustering"] = clustering.clustering_analysis(results, split)
        if rows := [*known("geometry").values()]:
            tested = len(split.test_texts)
            counts = tested, len(documents.halves) // 2, min(NEIGHBOURS, tested - 1)
            analysed["geometry"] = geometry.geometry_analysis(rows, *counts)
        if readings := known("graph_attention"):
            number = int(documents.rows[documents.of_graph])
            analysed[GRAPH_ATTENTION] = attention.graph_attention_analysis(number, readings, folder)
        if drawn := known("map"):
            chosen, labels = clustering.one_label(documents.classes)
            classes = np.full(len(documents.rows), -1)
            classes[chosen] = labels
            names = encoder_names({one.encoder: one.members for one in self.measured})
            several = any(len(one.members) > 1 for one in self.measured)
            note = " Of several pretraining seeds it is the first one's." if several else ""
            analysed["map"] = maps.map_analysis(drawn, names, documents.rows, classes, split.class_names, note, folder)
        return analysed
