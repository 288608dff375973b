"""A recipe as a study: which cells there are, what each is keyed by, and names that the papers know."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.engine.study import Study
from benchmarks.studies.reproduction.hypotheses import read_hypotheses
from benchmarks.studies.reproduction.plan import make_plan, method_named, methods_of, papers_rows, read_recipe
from benchmarks.studies.reproduction.tables import TABLES
from docsplit.evaluation.results.paper_numbers import PAPERS, read_paper
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
    return {cell.name: cell for cell in study.cells()[0].values()}


def test_small_has_all_rows_and_three_seeds(tmp_path):
    recipe = recipe_of("small")
    assert {*ROWS} <= recipe["methods"].keys()
    cells = cells_of(make_plan(recipe, tmp_path), tmp_path)
    for row in ROWS[:14]:
        trained = [cell for cell in cells.values() if cell.group == f"train {row}"]
        assert [cell.fields["seed"] for cell in trained] == [0, 1, 2]
    assert all(any(cell.fields["method"] == row and cell.fields["task"] != "pretraining" for cell in cells.values())
               for row in ROWS)  # fmt: skip


def test_all_of_small_starts_from_one_masked_lm(tmp_path):
    recipe = recipe_of("small")
    cells = cells_of(make_plan(recipe, tmp_path), tmp_path)
    assert len([name for name in cells if name.startswith("train start")]) == 1

    def start_of(cell):
        return start_of(cell.needs["origin"]) if cell.needs else cell

    origins = {start_of(cell).name for cell in cells.values() if cell.group.startswith("train ")}
    assert origins == {"train start"}
    given = cells_of(make_plan(recipe, tmp_path, has_start=True), tmp_path, given_start="my/encoder")
    assert "train start" not in given
    (step,) = given["train DocSplit seed=1"].steps
    assert (step["options"]["model_name_or_path"], step["options"]["seed"]) == ("my/encoder", 1)


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_sets_have_the_papers_names(name):
    recipe = recipe_of(name)
    tables = [table for paper in PAPERS for table in read_paper(paper).tables]
    rows = {row for table in tables for row in table.rows}
    sets = {data for table in tables for data, _ in table.columns} | {row for table in tables for row in table.rows}
    for method, stated in recipe["methods"].items():
        assert {*papers_rows(stated)} <= rows, method
    for evaluation, stated in recipe["evaluations"].items():
        assert stated["sets"].keys() <= sets | {"python_docs"}, evaluation
    assert {filled.evaluation for filled in TABLES} <= recipe["evaluations"].keys()


@pytest.mark.parametrize("name", NAMES)
def test_claims_name_methods_that_the_recipe_measures(name):
    """But for the released SimCSE, which the recipes of small encoders have not."""
    recipe, lacking = recipe_of(name), set()
    for claim, stated in read_hypotheses(recipe).items():
        evaluation = stated["evaluation"]
        for data in recipe["evaluations"][evaluation]["sets"]:
            for method in (stated["a"], *stated.get("b", [])):
                if method_named(recipe, method, evaluation, data) not in methods_of(recipe, evaluation, data):
                    lacking.add((claim, method))
    assert lacking <= ({("H3", "SimCSE")} if name != "paper" else set())


def test_each_paper_row_is_filled_in_the_paper_recipe():
    """What nobody released stays empty: systems of others."""
    recipe, empty = recipe_of("paper"), set()
    filled = {row for method in recipe["methods"].values() for row in papers_rows(method)}
    for one in TABLES:
        if one.method is None:
            empty |= read_paper(one.paper).table(one.table, one.part).rows.keys() - filled
    assert not {name for name in empty if name.startswith(("DocSplit", "SimCSE", "Graph-roberta", "g ", "sigma"))}


def test_the_paper_recipe_reads_the_corpus_that_the_papers_recipes_name():
    """Another one is stated by the method; what is not trained may read any."""
    recipe = recipe_of("paper")
    plan = make_plan(recipe, with_all_data=True)
    trained = [(name, one) for name, one in recipe["methods"].items()
               if "recipe" in one and one["options"].get("learning_rate") != 0]  # fmt: skip
    assert len(trained) > 30
    for name, method in trained:
        stated = yaml.safe_load((ROOT / method["recipe"]).read_text())["corpus"]
        step = plan.study["groups"][f"train {name}"]["steps"][-1]
        assert step["options"]["corpus"].replace("{data_dir}", "data") == method.get("corpus", stated), name


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


def keys_of(recipe, folder):
    given = {"given_corpus": str(folder / "corpus.jsonl")}
    return {name: cell.key for name, cell in cells_of(make_plan(recipe, folder), folder, **given).items()}


def test_places_are_no_part_of_a_key_and_contents_are(tiny, tmp_path):
    keys = keys_of(tiny, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "news").mkdir(parents=True)
    for file in ("news/train.jsonl", "news/test.jsonl", "corpus.jsonl"):
        (elsewhere / file).write_text("{}\n")
    assert keys_of(tiny, elsewhere) == keys
    (elsewhere / "news" / "test.jsonl").write_text("{} \n")
    other = keys_of(tiny, elsewhere)
    assert {name for name in keys if keys[name] != other[name]} == {name for name in keys if "classification" in name}
    (tmp_path / "corpus.jsonl").write_text("{} \n")
    other = keys_of(tiny, tmp_path)
    assert {name for name in keys if keys[name] == other[name]} == {"classification news: words"}


def test_a_training_is_keyed_by_the_code_that_trains(tiny, tmp_path):
    study = Study(make_plan(tiny, tmp_path).study, tmp_path, {"data_dir": str(tmp_path)})
    code = {name: {*study.code, *group["code"]} for name, group in study.groups.items()}
    assert "docsplit/training" in code["train DocSplit"] - code["classification news: DocSplit"]
    assert "docsplit/evaluation" in code["classification news: DocSplit"] - code["train DocSplit"]
    assert all({"docsplit/modeling", "docsplit/data"} <= files for files in code.values())
    assert all((ROOT / name).exists() for files in code.values() for name in files)


def test_what_is_missing_makes_no_cells_and_is_told(tiny, tmp_path):
    plan = make_plan(tiny, tmp_path)
    assert [(one.evaluation, one.data, one.needs, one.file) for one in plan.missing] == [
        ("classification", "more", "needs more: see docs/datasets.md", "data/more.jsonl")
    ]
    assert not [name for name in plan.study["groups"] if "more" in name]
    everything = make_plan(tiny, tmp_path, with_all_data=True)
    assert "classification more: DocSplit" in everything.study["groups"]


@pytest.mark.parametrize(
    "stated",
    [
        {"kind": "analysis", "options": {"analyses": "clustering"}},
        {"kind": "classification", "options": {"heads": "finetune"}},
    ],
    ids=["analysis", "finetune"],
)
def test_what_trains_no_head_takes_the_data_of_a_recipe_of_probes(tiny, tmp_path, stated):
    tiny["evaluations"]["classification"] |= stated
    tiny["evaluations"]["classification"]["sets"] = {"20News": {"recipe": "recipes/probe_20news.yaml"}}
    plan = make_plan(tiny, tmp_path, with_all_data=True)
    (step,) = plan.study["groups"]["classification 20News: DocSplit"]["steps"]
    assert step["options"]["strip_newsgroup_headers"] is True
    assert not {"shots", "recipe"} & (step.keys() | step["options"].keys())
    assert step["options"].get("heads") == stated["options"].get("heads")


def test_a_recipe_extends_another_one(tmp_path):
    base = yaml.safe_load((RECIPES / "small.yaml").read_text())
    own, medium = yaml.safe_load((RECIPES / "medium.yaml").read_text()), recipe_of("medium")
    assert medium["common"] == base["common"] | own["common"]
    assert (medium["seeds"], medium["methods"]) == (own["seeds"], base["methods"])


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
