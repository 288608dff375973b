"""The inputs of one forward pass of the encoder: some rows of a batch, padded to the longest, or in one pack.

`PaddedRows` and `Pack` have the same methods, so that the code that encodes does not know which it has. Their tensors
are indices into the batch on the device: cutting the tokens out is a part of the forward pass, and what is kept for
the backward pass is no copy of them. Nothing here waits for the device.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from docsplit.modeling.packed_attention import packed_inputs, reading_pack
from docsplit.modeling.pooling import Pooling
from docsplit.modeling.transfer import send


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, ...]:
    """Copy arrays of int64 to the device together: one copy, which the host does not wait for."""
    return send(torch.from_numpy(np.concatenate(arrays)), device).split([len(array) for array in arrays])


@dataclass(frozen=True)
class Masked:
    """The masked tokens of a micro-batch, (M,) each."""

    places: Tensor  # in its masked copies, one row after another
    sources: Tensor  # in the batch (R T,), where their targets are


@dataclass(frozen=True)
class PaddedRows:
    """Some rows of a batch, padded to the longest of them.

    Attributes:
        numbers: of the rows (R',), on the device.
        longest: their tokens T'.
        num_tokens: of a copy of them, padding included.
    """

    numbers: Tensor
    longest: int
    num_tokens: int
    masked: Masked | None = None

    def inputs(self, copies: Sequence[Tensor], attention_mask: Tensor) -> dict[str, Any]:
        """Return what the encoder takes: (R' x copies, T'), of token ids (R, T) and their mask."""
        mask = attention_mask[self.numbers, : self.longest]
        rows = [ids[self.numbers, : self.longest] for ids in copies]
        if len(copies) == 1:
            return {"input_ids": rows[0], "attention_mask": mask}
        return {"input_ids": torch.cat(rows), "attention_mask": torch.cat([mask] * len(copies))}

    def limits(self) -> dict[str, Any]:
        """Return what attention takes besides: nothing, for the mask says it."""
        return {}

    def passage_pool(self) -> dict[str, Any]:
        """Return what `encode_passages` takes besides: nothing, it pools padded rows by itself."""
        return {}

    def states_of_masked(self, states: Tensor) -> Tensor:
        """Return the states (M, H) of the masked tokens, in the last R' rows of (R' x copies, T', H)."""
        assert self.masked is not None
        return states[-len(self.numbers) :].flatten(0, 1)[self.masked.places]

    def pool(self, states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
        """Pool the states (R' x copies, T', H) of the first copy: (R', H)."""
        return pool(states[: len(self.numbers)], attention_mask[self.numbers, : self.longest], pooling)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of the forward pass."""
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Pack:
    """Some rows of a batch in one row of N tokens, one after another: each copy, then tokens that fill it up.

    Attributes:
        numbers: of the tokens of a copy (n,), in the batch (R T,), on the device.
        positions: (N,), which begin anew with each row.
        borders: (S + 1,) int32, where rows begin and the last ends; then N again and again.
        num_rows: R'.
        longest: bound on their tokens.
        num_tokens: of a copy of them, with its share of those that fill up.
    """

    numbers: Tensor
    positions: Tensor
    borders: Tensor
    num_rows: int
    longest: int
    num_tokens: int
    masked: Masked | None = None

    def inputs(self, copies: Sequence[Tensor], attention_mask: Tensor) -> dict[str, Any]:
        """Return what the encoder takes: ids (1, N) of token ids (R, T), and positions; it needs `limits` too."""
        parts = [ids.flatten()[self.numbers] for ids in copies]
        filling = len(self.positions) - len(copies) * len(self.numbers)
        if filling:
            parts.append(parts[0].new_zeros(filling))
        ids, positions = torch.cat(parts)[None], self.positions[None]
        return {"input_ids": ids, "attention_mask": None, "position_ids": positions}

    def limits(self) -> dict[str, Any]:
        """Return where rows begin and end, as attention takes it."""
        return packed_inputs(self.borders, self.longest)

    def passage_pool(self) -> dict[str, Any]:
        """Return what `encode_passages` takes besides: how the passages of a pack are pooled."""
        return {"pool": partial(self.pool, attention_mask=None)}

    def states_of_masked(self, states: Tensor) -> Tensor:
        """Return the states (M, H) of the masked tokens, in the last copy of (1, N, H)."""
        assert self.masked is not None
        return states[0][self.masked.places]

    def pool(self, states: Tensor, attention_mask: Tensor | None, pooling: Pooling) -> Tensor:
        """Pool the states (1, N, H) of the first copy: (R', H); borders say what a mask would."""
        return pool_texts(states[0], self.borders[: self.num_rows + 1].long(), len(self.numbers), pooling)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of the forward pass."""
        return reading_pack()


MicroBatch = PaddedRows | Pack


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
    if pooling == "weightedmean":
        weights = (attention_mask.cumsum(dim=1) * attention_mask).unsqueeze(-1).to(dtype)  # 1, 2 ... of its tokens
        return (hidden_states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    if pooling == "lasttoken":  # the last that the mask has, whichever side is padded
        rows = torch.arange(len(attention_mask), device=attention_mask.device)
        last = attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(dim=1)  # (R,)
        return hidden_states[rows, last].to(dtype) * mask[rows, last]  # zero for a row without tokens
    raise ValueError(f"pooling is {pooling!r}, expected one of {get_args(Pooling)}")


def pool_texts(states: Tensor, borders: Tensor, num_tokens: int, pooling: Pooling) -> Tensor:
    """Turn the token states (N, H) of a pack into one vector a text (R, H), in fp32 or wider.

    Args:
        borders: (R + 1,), where texts begin and the last ends; none is empty.
        num_tokens: of all texts, the last border.

    Raises:
        ValueError: for an unknown pooling.
    """
    dtype = torch.promote_types(states.dtype, torch.float32)
    starts, lengths = borders[:-1], borders.diff()
    if pooling in ("cls", "lasttoken"):
        return states[starts if pooling == "cls" else borders[1:] - 1].to(dtype)
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling is {pooling!r}, expected one of {get_args(Pooling)}")
    states = states[:num_tokens].to(dtype)
    totals = lengths[:, None].to(dtype)
    if pooling == "weightedmean":
        numbers = torch.arange(num_tokens, device=states.device)
        first = starts.repeat_interleave(lengths, output_size=num_tokens)
        states = states * (numbers - first + 1)[:, None]  # 1, 2 ... of its tokens
        totals = totals * (totals + 1) / 2
    # One thread a text and number of H adds them in order: as exact as it is repeatable
    reduced = torch.segment_reduce(states, "max" if pooling == "max" else "sum", lengths=lengths, unsafe=True)
    return reduced if pooling == "max" else reduced / totals


@contextlib.contextmanager
def select_hidden_states(base_model: nn.Module, part: MicroBatch) -> Iterator[list[Tensor]]:
    """Let the head that follows `base_model` see only the states (M, H) of the masked tokens.

    A masked-LM head is most of a small model's cost and needs 15 % of the tokens only. Every `...ForMaskedLM` applies
    its head to the first output of its base model, so this works for each of them without knowing the head. Not every
    one passes on what it does not know, so `base_model` gets the limits of a pack here.

    Yields: a list that receives the states of all tokens.
    """
    all_states: list[Tensor] = []

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        all_states.append(output.last_hidden_state)
        output.last_hidden_state = part.states_of_masked(output.last_hidden_state)
        return output

    def add_limits(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | part.limits()

    handles = [
        base_model.register_forward_pre_hook(add_limits, with_kwargs=True),
        base_model.register_forward_hook(select),
    ]
    try:
        yield all_states
    finally:
        for handle in handles:
            handle.remove()
