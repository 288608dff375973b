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
from docsplit.embedding.lexical_start import start_with_words
from tests.conftest import make_corpus, spawn, weights_of

SIZES = "hidden_size=8,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16"
CONFIG = BertConfig(vocab_size=90, hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
SPECIAL = [0, 3]


def make_documents():
    rng = np.random.default_rng(0)
    topics = rng.permutation(np.arange(1, 85)).reshape(4, 21)
    lengths = rng.integers(20, 60, 40)
    topic_of = [0] * 4 + [1] * 7 + [2] * 11 + [3] * 18  # as many singular values that stand out
    rows = [[3, *rng.choice(topics[topic], length)] for topic, length in zip(topic_of, lengths)]
    return Dataset.from_dict({"input_ids": [*rows, [86, 86, 4]]})  # a token of one document alone


def slow_embeddings(documents, width):
    """Token by token: TF-IDF, all singular vectors, and the sum of a token's documents; by token."""
    counts = [Counter(token for token in ids if token not in SPECIAL) for ids in documents]
    frequencies = Counter(token for of_document in counts for token in of_document)
    tokens = sorted(token for token, number in frequencies.items() if number > 1)
    idf = {token: log((1 + len(counts)) / (1 + frequencies[token])) + 1 for token in tokens}
    rows = [[(1 + log(one[token])) * idf[token] if one[token] else 0.0 for token in tokens] for one in counts]
    unit = np.array([np.array(row) / max(np.linalg.norm(row), 1e-12) for row in rows])
    left, _, _ = np.linalg.svd(unit)
    vectors = np.array([idf[token] * unit[:, place] @ left[:, :width] for place, token in enumerate(tokens)])
    return dict(zip(tokens, 0.2 * vectors / np.square(vectors).mean() ** 0.5))


def make_start(rank=0, folder=None, world_size=1, init_file=None):
    if world_size > 1:
        torch.distributed.init_process_group("gloo", f"file://{init_file}", rank=rank, world_size=world_size)
    if rank:  # which make nothing
        lexical_start.token_vectors = None
    torch.manual_seed(rank)
    encoder = AutoModelForMaskedLM.from_config(CONFIG)
    random = {name: value.clone() for name, value in encoder.state_dict().items()}
    facts = start_with_words(encoder, make_documents(), SPECIAL)
    if folder is not None:
        torch.save(encoder.get_input_embeddings().weight[1:3], folder / f"{rank}.pt")
        torch.distributed.destroy_process_group()
    return encoder, random, facts


def test_a_token_is_the_sum_of_its_documents():
    encoder, random, facts = make_start()
    table, expected = encoder.get_input_embeddings().weight, slow_embeddings(make_documents()["input_ids"], 4)
    before = random["bert.embeddings.word_embeddings.weight"]
    found = np.array([table[token].tolist() for token in expected])
    signs = np.sign((found * np.array([*expected.values()])).sum(axis=0))  # of singular vectors, which are free
    np.testing.assert_allclose(found * signs, [*expected.values()], rtol=1e-3, atol=1e-4)
    others = [token for token in range(90) if token not in expected]
    assert {*SPECIAL, 86, 88} <= {*others}
    assert torch.equal(table[others], before[others])
    assert encoder.cls.predictions.decoder.weight is table
    assert (facts.documents, facts.tokens, facts.width) == (41, len(expected), 4)
    # Positions and types are small beside the tokens; all else is as it was
    small = [f"bert.embeddings.{name}_embeddings.weight" for name in ("position", "token_type")]
    for name, value in encoder.state_dict().items():
        if "word_embeddings" not in name and "decoder.weight" not in name:
            torch.testing.assert_close(value, random[name] * (0.1 if name in small else 1), msg=name)


def test_the_share_explained_is_that_of_the_squares():
    documents = make_documents()
    shares = []
    for width in (2, 4, 40):
        config = BertConfig(**CONFIG.to_diff_dict() | {"hidden_size": width, "num_attention_heads": 1})
        shares.append(start_with_words(AutoModelForMaskedLM.from_config(config), documents, SPECIAL).share_explained)
    assert 0.3 < shares[0] < shares[1] < shares[2] <= 1.0001
    assert shares[2] == pytest.approx(1, abs=1e-3)
    with pytest.raises(ValueError, match="embeddings of 4 dimensions, and the corpus has 3 documents"):
        start_with_words(AutoModelForMaskedLM.from_config(CONFIG), documents.select(range(3)), SPECIAL)


def test_processes_make_it_once(tmp_path):
    spawn(make_start, (tmp_path, 2, tmp_path / "init"), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)


@pytest.fixture
def pretrain(run_here, wordpiece, corpus_file, tmp_path):
    wordpiece.save_pretrained(tmp_path / "tokenizer")

    def run(*words):
        run_here(
            run_docsplit_pretraining.main, "--corpus", corpus_file, "--tokenizer_name", tmp_path / "tokenizer",
            "--lexical_start", "--output_dir", tmp_path / "out", "--overwrite_output_dir", "--use_cpu",
            "--max_steps", 1, "--per_device_train_batch_size", 4, "--learning_rate", 1e-9,
            "--max_eval_samples", 4, *words,
        )  # fmt: skip
        return weights_of(tmp_path / "out")

    return run


def test_a_run_says_what_it_began_with(pretrain, tmp_path, caplog):
    caplog.set_level("INFO")
    weights = pretrain("--config_overrides", SIZES)
    lexical = json.loads((tmp_path / "out" / "run.json").read_text())["lexical"]
    assert lexical["documents"] == 150
    sentence = lexical_start.LexicalFacts(**lexical).sentence()
    assert f"Token embeddings are a {sentence}." in caplog.text
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"started from random weights, and token embeddings from a {sentence}, and learnt" in card
    assert weights["embeddings.word_embeddings.weight"].std() > 0.1  # at random 0.02


def test_a_stream_reads_its_first_documents(pretrain, wordpiece, monkeypatch):
    monkeypatch.setattr(lexical_start, "MOST_DOCUMENTS", 60)
    weights = pretrain("--config_overrides", SIZES, "--streaming", "--eval_strategy", "steps", "--eval_steps", 1)
    texts = [row["text"] for row in make_corpus(150)]
    ids = [wordpiece(text, add_special_tokens=False)["input_ids"] for text in texts[4:60]]  # without those held out
    table = weights["embeddings.word_embeddings.weight"]
    frequencies = Counter(token for one in ids for token in {*one})
    config = BertConfig(**CONFIG.to_diff_dict() | {"vocab_size": len(wordpiece), "hidden_size": 8})
    encoder = AutoModelForMaskedLM.from_config(config)
    start_with_words(encoder, Dataset.from_dict({"input_ids": ids}), wordpiece.all_special_ids)
    tokens = [token for token, number in frequencies.items() if number > 1]
    torch.testing.assert_close(table[tokens], encoder.get_input_embeddings().weight[tokens], rtol=0, atol=1e-5)


def test_it_is_refused_where_it_means_nothing(failure_of, tmp_path):
    words = ["--lexical_start", "--output_dir", tmp_path / "out", "--use_cpu"]
    small = ["--config_overrides", "hidden_size=32,num_hidden_layers=1,num_attention_heads=2"]
    failure = failure_of(run_docsplit_pretraining.main, *words, "--model_type", "ibert", *small)
    assert failure == "--lexical_start fills a table of token embeddings, and a ibert has none: leave it out."
    failure = failure_of(run_docsplit_pretraining.main, *words, "--model_name_or_path", "bert-base-uncased")
    assert failure == "--lexical_start is for a random start: leave out --model_name_or_path, or it."
