"""Search by an inverted file: with all cells read, it is the exact one. faiss is an extra: `make test-engines`."""

import sys

import pytest

from docsplit.embedding import inverted_file
from docsplit.index import approximate
from docsplit.index.changes import add, build, delete
from docsplit.index.index import Index
from tests.index.conftest import ENCODER, WORDS, answers, embed


def test_millions_of_passages_are_found_in_cells(documents, queries, built, tmp_path, monkeypatch):
    """With so many cells read as the recall asks for, the answers are those of an exact search, also after changes."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "PASSAGES", 60)
    monkeypatch.setattr(inverted_file, "RECALL", 1.0)
    build(tmp_path, documents[:40], embed, ENCODER, WORDS)
    first = Index(tmp_path).manifest.approximate
    assert first.recall == 1.0
    add(tmp_path, documents[40:42], embed, ENCODER)  # few: not in a cell
    assert Index(tmp_path).manifest.approximate == first
    delete(tmp_path, [documents[0].id])
    assert documents[0].id not in {hit[0] for hits in answers(tmp_path, queries, "dense", 20) for hit in hits}
    add(tmp_path, [documents[0], *documents[42:]], embed, ENCODER)
    assert Index(tmp_path).manifest.approximate.file != first.file
    assert answers(tmp_path, queries, "dense") == answers(built, queries, "dense")
    delete(tmp_path, [])
    assert len(list(tmp_path.glob("approximate-*"))) == 1
    monkeypatch.setitem(sys.modules, "faiss", None)
    approximate._read.cache_clear()
    with pytest.raises(ValueError, match="pip install faiss-cpu"):
        answers(tmp_path, queries, "dense")
