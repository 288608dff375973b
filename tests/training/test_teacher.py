"""Neighbour distillation by the script: real processes, real kills, and targets that are made once."""

import json
import signal

import numpy as np
import pytest
import torch

import run_docsplit_pretraining
from docsplit.data.seen_documents import document_id
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.neighbours import smooth, word_vectors
from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE, Targets
from docsplit.release.records import MANIFEST
from tests.conftest import make_corpus, weights_of
from tests.processes import Script, run, wait_until


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """80 documents, of which ten stand twice, with other white space."""
    rows = make_corpus(80)
    rows += [{"text": row["text"].replace(" ", "  ")} for row in rows[:10]]
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def words(scattered, documents, output_dir, *options):
    return [
        "run_docsplit_pretraining.py", "--model_name_or_path", scattered, "--corpus", documents,
        "--output_dir", output_dir, "--objective", "neighbour_distillation", "--num_neighbours", 5, "--mlm_weight", 0,
        "--use_cpu", "--bf16", False, "--per_device_train_batch_size", 8, "--max_steps", 12, "--save_steps", 4,
        "--learning_rate", "3e-3", "--lr_scheduler_type", "constant", "--warmup_steps", 0, "--logging_steps", 1,
        "--eval_strategy", "steps", "--eval_steps", 4, "--max_eval_samples", 8, "--disable_tqdm", True, *options,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(scattered, documents, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("whole")
    run(*words(scattered, documents, output_dir))
    return output_dir


def test_targets_are_the_starts_vectors_averaged_with_those_of_distinct_documents(whole, scattered, documents):
    texts = {
        document_id(text): text for row in documents.read_text().splitlines() for text in [json.loads(row)["text"]]
    }
    ids = np.array(sorted(texts))
    assert len(ids) == 80
    texts = [texts[number] for number in ids]
    embeddings, _ = embed_documents(load_encoder(str(scattered), device="cpu"), texts)
    targets = Targets(whole / TARGETS_FILE)
    assert targets.document_ids.tolist() == ids.tolist()
    np.testing.assert_allclose(targets.vectors.float(), smooth(embeddings, 5, words=word_vectors(texts)), atol=2e-3)
    results = json.loads((whole / "all_results.json").read_text())
    assert results["distillation_targets"] == 80
    assert results["distillation_seconds"] > 0


def test_a_killed_run_goes_on_bit_for_bit_with_the_targets_that_are_there(whole, scattered, documents, tmp_path):
    process = Script(*words(scattered, documents, tmp_path / "killed", "--max_steps", 1000))
    checkpoint = tmp_path / "killed" / "checkpoint-4"
    assert wait_until(lambda: process.returncode is not None or (checkpoint / MANIFEST).exists())
    assert process.returncode is None, process.stderr
    process.kill()
    assert process.wait().returncode == -signal.SIGKILL
    before = (tmp_path / "killed" / TARGETS_FILE).stat()
    run(*words(scattered, documents, tmp_path / "killed", "--resume_from_checkpoint", checkpoint))
    after = (tmp_path / "killed" / TARGETS_FILE).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    expected, resumed = (weights_of(folder) for folder in (whole, tmp_path / "killed"))
    for name, value in expected.items():
        assert torch.equal(resumed[name], value), name


def test_a_stream_a_random_start_and_other_documents_are_refused(whole, scattered, documents, tmp_path, failure_of):
    def fails(*options, output_dir=tmp_path / "refused"):
        arguments = words(scattered, documents, output_dir, *options)[1:]
        return failure_of(run_docsplit_pretraining.main, *arguments)

    assert "--streaming does not go with --objective" in fails("--streaming")
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(map(json.dumps, make_corpus(100))) + "\n")
    message = fails("--corpus", other, "--resume_from_checkpoint", whole / "checkpoint-4", output_dir=whole)
    assert "has the targets of other documents or options" in message
    random_start = ["--tokenizer_name", scattered, "--config_overrides", "hidden_size=32,num_attention_heads=2"]
    arguments = words(scattered, documents, tmp_path / "refused", *random_start)[1:]
    del arguments[:2]
    assert "give --model_name_or_path" in failure_of(run_docsplit_pretraining.main, *arguments)


def test_targets_that_are_gone_or_damaged_are_made_again_with_a_line(
    whole, scattered, documents, tmp_path, run_here, caplog
):
    """When a run resumes: they are what they were."""
    content, targets = (whole / TARGETS_FILE).read_bytes(), Targets(whole / TARGETS_FILE)
    arguments = words(scattered, documents, tmp_path, "--resume_from_checkpoint", whole / "checkpoint-12")[1:]
    for line in ("No such file", "it does not fit its digest"):
        run_here(run_docsplit_pretraining.main, *arguments)
        assert torch.equal(Targets(tmp_path / TARGETS_FILE).vectors, targets.vectors)
        (message,) = [message for message in caplog.messages if "the targets are made again from" in message]
        assert line in message
        caplog.clear()
        (tmp_path / TARGETS_FILE).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
