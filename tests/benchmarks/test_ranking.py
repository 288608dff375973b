"""The study of training for ranking: its cells, the rows of a step, and what its tables say."""

import csv
import json
from argparse import Namespace

import pytest

from benchmarks.engine.study import Study
from benchmarks.studies.ranking import report as ranking
from benchmarks.studies.ranking import step as ranking_step


def test_cells_have_what_they_need(tmp_path):
    for name in ("cranfield", "wikipedia", "start"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.parquet").write_text(name)
    given = {"data_dir": str(tmp_path), "start": str(tmp_path / "start")}
    cells, waiting = Study(ranking.STUDY, tmp_path, given).cells()
    assert not waiting
    assert len(cells) == 3 * 7
    assert min(cell.name for cell in cells.values()) == "docsplit data=cranfield folds=3"  # no options in it
    known = {"{data_dir}", "{start}", "{folder}"}  # what is left to the run
    for cell in cells.values():
        words = json.dumps(cell.steps)
        for name in known:
            words = words.replace(name, "")
        options = [step["options"] for step in cell.steps]
        assert all(isinstance(one, dict) for one in options)
        assert not [part for part in words.split("{")[1:] if not part.startswith(('"', "}"))]  # all were resolved
    methods = {step["options"].get("method") for cell in cells.values() for step in cell.steps} - {None}
    kinds = {f"{method}, {kind}" for method in methods for kind in ("random", "bm25", "bm25+self")} | {"start"}
    tested = {name.rpartition(", ")[0] for pair in ranking.ORDERINGS for name in pair[:2]} - {""}
    assert tested <= kinds


def write_queries(folder, first, values):
    folder.mkdir()
    with (folder / "queries.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["encoder", "method", "query_id", *ranking_step.MEASURES])
        for method, shift in (("dense", 0.0), ("bm25", 0.1), ("bm25 k1=0.9 b=0.4", 0.9)):
            for number, value in enumerate(values):
                table.writerow(["x", method, f"q{first + number}", *[value + shift] * len(ranking_step.MEASURES)])


def test_rows_are_means_over_the_queries_of_all_folds(tmp_path):
    write_queries(tmp_path / "0", 0, [0.2, 0.4])
    write_queries(tmp_path / "1", 2, [0.9])
    rows = {
        (row["method"], row["metric"]): row for row in ranking_step.rows_of([tmp_path / "0", tmp_path / "1"], "graph")
    }
    assert {method for method, _ in rows} == {"BM25", "graph, dense"}
    assert rows["graph, dense", "ndcg_at_10"]["value"] == pytest.approx(0.5)
    assert rows["BM25", "ndcg_at_10"]["queries"] == pytest.approx({"q0": 0.3, "q1": 0.5, "q2": 1.0})
    assert rows["BM25", "mrr_at_10"]["value"] == pytest.approx(0.6)
    assert {measure for (_, measure), row in rows.items() if "queries" in row} == {ranking.TESTED}


def test_a_step_trains_each_fold_once(tmp_path, monkeypatch):
    calls = []

    def run(script, *words):
        calls.append((script, words))
        folder = tmp_path / "bm25+self-1"
        (folder / "encoder").mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text("{}") if script == "run_document_retrieval.py" else None

    monkeypatch.setattr(ranking_step, "run", run)
    options = Namespace(work_dir=tmp_path, encoder="start", train="--corpus c", measure="--collection c", folds=5)
    for _ in range(2):
        assert ranking_step.train_and_measure(options, "bm25+self", 1) == tmp_path / "bm25+self-1"
    (_, trained), (_, measured) = calls
    assert [*trained[trained.index("--negatives") :]] == ["--negatives", "bm25", "self", "--folds", 5, "--fold", 1]
    assert measured[-4:] == ("--folds", 5, "--fold", 1)
    assert not (tmp_path / "bm25+self-1" / "encoder").exists()


def test_tables_test_the_orderings_and_show_the_papers_numbers(tmp_path):
    def rows(method, values):
        queries = {f"q{number}": value for number, value in enumerate(values)}
        own = {"data": "cranfield", "method": method, "value": sum(values) / len(values), "queries": queries}
        return [own | {"metric": metric} for metric in ranking.MEASURES]

    low, high = [0.1 + 0.01 * number for number in range(20)], [0.4 + 0.01 * number for number in range(20)]
    content = [*rows("BM25", low), *rows("graph, bm25, dense", high), *rows("graph, random, dense", low)]
    content += rows("graph, bm25, hybrid", low) + rows("BM25", high)  # the second one is another cell's
    results = {"rows": content, "not_run": [], "waiting": {}, "cells": {}}
    lines = ranking.markdown(results).replace(" ", "").splitlines()
    assert "|BM25|19.5|19.5|19.5|" in lines
    (hard,) = [line for line in lines if line.startswith("|hardnegativeshelp")]
    assert hard.endswith("|holds|")
    assert "|+30.0|" in hard
    (hybrid,) = [line for line in lines if line.startswith("|hybridbeatsBM25")]
    assert hybrid.endswith("|nottoldapart|")
    assert any(line.startswith("|graph,hybrid|43.90/37.21|37.60/61.44|39.38/30.52/21.98|") for line in lines)
    ranking.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
