"""The other benchmarks of speed, each in its smallest form: they measure what they say. No time is asserted."""

import contextlib
import json
import os

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import graph_document, micro_batches, probing, search, serving
from docsplit import Index
from docsplit.evaluation.heads.table import HEADS
from docsplit.modeling.loading import load_encoder
from tests.conftest import make_corpus
from tests.index.test_serving import serving_from


@pytest.fixture
def written(run_here, tmp_path):
    """Runs a benchmark and returns the JSON that it writes."""

    def run(module, *options):
        run_here(module.main, *options, "--output", tmp_path / "results.json")
        return json.loads((tmp_path / "results.json").read_text())

    return run


def test_a_step_of_graphs_is_the_papers_and_its_operations_are_those_that_are_needed(monkeypatch):
    """Passages of one length, so that there is no padding among tokens; in graphs there is a little."""
    monkeypatch.setattr(graph_document, "DEVIATION", 0)
    batch = graph_document.make_batch(6, 30522)
    rows = {name: values.numpy() for name, values in batch["rows"].items()}
    for document in range(6):
        is_inside = rows["document"] == document
        assert (rows["view"][is_inside] == 0).sum() == is_inside.sum() // 2
        assert sorted(rows["position"][is_inside]) == list(range(is_inside.sum()))
    model = graph_document.make_model(4096)
    model.set_attn_implementation("eager")  # whose products are counted
    with FlopCounterMode(display=False) as counted:
        model(**batch).loss.backward()
    lengths = batch["attention_mask"].sum(dim=1).numpy()
    needed = graph_document.needed_flops(rows["view"], rows["document"], lengths)
    assert np.isclose(counted.get_total_flops(), sum(needed.values()), rtol=0.02)


def test_both_searches_find_what_a_loop_finds(written, monkeypatch, tmp_path):
    for name, value in {"DIMENSION": 16, "CLUSTERS": 5, "QUERIES": 6, "REPEATS": 2}.items():
        monkeypatch.setattr(search, name, value)
    vectors, queries = search.make_vectors(300)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    exact = np.argsort(-(vectors @ queries[0]))[:10].tolist()
    for name, (build, ask) in search.CONTENDERS.items():
        (tmp_path / name).mkdir()
        build(tmp_path / name, vectors, search.make_texts(300))
        assert ask(tmp_path / name, queries)["found"] == exact
    monkeypatch.setattr(search, "in_process", lambda function, *given: function(*given))
    (row,) = written(search, "--sizes", 300, "--rounds", 1)["rows"]
    assert row["same_of_ten"] == 1
    assert row["query_ratio"] == pytest.approx(row["ours_query"] / row["theirs_query"])


def test_micro_batches(written):
    (small, large) = written(micro_batches, "--cuts", "72:1024", "72:36864", "--step_rows", 0)["cuts"]
    assert 1 <= large["micro_batches"] < small["micro_batches"]
    assert 0 < small["padding_share"] < large["padding_share"]


def test_probing_times_every_head(written, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "encoder_of", lambda *_: load_encoder(str(encoder), pooling="mean"))
    for part, seed in (("train", 3), ("test", 4)):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, make_corpus(60, seed))) + "\n")
    files = ["--train_file", tmp_path / "train.jsonl", "--test_file", tmp_path / "test.jsonl"]
    results = written(probing, *files, "--tokenizer_name", encoder, "--rounds", 1, "--shots", 2)
    settings = ("2 shots, 10 draws", "all labels, 3 seeds")
    assert results["head_seconds"].keys() == {f"{head}, {setting}" for head in HEADS for setting in settings}
    assert results["documents"] == pytest.approx(120, abs=2)


def test_serving_is_asked_while_its_index_changes(written, scattered, tmp_path, monkeypatch):
    """Every change is found at once; the server is a thread here, and no command is started."""

    @contextlib.contextmanager
    def here(index):
        with serving_from(index) as server:
            yield server.server_port, os.getpid()

    Index.build([row["text"] for row in make_corpus(12)], scattered, tmp_path / "the.index", passage_words=20)
    monkeypatch.setattr(serving, "ours", here)
    monkeypatch.setattr(serving.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(serving, "SYNCS", 2)
    monkeypatch.setattr(serving, "QUESTIONS", 60)
    results = written(serving, tmp_path / "the.index", "--minutes", 0.01)
    assert results["rows"].keys() == {"search.py query", "search.py serve"}
    assert results["changes"]["failures"] == []
    assert results["changes"]["questions"] > 2
    assert len(results["changes"]["memory"]) == 2
    assert len(Index(tmp_path / "the.index")) == 12  # it was a copy that changed
