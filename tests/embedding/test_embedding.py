"""Bulk embedding equals one text at a time, and SentenceTransformer."""

import logging
import re
import tracemalloc

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset, load_from_disk
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, StaticEmbedding
from tqdm.auto import tqdm
from transformers import BertModel

from docsplit.embedding import chunks
from docsplit.embedding import encode as encode_module
from docsplit.embedding.arguments import EncoderArguments, members_of
from docsplit.embedding.encode import _fingerprint, embed_documents, encode
from docsplit.embedding.encoder import load_groups
from docsplit.embedding.loading import describe_encoder, load_encoder, replace_pooling
from docsplit.modeling.encoding import micro_batches
from docsplit.runtime import launching
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config


@pytest.fixture
def texts():
    return [row["text"] for row in make_corpus(30)] + ["", "ship", "\ud800 storm"]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_bulk_equals_one_by_one_and_sentence_transformers(tokenizer, texts, pooling, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 7)
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(tiny_config(tokenizer), pooling=pooling, max_seq_length=40)
    model.train()
    encoder = model.encoder.base_model
    together = encode(encoder, tokenizer, texts, micro_batch_tokens=100)
    assert encoder.training  # left as it was
    alone = np.concatenate([encode(encoder, tokenizer, [text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.unique(together.round(4), axis=0).shape[0] > 25

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(texts[:-1])
    np.testing.assert_allclose(together[:-1], theirs, atol=1e-5)


def test_an_embedding_that_is_not_finite_raises(tiny_model, wordpiece):
    with torch.no_grad():
        tiny_model.encoder.base_model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="2 of 2 embeddings are not finite"):
        encode(tiny_model.encoder.base_model, wordpiece, ["a ship", "a storm"])


def test_an_encoder_without_settings_raises(tiny_model, wordpiece):
    del tiny_model.config.docsplit
    with pytest.raises(ValueError, match="pooling"):
        encode(tiny_model.encoder.base_model, wordpiece, ["a ship"])


@pytest.fixture
def checkpoint(tokenizer, tmp_path):
    """A checkpoint of this project, which is a SentenceTransformer directory."""
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(tiny_config(tokenizer), pooling="mean", max_seq_length=40)
    model.save_pretrained(tmp_path / "checkpoint")
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_pooling_that_an_encoder_brings_is_replaced(checkpoint, texts):
    brought, replaced = load_encoder(str(checkpoint)), load_encoder(str(checkpoint))
    assert replace_pooling(replaced, "max") == "mean"
    assert describe_encoder(replaced)["pooling"] == "max"
    with torch.no_grad():
        states = replaced[0](replaced.preprocess(["a ship", "the captain of a ship"]))
    expected = [
        tokens[mask == 1].max(dim=0)[0] for tokens, mask in zip(states["token_embeddings"], states["attention_mask"])
    ]
    found, _ = embed_documents(replaced, ["a ship", "the captain of a ship"], dtype=torch.float32)
    np.testing.assert_allclose(found, torch.stack(expected), atol=1e-5)
    assert np.abs(found - embed_documents(brought, ["a ship", "the captain of a ship"])[0]).max() > 1e-2
    assert _fingerprint(brought, "") != _fingerprint(replaced, "")  # else the cache would give the one for the other


def test_a_pooling_that_cannot_be_replaced_is_refused_by_name(wordpiece, checkpoint):
    static = SentenceTransformer(modules=[StaticEmbedding(wordpiece.backend_tokenizer, embedding_dim=8)], device="cpu")
    with pytest.raises(
        ValueError, match=r"--override_pooling max needs an encoder with a pooling module.*StaticEmbedding"
    ):
        replace_pooling(static, "max")
    model = load_encoder(str(checkpoint))
    model[1] = Pooling(32, pooling_mode=("mean", "max"))
    model.append(Dense(64, 16))
    with pytest.raises(ValueError, match=r"max gives 32 numbers; what follows mean\+max takes more"):
        replace_pooling(model, "max")


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("outputs/a", ["outputs/a"]),
        ("NAME=a,b,c", ["a", "b", "c"]),
        ("NAME=outputs/a", ["outputs/a"]),
        ("x=1", ["x=1"]),  # a folder of that name is there
        ("a,b", ["a", "b"]),
        ("outputs/lr=1,outputs/lr=2", ["outputs/lr=1", "outputs/lr=2"]),
        ("lr=1,seed=2", ["lr=1,seed=2"]),  # a folder of that name is there
        ("x=1,x=2", ["x=1", "x=2"]),  # two of these names are there
        ("name/with=sign", ["name/with=sign"]),
    ],
)
def test_the_members_of_a_group(name, members, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("lr=1,seed=2", "x=1", "x=2"):
        (tmp_path / folder).mkdir()
    assert members_of(name) == members


@pytest.mark.parametrize("name", ["a,", "A=a,,b", "A=a,a", "a,tfidf", "A=", "A=tfidf"])
def test_a_group_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match="encoders from several pretraining seeds"):
        members_of(name)


@pytest.mark.parametrize("name", ["A, lambda 2=outputs/a", "A,B=outputs/a,outputs/b", "A, B=hub-name"])
def test_a_name_with_a_comma_is_refused(name):
    with pytest.raises(ValueError, match="NAME cannot have one"):
        members_of(name)


@pytest.mark.parametrize(("lengths", "given", "said"), [((12, 16), None, True), ((12, 12), None, False),
                                                        ((12, 16), 10, False)])  # fmt: skip
def test_members_of_unlike_lengths_are_said(checkpoint, tmp_path, caplog, lengths, given, said):
    folders = [str(tmp_path / f"seed-{seed}") for seed in range(2)]
    for folder, length in zip(folders, lengths):
        load_encoder(str(checkpoint), max_seq_length=length).save(folder)
    (group,) = load_groups([f"A={','.join(folders)}"], EncoderArguments(folders, max_seq_length=given))
    group.check(["A text."])
    assert ("read 12 and 16 tokens: --max_seq_length" in caplog.text) is said


def test_a_folder_that_is_written_in_two_ways_is_no_two_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    for name in ("A=a,a/", "a,./a", f"a,{tmp_path}/a", "A=a,link"):
        with pytest.raises(ValueError, match="each once"):
            members_of(name)


def vectors(model, texts, **options):
    return embed_documents(model, texts, **({"dtype": torch.float32} | options))[0]


@pytest.mark.parametrize("prompt", [None, "represent the document: "])
def test_documents_are_embedded_as_sentence_transformers_does(checkpoint, texts, prompt, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 7)
    model = SentenceTransformer(str(checkpoint), device="cpu")
    model.append(Dense(32, 8))
    model.append(Normalize())
    ours = vectors(model, texts, prompt=prompt, micro_batch_tokens=100)
    theirs = model.encode([text.replace("\ud800", "?") for text in texts], prompt=prompt)
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
    np.testing.assert_allclose(vectors(model, texts), model.encode(texts), atol=1e-6)
    with pytest.raises(ValueError, match="chunk_mean needs a transformer"):
        embed_documents(model, texts, long_documents="chunk_mean")


@pytest.mark.parametrize("pooling", [None, "mean", "max"])
def test_a_plain_encoder_is_pooled_as_asked(headless, texts, pooling):
    model = load_encoder(str(headless), pooling=pooling, device="cpu")
    facts = describe_encoder(model)
    assert (facts["pooling"], facts["max_seq_length"]) == (pooling or "cls", 128)
    encoder = BertModel.from_pretrained(headless, add_pooling_layer=False)
    assert facts["num_parameters"] == encoder.num_parameters()
    hidden = encoder.eval()(**model.tokenizer(texts[0], return_tensors="pt")).last_hidden_state[0]
    by_hand = {"cls": hidden[0], "mean": hidden.mean(dim=0), "max": hidden.amax(dim=0)}[facts["pooling"]]
    np.testing.assert_allclose(vectors(model, texts[:1])[0], by_hand.detach(), atol=1e-5)


def test_a_checkpoint_keeps_its_own_pooling_and_length(checkpoint):
    model = load_encoder(str(checkpoint), pooling="max", device="cpu")
    assert (describe_encoder(model)["pooling"], model.max_seq_length) == ("mean", 40)
    assert load_encoder(str(checkpoint), max_seq_length=100, device="cpu").max_seq_length == 100
    with pytest.raises(ValueError, match="has positions for 128 tokens"):
        load_encoder(str(checkpoint), max_seq_length=129, device="cpu")


def test_what_is_no_encoder_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' cannot be loaded as an encoder: name a model"):
        load_encoder(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="no-such/model' cannot be loaded as an encoder"):
        load_encoder("no-such/model")


def test_loading_lists_no_layers(headless, monkeypatch):
    """transformers checks plans of tensor parallelism, that nobody has, where its logger is set to warnings."""
    monkeypatch.setattr(transformers.modeling_utils, "verify_tp_plan", lambda *_: pytest.fail("checked"))
    load_encoder(str(headless), device="cpu")


def test_an_encoder_without_a_vocabulary_is_refused(checkpoint, headless):
    for folder in (checkpoint, headless):
        (folder / "tokenizer.json").unlink()
        with pytest.raises(ValueError, match=r"special tokens: tokenizer\.json .* is missing"):
            load_encoder(str(folder), device="cpu")


@pytest.fixture(params=[logging.ERROR, logging.INFO])
def verbosity(request):
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity(request.param)
    yield
    transformers.utils.logging.set_verbosity(before)


@pytest.mark.usefixtures("verbosity")
def test_weights_that_are_missing_raise_and_a_random_pooler_is_left_out(checkpoint, headless):
    weights = load_file(headless / "model.safetensors")
    save_file({f"other.{name}": value for name, value in weights.items()}, headless / "model.safetensors")
    with pytest.raises(ValueError, match="weights of its own architecture"):
        load_encoder(str(headless), device="cpu")
    (checkpoint / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')  # asks for BERT's pooler
    one, other = (load_encoder(str(checkpoint), device="cpu") for _ in range(2))
    assert not any("pooler" in name for name in one.state_dict())
    keys = {_fingerprint(model, "", torch.float32, 4096) for model in (one, other)}
    assert len(keys) == 1


def test_the_mean_over_chunks_equals_chunk_by_chunk(checkpoint, texts):
    model = load_encoder(str(checkpoint), device="cpu", max_seq_length=12)
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
    original = encode_module.embed_chunk
    monkeypatch.setattr(encode_module, "embed_chunk", lambda *args: calls.append(1) or original(*args))

    def cached(texts, **options):
        calls.clear()
        return vectors(model, texts, cache_dir=cache, **options), len(calls)

    first, computed = cached(texts)
    again, computed_again = cached(texts)
    assert (computed, computed_again) == (1, 0)
    np.testing.assert_array_equal(first, again)
    assert cached(texts[:-2])[1] == 1
    assert cached(texts, prompt="document: ")[1] == 1
    assert cached(texts, dtype=torch.bfloat16)[1] == 1
    assert cached(texts, long_documents="chunk_mean")[1] == 1
    model.max_seq_length = 20
    assert cached(texts)[1] == 1
    model.set_pooling_include_prompt(False)
    assert cached(texts)[1] == 1
    with torch.no_grad():
        next(model[0].parameters())[3, 3] += 1e-3
    assert cached(texts)[1] == 1
    model[0].model.config.hidden_act = "relu"  # the same weights in another model
    assert cached(texts)[1] == 1
    assert cached(texts)[1] == 0


def test_bfloat16_changes_little_and_gives_float32(checkpoint, texts):
    model = load_encoder(str(checkpoint), device="cpu")
    exact, rounded = vectors(model, texts), vectors(model, texts, dtype=torch.bfloat16)
    assert rounded.dtype == np.float32
    cosine = (exact * rounded).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(rounded, axis=1)
    assert cosine.min() > 0.999
    assert np.abs(exact - rounded).max() > 0


def test_no_text_gives_no_rows(checkpoint):
    model = load_encoder(str(checkpoint), device="cpu")
    assert vectors(model, []).shape == (0, 32)


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
        raise AssertionError("all texts at once")


def embed_in_each_way(checkpoint, texts, output_file=None, **options):
    """(name, embeddings) from an encoder in memory, from a SentenceTransformer, and averaged over pieces."""
    model = load_encoder(str(checkpoint), device="cpu", max_seq_length=12)
    encoder, options = model[0].model, {"micro_batch_tokens": 100, "output_file": output_file} | options
    yield "encode", encode(encoder, model.tokenizer, texts, **options)
    yield "truncate", vectors(model, texts, **options)
    yield "chunk_mean", vectors(model, texts, long_documents="chunk_mean", **options)


def test_a_file_holds_what_memory_would_and_only_chunks_are_read(checkpoint, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 7)
    expected = dict(embed_in_each_way(checkpoint, texts))
    assert all(array.base is None for array in expected.values())
    path = tmp_path / "new" / "embeddings.npy"
    on_disk = OnDisk(texts)
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


class Ones:
    """Embeds ten texts."""

    def tokenize(self, texts):
        return texts

    def embed(self, tokenized, advance):
        return np.ones((10, 10_000))


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 10)

    def peak(num_texts):
        embedded = chunks.in_chunks(["text"] * num_texts, Ones(), False)
        tracemalloc.start()
        array, _ = chunks.collect(embedded, (num_texts, 10_000), tmp_path / "embeddings.npy")
        largest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.all(array == 1)
        return largest

    assert peak(1000) < 1.2 * peak(50)


def test_a_column_of_a_dataset_is_embedded(checkpoint, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 7)
    Dataset.from_dict({"text": texts[:-1]}).save_to_disk(tmp_path / "dataset")
    column = load_from_disk(tmp_path / "dataset")["text"]
    assert not isinstance(column, list)
    for (name, expected), (_, ours) in zip(
        embed_in_each_way(checkpoint, texts[:-1]), embed_in_each_way(checkpoint, column)
    ):
        np.testing.assert_array_equal(ours, expected, err_msg=name)


@pytest.mark.parametrize("where", ["tokenizer", "encoder"])
def test_a_failure_midway_leaves_no_file(checkpoint, texts, tmp_path, monkeypatch, where):
    """Nor an embedding in the cache that is not finite."""
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 7)
    model = load_encoder(str(checkpoint), device="cpu")
    path, cache = tmp_path / "embeddings.npy", tmp_path / "cache"
    texts, bad = texts[:-1], 16
    texts[bad] = None if where == "tokenizer" else "cider cider"
    if where == "encoder":
        row = model.tokenizer("cider", add_special_tokens=False)["input_ids"]
        texts = [text if text == "cider cider" else text.replace("ider", "") for text in texts]
        with torch.no_grad():
            model[0].model.embeddings.word_embeddings.weight[row] = float("nan")
    error, message = (AttributeError, "None") if where == "tokenizer" else (ValueError, rf"1 of 7 .* of text {bad}:")
    with pytest.raises(error, match=message):
        embed_documents(model, texts, dtype=torch.float32, cache_dir=cache, output_file=path)
    assert not path.exists()
    assert len(list(cache.glob("*/*"))) == bad // 7
    texts[bad] = "ship"
    whole = vectors(model, texts, cache_dir=cache, output_file=path)
    np.testing.assert_array_equal(whole, vectors(model, texts))


def test_the_progress_bar_counts_all_texts(checkpoint, texts, monkeypatch):
    bars = []

    class Bar(tqdm):
        def __init__(self, **options):
            super().__init__(**options)
            self.steps = []
            bars.append(self)

        def update(self, n=1):
            self.steps.append(n)
            return super().update(n)

    monkeypatch.setattr(chunks, "tqdm", Bar)
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 7)
    list(embed_in_each_way(checkpoint, texts, show_progress=True, micro_batch_tokens=20))
    assert len(bars) == 3
    for bar in bars:
        assert sum(bar.steps) == bar.total == len(texts)
        assert min(bar.steps) >= 0
        assert sum(step > 0 for step in bar.steps) > 10  # it moves within a chunk, of which there are 5


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_that_of_the_tokenizer(tokenizer, texts, side):
    batches = chunks.padded_batches(tokenizer, texts[:-1], 40, 300, side, 1)
    assert len(batches) > 2
    assert sorted(row for rows, _ in batches for row in rows.tolist()) == list(range(len(texts) - 1))
    encoded = tokenizer(texts[:-1], truncation=True, max_length=40)
    for rows, features in batches:
        chosen = {name: [values[row] for row in rows] for name, values in encoded.items()}
        expected = tokenizer.pad(chosen, return_tensors="pt", padding_side=side)
        assert features.keys() == expected.keys() >= {"input_ids", "attention_mask"}
        for name, value in expected.items():
            assert torch.equal(features[name], value), name


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.02), ("cuda", 0.05)])
def test_little_of_a_chunk_is_padding(device, share):
    tokens = launching.default_micro_batch_tokens(torch.device(device))
    lengths = torch.randn(chunks.CHUNK_TEXTS, generator=torch.Generator().manual_seed(0)).mul(0.9).add(4.9).exp()
    lengths = lengths.long().clamp(3, 512)
    computed = sum(len(rows) * longest for rows, longest in micro_batches(lengths, tokens))
    assert 1 - lengths.sum() / computed < share
