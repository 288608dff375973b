"""Encode rows of tokens in micro-batches of similar length, and combine rows where a document has several.

InfoNCE needs all vectors of a batch at once, but never all activations. So rows are sorted by length, cut into
micro-batches, each trimmed to its longest row and encoded one after another: padding disappears, and the loss stays
the same. With cached gradients each micro-batch is recomputed in the backward pass, so that memory does not grow with
the contrastive batch. The price of that is a second forward pass (about a third of a step).
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor, nn

from docsplit.modeling.pooling import Pooling
from docsplit.modeling.settings import IGNORED

MICRO_BATCH_OVERHEAD = 128  # of one more micro-batch (launches, gradients of weights), in tokens

# Autocast would cast the weights once for all micro-batches and sum the gradients of all in bfloat16, where small ones
# are lost. A cast for each would keep as many copies of the weights.
MICRO_BATCHES_PER_CAST = 4


@dataclass
class Rows:
    """The document and view of each row of a batch, (R,) int64 each; rows of a view come one after another.

    For DocSplit a row is a view. For an encoder with a method `combine(row_vectors, rows)` it is a passage of one:
    `combine` turns the vectors (R, H) of some rows into one (D, H) for each document and view among them, in the order
    of documents, and of views within a document. Such an encoder may make the vectors of rows itself, with a method
    `encode_passages(input_ids, attention_mask)`.
    """

    document: Tensor  # number in the batch
    view: Tensor  # 0 or 1; of a query and its documents 0, 1, 2 ...
    section: Tensor | None = None
    position: Tensor | None = None  # in the document
    is_query: Tensor | None = None  # to be embedded as a query is

    @classmethod
    def of_views(cls, num_documents: int, num_views: int, device: torch.device) -> "Rows":
        """Make a row for each view of each document."""
        numbers = torch.arange(num_views * num_documents, device=device)
        return cls(document=numbers // num_views, view=numbers % num_views)

    def select(self, chosen: Tensor) -> "Rows":
        """Return the rows of these numbers (R',)."""
        parts: dict[str, Any] = {name: None if value is None else value[chosen] for name, value in vars(self).items()}
        return Rows(**parts)


@dataclass
class Encoded:
    """What the micro-batches of a step produce besides vectors; not in the batch, which checkpoints keep alive."""

    mlm_sums: list[Tensor] = field(default_factory=list)  # () for each micro-batch
    num_computed_tokens: int = 0  # padding included


@dataclass
class RowBatch:
    """The rows of all views, one after another, and the facts that are read from the device once a batch."""

    rows: Rows
    views: Tensor  # (R,), on the CPU, the view of each row
    num_documents: int
    attention_mask: Tensor  # (R, T)
    lengths: Tensor  # (R,), on the CPU
    input_ids: Tensor | None  # (R, T); None: nothing is embedded
    mlm_input_ids: Tensor | None = None  # (R, T); None: no MLM loss
    mlm_targets: Tensor | None = None  # (R, T)
    masked: Tensor | None = None  # (R, T), on the CPU, True where a token is to be predicted
    views_are_one: bool = False  # both views of each document have the same vector

    @property
    def num_targets(self) -> int:
        """Return the number of tokens to predict."""
        return 0 if self.masked is None else int(self.masked.sum())

    def rows_of(self, view: int | None) -> Tensor:
        """Return the numbers of the rows of a view, or of all, (R',), on the CPU."""
        return torch.arange(len(self.views)) if view is None else (self.views == view).nonzero().squeeze(1)

    def micro_batches(
        self, chosen: Tensor, max_tokens: int | None, multiple: int
    ) -> Iterator[tuple[Tensor, tuple[Tensor, int, Tensor | None]]]:
        """Yield the rows of these numbers in groups, as `micro_batches` does: their places among them, and a `cut`."""
        for number, (places, longest) in enumerate(micro_batches(self.lengths[chosen], max_tokens, multiple)):
            if number % MICRO_BATCHES_PER_CAST == 0:
                torch.clear_autocast_cache()
            yield places, self.cut(chosen[places], longest)

    def cut(self, rows: Tensor, longest: int) -> tuple[Tensor, int, Tensor | None]:
        """Move rows (R',) from the CPU to the device, with their masked tokens (M,) as positions in (R' x longest,).

        For a forward pass that `torch.utils.checkpoint` repeats: it restores the random state, and so dropout, of the
        device that a tensor among its arguments is on, the rows here.
        """
        device, kept = self.attention_mask.device, None
        if self.masked is not None:
            kept = self.masked[rows, :longest].flatten().nonzero().squeeze(1).to(device)
        return rows.to(device), longest, kept


def lay_out(attention_mask: Tensor, rows: Mapping[str, Tensor] | None, *tensors: Tensor | None) -> RowBatch:
    """Put the rows of all views one after another, (B, V, T) -> (V B, T), unless `rows` says that they are.

    Lengths and masks decide the course of the program, so they are read from the device here, once: a later read would
    wait for all that was launched before.

    Args:
        rows: the fields of `Rows`, for tensors of shape (R, T); None: a row a view.
        tensors: input ids, masked ids and MLM targets; None for those that are not used.
    """
    flat = [tensor if tensor is None or rows is not None else tensor.flatten(0, 1) for tensor in tensors]
    input_ids, mlm_input_ids, mlm_targets = flat
    mask = attention_mask if rows is not None else attention_mask.flatten(0, 1)
    size, views = attention_mask.shape[0], attention_mask.shape[1]
    laid_out = Rows(**rows) if rows is not None else Rows.of_views(size, views, torch.device("cpu"))
    num_documents = int(laid_out.document.max()) + 1
    masked = None if mlm_targets is None else (mlm_targets != IGNORED).cpu()
    lengths = mask.sum(dim=-1).cpu()
    return RowBatch(
        laid_out, laid_out.view.cpu(), num_documents, mask, lengths, input_ids, mlm_input_ids, mlm_targets, masked
    )


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


def encode_rows(base_model: Any, input_ids: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Turn rows (R, T) into vectors (R, H): pooled states, or `encode_passages` of an encoder that combines rows."""
    if hasattr(base_model, "encode_passages"):
        return base_model.encode_passages(input_ids, attention_mask)
    return pool(base_model(input_ids=input_ids, attention_mask=attention_mask)[0], attention_mask, pooling)


def micro_batches(lengths: Tensor, max_tokens: int | None, multiple: int = 1) -> Iterator[tuple[Tensor, int]]:
    """Cut rows into groups of similar length: yield (row indices, longest length), the longest rows first.

    The cut has the least padding of all cuts of the sorted rows. Each group counts as `MICRO_BATCH_OVERHEAD` tokens
    more, since many small groups would have no padding at all.

    Args:
        lengths: number of tokens of each row, (R,).
        max_tokens: bound on rows x longest row of a group; a longer single row makes a group of its own. None: one
            group.
        multiple: what the encoder pads the longest row to, `length_multiple`; it counts for padding and bound.
    """
    lengths, order = lengths.sort(descending=True, stable=True)
    unpadded = lengths.clamp(min=1).tolist()
    if not unpadded:
        return
    starts = [0]
    if max_tokens is not None:
        starts = _cheapest_cut([-(-length // multiple) * multiple for length in unpadded], max_tokens)
    for start, end in itertools.pairwise([*starts, len(unpadded)]):
        yield order[start:end], unpadded[start]


def _cheapest_cut(lengths: list[int], max_tokens: int) -> list[int]:
    """Find where the groups of `micro_batches` begin, in time linear in the rows; lengths are in descending order.

    A group from row i to row e costs `MICRO_BATCH_OVERHEAD + lengths[i] x (e - i)`. If a group that begins later is
    the better one for the rows up to e, it is for any more rows too: its rows are no longer, and its bound is reached
    later (dynamic programming with monotone decisions; Galil and Park, 1992). So a queue holds the rows that are the
    best begin of a group from some e on.
    """
    num_rows = len(lengths)
    limits = [start + max(max_tokens // length, 1) for start, length in enumerate(lengths)]  # the last possible e
    costs = [0] * (num_rows + 1)  # of the first e rows
    previous = [0] * (num_rows + 1)  # where the last of their groups begins
    queue, head = [(0, 1)], 0  # (start, the first e for which it is the best)
    for end in range(1, num_rows + 1):
        while head + 1 < len(queue) and queue[head + 1][1] <= end:
            head += 1
        start = queue[head][0]
        costs[end] = costs[start] + MICRO_BATCH_OVERHEAD + lengths[start] * (end - start)
        previous[end] = start
        if end == num_rows:
            break
        while True:  # from which e on is it better to begin at `end` than at the last in the queue?
            start, since = queue[-1]
            first = limits[start] + 1
            behind = costs[end] - lengths[end] * end - costs[start] + lengths[start] * start
            if lengths[start] > lengths[end]:
                first = min(first, behind // (lengths[start] - lengths[end]) + 1)
            elif behind < 0:
                first = end + 1
            first = max(first, end + 1)
            if first > since or len(queue) == head + 1:
                break
            queue.pop()
        if first <= num_rows:
            queue.append((end, first))
    starts = [previous[num_rows]]
    while starts[-1]:
        starts.append(previous[starts[-1]])
    return starts[::-1]


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
