"""Several texts in one row, one after another without padding, for a Longformer's attention in tiles.

A text attends to nothing outside of it; its first token is global. `PackedRow` says where the texts are. It is made
once for all layers, and nothing here makes the host wait for the device.

Windows: the row is cut into strips that overlap by a window, which lie below each other as padded rows do, so that a
tile is as large a product as there. A tile needs one global key beside those of its window: the first token of the
text that its first query is in. All other texts that it meets begin within its window.

First tokens: the queries go through the transposed projection, as in padded rows. Each text is cut into chunks of 32
tokens, so that all products are of one size; the softmax is taken over the tokens of each text by sums at its number.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from docsplit.modeling.families.longformer_tiles import (
    Tile,
    WindowAttention,
    far_pairs,
    is_plain,
    lowest_bias,
    split_heads,
    tile_size,
)

# Tiles of a strip. With fewer, more strips share a product; with more, less lies in two strips.
STRIP = {"cpu": 64, "cuda": 16}
# Tiles, each with a global key of its own, that get their global keys together: the products' columns are 16 n then.
GROUP = 16
# Tokens of a text that meet their first token's query in one product.
CHUNK = 32
NOWHERE = -2  # where no text begins


class PackedRow(NamedTuple):
    """Where the texts of a row are; N tokens, S texts, some of which may have no tokens.

    Attributes:
        firsts: the place of each text's first token, (S,); of one without tokens: any.
        numbers: the number of the text that each token is in, (N,).
        begins: the place where that text begins, (N,).
        slots: the place of each token among the chunks, (N,).
        owners: the number of the text that each chunk is of, (C,).
        longest: no text has more tokens.
        first_token_is_global: whether each token attends to the first one of its text, and that one to all of them.
    """

    firsts: Tensor
    numbers: Tensor
    begins: Tensor
    slots: Tensor
    owners: Tensor
    longest: int
    first_token_is_global: bool


def packed_row(cu_seq_lens: Tensor, length: int, longest: int | None, first_token_is_global: bool) -> PackedRow:
    """Say where the texts of a row of `length` tokens are.

    Args:
        cu_seq_lens: where each text begins, and where the last one ends, (S + 1,). It may end with repeats. What is
            behind the last one is a text of its own.
        longest: as many tokens has the longest text at most.
    """
    bounds = F.pad(cu_seq_lens.long(), (0, 1), value=length)
    places = torch.arange(length, device=bounds.device)
    numbers = torch.bucketize(places, bounds[1:], right=True)
    begins = bounds.index_select(0, numbers)
    chunks = (bounds.diff() + CHUNK - 1) // CHUNK  # (S,)
    ends = chunks.cumsum(0)
    most_chunks = length // CHUNK + len(chunks)
    return PackedRow(
        firsts=bounds[:-1].clamp(max=length - 1),
        numbers=numbers,
        begins=begins,
        slots=(ends - chunks).index_select(0, numbers) * CHUNK + places - begins,
        owners=torch.bucketize(torch.arange(most_chunks, device=bounds.device), ends, right=True).clamp(
            max=len(chunks) - 1
        ),
        longest=length if longest is None else min(longest, length),
        first_token_is_global=first_token_is_global,
    )


# --- Windows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedTiles:
    """The tiles of R strips of L tokens, G tiles each; keys begin `halo` tokens before a strip.

    Attributes:
        query_begins: where the text of each query begins, (R, L).
        key_begins: the same of each key, (R, halo + L + halo).
        is_first: which keys are global, (R, halo + L + halo).
        global_begins: where the text of each tile's first query begins if that is before its window, (R, G).
    """

    query_begins: Tensor
    key_begins: Tensor
    is_first: Tensor
    global_begins: Tensor
    window: int
    halo: int
    dtype: torch.dtype

    def __iter__(self) -> Iterator[Tile]:
        device, window, halo = self.query_begins.device, self.window, self.halo
        length, size = self.query_begins.shape[1], tile_size(device)
        is_far, is_local = far_pairs(size, window, device), ~self.is_first[:, None]
        numbers = torch.arange(self.global_begins.shape[1], device=device)
        for number, start in enumerate(range(0, length, size)):
            rows = slice(start, min(start + size, length))
            keys = slice(max(start - window + halo, 0), min(rows.stop + window + halo, self.key_begins.shape[1]))
            first = keys.start - halo - start + window
            begins = self.query_begins[:, rows, None]
            is_away = is_far[: rows.stop - start, first : first + keys.stop - keys.start] & is_local[:, :, keys]
            is_away = is_away | (begins != self.key_begins[:, None, keys])
            group = slice(number // GROUP * GROUP, (number // GROUP + 1) * GROUP)
            is_other = (begins != self.global_begins[:, None, group]) | (numbers[group] != number)
            bias = torch.cat([is_other, is_away], dim=2).to(self.dtype) * lowest_bias(self.dtype)
            yield group, rows, keys, bias[:, None]


def attend_in_windows(
    query: Tensor, key: Tensor, value: Tensor, row: PackedRow, num_heads: int, window: int, dropout: float
) -> Tensor:
    """Attend within each text: (1, N, H) to (1, N, H), 0 for global tokens."""
    length, size = query.shape[1], tile_size(query.device)
    window = min(window, -(-(row.longest - 1) // 16) * 16)  # further away is nothing
    num_strips = -(-length // (size * STRIP.get(query.device.type, STRIP["cuda"])))
    strip = length if num_strips == 1 else -(-length // (num_strips * size)) * size
    halo = 0 if num_strips == 1 else window

    def strips(states: Tensor, halo: int, fill: float = 0.0) -> Tensor:
        """Cut (N, ...) into (R, halo + L + halo, ...), which overlap."""
        padding = (halo, halo + num_strips * strip - length)
        if any(padding):
            states = F.pad(states, (*(0, 0) * (states.dim() - 1), *padding), value=fill)
        if halo == 0:
            return states.unflatten(0, (num_strips, strip))
        return states.unfold(0, halo + strip + halo, strip).movedim(-1, 1)

    is_first = torch.zeros_like(row.begins, dtype=torch.bool)
    if row.first_token_is_global:
        is_first = row.begins == torch.arange(length, device=query.device)
    query_begins = strips(row.begins, 0, -1)
    starts = torch.arange(0, num_strips * strip, size, device=query.device).view(num_strips, -1)
    global_begins = query_begins[:, ::size]  # (R, G)
    global_begins = torch.where(global_begins < starts - window, global_begins, NOWHERE)
    if not row.first_token_is_global:
        global_begins = global_begins[:, :0]
    places = global_begins.clamp(min=0).flatten()
    tiles = PackedTiles(
        query_begins, strips(row.begins, halo, -1), strips(is_first, halo), global_begins, window, halo, query.dtype
    )
    attended = WindowAttention.apply(
        split_heads(strips(query[0], 0), num_heads),
        *(strips(states[0], halo).unflatten(2, (num_heads, -1)).transpose(1, 2) for states in (key, value)),
        *(
            split_heads(states[0].index_select(0, places).unflatten(0, global_begins.shape), num_heads)
            for states in (key, value)
        ),
        strips(is_first, 0),
        tiles,
        dropout,
    )  # (R, L, H)
    return attended.flatten(0, 1)[None, :length]


# --- First tokens --------------------------------------------------------------------------------------------------


def attend_from_first_tokens(self: Any, hidden_states: Tensor, row: PackedRow) -> Tensor:
    """Return what the first token of each text gets from all of its tokens: (1, N, H) to (S, H), 0 without tokens.

    `self` is the layer's attention. Projects all tokens where that needs less memory, or where `key_global` and
    `value_global` are more than a weight and a bias.
    """
    hidden, heads, num_texts = hidden_states[0], (self.num_heads, self.head_dim), len(row.firsts)
    source = hidden.index_select(0, row.firsts)
    query = self.query_global(source).unflatten(1, heads) / math.sqrt(self.head_dim)  # (S, heads, d)
    through_queries = num_texts * self.num_heads < len(hidden) and all(
        is_plain(layer) and layer.weight.device == hidden.device  # nothing offloaded
        for layer in (self.key_global, self.value_global)
    )
    if through_queries:
        weight, bias = self.key_global.weight.unflatten(0, heads), self.key_global.bias.view(heads)
        through = torch.einsum("snd,ndh->snh", query, weight)
        chunks = hidden.new_zeros(len(row.owners) * CHUNK, hidden.shape[1]).index_copy(0, row.slots, hidden)
        chunks = chunks.unflatten(0, (-1, CHUNK))  # (C, 32, H)
        scores = (chunks @ through.index_select(0, row.owners).mT).flatten(0, 1).index_select(0, row.slots)
        scores = scores + torch.einsum("snd,nd->sn", query, bias).index_select(0, row.numbers)  # (N, heads)
    else:
        key = self.key_global(hidden).unflatten(1, heads)
        scores = (key * query.index_select(0, row.numbers)).sum(dim=2)
    weights = _softmax_within_texts(scores, row.numbers, num_texts)  # (N, heads), in fp32 or wider
    weights = F.dropout(weights, self.dropout, self.training)
    if through_queries:
        weight, bias = self.value_global.weight.unflatten(0, heads), self.value_global.bias.view(heads)
        of_chunks = hidden.new_zeros(len(row.owners) * CHUNK, heads[0]).index_copy(0, row.slots, weights.to(hidden))
        mixed = of_chunks.unflatten(0, (-1, CHUNK)).mT @ chunks  # (C, heads, H)
        mixed = _sum_at(row.owners, mixed.flatten(1), num_texts).unflatten(1, (heads[0], -1))  # (S, heads, H)
        output = torch.einsum("snh,ndh->snd", mixed.to(query.dtype), weight)
        return (output + _sum_at(row.numbers, weights, num_texts)[:, :, None] * bias).flatten(1)
    values = self.value_global(hidden).unflatten(1, heads) * weights[:, :, None]
    return _sum_at(row.numbers, values.flatten(1), num_texts)


def _softmax_within_texts(scores: Tensor, numbers: Tensor, num_texts: int) -> Tensor:
    """Compute the softmax of (N, heads) over the tokens of each text, in fp32 or wider."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    index = numbers[:, None].expand_as(scores)
    highest = scores.new_full((num_texts, scores.shape[1]), -torch.inf)
    highest = highest.scatter_reduce(0, index, scores.detach(), "amax")
    exponentials = (scores - highest.gather(0, index)).exp()
    return exponentials / _sum_at(numbers, exponentials, num_texts).gather(0, index)


def _sum_at(numbers: Tensor, terms: Tensor, num_sums: int) -> Tensor:
    """Sum the rows of (N, k) that have the same number, in fp32 or wider: (num_sums, k)."""
    terms = terms.to(torch.promote_types(terms.dtype, torch.float32))
    return terms.new_zeros(num_sums, terms.shape[1]).scatter_add(0, numbers[:, None].expand_as(terms), terms)
