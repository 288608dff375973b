"""Rows and comparisons as JSON and back."""

import json
from dataclasses import asdict, replace

import pytest

from docsplit.evaluation.results.bootstrap import Difference
from docsplit.evaluation.results.comparison import rows
from docsplit.evaluation.results.records import Comparison, Row, text_statistics
from docsplit.evaluation.results.result import Result
from tests.evaluation.results.examples import NDCG, TASKS, make_group, make_ranking


def test_statistics_count_words():
    statistics = text_statistics("x", {"train": ["a b", "c\nd  e f", "g"], "test": []}, 2)
    assert [asdict(part) for part in statistics] == [
        {"dataset": "x", "part": "train", "documents": 3, "classes": 2}
        | {"mean_words": pytest.approx(7 / 3), "median_words": 2, "max_words": 4},
        {"dataset": "x", "part": "test", "documents": 0, "classes": 2}
        | {"mean_words": 0, "median_words": 0, "max_words": 0},
    ]


@pytest.mark.parametrize("kind", TASKS)
def test_a_row_is_read_as_it_was_written(kind):
    group, results = make_group("A=o/a1,o/a2", ["o/a1", "o/a2"], 1.0, kind, num_parameters=300)
    results[0].curves = [[{"epoch": 1.0, "accuracy": 0.5}]]
    for row in rows([group, results[0]]):
        written = json.loads(json.dumps(row.to_json()))
        read = Row.from_json(written, row.task)
        assert list(read.to_json()) == list(written)
        assert read.to_json() == written
        assert read.facts["num_parameters"] == 300
        assert read.main == replace(row.main, of_seeds=read.main.of_seeds)


def test_a_search_of_one_run_has_its_means_under_the_bare_names_too():
    result = Result(
        task=replace(NDCG, has_training=False),
        encoder="a",
        head="dense",
        measured=make_ranking("a", 1.0).measured,
        details=make_ranking("a", 1.0).details,
    )
    (row,) = rows([result])
    columns = row.to_json()
    assert columns["ndcg_10"] == columns["ndcg_10_mean"]
    assert list(columns)[-3:] == list(NDCG.measures)
    assert Row.from_json(columns, row.task).to_json() == columns


def test_who_is_ahead_has_a_clear_difference_and_several_seeds():
    def ahead(low, high, seeds, p_holm=None):
        difference = Difference((low + high) / 2, low, high, 0.01)
        return Comparison("linear", None, "raw", "x", "y", "accuracy", difference, seeds, p_holm=p_holm).ahead

    assert ahead(0.1, 0.3, (2, 3)) == "x"
    assert ahead(-0.3, -0.1, (2, None)) == "y"
    assert ahead(-0.1, 0.3, (2, 3)) is None
    assert ahead(0.1, 0.3, (1, 3)) is None
    assert ahead(0.1, 0.3, (2, 3), p_holm=0.06) is None
    assert ahead(0.1, 0.3, (2, 3), p_holm=0.04) == "x"
