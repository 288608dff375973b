"""What all analyses read: a sample of test documents, cut and tagged, and what one encoder makes of it.

`choose_documents` draws the sample once, for all encoders; `embed` gives an encoder's vectors of documents, sentences
and halves, and its attention.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.sets.labelled import LabelledSplit, stratified_sample
from docsplit.data.tagging import describe_tagger, tag
from docsplit.embedding.attention import (
    GraphReadings,
    TokenWeights,
    attention_by_kind,
    attention_to_tokens,
    describe_attention,
)
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.loading import says_pooling
from docsplit.embedding.neighbours import nearest
from docsplit.evaluation.analysis.arguments import GRAPH_ATTENTION, AnalysisArguments
from docsplit.evaluation.analysis.attention_by_word import DocumentWords, document_words
from docsplit.evaluation.analysis.clustering import check_labels, tfidf_svd
from docsplit.evaluation.analysis.graph_attention import choose_document
from docsplit.evaluation.analysis.maps import check_size
from docsplit.evaluation.analysis.similarity import Sentences, choose_sentences
from docsplit.evaluation.compare import TFIDF_FACTS
from docsplit.evaluation.heads.tfidf import tfidf_features
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

NEIGHBOURS = 10  # of hubness
ATTENTION_TOKENS = 2048  # texts x longest text of a forward pass that gives attention, (heads, T, T) of every layer
READ_ALL = {"clustering", "map", "geometry"}  # analyses of all test documents, and not of the sample alone


@dataclass(frozen=True)
class Documents:
    """The sample of test documents, and what all encoders get of them."""

    rows: np.ndarray  # (D,) of the test documents
    texts: list[str]
    classes: np.ndarray  # (D,) class indices, or (D, C) multi-hot
    sentences: Sentences
    halves: list[str]  # two for each document with two sentences, one after the other
    pipeline: str = ""
    words: list[DocumentWords] = field(default_factory=list)  # of the main process
    of_graph: int = 0  # number in the sample of the document whose graph is shown


def choose_documents(
    split: LabelledSplit, options: AnalysisArguments, tagger: Any, passage_words: Sequence[int] = ()
) -> Documents:
    """Draw the sample; cut it into sentences and halves, and tag it, as far as the analyses need that.

    Args:
        tagger: of `docsplit.data.tagging.load_tagger`; None where nothing is tagged.
        passage_words: of the encoders whose graphs are shown.

    Raises:
        ValueError: if there are too few documents, sentences or labels for an analysis, before any long work.
    """
    labels = split.test_labels
    strata = labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    rows = stratified_sample(strata, options.sample_documents, options.seed)
    if "map" in options.analyses:
        check_size(len(rows))
    if "clustering" in options.analyses:
        check_labels(split.train_labels, split.test_labels)
    texts, classes = [split.test_texts[row] for row in rows], labels[rows]
    none = Sentences([], np.zeros(0, int), len(rows), np.zeros((0, 2), int), np.zeros((0, 2), int), {})
    documents = Documents(rows, texts, classes, none, [])
    chosen: dict[str, Any] = {}
    if GRAPH_ATTENTION in options.analyses and passage_words:
        chosen["of_graph"] = choose_document(texts, passage_words)
    if {"similarity", "geometry"} & set(options.analyses):
        cut = load_sentence_splitter(options.sentence_splitter)
        sentences = [cut(clean_text(text)) for text in texts]
        if "similarity" in options.analyses:
            chosen["sentences"] = choose_sentences(sentences, classes, options.seed)
        if "geometry" in options.analyses:
            chosen["halves"] = random_halves(sentences, options.seed)
    if "attention" in options.analyses and tagger is not None:
        logger.info(f"Tagging {len(texts):,} documents, whose attention is measured, by {describe_tagger(tagger)}")
        tagged = ((own.lemmas, own.parts_of_speech, own.spans) for own in tag(tagger, texts))
        chosen |= {"words": document_words(tagged), "pipeline": describe_tagger(tagger)}
    return Documents(**vars(documents) | chosen)


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


@dataclass
class Embedded:
    """Vectors and attention of one encoder, as far as they are asked for."""

    info: dict[str, Any]  # what a row says of the encoder
    parts: dict[str, dict[str, np.ndarray]]  # of each kind of features train and test, (N, H)
    sentences: Any = None  # (S, H), sparse of TF-IDF
    halves: np.ndarray | None = None  # (2 B, H)
    neighbours: np.ndarray | None = None  # (N, k) of the test documents
    attention: tuple[dict[str, Any], Iterator[TokenWeights]] | None = None  # facts; tokens of each document
    graph_attention: GraphReadings | None = None


def embed(
    encoder: Encoder, split: LabelledSplit, documents: Documents, options: AnalysisArguments, is_main: bool
) -> Embedded:
    """Embed with one encoder, by all processes, what the analyses read; the first one reads the attention."""
    analyses, name = options.analyses, encoder.name
    parts = {"train": split.train_texts} if "clustering" in analyses else {}
    # Of the sample alone where that is enough: what the embeddings cost is reported.
    parts["test"] = split.test_texts if READ_ALL & set(analyses) else documents.texts
    vectors, facts = encoder.embed_parts(parts, is_main)
    embedded = Embedded(facts, {"raw": vectors})
    if "clustering" in analyses and facts["pooling"] == "cls" and not says_pooling(name):
        logger.info(f"{name} says nothing about pooling: clusters of its mean pooling, too.")
        embedded.parts["mean pooling"], _ = encoder.with_pooling("mean").embed_parts(parts, is_main)
    if "similarity" in analyses:
        embedded.sentences = encoder.embed(documents.sentences.texts, is_main)
    if "geometry" in analyses:
        embedded.halves = encoder.embed(documents.halves, is_main)
        embedded.neighbours = nearest_of(vectors["test"])
    if "attention" in analyses and is_main:
        tokens = encoder.options.embedding_tokens or ATTENTION_TOKENS
        model = encoder.copy()  # it is left with eager attention
        read = attention_to_tokens(model, documents.texts, encoder.prompt, tokens)
        embedded.attention = describe_attention(model), read
    if GRAPH_ATTENTION in analyses:
        embedded.graph_attention = attention_by_kind(encoder.model, name, documents.texts[documents.of_graph])
    return embedded


def embed_tfidf(split: LabelledSplit, documents: Documents, options: AnalysisArguments) -> Embedded:
    """TF-IDF of the sentences, and of documents and halves the latent semantic analysis of it."""
    names = ("train", "test", "halves", "sentences")
    texts = (split.train_texts, split.test_texts, documents.halves or [""], documents.sentences.texts or [""])
    features = dict(zip(names, tfidf_features(*texts)))
    sentences = features.pop("sentences")
    dense = tfidf_svd(features, options.seed)
    neighbours = nearest_of(dense["test"]) if "geometry" in options.analyses else None
    return Embedded(TFIDF_FACTS, {"raw": dense}, sentences, dense["halves"], neighbours)


def nearest_of(vectors: np.ndarray) -> np.ndarray:
    """Return the nearest others of each document by cosine, (N, k)."""
    return nearest(unit(vectors), num_neighbours(len(vectors)))[0]


def num_neighbours(num_documents: int) -> int:
    """How many neighbours hubness counts: fewer where there are not so many others."""
    return min(NEIGHBOURS, num_documents - 1)
