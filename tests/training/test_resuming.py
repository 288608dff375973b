"""A run that is resumed: the uninterrupted one, or refused; a run that has ended stays as it is."""

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from safetensors.torch import load_file

from docsplit.training.options import TrainingOptions
from docsplit.training.run_arguments import PretrainingArguments
from run_docsplit_pretraining import main
from tests.conftest import make_corpus

TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64,max_position_embeddings=64"
RESUME = ("--resume_from_checkpoint", "--overwrite_output_dir")


def words(output_dir, corpus, *options):
    return [
        "--corpus", corpus, "--output_dir", output_dir, "--config_overrides", TINY, "--vocab_size", 300,
        "--pooling", "mean", "--max_seq_length", 48, "--use_cpu", "--per_device_train_batch_size", 4,
        "--disable_tqdm", "true", "--learning_rate", 3e-3, "--logging_steps", 1, "--bf16", "false", *options,
    ]  # fmt: skip


def files_of(folder):
    """The release of a run, byte for byte: all but its record of runs, and its checkpoints."""
    paths = [path for path in Path(folder).rglob("*") if path.is_file() and "checkpoint-" not in str(path)]
    return {path.relative_to(folder): path.read_bytes() for path in paths if not path.name.startswith(".docsplit")}


def state_of(checkpoint):
    return json.loads((checkpoint / "trainer_state.json").read_text())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_corpus(60)))
    return path


@pytest.fixture
def trained(tmp_path_factory, corpus, run_here):
    """A run of 4 steps, with a checkpoint after 2; trained once."""
    folder = tmp_path_factory.getbasetemp() / "trained"
    if not folder.exists():
        run_here(main, *words(folder, corpus, "--max_steps", 4, "--save_steps", 2))
    return folder


@pytest.fixture
def stopped(trained, tmp_path):
    """The same, as a kill before its end would leave it."""
    folder = shutil.copytree(trained, tmp_path / "stopped")
    shutil.rmtree(folder / "checkpoint-4")
    return folder


# --- The uninterrupted run ---


def test_a_run_that_stops_early_is_killed_and_ends_as_it_would_have(corpus, tmp_path, run_here, caplog):
    """Killed after each checkpoint, in a folder that was moved; the loss falls, and the highest is wanted."""
    caplog.set_level("INFO")
    options = (
        "--max_steps", 30, "--eval_strategy", "steps", "--eval_steps", 2, "--save_steps", 2, "--max_eval_samples", 6,
        "--load_best_model_at_end", "--early_stopping_patience", 2, "--metric_for_best_model", "eval_loss",
        "--greater_is_better", "true",
    )  # fmt: skip
    run_here(main, *words(tmp_path / "whole", corpus, *options))
    checkpoints = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    last = state_of(checkpoints[-1])
    assert (last["global_step"], last["best_global_step"]) == (6, 2)
    release = load_file(tmp_path / "whole" / "model.safetensors")
    shutil.move(tmp_path / "whole", tmp_path / "moved")
    for lost in (1, 2):
        folder = shutil.copytree(tmp_path / "moved", tmp_path / f"without-{lost}")
        for checkpoint in checkpoints[-lost:]:
            shutil.rmtree(folder / checkpoint.name)
        run_here(main, *words(folder, corpus, *options, *RESUME))
        last_name = checkpoints[-1].name
        state = state_of(folder / last_name)
        assert sorted(path.name for path in folder.glob("checkpoint-*")) == sorted(path.name for path in checkpoints)
        for name in ("global_step", "best_global_step", "best_metric", "stateful_callbacks"):
            assert state[name] == last[name], name
        assert Path(state["best_model_checkpoint"]) == folder / f"checkpoint-{last['best_global_step']}"
        weights = load_file(folder / "model.safetensors")
        assert all((weights[name] == value).all() for name, value in release.items())
    # Killed after its last step, before the release: no step more
    for name in ("all_results.json", "model.safetensors"):
        (folder / name).unlink()
    run_here(main, *words(folder, corpus, *options, *RESUME))
    assert "steps have been trained: only what comes after" in caplog.text
    weights = load_file(folder / "model.safetensors")
    assert all((weights[name] == value).all() for name, value in release.items())
    assert state_of(folder / last_name) == state
    # The end stays the end, and there is none later
    before = files_of(folder)
    run_here(main, *words(folder, corpus, *options, *RESUME))
    with pytest.raises(ValueError, match=r"is the end of a run of 30 steps, which stopped early, .* ask for 40"):
        run_here(main, *words(folder, corpus, *options, "--max_steps", 40, *RESUME))
    assert files_of(folder) == before


def test_a_run_that_has_ended_stays_as_it_is(corpus, tmp_path, run_here, caplog):
    """With checkpoints and without; from nothing, the same command trains."""
    caplog.set_level("INFO")
    for saving in (("--save_steps", 1), ("--save_strategy", "no")):
        command = words(tmp_path / saving[0], corpus, "--max_steps", 2, *saving, *RESUME)
        folder = command[3]
        caplog.clear()
        run_here(main, *command)
        assert "No complete checkpoint" in caplog.text
        before = files_of(folder)
        assert Path("all_results.json") in before
        caplog.clear()
        run_here(main, *command)
        assert "has ended: it stays as it is" in caplog.text
        assert files_of(folder) == before
        for checkpoint in folder.glob("checkpoint-*"):  # they take much room
            shutil.rmtree(checkpoint)
        run_here(main, *command)
        assert files_of(folder) == before
        (folder / "model.safetensors").unlink()  # a part of it is lost
        run_here(main, *command)
        assert files_of(folder)[Path("model.safetensors")] == before[Path("model.safetensors")]


def test_a_stream_whose_files_changed_since_its_end_is_refused(corpus, tmp_path, run_here, failure_of, caplog):
    caplog.set_level("INFO")
    documents = shutil.copy(corpus, tmp_path / "documents.jsonl")
    command = words(tmp_path / "out", documents, "--streaming", "--max_steps", 1, "--save_steps", 1, *RESUME)
    for _ in range(2):
        run_here(main, *command)
    assert "has ended: it stays as it is" in caplog.text
    before = files_of(tmp_path / "out")
    documents.write_text(documents.read_text() + '{"text": "A new ship. It sails."}\n')
    assert "when the stream was dealt out in another way" in failure_of(main, *command)
    assert files_of(tmp_path / "out") == before


# --- Other options and data ---


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("learning_rate", 1e-4, "--learning_rate 0.003 there, 0.0001 here"),
        ("weight_decay", 0.5, "--weight_decay 0.01 there, 0.5 here"),
        ("lr_scheduler_type", "constant", "--lr_scheduler_type linear there, constant here"),
        ("per_device_train_batch_size", 8, "--per_device_train_batch_size x processes 4 there, 8 here"),
        ("gradient_accumulation_steps", 2, "--gradient_accumulation_steps 1 there, 2 here"),
        ("seed", 7, "--seed 42 there, 7 here"),
        ("max_train_samples", 50, "--max_train_samples None there, 50 here"),
        ("probe_corpus", "CORPUS", r"the probe's documents \(--probe_corpus\) none there, .* here"),
        ("view_max_length", 16, "--view_max_length None there, 16 here"),
        ("view", "crop", "--view docsplit there, crop here"),
        ("mlm_weight", 0.5, "--mlm_weight 0.1 there, 0.5 here"),
        ("pooling", "cls", "--pooling mean there, cls here"),
        ("contrastive_temperature", 0.1, "--contrastive_temperature 0.05 there, 0.1 here"),
        ("eval_strategy", "epoch", "--eval_strategy no there, epoch here"),
        ("config_overrides", TINY + ",hidden_dropout_prob=0.0", "hidden_dropout_prob of the model 0.1 there, 0.0"),
        ("accelerator_config", '{"split_batches": true}', "split_batches=False.* there, .*split_batches=True.* here"),
        ("max_steps", 1, "has been trained for 2 steps, and --max_steps and --num_train_epochs ask for 1"),
    ],
)  # fmt: skip
def test_what_decides_the_weights_is_refused(stopped, corpus, failure_of, option, value, message):
    before = files_of(stopped)
    value = corpus if value == "CORPUS" else value
    given = words(stopped, corpus, "--max_steps", 4, "--save_steps", 2, *RESUME, f"--{option}", value)
    assert re.search(message, failure_of(main, *given))
    assert files_of(stopped) == before


def test_documents_are_compared_and_not_their_place(trained, stopped, corpus, tmp_path, run_here, failure_of):
    given = words(stopped, tmp_path / "other.jsonl", "--max_steps", 4, "--save_steps", 2, *RESUME)
    lines = corpus.read_text().splitlines(keepends=True)
    for changed in (lines[:-1], [*lines[1:], lines[0]], [lines[0].replace(" the ", " a "), *lines[1:]]):
        assert changed != lines
        (tmp_path / "other.jsonl").write_text("".join(changed))
        assert re.search(r"the training documents \(--corpus\) 60 \(.*\) there, ", failure_of(main, *given))
    (tmp_path / "other.jsonl").write_text("".join(lines))
    run_here(main, *given)
    weights, wanted = (load_file(folder / "model.safetensors") for folder in (stopped, trained))
    assert all((weights[name] == value).all() for name, value in wanted.items())


def test_a_longer_run_is_said_and_recorded(stopped, corpus, run_here, caplog):
    """Its rates are those of the longer schedule, from the next step on; other logs and checkpoints are made."""
    caplog.set_level("INFO")
    more = (
        "--max_steps",
        8,
        "--save_steps",
        3,
        "--logging_steps",
        2,
        "--micro_batch_tokens",
        200,
        "--warmup_steps",
        0,
    )
    given = words(stopped, corpus, "--max_steps", 4, "--save_steps", 2, "--warmup_steps", 0)
    run_here(main, *given, "--overwrite_output_dir")
    run_here(main, *given, *more, *RESUME)
    change = "After step 4: the linear schedule of the learning rate is one of 8 steps; before 4."
    assert change in caplog.text
    assert json.loads((stopped / "run.json").read_text())["changes"] == [change]
    assert change in (stopped / "README.md").read_text()
    history = state_of(stopped / "checkpoint-8")["log_history"]
    rates = {entry["step"]: entry["learning_rate"] for entry in history if "learning_rate" in entry}
    assert rates == pytest.approx({1: 0.003, 2: 0.00225, 3: 0.0015, 4: 0.00075, 6: 0.003 * 3 / 8, 8: 0.003 / 8})
    assert {path.name for path in stopped.glob("checkpoint-*")} == {f"checkpoint-{step}" for step in (2, 4, 6, 8)}


def test_each_option_that_may_change_exists():
    names = {field.name for field in fields(PretrainingArguments)}
    for kind in TrainingOptions.inherited_decides.values():
        assert set(kind) <= names
