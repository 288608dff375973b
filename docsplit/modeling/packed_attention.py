"""Attention among the tokens of each text where several lie in one row, one after another, without padding.

Padding costs what its tokens cost, and each new length is a new shape: a GPU waits for the programs and plans that a
shape needs. In a pack of fixed length there is no padding and one shape. Attention must then stop at the borders of
texts. On CUDA PyTorch's `varlen_attn` does so (FlashAttention, Dao et al. 2022). Elsewhere each text is computed by
itself, which is slow and exact: it is what the tests compare with.

An encoder takes part once `use_packed_attention` has changed it. Called with `cu_seq_lens_q` it reads a pack; called
as usual, with rows and their mask, it computes as before.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "docsplit_packed"
OPTIONS = {"scale", "window_size", "enable_gqa"}  # of `varlen_attn`; older ones lack some
HALF = (torch.bfloat16, torch.float16)  # which FlashAttention computes in

_reads_pack = False  # while the masks of a pack would be made: it needs none


@contextlib.contextmanager
def reading_pack() -> Iterator[None]:
    """Let encoders make no masks: (N, N) of the tokens of a pack would not fit into the memory."""
    global _reads_pack
    before, _reads_pack = _reads_pack, True
    try:
        yield
    finally:
        _reads_pack = before


def packed_inputs(borders: Tensor, longest: int) -> dict[str, Any]:
    """Return what an encoder takes beside ids and positions: borders of texts (S + 1,) int32, the longest's tokens."""
    return {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_q": longest, "max_length_k": longest}


def use_packed_attention(encoder: Any, dtype: torch.dtype) -> None:
    """Let an encoder of transformers read packs.

    Args:
        dtype: of matrix products.

    Raises:
        ValueError: if its attention cannot be changed, is one that was asked for, or needs another precision.
    """
    config = encoder.config
    if encoder.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        if dtype not in HALF:
            raise ValueError("Packed sequences need 16-bit precision on a GPU: add --bf16, or leave them out.")
        if not inspect.signature(varlen_attn).parameters.keys() >= OPTIONS:
            raise ValueError(
                f"Packed sequences need PyTorch 2.13 on a GPU, and this is {torch.__version__}: renew it."
            )
    if config._attn_implementation not in ("sdpa", NAME):
        asked = config._attn_implementation
        raise ValueError(f"Packed sequences have their own attention: leave out {asked} attention, or them.")
    if not encoder._can_set_attn_implementation():
        raise ValueError(f"transformers' {config.model_type} has one attention only: it cannot read packed sequences.")
    encoder.set_attn_implementation(NAME)


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
        from torch.nn.attention.varlen import varlen_attn

        dtype = value.dtype if value.dtype in HALF else torch.get_autocast_dtype("cuda")
        query, key, value = (states.to(dtype)[0].transpose(0, 1) for states in (query, key, value))  # (N, heads, d)
        borders, longest, window = cu_seq_lens_q, int(max_length_q or 0), (reach, 0 if causal else reach)
        options: dict[str, Any] = {"window_size": window, "enable_gqa": query.shape[1] != key.shape[1]}
        attended: Any = varlen_attn(
            query, key, value, borders, borders, longest, longest, scale=scaling, **options
        )  # (N, heads, d)
        return attended.unsqueeze(0), None
    return _text_by_text(query, key, value, cu_seq_lens_q, dropout, scaling, reach, causal), None


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


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, _mask)
