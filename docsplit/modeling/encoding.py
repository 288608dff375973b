"""Rows of tokens to vectors, in micro-batches of similar length."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import Tensor, nn

from docsplit.modeling.settings import Pooling

MICRO_BATCH_OVERHEAD = 128  # what one more micro-batch takes (launches, gradients of weights), as tokens
# Autocast would cast the weights once for all micro-batches and sum the gradients of all in bfloat16, where small ones
# are lost. A cast for each would keep as many copies of the weights.
MICRO_BATCHES_PER_CAST = 4


def pool(hidden_states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Turn token states (R, T, H) and their mask (R, T) into one vector a row (R, H), in fp32 or wider.

    Raises:
        ValueError: for an unknown pooling.
    """
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    if pooling == "cls":
        return hidden_states[:, 0].to(dtype, copy=True)  # a view would keep all token states in memory
    mask = attention_mask.unsqueeze(-1)  # (R, T, 1)
    if pooling == "mean":
        total = (hidden_states * mask.to(hidden_states.dtype)).sum(dim=1, dtype=dtype)
        return total / mask.sum(dim=1).clamp(min=1)
    if pooling == "max":
        return hidden_states.masked_fill(mask == 0, float("-inf")).amax(dim=1).to(dtype)
    raise ValueError(f"pooling is {pooling!r}, expected one of {get_args(Pooling)}")


def micro_batches(lengths: Tensor, max_tokens: int | None, multiple: int = 1) -> Iterator[tuple[Tensor, int]]:
    """Cut rows into groups of similar length: yields (row indices, longest length), the longest rows first.

    Of all cuts of the sorted rows, the one with the least padding, where each group counts as
    `MICRO_BATCH_OVERHEAD` more: many small groups would have none at all.

    Args:
        lengths: number of tokens of each row, (R,).
        max_tokens: bound on rows x longest row of a group; a longer single row makes a group of its own. None: one
            group.
        multiple: what the encoder pads the longest row to, `length_multiple`; it counts for padding and bound.
    """
    lengths, order = lengths.sort(descending=True, stable=True)
    unpadded = lengths.clamp(min=1).tolist()
    longest = [-(-length // multiple) * multiple for length in unpadded]
    num_rows = len(longest)
    if not num_rows:
        return
    if max_tokens is None:
        yield order, unpadded[0]
        return
    best, previous = [0] + [sys.maxsize] * num_rows, [0] * (num_rows + 1)  # of the first i rows
    for start in range(num_rows):
        cost = best[start] + MICRO_BATCH_OVERHEAD
        for end in range(start + 1, min(start + max(max_tokens // longest[start], 1), num_rows) + 1):
            if cost + (end - start) * longest[start] < best[end]:
                best[end], previous[end] = cost + (end - start) * longest[start], start
    ends = [num_rows]
    while previous[ends[-1]]:
        ends.append(previous[ends[-1]])
    start = 0
    for end in reversed(ends):
        yield order[start:end], unpadded[start]
        start = end


@contextlib.contextmanager
def select_hidden_states(base_model: nn.Module, num_rows: int, kept: Tensor) -> Iterator[list[Tensor]]:
    """Let the head that follows `base_model` see only the states (M, H) at the positions `kept` of the last rows.

    A masked-LM head is most of a small model's cost and needs 15 % of the tokens only. Every `...ForMaskedLM` applies
    its head to the first output of its base model, so this works for each of them without knowing the head.

    Yields: a list that receives the states of the rows before the last `num_rows`, (rows, T, H).
    """
    others: list[Tensor] = []

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        states = output.last_hidden_state
        others.append(states[:-num_rows])
        output.last_hidden_state = states[-num_rows:].flatten(0, 1)[kept]
        return output

    handle = base_model.register_forward_hook(select)
    try:
        yield others
    finally:
        handle.remove()
