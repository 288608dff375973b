"""How rows are put into packs: one row of tokens without padding, which an encoder reads as many texts.

`pack_encoders` changes encoders so that they read packs (`docsplit.modeling.packed_attention`), and tries it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from docsplit.modeling.families.table import family_of
from docsplit.modeling.packed_attention import packed_inputs, reading_pack

FEWEST_BORDERS = 64  # of a pack of fixed shape
TRIED_LENGTHS = 5, 200  # of the texts of a trial; longer than the windows of local attention
ALLOWED_DIFFERENCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}  # of states, beside their spread


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

    def lay_out(
        self, lengths: np.ndarray, starts: np.ndarray, num_copies: int, max_tokens: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Lay rows of these lengths (R',), which begin at `starts` in the batch, one after another, in each copy.

        Args:
            max_tokens: bound on the tokens of a copy.

        Returns: `numbers`, `positions` and `borders` of `Pack`, and the bound on the tokens of a row.
        """
        within = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        numbers = within + np.repeat(starts, lengths)
        sizes, longest = np.tile(lengths, num_copies), int(lengths.max())
        positions = np.tile(within, num_copies)
        if self.fixed_length and max_tokens is not None:
            longest = max(longest, self.longest)
            filling = np.arange(max(num_copies * max_tokens - len(positions), 0)) % longest
            sizes = np.concatenate([sizes, np.bincount(np.arange(len(filling)) // longest)])
            positions = np.concatenate([positions, filling])
        borders = np.concatenate([[0], sizes.cumsum()])
        if self.fixed_length:
            num_borders = max(FEWEST_BORDERS, 1 << (len(borders) - 1).bit_length())
            borders = np.pad(borders, (0, num_borders - len(borders)), mode="edge")
        return numbers, positions + self.first_position, borders, longest


def groups_that_fit(lengths: np.ndarray, max_tokens: int | None) -> list[slice]:
    """Group rows for packs in their order, which costs nothing: as many as fit, or one that is longer than allowed."""
    if max_tokens is None or not len(lengths):
        return [slice(0, len(lengths))] if len(lengths) else []
    groups, start, total = [], 0, 0
    for number, length in enumerate(lengths.tolist()):
        if total and total + length > max_tokens:
            groups.append(slice(start, number))
            start, total = number, 0
        total += length
    return [*groups, slice(start, len(lengths))]


def pack_encoders(encoders: Sequence[Any], longest: int, dtype: torch.dtype) -> Packing:
    """Let encoders of one kind read packs, and see whether two texts in a pack have the states that they have alone.

    Args:
        encoders: those parts of encoders that read tokens.
        longest: bound on the tokens of a text.
        dtype: of matrix products.

    Raises:
        ValueError: naming why an encoder cannot.
    """
    config, family = encoders[0].config, family_of(encoders[0].config)
    first = config.pad_token_id + 1 if family.positions_follow_padding else 0
    packing = Packing(first, longest=longest)
    for encoder in encoders:
        family.use_packed_attention(encoder, dtype)
        difference = _difference(encoder, packing, dtype)
        if not difference <= ALLOWED_DIFFERENCE[dtype]:  # or NaN
            raise ValueError(
                f"A {config.model_type} gives texts in a pack other states than alone (they differ by "
                f"{difference:.2g} of their spread): leave out --packed_sequences."
            )
    return packing


@torch.no_grad()
def _difference(encoder: Any, packing: Packing, dtype: torch.dtype) -> float:
    """Return the largest difference between states in a pack and alone, in spreads of the states."""
    device, config, was_training = encoder.device, encoder.config, encoder.training
    lengths = np.minimum(TRIED_LENGTHS, packing.longest)
    first = getattr(config, "pad_token_id", None) or 0
    texts = [(first + 1 + torch.arange(length)) % config.vocab_size for length in lengths.tolist()]
    _, places, borders, longest = packing.lay_out(lengths, lengths.cumsum() - lengths, 1, None)
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
