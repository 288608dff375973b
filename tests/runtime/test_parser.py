"""`--help all` has every option, in named groups, each with its whole help text."""

from dataclasses import dataclass, field

import pytest

from docsplit.runtime.options import COMMON, INHERITED, REDECLARED, parse_arguments
from tests.runtime.test_arguments import ALL, CHOICES, Example


@dataclass
class Special:
    """An option that no script has."""

    number_of_x: int = field(default=1)


def help_text(capsys, types, description="", **kwargs):
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(types, description, ["--help", "all"], **kwargs)
    return capsys.readouterr().out


def test_help_has_the_description_first_and_the_examples_as_they_are_written_last(capsys):
    text = help_text(capsys, (Example,), "What it does.\n\n    script.py \\\n        --rate 2\n\nAnd more.\n")
    assert text.index("What it does.") < text.index("--rate X")
    assert text.endswith("    script.py \\\n        --rate 2\n\nAnd more.\n")


def test_help_has_our_options_in_named_groups_and_those_of_transformers_last(capsys):
    lines = help_text(capsys, ALL, chosen_by={"x": Special}).splitlines()
    titles = [line[:-1] for line in lines if line and line[0] != " " and line.endswith(":")]
    ours = ["The encoder and its embedding", "The documents and their views", "The objective", "The loss and the run"]
    assert titles == ["options", *ours, "--objective x", REDECLARED, INHERITED]
    groups: dict[str, list[str]] = {}
    for line in lines:
        if line[:-1] in titles:
            options = groups.setdefault(line[:-1], [])
        elif line.startswith("  --"):
            options.append(line.split()[0])
    assert "--mlm_weight" in groups[ours[3]]
    assert groups["--objective x"] == ["--number_of_x"]
    assert "--learning_rate" in groups[REDECLARED]
    assert "--adam_beta1" in groups[INHERITED]
    assert not any("-" in option[2:] for group in groups.values() for option in group)  # one spelling of each


def test_help_shows_an_option_of_several_choices_once_and_names_it_with_the_others(capsys):
    text = help_text(capsys, (Example,), chosen_by=CHOICES)
    first, second = text.split("--objective info_nce:")[1].split("--objective momentum_contrast:")
    assert "--temperature X " in first
    assert "Divides similarities. Default: the checkpoint's, else 0.05." in " ".join(first.split())
    assert "--temperature X " not in second
    assert "Two of its own. And --temperature (0.07; see info_nce)." in second
    assert "Negatives. Default: the checkpoint's, else 131072." in " ".join(second.split())


def test_an_option_of_the_short_page_is_in_the_long_one_and_parses():
    @dataclass
    class Both:
        """One common option, and one other."""

        length: int | None = field(default=None, metadata={COMMON: True, "help": "A length. In tokens."})
        width: int = field(default=3, metadata={"help": "A width."})

    assert parse_arguments((Both,), "", ["--length", "7"])[0] == Both(length=7)
    assert parse_arguments((Both,), "", [])[0] == Both()


def test_help_shows_values_by_their_kind_and_turns_switches_off(capsys):
    @dataclass
    class Kinds:
        """Options of each kind."""

        rate: float = field(default=0.5, metadata={"help": "A rate of 5 %%."})
        names: list[str] = field(default_factory=lambda: ["a", "b"], metadata={"help": "Names."})
        steps: int = field(default=-1, metadata={"help": "Steps."})
        off: bool = field(default=False, metadata={"help": "A switch."})
        on: bool = field(default=True, metadata={"help": "Another."})

    text = " ".join(help_text(capsys, (Kinds,)).split())
    assert "--rate X A rate of 5 %. Default: 0.5." in text
    assert "--names TEXT [TEXT ...] Names. Default: a b." in text
    assert "--steps N Steps. --off [true|false] A switch. --on [true|false] Another. Default: True." in text
    assert "--no_on Turn off --on." in text
    assert parse_arguments((Kinds,), "", ["--no_on"])[0] == Kinds(on=False)
    assert parse_arguments((Kinds,), "", [])[0] == Kinds()
