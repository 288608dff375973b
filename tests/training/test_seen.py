"""The record of a run against what its steps saw, taken down by other means."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from docsplit.data.seen_documents import TrainingDocuments, document_id, sketch
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main
from tests.conftest import make_corpus

TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64,max_position_embeddings=64"
FILE = "training_documents.safetensors"
SKETCHES = {document_id(row["text"]): sketch([row["text"]])[0].tolist() for row in make_corpus(150)}


def words(output_dir, corpus_file, *options, start=None):
    new = ["--config_overrides", TINY, "--vocab_size", "300"] if start is None else ["--model_name_or_path", start]
    return [
        "--corpus", corpus_file, "--output_dir", output_dir, *new, "--pooling", "mean", "--max_seq_length", "48",
        "--use_cpu", "--per_device_train_batch_size", "4", "--save_steps", "3", "--disable_tqdm", "true", *options,
    ]  # fmt: skip


@pytest.fixture
def steps(monkeypatch):
    """The documents of each training batch, as the model gets them."""
    seen, forward = [], DocSplitForContrastivePretraining.forward

    def spy(self, *args, **inputs):
        if self.training:
            seen.append(inputs["document_ids"].tolist())
        return forward(self, *args, **inputs)

    monkeypatch.setattr(DocSplitForContrastivePretraining, "forward", spy)
    return seen


def load(directory):
    return TrainingDocuments.load(directory / FILE)


def assert_is(documents, batches):
    expected = sorted({document for batch in batches for document in batch})
    assert documents.ids.tolist() == expected
    assert documents.sketches.tolist() == [SKETCHES[document] for document in expected]


@pytest.mark.parametrize(
    "options",
    [
        ["--gradient_accumulation_steps", "2", "--eval_strategy", "steps", "--eval_steps", "2"],
        ["--dataloader_num_workers", "2"],
        ["--streaming", "--shuffle_buffer_size", "20", "--gradient_accumulation_steps", "2"],
        ["--objective", "momentum_contrast", "--momentum_queue_size", "16", "--mlm_weight", "0"],
    ],
)
def test_the_record_is_what_the_steps_saw(run_here, steps, tmp_path, corpus_file, options):
    run_here(main, *words(tmp_path, corpus_file, "--max_steps", 5, *options))
    per_step = len(steps) // 5
    assert_is(load(tmp_path / "checkpoint-3").run, steps[: 3 * per_step])
    assert_is(load(tmp_path).run, steps)
    assert_is(load(tmp_path).before, [])
    assert load(tmp_path).is_complete
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert results["documents_used"] == len({document for batch in steps for document in batch})
    assert results["documents_in_corpus"] == (None if "--streaming" in options else 150)


def test_several_epochs_count_a_document_once(run_here, steps, tmp_path, corpus_file):
    run_here(main, *words(tmp_path, corpus_file, "--max_train_samples", 24, "--max_steps", 20))
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert (results["documents_used"], results["documents_in_corpus"]) == (24, 24)
    assert sum(map(len, steps)) == 80


def test_further_pretraining_keeps_what_the_start_had_seen(run_here, steps, tmp_path, corpus_file):
    first, second, third = (tmp_path / name for name in ("one", "two", "three"))
    run_here(main, *words(first, corpus_file, "--max_steps", 12))
    run_here(main, *words(second, corpus_file, "--max_steps", 12, "--seed", 1, start=first))
    run_here(main, *words(third, corpus_file, "--max_steps", 3, "--seed", 2, start=second / "checkpoint-9"))
    assert_is(load(second).before, steps[:12])
    assert_is(load(second).run, steps[12:24])
    assert_is(load(third).before, steps[:21])
    assert_is(load(third).run, steps[24:])
    assert set(steps[0] + steps[1]) & {document for batch in steps[12:] for document in batch}  # some were seen twice
    assert json.loads((second / "all_results.json").read_text())["documents_used"] == len(load(second).run)


@pytest.mark.parametrize("damage", ["missing", "broken"])
def test_a_start_without_a_record_leaves_the_whole_unknown(run_here, steps, tmp_path, corpus_file, damage, caplog):
    caplog.set_level("INFO")
    first, second, third = (tmp_path / name for name in ("one", "two", "three"))
    run_here(main, *words(first, corpus_file, "--max_steps", 1))
    (first / FILE).unlink() if damage == "missing" else (first / FILE).write_bytes(b"no such file")
    run_here(main, *words(second, corpus_file, "--max_steps", 1, start=first))
    run_here(main, *words(third, corpus_file, "--max_steps", 1, start=second))
    assert [load(second).is_complete, load(third).is_complete] == [False, False]
    assert_is(load(third).before, steps[1:2])
    messages = [entry.getMessage() for entry in caplog.records if "Nobody knows" in entry.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith(f"Nobody knows which documents {first} ")


def test_the_best_weights_come_with_their_own_documents(run_here, tmp_path, corpus_file):
    run_here(
        main,
        *words(
            tmp_path, corpus_file, "--max_steps", 6, "--eval_strategy", "steps", "--eval_steps", 3, "--learning_rate",
            "3e-2", "--load_best_model_at_end", "--metric_for_best_model", "eval_loss", "--greater_is_better", "true",
        ),
    )  # fmt: skip
    best = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())["best_model_checkpoint"]
    assert best == str(tmp_path / "checkpoint-3")  # or this shows nothing
    assert_same(tmp_path, tmp_path / "checkpoint-3")
    assert json.loads((tmp_path / "all_results.json").read_text())["documents_used"] == 24


def assert_same(first, second):
    first, second = load_file(first / FILE), load_file(second / FILE)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
