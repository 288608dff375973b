"""Each view maker against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docsplit.views import VIEWS, docsplit, simcse


@given(st.integers(2, 60), st.integers(0, 2**32))
def test_docsplit_is_a_partition_in_order(num_units, seed):
    first, second = docsplit(num_units, np.random.default_rng(seed))
    assert len(first) > 0
    assert len(second) > 0
    assert sorted([*first, *second]) == list(range(num_units))
    assert list(first) == sorted(first)
    assert list(second) == sorted(second)


def test_docsplit_equals_coin_flips_redrawn_until_no_half_is_empty():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        while True:
            halves = ([], [])
            for unit, coin in enumerate(rng.random(3)):
                halves[0 if coin < 0.5 else 1].append(unit)
            if all(halves):
                break
        ours = docsplit(3, np.random.default_rng(seed))
        assert tuple(list(half) for half in ours) == halves


def test_docsplit_puts_each_unit_in_either_half_equally_often():
    counts = np.zeros(8)
    for seed in range(2000):
        counts[docsplit(8, np.random.default_rng(seed))[0]] += 1
    np.testing.assert_allclose(counts / 2000, 0.5, atol=5 * np.sqrt(0.25 / 2000))


def test_simcse_is_the_whole_document_twice():
    first, second = simcse(4, np.random.default_rng(0))
    assert list(first) == list(second) == [0, 1, 2, 3]


@pytest.mark.parametrize("view", VIEWS.values())
def test_a_view_is_a_function_of_its_generator(view):
    draws = [view(20, np.random.default_rng(7)) for _ in range(2)]
    np.testing.assert_array_equal(np.concatenate(draws[0]), np.concatenate(draws[1]))
