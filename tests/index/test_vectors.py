"""An index of an encoder that adds words: documents and passages have them, and queries have none."""

import dataclasses
import shutil

import numpy as np
import pytest

from docsplit.data.passages import to_passages
from docsplit.data.readers.base import Document
from docsplit.embedding.arguments import EncoderArguments
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.loading import load_encoder
from docsplit.index import changes
from docsplit.index.changes import add, build, delete
from docsplit.index.index import Index
from docsplit.index.manifest import TokensEntry, WordsEntry, read_manifest
from docsplit.index.vectors import IndexEncoder, Vectors, texts_to_embed, with_words_of
from tests.index.conftest import WORDS


def test_what_is_embedded_is_taken_apart_and_put_together():
    texts, passages = ["a b", "c", "d e f"], [["a", "b"], ["c."], ["d", "e", "f"]]
    together = texts_to_embed(texts, passages)
    assert together == ["a", "b", "c.", "d", "e", "f", "a b", "d e f"]
    number = {text: row for row, text in enumerate(together)}
    embedded = np.array([[number[text], 0] for text in together], dtype=np.float32)
    vectors = Vectors.of(embedded, [2, 1, 3])
    assert vectors.documents[:, 0].tolist() == [number["a b"], number["c."], number["d e f"]]
    assert vectors.passages[:, 0].tolist() == [number[text] for several in passages for text in several]
    np.testing.assert_array_equal(vectors.together([2, 1, 3]), embedded)
    vectors.documents[1] = -1  # is no view of the passage
    assert vectors.passages[2, 0] == number["c."]


def test_documents_carry_words_and_queries_none(worded, worded_encoder, documents, queries, tmp_path):
    assert build(tmp_path, documents, worded_encoder, WORDS).documents == len(documents)
    index, model = Index(tmp_path), load_encoder(str(worded))
    assert index.manifest.words == WordsEntry(None, len(documents))
    (segment,) = index.segments
    passages = [[passage.text for passage in to_passages(document.text, WORDS)] for document in documents]
    whole = [several[0] if len(several) == 1 else document.text for several, document in zip(passages, documents)]
    flat = [passage for several in passages for passage in several]
    assert sum(len(several) > 1 for several in passages) > 5
    np.testing.assert_allclose(
        segment.document_vectors, model.encode_document(whole, normalize_embeddings=True), atol=1e-5
    )
    np.testing.assert_allclose(
        segment.passage_vectors, model.encode_document(flat, normalize_embeddings=True), atol=1e-5
    )
    plain = segment.plain_vectors()
    np.testing.assert_allclose(plain.documents, model.encode_query(whole, normalize_embeddings=True), atol=1e-5)
    np.testing.assert_allclose(plain.passages, model.encode_query(flat, normalize_embeddings=True), atol=1e-5)
    assert np.abs(plain.documents - segment.document_vectors).max() > 0.05
    # A search compares queries without words with passages that have them.
    encoder = Encoder(str(worded))
    for query in queries[:3]:
        vector = encoder.embed_query(query)
        np.testing.assert_allclose(vector, model.encode_query(query, normalize_embeddings=True), atol=1e-2)
        scores = model.encode_document(flat, normalize_embeddings=True) @ vector
        (hit,) = index.search(vector, [], 1, "dense")
        assert (hit.score, hit.passage) == (pytest.approx(scores.max(), abs=1e-5), flat[scores.argmax()])


def test_without_words_there_is_nothing_more_than_before(scattered, documents, tmp_path):
    encoder = IndexEncoder.of(Encoder(str(scattered)))
    assert encoder.with_words is None
    build(tmp_path, documents[:5], encoder, WORDS)
    (segment,) = Index(tmp_path).segments
    assert not segment.has_plain_vectors
    assert '"words"' not in (tmp_path / "manifest.json").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "lock", "segments"}
    assert encoder.in_index(tmp_path, Index(tmp_path).manifest) is encoder


def test_words_that_are_gone_or_damaged_are_named(worded, worded_encoder, documents, tmp_path):
    build(tmp_path, documents[:5], worded_encoder, WORDS)
    encoder, index = worded_encoder.with_words, Index(tmp_path)
    assert with_words_of(encoder, tmp_path, index.manifest) is encoder  # its own
    add(tmp_path, documents[5:30], worded_encoder)
    manifest = Index(tmp_path).manifest
    file = tmp_path / manifest.words.folder / "words.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"words\.safetensors has changed since it was written"):
        with_words_of(encoder, tmp_path, manifest)
    shutil.rmtree(file.parent)
    with pytest.raises(ValueError, match=r"words-\w+: files\.json is missing\. Try again if another process"):
        with_words_of(encoder, tmp_path, manifest)


def test_tokens_that_vectors_read_are_counted_one_by_one(scattered, documents, tmp_path):
    """Against a loop with the encoder's tokenizer, over passages that are too long for the encoder too."""
    encoder = Encoder(str(scattered), EncoderArguments([str(scattered)], prompt="read this: ", max_seq_length=24))
    prepared = IndexEncoder.of(encoder)
    reading = build(tmp_path, documents[30:], prepared, WORDS).reading
    tokenizer = encoder.model.tokenizer
    room = 24 - len(tokenizer("read this: ")["input_ids"])
    total = in_passages = in_documents = 0
    for document in documents[30:]:
        passages = to_passages(document.text, WORDS)
        sizes = [len(tokenizer.tokenize(passage.text)) for passage in passages]
        total += sum(sizes)
        in_passages += sum(min(size, room) for size in sizes)
        in_documents += min(sum(sizes), room)
    assert in_documents < in_passages < total
    assert read_manifest(tmp_path).tokens == TokensEntry(total, in_passages, in_documents)
    assert f"search {100 * in_passages / total:.0f} % of your documents' tokens" in reading
    assert f"maps see {100 * in_documents / total:.0f} %" in reading


def test_a_prompt_that_fills_the_encoder_leaves_no_room(scattered, documents, tmp_path):
    """None of a document is read then, and not less."""
    options = EncoderArguments([str(scattered)], prompt="read this at length: " * 9, max_seq_length=16)
    encoder = Encoder(str(scattered), options)
    reading = build(tmp_path, documents[:5], IndexEncoder.of(encoder), WORDS).reading
    assert "Queries search 0 % of your documents' tokens" in reading
    assert encoder.count_tokens(["a ship"])[1] == 0


@pytest.fixture
def reads_little(scattered):
    """An encoder that reads less than a passage."""
    return IndexEncoder.of(Encoder(str(scattered), EncoderArguments([str(scattered)], max_seq_length=16)))


def test_tokens_are_those_of_an_index_that_was_built_so(reads_little, documents, tmp_path, monkeypatch):
    """After additions, replacements, deletions, and a merge of the segments."""
    changed, built_so = tmp_path / "changed", tmp_path / "built"
    shorter = [Document(document.id, document.text[:50]) for document in documents[60:63]]

    def assert_same(kept, reading=None):
        shutil.rmtree(built_so, ignore_errors=True)
        expected = build(built_so, kept, reads_little, WORDS).reading
        assert read_manifest(changed).tokens == read_manifest(built_so).tokens
        assert read_manifest(changed).reading() == expected
        assert reading in (None, expected)

    build(changed, documents[55:], reads_little, WORDS)
    assert_same(documents[:10] + documents[55:], add(changed, documents[:10], reads_little).reading)
    reading = add(changed, shorter, reads_little, replace=True).reading
    assert_same(documents[:10] + documents[55:60] + shorter + documents[63:], reading)
    delete(changed, [document.id for document in documents[63:]])
    assert_same(documents[:10] + documents[55:60] + shorter)
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 1)
    add(changed, documents[10:12], reads_little)
    assert len(read_manifest(changed).segments) == 1
    assert_same(documents[:12] + documents[55:60] + shorter)


@pytest.mark.parametrize("merged", [False, True])
def test_an_index_without_counts_of_tokens_opens_and_says_nothing(
    merged, reads_little, documents, tmp_path, monkeypatch
):
    build(tmp_path, documents[:10], dataclasses.replace(reads_little, count_tokens=None), WORDS)
    assert not list(tmp_path.glob("segments/*/tokens.npy"))
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 1 if merged else 16)
    assert add(tmp_path, documents[10:20], reads_little).reading is None
    assert read_manifest(tmp_path).tokens is None
    assert len(Index(tmp_path)) == 20
