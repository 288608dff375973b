"""Folds of queries: each is reported once, and never by what was trained on it or chosen by it."""

import numpy as np
import pytest

from docsplit.data.sets.rankings import Ranking
from docsplit.evaluation.ranking.folds import divide


def test_each_fold_is_reported_once_and_read_by_nothing_else():
    names = [f"q{number}" for number in range(17)]
    ranking = Ranking([], [], names, names, {})
    reported = []
    for number in range(5):
        train, chosen, own = divide(ranking, "5", number)
        assert sorted([*train, *chosen, *own]) == list(range(17))
        assert len(train) > len(chosen)
        np.testing.assert_array_equal(chosen, divide(ranking, "5", (number + 1) % 5)[2])
        reported += own.tolist()
    assert sorted(reported) == list(range(17))
    for folds, number, message in (("2", 0, "takes 3"), ("5", 5, "counted from 0"), ("5", -1, "counted from 0")):
        with pytest.raises(ValueError, match=message):
            divide(ranking, folds, number)
