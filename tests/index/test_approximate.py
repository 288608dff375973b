"""Search by an inverted file: with all cells read, it is the exact one. faiss is an extra: `make test-engines`."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from docsplit.embedding import neighbours
from docsplit.index import changes
from docsplit.index import index as index_module
from docsplit.index.changes import add, build, cells_of, delete
from docsplit.index.index import IndexReader, InvertedFile, SegmentEntry
from docsplit.index.results import Checked
from docsplit.runtime.files import FileRecord
from tests.index.conftest import ENCODER, WORDS, answers, embed


def test_millions_of_passages_are_found_in_cells(documents, queries, built, tmp_path, monkeypatch):
    """With so many cells read as the recall asks for, the answers are those of an exact search, also after changes."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(changes, "COMPARED_WITH_ALL", 60)
    monkeypatch.setattr(SegmentEntry, "is_small", False)
    monkeypatch.setattr(neighbours, "RECALL", 1.0)
    build(tmp_path, documents[:40], ENCODER, WORDS)
    first = IndexReader(tmp_path).manifest.approximate
    assert first.recall == 1.0
    add(tmp_path, documents[40:42], ENCODER)  # few: not in a cell
    assert IndexReader(tmp_path).manifest.approximate == first
    delete(tmp_path, [documents[0].id])
    assert documents[0].id not in {hit[0] for hits in answers(tmp_path, queries, "dense", 20) for hit in hits}
    add(tmp_path, [documents[0], *documents[42:]], ENCODER)
    assert IndexReader(tmp_path).manifest.approximate.file != first.file
    assert answers(tmp_path, queries, "dense") == answers(built, queries, "dense")
    delete(tmp_path, [])
    (file,) = tmp_path.glob("approximate-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert [fault.startswith(f"{file} has changed") for fault in Checked.of(tmp_path).faults] == [True]
    content[-1] ^= 1
    file.write_bytes(content)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match="pip install faiss-cpu"):
        answers(tmp_path, queries, "dense")


class AllCells:
    """An inverted file that looks everywhere, and gives rows in no order."""

    def __init__(self, vectors):
        self.vectors = vectors

    def search(self, queries, depth):
        rows = np.argsort(-(queries @ self.vectors.T), axis=1)[:, :depth][:, ::-1]
        missing = np.full((len(queries), depth - rows.shape[1]), -1)
        return None, np.concatenate([rows, missing], axis=1)


def test_candidates_are_scored_exactly_wherever_their_passages_lie(documents, queries, tmp_path, monkeypatch):
    """Some segments are in the file, in another order, and one came later."""
    for start in range(0, len(documents), 20):
        change = add if start else build
        change(tmp_path, documents[start : start + 20], ENCODER, *([] if start else [WORDS]))
    delete(tmp_path, [document.id for document in documents[5:10]])
    index, vectors = IndexReader(tmp_path), embed(queries)
    assert len(index.segments) == 4
    covered = {segment.entry.name: segment.passage_vectors for segment in (index.segments[2], index.segments[0])}
    known = InvertedFile("x.faiss", FileRecord(0, ""), list(covered), 1, 1.0)
    index.cells = AllCells(np.concatenate(list(covered.values())))
    monkeypatch.setattr(index_module, "CANDIDATES", sum(map(len, covered.values())))
    index.manifest = dataclasses.replace(index.manifest, approximate=known)
    exact = IndexReader(tmp_path)
    for vector, query in zip(vectors, queries):
        for method in ("dense", "hybrid"):
            hits, expected = (one.search(vector, query, 9, method) for one in (index, exact))
            assert [hit.id for hit in hits] == [hit.id for hit in expected]
            np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in expected], atol=1e-6)


def test_documents_that_words_find_have_their_similarity_though_no_cell_that_is_read_has_them(
    documents, queries, tmp_path, monkeypatch
):
    build(tmp_path, documents, ENCODER, WORDS)
    index, exact = IndexReader(tmp_path), IndexReader(tmp_path)
    known = InvertedFile("x.faiss", FileRecord(0, ""), [segment.entry.name for segment in index.segments], 1, 1.0)
    index.manifest = dataclasses.replace(index.manifest, approximate=known)
    monkeypatch.setattr(index, "_nearest_in_cells", lambda *_: set())
    (vector,) = embed(queries[:1])
    hits = index.search(vector, queries[0], 100, "hybrid")
    assert {hit.id for hit in hits} == {hit.id for hit in index.search(None, queries[0], 100, "bm25")}
    similarities = {hit.id: hit.similarity for hit in exact.search(vector, queries[0], 100, "dense")}
    assert {hit.id: hit.similarity for hit in hits} == {hit.id: similarities[hit.id] for hit in hits}


@pytest.mark.parametrize(("covered", "needed"), [(None, True), ("ab", False), ("a", True), ("abc", True)])
def test_a_new_file_is_made_once_too_many_passages_are_in_no_cell(covered, needed, tmp_path, monkeypatch):
    """Or once a segment that it covers is there no more."""
    segments = [SimpleNamespace(entry=SimpleNamespace(name=name), passage_vectors=np.zeros((50, 2))) for name in "ab"]
    known = covered and InvertedFile("x.faiss", FileRecord(0, ""), list(covered), 1, 1.0)
    monkeypatch.setattr(changes, "COMPARED_WITH_ALL", 100)  # too few
    assert cells_of(tmp_path, segments, known) == (None if covered == "abc" else known)
    monkeypatch.setattr(changes, "COMPARED_WITH_ALL", 99)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert cells_of(tmp_path, segments, known) == (None if needed else known)
