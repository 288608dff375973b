"""Rows of a micro-batch: their vectors from padded states and from packs, and copies that nothing waits for."""

from typing import get_args

import numpy as np
import pytest
import torch

from docsplit.modeling.encoding import to_device
from docsplit.modeling.pooling import Pooling
from docsplit.modeling.vectors import pool, pool_texts


def slow_pool(tokens, pooling):
    """Pool the states (T, H) of a row's tokens, one after another."""
    vector = torch.full_like(tokens[0], float("-inf") if pooling == "max" else 0.0)
    for position, state in enumerate(tokens, start=1):
        if pooling == "max":
            vector = torch.maximum(vector, state)
        elif pooling == "weightedmean":
            vector = vector + position * state / sum(range(1, len(tokens) + 1))
        elif pooling == "mean":
            vector = vector + state / len(tokens)
        elif position == {"cls": 1, "lasttoken": len(tokens)}[pooling]:
            vector = state
    return vector


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("side", ["right", "left"])
def test_pooling_ignores_padding(pooling, side):
    """On either side, but for cls, whose rows training pads on the right."""
    hidden_states = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = [5, 2, 1]
    for row, length in enumerate(lengths):
        mask = torch.zeros(3, 5, dtype=torch.long)
        tokens = slice(0, length) if side == "right" or pooling == "cls" else slice(5 - length, 5)
        mask[row, tokens] = 1
        pooled = pool(hidden_states, mask, pooling)
        torch.testing.assert_close(pooled[row], slow_pool(hidden_states[row, tokens], pooling))
        if pooling not in ("cls", "max"):
            assert (pooled[torch.arange(3) != row] == 0).all()  # rows without tokens


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_texts_of_a_pack_are_pooled_as_padded_ones(pooling):
    """States, and their gradients; tokens behind the last text belong to none."""
    lengths = torch.tensor([5, 1, 3])
    padded = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(5) < lengths[:, None]).long()
    pack = torch.cat([padded[mask.bool()], torch.full((6, 4), 1e6)]).requires_grad_()
    padded.requires_grad_()
    borders = torch.tensor([0, *lengths.cumsum(0).tolist()])
    wanted, got = pool(padded, mask, pooling), pool_texts(pack, borders, 9, pooling)
    torch.testing.assert_close(got, wanted, rtol=1e-14, atol=1e-14)
    weights = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ((wanted * weights).sum() + (got * weights).sum()).backward()
    torch.testing.assert_close(pack.grad[:9], padded.grad[mask.bool()], rtol=1e-14, atol=1e-14)
    assert (pack.grad[9:] == 0).all()


def test_a_pack_is_pooled_in_full_precision():
    states = torch.full((4097, 1), 1.0, dtype=torch.bfloat16)
    assert float(pool_texts(states, torch.tensor([0, 4097]), 4097, "mean")) == 1.0
    with pytest.raises(ValueError, match="expected one of"):
        pool_texts(states, torch.tensor([0, 4097]), 4097, "sum")


def test_arrays_are_copied_together():
    arrays = [np.arange(3), np.arange(0), np.array([7])]
    copies = to_device(arrays, torch.device("cpu"))
    assert [copy.tolist() for copy in copies] == [[0, 1, 2], [], [7]]
    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 1
