"""The options of pretraining: which values go together, and what follows from them."""

import os
from pathlib import Path

import pytest
import torch
from accelerate.commands import launch

from docsplit.runtime.options import parse_arguments
from docsplit.training import arguments
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions


def test_kinds_of_negatives_by_halves():
    assert [QueryArguments(negatives=kinds).phases for kinds in (["in_batch"], ["bm25"], ["self"], ["bm25", "self"])] \
        == [[], ["bm25"], ["self", "self"], ["bm25", "self"]]  # fmt: skip
    assert [QueryArguments(negatives=kinds).number_of_negatives for kinds in (["in_batch"], ["random"])] == [0, 1]
    assert QueryArguments(negatives=["bm25"], negatives_per_query=8).number_of_negatives == 8
    assert QueryArguments().given() == []
    assert QueryArguments(fold=0, negatives=["bm25"]).given() == ["--fold", "--negatives"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negatives": ["in_batch", "bm25"]}, "in_batch negatives are always there"),
        ({"negatives": ["bm25", "self", "self"]}, "one kind, or one for each half"),
        ({"negatives_per_query": 2}, "is for --negatives random, bm25, self"),
        ({"negatives": ["bm25"], "negatives_min_rank": 100}, "skips all of --negatives_depth 100"),
    ],
)
def test_negatives_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        QueryArguments(**options)


def run_options(data=(), queries=(), **training):
    args = PretrainingArguments(output_dir="outputs/x", use_cpu=True, **training)
    return RunOptions(ModelArguments(), DataArguments(**dict(data)), QueryArguments(**dict(queries)), args)


def test_a_stream_finds_its_own_place_when_it_resumes():
    stream = run_options({"streaming": True}, max_steps=3)
    assert stream.training.ignore_data_skip
    assert stream.training.accelerator_config.dispatch_batches is False
    documents = run_options()
    assert not documents.training.ignore_data_skip
    assert (documents.output_dir, documents.start, documents.objective) == (Path("outputs/x"), None, {})


@pytest.mark.parametrize(
    ("data", "queries", "message"),
    [
        ({"streaming": True}, {}, "--streaming needs --max_steps"),
        (
            {"view": "query_document", "text_column": "body"},
            {},
            "--text_column does not go with --view",
        ),
        ({"view": "query_document", "probe_corpus": "x"}, {}, "--probe_corpus does not go with --view"),
        ({}, {"fold": 0}, "--fold are for --view query_document"),
    ],
)
def test_options_that_do_not_go_together(data, queries, message):
    with pytest.raises(ValueError, match=message):
        run_options(data, queries)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_r": 2}, "give --model_name_or_path"),
        ({"new_mlm_head": True}, "a random start has a head"),
        ({"model_name_or_path": "x", "config_overrides": "hidden_size=8"}, "--config_overrides is for a random start"),
    ],
)
def test_starts_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        ModelArguments(**options)


def test_words_of_a_passage_matter_to_views_of_passages_alone():
    assert DataArguments(view="passages", passage_words=7).words_of_passages == 7
    assert DataArguments(view="docsplit", passage_words=7).words_of_passages is None


def test_what_the_hardware_has_not_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"--fp16.*needs a GPU"):
        PretrainingArguments(output_dir=str(tmp_path), fp16=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="add --use_cpu"):
        PretrainingArguments(output_dir=str(tmp_path))


def test_bfloat16_is_the_default_where_the_launcher_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(arguments, "default_dtype", lambda device: torch.float32)
    assert [PretrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=given).bf16 for given in (None, True)] \
        == [False, True]  # fmt: skip
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert PretrainingArguments(output_dir=str(tmp_path), use_cpu=True).bf16


def test_eight_gpus_and_a_recipe_of_the_cpu(tmp_path, monkeypatch):
    """`accelerate launch` without numbers starts a process for each GPU; `python`, as `make quickstart` does, one."""
    for name, value in {"is_available": True, "device_count": 8}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
        monkeypatch.setattr(torch.accelerator, name, lambda value=value: value)
    monkeypatch.setattr(launch, "default_config_file", str(tmp_path / "none"))
    words = ["run_docsplit_pretraining.py", "recipes/quickstart.yaml"]
    started = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))[0]
    assert (started.num_processes, started.multi_gpu) == (8, True)

    quickstart = ["quickstart", "--output_dir", str(tmp_path)]
    args = parse_arguments(arguments.ARGUMENTS, "", quickstart, chosen_by=arguments.OBJECTIVES)[3]
    assert (args.device.type, args.n_gpu, args.world_size, args.train_batch_size) == ("cpu", 0, 1, 64)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(ValueError, match="8 processes, one for each GPU, and --use_cpu, of the recipe"):
        parse_arguments(arguments.ARGUMENTS, "", quickstart, chosen_by=arguments.OBJECTIVES)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # asked for with --num_processes 2
    parse_arguments(arguments.ARGUMENTS, "", quickstart, chosen_by=arguments.OBJECTIVES)


@pytest.mark.parametrize(("said", "expected"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_full_determinism_is_said_to_cublas_before_its_first_product(tmp_path, monkeypatch, said, expected):
    """Trainer sets it too, but only when it is made: targets are embedded before."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    PretrainingArguments(str(tmp_path), use_cpu=True)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    if said is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", said)
    PretrainingArguments(str(tmp_path), use_cpu=True, full_determinism=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == expected
