"""What the analyses read of one encoder: its vectors of documents, sentences and halves, and its attention."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from docsplit.data.sets.labelled import LabelledSplit
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
from docsplit.evaluation.analysis.clustering import tfidf_svd
from docsplit.evaluation.analysis.sample import Documents
from docsplit.evaluation.compare import TFIDF_FACTS
from docsplit.evaluation.heads.tfidf import tfidf_features
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

NEIGHBOURS = 10  # of hubness
ATTENTION_TOKENS = 2048  # texts x longest text of a forward pass that gives attention, (heads, T, T) of every layer
READ_ALL = {"clustering", "map", "geometry"}  # analyses of all test documents, and not of the sample alone


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
    embedded = Embedded(facts.row(), {"raw": vectors})
    if "clustering" in analyses and facts.pooling == "cls" and not says_pooling(name):
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
