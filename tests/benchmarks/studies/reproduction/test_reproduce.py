"""`reproduce.py`: a tiny reproduction, what the recipes of the repository would do, and the cards of its encoders."""

import json
import re
from functools import cache

import pytest
import yaml
from huggingface_hub import ModelCard

import reproduce
from benchmarks.engine.results import read_results
from benchmarks.studies.reproduction.cards import CARDS, write_cards
from benchmarks.studies.reproduction.dry_run import data_problem
from benchmarks.studies.reproduction.hypotheses import read_hypotheses
from benchmarks.studies.reproduction.plan import (
    Cost,
    launch_of,
    make_plan,
    method_named,
    methods_of,
    options_of,
    processes_of,
    read_recipe,
    training_cost,
)
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
    "speed": {"hardware": "a core", "source": "made up", "flops_per_second": 1e6, "seconds_a_step": 2,
              "seconds_a_process": 36, "shape": [1, 10]},
    "datasets": {"data/tiny": {"documents": 100, "words": 20, "files": ["train.jsonl", "test.jsonl"],
                               "fields": ["text", "label"]}},
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
            "cost": {"seconds": 36},
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
    listed = shown(*words, tmp_path / "out", "--list", "--only", "*")
    assert "2 done; left: 0.00 hours" in listed

    # The encoder's card is where --list says, with what was measured, and a push takes it
    (key,) = set(re.findall(r"done .* (\w{16})  train DocSplit seed=0", listed))
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
    """By hand: 2 steps of the start, of 8 documents of 2 x 32 tokens; 2 of the training, whose 8 of 60 tokens, twice,
    have views of 30; 100 documents of 27 tokens read, and 36 s. A token forward: 24 x 10^2 and 4 x 10 a token before.
    """
    listed = shown(*place, "--output_dir", tmp_path / "out", "--list")
    assert listed.startswith("    2  train\n    1  classification tiny\n3 to do; left: ")
    assert "needs FakeNews: see docs/datasets.md" in listed
    only = shown(*place, "--output_dir", tmp_path / "out", "--list", "--only", "train Doc")
    assert [line[38:] for line in only.splitlines()[:2]] == ["train start", "train DocSplit seed=0"]
    assert not (tmp_path / "out").exists()  # a run refuses what is of no run
    projected = shown(*place, "--output_dir", tmp_path / "out", "--dry_run")
    start, training = 8 * 2 * 32 * 3 * (2400 + 40 * 32) / 1e6, 8 * 60 * 2 * 3 * (2400 + 40 * 30) / 1e6
    seconds = 2 * start + 36 + 2 * training + 36 + 100 * 27 * (2400 + 40 * 27) / 1e6 + 36 + 36
    assert re.search(rf"\ndocsplit +3 cells +{seconds / 3600:.2f} hours", projected), projected
    some = shown(*place, "--output_dir", tmp_path / "out", "--dry_run", "--only", "train Doc")
    assert re.search(r"\ndocsplit +2 cells", some), some


BUDGET = {"documents": 100, "document_tokens": 60, "speed": {"shape": [1, 1]}}


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
    cost = training_cost(BUDGET, {"options": method})
    view = min(method.get("max_seq_length", 512), 60 if method["view"] == "simcse" else 30)
    assert cost.steps * cost.flops_a_step == pytest.approx(tokens * 3 * (24 + 4 * view))


def test_a_step_takes_its_arithmetic_or_the_least_time_of_a_step():
    speed = {"flops_per_second": 100, "seconds_a_step": 0.5, "seconds_a_process": 0}
    assert Cost(steps=3600, flops_a_step=10, processes=0).hours(speed) == 0.5
    assert Cost(steps=3600, flops_a_step=200, processes=0).hours(speed) == 2
    launched = [
        training_cost(BUDGET, {"options": {"view": "docsplit", "mlm_weight": 0, "max_steps": 5}, "launch": launch})
        for launch in ([], ["--num_processes", 4])
    ]
    assert launched[0].hours(speed) == launched[1].hours(speed), "a batch each: as many steps, and as long ones"
    assert launched[1].documents == 4 * launched[0].documents


@pytest.mark.parametrize(
    ("name", "hours"), [("small", (4, 8)), ("medium", (0.3, 1.5)), ("docsplit_day", (12, 24)), ("paper", (100, 2000))]
)
def test_the_recipes_parse_and_say_their_hours(name, hours, tmp_path, shown):
    output = shown(RECIPES / f"{name}.yaml", "--dry_run", "--data_dir", tmp_path, "--output_dir", tmp_path / "o")
    assert "every command parses" in output
    here, _, everything = output.partition("With all data:")
    (projected,) = re.findall(r"\nall .*?([\d.]+) hours", here)
    assert hours[0] <= float(projected) <= hours[1]
    (of_all,) = re.findall(r"\nall .*?([\d.]+) hours", everything)
    assert float(of_all) >= float(projected)
    assert name != "docsplit_day" or float(of_all) <= 24, "a day"
    seeds = len(read_recipe(RECIPES / f"{name}.yaml")["seeds"])
    assert f"({seeds} pretraining seeds)" in here
    read = {group: (int(documents.replace(",", "")), float(tokens)) for documents, tokens, group in re.findall(
        r"^ +\d+ x +([\d,]+) documents +([\d.e+]+) tokens +[\d.]+ hours  (.*)$", here, re.MULTILINE)}  # fmt: skip
    if name == "paper":  # of each cell: trained on, in 20 epochs, and the sample of an analysis
        tuned = "fine-tuning of the Bregman paper ECtHR: Longformer of LEGAL-BERT"
        assert read["train SimCSE, SCOTUS"] == (2 * 50_000, pytest.approx(2 * 50_000 * 8192, rel=0.01))
        assert read[tuned] == (20 * 11_000, pytest.approx(20 * 11_000 * 1.35 * 1613, rel=0.05))
        assert read["attention NYT: BERT"] == (1000, pytest.approx(1000 * 512, rel=0.01))
    families = ("docsplit",) if name == "docsplit_day" else ("docsplit", "bregman", "graph")
    assert all(re.search(rf"\n{family} +\d+ cells", everything) for family in families)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"view": "docsplt"}, "docsplt"),
        ({"no_such_option": 1}, "no_such_option"),
        ({"corpus": "outputs/nothing"}, "outputs/nothing"),
        ({"corpus": "nobody/nothing"}, "nobody/nothing is neither in datasets.yaml"),
        ({"corpus": "coastalcph/lex_glue:scotus", "text_column": "body"}, "has no fields body; it has text, label"),
    ],
)
def test_a_dry_run_refuses_a_command_that_its_script_refuses(place, tmp_path, run_here, change, message):
    recipe = TINY | {"methods": {"DocSplit": {"family": "docsplit", "options": change}}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ValueError, match="train DocSplit seed=0") as failure:
        run_here(reproduce.main, *place, "--dry_run")
    assert message in str(failure.value)


# --- paper.yaml says what the papers do ---

PAPER = read_recipe(RECIPES / "paper.yaml")


@cache
def paper_plan():
    return make_plan(PAPER, with_all_data=True)


def of_set(evaluation, data):
    """The options of the steps of an evaluation of a set, by method."""
    plan = paper_plan()
    return {method: list(map(options_of, plan.study["groups"][group]["steps"]))
            for (name, of, method), group in plan.evaluated.items() if (name, of) == (evaluation, data)}  # fmt: skip


def option(evaluation, data, method, name):
    return of_set(evaluation, data)[method][-1].get(name)


def trained_by(evaluation, data):
    """The groups that each method of an evaluation needs."""
    plan = paper_plan()
    return {method: list(plan.study["groups"][group]["needs"].values())
            for (name, of, method), group in plan.evaluated.items() if (name, of) == (evaluation, data)}  # fmt: skip


def batch(name):
    method = PAPER["methods"][name]
    options = options_of({"recipe": method["recipe"], "options": method["options"]})
    return processes_of(launch_of(PAPER, method)) * options["per_device_train_batch_size"]


@pytest.mark.parametrize(
    ("said", "papers"),
    [
        (lambda: [batch(name) for name in ("DocSplit", "SimCSE_long", "MLM", "ICT", "half", "crop")], [36] * 6),
        (lambda: batch("DocSplit_long"), 12),
        (lambda: [batch("graph"), batch("graph for retrieval"), batch("SimCSE, SCOTUS")], [1536, 1024, 2]),
        (lambda: [[of_set("ranking", data)[f"graph for {method}"][-1].get(name)
                   for name in ("hybrid_measure", "split", "selection_split", "choose_weight")]
                  for data, method in (("Robust04", "retrieval"), ("MS MARCO dev", "MS MARCO"),
                                       ("MS MARCO DL19", "MS MARCO"), ("WIKIR62K", "retrieval"),
                                       ("WIKIRS62K", "retrieval"))],
         [["ndcg_at_20", None, None, True], ["mrr_at_100", "dev", None, True], ["ndcg_at_10", "dl19", "dev", True],
          ["precision_at_10", "test", "validation", True], ["precision_at_10", "test", "validation", True]]),
        (lambda: trained_by("ranking", "MS MARCO dev") == trained_by("ranking", "MS MARCO DL19"), True),
        (lambda: {name: {*trained_by("factors of the Bregman paper", "SCOTUS").get(name, [])}
                  for name in ("SimCSE + Bregman, SCOTUS", "pooling mean+max", "pooling mean", "pooling max")},
         {"SimCSE + Bregman, SCOTUS": {"train SimCSE + Bregman, SCOTUS"}, "pooling mean": set(),
          "pooling mean+max": {"train SimCSE + Bregman, SCOTUS"}, "pooling max": {"train pooling max"}}),
        (lambda: "mean" in PAPER["methods"]["SimCSE + Bregman, SCOTUS"]["paper"], True),
        (lambda: [option(f"{name} of the Bregman paper", "SCOTUS", method, "finetune_epochs")
                  for name, method in (("fine-tuning", "Longformer of LEGAL-BERT"), ("factors", "g 2"))], [20, 20]),
        (lambda: option("classification", "20News", "BERT", "strip_newsgroups"), ["headers"]),
        (lambda: [option("factors of the Bregman paper", "SCOTUS", name, "heads")
                  for name in ("g 2", "pooling cls", "pooling mean+max")], ["finetune"] * 3),
        (lambda: option("factors of the Bregman paper", "SCOTUS", "pooling mean+max", "override_pooling"), "max"),
        (lambda: "SimCSE" in of_set("sentences", "NYT"), True),
        (lambda: {*of_set("graph attention", "WIKIR62K")}, {"graph for retrieval", "graph of sections for retrieval"}),
        (lambda: PAPER["methods"]["INSTRUCTOR"]["name"] in (ROOT / "docs" / "datasets.md").read_text(), True),
        (lambda: option("fine-tuning of the graph paper", "Hyperpartisan", "graph", "validation_file"),
         "{data_dir}/hyperpartisan/validation.jsonl"),
        (lambda: option("clusters", "arXiv", "graph", "train_file"), "{data_dir}/arxiv11/train.jsonl"),
        (lambda: [step.get("fold") for step in of_set("ranking", "Robust04")["graph for retrieval"]],
         [*range(5), None]),
        (lambda: option("ranking", "Robust04", "graph for retrieval", "encoders_by_fold"), True),
        (lambda: "SimCSE" in of_set("attention", "NYT"), True),
    ],
)  # fmt: skip
def test_the_recipe_does_what_the_paper_does(said, papers):
    assert said() == papers


def test_each_cell_of_the_papers_reads_the_tokens_of_its_paper():
    """DocSplit's tables 512; the Bregman paper's 4,096, but for MIMIC; graphs and their long baselines."""
    read: dict[str, set] = {}
    plan = paper_plan()
    for (_, data, method), group in plan.evaluated.items():
        made = stated = PAPER["methods"][method]
        tokens = options_of(plan.study["groups"][group]["steps"][-1]).get("max_seq_length")
        if "words" in made:
            tokens = "whole texts"
        while tokens is None:  # what its training, or that of its start, wrote: of each passage
            tokens = options_of({"recipe": made["recipe"], "options": made["options"]}).get("max_seq_length")
            made = PAPER["methods"].get(made["from"])
        read.setdefault(f"{stated['family']} {data if data == 'MIMIC' else 'all'}", set()).add(tokens)
        if "name" in stated and method in PAPER["evaluations"]["clusters"]["methods"]:
            assert tokens == (512 if method == "Roberta" else 4096)
    assert read == {
        "docsplit all": {512, "whole texts"},
        "bregman all": {4096}, "bregman MIMIC": {2048},
        "graph all": {512, 4096, 256, "whole texts"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("evaluation", "a", "others"),
    [
        ("classification", "DocSplit", {"BERT", "CT-BERT", "SimCSE", "SimCSE_long", "Contriever", "INSTRUCTOR"}),
        ("classification", "DocSplit_long", {"Longformer", "BigBird"}),
        (
            "links",
            "DocSplit_long",
            {"BERT", "CT-BERT", "SimCSE", "SimCSE_long", "INSTRUCTOR", "Longformer", "BigBird"},
        ),
        ("attention", "DocSplit", {"BERT", "SimCSE", "SimCSE_long"}),
        ("few labels of the Bregman paper", "SimCSE + Bregman", {"SimCSE", "Longformer_DA"}),
        ("factors of the Bregman paper", "with", {"without"}),
        ("factors of the Bregman paper", "mean+max", {"mean", "max", "cls"}),
        ("clusters", "Graph-roberta", {"Roberta", "Longformer", "BigBird"}),
    ],
)
def test_the_papers_main_claims_have_tests_that_the_recipe_can_make(evaluation, a, others):
    stated = [one for one in read_hypotheses(PAPER).values() if (one["evaluation"], one["a"]) == (evaluation, a)]
    assert others <= {other for one in stated for other in one["b"]}
    for data in PAPER["evaluations"][evaluation]["sets"]:
        known = methods_of(PAPER, evaluation, data)
        assert all(method_named(PAPER, name, evaluation, data) in known for name in (a, *others))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selection_split": "dev"}, "not-here/wikir62k has no splits dev; it has train, validation, test."),
        ({"collection": "not-here/nothing"}, "data/nothing is neither in datasets.yaml"),
        ({"folds": "not-here/robust04/folds.txt"}, "not-here/robust04/folds.txt has no files folds.txt"),
        ({}, None),
    ],
)
def test_the_table_knows_splits_and_files_of_data_that_are_not_here(change, message):
    found = data_problem(PAPER, {"collection": "not-here/wikir62k", "split": "test"} | change)
    assert found == message or message in found


def test_the_committed_cards_are_what_the_command_writes(tmp_path):
    for path in write_cards(tmp_path):
        committed = ROOT / "model_cards" / path.parent.name / "README.md"
        assert committed.read_bytes() == path.read_bytes(), "python -m benchmarks.studies.reproduction.cards"
    untrained = {path.parent.name for path in (ROOT / "model_cards").glob("*/README.md")
                 if "**Not trained yet.**" in path.read_text()}  # fmt: skip
    assert untrained == {card.name for card in CARDS}
