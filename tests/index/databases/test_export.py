"""An index in a vector database: a new one is a class and a row, and gets every passage once."""

import dataclasses
import json

import numpy as np
import pytest
from docsplit.index.databases.export import DATABASES, export
from docsplit.index.vectors import with_words_of

import search
from docsplit.data.passages import to_passages
from docsplit.data.readers.base import Document
from docsplit.index.changes import add, build, delete
from docsplit.index.databases import export as databases
from docsplit.index.index import Index
from docsplit.index.results import Exported
from tests.index.conftest import ENCODER, WORDS, embed

LONGEST = 60  # letters of a text


class Memory:
    """A database as small as one can be: its collections are lists."""

    collections: dict

    def __init__(self, uri, name):
        self.name = name

    def create(self, dimension, replace):
        if self.name in self.collections and not replace:
            raise ValueError(f"There is a collection {self.name!r} already.")
        assert dimension == 8
        self.collections[self.name] = []

    def insert(self, passages):
        self.collections[self.name] += [
            dataclasses.replace(passage, text=passage.text[:LONGEST]) for passage in passages
        ]
        return sum(len(passage.text) > LONGEST for passage in passages)

    def count(self):
        return len(self.collections[self.name])


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(Memory, "collections", {}, raising=False)
    monkeypatch.setitem(DATABASES, "memory", Memory)
    monkeypatch.setattr(databases, "BATCH", 7)
    return Memory.collections


@pytest.fixture
def index(documents, tmp_path):
    build(tmp_path / "index", documents, ENCODER, WORDS)
    delete(tmp_path / "index", [documents[3].id])
    return Index(tmp_path / "index")


def test_a_database_gets_all_passages_with_their_vectors(index, documents, memory, run_here, capsys, caplog):
    expected = [(document, number, passage.text) for document in documents if document.id != documents[3].id
                for number, passage in enumerate(to_passages(document.text, WORDS))]  # fmt: skip
    num_cut = sum(len(text) > LONGEST for _, _, text in expected)
    assert len(expected) % databases.BATCH
    run_here(search.main, "export", index.directory, "--to", "memory", "here", "--name", "notes", "--json")
    assert json.loads(capsys.readouterr().out) == {"passages": len(expected), "cut": num_cut}
    assert f"{num_cut} texts were cut" in caplog.text
    assert [(saved.id, saved.document, saved.title, saved.text) for saved in memory["notes"]] == [
        (f"{document.id}#{number}", document.id, document.title, text[:LONGEST]) for document, number, text in expected
    ]
    np.testing.assert_array_equal(
        [saved.vector for saved in memory["notes"]], embed([text for _, _, text in expected])
    )


def test_a_collection_is_replaced_only_if_asked(index, memory):
    exported = export(index, "memory", "here")
    with pytest.raises(ValueError, match="There is a collection 'documents'"):
        export(index, "memory", "here")
    assert export(index, "memory", "here", replace=True) == exported == Exported(index.num_passages(), exported.cut)


def test_a_collection_that_lacks_passages_is_an_error(index, memory, monkeypatch):
    monkeypatch.setattr(Memory, "count", lambda self: 5)
    with pytest.raises(ValueError, match=r"holds 5 of \d+ passages: export again"):
        export(index, "memory", "here")


def test_a_database_that_is_not_there_says_so(index):
    with pytest.raises(ValueError, match="no database 'oracle', expected one of milvus"):
        export(index, "oracle", "x")


def test_the_help_names_all_databases(memory, run_here, capsys):
    with pytest.raises(SystemExit):
        run_here(search.main, "export", "--help")
    assert "milvus, memory" in capsys.readouterr().out


def test_an_empty_title_and_a_strange_id_arrive(tmp_path, memory):
    build(tmp_path / "one", [Document("ä long", "A text.")], ENCODER, WORDS)
    export(Index(tmp_path / "one"), "memory", "here")
    (passage,) = memory["documents"]
    assert (passage.id, passage.document, passage.title) == ("ä long#0", "ä long", "")


def test_a_database_gets_vectors_with_words(documents, worded, worded_encoder, memory, monkeypatch, tmp_path):
    """A search in it compares them with queries without."""
    monkeypatch.setattr(Memory, "create", lambda self, dimension, replace: self.collections.update({self.name: []}))
    build(tmp_path, documents[:25], worded_encoder, WORDS)
    add(tmp_path, [], worded_encoder, refit="always")
    index = Index(tmp_path)
    export(index, "memory", "here")
    used = with_words_of(worded_encoder.with_words, tmp_path, index.manifest)
    expected = used.embed_for_index([passage.text for passage in index.passages()])
    np.testing.assert_allclose([saved.vector for saved in memory["documents"]], expected, atol=1e-5)
    assert np.abs(expected - worded_encoder.embed([passage.text for passage in index.passages()])).max() > 0.01
