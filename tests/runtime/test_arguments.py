"""Recipe and command line are one language, and the command line wins."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import yaml

from docsplit.runtime.arguments import parse_arguments, parse_config_overrides
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments

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


@pytest.mark.parametrize("recipe", ["kind: c\n", "unknown: 1\n", "rate: fast\n"])
def test_wrong_values_are_refused_in_a_recipe_too(tmp_path, recipe):
    with pytest.raises(SystemExit):
        parse(tmp_path, recipe)


@pytest.mark.parametrize("recipe", ["- rate\n", "group:\n  rate: 1\n"])
def test_a_recipe_is_flat(tmp_path, recipe):
    with pytest.raises(ValueError, match="recipe"):
        parse(tmp_path, recipe)


def test_a_missing_recipe_is_named():
    with pytest.raises(ValueError, match="nowhere"):
        parse_arguments((Example,), "", ["nowhere.yaml"])


def test_resume_needs_no_value(tmp_path):
    assert parse(tmp_path, "rate: 1\n", "--resume_from_checkpoint").resume_from_checkpoint == "newest"
    assert parse(tmp_path, "rate: 1\n", "--resume_from_checkpoint", "x").resume_from_checkpoint == "x"
    assert parse(tmp_path, "rate: 1\n").resume_from_checkpoint is None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_each_recipe_parses_and_says_what_it_holds(recipe, tmp_path):
    arguments = parse_arguments(ALL, "", [str(recipe), "--use_cpu", "--output_dir", str(tmp_path)])
    values = {name: value for part in arguments for name, value in vars(part).items()}
    for name, value in yaml.safe_load(recipe.read_text()).items():
        if name not in ("output_dir", "use_cpu", "eval_strategy", "save_strategy", "bf16"):
            assert values[name] == value, name


def test_the_defaults_are_the_papers_values(tmp_path):
    _, data, args = parse_arguments(ALL, "", ["--use_cpu", "--output_dir", str(tmp_path)])
    assert (args.learning_rate, args.per_device_train_batch_size, args.num_train_epochs) == (5e-5, 36, 1)
    assert data.view == "docsplit"


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


@pytest.mark.parametrize("overrides", ["hidden_size", "hidden_sise=3", "hidden_size=a"])
def test_wrong_config_overrides_are_refused(overrides):
    with pytest.raises(ValueError, match=r"config_overrides|hidden_sise|invalid literal"):
        parse_config_overrides("bert", overrides)
