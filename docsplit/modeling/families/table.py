"""The table of families of encoders."""

from typing import Any

from docsplit.modeling.families.base import Family
from docsplit.modeling.families.big_bird import BIG_BIRD
from docsplit.modeling.families.decoder import BIDIRECTIONAL_DECODER, DECODER, is_decoder
from docsplit.modeling.families.graph import GRAPH_DOCUMENTS
from docsplit.modeling.families.longformer import LONGFORMER

PLAIN = Family()
ROBERTA = Family(positions_follow_padding=True)

FAMILIES: dict[str, Family] = {  # by the config's `model_type`; the others are decoders, kin of RoBERTa, or plain
    "graph_document": GRAPH_DOCUMENTS,
    "longformer": LONGFORMER,
    "big_bird": BIG_BIRD,
}


def family_named(model_type: str) -> Family:
    """Return the family of encoders of this type."""
    is_roberta = any(name in model_type for name in ("roberta", "camembert", "mpnet"))  # remote code has more of them
    return FAMILIES.get(model_type, DECODER if is_decoder(model_type) else ROBERTA if is_roberta else PLAIN)


def family_of(config: Any) -> Family:
    """Return the family of an encoder with this configuration; without one (None) it is plain."""
    family = family_named(getattr(config, "model_type", ""))
    reads_both_ways = getattr(config, "use_bidirectional_attention", False) is True
    return BIDIRECTIONAL_DECODER if family is DECODER and reads_both_ways else family


def code_files() -> list[str]:
    """Return the names of all files of code that checkpoints may carry."""
    return list(dict.fromkeys(name for family in FAMILIES.values() for name in family.code))


def modules_of_families() -> list[str]:
    """Return the names of all modules of SentenceTransformer that this package has itself."""
    return [family.module for family in FAMILIES.values() if family.module is not None]
