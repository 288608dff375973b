"""Encode rows of tokens in micro-batches of similar length, and combine rows where a document has several.

InfoNCE needs all vectors of a batch at once, but never all activations. So rows are sorted by length, cut into
micro-batches, each trimmed to its longest row and encoded one after another: padding disappears, and the loss stays
the same. With cached gradients each micro-batch is recomputed in the backward pass, so that memory does not grow with
the contrastive batch. The price of that is a second forward pass (about a third of a step).
"""

import contextlib
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from docsplit.modeling.distributed import send
from docsplit.modeling.packing import Packing, groups_that_fit, packed_inputs, reading_pack

logger = logging.getLogger(__name__)

IGNORED = -100  # the value of `mlm_targets` where nothing is predicted
MICRO_BATCH_OVERHEAD = 128  # of one more micro-batch (launches, gradients of weights), in tokens, on a CPU
OVERHEAD_OF_A_GPU = 4096  # which computes so many while the host launches one pass; an estimate

# Autocast would cast the weights once for all micro-batches and sum the gradients of all in bfloat16, where small ones
# are lost. A cast for each would keep as many copies of the weights.
MICRO_BATCHES_PER_CAST = 4


@dataclass
class Rows:
    """The document and view of each row of a batch, (R,) int64 each; rows of a view come one after another.

    On the host, where the collator makes them, they say without waiting how rows become documents.

    For DocSplit a row is a view. For an encoder with a method `combine(row_vectors, rows)` it is a passage of one:
    `combine` turns the vectors (R, H) of some rows into one (D, H) for each document and view among them, in the order
    of documents, and of views within a document. Such an encoder may make the vectors of rows itself, with a method
    `encode_passages(**inputs)` of what a `MicroBatch` gives.
    """

    document: Tensor  # number in the batch
    view: Tensor  # 0 or 1; of a query and its documents 0, 1, 2 ...
    section: Tensor | None = None
    position: Tensor | None = None  # in the document
    is_query: Tensor | None = None  # to be embedded as a query is

    def select(self, chosen: np.ndarray) -> "Rows":
        """Return the rows of these numbers (R',)."""
        numbers = torch.from_numpy(chosen).to(self.document.device)
        parts: dict[str, Any] = {name: None if value is None else value[numbers] for name, value in vars(self).items()}
        return Rows(**parts)


# --- Micro-batches: the inputs of one forward pass ---


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
    """Some rows of a batch, padded to the longest of them; `Pack` has the same methods.

    Tensors are indices into the batch on the device: cutting the tokens out is a part of the forward pass, and what is
    kept for the backward pass is no copy of them.

    Attributes:
        numbers: of the rows (R',), on the device.
        longest: their tokens T'.
        num_tokens: of a copy of them, padding included.
    """

    numbers: Tensor
    longest: int
    num_tokens: int
    masked: Masked | None = None
    limits: dict[str, Any] = field(default_factory=dict)  # what attention takes besides: the mask says all

    def inputs(self, copies: Sequence[Tensor], attention_mask: Tensor) -> dict[str, Any]:
        """Return what the encoder takes: (R' x copies, T'), of token ids (R, T) and their mask."""
        rows = torch.cat([ids[self.numbers, : self.longest] for ids in copies])
        return {"input_ids": rows, "attention_mask": attention_mask[self.numbers, : self.longest].tile(len(copies), 1)}

    def states_of_masked(self, states: Tensor, places: Tensor) -> Tensor:
        """Return the states (M, H) of the masked tokens, in the last R' rows of (R' x copies, T', H)."""
        return states[-len(self.numbers) :].flatten(0, 1)[places]

    def pool(self, states: Tensor, attention_mask: Tensor, pooling: Any) -> Tensor:
        """Pool the states (R' x copies, T', H) of the first copy: (R', H), in fp32 or wider."""
        dtype = torch.promote_types(states.dtype, torch.float32)
        mask = attention_mask[self.numbers, : self.longest]
        features = {"token_embeddings": states[: len(self.numbers)].to(dtype), "attention_mask": mask}
        return pooling(features)["sentence_embedding"]


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

    @property
    def limits(self) -> dict[str, Any]:
        """Return where rows begin and end, as attention takes it."""
        return packed_inputs(self.borders, self.longest)

    def inputs(self, copies: Sequence[Tensor], attention_mask: Tensor) -> dict[str, Any]:
        """Return what the encoder takes: ids (1, N) of token ids (R, T), and positions; it needs `limits` too."""
        ids = torch.cat([ids.flatten()[self.numbers] for ids in copies])
        ids = F.pad(ids, (0, len(self.positions) - len(ids)))
        return {"input_ids": ids[None], "attention_mask": None, "position_ids": self.positions[None]}

    def states_of_masked(self, states: Tensor, places: Tensor) -> Tensor:
        """Return the states (M, H) of the masked tokens, in the last copy of (1, N, H)."""
        return states[0][places]

    def pool(self, states: Tensor, attention_mask: Tensor, pooling: Any) -> Tensor:
        """Pool the states (1, N, H) of the first copy: (R', H); borders say what a mask would."""
        return self.pool_by_mode(states, pooling.pooling_mode)

    def pool_by_mode(self, states: Tensor, pooling: str | Sequence[str]) -> Tensor:
        """Pool them by a mode, or by several whose vectors are joined."""
        return pool_texts(states[0], self.borders[: self.num_rows + 1].long(), len(self.numbers), pooling)


MicroBatch = PaddedRows | Pack


# --- Batches ---


@dataclass
class Encoded:
    """What the micro-batches of a step produce besides vectors; not in the batch, which checkpoints keep alive."""

    mlm_sums: list[Tensor] = field(default_factory=list)  # () for each micro-batch
    num_computed_tokens: int = 0  # padding included


@dataclass
class RowBatch:
    """The rows of all views, one after another, and on the host what the course of the program depends on."""

    rows: Rows
    views: np.ndarray  # (R,), the view of each row
    num_documents: int
    attention_mask: Tensor  # (R, T)
    lengths: np.ndarray  # (R,)
    input_ids: Tensor | None  # (R, T); None: nothing is embedded
    mlm_input_ids: Tensor | None = None  # (R, T); None: no MLM loss
    mlm_targets: Tensor | None = None  # (R, T)
    masked: np.ndarray | None = None  # (M,), ascending places in (R T,) of the tokens to predict
    views_are_one: bool = False  # both views of each document have the same vector

    @property
    def num_targets(self) -> int:
        """Return the number of tokens to predict."""
        return 0 if self.masked is None else len(self.masked)

    def copies(self) -> list[Tensor]:
        """Return the token ids (R, T) that are encoded: of rows, and of their masked copies."""
        return [ids for ids in (self.input_ids, self.mlm_input_ids) if ids is not None]

    def rows_of(self, view: int | None) -> np.ndarray:
        """Return the numbers of the rows of a view, or of all, (R',)."""
        return np.arange(len(self.views)) if view is None else np.flatnonzero(self.views == view)

    def refuse_longer_than(self, max_seq_length: int) -> None:
        """Refuse rows that are longer than what the encoder reads afterwards.

        Raises:
            ValueError: naming the collator that fits.
        """
        if (longest := int(self.lengths.max())) > max_seq_length:
            raise ValueError(
                f"The batch has views of {longest} tokens, but the encoder reads max_seq_length {max_seq_length} "
                "afterwards: make the collator with DocSplitCollator.for_model(model, tokenizer), and give it another "
                "max_seq_length if both are to have it."
            )

    def micro_batches(
        self, chosen: np.ndarray, max_tokens: int, multiple: int = 1, packing: Packing | None = None
    ) -> Iterator[tuple[np.ndarray, MicroBatch]]:
        """Yield the rows of these numbers in groups, each with its places among them.

        Args:
            max_tokens: bound on the tokens of a group, padding included.
            multiple: as `micro_batches` takes it.
            packing: put the rows of a group into one, without padding; None: pad them.
        """
        lengths = self.lengths[chosen].clip(min=1)
        if packing is None:
            overhead = overhead_on(self.attention_mask.device)
            cuts = micro_batches(torch.from_numpy(self.lengths[chosen]), max_tokens, multiple, overhead)
            groups = [(places.numpy(), longest) for places, longest in cuts]
        else:
            numbers = np.arange(len(chosen))
            groups = [(numbers[part], 0) for part in groups_that_fit(lengths, max_tokens)]
        for number, (places, longest) in enumerate(groups):
            if number % MICRO_BATCHES_PER_CAST == 0:
                torch.clear_autocast_cache()
            rows = chosen[places]
            if packing is None:
                num_tokens = len(rows) * -(-longest // multiple) * multiple
                yield places, self.pad(rows, longest, num_tokens)
            else:
                yield places, self.pack(rows, lengths[places], packing, max_tokens)

    def pad(self, rows: np.ndarray, longest: int, num_tokens: int) -> PaddedRows:
        """Pad rows (R',) to the longest."""
        arrays = [rows, *self.masked_tokens(rows, longest * np.arange(len(rows)))]
        numbers, *masked = to_device(arrays, self.attention_mask.device)
        return PaddedRows(numbers, longest, num_tokens, Masked(*masked) if masked else None)

    def pack(self, rows: np.ndarray, lengths: np.ndarray, packing: Packing, max_tokens: int) -> Pack:
        """Put rows (R',) of these lengths, and their masked copies, one after another."""
        num_copies, width = len(self.copies()), self.attention_mask.shape[1]
        *laid_out, longest = packing.arrange(lengths, rows * width, num_copies, max_tokens)
        num_before = (num_copies - 1) * int(lengths.sum())  # tokens of the other copy
        arrays = [*laid_out, *self.masked_tokens(rows, num_before + lengths.cumsum() - lengths)]
        numbers, positions, borders, *masked = to_device(arrays, self.attention_mask.device)
        num_tokens = len(positions) // num_copies
        of_masked = Masked(*masked) if masked else None
        return Pack(numbers, positions, borders.int(), len(rows), longest, num_tokens, of_masked)

    def masked_tokens(self, rows: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
        """Return the `places` and `sources` of `Masked`, (M,) each, of rows that begin at `starts`; none without."""
        if self.masked is None:
            return []
        width = self.attention_mask.shape[1]
        first, end = self.masked.searchsorted([rows * width, (rows + 1) * width])
        counts = end - first
        index = np.arange(counts.sum()) + np.repeat(first - (counts.cumsum() - counts), counts)
        sources = self.masked[index]
        return [sources + np.repeat(starts - rows * width, counts), sources]


class FirstBatch:
    """The first batch of a training whose epochs nobody counts; it logs once that all its documents came again."""

    def __init__(self) -> None:
        self.waited_for: set[tuple[int, int]] | None = None

    def note(self, drawn: np.ndarray | None) -> None:
        """Note for which document and epoch the views of a batch were drawn, (B, 2); None: nobody says."""
        if drawn is None or (drawn[:, 1] >= 0).any():
            return
        pairs = set(map(tuple, drawn.tolist()))
        if self.waited_for is None:
            self.waited_for = pairs
        elif self.waited_for:
            self.waited_for -= pairs
            if not self.waited_for:
                logger.warning(
                    "All documents of the first batch came again with the same views. For other views in each epoch, "
                    "and the parts of the loss in the log: DocSplitCallback(trainer), from docsplit."
                )


def lay_out_batch(
    attention_mask: Tensor,
    rows: Mapping[str, Any] | None,
    *tensors: Tensor | None,
    host: Mapping[str, np.ndarray] | None = None,
) -> RowBatch:
    """Put the rows of all views one after another, (B, V, T) -> (V B, T), unless `rows` says that they are.

    Lengths and masks decide the course of the program. Collators say them; else they are read from the device here,
    once, which waits for all that was launched before.

    Args:
        rows: the fields of `Rows`, for tensors of shape (R, T), of NumPy or PyTorch; None: a row a view.
        tensors: input ids, masked ids and MLM targets; None for those that are not used.
        host: `lengths` (R,) of rows, and `masked` (M,), the ascending places in (R T,) of tokens to predict.
    """
    flat = [tensor if tensor is None or rows is not None else tensor.flatten(0, 1) for tensor in tensors]
    input_ids, mlm_input_ids, mlm_targets = flat
    mask = attention_mask if rows is not None else attention_mask.flatten(0, 1)
    if rows is not None:
        laid_out = Rows(**{name: torch.as_tensor(values) for name, values in rows.items()})
    else:
        numbers, num_views = torch.arange(len(mask)), attention_mask.shape[1]
        laid_out = Rows(document=numbers // num_views, view=numbers % num_views)
    num_documents = int(laid_out.document.max()) + 1
    known = host or {}
    lengths = known["lengths"] if "lengths" in known else mask.sum(dim=-1).cpu().numpy()
    masked = None
    if mlm_targets is not None:
        masked = known["masked"] if "masked" in known else np.flatnonzero((mlm_targets != IGNORED).cpu().numpy())
    views = laid_out.view.cpu().numpy()
    return RowBatch(laid_out, views, num_documents, mask, lengths, input_ids, mlm_input_ids, mlm_targets, masked)


# --- Encoding ---


@contextlib.contextmanager
def select_hidden_states(base_model: nn.Module, part: MicroBatch, places: Tensor) -> Iterator[list[Tensor]]:
    """Let the head that follows `base_model` see only the states (M, H) of the masked tokens.

    A masked-LM head is most of a small model's cost and needs 15 % of the tokens only. Every `...ForMaskedLM` applies
    its head to the first output of its base model, so this works for each of them without knowing the head. Not every
    one passes on what it does not know, so `base_model` gets the limits of a pack here.

    Yields: a list that receives the states of all tokens.
    """
    all_states: list[Tensor] = []

    def select(module: nn.Module, args: Any, output: Any) -> Any:
        all_states.append(output.last_hidden_state)
        output.last_hidden_state = part.states_of_masked(output.last_hidden_state, places)
        return output

    handles = [
        base_model.register_forward_pre_hook(lambda _, args, given: (args, given | part.limits), with_kwargs=True),
        base_model.register_forward_hook(select),
    ]
    try:
        yield all_states
    finally:
        for handle in handles:
            handle.remove()


def encode_micro_batch(
    encoder: Any, body: Any, batch: RowBatch, part: MicroBatch
) -> tuple[Tensor | None, Tensor | None]:
    """Encode some rows of a batch, and their masked copies.

    Args:
        encoder: has the model of `body` in it, and a masked-LM head where tokens are to be predicted.
        body: a SentenceTransformer, whose second module pools.

    Returns: vectors (R', H), None where nothing is embedded: pooled states, or `encode_passages` of an encoder that
        combines rows; and the summed MLM loss (), None without one.
    """
    inputs, base_model = part.inputs(batch.copies(), batch.attention_mask), body[0].model
    if part.masked is None or batch.mlm_targets is None:
        with reading_pack(isinstance(part, Pack)):
            if hasattr(base_model, "encode_passages"):
                pool = part.pool_by_mode if isinstance(part, Pack) else None
                return base_model.encode_passages(**inputs, **part.limits, pool=pool), None
            return part.pool(base_model(**inputs, **part.limits)[0], batch.attention_mask, body[1]), None
    # The rows and their masked copies go through the encoder together: half the calls, and half the times that the
    # gradient of the vocabulary is written. A micro-batch without any masked token still takes part, with an empty
    # sum: under DDP each parameter of the head needs its gradient on every process.
    with (
        reading_pack(isinstance(part, Pack)),
        select_hidden_states(base_model, part, part.masked.places) as all_states,
    ):
        logits = encoder(**inputs).logits  # (M, V)
    targets = batch.mlm_targets.flatten()[part.masked.sources]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    mlm_sum = F.cross_entropy(logits.to(dtype), targets, reduction="sum")
    return None if batch.input_ids is None else part.pool(all_states[0], batch.attention_mask, body[1]), mlm_sum


def encode_and_compute_again(
    encoder: Any, body: Any, batch: RowBatch, part: MicroBatch
) -> tuple[Tensor | None, Tensor | None]:
    """Encode as `encode_micro_batch`, keep no activations, and compute them again in the backward pass."""

    def run(numbers: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return encode_micro_batch(encoder, body, batch, part)

    # It restores the random state, and so dropout, of the device that a tensor among its arguments is on
    return checkpoint(run, part.numbers, use_reentrant=False)


def pool_texts(states: Tensor, borders: Tensor, num_tokens: int, pooling: str | Sequence[str]) -> Tensor:
    """Turn the token states (N, H) of a pack into one vector a text (R, H), in fp32 or wider.

    `Pooling` of sentence-transformers gives the same; its sums are in another order each time on a GPU, and it waits
    for the lengths.

    Args:
        borders: (R + 1,), where texts begin and the last ends; none is empty.
        num_tokens: of all texts, the last border.
        pooling: a mode of `Pooling`, or several whose vectors are joined.
    """
    if not isinstance(pooling, str):
        return torch.cat([pool_texts(states, borders, num_tokens, mode) for mode in pooling], dim=1)
    dtype = torch.promote_types(states.dtype, torch.float32)
    starts, lengths = borders[:-1], borders.diff()
    if pooling in ("cls", "lasttoken"):
        return states[starts if pooling == "cls" else borders[1:] - 1].to(dtype)
    states = states[:num_tokens].to(dtype)
    totals = lengths[:, None].to(dtype)
    if pooling == "weightedmean":
        numbers = torch.arange(num_tokens, device=states.device)
        first = starts.repeat_interleave(lengths, output_size=num_tokens)
        states = states * (numbers - first + 1)[:, None]  # 1, 2 ... of its tokens
        totals = totals * (totals + 1) / 2
    # One thread a text and number of H adds them in order: as exact as it is repeatable
    reduced = torch.segment_reduce(states, "max" if pooling == "max" else "sum", lengths=lengths, unsafe=True)
    if pooling == "max":
        return reduced
    return reduced / (totals.sqrt() if pooling == "mean_sqrt_len_tokens" else totals)


def finish(body: Any, vectors: Tensor) -> Tensor:
    """Turn pooled vectors (N, H) into embeddings (N, W) by the modules that follow, in full precision."""
    features = {"sentence_embedding": vectors}
    with torch.autocast(vectors.device.type, enabled=False):
        for module in list(body)[2:]:
            features = module(features)
    return features["sentence_embedding"]


def embedding_width(body: Any) -> int:
    """Return the width of an encoder's whole embeddings."""
    with body.truncate_embeddings(None):
        return body.get_embedding_dimension()


def overhead_on(device: torch.device) -> int:
    """Return the cost of one more micro-batch, in tokens."""
    return MICRO_BATCH_OVERHEAD if device.type == "cpu" else OVERHEAD_OF_A_GPU


def default_training_tokens(device: torch.device) -> int:
    """Choose the tokens of views in one forward pass in training, where activations take memory.

    A GPU takes its time for thousands of tokens before the host has launched the next pass.
    """
    if device.type != "cuda":
        return 1024 if device.type == "cpu" else 4096
    gigabytes = torch.cuda.get_device_properties(device).total_memory / 2**30
    return 32_768 if gigabytes >= 40 else 8192


def micro_batches(
    lengths: Tensor, max_tokens: int, multiple: int = 1, overhead: int = MICRO_BATCH_OVERHEAD
) -> Iterator[tuple[Tensor, int]]:
    """Cut rows into groups of similar length: yield (row indices, longest length), the longest rows first.

    The cut has the least padding of all cuts of the sorted rows. Each group counts as `overhead` tokens more, since
    many small groups would have no padding at all.

    Args:
        lengths: number of tokens of each row, (R,).
        max_tokens: bound on rows x longest row of a group; a longer single row makes a group of its own.
        multiple: what the encoder pads the longest row to, `length_multiple`; it counts for padding and bound.
    """
    lengths, order = lengths.sort(descending=True, stable=True)
    unpadded = lengths.clamp(min=1).tolist()
    if not unpadded:
        return
    starts = _cheapest_cut([-(-length // multiple) * multiple for length in unpadded], max_tokens, overhead)
    for start, end in itertools.pairwise([*starts, len(unpadded)]):
        yield order[start:end], unpadded[start]


def _cheapest_cut(lengths: list[int], max_tokens: int, overhead: int) -> list[int]:
    """Find where the groups of `micro_batches` begin; lengths are in descending order.

    A group of n rows from row i on costs `overhead + lengths[i] x n`. The cheapest cut of the first rows is known when
    a group that begins behind them is tried; of equal ones the longer group is taken.
    """
    numbers = np.arange(1, len(lengths) + 1)
    costs = np.full(len(lengths) + 1, np.iinfo(np.int64).max)  # of the first rows
    costs[0], begins = 0, np.zeros_like(costs)  # where the last of their groups begins
    for start, length in enumerate(lengths):
        ends = slice(start + 1, start + 1 + max(max_tokens // length, 1))
        tried = costs[start] + overhead + length * numbers[: len(costs[ends])]
        is_better = tried < costs[ends]
        costs[ends] = np.where(is_better, tried, costs[ends])
        begins[ends] = np.where(is_better, start, begins[ends])
    starts = [int(begins[-1])]
    while starts[-1]:
        starts.append(int(begins[starts[-1]]))
    return starts[::-1]
