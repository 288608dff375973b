"""The options of pretraining: which values go together, and what follows from them."""

import os

import pytest
import torch
import yaml

from docsplit.training import run_arguments
from docsplit.training.run_arguments import ModelArguments, PretrainingArguments, QueryArguments
from tests.processes import ROOT
from tests.training.examples import run_options


def test_kinds_of_negatives_by_halves():
    kinds = (["in_batch"], ["bm25"], ["self"], ["bm25", "self"])
    expected = [[], ["bm25"], ["self", "self"], ["bm25", "self"]]
    assert [QueryArguments(negatives=kind).phases for kind in kinds] == expected
    assert [QueryArguments(negatives=[kind]).number_of_negatives for kind in ("in_batch", "random")] == [0, 1]
    assert QueryArguments(negatives=["bm25"], negatives_per_query=8).number_of_negatives == 8
    assert QueryArguments(fold=0, negatives=["bm25"]).given() == ["--fold", "--negatives"]


def test_the_recipes_of_a_paper_with_adam_have_no_weight_decay():
    """Xu et al. (2021) train with Adam, before and for ranking; it is AdamW without decay, which is 0.01 here."""
    recipes = {path.stem: path.read_text() for path in (ROOT / "recipes").glob("*.yaml")}
    of_paper = {name: text for name, text in recipes.items() if "Xu et al., 2021" in text and "learning_rate:" in text}
    assert {"graph_document", "ranking_msmarco", "ranking_robust04", "ranking_wikir"} <= of_paper.keys()
    assert {name: yaml.safe_load(text).get("weight_decay") for name, text in of_paper.items()} == dict.fromkeys(
        of_paper, 0
    )


def test_a_stream_finds_its_own_place_when_it_resumes():
    stream = run_options(data={"streaming": True}, max_steps=3)
    assert stream.training.ignore_data_skip
    assert stream.training.accelerator_config.dispatch_batches is False
    assert not run_options().training.ignore_data_skip


QUERIES = {"view": "query_document"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QueryArguments(negatives=["in_batch", "bm25"]), "in_batch negatives are always there"),
        (lambda: QueryArguments(negatives=["bm25", "self", "self"]), "one kind, or one for each half"),
        (lambda: QueryArguments(negatives_per_query=2), "is for --negatives random, bm25, self"),
        (lambda: QueryArguments(negatives=["bm25"], negatives_min_rank=100), "skips all of --negatives_depth 100"),
        (lambda: run_options(data=QUERIES | {"text_column": "body"}), "--text_column does not go with --view"),
        (lambda: run_options(data=QUERIES | {"probe_corpus": "x"}), "--probe_corpus does not go with --view"),
        (lambda: ModelArguments("x", config_overrides="hidden_size=8"), "--config_overrides is for a random start"),
        (lambda: run_options(report_to=["wandb"]), r"--report_to wandb: .*pip install wandb"),  # not installed here
        (lambda: run_options(report_to=["tensorbord"]), "--report_to tensorbord: .*, tensorboard, "),
        (lambda: run_options(hub_token="hf_x"), "--hub_token is refused: a token .* shows in process lists"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "hf_x" not in str(refused.value)


def test_bfloat16_is_the_default_where_the_launcher_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(run_arguments, "default_dtype", lambda device: torch.float32)
    assert not PretrainingArguments(output_dir=str(tmp_path), use_cpu=True).bf16
    assert PretrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=True).bf16
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert PretrainingArguments(output_dir=str(tmp_path), use_cpu=True).bf16


def test_full_determinism_is_said_to_cublas_before_its_first_product(tmp_path, monkeypatch):
    """Trainer sets it too, but only when it is made: targets are embedded before."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for given, expected in ((None, ":4096:8"), (":16:8", ":16:8")):
        if given:
            monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given)
        PretrainingArguments(str(tmp_path), use_cpu=True, full_determinism=True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == expected
