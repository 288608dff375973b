"""The benchmark of search: both contenders hold the same and find the same. No time is asserted."""

import json
import re

import numpy as np
import pytest

from benchmarks.speed import search
from tests.processes import ROOT


@pytest.fixture
def small(monkeypatch):
    for name, value in {"DIMENSION": 16, "CLUSTERS": 5, "QUERIES": 6, "REPEATS": 2}.items():
        monkeypatch.setattr(search, name, value)


def test_vectors_have_length_one_and_queries_lie_near_some(small):
    vectors, queries = search.make_vectors(300)
    assert (vectors.shape, queries.shape) == ((300, 16), (6, 16))
    for rows in (vectors, queries):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert (queries @ vectors.T).max(axis=1).min() > 0.98
    texts = search.make_texts(50)
    assert {len(text.split()) for text in texts} == {search.WORDS}


def test_both_find_what_a_loop_finds(small, tmp_path):
    vectors, queries = search.make_vectors(300)
    exact = np.argsort(-(vectors @ queries[0]))[:10].tolist()
    for name, (build, ask) in search.CONTENDERS.items():
        (tmp_path / name).mkdir()
        build(tmp_path / name, vectors, search.make_texts(300))
        answer = ask(tmp_path / name, queries)
        assert answer["found"] == exact
        assert answer.keys() == {"open", "query", "batch", "words", "found"}


def test_rows_are_medians_and_ratios_of_rounds(small, run_here, tmp_path, monkeypatch, capsys):
    seconds = {"ours": iter([1.0, 3.0, 2.0]), "theirs": iter([2.0, 2.0, 2.0])}

    def measure(contender, size, folder):
        assert (folder.parent / "queries.npy").exists()
        value = next(seconds[contender])
        return dict.fromkeys(("build", "query", "memory"), value) | {"found": list(range(10))}

    monkeypatch.setattr(search, "measure", measure)
    run_here(search.main, "--sizes", 300, "--rounds", 3, "--output", tmp_path / "search.json")
    (row,) = json.loads((tmp_path / "search.json").read_text())["rows"]
    assert (row["ours_query"], row["theirs_query"], row["query_ratio"]) == (2.0, 2.0, 1.0)
    assert row["same_of_ten"] == 1
    assert "| 300 | build | 2 s | 2 s | 1.00 |" in (tmp_path / "search.md").read_text()
    assert "300 documents: build 1.00 x, query 1.00 x, memory 1.00" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["search", "search_million"])
def test_committed_tables_show_the_results_and_explain_their_rows(name):
    results = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    text = search.markdown(results)
    assert (ROOT / "benchmarks" / "results" / f"{name}.md").read_text() == text
    for measure in search.UNITS:
        assert re.search(rf"^    {measure} +\w", text, re.MULTILINE), measure
