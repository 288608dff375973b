"""Documents, an index of them, and an encoder that needs no model."""

import numpy as np
import pytest

from docsplit.data.own_documents import Document
from docsplit.index.changes import build
from docsplit.index.index import Index
from docsplit.index.segments import query_words
from tests.conftest import make_corpus

ENCODER = {"name": "test", "hash": "0123456789", "pooling": "mean"}
WORDS = 20  # of a passage


def embed(texts):
    """Give each text another vector of length one."""
    vectors = np.stack([np.random.default_rng(abs(hash_of(text))).normal(size=8) for text in texts])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def hash_of(text):
    return sum(ord(character) * (number + 1) for number, character in enumerate(text))


@pytest.fixture(scope="module")
def documents():
    texts = [row["text"] for row in make_corpus(80)]
    long = [" ".join(texts[start : start + 4]) for start in range(60, 80, 4)]
    texts = [*texts[:60], *long]
    return [Document(f"file {number}.txt", text, f"Title {number}") for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def queries(documents):
    return [document.text[:40] for document in documents[:12]]


@pytest.fixture(scope="module")
def built(documents, tmp_path_factory):
    directory = tmp_path_factory.mktemp("index")
    counts = build(directory, documents, embed, ENCODER, WORDS)
    assert counts.documents == len(documents)
    return directory


def answers(directory, queries, method, count=7):
    index = Index(directory)
    all_hits = [index.search(embed([query])[0], query_words(query), count, method) for query in queries]
    return [[(hit.id, round(hit.score, 5), hit.passage) for hit in hits] for hits in all_hits]
