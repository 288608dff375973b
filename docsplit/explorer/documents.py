"""The documents that a page shows: of a corpus, or of an index with its vectors."""

import logging
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from datasets import ClassLabel, Dataset

from docsplit.data import corpora
from docsplit.data.segmentation import clean_text
from docsplit.index.index import IndexReader, encoder_of_index

if TYPE_CHECKING:  # it needs torch
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

FEWEST_TO_MAP = 3  # of a map


@dataclass(frozen=True)
class ExploredDocuments:
    """The documents of a page.

    Attributes:
        labels: None where there is no label column.
        ids: None where documents have none.
        vectors: (N, H); None where they are still to be embedded.
    """

    titles: list[str]
    texts: list[str]
    labels: list[str] | None = None
    ids: list[str] | None = None
    vectors: np.ndarray | None = None


def read_explored(
    corpus: str, text_column: str, label_column: str | None, limit: int, encoding: str | None = None
) -> ExploredDocuments:
    """Draw at most `limit` documents of a corpus at random, and leave out those without text.

    Raises:
        ValueError: if a column is missing, or fewer than three documents are left.
    """
    documents = corpora.load_corpus(
        corpus, text_column=text_column if label_column is None else None, encoding=encoding
    )
    dataset: Dataset = corpora.add_text(documents, text_column)
    if label_column is None and "label" in dataset.column_names:
        label_column = "label"
    if label_column is not None and label_column not in dataset.column_names:
        raise ValueError(f"--label_column is {label_column!r}, but the columns are {dataset.column_names}.")
    chosen = dataset.select(_drawn(len(dataset), limit))
    texts = [clean_text(text).strip() if isinstance(text, str) else "" for text in chosen[text_column]]
    titles = chosen["title"] if "title" in dataset.column_names else [None] * len(texts)
    labels = [str(None if label == "" else label) for label in chosen[label_column]] if label_column else None
    if labels and isinstance(feature := dataset.features[label_column], ClassLabel):
        labels = [feature.names[int(label)] if label.isdecimal() else label for label in labels]
    # Documents with text
    kept = [row for row, text in enumerate(texts) if text]
    if len(kept) < FEWEST_TO_MAP:
        raise ValueError(f"{corpus} has {len(kept)} documents with text: a map needs three or more.")
    if empty := len(texts) - len(kept):
        logger.info(f"{empty:,} of {len(texts):,} documents have no text and are left out.")
    return ExploredDocuments(
        [_title(titles[row], texts[row]) for row in kept],
        [texts[row] for row in kept],
        [labels[row] for row in kept] if labels else None,
    )


def documents_of_index(
    directory: Path, limit: int, model: str | None = None
) -> tuple[ExploredDocuments, "SentenceTransformer"]:
    """Draw at most `limit` documents of an index at random, and load its encoder.

    Args:
        model: where the encoder is now. Default: where it was when the index was built.

    Raises:
        ValueError: if there are fewer than three, or the encoder is another one now.
    """
    index = IndexReader(directory)
    if len(index) < FEWEST_TO_MAP:
        raise ValueError(f"{directory} has {len(index)} documents: a map needs three or more.")
    encoder = encoder_of_index(directory, model)
    places, drawn = list(index.documents()), _drawn(len(index), limit)
    chosen = [places[number] for number in drawn]
    texts = [clean_text(segment.texts[row]).strip() for segment, row in chosen]
    ids = [segment.ids[row] for segment, row in chosen]
    titles = [segment.titles[row] or segment.ids[row] for segment, row in chosen]
    vectors = index.document_vectors()[drawn]
    return ExploredDocuments(titles, texts, ids=ids, vectors=vectors), encoder.model


def _drawn(size: int, limit: int) -> np.ndarray:
    """Draw the rows of at most `limit` documents, in their order."""
    return np.sort(np.random.default_rng(0).permutation(size)[:limit])


def _title(title: object, text: str) -> str:
    """Return the whole title on one line; without a title, the beginning of the text."""
    if title:
        return " ".join(clean_text(str(title)).split())
    return textwrap.shorten(text[:1200], 120, placeholder=" …")
