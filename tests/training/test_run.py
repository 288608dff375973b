"""A run between its loading and its results: what it prepares, and what it leaves."""

import json
import os
from types import SimpleNamespace

import pytest

import run_docsplit_pretraining
from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE
from docsplit.release.manifest import MANIFEST, seal
from docsplit.runtime.files import ALL, NUMBER
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.documents import TrainingData
from docsplit.training.run import (
    Callbacks,
    Run,
    compared_options,
    needs_shared_folder,
    note_batch,
    refuse_folder_apart,
    take_output,
    unrecorded_files,
    where_apart,
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

    monkeypatch.setattr("docsplit.release.reporting.describe_run", describe_run)
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


def fill(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def seal_with_all(checkpoint):
    fill(checkpoint, *IN_EACH_CHECKPOINT)
    seal(checkpoint)


def test_a_new_run_leaves_nothing_that_an_earlier_one_prepared(tiny_model, options, tmp_path):
    tiny_model.save_pretrained(tmp_path / "checkpoint-4")
    (tmp_path / TARGETS_FILE).touch()
    seal_with_all(tmp_path / "checkpoint-4")
    for checkpoint, is_kept in ((tmp_path / "checkpoint-4", True), (None, False)):
        run = Run(options, checkpoint, TrainingData([], None, None, {}), tiny_model, take_output(options))
        run.prepare_objective()
        assert (tmp_path / TARGETS_FILE).exists() == is_kept
        assert run.results == {}


IN_EACH_CHECKPOINT = ("config.json", "model.safetensors", "trainer_state.json")
OF_A_RUN = ("README.md", "model.safetensors", "evaluations/news/results.json", "evaluations/news/few_shot.png")
MINED = f"negatives/{'0a' * 12}.npy"
RUN_JSON = json.dumps({"options": {}, "hardware": "cpu", "processes": 1, "commit": None})


def test_without_a_record_names_of_a_release_are_a_runs_beside_its_run_json(tmp_path):
    fill(tmp_path, *OF_A_RUN, MINED, TARGETS_FILE, "negatives/mine.npy", "notes.txt", "checkpoint-4/config.json")
    for text in ("", "{", "[]", '{"options": 1}'):  # a user's
        (tmp_path / "run.json").write_text(text)
        assert unrecorded_files(tmp_path) == []
    (tmp_path / "run.json").write_text(RUN_JSON)
    ours = {path.relative_to(tmp_path).as_posix() for path in unrecorded_files(tmp_path)}
    assert ours == {*OF_A_RUN, MINED, TARGETS_FILE, "run.json"}


def test_without_a_record_manifests_say_what_is_of_checkpoints(tmp_path):
    fill(tmp_path, "checkpoint-4/optimizer.pt", "checkpoint-4/odd.name", "checkpoint-6/optimizer.pt", *OF_A_RUN, MINED)
    assert unrecorded_files(tmp_path) == []
    seal_with_all(tmp_path / "checkpoint-4")
    fill(tmp_path, "checkpoint-4/tokenizer.json", "checkpoint-6/notes.txt")  # a user's
    ours = {path.relative_to(tmp_path).as_posix() for path in unrecorded_files(tmp_path)}
    of_checkpoint = {f"checkpoint-4/{name}" for name in ("optimizer.pt", "odd.name", MANIFEST, *IN_EACH_CHECKPOINT)}
    assert ours == {*of_checkpoint, "checkpoint-6/optimizer.pt", MINED}
    (tmp_path / "checkpoint-4" / MANIFEST).write_text("damaged")
    ours = {path.relative_to(tmp_path).as_posix() for path in unrecorded_files(tmp_path)}
    assert ours == (of_checkpoint - {"checkpoint-4/odd.name"}) | {
        *("checkpoint-4/tokenizer.json", "checkpoint-6/optimizer.pt", MINED)
    }


@pytest.mark.parametrize("name", [
    "README.md", "config.json", "run.json", "modules.json", "tokenizer.json", "training.png", "negatives/a.npy",
    "adapter/adapter_config.json", "evaluations/x/results.json", TARGETS_FILE, "checkpoint-4/notes.txt",
])  # fmt: skip
@pytest.mark.parametrize("has_run", [False, True])
def test_a_users_file_is_never_overwritten(options, tmp_path, name, has_run):
    """Beside checkpoints of a run that was killed, too, with --overwrite_output_dir."""
    options.training.overwrite_output_dir = True
    if has_run:
        take_output(options)
        fill(tmp_path, "checkpoint-4/config.json")
        seal_with_all(tmp_path / "checkpoint-4")
        take_output(options).close()
    fill(tmp_path, name)
    with pytest.raises(ValueError, match=rf"{name} is of no run .*: choose another --output_dir, or move it away\."):
        take_output(options)
    assert (tmp_path / name).exists()


def test_a_resumed_run_minds_no_notes_in_its_checkpoints(options, tmp_path):
    options.training.resume_from_checkpoint = "newest"
    fill(tmp_path, "checkpoint-4/optimizer.pt")
    seal_with_all(tmp_path / "checkpoint-4")
    fill(tmp_path, "checkpoint-4/notes.txt", "checkpoint-4/README.md")
    take_output(options).close()
    for target in ("checkpoint-4", "nowhere"):
        (tmp_path / "checkpoint-6").symlink_to(tmp_path / target)
        for options.training.resume_from_checkpoint in ("newest", None):
            with pytest.raises(ValueError, match="checkpoint-6 is a symbolic link"):
                take_output(options)
        (tmp_path / "checkpoint-6").unlink()


def test_whatever_a_kill_leaves_of_a_checkpoint_is_the_runs(options, tmp_path):
    """Seen after SIGKILL: safetensors writes under another name first, and what was seen in training comes early."""
    options.training.overwrite_output_dir = True
    take_output(options)
    left = {".tmpCKqmcX", "training_documents.safetensors", ".config.json.12.partial", "model.safetensors"}
    fill(tmp_path / "checkpoint-4", *left)
    folder = take_output(options)  # a process that was killed closes nothing; the record is as it was
    folder.remove((f"checkpoint-{NUMBER}/{ALL}",))
    assert not (tmp_path / "checkpoint-4").exists()


@pytest.mark.parametrize(
    ("change", "different"),
    [
        (lambda options: setattr(options.training, "learning_rate", 1.0), {"--learning_rate"}),
        (lambda options: setattr(options.data, "view", "crop"), {"--view"}),
        (lambda options: options.objective.update(similarity="dot"), {"--similarity"}),
        (lambda options: setattr(options.training, "output_dir", "elsewhere"), set()),
        (lambda options: setattr(options.data, "corpus", "elsewhere"), set()),  # its documents are compared
    ],
)
def test_options_are_compared_but_for_places(options, change, different):
    before = compared_options(options)
    change(options)
    after = compared_options(options)
    assert {name for name in before | after if before.get(name) != after.get(name)} == different


def test_what_one_process_writes_for_all_needs_a_common_folder(options, monkeypatch, caplog):
    folder = take_output(options)
    assert where_apart(folder) == ""
    refuse_folder_apart(folder, ["--negatives bm25"])
    folder.seen_by = [True, False]
    monkeypatch.setattr("docsplit.training.run.on_all", lambda work: [("node1", "a"), ("node2", "b")])
    refuse_folder_apart(folder, [])
    with pytest.raises(ValueError, match=r"a of rank 0 on node1 is not seen by rank 1 on node2, and --negatives bm25"):
        refuse_folder_apart(folder, ["--negatives bm25"])
    assert needs_shared_folder(options) == []
    options.training.load_best_model_at_end, options.training.objective = True, "neighbour_distillation"
    options.queries.negatives = ["random", "self"]
    expected = ["--load_best_model_at_end", "--negatives self", "--objective neighbour_distillation"]
    assert needs_shared_folder(options) == expected
