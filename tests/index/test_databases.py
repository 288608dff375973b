"""An index in a vector database: it gets every passage once. Milvus is an extra: `make test-engines`."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import search
from docsplit.data.passages import to_passages
from docsplit.data.readers.base import Document
from docsplit.index import databases
from docsplit.index.changes import build, delete
from docsplit.index.databases import LONGEST_TEXT, cut, write_database
from docsplit.index.index import IndexReader
from docsplit.index.results import Exported
from tests.conftest import free_port
from tests.index.conftest import ENCODER, WORDS, embed

LONGEST = 60  # bytes of a text


class Client:
    """As much of Milvus as an export needs: its collections are lists in memory."""

    collections: dict
    lost = 0

    def __init__(self, uri):
        if uri == "nowhere":
            raise OSError("no answer\n here")

    def has_collection(self, name):
        return name in self.collections

    def drop_collection(self, name):
        del self.collections[name]

    def create_schema(self, auto_id):
        fields = {}
        return SimpleNamespace(fields=fields, add_field=lambda name, kind, **given: fields.update({name: given}))

    def prepare_index_params(self):
        return SimpleNamespace(add_index=lambda name, **given: None)

    def create_collection(self, name, schema, index_params):
        assert [field for field, given in schema.fields.items() if given.get("is_primary")] == ["id"]
        assert schema.fields["vector"]["dim"] == 8
        assert schema.fields["text"]["max_length"] == LONGEST
        self.collections[name] = []

    def insert(self, name, rows):
        assert len(rows) <= databases.BATCH
        self.collections[name] += rows

    def flush(self, name):
        pass

    def query(self, name, output_fields):
        return [{"count(*)": len(self.collections[name]) - self.lost}]


@pytest.fixture
def memory(monkeypatch):
    milvus = SimpleNamespace(
        MilvusClient=Client,
        exceptions=SimpleNamespace(MilvusException=RuntimeError),
        DataType=SimpleNamespace(VARCHAR="text", FLOAT_VECTOR="vector"),
    )
    monkeypatch.setitem(sys.modules, "pymilvus", milvus)
    monkeypatch.setattr(Client, "collections", {}, raising=False)
    monkeypatch.setattr(databases, "BATCH", 11)
    monkeypatch.setitem(databases.LONGEST, "text", LONGEST)
    return Client.collections


@pytest.fixture
def index(documents, tmp_path):
    build(tmp_path / "index", documents, ENCODER, WORDS)
    delete(tmp_path / "index", [documents[3].id])
    return IndexReader(tmp_path / "index")


def test_a_database_gets_all_passages_with_their_vectors(index, documents, memory, run_here, capsys, caplog):
    expected = [(document, number, passage.text) for document in documents if document.id != documents[3].id
                for number, passage in enumerate(to_passages(document.text, WORDS))]  # fmt: skip
    num_cut = sum(len(text) > LONGEST for _, _, text in expected)
    assert len(expected) % databases.BATCH
    run_here(search.main, "export", index.directory, "--to", "milvus", "here", "--name", "notes", "--json")
    assert json.loads(capsys.readouterr().out) == {"passages": len(expected), "cut": num_cut}
    assert f"{num_cut} texts were cut" in caplog.text
    assert [(saved["id"], saved["document"], saved["title"], saved["text"]) for saved in memory["notes"]] == [
        (f"{document.id}#{number}", document.id, document.title, text[:LONGEST]) for document, number, text in expected
    ]
    np.testing.assert_array_equal(
        [saved["vector"] for saved in memory["notes"]], embed([text for _, _, text in expected])
    )


def test_a_collection_is_replaced_only_if_asked_and_is_whole_in_the_end(index, memory, monkeypatch):
    exported = write_database(index, "here")
    with pytest.raises(ValueError, match="There is a collection 'documents'"):
        write_database(index, "here")
    assert write_database(index, "here", replace=True) == exported == Exported(index.num_passages(), exported.cut)
    monkeypatch.setattr(Client, "lost", 5)
    with pytest.raises(ValueError, match=r"holds \d+ of \d+ passages: export again"):
        write_database(index, "here", replace=True)


def test_ids_of_any_letters_arrive_and_too_long_ones_are_refused(tmp_path, memory):
    build(tmp_path / "one", [Document("ä long", "A text.")], ENCODER, WORDS)
    write_database(IndexReader(tmp_path / "one"), "here")
    (passage,) = memory["documents"]
    assert (passage["id"], passage["document"], passage["title"]) == ("ä long#0", "ä long", "")
    build(tmp_path / "two", [Document("ä" * 512, "A text.")], ENCODER, WORDS)
    with pytest.raises(ValueError, match=r"The id 'ä{40}'\.\.\. is longer than 1024 bytes"):
        write_database(IndexReader(tmp_path / "two"), "here", "other")


def test_without_its_client_or_its_server_the_error_is_a_line(index, memory, monkeypatch):
    with pytest.raises(ValueError, match="No Milvus answers at nowhere: no answer here"):
        write_database(index, "nowhere")
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(ValueError, match="pip install pymilvus"):
        write_database(index, "x.db")


def test_a_cut_text_fits_a_field_and_is_no_broken_letter():
    text = "a" + "ä" * 40_000
    assert len(cut(text, LONGEST_TEXT).encode()) == LONGEST_TEXT
    assert len(cut(text, LONGEST_TEXT - 1).encode()) == LONGEST_TEXT - 2
    assert text.startswith(cut(text, LONGEST_TEXT - 1))
    assert cut("short", LONGEST_TEXT) == "short"


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
    index = IndexReader(tmp_path / "long")
    count = index.num_passages()
    assert write_database(index, uri) == Exported(count, cut=1)
    with pytest.raises(ValueError, match="There is a collection 'documents'"):
        write_database(index, uri)
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
