"""An index for an engine that serves many people: its passages, one after another, into a vector database.

A database is a module with a function `write(passages, count, description, uri, name, replace)` and its row in
`DATABASES`; it knows nothing of how an index lies on disk.
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from docsplit.data.passages import to_passages
from docsplit.index.index import Index

DATABASES = {"milvus": "docsplit.index.milvus"}


@dataclass(frozen=True)
class StoredPassage:
    """What a database gets of a passage."""

    id: str  # of the document, and the passage's number in it
    document: str
    title: str
    text: str
    vector: np.ndarray  # (H,) float32


def passages_of(index: Index) -> Iterator[StoredPassage]:
    """All passages of all documents in the index, in order."""
    for segment, row in index.documents():
        document, title = segment.ids[row], segment.titles[row]
        vectors = segment.passage_vectors[segment.passages_of(row)]
        passages = to_passages(segment.texts[row], index.manifest["passage_words"])
        for number, (passage, vector) in enumerate(zip(passages, vectors, strict=True)):
            yield StoredPassage(f"{document}#{number}", document, title, passage.text, vector)


def export(index: Index, database: str, uri: str, name: str = "documents", replace: bool = False) -> dict[str, Any]:
    """Write an index into a database, as a collection of this name.

    Args:
        replace: a collection of this name that is there is dropped first.

    Returns: what the database says that it holds.

    Raises:
        ValueError: if the database is not known, its client is not installed, or the collection is there already.
    """
    if database not in DATABASES:
        raise ValueError(f"There is no database {database!r}, expected one of {', '.join(DATABASES)}.")
    count = sum(len(segment.passage_vectors[segment.passages_of(row)]) for segment, row in index.documents())
    module: Any = importlib.import_module(DATABASES[database])
    return module.write(passages_of(index), count, index.manifest["encoder"], uri, name, replace)
