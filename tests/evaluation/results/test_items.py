"""Items, and the statistics of them, against loops and scipy."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from docsplit.evaluation.results.items import ItemPairs, ItemScores, rank_correlation, ratio_of_sums, ratios


def test_a_ratio_of_sums_equals_a_loop():
    rng = np.random.default_rng(0)
    numerators, denominators = rng.random((3, 20)).astype(np.float32), rng.random((3, 20)).astype(np.float32)
    expected = [sum(map(float, above)) / sum(map(float, below)) for above, below in zip(numerators, denominators)]
    assert ratio_of_sums(ItemScores(numerators, denominators)) == pytest.approx(expected)
    assert ratios(np.array([0.0, 1.0]), np.array([0.0, 4.0])).tolist() == [0, 0.25]


def test_the_rank_correlation_is_scipys_with_ties_too():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, (4, 50)), rng.random((4, 50)).round(1)
    expected = [spearmanr(*pair).statistic for pair in zip(first, second)]
    assert rank_correlation(ItemPairs(first, second)) == pytest.approx(expected)
    constant = ItemPairs(np.ones((1, 5)), rng.random((1, 5)))
    assert np.isnan(rank_correlation(constant)).all()


def test_items_are_repeated_and_joined():
    items = ItemScores(np.array([[1.0, 2.0, 3.0]]), np.array([[4.0, 5.0, 6.0]]))
    drawn = items.repeated(np.array([2, 0, 1]))
    assert (drawn.numerators.tolist(), drawn.denominators.tolist()) == ([[1, 1, 3]], [[4, 4, 6]])
    both = ItemScores.joined([items, items])
    assert (both.runs, both.size) == (2, 3)
    assert isinstance(both, ItemScores)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((2, 0), (2, 0)), ((0, 3), (0, 3)), ((3,), (3,))])
def test_items_of_wrong_shapes_are_refused(shapes):
    with pytest.raises(ValueError, match="numerators and denominators of test items must have one shape"):
        ItemScores(*map(np.ones, shapes))
