"""Reciprocal rank fusion against a loop."""

import numpy as np

from docsplit.data.fusion import fuse


def test_fusion_against_a_loop():
    rng = np.random.default_rng(0)
    rankings = [rng.permutation(30)[:size].tolist() for size in (30, 12, 5)]
    expected = {
        key: sum(1 / (60 + ranking.index(key) + 1) for ranking in rankings if key in ranking) for key in range(30)
    }
    fused = fuse(rankings)
    assert [key for key, _ in fused] == sorted(expected, key=lambda key: (-expected[key], key))
    np.testing.assert_allclose([score for _, score in fused], [expected[key] for key, _ in fused], rtol=1e-12)


def test_equal_documents_come_in_the_order_of_their_keys():
    assert [key for key, _ in fuse([[(0, 2), (1, 0)], [(1, 0), (0, 2)]])] == [(0, 2), (1, 0)]
    assert fuse([]) == fuse([[]]) == []
