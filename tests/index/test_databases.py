"""An index in a vector database: what comes out is what went in. The engines are extras: `make test-engines`."""

import json

import numpy as np
import pytest

import search
from docsplit.data.own_documents import Document
from docsplit.data.passages import to_passages
from docsplit.index import databases
from docsplit.index.databases import export, passages_of
from docsplit.index.index import Index, build, delete
from tests.conftest import free_port
from tests.index.test_index import ENCODER, WORDS, documents, embed, queries  # noqa: F401


@pytest.fixture
def index(documents, tmp_path):  # noqa: F811
    long = Document("ä long", f"{'ä' * 40_000} and more.")
    build(tmp_path / "index", [*documents, long], embed, ENCODER | {"dimension": 8}, WORDS)
    delete(tmp_path / "index", [documents[3].id])
    return Index(tmp_path / "index")


def test_all_passages_come_with_their_vectors(index, documents):  # noqa: F811
    kept = [document for document in documents if document.id != documents[3].id]
    found = list(passages_of(index))
    expected = [(document, number, passage.text) for document in kept
                for number, passage in enumerate(to_passages(document.text, WORDS))]  # fmt: skip
    assert [(one.id, one.document, one.title, one.text) for one in found[:-1]] == [
        (f"{document.id}#{number}", document.id, document.title, text) for document, number, text in expected
    ]
    np.testing.assert_array_equal([one.vector for one in found], embed([one.text for one in found]))


def test_a_database_that_is_not_there_says_so(index, monkeypatch):
    with pytest.raises(ValueError, match="no database 'oracle', expected one of milvus"):
        export(index, "oracle", "x")
    monkeypatch.setitem(__import__("sys").modules, "pymilvus", None)
    with pytest.raises(ValueError, match="pip install pymilvus"):
        export(index, "milvus", "x.db")
    assert set(databases.DATABASES) == {"milvus"}


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
def test_milvus_gives_the_answers_of_the_index(index, queries, uri, run_here, capsys):  # noqa: F811
    pymilvus = pytest.importorskip("pymilvus")
    count = sum(1 for _ in passages_of(index))
    assert export(index, "milvus", uri) == {"passages": count, "cut": 1}
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
