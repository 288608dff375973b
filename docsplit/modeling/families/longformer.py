"""All that is particular to Longformer and BigBird, in training and embedding alike."""

import contextlib
import logging
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# Of texts longer than the encoder reads: the beginning alone, or the mean over pieces of that length.
LongDocuments = Literal["truncate", "chunk_mean"]

# With which SentenceTransformer loads a Longformer: longformer_transformer.py, copied into the checkpoint.
LONGFORMER_MODULE = "longformer_transformer.LongformerTransformer"

NOT_EXPORTABLE = {  # to ONNX
    "longformer": "its window attention decides by the length of the text, which ONNX cannot follow",
    "big_bird": "its random blocks are drawn in Python at each call",
}


def length_multiple(base_model: Any) -> int:
    """The encoder pads its input to a multiple of this many tokens: a Longformer of transformers to its window."""
    if base_model.config.model_type != "longformer" or not getattr(base_model, "pads_to_window", True):
        return 1
    windows = base_model.config.attention_window
    return windows if isinstance(windows, int) else max(windows)


def longest_full_attention(config: Any) -> int:
    """A BigBird's block-sparse attention needs rows of more tokens than this."""
    return (5 + 2 * config.num_random_blocks) * config.block_size


def patch_long_attention(base_model: Any) -> None:
    """Make an encoder, called without more than ids and mask, attend as long documents need it: as `FORWARDS` says.

    Any other architecture stays as it is.
    """
    if base_model.config.model_type in FORWARDS:
        # No hook, which sentence-transformers would pass by; and a method, of which a deep copy has its own.
        base_model.forward = types.MethodType(FORWARDS[base_model.config.model_type], base_model)


def _with_a_global_token(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """A Longformer's first token attends to all and all to it (Longformer, section 3.1); transformers asks for it."""
    if input_ids is not None and len(args) < 2 and kwargs.get("global_attention_mask") is None:
        kwargs["global_attention_mask"] = torch.zeros_like(input_ids)
        kwargs["global_attention_mask"][:, 0] = 1
    return type(self).forward(self, input_ids, *args, **kwargs)


def _with_full_attention_of_short_rows(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """BigBird's block-sparse attention needs rows of more than so many tokens.

    At the first short ones transformers switches to full attention for good: with this it is full for those alone.
    """
    if input_ids is not None and self.config.attention_type == "block_sparse":
        fits = input_ids.shape[1] > longest_full_attention(self.config)
        with torch.random.fork_rng(devices=[]):  # new modules are made for it, whose weights are drawn and thrown away
            self.set_attention_type("block_sparse" if fits else "original_full")
    return type(self).forward(self, input_ids, *args, **kwargs)


FORWARDS: dict[str, Callable[..., Any]] = {  # by model type: `forward` with what its caller would have to know
    "longformer": _with_a_global_token,
    "big_bird": _with_full_attention_of_short_rows,
}


def block_attention(model: Any, attn_implementation: str | None = None) -> None:
    """Compute a Longformer's attention in tiles, unless it is to be `eager`: as transformers has it.

    Args:
        model: an encoder, or one with a Longformer in it; of another architecture it stays as it is, and a BigBird's
            rule is logged.
    """
    from docsplit.modeling.families.longformer_attention import use_blocked_attention

    config = model.config
    if config.model_type == "longformer" and attn_implementation != "eager":
        use_blocked_attention(model)
    if config.model_type == "big_bird" and config.attention_type == "block_sparse":
        longest = longest_full_attention(config)
        logger.info(f"BigBird: views of up to {longest} tokens get full attention, longer ones block-sparse.")


def prepare_long_attention(base_model: Any, is_own: bool) -> None:
    """Let a loaded encoder attend as `patch_long_attention` and `block_attention` say.

    Args:
        is_own: False for a SentenceTransformer of others, whose Longformer was trained as it is called there.
    """
    from transformers import LongformerModel

    from docsplit.modeling.families.longformer_attention import use_blocked_attention

    if is_own or base_model.config.model_type != "longformer":
        patch_long_attention(base_model)
    if type(base_model) is LongformerModel:
        use_blocked_attention(base_model)


@contextlib.contextmanager
def attention_for_embedding(encoder: Any) -> Iterator[None]:
    """Let an encoder in memory attend as `patch_long_attention` and `block_attention` say, and leave it as it was."""
    from transformers import LongformerModel

    from docsplit.modeling.families.longformer_attention import use_blocked_attention, use_transformers_attention

    own_forward = vars(encoder).get("forward")  # already so, or compiled
    is_to_be_blocked = type(encoder) is LongformerModel
    try:
        if own_forward is None:
            patch_long_attention(encoder)
        if is_to_be_blocked:
            use_blocked_attention(encoder)
        yield
    finally:
        if own_forward is None:
            vars(encoder).pop("forward", None)
            if encoder.config.model_type == "big_bird":
                encoder.set_attention_type(encoder.config.attention_type)
        if is_to_be_blocked:
            use_transformers_attention(encoder)


def use_eager_attention(base_model: Any) -> None:
    """Let an encoder return its attention weights: transformers' own attention, and no fast implementation of it.

    A Longformer or BigBird gets what `patch_long_attention` gives it, so that the first token's attention is global.
    """
    from docsplit.modeling.families.longformer_attention import use_transformers_attention

    patch_long_attention(base_model)
    use_transformers_attention(base_model)
    if base_model.config._attn_implementation != "eager":
        base_model.set_attn_implementation("eager")


def check_recomputation(config: Any, recomputes_layers: bool, cache_gradients: bool) -> None:
    """Refuse what would compute a BigBird's layers again with the attention of another micro-batch.

    Raises:
        ValueError: naming the remedy.
    """
    if recomputes_layers and not cache_gradients and config.model_type == "big_bird":
        raise ValueError(
            "BigBird's --gradient_checkpointing needs --cache_gradients too: else a layer would be recomputed with "
            "the attention of a later micro-batch."
        )


def needs_remote_code(config: Any) -> bool:
    """Whether SentenceTransformer loads a checkpoint of this project with `trust_remote_code=True` alone."""
    return config.model_type in ("longformer", "graph_document")


def is_own_longformer(modules_file: str | None) -> bool:
    """Whether SentenceTransformer would want the module in the checkpoint, which this project does without.

    Args:
        modules_file: the checkpoint's modules.json, if it has one.
    """
    return modules_file is not None and LONGFORMER_MODULE in Path(modules_file).read_text(encoding="utf-8")


def write_transformer_module(directory: Path) -> str:
    """Copy into a Longformer's checkpoint the module that SentenceTransformer is to load it with, and return its name.

    sentence-transformers' own leaves the global attention out.
    """
    shutil.copy(Path(__file__).parent / "longformer_transformer.py", directory)
    return LONGFORMER_MODULE
