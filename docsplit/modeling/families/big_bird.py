"""BigBird has block-sparse attention in long rows and full attention in short ones."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from docsplit.modeling.families.base import Family

logger = logging.getLogger(__name__)


def longest_full_attention(config: Any) -> int:
    """Return the tokens of the longest row with full attention: block-sparse attention needs longer ones."""
    return (5 + 2 * config.num_random_blocks) * config.block_size


def _with_full_attention_of_short_rows(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """Give short rows full attention, and them alone: transformers would switch to it for good."""
    if input_ids is not None and self.config.attention_type == "block_sparse":
        fits = input_ids.shape[1] > longest_full_attention(self.config)
        with torch.random.fork_rng(devices=[]):  # new modules are made for it, whose weights are drawn and thrown away
            self.set_attention_type("block_sparse" if fits else "original_full")
    return type(self).forward(self, input_ids, *args, **kwargs)


class BigBird(Family):
    """Attention whose kind depends on the length of the row."""

    def prepare_for_training(self, model: Any, attn_implementation: str | None = None) -> None:
        """Log which rows get which attention."""
        if model.config.attention_type == "block_sparse":
            longest = longest_full_attention(model.config)
            logger.info(f"BigBird: views of up to {longest} tokens get full attention, longer ones block-sparse.")

    @contextlib.contextmanager
    def attending(self, encoder: Any) -> Iterator[None]:
        """Put the kind of attention back, too."""
        is_bare = "forward" not in vars(encoder)
        try:
            with super().attending(encoder):
                yield
        finally:
            if is_bare:
                encoder.set_attention_type(encoder.config.attention_type)

    def use_packed_attention(self, encoder: Any, dtype: Any) -> None:
        """Refuse packs.

        Raises:
            ValueError: always.
        """
        raise ValueError("BigBird's blocks of keys cross the borders of texts: it cannot read packed sequences.")

    def check_recomputation(self, recomputes_layers: bool, cache_gradients: bool) -> None:
        """Refuse to recompute a layer with the attention of another micro-batch.

        Raises:
            ValueError: naming the remedy.
        """
        if recomputes_layers and not cache_gradients:
            raise ValueError(
                "BigBird's --gradient_checkpointing needs --cache_gradients too: else a layer would be recomputed "
                "with the attention of a later micro-batch."
            )


BIG_BIRD = BigBird(
    forward=_with_full_attention_of_short_rows,
    without_onnx="its random blocks are drawn in Python at each call",
)
