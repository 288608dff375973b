"""A mistake on the command line is one line, with what was probably meant."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from docsplit.runtime.options import CommandParser, did_you_mean, parse_arguments


@dataclass
class Options:
    """Some options."""

    learning_rate: float = field(default=0.5)
    per_device_train_batch_size: int = field(default=1)
    per_device_eval_batch_size: int = field(default=1)
    view: Literal["docsplit", "crop"] = field(default="docsplit")
    heads: list[str] = field(default_factory=list)
    flag: bool = field(default=False)


def with_dataclasses(words):
    return parse_arguments((Options,), "", words)


def with_verbs(words):
    parser = CommandParser("What it does.\n\n    an example\n")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    query = verbs.add_parser("query")
    query.add_argument("text")
    query.add_argument("--count", type=int, required=True)
    query.add_argument("--method", choices=("dense", "bm25"))
    verbs.add_parser("add").add_argument("--replace", action="store_true")
    return parser.parse_args(words)


def error_of(capsys, parse, *words):
    with pytest.raises(SystemExit, match="2"):
        parse(list(words))
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.endswith(" --help` shows the options.")
    return line.rpartition(" `")[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lerning_rate 3", "error: unknown option --lerning_rate. Did you mean --learning_rate?"),
        ("--learning-rat=3", "error: unknown option --learning-rat. Did you mean --learning_rate?"),
        ("--learning 3", "error: unknown option --learning. Did you mean --learning_rate?"),  # no abbreviation
        (
            "--batch_size 3",
            "error: unknown option --batch_size. "
            "Did you mean --per_device_train_batch_size or --per_device_eval_batch_size?",
        ),
        ("--zzz 3", "error: unknown option --zzz."),
        ("--learning_rate x --zzz", "error: unknown option --zzz."),  # before all else
        ("--learning_rate fast", "error: --learning_rate is 'fast', expected a number."),
        (
            "--per_device_train_batch_size 0.5",
            "error: --per_device_train_batch_size is '0.5', expected a whole number.",
        ),
        ("--learning_rate", "error: --learning_rate needs a value."),
        ("--heads --flag", "error: --heads needs a value."),
        ("--view docsplt", "error: --view has no docsplt. Did you mean docsplit? Choose among docsplit, crop."),
        ("--view x", "error: --view has no x: choose among docsplit, crop."),
        ("--flag true false", "error: unexpected 'false'."),
        ("--flag true small.yaml", "error: unexpected 'small.yaml'. A recipe comes first, before all options."),
    ],
)
def test_mistakes_in_options(words, message, capsys):
    assert error_of(capsys, with_dataclasses, *words.split()) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("qurey a --count 3", "error: there is no VERB qurey. Did you mean query? Choose among query, add."),
        ("", "error: missing: VERB."),
        ("query", "error: missing: text, --count."),
        ("query a --cuont 3", "error: unknown option --cuont. Did you mean --count?"),  # before what is missing
        ("query a --coun 3", "error: unknown option --coun. Did you mean --count?"),
        ("query a --count 3 --replace", "error: unknown option --replace."),  # another verb's
        ("--count 3 query a", "error: unknown option --count."),
        ("query a --count 3 --method bm", "error: --method has no bm. Did you mean bm25? Choose among dense, bm25."),
        ("query a b --count 3", "error: unexpected 'b'."),
    ],
)
def test_mistakes_in_verbs(words, message, capsys):
    assert error_of(capsys, with_verbs, *words.split()) == message


def test_the_help_of_a_verb_shows_its_options(capsys):
    with pytest.raises(SystemExit, match="2"):
        with_verbs(["query", "a", "--count", "0"])
    error = capsys.readouterr().err
    assert error.startswith("error: --count 0: give a whole number of at least 1. `")
    assert error.endswith(" query --help` shows the options.\n")


@pytest.mark.parametrize("word", ["--hub_token", "--hub-token", "--token"])
@pytest.mark.parametrize("equals", [False, True])
def test_a_token_is_refused_and_never_printed(word, equals, capsys):
    words = [f"{word}=hf_secret"] if equals else [word, "hf_secret"]
    message = error_of(capsys, with_dataclasses, "--lerning_rate", "3", *words)  # before all else
    assert "set HF_TOKEN" in message
    assert "secret" not in message


def test_what_is_right_is_parsed():
    options = with_verbs(["query", "--no option, for it has a space", "--count=3"])
    assert (options.text, options.count) == ("--no option, for it has a space", 3)
    assert with_verbs(["query", "--count", "3", "--", "--count"]).text == "--count"
    assert with_dataclasses(["--learning-rate=3", "--flag"])[0] == Options(learning_rate=3, flag=True)


def test_the_help_keeps_the_docstring(capsys):
    with pytest.raises(SystemExit, match="0"):
        with_verbs(["--help"])
    text = capsys.readouterr().out
    assert text.index("What it does.") < text.index("VERB\n") < text.index("\n    an example\n")


def test_names_of_few_letters_are_not_looked_for_in_others():
    assert did_you_mean("rate", ["learning_rate", "rates"]) == " Did you mean rates?"
    assert did_you_mean("ate", ["learning_rate"]) == ""
    assert did_you_mean("mpl", ["mlp", "linear"]) == " Did you mean mlp?"
