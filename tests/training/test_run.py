"""A run between its loading and its results: what it keeps, what it removes, and what it leaves."""

from types import SimpleNamespace

import pytest

from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE
from docsplit.release.records import seal
from docsplit.training.documents import TrainingData
from docsplit.training.resuming import TrainingRecord
from docsplit.training.run import Callbacks, Run, take_output
from tests.disk import record_disk
from tests.training.examples import run_options

DATA = TrainingData([], None, None, {})


@pytest.fixture
def options(tmp_path):
    return run_options(tmp_path)


def fill(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def seal_with_all(checkpoint):
    fill(checkpoint, "config.json", "model.safetensors", "trainer_state.json")
    seal(checkpoint)


def test_the_release_is_on_the_disk_before_any_result_says_so(tiny_model, options, tmp_path, monkeypatch):
    trainer = SimpleNamespace(
        state=SimpleNamespace(log_history=[], global_step=1),
        is_world_process_zero=lambda: True,
        save_model=lambda: tiny_model.save_pretrained(tmp_path),
    )
    nothing = SimpleNamespace(totals=lambda history: {}, finish=lambda kept_start: {})
    events = record_disk(monkeypatch)

    def describe_run(*about):
        names = ("model.safetensors", "config.json", "modules.json", "1_Pooling")
        written = {tmp_path, *(tmp_path / name for name in names)}
        assert {("flush", path) for path in written} <= {e[:2] for e in events}
        raise RuntimeError("the run is described")

    monkeypatch.setattr("docsplit.release.records.RunRecord.of_this_run", describe_run)
    run = Run(options, None, DATA, tiny_model, take_output(options))
    run.record = TrainingRecord({}, "")
    with pytest.raises(RuntimeError, match="is described"):
        run.finish(trainer, Callbacks(nothing, None, nothing, None), 1.0)


@pytest.mark.parametrize(("name", "has_run"), [("README.md", False), ("adapter/adapter_config.json", True)])
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
    """Names that a user gave stay, in the folder of a checkpoint too; a run that resumes removes nothing prepared."""
    mined = f"negatives/{'0a' * 12}"
    ours = [f"{mined}/negatives.npy", f"{mined}/files.json", "all_results.json"]
    users = ["checkpoint-4/notes.txt", "negatives/mine.npy", "adapter/notes.txt", "notes.txt", "checkpoint-4-copy/a"]
    folder = take_output(options)
    folder.begin_results()
    tiny_model.save_pretrained(tmp_path / "checkpoint-4")
    seal_with_all(tmp_path / "checkpoint-4")
    fill(tmp_path, *ours, *users, TARGETS_FILE, "checkpoint-5/optimizer.pt", "checkpoint-5/.optimizer.pt.1.partial")
    Run(options, tmp_path / "checkpoint-4", DATA, tiny_model, folder).prepare_objective()
    assert (tmp_path / TARGETS_FILE).exists()
    run = Run(options, None, DATA, tiny_model, take_output(options))
    run.prepare_objective()
    assert not (tmp_path / TARGETS_FILE).exists()
    done = SimpleNamespace(training_loss=1.0)
    trainer = SimpleNamespace(is_world_process_zero=lambda: True, train=lambda **how: done)
    assert run.train(trainer, Callbacks(None, SimpleNamespace(stopped=False), None, None)) == 1.0
    run.folder.close()
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*users, ".docsplit-run.json"}


def test_a_best_checkpoint_that_is_damaged_is_not_released(tiny_model, options, tmp_path):
    options.training.load_best_model_at_end = True
    trainer = SimpleNamespace(
        is_world_process_zero=lambda: False,
        train=lambda **how: SimpleNamespace(training_loss=1.0),
        state=SimpleNamespace(best_model_checkpoint=str(tmp_path / "checkpoint-4")),
    )
    run = Run(options, None, DATA, tiny_model, take_output(options))
    callbacks = Callbacks(None, SimpleNamespace(stopped=False), None, None)
    seal_with_all(tmp_path / "checkpoint-4")
    assert run.train(trainer, callbacks) == 1.0
    (tmp_path / "checkpoint-4" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-4, cannot be released: config\.json is missing"):
        run.train(trainer, callbacks)
    callbacks.stop.stopped = True
    trainer.state.global_step = 3
    with pytest.raises(SystemExit, match="130"):
        run.train(trainer, callbacks)
