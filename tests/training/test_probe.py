"""The probe beside pretraining: selection looks at validation documents, and reports are of test documents."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from transformers import TrainerControl, TrainerState

from docsplit.data.seen_documents import TrainingDocuments, document_id, sketch
from docsplit.data.sets.labelled import probe_counts, split_labelled
from docsplit.release.model_card import probe_table
from docsplit.training import documents
from docsplit.training import probe as probe_module
from docsplit.training.probe import ProbeCallback
from run_docsplit_pretraining import main
from tests.conftest import make_corpus

TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"


@pytest.fixture(scope="module")
def split():
    return split_labelled(Dataset.from_list(make_corpus(150)))


@pytest.fixture
def probe(split, tiny_model, wordpiece, monkeypatch):
    """One whose state is at step 8, and which notes what is embedded."""
    state = TrainerState(global_step=8)
    trainer = SimpleNamespace(
        state=state,
        model=tiny_model,
        processing_class=wordpiece,
        args=SimpleNamespace(disable_tqdm=True),
        is_world_process_zero=lambda: True,
        log=lambda entry: state.log_history.append(entry | {"step": state.global_step}),
    )
    callback = ProbeCallback(trainer, split)
    callback.embedded = []
    embed = callback._embed
    monkeypatch.setattr(callback, "_embed", lambda parts: callback.embedded.append(parts) or embed(parts))
    return callback


def test_an_evaluation_embeds_no_test_document(probe):
    metrics = {}
    probe.on_evaluate(None, probe.trainer.state, None, metrics=metrics)
    assert probe.embedded == [["train", "validation"]]
    assert {"eval_probe_5shot_accuracy", "eval_probe_accuracy"} <= metrics.keys()
    assert not any("test" in name for name in [*metrics, *probe.trainer.state.log_history[-1]])
    whole = probe.measure(with_test=True)
    assert probe.embedded[1:] == [["test"]]  # the others are known for this step
    assert whole["probe_accuracy"] == metrics["eval_probe_accuracy"]
    assert probe.measure() == {name: value for name, value in whole.items() if "test" not in name}
    probe.measure(with_test=True)
    assert len(probe.embedded) == 2


@pytest.mark.parametrize(("best", "measured"), [(False, 1), (True, 2)])
def test_the_best_model_is_measured_anew(probe, best, measured):
    probe.measure(with_test=True)
    args = SimpleNamespace(load_best_model_at_end=best)
    probe.on_train_end(args, probe.trainer.state, TrainerControl())
    probe.measure(with_test=True)
    probe.measure()
    assert len(probe.embedded) == measured


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], "cannot be added when resuming"),
        ([{"probe_accuracy": 0.5, "probe_5shot_accuracy": 0.4, "step": 0}], "resume without --probe_corpus"),
    ],
)
def test_a_run_that_did_not_measure_its_start_on_the_test_part_cannot_go_on(probe, history, message):
    probe.trainer.state.log_history = history
    with pytest.raises(ValueError, match=message):
        probe.on_train_begin(None, probe.trainer.state, None)


def test_a_resumed_run_has_its_start_in_the_history(probe):
    probe.trainer.state.log_history = [{"probe_accuracy": 0.5, "probe_test_accuracy": 0.25, "step": 0}]
    probe.on_train_begin(None, probe.trainer.state, None)
    assert probe.embedded == []


@pytest.fixture
def train(run_here, tmp_path, corpus_file, monkeypatch):
    """A function that trains for six steps with a probe on these documents, and gives state and results."""

    def run(name, corpus_probe):
        monkeypatch.setattr(documents, "load_probe", lambda corpus: corpus_probe)
        run_here(
            main, "--output_dir", tmp_path / name, "--corpus", corpus_file, "--probe_corpus", corpus_file,
            "--config_overrides", TINY, "--vocab_size", 300, "--max_seq_length", 48, "--max_steps", 6, "--use_cpu",
            "--per_device_train_batch_size", 4, "--eval_strategy", "steps", "--eval_steps", 2, "--save_steps", 2,
            "--load_best_model_at_end", "--metric_for_best_model", "probe_5shot_accuracy", "--learning_rate", 1e-2,
        )  # fmt: skip
        state = json.loads((tmp_path / name / "checkpoint-6" / "trainer_state.json").read_text())
        return state, json.loads((tmp_path / name / "all_results.json").read_text())

    return run


def test_the_test_part_changes_nothing_but_the_report(train, split):
    state, results = train("as_it_is", split)
    scrambled = dataclasses.replace(split, test_labels=np.roll(split.test_labels, 1))
    same_state, other_results = train("scrambled", scrambled)
    assert state["best_model_checkpoint"].rpartition("/")[2] == same_state["best_model_checkpoint"].rpartition("/")[2]
    curves = [
        [{name: value for name, value in entry.items() if name.startswith(("probe_", "eval_probe_"))} for entry in log]
        for log in (state["log_history"], same_state["log_history"])
    ]
    for entry, same in zip(*curves, strict=True):
        assert {n: v for n, v in entry.items() if "_test_" not in n} == {
            n: v for n, v in same.items() if "_test_" not in n
        }
    assert sum("probe_5shot_accuracy" in entry for entry in curves[0]) == 4
    assert [sum("probe_test_accuracy" in entry for entry in curve) for curve in curves] == [1, 1]
    for name in ("probe_before_accuracy", "probe_after_accuracy", "tfidf_accuracy"):
        assert results[name] != other_results[name], name
    assert results["tfidf_validation_accuracy"] == other_results["tfidf_validation_accuracy"]
    assert results["probe_seen_in_pretraining_share"] == 0


def test_test_documents_that_the_encoder_was_trained_on_are_said(probe, split, tmp_path):
    probe.trainer.args.output_dir = str(tmp_path)
    probe.trainer.log(probe.measure(with_test=True))
    record, seen = TrainingDocuments(), sorted(set(split.test_texts))[::2]
    record.run.add(np.array([document_id(text) for text in seen]), sketch(seen))
    record.save(tmp_path)
    results = probe.summary()
    assert results["probe_seen_in_pretraining_share"] == len(seen) / len(set(split.test_texts)) > 0.4
    assert f"seen in pretraining: {100 * results['probe_seen_in_pretraining_share']:.1f} %" in probe_table(
        results | probe_counts(split)
    )


def test_the_best_checkpoint_is_that_of_validation_and_the_report_is_of_test(train, split, monkeypatch):
    validation = iter([0.5, 0.9, 0.7, 0.6, 0.9])  # of the start, steps 2, 4 and 6, and the best once more
    test = iter([0.1, 0.25])

    def accuracy(probe, features):
        values = {
            part: next(curve) for part, curve in {"validation": validation, "test": test}.items() if part in features
        }
        return {part: {"accuracy": value, "5shot_accuracy": value} for part, value in values.items()}

    monkeypatch.setattr(probe_module, "probe_accuracy", accuracy)
    monkeypatch.setattr("docsplit.release.model_card.write_run", lambda *arguments: written.append(arguments))
    monkeypatch.setattr("docsplit.training.run.closing_text", lambda options, results: "")
    written = []
    with pytest.raises(FileNotFoundError):
        train("patched", split)
    ((output_dir, results, history, *_),) = written
    state = json.loads((output_dir / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"].endswith("checkpoint-2")
    assert results["probe_before_5shot_accuracy"] == 0.1
    assert results["probe_after_5shot_accuracy"] == 0.25
    assert [entry["probe_5shot_accuracy"] for entry in history if "probe_5shot_accuracy" in entry] == [
        0.5,
        0.9,
        0.7,
        0.6,
    ]
