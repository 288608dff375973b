"""Packs: several texts in one row of tokens, one after another without padding, and attention within each of them.

Padding costs what its tokens cost, and each new length is a new shape: a GPU waits for the programs and plans that a
shape needs. In a pack of fixed length there is no padding and one shape. Attention must then stop at the borders of
texts. On CUDA PyTorch's `varlen_attn` does so (FlashAttention, Dao et al. 2022). Elsewhere each text is computed by
itself, which is slow and exact: it is what the tests compare with.

An encoder takes part once `pack_encoders` has changed it, and tried it. Called with `cu_seq_lens_q` it reads a pack;
called as usual, with rows and their mask, it computes as before.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from docsplit.modeling.families.table import family_of

PACKED_ATTENTION = "docsplit_packed"  # of the attention, among those of transformers
HALF = (torch.bfloat16, torch.float16)  # which FlashAttention computes in

# --- The layout of packs ---


@dataclass(frozen=True)
class Packing:
    """How rows are put into packs.

    Attributes:
        first_position: of the first token of a row: 0, or as the encoder counts.
        fixed_length: fill each pack up to its bound, for programs that are compiled for one shape.
        longest: bound on the tokens of a row, where packs are filled up.
    """

    first_position: int
    fixed_length: bool = False
    longest: int = 512

    def arrange(
        self, lengths: np.ndarray, starts: np.ndarray, num_copies: int, max_tokens: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Lay rows of these lengths (R',), which begin at `starts` in the batch, one after another, in each copy.

        Args:
            max_tokens: bound on the tokens of a copy.

        Returns: `numbers`, `positions` and `borders` of `docsplit.modeling.encoding.Pack`, and the bound on the tokens
            of a row.
        """
        within = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        numbers = within + np.repeat(starts, lengths)
        sizes, longest = np.tile(lengths, num_copies), int(lengths.max())
        positions = np.tile(within, num_copies)
        if self.fixed_length:
            longest = max(longest, self.longest)
            filling = np.arange(max(num_copies * max_tokens - len(positions), 0)) % longest
            sizes = np.concatenate([sizes, np.bincount(np.arange(len(filling)) // longest)])
            positions = np.concatenate([positions, filling])
        borders = np.concatenate([[0], sizes.cumsum()])
        if self.fixed_length:
            num_borders = max(64, 1 << (len(borders) - 1).bit_length())
            borders = np.pad(borders, (0, num_borders - len(borders)), mode="edge")
        return numbers, positions + self.first_position, borders, longest


def groups_that_fit(lengths: np.ndarray, max_tokens: int) -> list[slice]:
    """Group rows for packs in their order, which costs nothing: as many as fit, or one that is longer than allowed."""
    if not len(lengths):
        return []
    groups, start, total = [], 0, 0
    for number, length in enumerate(lengths.tolist()):
        if total and total + length > max_tokens:
            groups.append(slice(start, number))
            start, total = number, 0
        total += length
    return [*groups, slice(start, len(lengths))]


def packed_inputs(borders: Tensor, longest: int) -> dict[str, Any]:
    """Return what an encoder takes beside ids and positions: borders of texts (S + 1,) int32, the longest's tokens."""
    return {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_q": longest, "max_length_k": longest}


# --- Encoders that read packs ---


def pack_encoders(encoders: Sequence[Any], longest: int, dtype: torch.dtype) -> Packing:
    """Let encoders of one kind read packs, and see whether two texts in a pack have the states that they have alone.

    The trial is the only guard against packs that an encoder, which nobody knows here, reads wrongly.

    Args:
        encoders: those parts of encoders that read tokens.
        longest: bound on the tokens of a text.
        dtype: of matrix products.

    Raises:
        ValueError: naming why an encoder cannot.
    """
    config, family = encoders[0].config, family_of(encoders[0].config)
    if family.without_packs:
        raise ValueError(f"Packed sequences do not work with {family.without_packs}: leave them out.")
    first = config.pad_token_id + 1 if family.positions_follow_padding else 0
    packing = Packing(first, longest=longest)
    allowed = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    for encoder in encoders:
        _use_packed_attention(encoder)
        difference = _difference(encoder, packing, dtype)
        if not difference <= allowed:  # or NaN
            raise ValueError(
                f"A {config.model_type} gives texts in a pack other states than alone (they differ by "
                f"{difference:.2g} of their spread): leave out --packed_sequences."
            )
    return packing


def _use_packed_attention(encoder: Any) -> None:
    """Let an encoder of transformers read packs; refuse one whose attention cannot."""
    asked = encoder.config._attn_implementation
    if asked not in ("sdpa", PACKED_ATTENTION):
        raise ValueError(f"Packed sequences have their own attention: leave out {asked} attention, or them.")
    if not encoder._can_set_attn_implementation():
        kind = encoder.config.model_type
        raise ValueError(f"transformers' {kind} has one attention only: it cannot read packed sequences.")
    encoder.set_attn_implementation(PACKED_ATTENTION)


@torch.no_grad()
def _difference(encoder: Any, packing: Packing, dtype: torch.dtype) -> float:
    """Return the largest difference between states in a pack and alone, in spreads of the states."""
    device, config, was_training = encoder.device, encoder.config, encoder.training
    lengths = np.minimum((5, 200), packing.longest)  # longer than the windows of local attention
    first = getattr(config, "pad_token_id", None) or 0
    texts = [(first + 1 + torch.arange(length)) % config.vocab_size for length in lengths.tolist()]
    _, places, borders, longest = packing.arrange(lengths, lengths.cumsum() - lengths, 1, int(lengths.sum()))
    limits = packed_inputs(torch.from_numpy(borders).int().to(device), longest)
    encoder.eval()
    try:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            alone = [encoder(input_ids=text[None].to(device))[0][0] for text in texts]
            ids, positions = torch.cat(texts)[None].to(device), torch.from_numpy(places)[None].to(device)
            with reading_pack():
                together = encoder(input_ids=ids, position_ids=positions, **limits)[0][0]
    finally:
        encoder.train(was_training)
    wanted = torch.cat(alone).float()
    return float((together.float() - wanted).abs().max() / wanted.std())


def compile_encoders(encoders: Sequence[Any], packing: Packing | None, *args: Any, **kwargs: Any) -> Packing | None:
    """Compile those parts of encoders that read tokens: for packs of one shape, or for rows of all lengths.

    Returns: the packing that gives packs their shape. Rows with padding are not compiled then.
    """
    for encoder in encoders:
        if packing is None:
            encoder.forward = torch.compile(encoder.forward, *args, **({"dynamic": True} | kwargs))
        else:
            packed = torch.compile(encoder.forward, *args, **({"dynamic": False} | kwargs))
            encoder.forward = partial(_read, packed, encoder.forward)
    return None if packing is None else replace(packing, fixed_length=True)


def _read(packed: Callable[..., Any], padded: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Choose the forward pass by what is read."""
    return (packed if "cu_seq_lens_q" in kwargs else padded)(*args, **kwargs)


# --- Attention within texts, as transformers calls it ---

_reads_pack = False  # while the masks of a pack would be made: it needs none


@contextlib.contextmanager
def reading_pack(is_pack: bool = True) -> Iterator[None]:
    """Let encoders make no masks of a pack: (N, N) of its tokens would not fit into the memory."""
    global _reads_pack
    before, _reads_pack = _reads_pack, is_pack
    try:
        yield
    finally:
        _reads_pack = before


def _mask(*args: Any, **kwargs: Any) -> Any:
    return None if _reads_pack else sdpa_mask(*args, **kwargs)


def packed_attention(  # noqa: PLR0913 (as transformers calls it)
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within the texts of a pack, as transformers' `AttentionInterface` has it.

    Args:
        query, key, value: (1, heads, N, d); of keys and values there may be fewer heads.
        dropout: of the attention weights; CUDA's `varlen_attn` has none.
        sliding_window: w: tokens attend to others at most w - 1 away.
        cu_seq_lens_q: (S + 1,) int32, where the texts begin and the last ends; None: no pack, but rows with a mask.
        max_length_q: tokens of the longest text.

    Returns: (1, N, heads, d), and no weights.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal,
            sliding_window=sliding_window, **kwargs,
        )  # fmt: skip
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
    reach = -1 if sliding_window is None else sliding_window - 1
    if query.device.type == "cuda":
        return _by_varlen(query, key, value, cu_seq_lens_q, int(max_length_q or 0), scaling, reach, causal), None
    return _text_by_text(query, key, value, cu_seq_lens_q, dropout, scaling, reach, causal), None


def _by_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    borders: Tensor,
    longest: int,
    scaling: float | None,
    reach: int,
    causal: bool,
) -> Tensor:
    """Attend by PyTorch's `varlen_attn`: (1, N, heads, d).

    Raises:
        ValueError: for states in full precision, which it cannot compute.
    """
    from torch.nn.attention.varlen import varlen_attn

    if value.dtype not in HALF:
        raise ValueError(
            "Packed sequences need 16-bit precision on a GPU: train with bf16=True (--bf16), or leave them out."
        )
    # Rotary positions leave queries and keys in full precision
    query, key, value = (states.to(value.dtype)[0].transpose(0, 1) for states in (query, key, value))  # (N, heads, d)
    shared_by = query.shape[1] // key.shape[1]  # heads of queries
    if shared_by > 1:  # PyTorch 2.11 takes no fewer heads of keys
        key, value = (states.repeat_interleave(shared_by, dim=1) for states in (key, value))
    window = (reach, 0 if causal else reach)
    attended: Any = varlen_attn(
        query, key, value, borders, borders, longest, longest, scale=scaling, window_size=window
    )  # (N, heads, d)
    return attended.unsqueeze(0)


@torch.compiler.disable
def _text_by_text(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_lens: Tensor,
    dropout: float,
    scaling: float | None,
    reach: int,
    causal: bool,
) -> Tensor:
    """Attend in each text by itself: (1, N, heads, d)."""
    lengths = cu_seq_lens.diff()
    sizes = lengths[lengths > 0].tolist()
    attended = []
    for parts in zip(*(states.split(sizes, dim=2) for states in (query, key, value))):
        length, mask = parts[0].shape[2], None
        if 0 <= reach < length - 1:
            distance = torch.arange(length)[:, None] - torch.arange(length)
            mask = ((distance.abs() <= reach) & ((distance >= 0) | (not causal))).to(query.device)
        options: dict[str, Any] = {"attn_mask": mask, "is_causal": causal and mask is None}
        options |= {"dropout_p": dropout, "scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
        attended.append(F.scaled_dot_product_attention(*parts, **options))
    return torch.cat(attended, dim=2).transpose(1, 2)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, _mask)
