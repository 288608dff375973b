"""Folds of queries: each is reported once, and never by what was trained on it or chosen by it."""

import json

import numpy as np
import pytest

from docsplit.data.sets.folds import divide, make_folds
from docsplit.data.sets.rankings import Ranking

QUERIES = 40
NAMES = [f"q{number}" for number in range(QUERIES)]


def test_each_fold_is_reported_once_and_read_by_nothing_else():
    names = [f"q{number}" for number in range(17)]
    ranking = Ranking([], [], names, names, {})
    reported = []
    for number in range(5):
        train, chosen, reported_fold = divide(ranking, "5", number)
        assert sorted([*train, *chosen, *reported_fold]) == list(range(17))
        assert len(train) > len(chosen)
        np.testing.assert_array_equal(chosen, divide(ranking, "5", (number + 1) % 5)[2])
        reported += reported_fold.tolist()
    assert sorted(reported) == list(range(17))
    for folds, number, message in (
        ("2", 0, "expected 3 or more"),
        ("5", 5, "expected 0 to 4"),
        ("5", -1, "count from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            divide(ranking, folds, number)


def test_a_single_query_has_no_folds():
    with pytest.raises(ValueError, match="There is 1 query: --folds needs two or more"):
        make_folds(Ranking([], [], ["q"], ["q"], {}), "5", 0)


def test_folds_share_no_query_and_have_them_all(tmp_path):
    ranking = Ranking([], [], NAMES, NAMES, {})
    folds = make_folds(ranking, "3", seed=0)
    assert sorted(np.concatenate(folds)) == list(range(QUERIES))
    assert sorted(map(len, folds)) == [13, 13, 14]
    assert any((one != other_fold).any() for one, other_fold in zip(folds[1:], make_folds(ranking, "3", seed=1)[1:]))
    file = tmp_path / "folds.json"
    file.write_text(
        json.dumps([[f"q{q}" for q in range(number, QUERIES, 2)] + ["left out"] * (number == 0) for number in (0, 1)])
    )
    assert [fold.tolist() for fold in make_folds(ranking, str(file), 0)] == [
        list(range(n, QUERIES, 2)) for n in (0, 1)
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1", "expected 2 to 40"),
        ("41", "expected 2 to 40"),
        ("none.json", "neither a number nor a JSON file"),
        ([["q0", "q1"], ["q2"]], "lacks 37 of 40 queries, such as q3"),
        ([["q0", "q1"], ["q0"]], "has query q0 in two folds"),
        ({"a": ["q0"]}, "should be two or more lists"),
        ([[f"q{number}" for number in range(40)], ["left out"]], "has all 40 queries in one fold"),
    ],
)
def test_folds_that_cannot_be_are_refused(tmp_path, content, message):
    ranking = Ranking([], [], NAMES, NAMES, {})
    if not isinstance(content, str):
        (tmp_path / "folds.json").write_text(json.dumps(content))
        content = str(tmp_path / "folds.json")
    with pytest.raises(ValueError, match=message):
        make_folds(ranking, content, 0)
