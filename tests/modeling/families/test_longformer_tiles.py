"""Attention in tiles draws its dropout alike in both passes."""

import pytest
import torch

from docsplit.modeling.families import longformer_tiles
from docsplit.modeling.families.longformer_tiles import PaddedTiles, WindowAttention


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dropout_is_the_same_in_both_passes(device, monkeypatch):
    """Finite differences of what a seed gives: were another mask drawn in the backward pass, they would not fit."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    monkeypatch.setitem(longformer_tiles.TILE, device, 4)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 9, 3, dtype=torch.float64, generator=generator) for _ in range(3))
    global_key, global_value = (torch.randn(2, 2, 1, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    is_removed = torch.zeros(2, 9, dtype=torch.bool)
    is_removed[0, 7:] = is_removed[:, 0] = True
    is_removed, is_no_global = is_removed.to(device), torch.zeros(2, 1, dtype=torch.bool, device=device)
    tiles = PaddedTiles(is_removed, is_no_global, window=2, dtype=torch.float64)

    def attend(*tensors):
        torch.manual_seed(3)
        return WindowAttention.apply(*tensors, is_removed, tiles, 0.4)

    tensors = [tensor.to(device).requires_grad_() for tensor in (query, key, value, global_key, global_value)]
    assert torch.autograd.gradcheck(attend, tensors)
    torch.manual_seed(4)
    other = WindowAttention.apply(*tensors, is_removed, tiles, 0.4)
    assert not torch.allclose(other, attend(*tensors))
