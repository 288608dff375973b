"""The overview of an index, against slow versions."""

from dataclasses import replace

import numpy as np
import pytest

from docsplit.index import overview as index_overview
from docsplit.index.changes import build, delete
from docsplit.index.index import IndexReader
from docsplit.index.overview import _most_similar, clusters, duplicates
from tests.index.conftest import ENCODER, WORDS


def test_a_group_names_the_documents_at_its_centre_and_is_named_by_whole_words(documents, tmp_path):
    build(tmp_path, documents, ENCODER, WORDS)
    index = IndexReader(tmp_path)
    title_of = {document.id: document.title for document in documents}
    named = []
    for group in clusters(index, 4):
        assert group.titles == [title_of[name] for name in group.ids]
        texts = [document.text.lower() for document in documents if document.id in group.ids]
        assert all(any(word in text.split() for text in texts) for word in group.words)
        named += group.words
    assert named
    for pair in duplicates(index, 0.5):
        assert (pair.title, pair.other_title) == (title_of[pair.id], title_of[pair.other])


def test_duplicates_are_those_of_all_pairs(documents, tmp_path, monkeypatch, caplog):
    build(tmp_path, documents, ENCODER, WORDS)
    index = IndexReader(tmp_path)
    vectors, ids = index.document_vectors(), [segment.ids[row] for segment, row in index.documents()]
    pairs = [(float(vectors[a] @ vectors[b]), a, b) for a in range(len(ids)) for b in range(a + 1, len(ids))]
    threshold = float(np.quantile([score for score, _, _ in pairs], 0.6))
    expected = [(ids[a], ids[b]) for score, a, b in sorted(pairs, key=lambda scored: -scored[0]) if score >= threshold]
    monkeypatch.setattr(index_overview, "VALUES_AT_ONCE", 7 * len(ids))  # rows at a time
    hits = duplicates(index, threshold)
    assert len(hits) > 100
    assert {(pair.id, pair.other) for pair in hits} == set(expected)
    scores = [pair.score for pair in hits]
    assert scores == sorted(scores, reverse=True)
    assert not caplog.messages
    monkeypatch.setattr(index_overview, "MOST_PAIRS", 20)  # cut off several times on the way
    assert duplicates(index, threshold) == hits[:20]
    assert f"{len(hits)} pairs: the 20 most similar are kept" in caplog.text.replace(",", "")


def test_copies_are_found_at_threshold_1(documents, tmp_path):
    copies = [replace(document, id=f"copy {document.id}") for document in documents]
    build(tmp_path, [*documents, *copies], ENCODER, WORDS)
    found = {frozenset((pair.id, pair.other)) for pair in duplicates(IndexReader(tmp_path), 1)}
    assert {frozenset((document.id, f"copy {document.id}")) for document in documents} <= found


@pytest.mark.parametrize("chunk", [1, 150, 10**6])
@pytest.mark.parametrize("most", [1, 30, 10**6])
def test_of_many_copies_the_first_pairs_are_kept(monkeypatch, chunk, most):
    """Products of small whole numbers are exact, so many are equal."""
    vectors = np.random.default_rng(1).integers(-1, 2, size=(50, 3)).astype(np.float32)
    pairs = [(-float(vectors[a] @ vectors[b]), a, b) for a in range(50) for b in range(a + 1, 50)]
    expected = sorted(pair for pair in pairs if -pair[0] >= 1)
    monkeypatch.setattr(index_overview, "VALUES_AT_ONCE", chunk)
    monkeypatch.setattr(index_overview, "MOST_PAIRS", most)
    rows, values, total = _most_similar(vectors, 1)
    assert [(-value, *pair) for pair, value in zip(rows.tolist(), values.tolist())] == expected[:most]
    assert total == len(expected) > 300


def test_as_many_groups_as_documents_are_most_and_more_are_refused(documents, tmp_path):
    build(tmp_path, documents[:3], ENCODER, WORDS)
    assert [group.size for group in clusters(IndexReader(tmp_path), 3)] == [1, 1, 1]
    assert [group.size for group in clusters(IndexReader(tmp_path))] == [1, 1, 1]  # by default
    with pytest.raises(ValueError, match="4 groups of 3 documents"):
        clusters(IndexReader(tmp_path), 4)


def test_an_emptied_index_has_neither_pairs_nor_groups(documents, tmp_path):
    build(tmp_path, documents[:3], ENCODER, WORDS)
    delete(tmp_path, [document.id for document in documents[:3]])
    assert duplicates(IndexReader(tmp_path)) == clusters(IndexReader(tmp_path)) == []
