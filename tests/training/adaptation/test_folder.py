"""The folder that adapting writes: whole or not at all, whatever ends the writing; and the training before."""

import json
import os
import resource
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE, TrainingDocuments, training_documents_of
from docsplit.embedding.lexical_ridge import RidgeSettings, fit, save_with_words
from docsplit.embedding.loading import load_encoder
from docsplit.release.records import ADAPTATION_FILE, Adaptation, Start
from docsplit.runtime.sharing import LOCK, RECORD, OutputFolder
from docsplit.training.adaptation import folder as folder_module
from docsplit.training.adaptation.candidates import Side, Variant
from docsplit.training.adaptation.folder import COMMAND, Folder, train
from docsplit.training.adaptation.options import AdaptOptions
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(40, seed=5)]


@pytest.fixture(scope="module")
def side(reads_little):
    model = load_encoder(str(reads_little), device="cpu")
    vectors = model.encode(TEXTS)
    ridges = {
        kind: fit(model, TEXTS, vectors, RidgeSettings(1.0, 0, sublinear=kind == "words"))
        for kind in ("words", "static")
    }
    return Side("start", str(reads_little), model, vectors, {}, ridges=ridges)


def record(variant):
    facts = variant.ridge.facts if variant.ridge else None
    start = Start(None)
    return Adaptation(variant.kind, variant.label, variant.weight, "e", start, "d", True, facts)


def write(output, variant, is_changed=False):
    with Folder(output) as folder:
        folder.write(variant, record(variant), TEXTS, is_changed)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def files_of_at_most(size):
    """No file grows beyond this number of bytes: as on a full disk, writing ends with an error in the middle."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# --- Whole or not at all ---


def test_what_exists_is_refused_unless_it_is_an_empty_folder(side, tmp_path):
    full, file, empty = (tmp_path / name for name in ("full", "file", "empty"))
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    file.write_text("mine")
    for path in (full, file):
        with pytest.raises(ValueError, match="exists and is not empty: name another OUTPUT, or remove it"):
            Folder(path)
    empty.mkdir()
    write(empty, Variant(side, "static"))
    assert (empty / "model.safetensors").exists()
    assert names(tmp_path) == ["empty", "file", "full"]
    assert (full / "notes.txt").read_text() == file.read_text() == "mine"


def test_folders_above_are_made_and_nothing_else_stays(side, tmp_path):
    write(tmp_path / "a" / "b" / "out", Variant(side, "words", 1.0))
    assert names(tmp_path / "a" / "b") == ["out"]


@pytest.mark.parametrize("kind", ["words", "static", "plain"])
def test_a_full_disk_leaves_nothing(side, tmp_path, kind):
    variant = Variant(side, kind, 1.0 if kind == "words" else None)
    with (
        files_of_at_most(2000),
        pytest.raises(OSError, match=r"out cannot be written, and nothing is left of it: .*File too large"),
    ):
        write(tmp_path / "out", variant)
    assert names(tmp_path) == []
    write(tmp_path / "out", variant)  # there is room now
    assert (tmp_path / "out" / ADAPTATION_FILE).exists()


@pytest.mark.parametrize("error", [KeyError("a bug"), KeyboardInterrupt()])
def test_what_fails_at_the_end_leaves_nothing(side, tmp_path, monkeypatch, error):
    def fail(folder, address):
        assert (folder / "model.safetensors").exists()
        raise error

    monkeypatch.setattr(folder_module, "write_card", fail)
    with pytest.raises(type(error)):
        write(tmp_path / "out", Variant(side, "words", 1.0))
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_beside_is_an_error_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match=r"out\.partial cannot be written: choose another OUTPUT\. The cause: .*file"),
        Folder(tmp_path / "file" / "out"),
    ):
        raise AssertionError("it began")


def test_what_a_killed_run_left_goes_and_another_run_is_not_disturbed(tmp_path, caplog):
    caplog.set_level("INFO")
    other = tmp_path / ".other.partial"
    for folder in (other, tmp_path / ".out.partial"):
        OutputFolder(folder, COMMAND, "OUTPUT").take()
        (folder / "output").mkdir()
        (folder / "output" / "model.safetensors").write_text("half")
    with Folder(tmp_path / "out") as folder:
        assert names(folder.work) == [LOCK, RECORD]
        assert f"{folder.work} was left by a killed run: it is emptied." in caplog.text
        assert f"process {os.getpid()} on" in (folder.work / RECORD).read_text()
    assert names(tmp_path) == [other.name]
    assert (other / "output" / "model.safetensors").exists()


def test_a_users_file_in_the_working_folder_stops_the_run(tmp_path):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt is of no run of adapt\.py"), Folder(tmp_path / "out"):
        raise AssertionError("it began")
    assert names(tmp_path / ".out.partial") == ["notes.txt"]


def test_what_appears_at_the_output_meanwhile_is_kept(side, tmp_path):
    with Folder(tmp_path / "out") as folder:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").write_text("mine")
        folder.write(Variant(side, "static"), record(Variant(side, "static")), TEXTS, False)
    assert names(tmp_path) == ["out", "out.kept"]
    assert names(tmp_path / "out.kept") == ["notes.txt"]


def test_other_processes_write_nothing(tmp_path):
    with Folder(tmp_path / "out", is_first=False):
        assert names(tmp_path) == []


# --- What is in it ---


def test_an_encoder_that_is_kept_has_the_files_of_the_start(side, reads_little, tmp_path):
    write(tmp_path / "out", Variant(side, "plain"))
    start, ours = contents(reads_little), contents(tmp_path / "out")
    changed = {name for name in start if ours.get(name) != start[name]}
    assert not changed - {Path("README.md"), Path("checkpoint_manifest.json")}
    assert {str(name) for name in ours.keys() - start.keys()} == {"README.md", ADAPTATION_FILE}


def test_an_encoder_with_other_options_is_saved_as_it_is_loaded(side, tmp_path):
    side.model.max_seq_length = 6
    write(tmp_path / "out", Variant(side, "plain"), is_changed=True)
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert loaded.max_seq_length == 6
    np.testing.assert_allclose(loaded.encode(TEXTS[:5]), side.model.encode(TEXTS[:5]), atol=1e-6)
    side.model.max_seq_length = 10


def test_words_of_the_start_are_not_kept_with_the_plain_encoder(side, tmp_path):
    save_with_words(side.model, side.ridges["words"].words, 1.0, tmp_path / "worded")
    write(tmp_path / "out", Variant(replace(side, place=str(tmp_path / "worded")), "plain"))
    assert not list((tmp_path / "out").glob("words*"))
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS[:5]), side.vectors[:5], atol=1e-6)


def test_documents_that_words_were_fitted_on_are_recorded(side, tmp_path, caplog):
    caplog.set_level("INFO")
    write(tmp_path / "first", Variant(side, "words", 1.0))
    record = training_documents_of(str(tmp_path / "first"))
    assert len(record.run) == len(TEXTS)
    assert not record.is_complete  # of the start nothing is known
    assert f"Nobody knows which documents {side.place} was trained on" in caplog.text
    again = replace(side, place=str(tmp_path / "first"))
    write(tmp_path / "second", Variant(again, "static"))
    record = TrainingDocuments.load(tmp_path / "second" / TRAINING_DOCUMENTS_FILE)
    assert (len(record.before), len(record.run)) == (len(TEXTS), len(TEXTS))


# --- The training before ---


@pytest.fixture
def started(monkeypatch):
    """What is started, in place of a training that succeeds: the words after the script, and its environment."""
    calls = []

    def run(words, env):
        assert words[1].endswith("run_docsplit_pretraining.py")
        calls.append((words[2:], env))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(folder_module, "subprocess", SimpleNamespace(run=run))
    return calls


def test_a_training_gets_the_options_and_the_distinct_documents(side, started, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_PORT", "1234")
    options = AdaptOptions(train=True, recipe="adapt", max_seq_length=9, pooling="mean", dtype="bfloat16")
    with Folder(tmp_path / "out") as folder:
        place = train(side.place, side.model, [*TEXTS, "", TEXTS[0] + " "], options, folder)
        rows = [json.loads(line) for line in (folder.work / "documents.jsonl").read_text().splitlines()]
    ((words, environment),) = started
    assert [row["text"] for row in rows] == TEXTS
    assert words[0] == "adapt"
    given = dict(zip(words[1::2], words[2::2], strict=True))
    assert given == {
        "--model_name_or_path": side.place, "--corpus": str(folder.work / "documents.jsonl"), "--output_dir": place,
        "--pooling": "mean", "--max_seq_length": "9", "--bf16": "True",
    }  # fmt: skip
    assert not {"RANK", "MASTER_PORT"} & environment.keys()
    assert environment["PATH"] == os.environ["PATH"]


def test_a_training_starts_from_the_plain_encoder_with_its_prompt(side, started, tmp_path):
    options = AdaptOptions(train=True, prompt="text: ")
    side.model.prompts["document"] = "text: "
    with Folder(tmp_path / "out") as folder:
        train(side.place, side.model, TEXTS, options, folder)
        words = started[0][0]
        start = words[words.index("--model_name_or_path") + 1]
        assert start == str(folder.work / "start")
        assert SentenceTransformer(start, device="cpu").prompts["document"] == "text: "
    del side.model.prompts["document"]


def test_a_training_that_fails_says_where_to_look(side, tmp_path, monkeypatch):
    failed = SimpleNamespace(run=lambda words, env: subprocess.CompletedProcess(words, 3))
    monkeypatch.setattr(folder_module, "subprocess", failed)
    with (
        pytest.raises(ValueError, match="ended with exit code 3: its last lines, above, say why"),
        Folder(tmp_path / "out") as folder,
    ):
        train(side.place, side.model, TEXTS, AdaptOptions(train=True), folder)
    assert names(tmp_path) == []
