"""Unit length against a loop, and the best of blocks against a full sort."""

import numpy as np
import pytest
import torch

from docsplit.runtime.vectors import best_of, best_of_blocks, unit


def scores_of(queries=9, documents=200, values=20):
    """Whole numbers, many of them equal."""
    return np.random.default_rng(0).integers(values, size=(queries, documents)).astype(np.float32)


def blocks_of(scores, width):
    return [scores[:, start : start + width] for start in range(0, scores.shape[1], width)]


@pytest.mark.parametrize("count", [1, 10, 199, 200, 500])
@pytest.mark.parametrize("width", [1, 7, 64, 200])
def test_blocks_give_what_a_full_sort_gives_equal_scores_too(width, count):
    scores = scores_of()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    assert len({*scores[0]}) < scores.shape[1] / 5
    rows, best = best_of_blocks(blocks_of(scores, width), len(scores), count)
    np.testing.assert_array_equal(rows, order)
    np.testing.assert_array_equal(best, np.take_along_axis(scores, order, axis=1))
    np.testing.assert_array_equal(best_of(scores[0], count), order[0])


def test_a_block_may_be_overwritten_once_the_next_is_asked_for():
    scores = scores_of()
    expected = best_of_blocks(blocks_of(scores, 50), len(scores), 10)
    buffer = torch.empty(len(scores), 50)

    def blocks():
        for block in blocks_of(scores, 50):
            yield buffer.copy_(torch.from_numpy(block))
        buffer.fill_(float("inf"))

    for ours, theirs in zip(best_of_blocks(blocks(), len(scores), 10), expected):
        np.testing.assert_array_equal(ours, theirs)


def test_excluded_rows_come_last():
    scores = scores_of()
    scores[:, ::2] = -np.inf
    rows, best = best_of_blocks(blocks_of(scores, 30), len(scores), 120)
    assert (rows[:, :100] % 2 == 1).all()
    assert np.isneginf(best[:, 100:]).all()
    assert (rows[:, 100:] == np.arange(0, 40, 2)).all()
    np.testing.assert_array_equal(best_of(scores[0], 120), rows[0, :100])


def test_without_a_block_nothing_is_found():
    rows, scores = best_of_blocks([], 3, 10)
    assert rows.shape == scores.shape == (3, 0)


def test_unit_length_against_a_loop():
    vectors = np.random.default_rng(0).normal(size=(20, 5))
    vectors[3] = 0
    expected = [vector / (np.sqrt(sum(value**2 for value in vector)) or 1) for vector in vectors]
    units = unit(vectors)
    assert units.dtype == np.float32
    np.testing.assert_allclose(units, expected, atol=1e-6)
    assert not units[3].any()
