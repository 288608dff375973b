"""The short page of `--help`: the docstring, and a line for each common option."""

from dataclasses import dataclass, field

import pytest

from docsplit.runtime.options import (
    COMMON,
    RECIPE,
    WIDTH,
    answer_help,
    asks_for_all,
    asks_for_help,
    parse_arguments,
    shown_default,
)


@dataclass
class Options:
    """Some options."""

    name: str = field(metadata={COMMON: True, "help": "A name, a or b ... c. It is long."})
    rate: float = field(default=0.5, metadata={COMMON: True, "help": "The rate."})
    length: int | None = field(default=None, metadata={COMMON: True, "help": "A length. Default: the model's. More."})
    heads: list[str] = field(
        default_factory=lambda: ["a", "b"], metadata={COMMON: True, "help": ("Heads " * 40).strip()}
    )
    flag: bool = field(default=False, metadata={COMMON: True, "help": "A switch"})
    rare: int = field(default=1, metadata={"help": "Few need it."})


def short_page(capsys, *words, **kwargs):
    with pytest.raises(SystemExit, match="0"):
        parse_arguments((Options,), "What it does.\n\n    an example\n", list(words), **kwargs)
    return capsys.readouterr().out


def test_a_common_option_has_its_first_sentence_and_its_default(capsys):
    lines = short_page(capsys, "--help").splitlines()
    assert lines[0].endswith("[RECIPE] [--option value ...]")
    assert lines[2:5] == ["What it does.", "", "    an example"]
    first, *options = lines[lines.index("Common options:") + 1 :]
    assert first.split(None, 1) == ["[RECIPE]", f"{RECIPE}."]
    assert options[0].split(None, 1) == ["--name", "A name, a or b ... c. Required."]
    assert options[1].split(None, 1) == ["--rate", "The rate. Default: 0.5."]
    assert options[2].split(None, 1) == ["--length", "A length. Default: the model's."]
    heads = " ".join(" ".join(options[3:]).split())
    assert f"{'Heads ' * 40}".strip() + ". Default: a b. --flag A switch. All options:" in heads
    assert "rare" not in " ".join(lines)
    assert max(map(len, lines)) <= WIDTH


def test_words_that_come_first_have_their_lines(capsys):
    page = short_page(capsys, "-h", positional={"encoder": "its name"})
    assert "ENCODER [--option value ...]" in page
    assert "\n  ENCODER   its name.\n  --name    A name" in page
    assert "RECIPE" not in page


@pytest.mark.parametrize("words", [["-h"], ["no_recipe", "--help"], ["--rate", "x", "--help"], ["--help", "rate"]])
def test_help_is_answered_whatever_else_is_wrong(words, capsys):
    assert "All options:" in short_page(capsys, *words)


def test_a_default_is_shown_as_it_is_typed_if_it_says_something():
    defaults = (0.5, 0, True, ["a", "b"], "rules", None, False, -1, [])
    assert [shown_default(default) for default in defaults] == ["0.5", "0", "True", "a b", "rules", *[""] * 4]


def test_only_help_is_answered(capsys):
    for words in ([], ["--rate", "2"], ["--help", "all"], ["--flag", "-h", "all"]):
        answer_help((Options,), "", words)
    assert capsys.readouterr().out == ""
    assert not asks_for_help(["all", "help"])
    assert not asks_for_all(["all", "--help"])
