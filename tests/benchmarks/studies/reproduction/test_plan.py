"""A recipe as a study: which cells there are, what each is keyed by, and names that the papers know."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.engine.study import Study
from benchmarks.studies.reproduction.plan import make_plan, read_recipe, trained_tokens
from tests.processes import ROOT

RECIPES = ROOT / "recipes" / "reproduction"
NAMES = ("small", "medium", "paper")
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


@pytest.fixture
def tiny(tmp_path):
    """A recipe on files in a folder."""
    (tmp_path / "news").mkdir()
    for part in ("train", "test"):
        (tmp_path / "news" / f"{part}.jsonl").write_text("{}\n")
    (tmp_path / "corpus.jsonl").write_text("{}\n")
    options = {"train_file": "data/news/train.jsonl", "test_file": "data/news/test.jsonl"}
    return {
        "title": "", "seeds": [0, 1], "speed": {}, "corpus": "{given_corpus}", "documents": 10, "document_tokens": 10,
        "start": {"max_steps": 1},
        "methods": {"DocSplit": {"family": "docsplit", "options": {"max_steps": 1}},
                    "words": {"family": "docsplit", "words": "tfidf"}},
        "evaluations": {"classification": {
            "family": "docsplit", "kind": "classification", "methods": ["*"], "options": {"heads": "linear"},
            "sets": {"news": {"options": options}, "more": {"options": {"train_file": "data/more.jsonl"}}}}},
    }  # fmt: skip


def test_what_is_missing_makes_no_cells_and_is_told(tiny, tmp_path):
    plan = make_plan(tiny, tmp_path)
    assert [(one.evaluation, one.data, one.needs, one.file) for one in plan.missing] == [
        ("classification", "more", "needs more: see docs/datasets.md", "data/more.jsonl")
    ]
    assert not [name for name in plan.study["groups"] if "more" in name]
    everything = make_plan(tiny, tmp_path, with_all_data=True)
    assert "classification more: DocSplit" in everything.study["groups"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluation": {}}, "evaluation, which a recipe"),
        ({"methods": {"a": {"family": "docs"}}}, "a must name a family"),
        ({"methods": {"a": {"family": "graph", "option": {}}}}, "option, which a recipe"),
        ({"evaluations": {"x": {"family": "graph", "methods": ["b"], "sets": {}}}}, "the method 'b'"),
    ],
)
def test_a_recipe_that_means_nothing_is_refused(tiny, tmp_path, change, message):
    path = Path(tmp_path / "recipe.yaml")
    path.write_text(yaml.safe_dump(json.loads(json.dumps(tiny)) | change))
    with pytest.raises(ValueError, match=message):
        read_recipe(path)


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
