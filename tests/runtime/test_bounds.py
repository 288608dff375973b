"""Numbers that options take: each option has a row, and what is wrong is one line before any work."""

import dataclasses
from typing import get_type_hints

import pytest

from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.runtime.bounds import ANY_NUMBER, BOUNDS, COUNT, POSITIVE, SHARE, STEPS, Bound, check_bounds, refusals
from tests.runtime.wrong_options import RIGHT, WorkBegins, cases, numbers_of, parser_of, refusal, unrefused, verbs_of


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("learning_rate", -1.0, "--learning_rate -1: give a number of at least 0"),
        ("learning_rate", float("nan"), "--learning_rate nan: give a number of at least 0"),
        ("learning_rate", float("inf"), "--learning_rate inf: give a number of at least 0"),
        ("adam_beta1", 1.0, "--adam_beta1 1: give a number of at least 0 and below 1"),
        ("smoothing_share", 1.5, "--smoothing_share 1.5: give a number from 0 to 1"),
        ("finetune_epochs", 0.0, "--finetune_epochs 0: give a number above 0"),
        ("lora_r", -1, "--lora_r -1: give a whole number of at least 0"),
        ("count", 10**400, f"--count 1{'0' * 400}: give a whole number of at least 1"),
        ("negatives_margin", float("-inf"), "--negatives_margin -inf: give a number"),
        ("shots", [5, 0, -1], "--shots -1: give a whole number of at least 0; 0 stands for all labels only"),
        (
            "max_steps",
            0,
            "--max_steps 0: give a whole number of at least 1, or -1 (as many as --num_train_epochs needs)",
        ),
        (
            "save_steps",
            2.5,
            "--save_steps 2.5: give a whole number of steps of at least 1, or a share of all steps between 0 and 1",
        ),
        ("output_dir", __file__, f"--output_dir {__file__} is a file: name a folder, which may be new"),
    ],
)
def test_what_is_wrong_is_said_with_what_can_be(name, value, line):
    assert list(refusals({"seed": 1, name: value, "view": "crop", "flag": True, "fold": None})) == [line]


def test_limits_belong_to_a_bound_unless_it_says_otherwise():
    assert [COUNT.holds(value) for value in (0, 1, 2**63 - 1, 2**63)] == [False, True, True, False]
    assert [POSITIVE.holds(value) for value in (0.0, 1e-300, 1e300)] == [False, True, True]
    assert [SHARE.holds(value) for value in (-1e-9, 0.0, 1.0, 1.0000001)] == [False, True, True, False]
    assert [STEPS.holds(value) for value in (0.0, 0.1, 1.0, 1.5, 500.0)] == [False, True, True, False, True]
    assert [Bound(1, special=(-1, "all")).holds(value) for value in (-2, -1, 0, 1)] == [False, True, False, True]


def test_a_program_is_told_as_a_command_line_is():
    @dataclasses.dataclass
    class Options:
        """Made without a parser."""

        num_seeds: int = 0

    with pytest.raises(ValueError, match=r"--num_seeds 0: give a whole number of at least 1\.$"):
        check_bounds(Options())


def test_every_option_that_takes_a_number_has_a_row_and_every_row_an_option():
    scripts = {*(script for script in RIGHT if " " not in script), "search", "reproduce"}
    parsers = [parser_of(script) for script in scripts]
    parsers += [verb for parser in parsers for verb in verbs_of(parser).values()]
    numbers = {name for parser in parsers for name in numbers_of(parser)}
    assert numbers - {*BOUNDS, *ANY_NUMBER} == set()
    assert {*BOUNDS, *ANY_NUMBER} - numbers == set()
    assert {name for name in BOUNDS if name in ANY_NUMBER} == set()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_objective_refuses_what_the_table_refuses(objective):
    """Settings of a checkpoint come past the command line, so an objective checks them itself."""
    options = OBJECTIVES[objective].Options
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    if "bregman_width" in defaults:
        defaults["bregman_width"] = 2  # with it a single network is enough
    types = get_type_hints(options)
    for name in [field.name for field in dataclasses.fields(options) if field.name in BOUNDS]:
        whole = int in (types[name], *getattr(types[name], "__args__", ()))
        for value in (-1, 0, 1, 2) if whole else (-1.0, 0.0, 0.5, 1.0, 1.5):
            if BOUNDS[name].holds(value):
                options(**defaults | {name: value})
            else:
                with pytest.raises(ValueError, match=name):
                    options(**defaults | {name: value})


def test_wrong_combinations_are_one_line_before_any_work():
    wrong = cases()
    assert len(wrong) >= 250
    assert list(unrefused(wrong)) == []


@pytest.mark.parametrize("script", RIGHT)
def test_right_combinations_are_not_refused(script, tmp_path):
    """So those above are refused for what is wrong in them."""
    with pytest.raises(WorkBegins):
        refusal(script, " ".join([RIGHT[script][0], *RIGHT[script][1]]), tmp_path)
