"""The objectives by name: which options and which files each brings."""

from dataclasses import MISSING, fields

import pytest

from docsplit.modeling.objectives.base import Objective
from docsplit.modeling.objectives.table import OBJECTIVES, objectives_with, option_names, prepared_files


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_option_has_a_default_and_a_help_text(name):
    assert issubclass(OBJECTIVES[name], Objective)
    OBJECTIVES[name].Options()  # the defaults go together
    for option in fields(OBJECTIVES[name].Options):
        assert option.default is not MISSING
        assert option.metadata["help"]


def test_options_are_found_by_their_objective_and_objectives_by_their_options():
    for name in OBJECTIVES:
        assert all(name in objectives_with(option) for option in option_names(name))
    assert objectives_with("momentum_queue_size") == ["momentum_contrast"]
    assert set(objectives_with("symmetric_loss")) == {"info_nce", "info_nce+bregman"}
    assert objectives_with("learning_rate") == []


def test_files_are_those_of_the_objectives_that_prepare_something():
    preparing = {name for name, objective in OBJECTIVES.items() if objective.prepare is not Objective.prepare}
    assert preparing == {name for name, objective in OBJECTIVES.items() if objective.prepared_files}
    assert prepared_files() == {"distillation_targets.safetensors"}
