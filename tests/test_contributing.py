"""The examples of CONTRIBUTING.md run, in order, and its tree names every file."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModel

from docsplit.data.views import VIEWS
from docsplit.evaluation.heads.table import HEADS
from docsplit.modeling.families.table import FAMILIES
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.runtime.options import parse_arguments
from tests.test_layout import FLOORS, SCRIPTS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
REGISTRIES = (VIEWS, OBJECTIVES, FAMILIES, HEADS)


def blocks(language):
    """The code between fences, below as many empty lines as stand above it on the page: tracebacks name its line."""
    blocks = re.finditer(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return ["\n" * PAGE[: match.start(1)].count("\n") + match[1] for match in blocks]


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Run all examples as one program, in a folder of their own; what they register is gone after this module."""
    before = [dict(registry) for registry in REGISTRIES]
    folder = tmp_path_factory.mktemp("contributing")
    (folder / "tests").symlink_to(ROOT / "tests")
    names = {"__name__": "contributing"}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for block in blocks("python"):
                exec(compile(block, "CONTRIBUTING.md", "exec"), names)
        yield SimpleNamespace(**names, folder=folder)
    finally:
        for registry, rows in zip(REGISTRIES, before):
            registry.clear()
            registry.update(rows)


def test_each_example_adds_a_row(examples):
    assert VIEWS["every_other_sentence"] is examples.every_other_sentence
    assert OBJECTIVES["projected_info_nce"] is examples.ProjectedInfoNCE
    assert type(FAMILIES["xmod"]) is examples.Xmod
    assert HEADS["nearest_mean"] is examples.nearest_mean
    (objective,) = re.findall(r"^class ProjectedInfoNCE.*?(?=^OBJECTIVES)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert objective.strip().count("\n") < 30


def test_the_view_is_drawn(examples):
    lengths = np.asarray(examples.documents[0]["unit_lengths"])
    first, second = examples.every_other_sentence(lengths, rng=None)
    assert first.sum() == lengths[::2].sum()
    assert (first ^ second).all()
    assert len(examples.batch["input_ids"]) == 4
    assert examples.batch["attention_mask"][0].sum(dim=1).tolist() == [first.sum() + 2, second.sum() + 2]


def test_the_objective_trains_its_projection_and_releases_the_encoder_alone(examples):
    assert examples.trainer.state.global_step == 2
    state = examples.load_file(examples.folder / "outputs" / "projected" / "training_state.safetensors")
    assert {name.split(".")[0] for name in state} == {"project"}
    assert state["project.2.weight"].shape == (16, 32)
    for name, parameter in examples.model.objective.named_parameters():
        assert examples.trainer.optimizer.state[parameter]["exp_avg"].any(), name  # it had a gradient
    _, info = AutoModel.from_pretrained(examples.folder / "outputs" / "projected", output_loading_info=True)
    assert not info["missing_keys"]
    assert not any("project" in key for key in info["unexpected_keys"])


def test_the_recipe_is_parsed_with_the_view_and_the_options_of_the_objective(examples, run_here, tmp_path):
    (recipe,) = blocks("yaml")
    (tmp_path / "recipe.yaml").write_text(recipe)
    folder = ROOT / "docsplit" / "training"  # run anew, as with the rows in their files
    fresh = runpy.run_path(str(folder / "arguments.py")) | runpy.run_path(str(folder / "options.py"))
    parsed = []

    def main():
        classes = [fresh[name] for name in ("ModelArguments", "DataArguments", "PretrainingArguments")]
        parsed.extend(parse_arguments(classes, "", chosen_by=fresh["OPTIONS_OF_OBJECTIVES"]))

    run_here(main, tmp_path / "recipe.yaml", "--view", "every_other_sentence", "--use_cpu")
    _, data_args, args, options = parsed
    assert data_args.view == "every_other_sentence"
    assert args.objective == "projected_info_nce"
    assert options == {"projection_width": 128}
    with pytest.raises(ValueError, match="an option of objective projected_info_nce, not of info_nce"):
        examples.DocSplitForContrastivePretraining(examples.config, max_seq_length=64, projection_width=128)


def test_an_encoder_gets_what_it_wants_of_its_caller(examples, monkeypatch):
    assert torch.isfinite(examples.xmod(**examples.batch).loss)
    monkeypatch.delitem(FAMILIES, "xmod")
    without = examples.DocSplitForContrastivePretraining(examples.xmod.config, max_seq_length=64)
    with pytest.raises(ValueError, match="language unknown"):
        without(**examples.batch)


def test_the_head_scores_each_test_document(examples):
    num_documents, num_classes = len(examples.split.test_texts), len(examples.split.class_names)
    assert examples.output.scores.shape == (3, num_documents, num_classes)
    np.testing.assert_allclose(examples.output.scores.sum(axis=2), 1, rtol=1e-6)
    assert examples.result.of_runs("accuracy").mean() > 1 / num_classes


def test_the_evaluation_has_rows_tests_and_a_table(examples):
    frame, compared = examples.report.rows, examples.report.comparisons
    assert frame["encoder"].tolist() == ["word", "char"]
    assert ((frame["ndcg_low"] >= 0) & (frame["ndcg_low"] <= frame["ndcg_mean"]) & (frame["ndcg_high"] <= 1)).all()
    assert compared[["a", "b", "measure"]].values.tolist() == [["word", "char", "ndcg"]]
    table = (examples.folder / "outputs" / "ranking" / "results.md").read_text()
    assert "nDCG@10" in table
    assert re.search(r"^\| word +\| +cosine \|", table, re.MULTILINE)


def tree():
    """The lines of the tree: each path, and the floor that the page gives it, None where it gives none."""
    section = PAGE.partition("## The tree\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    ( *)(\S+) +(?:floor (\d): )?\S.*$", section, flags=re.MULTILINE)
    assert len(lines) <= 60
    floors, folder = {}, ""
    for indent, name, floor in lines:
        folder = folder if indent else ""
        floors[folder + name] = int(floor) if floor else None
        folder = name if name.endswith("/") and not indent else folder
    return floors


def test_the_tree_has_the_floors_of_the_layout():
    floors = {path.strip("/").removesuffix(".py").replace("/", "."): floor for path, floor in tree().items()}
    assert {room: floors[room] for room in FLOORS} == FLOORS
    assert [floor for floor in floors.values() if floor is not None] == sorted(FLOORS.values(), reverse=True)
    assert set(SCRIPTS) < set(floors)
