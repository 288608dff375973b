"""The table of families of encoders, and those that need a few lines: RoBERTa's kin, decoders, BigBird, DeBERTa.

`FAMILIES` is a dictionary by the config's `model_type`; add a row to it for an encoder with habits of its own.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from docsplit.modeling.families.base import Family
from docsplit.modeling.families.graph import GRAPH_DOCUMENTS
from docsplit.modeling.families.longformer import LONGFORMER
from docsplit.runtime.plugins import Table

logger = logging.getLogger(__name__)


class Decoders(Family):
    """Language models that read left to right, such as Qwen3, without their head: only the last token saw the text."""

    def new_encoder(self, config: Any) -> Any:
        """Make a random model without a head."""
        return AutoModel.from_config(config)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse masked LM.

        Raises:
            ValueError: naming the option.
        """
        if settings["mlm_weight"]:
            raise ValueError(
                f"mlm_weight is {settings['mlm_weight']}, but a language model that writes the next token has no "
                "masked-LM head: leave it out."
            )

    def prepare_for_training(self, model: Any, attn_implementation: str | None = None) -> None:
        """Keep no keys and values for a next token, of which there is none."""
        model.config.use_cache = False


def _with_full_attention_of_short_rows(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """Give short rows full attention, and them alone: transformers would switch to it for good."""
    config = self.config
    if input_ids is not None and config.attention_type == "block_sparse":
        is_long = input_ids.shape[1] > (5 + 2 * config.num_random_blocks) * config.block_size  # as its blocks need
        with torch.random.fork_rng(devices=[]):  # new modules are made for it, whose weights are drawn and thrown away
            self.set_attention_type("block_sparse" if is_long else "original_full")
        device = input_ids.device.type
        if is_long and torch.is_autocast_enabled(device):  # which transformers' blocks do not work with
            with torch.autocast(device, enabled=False):
                return type(self).forward(self, input_ids, *args, **kwargs)
    return type(self).forward(self, input_ids, *args, **kwargs)


class BigBird(Family):
    """Block-sparse attention in long rows and full attention in short ones."""

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


def _in_full_precision(self: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """Compute in float32 under autocast too, with which transformers' code of the encoder does not work."""
    with torch.autocast(self.device.type, enabled=False):
        return type(self).forward(self, input_ids, *args, **kwargs)


PLAIN = Family()
ROBERTA = Family(positions_follow_padding=True)
OF_ROBERTA = ("roberta", "camembert", "mpnet", "data2vec-text", "ibert", "luke")  # parts of names of its kin
DECODER = Decoders(default_settings={"pooling": "lasttoken", "mlm_weight": 0.0})
BIDIRECTIONAL_DECODER = Decoders(default_settings={"pooling": "mean", "mlm_weight": 0.0})  # such as EmbeddingGemma

FAMILIES: Table[Family] = Table(  # by the config's `model_type`; the others are decoders, kin of RoBERTa, or plain
    "family",
    {
        "graph_document": GRAPH_DOCUMENTS,
        "longformer": LONGFORMER,
        "deberta": Family(forward=_in_full_precision),
        "big_bird": BigBird(
            forward=_with_full_attention_of_short_rows,
            without_packs="BigBird, whose blocks of keys cross the borders of texts",
            without_onnx="its random blocks are drawn in Python at each call",
        ),
    },
)


def family_named(model_type: str) -> Family:
    """Return the family of encoders of this type."""
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    is_masked = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or model_type in ("bert-generation", "xlnet")
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not is_masked:  # the two read both ways
        return DECODER
    is_roberta = any(name in model_type for name in OF_ROBERTA)  # remote code has more of them
    return ROBERTA if is_roberta else PLAIN


def family_of(config: Any) -> Family:
    """Return the family of an encoder with this configuration; without one (None) it is plain.

    Raises:
        ValueError: if the family is of a plug-in that is not loaded.
    """
    model_type = getattr(config, "model_type", "")
    settings = getattr(config, "docsplit", None) or {}
    if FAMILIES.origin_in(settings):
        FAMILIES.check(model_type, settings)
    family = family_named(model_type)
    reads_both_ways = getattr(config, "use_bidirectional_attention", False) is True
    return BIDIRECTIONAL_DECODER if family is DECODER and reads_both_ways else family


def code_files() -> list[str]:
    """Return the names of all files of code that checkpoints may carry."""
    return list(dict.fromkeys(name for family in FAMILIES.values() for name in family.code))


def modules_of_families() -> list[str]:
    """Return the names of all modules of SentenceTransformer that this package has itself."""
    return [family.module for family in FAMILIES.values() if family.module is not None]
