"""Recipe and command line are one language, and the command line wins."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import yaml

from docsplit.runtime.options import (
    check_choices,
    find_recipe,
    given_options,
    parse_arguments,
    parse_config_overrides,
)
from docsplit.training.arguments import (
    OPTIONS_OF_OBJECTIVES,
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    QueryArguments,
    RunOptions,
)

ALL = (ModelArguments, DataArguments, PretrainingArguments)
RECIPES = [
    path
    for path in sorted(Path(__file__).parents[2].glob("recipes/*.yaml"))
    if not path.stem.startswith(("probe_", "retrieval_"))  # of other scripts, tested with them
]


@dataclass
class Example:
    rate: float = field(default=0.5)
    kind: Literal["a", "b"] = field(default="a")
    names: list[str] = field(default_factory=list)
    flag: bool = field(default=False)
    perhaps: bool | None = field(default=None)
    resume_from_checkpoint: str | None = field(default=None)


@dataclass
class Plain:
    """Its one option."""

    temperature: float = field(default=0.05, metadata={"help": "Divides similarities."})
    similarity: Literal["cosine", "dot"] = field(default="cosine")


@dataclass
class Queue:
    """Two of its own."""

    temperature: float = field(default=0.07)
    momentum_queue_size: int = field(default=131072, metadata={"help": "Negatives."})
    symmetric: bool = field(default=True)


@dataclass
class Choosing:
    """What chooses."""

    objective: str | None = field(default=None)


CHOICES = {"info_nce": Plain, "momentum_contrast": Queue}


def parse(tmp_path, recipe, *words):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe)
    return parse_arguments((Example,), "", [str(path), *words])[0]


def test_the_command_line_wins(tmp_path):
    assert parse(tmp_path, "rate: 1e-4\nkind: b\n").rate == 1e-4
    example = parse(tmp_path, "rate: 1e-4\nkind: b\nflag: true\nnames: [x, y]\n", "--rate", "2", "--flag", "false")
    assert example == Example(rate=2.0, kind="b", names=["x", "y"], flag=False)


def test_switches_need_no_value(tmp_path):
    example = parse(tmp_path, "rate: 1\n", "--flag", "--perhaps")
    assert example.flag is True
    assert example.perhaps is True
    assert parse(tmp_path, "rate: 1\n").perhaps is None
    assert parse(tmp_path, "perhaps: false\n").perhaps is False


@pytest.mark.parametrize("recipe", ["kind: c\n", "rate: fast\n"])
def test_wrong_values_are_refused_in_a_recipe_too(tmp_path, recipe):
    with pytest.raises(SystemExit):
        parse(tmp_path, recipe)


def test_an_option_that_a_recipe_mistypes_is_named_with_the_one_that_was_meant(tmp_path):
    meant = r"recipe.yaml has what this script has no option for: names_, other. Did you mean names\?$"
    with pytest.raises(ValueError, match=meant):
        parse(tmp_path, "rate: 1\nnames_: [x]\nother: 2\n")
    assert parse(tmp_path, "resume-from-checkpoint: x\n").resume_from_checkpoint == "x"


@pytest.mark.parametrize("recipe", ["- rate\n", "group:\n  rate: 1\n", "rate: [1\n", "rate: \ud800\n"])
def test_a_recipe_is_flat_text(tmp_path, recipe):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(recipe.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=r"The recipe .*recipe.yaml"):
        parse_arguments((Example,), "", [str(path)])


def test_a_missing_recipe_is_named_and_those_that_exist_are_listed():
    with pytest.raises(ValueError, match=r"nowhere.*docsplit_bert, .*quickstart"):
        parse_arguments((Example,), "", ["nowhere.yaml"])
    with pytest.raises(ValueError, match=r"'quickstrat.yaml'. Did you mean quickstart\?"):
        parse_arguments((Example,), "", ["quickstrat.yaml"])


def test_a_recipe_is_a_file_or_the_name_of_one_that_comes_with_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == find_recipe("quickstart.yaml")
    assert find_recipe("quickstart").read_text() == (Path(RECIPES[0]).parent / "quickstart.yaml").read_text()
    (tmp_path / "quickstart.yaml").write_text("rate: 3\n")
    assert find_recipe("quickstart.yaml") == Path("quickstart.yaml")  # a file goes first
    assert parse_arguments((Example,), "", ["quickstart.yaml"])[0].rate == 3
    assert given_options(["quickstart.yaml", "--rate", "4"]) == ("quickstart.yaml", {"rate": "4"})


def test_a_choice_of_the_command_line_leaves_the_options_of_the_recipes_own_out(tmp_path, caplog):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("objective: momentum_contrast\nmomentum_queue_size: 40\ntemperature: 0.1\n")
    parse = partial(parse_arguments, (Choosing,), "", chosen_by=CHOICES)
    assert parse([str(recipe)])[1] == {"momentum_queue_size": 40, "temperature": 0.1}
    assert caplog.text == ""
    chosen, given = parse([str(recipe), "--objective", "info_nce"])
    assert (chosen.objective, given) == ("info_nce", {"temperature": 0.1})
    assert "--objective info_nce has no momentum_queue_size: the recipe's are left out" in caplog.text
    typed = ["--objective=info_nce", "--momentum_queue_size", "8"]
    assert parse([str(recipe), *typed])[1] == {"temperature": 0.1, "momentum_queue_size": 8}  # the model refuses it


def test_options_of_a_choice_are_those_given_and_have_their_types(tmp_path):
    (tmp_path / "recipe.yaml").write_text("momentum_queue_size: 40\ntemperature: 1\nrate: 2\n")
    words = [str(tmp_path / "recipe.yaml"), "--temperature", "0.1", "--symmetric"]
    example, given = parse_arguments((Example,), "", words, chosen_by=CHOICES)
    assert example.rate == 2
    assert given == {"momentum_queue_size": 40, "temperature": 0.1, "symmetric": True}
    assert parse_arguments((Example,), "", [], chosen_by=CHOICES)[1] == {}
    assert parse_arguments((Example,), "", ["--no_symmetric"], chosen_by=CHOICES)[1] == {"symmetric": False}


@pytest.mark.parametrize("words", [["--similarity", "l2"], ["--momentum_queue_size", "many"]])
def test_wrong_options_of_a_choice_are_refused(words):
    with pytest.raises(SystemExit):
        parse_arguments((Example,), "", words, chosen_by=CHOICES)


def test_values_that_are_no_choice_are_named():
    check_choices("heads", ["mlp"], ("mlp", "knn"))
    with pytest.raises(ValueError, match="--heads has no svm, tree: choose among mlp, knn"):
        check_choices("heads", ["svm", "mlp", "tree"], ("mlp", "knn"))
    with pytest.raises(ValueError, match=r"--heads has no mpl. Did you mean mlp\? Choose among mlp, knn"):
        check_choices("heads", ["mpl"], ("mlp", "knn"))


def test_what_a_recipe_leaves_to_the_command_line_has_to_come_from_there(tmp_path):
    with pytest.raises(ValueError, match=r"recipe.yaml leaves --rate to you: give it on the command line"):
        parse(tmp_path, "rate: ???\n")
    assert parse(tmp_path, "rate: ???\n", "--rate", "2").rate == 2
    assert given_options([str(tmp_path / "recipe.yaml"), "--rate", "2"])[1] == {"rate": "2"}


def test_resume_needs_no_value(tmp_path):
    assert parse(tmp_path, "rate: 1\n", "--resume_from_checkpoint").resume_from_checkpoint == "newest"
    assert parse(tmp_path, "rate: 1\n", "--resume_from_checkpoint", "x").resume_from_checkpoint == "x"
    assert parse(tmp_path, "rate: 1\n").resume_from_checkpoint is None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_each_recipe_parses_and_says_what_it_holds(recipe, tmp_path):
    options = yaml.safe_load(recipe.read_text())
    to_be_given = [word for name, value in options.items() if value == "???" for word in (f"--{name}", "0")]
    words = [str(recipe), "--use_cpu", "--output_dir", str(tmp_path), *to_be_given]
    *arguments, given = parse_arguments((*ALL, QueryArguments), "", words, chosen_by=OPTIONS_OF_OBJECTIVES)
    values = given | {name: value for part in arguments for name, value in vars(part).items()}
    for name, value in options.items():
        if value != "???" and name not in ("output_dir", "use_cpu", "eval_strategy", "save_strategy", "bf16"):
            assert values[name] in (value, [value]), name  # an option that takes several may have one


def test_the_defaults_are_the_papers_values(tmp_path):
    model, data, args = parse_arguments(ALL, "", ["--use_cpu", "--output_dir", str(tmp_path)])
    assert (args.learning_rate, args.per_device_train_batch_size, args.num_train_epochs) == (5e-5, 36, 1)
    RunOptions(model, data, QueryArguments(), args)  # which fills in what a start would have said
    assert (data.view, data.passage_words) == ("docsplit", 100)


def test_early_stopping_without_a_best_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--load_best_model_at_end"):
        parse_arguments(ALL, "", ["--use_cpu", "--output_dir", str(tmp_path), "--early_stopping_patience", "2"])


def test_several_gpus_without_a_launcher_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(PretrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(ValueError, match="accelerate launch"):
        PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)


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
        ("bert", "hidden_sise=3", r"of bert has no hidden_sise. Did you mean hidden_size\?"),
        ("bert", "hidden_size=a", "a value is of the wrong type: invalid literal"),
        ("brt", None, r"--model_type is brt, expected an architecture .* Did you mean bert\?"),
    ],
)
def test_wrong_config_overrides_are_refused(model_type, overrides, message):
    with pytest.raises(ValueError, match=message):
        parse_config_overrides(model_type, overrides)
