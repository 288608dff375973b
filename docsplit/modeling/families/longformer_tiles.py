"""Attention in windows, a tile of queries after another: the part of a Longformer's attention that needs memory.

What a tile of queries may attend to comes from `PaddedTiles` (rows with padding) or from
`docsplit.modeling.families.longformer_packed.PackedTiles` (several texts in one row).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Queries of a tile. With more, more of its products fall outside of the window; with fewer, there are more of them.
TILE = {"cpu": 160, "cuda": 256}

# A tile: its global keys, its rows, its keys nearby, and the bias of its scores (B, 1, rows, global keys + keys).
Tile = tuple[slice, slice, slice, Tensor]


def tile_size(device: torch.device) -> int:
    """Return the number of queries of a tile."""
    return TILE.get(device.type, TILE["cuda"])


def split_heads(states: Tensor, num_heads: int) -> Tensor:
    """Split heads, (B, T, H) to (B, heads, T, d), such that a tile is a view for a batched product."""
    states = states.unflatten(2, (num_heads, -1)).transpose(1, 2)
    return states if len(states) == 1 else states.contiguous()


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer only has its weight and bias: no LoRA, no quantised or pruned weight, no hook."""
    is_hooked = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) is nn.Linear and type(layer.weight) in (nn.Parameter, Tensor) and not is_hooked


def lowest_bias(dtype: torch.dtype) -> float:
    """Return a bias so low, though finite, that nothing is left of a weight; two of them can be added."""
    return torch.finfo(dtype).min / 4


def far_pairs(size: int, window: int, device: torch.device) -> Tensor:
    """Return which keys, from `window` before the first query, are further away: (size, size + 2 x window)."""
    offsets = torch.arange(size + 2 * window, device=device) - window
    return (torch.arange(size, device=device)[:, None] - offsets).abs() > window


@dataclass(frozen=True)
class PaddedTiles:
    """The tiles of rows with one text each; any of its tokens may be global.

    Attributes:
        is_removed: which tokens are no keys of a window (padding and global ones), (B, T).
        is_no_global: which of the global keys are none, (B, G).
        window: how far a key of a window may be away.
        dtype: of the bias.
    """

    is_removed: Tensor
    is_no_global: Tensor
    window: int
    dtype: torch.dtype

    def __iter__(self) -> Iterator[Tile]:
        length, size, window = self.is_removed.shape[1], tile_size(self.is_removed.device), self.window
        low = lowest_bias(self.dtype)
        far = far_pairs(size, window, self.is_removed.device).to(self.dtype) * low  # (rows, keys) of a tile
        removed = self.is_removed[:, None].to(self.dtype) * low
        no_global = self.is_no_global[:, None].to(self.dtype) * low
        for start in range(0, length, size):
            rows = slice(start, min(start + size, length))
            keys = slice(max(start - window, 0), min(rows.stop + window, length))
            first = keys.start - start + window
            local = far[: rows.stop - start, first : first + keys.stop - keys.start] + removed[:, :, keys]
            bias = torch.cat([no_global.expand(-1, local.shape[1], -1), local], dim=2)
            yield slice(None), rows, keys, bias[:, None]


class WindowAttention(torch.autograd.Function):
    """Compute attention of queries (B, heads, T, d) to keys (B, heads, K, d) and to global ones (B, heads, G, d).

    `tiles` yields the tiles, alike each time. Returns (B, T, heads x d), 0 where `is_blank` (B, T).
    """

    @staticmethod
    def forward(  # noqa: PLR0913 (as autograd has it)
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        global_key: Tensor,
        global_value: Tensor,
        is_blank: Tensor,
        tiles: Iterable[Tile],
        dropout: float,
    ) -> Tensor:
        """Keep queries, keys and values for the backward pass, and no scores."""
        ctx.save_for_backward(query, key, value, global_key, global_value, is_blank)
        seed = int(torch.randint(2**62, ())) if dropout else 0  # from the generator that checkpointing restores
        ctx.options = (tiles, dropout, seed)
        generator = _seeded(query.device, seed) if dropout else None
        batch, heads, length, head_dim = query.shape
        output = query.new_empty(batch, length, heads * head_dim)
        for group, rows, keys, bias in tiles:
            tile, its_keys = query[:, :, rows], torch.cat([global_key[:, :, group], key[:, :, keys]], dim=2)
            its_values = torch.cat([global_value[:, :, group], value[:, :, keys]], dim=2)
            if generator is None:
                attended = F.scaled_dot_product_attention(tile, its_keys, its_values, attn_mask=bias)
            else:  # for which PyTorch has no fused kernel on a CPU
                weights = _attention_weights(tile, its_keys, bias)
                weights *= _draw_kept(weights, dropout, generator)
                attended = weights.to(tile.dtype) @ its_values
            output[:, rows] = attended.transpose(1, 2).flatten(2)
        return output.masked_fill_(is_blank[:, :, None], 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the scores of one tile after another again."""
        query, key, value, global_key, global_value, is_blank = ctx.saved_tensors
        dtype = torch.promote_types(query.dtype, torch.float32)  # in which the parts from several tiles are summed
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(key, dtype=dtype), torch.zeros_like(value, dtype=dtype)
        grad_global_key = torch.zeros_like(global_key, dtype=dtype)
        grad_global_value = torch.zeros_like(global_value, dtype=dtype)
        tiles, dropout, seed = ctx.options
        generator = _seeded(query.device, seed) if dropout else None
        scale = query.shape[3] ** -0.5
        for group, rows, keys, bias in tiles:
            tile, its_keys = query[:, :, rows], torch.cat([global_key[:, :, group], key[:, :, keys]], dim=2)
            its_values = torch.cat([global_value[:, :, group], value[:, :, keys]], dim=2)
            grad = grad_outputs[0][:, rows].masked_fill(is_blank[:, rows, None], 0.0)
            grad = grad.unflatten(2, (query.shape[1], -1)).transpose(1, 2)  # (B, heads, rows, d)
            used = weights = _attention_weights(tile, its_keys, bias)
            grad_weights = (grad @ its_values.mT).to(weights.dtype)
            if generator is not None:
                kept = _draw_kept(weights, dropout, generator)
                used = weights * kept
                grad_weights *= kept
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).to(grad.dtype)
            grad_query[:, :, rows] = (grad_scores @ its_keys) * scale
            grad_keys, grad_values = grad_scores.mT @ (tile * scale), used.to(grad.dtype).mT @ grad
            num_global = bias.shape[3] - (keys.stop - keys.start)
            grad_key[:, :, keys] += grad_keys[:, :, num_global:]
            grad_value[:, :, keys] += grad_values[:, :, num_global:]
            grad_global_key[:, :, group] += grad_keys[:, :, :num_global]
            grad_global_value[:, :, group] += grad_values[:, :, :num_global]
        gradients = (grad_key, grad_value, grad_global_key, grad_global_value)
        return grad_query, *(gradient.to(query.dtype) for gradient in gradients), None, None, None


def softmax(scores: Tensor) -> Tensor:
    """Compute it in fp32 or wider."""
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _draw_kept(weights: Tensor, dropout: float, generator: torch.Generator) -> Tensor:
    """Draw what dropout multiplies the weights by, from sixteen random bits each: faster than `bernoulli_`."""
    random = torch.empty(-(-weights.numel() // 4), dtype=torch.int64, device=weights.device)
    random.random_(-(2**63), None, generator=generator)
    dropped = min(max(round(dropout * 2**16), 1), 2**16 - 1)  # of 2 ** 16
    is_kept = random.view(torch.int16)[: weights.numel()].view(weights.shape) >= dropped - 2**15
    return is_kept.to(weights.dtype).mul_(2**16 / (2**16 - dropped))


def _attention_weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Return the weights (B, heads, rows, keys), in fp32 or wider."""
    biases = bias.expand(-1, query.shape[1], -1, -1).flatten(0, 1)
    scores = torch.baddbmm(biases, query.flatten(0, 1), key.flatten(0, 1).mT, alpha=query.shape[3] ** -0.5)
    return softmax(scores.unflatten(0, query.shape[:2]))


def _seeded(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)
