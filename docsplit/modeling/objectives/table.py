"""The objectives by name. Each brings its options, what it trains and what it needs prepared."""

from dataclasses import fields

from docsplit.modeling.objectives.base import Objective
from docsplit.modeling.objectives.bregman import BregmanInfoNCE
from docsplit.modeling.objectives.info_nce import InfoNCE
from docsplit.modeling.objectives.neighbour_distillation import NeighbourDistillation
from docsplit.modeling.objectives.second_encoder import ContrastiveTension, MomentumContrast
from docsplit.runtime.plugins import Table

OBJECTIVES: Table[type[Objective]] = Table(
    "objective",
    {
        "info_nce": InfoNCE,
        "contrastive_tension": ContrastiveTension,
        "momentum_contrast": MomentumContrast,
        "neighbour_distillation": NeighbourDistillation,
        "info_nce+bregman": BregmanInfoNCE,
    },
)


def option_names(objective: str) -> list[str]:
    """Return the names of an objective's options."""
    return [option.name for option in fields(OBJECTIVES[objective].Options)]


def objectives_with(option: str) -> list[str]:
    """Return the objectives that have an option of this name."""
    return [objective for objective in OBJECTIVES if option in option_names(objective)]


def prepared_files() -> list[str]:
    """Return the names of all files that objectives write into the output folder before training."""
    return list(dict.fromkeys(name for objective in OBJECTIVES.values() for name in objective.prepared_files))
