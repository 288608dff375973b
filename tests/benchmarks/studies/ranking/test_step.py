"""The step of the study of training for ranking: rows over folds, and no fold is trained twice."""

import csv
from argparse import Namespace

import pytest

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.ranking import step


def write_queries(folder, first, values):
    folder.mkdir()
    with (folder / "queries.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["encoder", "method", "query_id", *step.MEASURES])
        for method, shift in (("dense", 0.0), ("bm25", 0.1), ("bm25 k1=0.9 b=0.4", 0.9)):
            for number, value in enumerate(values):
                table.writerow(["x", method, f"q{first + number}", *[value + shift] * len(step.MEASURES)])


def test_rows_are_means_over_the_queries_of_all_folds(tmp_path):
    write_queries(tmp_path / "0", 0, [0.2, 0.4])
    write_queries(tmp_path / "1", 2, [0.9])
    rows = {(row["method"], row["metric"]): row for row in step.rows_of([tmp_path / "0", tmp_path / "1"], "graph")}
    assert {method for method, _ in rows} == {"BM25", "graph, dense"}
    assert rows["graph, dense", "ndcg_at_10"]["value"] == pytest.approx(0.5)
    tested = rows["BM25", "ndcg_at_10"]
    assert tested[SAMPLES] == pytest.approx([0.3, 0.5, 1.0])  # of q0, q1 and q2
    assert 0.3 <= tested["low"] < tested["value"] < tested["high"] <= 1.0
    assert rows["BM25", "mrr_at_10"]["value"] == pytest.approx(0.6)
    assert {measure for (_, measure), row in rows.items() if SAMPLES in row} == {step.TESTED}


def test_a_step_trains_each_fold_once(tmp_path, monkeypatch):
    calls = []

    def run(script, *words):
        calls.append((script, words))
        folder = tmp_path / "bm25+self-1"
        (folder / "encoder").mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text("{}") if script == "run_document_retrieval.py" else None

    monkeypatch.setattr(step, "run", run)
    options = Namespace(work_dir=tmp_path, encoder="start", train="--corpus c", measure="--collection c", folds=5)
    for _ in range(2):
        assert step.train_and_measure(options, "bm25+self", 1) == tmp_path / "bm25+self-1"
    (_, trained), (_, measured) = calls
    assert [*trained[trained.index("--negatives") :]] == ["--negatives", "bm25", "self", "--folds", 5, "--fold", 1]
    assert measured[-4:] == ("--folds", 5, "--fold", 1)
    assert not (tmp_path / "bm25+self-1" / "encoder").exists()
