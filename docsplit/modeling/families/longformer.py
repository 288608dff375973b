"""Longformer has attention in windows, a global first token, and rows padded to the window."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docsplit.modeling.families.base import Family


def _with_a_global_token(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """Let the first token attend to all and all to it (Longformer, section 3.1), unless the caller says otherwise."""
    in_tiles = not getattr(self, "pads_to_window", True)
    if kwargs.get("cu_seq_lens_q") is not None and not in_tiles:
        raise ValueError(
            "transformers' own attention of a Longformer (--attn_implementation eager) reads one text a row: "
            "in packed rows it would attend across the borders between texts. Pack nothing, or attend in tiles."
        )
    if input_ids is not None and len(args) < 2 and kwargs.get("global_attention_mask") is None:
        if in_tiles:
            kwargs["first_token_is_global"] = True  # which no mask has to say, and nobody has to count
        else:
            kwargs["global_attention_mask"] = torch.zeros_like(input_ids)
            kwargs["global_attention_mask"][:, 0] = 1
    return type(self).forward(self, input_ids, *args, **kwargs)


class Longformer(Family):
    """Attention in tiles (`longformer_attention`), in place of transformers' own."""

    def length_multiple(self, base_model: Any) -> int:
        """Return the window, to which transformers pads; attention in tiles needs no padding."""
        if not getattr(base_model, "pads_to_window", True):
            return 1
        windows = base_model.config.attention_window
        return windows if isinstance(windows, int) else max(windows)

    def prepare_for_training(self, model: Any, attn_implementation: str | None = None) -> None:
        """Compute attention in tiles, unless it is to be `eager`: as transformers has it."""
        from docsplit.modeling.families.longformer_attention import use_blocked_attention

        if attn_implementation != "eager":
            use_blocked_attention(model)

    def prepare_loaded(self, base_model: Any, is_ours: bool) -> None:
        """Compute attention in tiles; only a Longformer of others goes without the global token."""
        from transformers import LongformerModel

        from docsplit.modeling.families.longformer_attention import use_blocked_attention

        if is_ours:
            self.patch_forward(base_model)
        if type(base_model) is LongformerModel:
            use_blocked_attention(base_model)

    @contextlib.contextmanager
    def attending(self, encoder: Any) -> Iterator[None]:
        """Compute attention in tiles, too."""
        from transformers import LongformerModel

        from docsplit.modeling.families.longformer_attention import use_blocked_attention, use_transformers_attention

        is_to_be_blocked = type(encoder) is LongformerModel
        with super().attending(encoder):
            if is_to_be_blocked:
                use_blocked_attention(encoder)
            try:
                yield
            finally:
                if is_to_be_blocked:
                    use_transformers_attention(encoder)

    def use_packed_attention(self, encoder: Any, dtype: Any) -> None:
        """Compute attention in tiles, which reads packs as it is.

        Raises:
            ValueError: if it is transformers' own, which cannot.
        """
        if getattr(encoder, "pads_to_window", True):
            raise ValueError("transformers' own attention of a Longformer cannot read packed sequences: leave it out.")

    def return_attention(self, base_model: Any) -> None:
        """Bring transformers' attention back: tiles keep no weights."""
        from docsplit.modeling.families.longformer_attention import use_transformers_attention

        use_transformers_attention(base_model)
        super().return_attention(base_model)


LONGFORMER = Longformer(
    forward=_with_a_global_token,
    positions_follow_padding=True,
    has_global_token=True,
    module="longformer_transformer.LongformerTransformer",  # sentence-transformers' own leaves the global token out
    code={"longformer_transformer.py": (Path(__file__).parent / "longformer_transformer.py",)},
    without_onnx="its window attention decides by the length of the text, which ONNX cannot follow",
)
