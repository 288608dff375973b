"""Token embeddings of a corpus: those of the closed form, the same on all processes, and known to the run."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy.sparse import csr_matrix
from transformers import AutoModelForMaskedLM, BertConfig

import run_docsplit_pretraining
from docsplit.embedding import closed_form, lexical_start
from docsplit.embedding.lexical_start import epsilons
from docsplit.runtime.vectors import unit
from tests.conftest import make_corpus, spawn, weights_of

SPECIAL = [0, 3]
TABLE, SMALL = "bert.embeddings.word_embeddings.weight", ("position_embeddings", "token_type_embeddings")


def make_documents():
    rng = np.random.default_rng(0)
    topics = rng.permutation(np.arange(1, 85)).reshape(4, 21)
    topic_of = [0] * 4 + [1] * 7 + [2] * 11 + [3] * 18
    rows = [[3, *rng.choice(topics[topic], rng.integers(20, 60))] for topic in topic_of]
    return Dataset.from_dict({"input_ids": [*rows, [86, 86, 4]]})  # a token of one document alone


def start(documents, seed=0, size=90, width=4, eps=1.0):
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    encoder = AutoModelForMaskedLM.from_config(
        BertConfig(vocab_size=size, hidden_size=width, layer_norm_eps=eps, **sizes)
    )
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    facts = lexical_start.start_with_words(encoder, documents, SPECIAL)
    return before, facts, encoder.state_dict(), encoder.bert.eval()


def closed_form_of(documents, size, width):
    """The closed form of counts that a loop makes; its table, scaled."""
    counts = np.zeros((len(documents), size), dtype=np.float32)
    for row, ids in enumerate(documents):
        for token in ids:
            counts[row, token] += token not in SPECIAL
    fitted = closed_form.fit(csr_matrix(counts), width=width)
    return fitted, 0.2 * fitted.table / np.square(fitted.table).mean() ** 0.5, fitted.vectors(csr_matrix(counts))


def test_tokens_have_the_vectors_of_the_closed_form_and_others_stay():
    documents = make_documents()
    before, facts, after, _ = start(documents)
    fitted, expected, _ = closed_form_of(documents["input_ids"], 90, 4)
    width = expected.shape[1]
    np.testing.assert_allclose(after[TABLE][fitted.tokens][:, :width], expected, rtol=1e-4, atol=1e-5)
    assert (facts.documents, facts.tokens) == (40, len(fitted.tokens))
    others = sorted({*range(90)} - {*fitted.tokens.tolist()})
    assert {*SPECIAL, 86} <= {*others}
    assert torch.equal(after[TABLE][others], before[TABLE][others])
    assert torch.equal(after["cls.predictions.decoder.weight"], after[TABLE])
    for name in before.keys() - {TABLE, "cls.predictions.decoder.weight"}:
        torch.testing.assert_close(after[name], before[name] * (0.1 if name.split(".")[-2] in SMALL else 1))
    with pytest.raises(ValueError, match=r"3 documents have two words or more .*: give 20 or more"):
        start(documents.select(range(3)))


def test_dimensions_in_which_halves_do_not_agree_stay_small():
    documents = make_documents()
    before, _, after, _ = start(documents, width=64)
    fitted, _, _ = closed_form_of(documents["input_ids"], 90, 64)
    width = fitted.table.shape[1]
    assert width < 64
    found, random = (table[TABLE][fitted.tokens][:, width:] for table in (after, before))
    torch.testing.assert_close(found, 0.1 * random)


@torch.no_grad()
def test_a_document_begins_at_its_place_and_tokens_keep_their_lengths():
    documents = make_documents()
    ids = [[token for token in ids if token not in SPECIAL] for ids in documents["input_ids"][:-1]]
    fitted, table, expected = closed_form_of(ids, 90, 16)
    assert epsilons(BertConfig()) == {"layer_norm_eps": 1.0}
    spreads = []
    for eps in (1.0, 1e-12):
        _, _, _, encoder = start(documents, width=16, eps=eps)
        means = [encoder(torch.tensor([one])).last_hidden_state[0].mean(dim=0).numpy() for one in ids]
        found = unit(np.stack(means))[:, : expected.shape[1]]
        assert (found * expected).sum(axis=1).min() > 0.9
        alone = encoder(torch.tensor(fitted.tokens)[:, None]).last_hidden_state[:, 0].numpy()
        spreads.append(np.std(np.log(np.linalg.norm(alone, axis=1) / np.linalg.norm(table, axis=1))))
    assert spreads[0] < 0.1  # of numbers that differ by a half, and are alike after layer norms
    assert spreads[1] > 0.3


def start_as_a_process(rank, folder):
    torch.distributed.init_process_group("gloo", f"file://{folder}/init", rank=rank, world_size=2)
    if rank:
        lexical_start.token_vectors = None  # only the first process makes them
    _, _, after, _ = start(make_documents(), seed=rank)
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
    fitted, _, _ = closed_form_of(read, len(wordpiece), 8)
    _, facts, expected, _ = start(Dataset.from_dict({"input_ids": read}), size=len(wordpiece), width=8)
    found = weights_of(tmp_path / "out")["embeddings.word_embeddings.weight"]
    torch.testing.assert_close(
        found[fitted.tokens][:, : fitted.table.shape[1]],
        expected[TABLE][fitted.tokens][:, : fitted.table.shape[1]], rtol=0, atol=1e-5,
    )  # fmt: skip
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_norm_eps"] == 1
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
