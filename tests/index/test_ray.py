"""Embedding on Ray: the index is that of one process, workers killed too. Ray is an extra: `make test-engines`."""

import json
import signal
import sys
import threading
import time

import numpy as np
import psutil
import pytest

import search
from docsplit.data.readers.documents import read_documents
from docsplit.embedding.encoder import Encoder
from docsplit.index import changes
from docsplit.index import ray as ray_engine
from docsplit.index.index import IndexReader
from tests.conftest import make_corpus


@pytest.fixture(scope="module")
def cluster():
    """Two CPUs."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", "0" * 64)  # or Ray writes one into the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "documents.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": row["text"]}) + "\n"
                            for n, row in enumerate(make_corpus(120))))  # fmt: skip
    return path


@pytest.fixture
def build(documents, scattered, tmp_path, run_here, monkeypatch):
    monkeypatch.setattr(ray_engine, "SHARD_TEXTS", 8)

    def run(name, *words):
        given = ("--model", scattered, "--passage_words", 20, *words)
        run_here(search.main, "build", documents, "--index_dir", tmp_path / name, *given)
        return IndexReader(tmp_path / name)

    return run


def assert_same(index, expected):
    assert [index.segments[0].ids[row] for row in range(len(index))] == [f"d{row}" for row in range(120)]
    (segment,), (wanted_segment,) = index.segments, expected.segments
    np.testing.assert_allclose(segment.passage_vectors, wanted_segment.passage_vectors, atol=1e-5)
    np.testing.assert_allclose(index.document_vectors(), expected.document_vectors(), atol=1e-5)
    assert len(segment.passage_vectors) > 200
    for vector in expected.document_vectors()[:20]:
        hits, wanted = (searched.search(vector, ["kettle"], 10, "dense") for searched in (index, expected))
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in wanted], abs=1e-5)
        assert hits[0].id == wanted[0].id


@pytest.mark.engines
def test_workers_that_are_killed_lose_nothing_and_double_nothing(cluster, build, tmp_path, monkeypatch):
    expected = build("here")
    monkeypatch.setattr(Encoder, "embed_for_index", lambda *arguments: pytest.fail("embedded in this process"))
    killed = []

    def kill_one_that(is_wanted):
        while True:
            children = psutil.Process().children(recursive=True)
            workers = [child for child in children if child.is_running() and is_wanted(" ".join(child.cmdline()))]
            if workers:
                workers[0].send_signal(signal.SIGKILL)
                return workers[0].pid
            time.sleep(0.002)

    def kill():
        killed.append(kill_one_that(lambda title: "MapWorker" in title and "__init__" in title))
        while not [*tmp_path.glob("killed/cache/ray-*/*.f32")]:
            time.sleep(0.002)
        killed.append(kill_one_that(lambda title: "MapWorker" in title and ".submit" in title))
        killed.append(len([*tmp_path.glob("killed/cache/ray-*/*.f32")]))

    thread = threading.Thread(target=kill)
    thread.start()
    index = build("killed", "--engine", "ray")
    thread.join()
    assert len(killed) == 3
    assert killed[2] < 25
    assert_same(index, expected)


@pytest.mark.engines
def test_a_build_that_was_stopped_goes_on(cluster, build, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(changes, "append_segment", full)
    with pytest.raises(OSError, match="No space left"):
        build("stopped", "--engine", "ray")
    monkeypatch.undo()
    monkeypatch.setattr(ray_engine, "SHARD_TEXTS", 8)
    embedded, vectors_of = [], ray_engine._vectors_of
    monkeypatch.setattr(
        ray_engine,
        "_vectors_of",
        lambda shards, encoder_arguments: embedded.extend(shards) or vectors_of([], encoder_arguments),
    )
    index = build("stopped", "--engine", "ray")
    assert embedded == []
    assert_same(index, build("here"))


@pytest.mark.engines
def test_a_worker_that_has_another_encoder_is_refused(cluster, scattered, tmp_path):
    encoder = Encoder(str(scattered), cache_dir=tmp_path)
    encoder.description["hash"] = "0"
    with pytest.raises(ValueError, match=r"is another encoder on .* than where the build starts") as failure:
        ray_engine.embedder_on_ray(encoder)(["A text."])
    assert "\n" not in str(failure.value)
    assert "Traceback" not in str(failure.value)


def without_a_cluster(shards, description):
    """What workers do with shards, in this process, the last one first."""
    worker = ray_engine._Worker(description)
    for shard in reversed(shards):
        given = np.empty(1, dtype=object)
        given[0] = np.array(shard["texts"], dtype=object)
        result = worker({"start": np.array([shard["start"]]), "texts": given})
        vectors = np.frombuffer(result["vectors"][0], dtype=np.float32)
        yield int(result["start"][0]), vectors.reshape(int(result["count"][0]), -1)


def test_workers_embed_with_the_words_of_the_encoder(worded, documents, tmp_path, monkeypatch):
    """As one process does. What has its file is not embedded again, and shards come in any order."""
    monkeypatch.setattr(ray_engine, "SHARD_TEXTS", 8)
    monkeypatch.setattr(ray_engine, "_vectors_of", without_a_cluster)
    encoder = Encoder(str(worded))

    def on_ray(texts):
        return ray_engine._embed(encoder.description, tmp_path / "shards", texts)

    rows = list(read_documents(documents))
    for name, embed in (("here", None), ("ray", on_ray)):
        changes.build(tmp_path / name, rows[:60], encoder, 20, embed=embed)
        changes.add(tmp_path / name, rows[60:91], encoder, embed=embed)
    ours, theirs = IndexReader(tmp_path / "ray"), IndexReader(tmp_path / "here")
    np.testing.assert_allclose(ours.document_vectors(), theirs.document_vectors(), atol=1e-2)
    for one, other in zip(ours.segments, theirs.segments, strict=True):
        np.testing.assert_allclose(one.passage_vectors, other.passage_vectors, atol=1e-2)
    texts = [row.text for row in rows[:60]]
    on_ray(texts)
    monkeypatch.setattr(ray_engine, "_vectors_of", lambda shards, description: iter(shards and pytest.fail("again")))
    np.testing.assert_allclose(on_ray(texts), encoder.embed_for_index(texts), atol=1e-2)


def test_without_ray_the_error_names_the_remedy(build, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'ray\[data\]'"):
        build("index", "--engine", "ray")
    assert not (tmp_path / "index" / "manifest.json").exists()
