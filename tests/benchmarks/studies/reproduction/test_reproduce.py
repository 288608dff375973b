"""`reproduce.py`: a tiny reproduction, what the recipes of the repository would do, and the cards of its encoders."""

import json
import re

import pytest
import yaml
from huggingface_hub import ModelCard

import reproduce
from benchmarks.engine.results import read_results
from benchmarks.studies.reproduction.cards import CARDS, write_cards
from benchmarks.studies.reproduction.plan import trained_tokens
from docsplit.release.hub import release_files
from tests.conftest import make_corpus
from tests.processes import ROOT

RECIPES = ROOT / "recipes" / "reproduction"
TINY = {
    "title": "Tiny",
    "hardware": "a core",
    "hours": 0.1,
    "seeds": [0],
    "corpus": "python_docs",
    "documents": 60,
    "document_tokens": 60,
    "speed": {"hardware": "a core", "source": "made up", "train_tokens_per_second": 1000,
              "read_tokens_per_second": 1000, "seconds_a_step": 36},
    "common": {
        "use_cpu": True, "bf16": False, "max_seq_length": 32, "max_steps": 2, "per_device_train_batch_size": 8,
        "save_strategy": "no", "preprocessing_num_workers": 1, "disable_tqdm": True, "overwrite_output_dir": True,
    },
    "start": {"view": "simcse", "contrastive_weight": 0, "mlm_weight": 1, "vocab_size": 300, "model_type": "bert"},
    "methods": {
        "DocSplit": {"family": "docsplit", "options": {"view": "docsplit"}, "paper": "DocSplit_bert"},
        "TF-IDF": {"family": "docsplit", "words": "tfidf"},
    },
    "evaluations": {
        "classification": {
            "family": "docsplit",
            "kind": "classification",
            "methods": ["DocSplit"],
            "options": {"heads": ["linear"], "shots": 5, "num_draws": 2, "num_seeds": 1},
            "cost": {"read": 0.36, "seconds": 36},
            "sets": {
                "tiny": {"options": {"train_file": "data/tiny/train.jsonl", "test_file": "data/tiny/test.jsonl"}},
                "FakeNews": {"recipe": "recipes/probe_fakenews.yaml"},
            },
        },
    },
}  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """A folder with the data and the recipe; returns the words of a command without its output folder."""
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    for name, size, seed in (("train", 60, 0), ("test", 40, 1)):
        lines = [json.dumps(row) + "\n" for row in make_corpus(size, seed)]
        (tmp_path / "data" / "tiny" / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY, sort_keys=False))
    words = [tmp_path / "tiny.yaml", "--data_dir", tmp_path / "data"]
    return [*words, "--corpus", tmp_path / "data" / "tiny" / "train.jsonl"]


@pytest.fixture
def shown(run_here, capsys):
    """Runs `main` in this process, and returns what it printed."""

    def run(*words):
        run_here(reproduce.main, *words)
        return capsys.readouterr().out

    return run


@pytest.mark.slow  # two minutes; what a kill leaves is the engine's
def test_a_reproduction_from_the_recipe_to_the_report(place, encoder, tmp_path, shown):
    words = [*place, "--model_name_or_path", encoder, "--output_dir"]
    for name, given in {"out": (), "elsewhere": ("--finished", tmp_path / "out" / "cells.json")}.items():
        with pytest.raises(SystemExit) as ended:
            shown(*words, tmp_path / name, *given)
        assert ended.value.code == 0

    # What was measured is in the report, and nothing is left to do
    contents = json.loads((tmp_path / "out" / "results.json").read_text())
    table = "DocSplit v2, Table 1, linear on raw features"
    (row,) = [row for row in contents["rows"]
              if (row["table"], row["row"], row["column"]) == (table, "DocSplit_bert", "tiny accuracy")]  # fmt: skip
    (accuracy,) = [row["value"] for row in read_results(tmp_path / "out" / "cells.json").rows
                   if (row["metric"], row.get("features"), row.get("shots")) == ("accuracy", "raw", None)]  # fmt: skip
    assert row["ours"] == pytest.approx(100 * accuracy)
    assert "needs FakeNews: see docs/datasets.md" in (tmp_path / "out" / "report.html").read_text()
    listed = shown(*words, tmp_path / "out", "--list")
    assert "2 done; left: 0.00 hours" in listed

    # The encoder's card is where --list says, with what was measured, and a push takes it
    (key,) = re.findall(r"done .* (\w{16})  train DocSplit seed=0", listed)
    made = tmp_path / "out" / "cells" / key / "encoder"
    card = ModelCard.load(made / "README.md")
    assert f"{100 * accuracy:.1f}" in card.text.partition("### Classification: ")[2]
    assert made / "README.md" in release_files(made)

    # On another machine its cells count as finished, without the encoder
    assert read_results(tmp_path / "elsewhere" / "cells.json") == read_results(tmp_path / "out" / "cells.json")
    assert json.loads((tmp_path / "elsewhere" / "results.json").read_text())["rows"] == contents["rows"]
    assert not (tmp_path / "elsewhere" / "cells").exists()


def test_without_a_recipe_the_list_has_those_of_the_project(shown):
    lines = shown("--list").splitlines()
    assert "recipes/reproduction/small.yaml  The papers' tables in small" in lines
    assert not [line for line in lines if "hypotheses" in line]
    with pytest.raises(SystemExit):
        shown("--dry_run")


def test_the_list_and_the_hours(place, tmp_path, shown):
    """By hand: start 2 x 8 x 64 tokens and a process, training 2 x 8 x 60 x 2 passes, measuring 360,000 and 36 s."""
    listed = shown(*place, "--output_dir", tmp_path / "out", "--list")
    assert "train DocSplit seed=0: after train start" in listed
    assert "classification tiny: DocSplit seed=0: after train DocSplit seed=0" in listed
    assert "needs FakeNews: see docs/datasets.md" in listed
    assert not (tmp_path / "out").exists()  # a run refuses what is of no run
    projected = shown(*place, "--output_dir", tmp_path / "out", "--dry_run")
    seconds = (2 * 8 * 2 * 32 / 1000 + 36) + (2 * 8 * 60 * 2 / 1000 + 36) + (360 + 36 + 36)
    assert re.search(rf"\ndocsplit +3 cells +{seconds / 3600:.2f} hours", projected), projected
    some = shown(*place, "--output_dir", tmp_path / "out", "--dry_run", "--only", "train Doc")
    assert re.search(r"\ndocsplit +2 cells", some), some


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


@pytest.mark.parametrize(("name", "hours"), [("small", (4, 8)), ("medium", (0.3, 1.5)), ("paper", (0, 400))])
def test_the_recipes_parse_and_say_their_hours(name, hours, tmp_path, shown):
    output = shown(RECIPES / f"{name}.yaml", "--dry_run", "--data_dir", tmp_path, "--output_dir", tmp_path / "o")
    assert "every command parses" in output
    here, _, everything = output.partition("With all data:")
    (projected,) = re.findall(r"\nall .*?([\d.]+) hours", here)
    assert hours[0] <= float(projected) <= hours[1]
    (of_all,) = re.findall(r"\nall .*?([\d.]+) hours", everything)
    assert float(of_all) >= float(projected)
    seeds = len(yaml.safe_load((RECIPES / f"{name}.yaml").read_text())["seeds"])
    assert f"({seeds} pretraining seeds)" in here
    assert all(re.search(rf"\n{family} +\d+ cells", everything) for family in ("docsplit", "bregman", "graph"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"view": "docsplt"}, "docsplt"),
        ({"no_such_option": 1}, "no_such_option"),
        ({"corpus": "outputs/nothing"}, "outputs/nothing"),
    ],
)
def test_a_dry_run_refuses_a_command_that_its_script_refuses(place, tmp_path, run_here, change, message):
    recipe = TINY | {"methods": {"DocSplit": {"family": "docsplit", "options": change}}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ValueError, match="train DocSplit seed=0") as failure:
        run_here(reproduce.main, *place, "--dry_run")
    assert message in str(failure.value)


def test_the_committed_cards_are_what_the_command_writes(tmp_path):
    for path in write_cards(tmp_path):
        committed = ROOT / "model_cards" / path.parent.name / "README.md"
        assert committed.read_bytes() == path.read_bytes(), "python -m benchmarks.studies.reproduction.cards"
    untrained = {path.parent.name for path in (ROOT / "model_cards").glob("*/README.md")
                 if "**Not trained yet.**" in path.read_text()}  # fmt: skip
    assert untrained == {card.name for card in CARDS}
