"""Options of data sets: what recipes give them, and what they refuse."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from docsplit.data.sets.arguments import LabelledArguments

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("probe_*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_say_where_the_documents_are(path):
    options = yaml.safe_load(path.read_text())
    assert ("dataset_name" in options) != ("train_file" in options)
    assert options["output_dir"] == f"outputs/{path.stem}"
    assert options["num_draws"] == 10


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_options_of_recipes_make_the_dataclass(path):
    names = {field.name for field in fields(LabelledArguments)}
    options = {name: value for name, value in yaml.safe_load(path.read_text()).items() if name in names}
    arguments = LabelledArguments(**options)
    assert (arguments.dataset_name is None) != (arguments.train_file is None)
    assert isinstance(arguments.text_column, list | str)
