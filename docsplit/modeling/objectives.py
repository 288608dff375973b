"""The objectives by name; what each brings, its options and what it trains, is in `docsplit.modeling.info_nce`."""

from dataclasses import fields

from docsplit.modeling.bregman import BregmanInfoNCE
from docsplit.modeling.info_nce import InfoNCE, Objective
from docsplit.modeling.neighbour_distillation import NeighbourDistillation
from docsplit.modeling.second_encoder import ContrastiveTension, MomentumContrast

OBJECTIVES: dict[str, type[Objective]] = {
    "info_nce": InfoNCE,
    "contrastive_tension": ContrastiveTension,
    "momentum_contrast": MomentumContrast,
    "neighbour_distillation": NeighbourDistillation,
    "info_nce+bregman": BregmanInfoNCE,
}


def option_names(objective: str) -> list[str]:
    """The names of an objective's own options."""
    return [option.name for option in fields(OBJECTIVES[objective].Options)]


def objectives_with(option: str) -> list[str]:
    """The objectives that have an option of this name."""
    return [objective for objective in OBJECTIVES if option in option_names(objective)]
