"""A training that makes an encoder no better ends with the start's files, byte for byte."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from transformers import AutoModel

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.embedding.lexical_ridge import RidgeSettings, fit, save_with_words
from docsplit.embedding.loading import load_encoder
from docsplit.runtime.sharing import OutputFolder
from docsplit.training import guard
from docsplit.training.run import COMMAND
from run_docsplit_pretraining import main
from tests.conftest import make_corpus


@pytest.fixture
def start(headless, tmp_path):
    """A SentenceTransformer, with a card and with files of a run that are none of the encoder."""
    folder = tmp_path / "start"
    encoder = Transformer(str(headless), max_seq_length=48)
    SentenceTransformer(modules=[encoder, Pooling(48), Normalize()], device="cpu").save_pretrained(str(folder))
    (folder / "README.md").write_text("The card of the start.")
    (folder / "all_results.json").write_text("{}")
    (folder / "checkpoint-7").mkdir()
    return folder


@pytest.fixture
def train(run_here, start, tmp_path, corpus_file):
    """A function that trains from the start, with a probe, and gives the results."""

    def run(*options):
        run_here(
            main, "--model_name_or_path", start, "--output_dir", tmp_path / "out", "--corpus", corpus_file,
            "--probe_corpus", corpus_file, "--max_steps", 2, "--use_cpu", "--per_device_train_batch_size", 4,
            "--save_steps", 1, *options,
        )  # fmt: skip
        return json.loads((tmp_path / "out" / "all_results.json").read_text())

    return run


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_not_better_leaves_the_start(train, start, tmp_path, capsys):
    results = train("--learning_rate", 0)
    assert results["kept_start"] is True
    out = files_of(tmp_path / "out")
    for name, content in files_of(start).items():
        assert name == "all_results.json" or out[name] == content, name
    assert f"Wrote {tmp_path / 'out'}: the start, unchanged" in capsys.readouterr().out
    assert TRAINING_DOCUMENTS_FILE not in out  # the start has no record, and has seen none of these documents
    assert not (tmp_path / "out" / "checkpoint-7").exists()
    assert (tmp_path / "out" / "checkpoint-2" / "model.safetensors").exists()
    vectors = [
        SentenceTransformer(str(folder), device="cpu").encode(["one two"]) for folder in (start, tmp_path / "out")
    ]
    np.testing.assert_array_equal(*vectors)


def test_the_start_inside_an_encoder_with_words_is_left_without_them(encoder, tmp_path):
    plain = load_encoder(str(encoder), device="cpu")
    texts = [row["text"] for row in make_corpus(40)]
    ridge = fit(plain, texts, plain.encode(texts), RidgeSettings())
    save_with_words(plain, ridge.words, 1.0, tmp_path / "words")
    with guard._without_words(tmp_path / "words") as folder:
        guard.put_back(folder, tmp_path / "out")
    with guard._without_words(encoder) as folder:
        assert folder == encoder
    vectors = [SentenceTransformer(str(folder), device="cpu").encode(texts) for folder in (encoder, tmp_path / "out")]
    np.testing.assert_allclose(*vectors, atol=1e-6)


def test_the_trained_weights_are_saved_on_request(train, start, tmp_path, caplog):
    results = train("--learning_rate", 0, "--keep_better_start", False)
    assert results["kept_start"] is False
    assert "saved all the same" in caplog.text
    assert (tmp_path / "out" / "README.md").read_text() != "The card of the start."
    assert (tmp_path / "out" / TRAINING_DOCUMENTS_FILE).exists()


@pytest.mark.parametrize(
    ("chosen_by", "before", "after", "kept"),
    [
        (None, 0.5, 0.51, False),
        (None, 0.5, 0.5, True),
        (None, 0.5, 0.49, True),
        ("eval_loss", 0.5, 0.49, True),
        ("probe_accuracy", 0.5, 0.49, False),  # which is better by this metric
        ("eval_probe_accuracy", 0.5, 0.49, False),
    ],
)
def test_the_metric_that_chooses_among_checkpoints_decides(start, tmp_path, chosen_by, before, after, kept):
    others = {"probe_accuracy": before + after}
    probe = SimpleNamespace(
        history=lambda: [{"probe_5shot_accuracy": before, "probe_accuracy": 0.2}],
        measure=lambda: {"probe_5shot_accuracy": after} | others,
        split=SimpleNamespace(validation_texts=["a", "b"]),
        trainer=SimpleNamespace(is_world_process_zero=lambda: True),
    )
    args = SimpleNamespace(metric_for_best_model=chosen_by, keep_better_start=True, output_dir=str(tmp_path / "out"))
    assert guard.keeps_start(probe, start, args) is kept
    assert (tmp_path / "out" / "model.safetensors").exists() is kept
    assert not guard.keeps_start(None, start, args)
    assert not guard.keeps_start(probe, None, args)


def test_an_earlier_release_leaves_nothing_behind(start, tmp_path):
    out = tmp_path / "out"
    (out / "1_Pooling").mkdir(parents=True)
    for name in ("mlm_head.safetensors", "training_state.safetensors", "longformer_transformer.py", "notes.txt"):
        (out / name).write_text("of an earlier run")
    (start / "notes.txt").write_text("of the start")
    for _ in range(2):  # what is there already is not in the way
        guard.put_back(start, out)
        assert set(files_of(out)) == {*files_of(start), "notes.txt", "notes.txt.kept"} - {"all_results.json"}
        assert (out / "notes.txt.kept").read_text() == "of an earlier run"
        assert (out / "notes.txt").read_text() == "of the start"


def test_a_full_disk_leaves_nothing_that_loads(start, tmp_path, monkeypatch):
    out, copied = tmp_path / "out", []
    guard.put_back(start, out)  # a release is there

    def copy(source, target):
        if len(copied) == 3:
            raise OSError(28, "No space left on device")
        copied.append(target.write_bytes(source.read_bytes()))

    monkeypatch.setattr(guard.shutil, "copyfile", copy)
    with pytest.raises(OSError, match="No space left"):
        guard.put_back(start, out)
    assert len(copied) == 3
    with pytest.raises((OSError, ValueError), match=r"config\.json"):
        AutoModel.from_pretrained(out)


def test_a_start_that_is_not_in_the_cache_is_said(caplog):
    assert guard.folder_of("nobody/nothing") is None
    assert "cannot be kept" in caplog.text


def test_a_run_does_not_write_over_its_start(failure_of, start, corpus_file):
    words = ["--model_name_or_path", start, "--output_dir", start, "--corpus", corpus_file, "--overwrite_output_dir"]
    assert f" is of no run of {COMMAND}" in failure_of(main, *words)
    moved = start.rename(start.with_name("moved"))
    taken = OutputFolder(start, COMMAND, "--output_dir").take()
    taken.begin_results()
    shutil.copytree(moved, start, dirs_exist_ok=True)
    taken.close()
    assert "writes over its start" in failure_of(main, *words)
