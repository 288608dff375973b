"""A recipe as a study: which cells there are, what each is keyed by, and names that the papers know."""

import pytest

from benchmarks.engine.study import Study
from benchmarks.studies.reproduction.plan import make_plan, read_recipe, trained_tokens
from tests.processes import ROOT

RECIPES = ROOT / "recipes" / "reproduction"
ROWS = [  # that the specification asks of the small recipe
    *("random", "MLM", "SimCSE_long", "CT", "crop", "ICT", "MoCo", "DocSplit", "DocSplit_long", "Longformer_DA"),
    *("Longformer_DA + SimCSE", "Longformer_DA + SimCSE + Bregman", "graph, no contrast", "graph"),
    *("TF-IDF", "BM25", "TF-IDF + SVD"),
]


def recipe_of(name):
    return read_recipe(RECIPES / f"{name}.yaml")


def cells_of(plan, folder, **given):
    study = Study(plan.study, folder / "cells", {"data_dir": str(folder)} | given)
    return {cell.name: cell for cell in study.cells().values()}


def test_small_has_all_rows_and_three_seeds(tmp_path):
    recipe = recipe_of("small")
    assert {*ROWS} <= recipe["methods"].keys()
    cells = cells_of(make_plan(recipe, tmp_path), tmp_path)
    for row in ROWS[:14]:
        trained = [cell for cell in cells.values() if cell.group == f"train {row}"]
        assert [cell.fields["seed"] for cell in trained] == [0, 1, 2]
    assert all(any(cell.fields["method"] == row and cell.fields["task"] != "pretraining" for cell in cells.values())
               for row in ROWS)  # fmt: skip


BUDGET = {"documents": 100, "document_tokens": 60}


@pytest.mark.parametrize(
    ("method", "tokens"),
    [
        ({"view": "docsplit", "max_seq_length": 20, "mlm_weight": 0}, 100 * 40),  # two views of 20
        ({"view": "simcse", "max_seq_length": 20, "mlm_weight": 0}, 100 * 40),
        ({"view": "simcse", "max_seq_length": 512, "mlm_weight": 0}, 100 * 120),  # the whole document twice
        ({"view": "passages", "max_seq_length": 20, "mlm_weight": 0}, 100 * 60),  # a passage is cut, not the document
        ({"view": "docsplit", "mlm_weight": 0.1}, 100 * 60 * 2),
        ({"view": "docsplit", "mlm_weight": 0, "num_train_epochs": 3}, 3 * 100 * 60),
        ({"view": "docsplit", "mlm_weight": 0, "max_steps": 7, "per_device_train_batch_size": 2}, 7 * 2 * 60),
    ],
)
def test_tokens_of_a_training(method, tokens):
    assert trained_tokens(BUDGET, {"options": method}) == pytest.approx(tokens)


def test_a_method_with_a_corpus_of_its_own_counts_its_documents():
    options = {"view": "passages", "max_seq_length": 20, "mlm_weight": 0}
    own = {"options": options, "documents": 10, "document_tokens": 5000}
    assert trained_tokens(BUDGET, own) == pytest.approx(10 * 50 * 20)  # the first 50 passages
