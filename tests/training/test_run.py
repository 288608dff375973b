"""A run between its loading and its results: what it prepares, and what it leaves."""

import os
from types import SimpleNamespace

import pytest

from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.documents import TrainingData
from docsplit.training.run import Callbacks, Run


def test_the_release_is_on_the_disk_before_any_result_says_so(tiny_model, options, tmp_path, monkeypatch):
    state = SimpleNamespace(log_history=[], global_step=1)
    trainer = SimpleNamespace(
        state=state, is_world_process_zero=lambda: True, save_model=lambda: tiny_model.save_pretrained(tmp_path)
    )
    nothing = SimpleNamespace(totals=lambda history: {}, finish=lambda kept_start: {})
    flushed, fsync = set(), os.fsync

    def note(number):
        flushed.add(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    def describe_run(*about):
        files = [tmp_path / name for name in ("model.safetensors", "config.json", "modules.json", "1_Pooling")]
        assert {str(path) for path in (*files, tmp_path)} <= flushed
        raise RuntimeError("the run is described")

    monkeypatch.setattr("docsplit.release.reporting.describe_run", describe_run)
    monkeypatch.setattr(os, "fsync", note)
    with pytest.raises(RuntimeError, match="is described"):
        Run(options, None, TrainingData([], None, None, {}), tiny_model).finish(
            trainer, Callbacks(nothing, None, nothing, None, None), 1.0
        )


@pytest.fixture
def options(tmp_path):
    args = PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    return RunOptions(ModelArguments(), DataArguments(), QueryArguments(), args)


def test_a_new_run_leaves_nothing_that_an_earlier_one_prepared(tiny_model, options, tmp_path):
    tiny_model.save_pretrained(tmp_path / "checkpoint-4")
    (tmp_path / TARGETS_FILE).touch()
    for checkpoint, is_kept in ((tmp_path / "checkpoint-4", True), (None, False)):
        run = Run(options, checkpoint, TrainingData([], None, None, {}), tiny_model)
        run.prepare_objective()
        assert (tmp_path / TARGETS_FILE).exists() == is_kept
        assert run.results == {}
