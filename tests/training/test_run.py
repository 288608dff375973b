"""A run between its loading and its results: what it prepares, and what it leaves."""

import os
from types import SimpleNamespace

import pytest

import run_docsplit_pretraining
from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE
from docsplit.release.records import seal
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.documents import TrainingData
from docsplit.training.run import (
    Callbacks,
    Run,
    note_batch,
    take_output,
)


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
        files = [
            tmp_path / name
            for name in ("model-00001-of-00002.safetensors", "config.json", "modules.json", "1_Pooling")
        ]
        assert {str(path) for path in (*files, tmp_path)} <= flushed
        raise RuntimeError("the run is described")

    monkeypatch.setattr("docsplit.release.records.RunRecord.of_this_run", describe_run)
    monkeypatch.setattr(os, "fsync", note)
    with pytest.raises(RuntimeError, match="is described"):
        Run(options, None, TrainingData([], None, None, {}), tiny_model, take_output(options)).finish(
            trainer, Callbacks(nothing, None, nothing, None, None), 1.0
        )


@pytest.fixture
def options(tmp_path):
    args = PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    return RunOptions(ModelArguments(), DataArguments(), QueryArguments(), args)


@pytest.mark.parametrize(
    ("processes", "documents", "words", "level", "said"),
    [
        (1, 36, ["docsplit_bert"], None, ""),
        (4, 36, ["docsplit_bert"], "WARNING", "4 processes of 36 documents: a contrastive batch of 144. For the "
         "recipe's 36 in all: --per_device_train_batch_size 9."),
        (8, 36, ["docsplit_bert"], "WARNING", "a contrastive batch of 288. For the recipe's 36 in all: 6 processes "
         "with --per_device_train_batch_size 6."),
        (8, 1, ["docsplit_bert"], "WARNING", "1 in all: 1 process with --per_device_train_batch_size 1."),
        (8, 192, ["docsplit_bert", "--per_device_train_batch_size=192"], "INFO", "a contrastive batch of 1,536."),
        (2, 36, ["--corpus", "python_docs"], "INFO", "a contrastive batch of 72."),
    ],
)  # fmt: skip
def test_several_processes_say_what_becomes_of_the_batch(
    processes, documents, words, level, said, options, monkeypatch, caplog
):
    """As `accelerate launch` without numbers starts one process for each of eight GPUs, whatever the recipe says."""
    caplog.set_level("INFO")
    monkeypatch.setattr("sys.argv", ["run_docsplit_pretraining.py", *words])
    options.training.per_device_train_batch_size = documents
    monkeypatch.setattr(PretrainingArguments, "world_size", property(lambda self: processes))
    note_batch(options)
    assert [record.levelname for record in caplog.records] == ([level] if level else [])
    assert caplog.text.rstrip().endswith(said)


def test_the_device_is_logged_before_documents_are_read(run_here, tmp_path, corpus_file, monkeypatch, caplog):
    def stop(*arguments):
        raise ValueError(f"{caplog.text.count('device: cpu (')} lines so far")

    monkeypatch.setattr("docsplit.training.run.load_data", stop)
    caplog.set_level("INFO")
    words = ["--corpus", corpus_file, "--output_dir", tmp_path / "run", "--use_cpu", "--config_overrides"]
    with pytest.raises(ValueError, match=r"^1 lines so far"):
        run_here(run_docsplit_pretraining.main, *words, "hidden_size=32,num_attention_heads=2")


IN_EACH_CHECKPOINT = ("config.json", "model.safetensors", "trainer_state.json")


def fill(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def seal_with_all(checkpoint):
    fill(checkpoint, *IN_EACH_CHECKPOINT)
    seal(checkpoint)


def test_a_new_run_leaves_nothing_that_an_earlier_one_prepared(tiny_model, options, tmp_path):
    take_output(options)
    tiny_model.save_pretrained(tmp_path / "checkpoint-4")
    (tmp_path / TARGETS_FILE).touch()
    seal_with_all(tmp_path / "checkpoint-4")
    for checkpoint, is_kept in ((tmp_path / "checkpoint-4", True), (None, False)):
        run = Run(options, checkpoint, TrainingData([], None, None, {}), tiny_model, take_output(options))
        run.prepare_objective()
        assert (tmp_path / TARGETS_FILE).exists() == is_kept
        assert run.results == {}


@pytest.mark.parametrize("name", ["README.md", "config.json", "run.json", "adapter/adapter_config.json"])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_users_file_is_never_overwritten(options, tmp_path, name, has_run):
    """Beside checkpoints of a run that was killed, too, with --overwrite_output_dir."""
    options.training.overwrite_output_dir = True
    if has_run:
        take_output(options)
        seal_with_all(tmp_path / "checkpoint-4")
        take_output(options).close()
    fill(tmp_path, name)
    with pytest.raises(ValueError, match=r" is of no run .*: choose another --output_dir, or move it away\."):
        take_output(options)
    assert (tmp_path / name).exists()


def test_a_new_run_removes_what_runs_write_and_nothing_else(tiny_model, options, tmp_path):
    """Names that a user gave stay, in the folder of a checkpoint too."""
    mined = f"negatives/{'0a' * 12}"
    ours = [f"{mined}/negatives.npy", f"{mined}/files.json", "training_state.safetensors", "all_results.json"]
    users = ["checkpoint-4/notes.txt", "negatives/mine.npy", "adapter/notes.txt", "notes.txt", "checkpoint-4-copy/a"]
    folder = take_output(options)
    folder.begin_results()
    seal_with_all(tmp_path / "checkpoint-4")
    fill(tmp_path, *ours, *users, "checkpoint-5/optimizer.pt", "checkpoint-5/.optimizer.pt.1.partial")
    run = Run(options, None, TrainingData([], None, None, {}), tiny_model, take_output(options))
    done = SimpleNamespace(training_loss=1.0)
    trainer = SimpleNamespace(is_world_process_zero=lambda: True, train=lambda **how: done)
    run.train(trainer, Callbacks(None, SimpleNamespace(stopped=False), None, None, None))
    run.folder.close()
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*users, ".docsplit-run.json"}
