"""Neighbour distillation by the script: targets that are made once, and again where they are gone."""

import json
import shutil

import numpy as np
import pytest
import torch

import run_docsplit_pretraining
from docsplit.data.copies import document_id
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.neighbours import smooth, word_vectors
from docsplit.modeling.loading import load_encoder
from docsplit.modeling.objectives.neighbour_distillation import TARGETS_FILE, Targets
from tests.conftest import make_corpus, weights_of
from tests.processes import run


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
        "--model_name_or_path", scattered, "--corpus", documents, "--output_dir", output_dir,
        "--objective", "neighbour_distillation", "--num_neighbours", 5, "--mlm_weight", 0,
        "--use_cpu", "--bf16", False, "--per_device_train_batch_size", 8, "--max_steps", 6, "--save_steps", 3,
        "--learning_rate", "3e-3", "--lr_scheduler_type", "constant", "--warmup_steps", 0, "--logging_steps", 1,
        "--eval_strategy", "steps", "--eval_steps", 3, "--max_eval_samples", 8, "--disable_tqdm", True, *options,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(scattered, documents, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("whole")
    run("run_docsplit_pretraining.py", *words(scattered, documents, output_dir))
    return output_dir


def test_targets_are_the_starts_vectors_averaged_with_those_of_distinct_documents(whole, scattered, documents):
    rows = [json.loads(row)["text"] for row in documents.read_text().splitlines()]
    texts = dict(sorted((document_id(text), text) for text in rows))
    assert len(texts) == 80
    embeddings, _ = embed_documents(load_encoder(str(scattered), device="cpu"), list(texts.values()))
    expected = smooth(embeddings, 5, words=word_vectors(list(texts.values())))
    targets = Targets(whole / TARGETS_FILE)
    assert targets.document_ids.tolist() == list(texts)
    np.testing.assert_allclose(targets.vectors.float(), expected, atol=2e-3)
    results = json.loads((whole / "all_results.json").read_text())
    assert results["distillation_targets"] == 80
    assert results["distillation_seconds"] > 0


def test_a_run_goes_on_bit_for_bit_with_the_targets_that_are_there_else_makes_them_again(
    whole, scattered, documents, tmp_path, run_here, caplog
):
    resumed, targets = shutil.copytree(whole, tmp_path / "resumed"), Targets(whole / TARGETS_FILE)
    arguments = words(scattered, documents, resumed, "--resume_from_checkpoint", whole / "checkpoint-3")
    before = (resumed / TARGETS_FILE).stat()
    run_here(run_docsplit_pretraining.main, *arguments)
    after = (resumed / TARGETS_FILE).stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert "the targets are made again" not in caplog.text
    ours, theirs = weights_of(whole), weights_of(resumed)
    assert all(torch.equal(theirs[name], value) for name, value in ours.items())

    content = (resumed / TARGETS_FILE).read_bytes()
    (resumed / TARGETS_FILE).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    run_here(run_docsplit_pretraining.main, *arguments)
    assert torch.equal(Targets(resumed / TARGETS_FILE).vectors, targets.vectors)
    assert "it does not fit its digest: the targets are made again from" in caplog.text


def test_a_stream_a_random_start_and_other_documents_are_refused(whole, scattered, documents, tmp_path, failure_of):
    def fails(*options, output_dir=tmp_path / "refused", skip=0):
        return failure_of(run_docsplit_pretraining.main, *words(scattered, documents, output_dir, *options)[skip:])

    assert "--streaming does not go with --objective" in fails("--streaming")
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(map(json.dumps, make_corpus(100))) + "\n")
    resume = ("--resume_from_checkpoint", whole / "checkpoint-3")
    assert "the training documents (--corpus) 82 (" in fails("--corpus", other, *resume, output_dir=whole)
    copy = shutil.copytree(whole, tmp_path / "copy")  # with the targets of another run
    Targets.write(copy / TARGETS_FILE, torch.arange(2), torch.ones(2, 3), {"options": "{}", "documents": "0"})
    assert "has the targets of other documents or options" in fails(*resume, output_dir=copy)
    random_start = ["--tokenizer_name", scattered, "--config_overrides", "hidden_size=32,num_attention_heads=2"]
    assert "give --model_name_or_path" in fails(*random_start, skip=2)


def test_from_nothing_a_target_is_the_mean_of_the_tokens_of_a_whole_document(
    documents, wordpiece, tmp_path, run_here, failure_of
):
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    sizes = "hidden_size=8,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16"
    arguments = words("START", documents, tmp_path / "out", "--tokenizer_name", tmp_path / "tokenizer")[2:]
    arguments += ["--config_overrides", sizes, "--neighbour_words", 0, "--pooling", "mean", "--view", "simcse"]
    failure = failure_of(run_docsplit_pretraining.main, *arguments)
    assert failure.endswith("learns from the start: give --model_name_or_path, or --lexical_start.")
    arguments[arguments.index("--learning_rate") + 1] = 1e-9  # what is saved is the start
    run_here(run_docsplit_pretraining.main, *arguments, "--lexical_start", "--max_seq_length", 6)

    texts = {document_id(row["text"]): row["text"] for row in map(json.loads, documents.read_text().splitlines())}
    table = weights_of(tmp_path / "out")["embeddings.word_embeddings.weight"].numpy()
    means = [
        np.mean([table[token] for token in wordpiece(texts[number], add_special_tokens=False)["input_ids"]], axis=0)
        for number in sorted(texts)
    ]
    targets = Targets(tmp_path / "out" / TARGETS_FILE)
    assert targets.document_ids.tolist() == sorted(texts)
    np.testing.assert_allclose(targets.vectors.float(), smooth(np.stack(means), 5), atol=2e-3)
