"""The probe: selection sees validation documents, reports are of test documents; the better encoder stays."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import TrainerState

from docsplit.data.copies import document_id, sketch
from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE, TrainingDocuments
from docsplit.data.sets.labelled import probe_counts, split_labelled
from docsplit.embedding.lexical_ridge import RidgeSettings, fit, save_with_words
from docsplit.modeling.loading import load_encoder
from docsplit.release.model_card import probe_table
from docsplit.training import documents, probe
from docsplit.training.probe import ProbeCallback
from run_docsplit_pretraining import main
from tests.conftest import make_corpus

TINY = ("--config_overrides", "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64")


@pytest.fixture(scope="module")
def split():
    return split_labelled(Dataset.from_list(make_corpus(150)))


@pytest.fixture
def callback(split, tiny_model, wordpiece, tmp_path, monkeypatch):
    """One whose state is at step 8, and which notes what is embedded."""
    state = TrainerState(global_step=8)
    trainer = SimpleNamespace(
        state=state,
        model=tiny_model,
        processing_class=wordpiece,
        args=SimpleNamespace(disable_tqdm=True, output_dir=str(tmp_path)),
        is_world_process_zero=lambda: True,
        log=lambda entry: state.log_history.append(entry | {"step": state.global_step}),
    )
    callback = ProbeCallback(trainer, split)
    callback.embedded = []
    embed = callback._embed
    monkeypatch.setattr(callback, "_embed", lambda parts: callback.embedded.append(parts) or embed(parts))
    return callback


def test_an_evaluation_embeds_no_test_document(callback):
    metrics = {}
    callback.on_evaluate(None, callback.trainer.state, None, metrics=metrics)
    assert callback.embedded == [["train", "validation"]]
    assert {"eval_probe_5shot_accuracy", "eval_probe_accuracy"} <= metrics.keys()
    assert not any("test" in name for name in [*metrics, *callback.trainer.state.log_history[-1]])
    whole = callback.measure(with_test=True)
    assert callback.embedded[1:] == [["test"]]  # the others are known for this step
    assert whole["probe_accuracy"] == metrics["eval_probe_accuracy"]
    assert callback.measure() == {name: value for name, value in whole.items() if "test" not in name}
    for best, measured in ((False, 2), (True, 3)):  # the best model is measured anew
        callback.on_train_end(SimpleNamespace(load_best_model_at_end=best), callback.trainer.state, None)
        callback.measure(with_test=True)
        assert len(callback.embedded) == measured


def test_a_resumed_run_has_its_start_in_the_history(callback):
    callback.trainer.state.log_history = [{"probe_accuracy": 0.5, "probe_test_accuracy": 0.25, "step": 0}]
    callback.on_train_begin(None, callback.trainer.state, None)
    assert callback.embedded == []


def test_test_documents_that_the_encoder_was_trained_on_are_said(callback, split, tmp_path):
    callback.on_train_begin(None, callback.trainer.state, None)
    record, seen = TrainingDocuments(), sorted(set(split.test_texts))[::2]
    record.run.add(np.array([document_id(text) for text in seen]), sketch(seen))
    record.save(tmp_path)
    results = callback.summary()
    assert "5shot_right" not in results
    share = results["probe_seen_in_pretraining_share"]
    assert share == len(seen) / len(set(split.test_texts)) > 0.4
    assert f"seen in pretraining: {100 * share:.1f} %" in probe_table(results | probe_counts(split))


def test_the_test_part_changes_nothing_but_the_report(run_here, tmp_path, corpus_file, split, monkeypatch):
    states, all_results = [], []
    for name, labels in (("as_it_is", split.test_labels), ("scrambled", np.roll(split.test_labels, 1))):
        own = dataclasses.replace(split, test_labels=labels)
        monkeypatch.setattr(documents, "load_probe", lambda corpus, own=own: own)
        run_here(
            main, "--output_dir", tmp_path / name, "--corpus", corpus_file, "--probe_corpus", corpus_file, *TINY,
            "--vocab_size", 300, "--max_seq_length", 48, "--max_steps", 2, "--use_cpu", "--learning_rate", 1e-2,
            "--per_device_train_batch_size", 4, "--eval_strategy", "steps", "--eval_steps", 1, "--save_steps", 1,
            "--load_best_model_at_end", "--metric_for_best_model", "probe_5shot_accuracy",
        )  # fmt: skip
        states.append(json.loads((tmp_path / name / "checkpoint-2" / "trainer_state.json").read_text()))
        all_results.append(json.loads((tmp_path / name / "all_results.json").read_text()))
    assert len({state["best_model_checkpoint"].rpartition("/")[2] for state in states}) == 1
    curves = [
        [{n: v for n, v in entry.items() if "probe_" in n and "_test_" not in n} for entry in state["log_history"]]
        for state in states
    ]
    assert curves[0] == curves[1]
    assert sum("probe_5shot_accuracy" in entry for entry in curves[0]) == 3
    assert sum("probe_test_accuracy" in entry for entry in states[0]["log_history"]) == 1
    for name in ("probe_before_accuracy", "probe_after_accuracy", "tfidf_accuracy"):
        assert all_results[0][name] != all_results[1][name], name
    assert all_results[0]["tfidf_validation_accuracy"] == all_results[1]["tfidf_validation_accuracy"]
    assert all_results[0]["probe_seen_in_pretraining_share"] == 0


# --- The start is released where nothing beat it ---


@pytest.fixture
def start(headless, tmp_path):
    """A SentenceTransformer, with a card and with files of a run that are none of the encoder."""
    folder = tmp_path / "start"
    encoder = Transformer(str(headless), max_seq_length=48)
    SentenceTransformer(modules=[encoder, Pooling(32), Normalize()], device="cpu").save_pretrained(str(folder))
    (folder / "README.md").write_text("The card of the start.")
    (folder / "all_results.json").write_text("{}")
    (folder / "checkpoint-7").mkdir()
    return folder


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_not_better_leaves_the_start_unless_told(keeps, run_here, start, tmp_path, corpus_file):
    run_here(
        main, "--model_name_or_path", start, "--output_dir", tmp_path / "out", "--corpus", corpus_file,
        "--probe_corpus", corpus_file, "--max_steps", 1, "--use_cpu", "--per_device_train_batch_size", 4,
        "--save_steps", 1, "--learning_rate", 0, "--keep_better_start", keeps,
    )  # fmt: skip
    out = files_of(tmp_path / "out")
    assert json.loads(out["all_results.json"])["kept_start"] is keeps
    assert (out["README.md"] == b"The card of the start.") is keeps
    assert (TRAINING_DOCUMENTS_FILE in out) is not keeps  # the start has seen none of these documents
    if keeps:
        assert all(name == "all_results.json" or out[name] == content for name, content in files_of(start).items())
    assert not (tmp_path / "out" / "checkpoint-7").exists()
    assert "checkpoint-1/model.safetensors" in out


@pytest.mark.parametrize(
    ("chosen_by", "after", "kept"),
    [
        (None, 0.51, False),
        ("eval_loss", 0.5, True),
        ("eval_probe_accuracy", 0.49, False),  # which is better by this metric
    ],
)
def test_the_metric_that_chooses_among_checkpoints_decides(encoder, tmp_path, chosen_by, after, kept):
    """Of an encoder with words the encoder inside is kept."""
    plain, texts = load_encoder(str(encoder), device="cpu"), [row["text"] for row in make_corpus(40)]
    ridge = fit(plain, texts, plain.encode(texts), RidgeSettings())
    save_with_words(plain, ridge.words, 1.0, tmp_path / "words")
    trainer = SimpleNamespace(is_world_process_zero=lambda: True)
    measured = SimpleNamespace(
        history=lambda: [{"probe_5shot_accuracy": 0.5, "probe_accuracy": 0.2}],
        measure=lambda: {"probe_5shot_accuracy": after, "probe_accuracy": 0.9},
        split=SimpleNamespace(validation_texts=["a", "b"]),
        trainer=trainer,
    )
    out = tmp_path / "out"
    args = SimpleNamespace(metric_for_best_model=chosen_by, keep_better_start=True, output_dir=str(out))
    assert probe.put_back_better_start(measured, tmp_path / "words", args) is kept
    assert out.exists() is kept
    if kept:
        vectors = [SentenceTransformer(str(folder), device="cpu").encode(texts) for folder in (encoder, out)]
        np.testing.assert_allclose(*vectors, atol=1e-6)
    assert not probe.put_back_better_start(None, tmp_path / "words", args)
    assert not probe.put_back_better_start(measured, None, args)


def test_an_earlier_release_leaves_nothing_behind_and_a_full_disk_nothing_that_loads(start, tmp_path, monkeypatch):
    out, copied = tmp_path / "out", []
    (out / "1_Pooling").mkdir(parents=True)
    for name in ("mlm_head.safetensors", "longformer_transformer.py", "notes.txt"):
        (out / name).write_text("of an earlier run")
    (start / "notes.txt").write_text("of the start")
    probe.put_back(start, out)
    assert set(files_of(out)) == {*files_of(start), "notes.txt", "notes.txt.kept"} - {"all_results.json"}
    assert [(out / name).read_text() for name in ("notes.txt.kept", "notes.txt")] == [
        "of an earlier run",
        "of the start",
    ]

    def copy(source, target):
        if len(copied) == 3:
            raise OSError(28, "No space left on device")
        copied.append(target.write_bytes(source.read_bytes()))

    monkeypatch.setattr(probe.shutil, "copyfile", copy)
    with pytest.raises(OSError, match="No space left"):
        probe.put_back(start, out)
    assert not (out / "config.json").exists()


def test_a_start_that_is_not_in_the_cache_cannot_be_kept(caplog):
    assert probe.folder_of("nobody/nothing") is None
    assert "cannot be kept" in caplog.text


def test_training_is_compared_document_by_document(callback):
    callback.on_train_begin(None, callback.trainer.state, None)
    start = callback.history()[0]
    assert np.mean(start["5shot_right"]) == pytest.approx(start["probe_5shot_accuracy"], abs=1e-3)
    start["5shot_right"] = [0.0] * len(start["5shot_right"])  # what a resumed run reads
    found = callback.summary()
    assert found["probe_against_start"] == pytest.approx(start["probe_5shot_accuracy"], abs=1e-3)
    ahead = start["probe_5shot_accuracy"] - found["tfidf_validation_5shot_accuracy"]
    assert found["probe_against_tfidf"] == pytest.approx(ahead, abs=1e-3)

    rng = np.random.default_rng(0)
    right = rng.integers(0, 11, 400) / 10
    other = right.copy()
    other[:40] = 1 - right[:40]
    differences = right - other
    resampled = [rng.choice(differences, 400).mean() for _ in range(4000)]
    measured = probe.compare("other", [*right], [*other])
    assert measured["probe_against_other"] == pytest.approx(differences.mean())
    for side, share in (("low", 0.025), ("high", 0.975)):
        assert measured[f"probe_against_other_{side}"] == pytest.approx(np.quantile(resampled, share), abs=0.003)
