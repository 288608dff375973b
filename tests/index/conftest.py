"""Documents, an index of them, an encoder that needs no model, and one that adds words of documents."""

import numpy as np
import pytest
import torch

from docsplit.data.readers.base import Document
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.encoder import Encoder as RealEncoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.lexical_ridge import fit, save_with_words
from docsplit.index.changes import build
from docsplit.index.index import IndexReader
from docsplit.modeling.loading import load_encoder
from tests.conftest import make_corpus

DESCRIPTION = {
    "name": "test",
    "hash": "0123456789",
    "pooling": "mean",
    "max_seq_length": None,
    "dimension": 8,
    "similarity": "cosine",
}
WORDS = 20  # of a passage


def embed(texts):
    """Give each text another vector of length one."""
    vectors = np.stack([np.random.default_rng(abs(hash_of(text))).normal(size=8) for text in texts])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def hash_of(text):
    return sum(ord(character) * (number + 1) for number, character in enumerate(text))


class Encoder:
    """An encoder that needs no model, as an index uses it."""

    def __init__(self, embed, count=lambda texts: None, has_words=False):
        self.embed_for_index, self.count_tokens, self.has_words = embed, count, has_words
        self.description, self.announce = DESCRIPTION, lambda *_, **__: None


ENCODER = Encoder(embed)


@pytest.fixture(scope="module")
def documents():
    texts = [row["text"] for row in make_corpus(80)]
    long = [" ".join(texts[start : start + 4]) for start in range(60, 80, 4)]
    texts = [*texts[:60], *long]
    texts = [f"Title {number}\n\n{text}" for number, text in enumerate(texts)]
    return [Document(f"file {number}.txt", text, f"Title {number}") for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def queries(documents):
    return [document.text.partition("\n\n")[2][:40] for document in documents[:12]]


@pytest.fixture(scope="module")
def built(documents, tmp_path_factory):
    directory = tmp_path_factory.mktemp("index")
    counts = build(directory, documents, ENCODER, WORDS)
    assert counts.documents == len(documents)
    return directory


def answers(directory, queries, method, count=7):
    index = IndexReader(directory)
    all_hits = [index.search(embed([query])[0], query, count, method) for query in queries]
    return [[(hit.id, round(hit.score, 5), hit.passage) for hit in hits] for hits in all_hits]


def save_worded(start, folder):
    """Save an encoder with words, fitted on documents that no index has."""
    model, texts = load_encoder(str(start)), [row["text"] for row in make_corpus(40, seed=7)]
    words = fit(model, texts, embed_documents(model, texts, dtype=torch.float32)[0]).words
    save_with_words(model, words, 0.8, folder)
    return folder


@pytest.fixture(scope="session")
def worded(scattered, tmp_path_factory):
    """A folder with an encoder that adds words of documents to its vectors."""
    return save_worded(scattered, tmp_path_factory.mktemp("worded"))


@pytest.fixture(scope="session")
def worded_encoder(worded):
    return RealEncoder(str(worded), EncoderArguments([str(worded)], dtype="float32"))
