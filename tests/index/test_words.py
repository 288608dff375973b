"""An index of an encoder that adds words: documents and passages have them, and queries have none."""

import numpy as np
import pytest

from docsplit.data.passages import to_passages
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.index.changes import add, build
from docsplit.index.index import IndexReader, encoder_of_index
from docsplit.modeling.loading import load_encoder
from tests.index.conftest import WORDS


def test_documents_carry_words_and_queries_none(worded, worded_encoder, documents, queries, tmp_path):
    """Also those that are added: with the words that the encoder brings."""
    build(tmp_path, documents[:40], worded_encoder, WORDS)
    add(tmp_path, documents[40:], worded_encoder)
    index, model = IndexReader(tmp_path), load_encoder(str(worded))
    assert index.manifest.has_words
    passages = [[passage.text for passage in to_passages(document.text, WORDS)] for document in documents]
    whole = [several[0] if len(several) == 1 else document.text for several, document in zip(passages, documents)]
    flat = [passage for several in passages for passage in several]
    expected = model.encode_document(flat, normalize_embeddings=True)
    vectors = np.concatenate([segment.passage_vectors for segment in index.segments])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    of_documents = model.encode_document(whole, normalize_embeddings=True)
    np.testing.assert_allclose(index.document_vectors(), of_documents, atol=1e-5)
    assert np.abs(vectors - model.encode_query(flat, normalize_embeddings=True)).max() > 0.05
    # A search compares queries without words with passages that have them
    encoder = encoder_of_index(tmp_path)
    for query in queries[:3]:
        vector = encoder.embed_query(query)
        np.testing.assert_allclose(vector, model.encode_query(query, normalize_embeddings=True), atol=1e-2)
        (hit,) = index.search(vector, "", 1, "dense")
        scores = expected @ vector
        assert (hit.score, hit.passage) == (pytest.approx(scores.max(), abs=1e-5), flat[scores.argmax()])


def test_tokens_that_vectors_read_are_counted_one_by_one(scattered, documents, tmp_path):
    """Against a loop with the encoder's tokenizer, over passages that are too long for the encoder too."""
    encoder = Encoder(str(scattered), EncoderArguments([str(scattered)], prompt="read this: ", max_seq_length=24))
    reading = build(tmp_path, documents[30:], encoder, WORDS).reading
    tokenizer = encoder.model.tokenizer
    room = 24 - len(tokenizer("read this: ")["input_ids"])
    expected = []
    for document in documents[30:]:
        sizes = [len(tokenizer.tokenize(passage.text)) for passage in to_passages(document.text, WORDS)]
        expected.append([sum(sizes), sum(min(size, room) for size in sizes), min(sum(sizes), room)])
    (segment,) = IndexReader(tmp_path).segments
    assert segment.tokens.tolist() == expected
    total, in_passages, in_documents = np.sum(expected, axis=0)
    assert in_documents < in_passages < total
    assert f"Search covers {np.floor(1000 * in_passages / total) / 10:g} % of the text" in reading


def test_a_prompt_that_fills_the_encoder_leaves_no_room(scattered, documents, tmp_path):
    """None of a document is read then, and not less."""
    options = EncoderArguments([str(scattered)], prompt="read this at length: " * 9, max_seq_length=16)
    encoder = Encoder(str(scattered), options)
    reading = build(tmp_path, documents[:5], encoder, WORDS).reading
    assert "Search covers 0 % of the text" in reading
    assert encoder.count_tokens(["a ship"])[1] == 0
