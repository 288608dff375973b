"""All that is particular to Longformer and BigBird, in training and embedding alike."""

import types
from typing import Any, Literal

import torch
from torch import Tensor

# Of texts longer than the encoder reads: the beginning alone, or the mean over pieces of that length.
LongDocuments = Literal["truncate", "chunk_mean"]

# With which SentenceTransformer loads a Longformer: longformer_transformer.py, copied into the checkpoint.
LONGFORMER_MODULE = "longformer_transformer.LongformerTransformer"


def length_multiple(base_model: Any) -> int:
    """The encoder pads its input to a multiple of this many tokens: a Longformer of transformers to its window."""
    if base_model.config.model_type != "longformer" or not getattr(base_model, "pads_to_window", True):
        return 1
    windows = base_model.config.attention_window
    return windows if isinstance(windows, int) else max(windows)


def attend_as_documents_need(base_model: Any) -> None:
    """Make a Longformer or BigBird, called without more than ids and mask, attend as long documents need it.

    A Longformer's first token attends to all and all to it (Longformer, section 3.1): transformers leaves that to the
    caller. BigBird's block-sparse attention needs rows of more than so many tokens, and at the first short ones
    transformers switches to full attention for good: with this it is full for those rows alone. Any other encoder
    stays as it is.
    """
    if base_model.config.model_type in ("longformer", "big_bird"):
        # No hook, which sentence-transformers would pass by; and a method, of which a deep copy has its own.
        base_model.forward = types.MethodType(_forward_for_documents, base_model)


def _forward_for_documents(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    config = self.config
    if input_ids is not None and config.model_type == "longformer":
        if len(args) < 2 and kwargs.get("global_attention_mask") is None:
            kwargs["global_attention_mask"] = torch.zeros_like(input_ids)
            kwargs["global_attention_mask"][:, 0] = 1
    elif input_ids is not None and config.attention_type == "block_sparse":
        fits = input_ids.shape[1] > (5 + 2 * config.num_random_blocks) * config.block_size
        with torch.random.fork_rng(devices=[]):  # new modules are made for it, whose weights are drawn and thrown away
            self.set_attention_type("block_sparse" if fits else "original_full")
    return type(self).forward(self, input_ids, *args, **kwargs)
