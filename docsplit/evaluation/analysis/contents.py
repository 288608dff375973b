"""What analysis.json says of each analysis, as dataclasses: `as_json` makes them JSON, once, where it is written."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from docsplit.embedding.attention import GraphReadings
from docsplit.evaluation.analysis.estimates import EncoderDifference, EstimateRow, Json
from docsplit.evaluation.analysis.redundancy import RedundancyRow
from docsplit.evaluation.results.records import Comparison, Row


@dataclass(frozen=True)
class RedundancyContents:
    """What documents repeat, by length."""

    rows: list[RedundancyRow]
    growth: list[Json]  # rank correlations with length, for each variant
    documents: int
    sampled: str  # of how many
    pipeline: str  # that tagged them


@dataclass(frozen=True)
class SimilarityContents:
    """Sentences of one document and of two, for each encoder."""

    rows: list[EstimateRow]
    differences: list[EncoderDifference]
    documents: int
    counts: dict[str, int]  # of sentences, and of those left out
    inter_pairs: int
    same_class_pairs: int
    splitter: str


@dataclass(frozen=True)
class AttentionContents:
    """Attention by part of speech, for each encoder that has some."""

    rows: list[EstimateRow]
    differences: list[EncoderDifference]
    documents: int
    pipeline: str  # that tagged them
    word_weight: str  # sum or mean over the pieces of a word


@dataclass(frozen=True)
class ClusterContents:
    """Clusters beside the classes, for each encoder."""

    rows: list[Row]
    comparisons: list[Comparison]
    train_documents: int
    test_documents: int
    clusters: int  # as many as classes
    largest_class: float  # share of the test documents
    left_out: str  # a sentence; "" where no document was left out


@dataclass(frozen=True)
class GeometryContents:
    """How the embeddings of each encoder lie in space."""

    rows: list[EstimateRow]
    documents: int
    halved: int  # documents whose halves are compared
    neighbours: int  # of hubness


@dataclass(frozen=True)
class GraphAttentionContents:
    """One test document, as the graph document models read it."""

    document: int
    encoders: dict[str, GraphReadings]


@dataclass(frozen=True)
class MapContents:
    """The maps of the same test documents."""

    documents: int
    method: str
    note: str
    rows: np.ndarray  # which test documents they are
    points: dict[str, np.ndarray]  # by encoder, (N, 2)


def as_json(value: Any) -> Any:
    """Return dataclasses as dictionaries, by `to_json` where they have one; all else stays."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(item) for item in value]
    return value
