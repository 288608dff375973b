"""What a task states, and what it says about a measure of its own."""

import json

import numpy as np
import pytest

from docsplit.evaluation.results.comparison import comparisons, rows
from docsplit.evaluation.results.items import rank_correlation, ratio_of_sums
from docsplit.evaluation.results.records import Report, Row
from docsplit.evaluation.results.report import write_comparison
from docsplit.evaluation.results.tables import result_tables
from docsplit.evaluation.results.task import (
    CLASSIFICATION,
    CLUSTERING,
    LINKS,
    MULTI_LABEL_CLASSIFICATION,
    RANKING,
    Task,
    task_of_file,
)
from tests.evaluation.results.examples import NDCG, cells, json_comparisons, json_rows, make_ranking


def test_a_measure_nobody_has_heard_of_needs_only_its_name(tmp_path):
    """nDCG of each query goes through rows, paired tests, tables and results.json, which says what it is."""
    results = [make_ranking("bm25", 1.0, head="bm25", is_baseline=True)]
    results += [make_ranking("ours", 9.0), make_ranking("theirs", 1.0)]
    table, differences = json_rows(results), json_comparisons(results)
    ours = results[1].measured["ndcg_10"].numerators
    assert table[1]["ndcg_10_mean"] == pytest.approx(ours.mean())
    assert table[1]["ndcg_10_low"] < ours.mean() < table[1]["ndcg_10_high"]
    half = 1.96 * ours.std() / np.sqrt(ours.size)
    assert table[1]["ndcg_10_high"] - table[1]["ndcg_10_low"] == pytest.approx(2 * half, rel=0.15)
    assert {"found_100_low", "found_100_high", "median_rank_mean"} <= table[1].keys()
    assert "median_rank_low" not in table[1]  # no ratio of sums
    assert table[1]["ndcg_of_topic"] == {"ships": pytest.approx(ours[0, ::2].mean()), "bread": None}
    pairs = {(row["a"], row["b"]): row for row in differences}
    assert set(pairs) == {("ours", "bm25"), ("theirs", "bm25"), ("ours", "theirs")}
    assert {row["measure"] for row in differences} == {"ndcg_10"}
    assert pairs["ours", "theirs"]["low"] > 0

    write_comparison(tmp_path, Report(NDCG, rows(results), comparisons(results)))
    markdown = (tmp_path / "results.md").read_text()
    header = ["encoder", "head", "nDCG@10", "Found@100", "seeds", "nDCG@10, 95 % interval"]
    assert header in [cells(line) for line in markdown.split("\n")]
    for heading in ("## Documents for queries", "## nDCG@10 of each topic", NDCG.note):
        assert heading in markdown
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["task"]["measures"] == NDCG.measures
    assert task_of_file(saved) == NDCG
    read = [Row.from_json(row, NDCG) for row in saved["rows"]]
    assert result_tables(read, NDCG) in markdown


@pytest.mark.parametrize("task", [CLASSIFICATION, MULTI_LABEL_CLASSIFICATION, LINKS, RANKING, CLUSTERING, NDCG])
def test_a_task_is_read_as_it_was_written(task):
    assert task_of_file({"task": json.loads(json.dumps(task.to_json()))}) == task


def test_a_task_names_the_statistic_of_each_measure():
    names = {"accuracy": "Accuracy", "spearman": "Spearman"}
    task = Task("x", names, "spearman", ("accuracy",), "lines", statistics={"spearman": rank_correlation})
    assert task.statistic("accuracy") is ratio_of_sums
    assert task.statistic("spearman") is rank_correlation
    assert "statistics" not in task.to_json()  # tables need none


def test_a_task_that_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="speed of task 'x' is no measure of it"):
        Task("x", {"accuracy": "Accuracy"}, "accuracy", ("accuracy", "speed"), "grid")
    with pytest.raises(ValueError, match="use the bootstrap"):
        Task("x", {"rho": "rho"}, "rho", ("rho",), "lines", paired_test="randomisation",
             statistics={"rho": rank_correlation})  # fmt: skip
