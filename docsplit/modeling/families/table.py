"""The table of families of encoders."""

from typing import Any

from docsplit.modeling.families.base import Family
from docsplit.modeling.families.big_bird import BIG_BIRD
from docsplit.modeling.families.decoder import BIDIRECTIONAL_DECODER, DECODER, is_decoder
from docsplit.modeling.families.graph import GRAPH_DOCUMENTS
from docsplit.modeling.families.longformer import LONGFORMER
from docsplit.runtime.plugins import Table

PLAIN = Family()
ROBERTA = Family(positions_follow_padding=True)

FAMILIES: Table[Family] = Table(  # by the config's `model_type`; the others are decoders, kin of RoBERTa, or plain
    "family", {"graph_document": GRAPH_DOCUMENTS, "longformer": LONGFORMER, "big_bird": BIG_BIRD}
)


def family_named(model_type: str) -> Family:
    """Return the family of encoders of this type."""
    is_roberta = any(name in model_type for name in ("roberta", "camembert", "mpnet"))  # remote code has more of them
    return FAMILIES.get(model_type, DECODER if is_decoder(model_type) else ROBERTA if is_roberta else PLAIN)


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
