"""Token embeddings of a corpus: equal to a slow obvious version, the same on all processes, and known to the run."""

import json
from collections import Counter
from math import log

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForMaskedLM, BertConfig

import run_docsplit_pretraining
from docsplit.embedding import lexical_start
from tests.conftest import make_corpus, spawn, weights_of

SPECIAL = [0, 3]
TABLE, SMALL = "bert.embeddings.word_embeddings.weight", ("position_embeddings", "token_type_embeddings")


def make_documents():
    rng = np.random.default_rng(0)
    topics = rng.permutation(np.arange(1, 85)).reshape(4, 21)
    topic_of = [0] * 4 + [1] * 7 + [2] * 11 + [3] * 18  # as many singular values that stand out
    rows = [[3, *rng.choice(topics[topic], rng.integers(20, 60))] for topic in topic_of]
    return Dataset.from_dict({"input_ids": [*rows, [86, 86, 4]]})  # a token of one document alone


def start(documents, seed=0, size=90, width=4):
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    encoder = AutoModelForMaskedLM.from_config(BertConfig(vocab_size=size, hidden_size=width, **sizes))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    return before, lexical_start.start_with_words(encoder, documents, SPECIAL), encoder.state_dict()


def slow_embeddings(documents, width):
    """Token by token: TF-IDF, all singular vectors, and the sum of a token's documents; and the share explained."""
    counts = [Counter(token for token in ids if token not in SPECIAL) for ids in documents]
    frequencies = Counter(token for of_document in counts for token in of_document)
    tokens = sorted(token for token, number in frequencies.items() if number > 1)
    idf = {token: log((1 + len(counts)) / (1 + frequencies[token])) + 1 for token in tokens}
    rows = [[(1 + log(one[token])) * idf[token] if one[token] else 0.0 for token in tokens] for one in counts]
    unit = np.array([np.array(row) / max(np.linalg.norm(row), 1e-12) for row in rows])
    left, singular, _ = np.linalg.svd(unit)
    vectors = np.array([idf[token] * unit[:, place] @ left[:, :width] for place, token in enumerate(tokens)])
    return tokens, 0.2 * vectors / np.square(vectors).mean() ** 0.5, (singular[:width] ** 2).sum() / len(counts)


def test_a_token_is_the_sum_of_its_documents():
    documents = make_documents()
    before, facts, after = start(documents)
    tokens, expected, share = slow_embeddings(documents["input_ids"], 4)
    signs = np.sign((after[TABLE][tokens].numpy() * expected).sum(axis=0))  # of singular vectors, which are free
    np.testing.assert_allclose(after[TABLE][tokens].numpy() * signs, expected, rtol=1e-3, atol=1e-4)
    assert (facts.documents, facts.tokens, facts.share_explained) == (41, len(tokens), pytest.approx(share, abs=1e-3))
    others = sorted({*range(90)} - {*tokens})
    assert {*SPECIAL, 86} <= {*others}
    assert torch.equal(after[TABLE][others], before[TABLE][others])
    assert torch.equal(after["cls.predictions.decoder.weight"], after[TABLE])
    for name in before.keys() - {TABLE, "cls.predictions.decoder.weight"}:
        torch.testing.assert_close(after[name], before[name] * (0.1 if name.split(".")[-2] in SMALL else 1))
    with pytest.raises(ValueError, match="embeddings of 4 dimensions, and the corpus has 3 documents"):
        start(documents.select(range(3)))


def start_as_a_process(rank, folder):
    torch.distributed.init_process_group("gloo", f"file://{folder}/init", rank=rank, world_size=2)
    if rank:
        lexical_start.token_vectors = None  # only the first process makes them
    _, _, after = start(make_documents(), seed=rank)
    torch.save(after[TABLE][1:3], folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_processes_make_it_once(tmp_path):
    spawn(start_as_a_process, (tmp_path,), nprocs=2)
    assert torch.equal(*(torch.load(tmp_path / f"{rank}.pt") for rank in range(2)))


def test_a_stream_reads_its_first_documents_and_a_run_says_what_it_began_with(
    run_here, wordpiece, corpus_file, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setattr(lexical_start, "MOST_DOCUMENTS", 60)
    words = ["--lexical_start", "--corpus", corpus_file, "--streaming", "--tokenizer_name", tmp_path / "tokenizer"]
    words += ["--config_overrides", "hidden_size=8,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16"]
    words += ["--eval_strategy", "steps", "--eval_steps", 1, "--max_eval_samples", 4, "--learning_rate", 1e-9]
    words += ["--output_dir", tmp_path / "out", "--use_cpu", "--max_steps", 1, "--per_device_train_batch_size", 4]
    run_here(run_docsplit_pretraining.main, *words)
    read = [wordpiece(row["text"], add_special_tokens=False)["input_ids"] for row in make_corpus(60)[4:]]
    tokens, _, _ = slow_embeddings(read, 8)
    _, facts, expected = start(Dataset.from_dict({"input_ids": read}), size=len(wordpiece), width=8)
    found = weights_of(tmp_path / "out")["embeddings.word_embeddings.weight"]
    torch.testing.assert_close(found[tokens], expected[TABLE][tokens], rtol=0, atol=1e-5)
    assert f"Token embeddings come from a {facts.sentence()}." in caplog.text
    assert json.loads((tmp_path / "out" / "run.json").read_text())["lexical"]["documents"] == 56
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"started from random weights, and token embeddings from a {facts.sentence()}, and learnt" in card


def test_it_is_refused_where_it_means_nothing(failure_of, tmp_path):
    words = ["--lexical_start", "--output_dir", tmp_path / "out", "--use_cpu", "--config_overrides", "hidden_size=96"]
    failure = failure_of(run_docsplit_pretraining.main, *words, "--model_type", "ibert")
    assert failure == "--lexical_start fills a table of token embeddings, and ibert has none: leave it out."
    failure = failure_of(run_docsplit_pretraining.main, *words[:-2], "--model_name_or_path", "bert-base-uncased")
    assert failure == "--lexical_start is for a random start: leave out one of the two."
