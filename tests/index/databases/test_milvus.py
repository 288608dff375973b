"""Milvus gives the answers of the index. It is an extra: `make test-engines`."""

import json

import pytest
from docsplit.index.databases.export import export
from docsplit.index.databases.milvus import LONGEST_TEXT, _cut

import search
from docsplit.data.readers.base import Document
from docsplit.index.changes import build, delete
from docsplit.index.index import Index
from docsplit.index.results import Exported
from tests.conftest import free_port
from tests.index.conftest import ENCODER, WORDS, embed


@pytest.fixture
def index(documents, tmp_path):
    long = Document("ä long", f"{'ä' * 40_000} and more.")
    build(tmp_path / "index", [*documents, long], ENCODER, WORDS)
    delete(tmp_path / "index", [documents[3].id])
    return Index(tmp_path / "index")


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
def test_milvus_gives_the_answers_of_the_index(index, queries, uri, run_here, capsys):
    pymilvus = pytest.importorskip("pymilvus")
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
