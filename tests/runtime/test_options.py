"""Recipe and command line are one language, the command line wins, and a mistake is one line before any work."""

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, Literal

import pytest

from docsplit.runtime.bounds import Bound, Count, Weight, Whole, check_bounds, option
from docsplit.runtime.files import ROOT
from docsplit.runtime.options import (
    CommandParser,
    answer_help,
    check_choices,
    did_you_mean,
    find_recipe,
    given_options,
    parse_arguments,
    parse_config_overrides,
)
from docsplit.training.run_arguments import ARGUMENTS, RunOptions


@dataclass
class Example:
    """Options of each kind."""

    inherited_bounds: ClassVar[dict[str, Bound]] = {"steps": Bound(1, special=-1)}

    name: str = option("n", "A name, a or b ... c. It is long.", common=True)
    learning_rate: Weight = option(0.5, "The rate, 5 %%.", common=True)
    length: int | None = option(None, "A length. Default: the model's. More.", common=True)
    kind: Literal["docsplit", "crop"] = field(default="docsplit")
    heads: list[str] = option(["a", "b"], "Heads.", common=True)
    flag: bool = option(False, "A switch.")
    sizes: list[Whole] = option([1], "Sizes.")
    steps: int = field(default=1)
    on: bool = field(default=True)
    perhaps: bool | None = field(default=None)
    resume_from_checkpoint: str | None = field(default=None)


@dataclass
class Plain:
    """Its options."""

    temperature: float = option(0.05, "Divides similarities.")
    similarity: Literal["cosine", "dot"] = field(default="cosine")


@dataclass
class Queue:
    """Two of its own."""

    temperature: float = field(default=0.07)
    momentum_queue_size: Count = option(131072, "Negatives.")
    symmetric: bool = field(default=True)


@dataclass
class Choosing:
    """What chooses."""

    objective: str | None = field(default=None)


CHOICES = {"info_nce": SimpleNamespace(Options=Plain), "momentum_contrast": SimpleNamespace(Options=Queue)}


def parse(tmp_path, recipe, *words):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe)
    return parse_arguments((Example,), "", [str(path), *words])[0]


def test_the_command_line_wins_over_the_recipe(tmp_path):
    recipe = "learning_rate: 1e-4\nkind: crop\nflag: true\nheads: [x, y]\nlength: null\n"
    assert parse(tmp_path, recipe) == Example(learning_rate=1e-4, kind="crop", flag=True, heads=["x", "y"])
    example = parse(tmp_path, recipe, "--learning-rate=2", "--flag", "false", "--heads", "z")
    assert example == Example(learning_rate=2.0, kind="crop", heads=["z"])
    assert parse(tmp_path, "resume-from-checkpoint: x\n").resume_from_checkpoint == "x"
    assert parse(tmp_path, "name: no\nheads: [007, 2024-01-01]\n") == Example("no", heads=["007", "2024-01-01"])


def test_switches_and_resuming_need_no_value(tmp_path):
    given = ["--flag", "--no_on", "--perhaps", "--resume_from_checkpoint"]
    expected = Example(flag=True, on=False, perhaps=True, resume_from_checkpoint="newest")
    assert parse(tmp_path, "perhaps: false\n", *given) == expected
    assert parse(tmp_path, "perhaps: false\n").perhaps is False
    assert parse(tmp_path, "length: 1\n") == Example(length=1)
    assert parse(tmp_path, "length: 1\n", "--resume_from_checkpoint", "x").resume_from_checkpoint == "x"


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (b"- length\n", "should be lines of"),
        (b"group:\n  length: 1\n", "it has groups"),
        (b"name: \xff\n", "should be lines of"),
        (b"head: [x]\n", r"no option head\. Did you mean heads\?"),
        (b"length: ???\n", "leaves --length to you: give it on the command line"),
        (b"length: fast\n", "--length: invalid int value: 'fast'"),
        (b"learning_rate: -1\n", "--learning_rate: give a number of at least 0, not -1"),
    ],
)
def test_a_wrong_recipe_is_refused_in_a_line(recipe, message, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_bytes(recipe)
    with pytest.raises((ValueError, SystemExit)) as failure:
        parse_arguments((Example,), "", [str(tmp_path / "recipe.yaml")])
    line = f"{failure.value}{capsys.readouterr().err}"
    assert re.search(message, line)
    assert line.strip().count("\n") <= 1


def test_a_recipe_is_a_file_or_the_name_of_one_that_comes_with_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == find_recipe("quickstart.yaml")
    assert find_recipe("quickstart").read_text() == (ROOT / "recipes" / "quickstart.yaml").read_text()
    with pytest.raises(ValueError, match=r"'quickstrat.yaml'. Did you mean quickstart\?.*docsplit_bert, "):
        find_recipe("quickstrat.yaml")
    (tmp_path / "quickstart.yaml").write_text("length: 3\nheads: [a, b]\n")
    assert find_recipe("quickstart.yaml") == Path("quickstart.yaml")  # a file goes first
    given = given_options(["quickstart.yaml", "--length=4", "--flag"])
    assert given == ("quickstart.yaml", {"length": "4", "heads": "a b", "flag": "true"})
    (tmp_path / "left.yaml").write_text("length: ???\n")
    assert given_options(["left.yaml", "--length", "2"])[1] == {"length": "2"}
    assert parse_arguments((Example,), "", ["left.yaml", "--length", "2"])[0].length == 2


def test_options_of_a_choice_are_those_given_and_have_their_types(tmp_path, caplog):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("objective: momentum_contrast\nmomentum_queue_size: 40\ntemperature: 1\n")
    parse = partial(parse_arguments, (Choosing,), "", chosen_by=CHOICES)
    expected = {"momentum_queue_size": 40, "temperature": 1, "symmetric": False}
    assert parse([str(recipe), "--no_symmetric"])[1] == expected
    assert parse([]) == (Choosing(), {})
    for words in (["--similarity", "l2"], ["--momentum_queue_size", "many"], ["--momentum_queue_size", "0"]):
        with pytest.raises(SystemExit):
            parse(words)
    assert caplog.text == ""
    # Another objective on the command line leaves the options of the recipe's own out, but none that is typed
    assert parse([str(recipe), "--objective", "info_nce"]) == (Choosing("info_nce"), {"temperature": 1})
    assert "--objective info_nce has no momentum_queue_size: the recipe's are left out" in caplog.text
    typed = ["--objective=info_nce", "--momentum_queue_size", "8"]
    assert parse([str(recipe), *typed])[1] == {"temperature": 1, "momentum_queue_size": 8}  # the model refuses it


def printed(capsys, types, *words, **kwargs):
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(types, "What it does.\n\n    an example\n", list(words), **kwargs)
    return capsys.readouterr().out


def test_the_short_page_has_a_line_for_each_common_option_whatever_else_is_wrong(capsys):
    lines = printed(capsys, (Example,), "no_recipe", "--rate", "x", "--help").splitlines()
    assert lines[0].endswith("[RECIPE] [--option value ...]")
    assert lines[2:5] == ["What it does.", "", "    an example"]
    options = [line.split(None, 1) for line in lines[lines.index("Common options:") + 1 : -2]]
    assert options[1:] == [
        ["--name", "A name, a or b ... c. Default: n."],
        ["--learning_rate", "The rate, 5 %%. Default: 0.5."],
        ["--length", "A length. Default: the model's."],
        ["--heads", "Heads. Default: a b."],
    ]
    page = printed(capsys, (Example,), "-h", positional={"encoder": "its name"})
    assert "ENCODER [--option value ...]" in page
    assert "--name " in page
    assert "RECIPE" not in page
    answer_help((Example,), "", ["--flag", "-h", "all"])
    assert capsys.readouterr().out == ""


def with_verbs(words):
    parser = CommandParser("What it does.\n\n    an example\n")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    query = verbs.add_parser("query")
    query.add_argument("text")
    query.add_argument("--count", type=Bound(1), required=True)
    query.add_argument("--method", choices=("dense", "bm25"))
    verbs.add_parser("add").add_argument("--replace", action="store_true")
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--learning-rat=3", "unknown option --learning-rat. Did you mean --learning_rate?"),  # no abbreviation
        ("--learning_rate x --zzz", "unknown option --zzz."),  # before all else
        ("--kind docsplt", "--kind has no docsplt. Did you mean docsplit? Choose among docsplit, crop."),
        ("--flag true small.yaml", "unexpected 'small.yaml'. A recipe comes first, before all options."),
        ("qurey a --count 3", "there is no VERB qurey. Did you mean query? Choose among query, add."),
        ("query", "the following arguments are required: text, --count."),
        ("query a --cuont 3", "unknown option --cuont. Did you mean --count?"),  # before what is missing
        ("query a --count 3 --replace", "unknown option --replace."),  # another verb's
        ("--count 3 query a", "unknown option --count."),
        ("query a --count 0", "--count: give a number of at least 1, not 0."),
        ("query a --count -5", "--count: give a number of at least 1, not -5."),
        (
            "query -a --count 3",
            "the following arguments are required: text. If -a is no option, write -- before it, behind all options.",
        ),
        ("query --a.md", "unknown option --a.md. If --a.md is no option, write -- before it, behind all options."),
        ("query a --method -b", "--method: expected one argument. If -b is no option, write --method=-b."),
    ],
)
def test_a_mistake_is_a_line_with_what_was_probably_meant(words, message, capsys):
    is_verb = "query" in words or "qurey" in words
    with pytest.raises(SystemExit, match="2"):
        with_verbs(words.split()) if is_verb else parse_arguments((Example,), "", words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message} `")
    assert line.endswith(" --help` shows the options.")


def test_what_is_right_is_parsed():
    options = with_verbs(["query", "--no option, for it has a space", "--count=3"])
    assert (options.text, options.count) == ("--no option, for it has a space", 3)
    assert with_verbs(["query", "--count", "3", "--", "--count"]).text == "--count"
    check_choices("heads", ["mlp"], ("mlp", "knn"))
    with pytest.raises(ValueError, match=r"--heads has no mpl. Did you mean mlp\? Choose among mlp, knn"):
        check_choices("heads", ["knn", "mpl"], ("mlp", "knn"))
    assert did_you_mean("rate", ["learning_rate", "rates", "x_rate"]) == " Did you mean learning_rate or rates?"
    assert did_you_mean("ate", ["learning_rate"]) == ""  # so short a name is in others by chance


@pytest.mark.parametrize("words", [["--hub-token=hf_secret"], ["--token", "hf_secret"]])
def test_a_token_is_refused_and_never_printed(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_arguments((Example,), "", ["--lerning_rate", "3", *words])  # before all else
    error = capsys.readouterr().err
    assert "set HF_TOKEN" in error
    assert "secret" not in error


def test_limits_belong_to_a_bound_unless_it_says_otherwise():
    assert [Bound(1).holds(value) for value in (0, 1, 2**63 - 1, 2**63, 10**400)] == [False, True, True, False, False]
    assert [Bound(0, above=True).holds(value) for value in (0.0, 1e-300, float("inf"))] == [False, True, False]
    assert [Bound(0, 1).holds(value) for value in (-1e-9, 0.0, 1.0, 1.0000001)] == [False, True, True, False]
    assert [Bound(1, special=-1).holds(value) for value in (-2, -1, 0, 1)] == [False, True, False, True]
    assert [Bound().holds(value) for value in (float("nan"), float("-inf"), -5.0)] == [False, False, True]
    assert [str(bound) for bound in (Bound(0, 1), Bound(0, above=True))] == [
        "a number from 0 to 1",
        "a number above 0",
    ]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("learning_rate", float("nan"), "--learning_rate nan: give a number of at least 0"),
        ("length", 2**63, "--length 9223372036854775808: give a number"),
        ("sizes", [5, 0, -1], "--sizes -1: give a number of at least 0"),
        ("steps", 0, "--steps 0: give a number of at least 1, or -1"),
    ],
)
def test_a_program_is_told_what_an_option_can_be(name, value, line):
    check_bounds(Example(flag=True, length=-5, steps=-1))
    with pytest.raises(ValueError, match="--") as refused:
        check_bounds(Example(**{name: value}))
    assert str(refused.value) == f"{line}."


def test_the_defaults_are_the_papers_values(tmp_path):
    model, data, queries, args = parse_arguments(ARGUMENTS, "", ["--use_cpu", "--output_dir", str(tmp_path)])
    assert (args.learning_rate, args.per_device_train_batch_size, args.num_train_epochs) == (5e-5, 36, 1)
    RunOptions(model, data, queries, args)  # which fills in what a start would have said
    assert (data.view, data.passage_words) == ("docsplit", 100)
    args.learning_rate = float("nan")
    with pytest.raises(ValueError, match="--learning_rate nan"):
        RunOptions(model, data, queries, args)


def test_config_overrides_have_the_types_of_the_configuration():
    overrides = parse_config_overrides("bert", "hidden_size=32,hidden_dropout_prob=0,hidden_act=relu")
    assert overrides == {"hidden_size": 32, "hidden_dropout_prob": 0.0, "hidden_act": "relu"}
    assert parse_config_overrides("bert", None) == {}
    assert parse_config_overrides("roberta", "pad_token_id=0") == {"pad_token_id": 0}  # by default 1
    assert parse_config_overrides("graph_document", "graph_layers=0") == {"graph_layers": 0}


@pytest.mark.parametrize(
    ("model_type", "overrides", "message"),
    [
        ("bert", "hidden_size", "expected name=value"),
        ("bert", "hidden_sise=3", "hidden_sise"),
        ("bert", "num_hidden_layers=0", "no such number can be here"),
        ("graph_document", "graph_feature_dropout=nan", "no such number can be here"),
        ("bert", "hidden_dropout_prob=-0.1", "no such number can be here"),
        ("brt", None, r"--model_type brt is no architecture .* Did you mean bert\?"),
    ],
)
def test_wrong_config_overrides_are_refused(model_type, overrides, message):
    with pytest.raises(ValueError, match=message):
        parse_config_overrides(model_type, overrides)
