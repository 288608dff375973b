"""The benchmark of search compares the same measures of the same vectors. No time is asserted."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.speed import retrieval


def test_contenders_measure_the_same():
    sizes = {"documents": 3000, "queries": 40, "width": 128}
    ours = retrieval.Ours(*retrieval.make_vectors(**sizes), depth=100).evaluate()
    theirs = retrieval.Theirs(*retrieval.make_vectors(**sizes)).evaluate()
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-6)
    assert 0.05 < ours["ndcg_at_10"] < 0.95


def test_what_it_writes(run_here, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(retrieval, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))
    sizes = ["--documents", 2500, "--queries", 20, "--width", 8, "--rounds", 1]
    run_here(retrieval.main, *sizes, "--output", tmp_path / "retrieval.json")
    results = json.loads((tmp_path / "retrieval.json").read_text())
    assert {*results["rows"]} == {retrieval.OURS, retrieval.DEEP, retrieval.THEIRS}
    ours, theirs = results["rows"][retrieval.OURS], results["rows"][retrieval.THEIRS]
    assert ours["time_ratio"] == pytest.approx(ours["seconds"] / theirs["seconds"])
    assert theirs["time_ratio"] == theirs["memory_ratio"] == 1
    assert (tmp_path / "retrieval.md").read_text() in capsys.readouterr().out
