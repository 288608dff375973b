"""An index in a vector database: it gets every passage once. Milvus is an extra: `make test-engines`."""

import dataclasses
import json

import numpy as np
import pytest

import search
from docsplit.data.passages import to_passages
from docsplit.data.readers.base import Document
from docsplit.index import databases
from docsplit.index.changes import build, delete
from docsplit.index.databases import DATABASES, LONGEST_TEXT, _cut, export
from docsplit.index.index import Index
from docsplit.index.results import Exported
from tests.conftest import free_port
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


def test_without_its_client_the_error_names_the_remedy(index, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pymilvus", None)
    with pytest.raises(ValueError, match="pip install pymilvus"):
        export(index, "milvus", "x.db")


def test_a_cut_text_fits_a_field_and_is_no_broken_letter():
    text = "a" + "ä" * 40_000
    assert len(_cut(text, LONGEST_TEXT).encode()) == LONGEST_TEXT
    assert len(_cut(text, LONGEST_TEXT - 1).encode()) == LONGEST_TEXT - 2
    assert text.startswith(_cut(text, LONGEST_TEXT - 1))
    assert _cut("short", LONGEST_TEXT) == "short"


@pytest.fixture(params=["milvus_lite", "milvus"])
def uri(request, tmp_path):
    """A file, and a real server."""
    engine = pytest.importorskip(request.param)
    if request.param == "milvus_lite":
        yield str(tmp_path / "notes.db")
        return
    server = engine.MilvusServer()
    server.set_base_dir(str(tmp_path / "milvus"))
    server.listen_port = free_port()
    server.start()
    yield f"http://{server.server_address}:{server.listen_port}"
    server.stop()


@pytest.mark.engines
def test_milvus_gives_the_answers_of_the_index(documents, queries, tmp_path, uri, run_here, capsys):
    pymilvus = pytest.importorskip("pymilvus")
    build(tmp_path / "long", [*documents, Document("ä long", f"{'ä' * 40_000} and more.")], ENCODER, WORDS)
    delete(tmp_path / "long", [documents[3].id])
    index = Index(tmp_path / "long")
    count = index.num_passages()
    assert export(index, "milvus", uri) == Exported(count, cut=1)
    with pytest.raises(ValueError, match="There is a collection 'documents'"):
        export(index, "milvus", uri)
    capsys.readouterr()
    run_here(search.main, "export", index.directory, "--to", "milvus", uri, "--replace", "--json")
    assert json.loads(capsys.readouterr().out) == {"passages": count, "cut": 1}
    client = pymilvus.MilvusClient(uri)
    for query in queries:
        vector = embed([query])[0]
        (hits,) = client.search("documents", [vector.tolist()], limit=20, output_fields=["document", "text"])
        expected = index.search(vector, [], 5, "dense")
        best = {}
        for hit in hits:
            best.setdefault(hit["entity"]["document"], (hit["distance"], hit["entity"]["text"]))
        assert list(best)[:5] == [hit.id for hit in expected]
        for hit in expected:
            assert best[hit.id][0] == pytest.approx(hit.score, abs=1e-5)
            assert hit.passage.startswith(best[hit.id][1])
