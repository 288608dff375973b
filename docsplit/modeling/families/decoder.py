"""Language models that read left to right and have no masked-LM head, such as Qwen3: encoders of their last token."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from docsplit.modeling.families.base import Family


class Decoders(Family):
    """A language model without its head. Only the last token has seen the whole text, so it is the embedding."""

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


READS_BOTH_WAYS = ("bert-generation", "xlnet")  # of those that transformers knows as language models alone
DECODER = Decoders(default_settings={"pooling": "lasttoken", "mlm_weight": 0.0})
BIDIRECTIONAL_DECODER = Decoders(default_settings={"pooling": "mean", "mlm_weight": 0.0})  # such as EmbeddingGemma


def is_decoder(model_type: str) -> bool:
    """Whether transformers knows this type as a language model, and not as a masked one."""
    is_masked = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or model_type in READS_BOTH_WAYS
    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not is_masked
