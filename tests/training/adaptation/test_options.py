"""Options of adapting that cannot work are refused in one line, which names the remedy."""

import pytest

from docsplit.training.adaptation.options import AdaptOptions
from docsplit.training.adapting import adapt


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"recipe": "docsplit"}, "--recipe docsplit is for --train: add it, or leave the recipe out"),
        ({"train": True, "recipe": "no_such"}, "no_such.*adapt"),  # the recipes that there are
        ({"hub_model_id": "a/b"}, "--hub_model_id names where --push_to_hub uploads to: add that, or leave it out"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(given, problem):
    with pytest.raises(ValueError, match=problem) as failure:
        AdaptOptions(**given)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"max_seq_length": 2}, "--max_seq_length 2: give a number of at least 3"),
        ({"penalty": 0.0}, "--penalty 0.0: give a number above 0"),
        ({"penalty": float("nan")}, "--penalty nan: give a number above 0"),
        ({"neighbours": -1}, "--neighbours -1: give a number of at least 0"),
    ],
)
def test_a_number_that_cannot_be_is_refused_before_anything_is_loaded(given, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        adapt("no/encoder", ["a text"], tmp_path / "out", AdaptOptions(**given))
    assert not (tmp_path / "out").exists()


def test_what_can_work_is_taken(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("max_steps: 1\n")
    AdaptOptions()
    AdaptOptions(max_seq_length=3, penalty=1e-9, neighbours=0, static=True, train=True, recipe=str(recipe))
    AdaptOptions(push_to_hub=True, hub_model_id="a/b")
