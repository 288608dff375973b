"""Fusions of two rankings against loops."""

import numpy as np
import pytest

from docsplit.data.fusion import LOWEST, reciprocal_ranks, scaled, sum_of_scores


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("weight", [0.0, 0.35, 0.8, 1.0])
def test_a_sum_equals_the_formula_one_document_after_another(similarity, weight):
    """Candidates of three queries; BM25 is 0 where no word is found, the similarity -inf of no candidate."""
    rng = np.random.default_rng(0)
    similarities, words = rng.uniform(-1, 1, size=(3, 9)), np.maximum(rng.normal(size=(3, 9)), 0)
    similarities[1, 5:], words[2] = -np.inf, 0
    sums = sum_of_scores(similarities, words, weight, LOWEST[similarity])
    for query in range(3):
        count = 5 if query == 1 else 9
        best, most = similarities[query, :count].max(), words[query].max()
        for place in range(count):
            c, b = similarities[query, place], words[query, place]
            dense = (c + 1) / (best + 1) if similarity == "cosine" else c / best
            expected = weight * dense + (1 - weight) * (b / most if most else 0)
            assert sums[query, place] == pytest.approx(expected)
    assert (sums[1, 5:] == -np.inf).all()


def test_dot_products_below_zero_keep_their_order_and_nothing_is_not_a_number():
    assert np.argsort(scaled(np.array([-3.0, -1.0, -2.0]))).tolist() == [0, 2, 1]
    assert scaled(np.zeros(2)).tolist() == [0, 0]
    assert sum_of_scores(np.empty((0,)), np.empty((0,))).tolist() == []
    assert sum_of_scores(np.full(2, -np.inf), np.zeros(2)).tolist() == [-np.inf, -np.inf]


def test_reciprocal_ranks_against_a_loop():
    rng = np.random.default_rng(0)
    rankings = [rng.permutation(30)[:size].tolist() for size in (30, 12, 5)]
    expected = {
        key: sum(1 / (60 + ranking.index(key) + 1) for ranking in rankings if key in ranking) for key in range(30)
    }
    fused = reciprocal_ranks(rankings)
    assert [key for key, _ in fused] == sorted(expected, key=lambda key: (-expected[key], key))
    np.testing.assert_allclose([score for _, score in fused], [expected[key] for key, _ in fused], rtol=1e-12)
    assert [key for key, _ in reciprocal_ranks([[2, 1], [1, 2]])] == [1, 2]  # equal ones in their order
    assert reciprocal_ranks([]) == reciprocal_ranks([[]]) == []
