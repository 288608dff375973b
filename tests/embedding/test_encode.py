"""Bulk embedding equals one text at a time, and SentenceTransformer."""

import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import IterableDataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, StaticEmbedding, Transformer
from transformers import BertConfig

from docsplit.embedding import encode as encode_module
from docsplit.embedding.encode import (
    Embedder,
    Layout,
    QueryFacts,
    embed_documents,
    embed_queries,
    identity,
)
from docsplit.embedding.encoder import Encoder, embed
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.lexical_ridge import RidgeSettings, fit
from docsplit.modeling.encoder_with_words import Words
from docsplit.modeling.loading import load_encoder, with_words
from docsplit.modeling.packing import pack_encoders
from docsplit.runtime.files import ROOT
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
from tests.conftest import make_corpus, tiny_config

QUERIES = ["bread and butter", "the ship was at anchor", ""]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_bulk_equals_one_by_one_and_sentence_transformers(wordpiece, texts, pooling, tmp_path, monkeypatch):
    monkeypatch.setattr(encode_module, "CHUNK_TEXTS", 7)
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining.from_config(
        tiny_config(wordpiece), wordpiece, pooling=pooling, max_seq_length=40
    )
    model.train()
    together = vectors(model.body, texts, micro_batch_tokens=100)
    assert model.body[0].model.training  # left as it was
    alone = np.concatenate([vectors(model.body, [text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.unique(together.round(4), axis=0).shape[0] > 25

    model.save_pretrained(tmp_path)
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(texts[:-1])
    np.testing.assert_allclose(together[:-1], theirs, atol=1e-5)


def vectors(model, texts, **options):
    return embed_documents(model, texts, **({"dtype": torch.float32} | options))[0]


@pytest.mark.parametrize("prompt", [None, "represent the document: "])
def test_documents_are_embedded_as_sentence_transformers_does(any_checkpoint, texts, prompt, monkeypatch):
    monkeypatch.setattr(encode_module, "CHUNK_TEXTS", 7)
    model = SentenceTransformer(str(any_checkpoint), device="cpu")
    model.append(Dense(32, 8))
    model.append(Normalize())
    ours = vectors(model, texts, prompt=prompt, micro_batch_tokens=100)
    theirs = model.encode([text.replace("\ud800", " ") for text in texts], prompt=prompt)
    assert ours.shape == (len(texts), 8)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_default_prompt_pooling_without_it_and_truncated_dimensions_are_honoured(checkpoint, texts):
    prompts = {"document": "represent the document: "}
    model = SentenceTransformer(
        str(checkpoint), device="cpu", prompts=prompts, default_prompt_name="document", truncate_dim=5
    )
    model.set_pooling_include_prompt(False)
    texts = texts[:-1]
    ours = vectors(model, texts)
    np.testing.assert_allclose(ours, model.encode(texts), atol=1e-5)
    assert ours.shape == (len(texts), 5)
    model.set_pooling_include_prompt(True)
    assert np.abs(ours - vectors(model, texts)).max() > 1e-3
    assert np.abs(ours - vectors(model, texts, prompt="")).max() > 1e-3


def test_a_model_without_a_transformer_is_left_to_itself(wordpiece, texts):
    model = SentenceTransformer(modules=[StaticEmbedding(wordpiece.backend_tokenizer, embedding_dim=16)], device="cpu")
    texts = [text for text in texts[:-1] if text]
    np.testing.assert_allclose(plain := vectors(model, texts), model.encode(texts), atol=1e-6)
    model.prompts, model.default_prompt_name = {"document": "a storm: "}, "document"
    np.testing.assert_allclose(vectors(model, texts), model.encode(texts), atol=1e-6)
    assert np.abs(vectors(model, texts) - plain).max() > 1e-3
    np.testing.assert_allclose(vectors(model, texts, prompt=""), plain, atol=1e-6)
    with pytest.raises(ValueError, match="chunk_mean needs a transformer"):
        embed_documents(model, texts, long_documents="chunk_mean")


def test_the_mean_over_chunks_equals_chunk_by_chunk(any_checkpoint, texts):
    model = load_encoder(str(any_checkpoint), device="cpu", max_seq_length=12)
    ours = vectors(model, texts[:-1], long_documents="chunk_mean")
    tokenizer = model.tokenizer
    for text, vector in zip(texts, ours):
        expected, tokens = np.zeros(32), 0
        words = re.findall(r" ?\w+|\.", text) or [""]
        while words:  # as many words as fit into 10 tokens and the two special ones
            size = len(words)
            while len(ids := tokenizer("".join(words[:size]))["input_ids"]) > 12:
                size -= 1
            weight = max(len(ids) - 2, 1)
            expected += vectors(model, ["".join(words[:size])])[0] * weight
            tokens += weight
            words = words[size:]
        np.testing.assert_allclose(vector, expected / tokens, atol=1e-5)
    short = texts.index("ship")
    np.testing.assert_allclose(ours[short], vectors(model, ["ship"])[0], atol=1e-6)
    assert np.abs(ours[0] - vectors(model, texts[:1])[0]).max() > 1e-3


def test_the_cache_holds_what_was_computed_and_its_key_sees_every_setting(checkpoint, texts, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    model = load_encoder(str(checkpoint), device="cpu")
    calls = []
    original = Embedder.embed
    monkeypatch.setattr(Embedder, "embed", lambda *args: calls.append(1) or original(*args))

    def cached(texts, **options):
        calls.clear()
        return vectors(model, texts, cache_dir=cache, **options), len(calls)

    def change_a_weight():
        with torch.no_grad():
            next(model[0].parameters())[3, 3] += 1e-3

    first, computed = cached(texts)
    again, computed_again = cached(texts)
    assert (computed, computed_again) == (1, 0)
    np.testing.assert_array_equal(first, again)
    assert cached(texts[:-2])[1] == 1
    for options in ({"prompt": "document: "}, {"dtype": torch.bfloat16}, {"long_documents": "chunk_mean"}):
        assert cached(texts, **options)[1] == 1
    for change in (
        lambda: setattr(model, "max_seq_length", 20),
        lambda: model.set_pooling_include_prompt(False),
        change_a_weight,
        lambda: setattr(model[0].model.config, "hidden_act", "relu"),  # the same weights in another model
    ):
        change()
        assert cached(texts)[1] == 1
    assert cached(texts)[1] == 0


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [({}, ""), ({"query": "ask: ", "document": "read: "}, "ask: "), ({"query": "", "any": "all: "}, "all: ")],
)
def test_the_prompt_for_queries_then_the_default_one(headless, prompts, expected, caplog):
    modules = [Transformer(str(headless)), Pooling(32, "mean")]
    default = "any" if "any" in prompts else None
    model = SentenceTransformer(modules=modules, device="cpu", prompts=prompts, default_prompt_name=default)
    found, facts = embed_queries(model, QUERIES, dtype=torch.float32)
    assert facts == QueryFacts(expected, "cosine")
    assert found == pytest.approx(model.encode([expected + text for text in QUERIES], prompt=""), abs=1e-5)
    for similarity, ranked_by in (("dot", "dot"), ("euclidean", "cosine")):
        model.similarity_fn_name = similarity
        assert embed_queries(model, QUERIES)[1].similarity == ranked_by
    assert "compares by euclidean distance" in caplog.text


def with_words_of(model, weight=1.0):
    corpus = [row["text"] for row in make_corpus(40)]
    return with_words(model, fit(model, corpus, vectors(model, corpus), RidgeSettings(1.0, 0)).words, weight)


def test_encoder_and_encoder_with_words_share_the_cache(checkpoint, texts, tmp_path, monkeypatch):
    cache, calls, original = tmp_path / "cache", [], Embedder.embed
    model = load_encoder(str(checkpoint), device="cpu")
    monkeypatch.setattr(Embedder, "embed", lambda *args: calls.append(1) or original(*args))
    plain = vectors(model, texts, cache_dir=cache)
    for other in (with_words_of(model), with_words_of(model, 0.5)):
        calls.clear()
        both = vectors(other, texts, cache_dir=cache)
        assert calls == []
        assert np.abs(both - plain).max() > 1e-3
        other.truncate_dim = 4
        np.testing.assert_array_equal(vectors(other, texts, cache_dir=cache), both[:, :4])
        np.testing.assert_array_equal(embed_queries(other, texts, dtype=torch.float32)[0], plain[:, :4])


def test_the_identity_sees_words_their_tokens_and_their_weight(checkpoint):
    model = load_encoder(str(checkpoint), device="cpu")
    more = with_words_of(model)
    words = more[0].words
    others = {
        "none": model,
        "weight": with_words(model, words, 0.5),
        "vectors": with_words(model, Words(words.tokenizer, words.pieces, 2 * words.vectors())),
        "tokens": with_words(model, Words(words.tokenizer, words.pieces.flip(0), words.vectors())),
    }
    identities = {name: identity(other) for name, other in others.items()}
    assert len({*identities.values(), identity(more)}) == 5
    assert identity(with_words(load_encoder(str(checkpoint), device="cpu"), words)) == identity(more)


def test_the_identity_sees_the_config_and_outlives_a_save_and_a_release(tmp_path, monkeypatch):
    model = load_encoder(str(ROOT / "tests" / "data" / "encoder"), device="cpu")
    before = identity(model)
    model.save(str(tmp_path / "saved"))  # which names another class
    again = load_encoder(str(tmp_path / "saved"), device="cpu")
    monkeypatch.setattr("transformers.configuration_utils.__version__", "99.0")
    assert identity(again) == before
    again[0].model.config.hidden_act = "relu"
    assert identity(again) != before


def pack_on_the_cpu(monkeypatch):
    """Packs are for GPUs; here they are made to be compared."""
    used = []

    def packing_on(device, encoder, dtype, longest=None):
        used.append(pack_encoders([encoder], longest or 512, torch.float32))
        return used[-1]

    monkeypatch.setattr(encode_module, "packing_on", packing_on)
    return used


@pytest.mark.parametrize(("prompt", "long_documents"), [("", "truncate"), ("passage: ", "chunk_mean")])
def test_packs_give_the_embeddings_of_padded_texts(checkpoint, texts, prompt, long_documents, monkeypatch):
    texts = [*texts, "", "one"]
    options = {"prompt": prompt, "long_documents": long_documents, "micro_batch_tokens": 90}
    padded = vectors(load_encoder(str(checkpoint), device="cpu"), texts, **options)
    used = pack_on_the_cpu(monkeypatch)
    packed = vectors(load_encoder(str(checkpoint), device="cpu"), texts, **options)
    assert used
    np.testing.assert_allclose(packed, padded, atol=1e-5)


def test_packs_of_passages(wordpiece, texts, monkeypatch):
    torch.manual_seed(0)
    encoder = BertConfig(vocab_size=len(wordpiece), hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    model = GraphDocumentModel(GraphDocumentConfig(encoder, graph_hidden_size=16, passage_words=10)).eval()
    rows = [" ".join(texts), *texts[:9], ""]

    def embed(packing):
        layout = Layout(40, 90, packing=packing)
        embedder = encode_module._graph_embedder(model, wordpiece, layout, "", torch.float32)
        return embedder.embed(embedder.tokenize(rows), lambda share: None)

    with torch.no_grad():
        padded = embed(None)
        np.testing.assert_allclose(embed(pack_encoders([model.passage_encoder], 40, torch.float32)), padded, atol=1e-5)


@pytest.mark.gpu
def test_on_a_gpu_texts_are_packed_and_agree(checkpoint, texts, monkeypatch):
    packed = vectors(load_encoder(str(checkpoint), device="cuda"), texts, dtype=torch.bfloat16)
    monkeypatch.setattr(encode_module, "packing_on", lambda *_: None)
    padded = vectors(load_encoder(str(checkpoint), device="cuda"), texts, dtype=torch.bfloat16)
    assert np.linalg.norm(packed - padded) < 0.03 * np.linalg.norm(padded)


@pytest.mark.parametrize(("dtype", "long_documents"), [(torch.float16, "truncate"), (torch.bfloat16, "chunk_mean")])
def test_an_encoder_of_16_bits_embeds_nearly_as_before(checkpoint, texts, dtype, long_documents):
    model = load_encoder(str(checkpoint), device="cpu")
    expected = vectors(model, texts, long_documents=long_documents)
    halved = embed_documents(model.to(dtype), texts, long_documents=long_documents)[0]
    assert halved.dtype == np.float32
    np.testing.assert_allclose(halved, expected, atol=0.05)


def test_a_table_is_refused_by_its_columns(checkpoint):
    model, table = load_encoder(str(checkpoint)), pd.DataFrame({"text": ["a ship", "a", "b"], "label": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"DataFrame with the columns .*such as documents\['text'\]"):
        vectors(model, table)
    np.testing.assert_array_equal(vectors(model, table["text"][1:]), vectors(model, ["a", "b"]))
    with pytest.raises(ValueError, match="Document 0 is a dict: give texts"):
        embed(model, IterableDataset.from_generator(lambda: iter([{"text": "a ship"}])))


def test_threads_embed_and_encode_as_one_after_another(checkpoint, texts):
    """Each use of a tokenizer sets its truncation and padding, which its threads have in common."""
    encoder, long = Encoder(str(checkpoint), EncoderArguments(["unused"], dtype="float32")), " ".join(texts[:30])
    model = encoder.model
    copied = pickle.loads(pickle.dumps(model))
    uses = [
        lambda: encoder.embed_query(texts[0]),
        lambda: encoder.embed([long, texts[1]]),
        lambda: embed_documents(model, [long], long_documents="chunk_mean", dtype=torch.float32)[0],
        lambda: encoder.count_tokens([long])[0],
        lambda: model.encode([long, "a"]),
        lambda: copied.encode([long, "a"]),
        lambda: np.array(copied.tokenizer(long)["input_ids"]),
    ]
    expected = [use() for use in uses]

    def work(first):
        for number in range(first, first + 40):
            np.testing.assert_allclose(uses[number % len(uses)](), expected[number % len(uses)], atol=1e-5)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    finally:
        sys.setswitchinterval(interval)


# --- Chunk by chunk, into memory or a file ---


class OnDisk:
    """Texts that can be had by slices alone; notes how many were asked for at once."""

    def __init__(self, texts):
        self.texts, self.asked = texts, []

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, key):
        assert isinstance(key, slice)
        part = self.texts[key]
        self.asked.append(len(part))
        return part

    def __iter__(self):
        yield from self.texts[:5]  # for a look whether they are paths
        raise AssertionError("all texts at once")


def embed_in_each_way(checkpoint, texts, output_file=None, **options):
    model = load_encoder(str(checkpoint), device="cpu", max_seq_length=12)
    options = {"micro_batch_tokens": 100, "output_file": output_file} | options
    yield "truncate", vectors(model, texts, **options)
    yield "chunk_mean", vectors(model, texts, long_documents="chunk_mean", **options)


def test_a_file_holds_what_memory_would_and_only_chunks_are_read(checkpoint, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(encode_module, "CHUNK_TEXTS", 7)
    expected = dict(embed_in_each_way(checkpoint, texts))
    assert all(array.base is None for array in expected.values())
    (tmp_path / "new").mkdir()
    path, on_disk = tmp_path / "new" / "embeddings.npy", OnDisk(texts)
    for name, array in embed_in_each_way(checkpoint, on_disk, output_file=path):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, expected[name])
        np.testing.assert_array_equal(np.load(path), expected[name])
        assert [file.name for file in path.parent.iterdir()] == ["embeddings.npy"]
        assert sum(on_disk.asked) == len(texts)
        assert max(on_disk.asked) == 7
        on_disk.asked.clear()
    assert next(iter(embed_in_each_way(checkpoint, [], output_file=path)))[1].shape == (0, 32)


def test_a_failure_midway_leaves_no_file_and_no_thread(checkpoint, texts, tmp_path, monkeypatch):
    """Nor an embedding in the cache that is not finite. A thread that is collected later can stop the process."""
    monkeypatch.setattr(encode_module, "CHUNK_TEXTS", 7)
    model = load_encoder(str(checkpoint), device="cpu")
    path, cache, bad = tmp_path / "embeddings.npy", tmp_path / "cache", 16
    texts = [text.replace("ider", "") for text in texts[:-1]]
    texts[bad] = "cider cider"
    row = model.tokenizer("cider", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight[row] = float("nan")
    threads = {*threading.enumerate()}
    with pytest.raises(ValueError, match=rf"1 of 7 .* of text {bad}:") as failure:
        embed_documents(model, texts, dtype=torch.float32, cache_dir=cache, output_file=path)
    assert {*threading.enumerate()} <= threads, failure  # whose traceback keeps what was alive
    assert not path.exists()
    assert len(list(cache.glob("*/*"))) == bad // 7
    texts[bad] = "ship"
    whole = vectors(model, texts, cache_dir=cache, output_file=path)
    np.testing.assert_array_equal(whole, vectors(model, texts))
