"""Each view maker against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docsplit.data.views import DELETION_PROBABILITY, VIEWS

documents = st.lists(st.integers(1, 150), min_size=2, max_size=60).map(np.array)  # the lengths of its units
seeds = st.integers(0, 2**32)
PARTITIONS = {"docsplit", "ict", "half", "passages", "passage_vs_rest"}
OF_WHOLE_UNITS = {"docsplit", "simcse", "half", "passages", "passage_vs_rest"}


def draw(name, unit_lengths, seed=0):
    return VIEWS[name](np.array(unit_lengths), np.random.default_rng(seed))


@pytest.mark.parametrize("name", VIEWS)
@given(documents, seeds)
def test_views_against_what_they_promise(name, lengths, seed):
    pair = draw(name, lengths, seed)
    for view, again in zip(pair, draw(name, lengths, seed)):
        assert (view.dtype, view.shape, view.any()) == (bool, (lengths.sum(),), True)
        np.testing.assert_array_equal(view, again)
        if name in OF_WHOLE_UNITS:
            assert all(unit.all() or not unit.any() for unit in np.split(view, lengths.cumsum()[:-1]))
    if name in PARTITIONS:
        np.testing.assert_array_equal(pair[0], ~pair[1])
    if name == "simcse":
        assert pair[0].all()
        assert pair[1].all()
    if name == "ict":  # a span of at most half
        start, end = extent(pair[0])
        assert pair[0][start:end].all()
        assert end - start <= max(0.5 * len(pair[0]), 1)
    if name == "passages":
        assert sum(unit.all() for unit in np.split(pair[0], lengths.cumsum()[:-1])) == len(lengths) // 2


def test_docsplit_equals_coin_flips_redrawn_until_no_half_is_empty():
    lengths = [2, 1, 3]
    for seed in range(200):
        rng = np.random.default_rng(seed)
        while True:
            halves = ([], [])
            for unit, coin in enumerate(rng.random(3)):
                halves[0 if coin < 0.5 else 1].append(unit)
            if all(halves):
                break
        tokens = np.repeat(np.arange(3), lengths)
        for view, half in zip(draw("docsplit", lengths, seed), halves):
            assert sorted(set(tokens[view])) == half


def extent(view):
    (tokens,) = view.nonzero()
    return tokens[0], tokens[-1] + 1


def test_crops_have_uniform_lengths_at_uniform_places_and_lose_a_tenth():
    pairs = [draw("crop", [50] * 20, seed) for seed in range(2000)]
    extents = np.array([[extent(view) for view in pair] for pair in pairs])  # (draws, 2, start and end)
    lengths = extents[..., 1] - extents[..., 0]
    assert lengths.min() >= 0.04 * 1000  # a deleted end shortens the extent by a few tokens
    assert lengths.max() <= 0.5 * 1000
    assert lengths.mean() == pytest.approx(0.275 * 1000, rel=0.02)
    centres = extents.mean(axis=2)
    assert centres.mean() == pytest.approx(500, rel=0.02)
    kept = sum(view.sum() for pair in pairs for view in pair)
    assert kept / lengths.sum() == pytest.approx(1 - DELETION_PROBABILITY, abs=0.01)
    # The two are independent of each other, so they may overlap.
    assert abs(np.corrcoef(centres.T)[0, 1]) < 0.1
    assert 0.1 < np.mean([(first & second).any() for first, second in pairs]) < 0.9


@pytest.mark.parametrize(("lengths", "cut"), [([5, 1, 1], 5), ([1, 1, 5], 2), ([3, 2, 2, 3], 5)])
def test_half_is_cut_at_the_boundary_nearest_to_the_middle(lengths, cut):
    first, _ = draw("half", lengths)
    assert first.sum() == first[:cut].sum() == cut


def test_each_half_of_the_passages_is_drawn_equally_often():
    counts = np.zeros(5)
    for seed in range(2000):
        counts += draw("passages", [1] * 5, seed)[0]
    np.testing.assert_allclose(counts / 2000, 2 / 5, atol=5 * np.sqrt(0.24 / 2000))


def test_passage_vs_rest_takes_the_first_half_of_the_time_and_else_any():
    counts = np.zeros(10)
    for seed in range(2000):
        first, _ = draw("passage_vs_rest", np.full(10, 128), seed)
        (chosen,) = np.flatnonzero([passage.all() for passage in np.split(first, 10)])
        assert first.sum() == 128
        counts[chosen] += 1
    expected = np.r_[0.55, np.full(9, 0.05)]
    np.testing.assert_allclose(counts / 2000, expected, atol=5 * np.sqrt(0.25 / 2000))
