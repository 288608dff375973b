"""Texts are embedded chunk by chunk, into memory or a file, with little padding."""

import tracemalloc

import numpy as np
import pytest
import torch
from datasets import Dataset, load_from_disk
from tqdm.auto import tqdm

from docsplit.embedding import chunks
from docsplit.embedding.encode import embed_documents, encode
from docsplit.embedding.loading import load_encoder
from docsplit.modeling.encoding import micro_batches
from docsplit.runtime import launching
from tests.mutations import mutate


def vectors(model, texts, **options):
    return embed_documents(model, texts, **({"dtype": torch.float32} | options))[0]


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
    """Yield (name, embeddings) from an encoder in memory, from a SentenceTransformer, and averaged over pieces."""
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


def test_no_damaged_embedding_is_taken_from_the_cache(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(chunks, "CHUNK_TEXTS", 4)

    def embedded():
        parts = chunks.in_chunks(["a", "b", "c", "d", "e"], Ones(), False, tmp_path)
        return np.concatenate([part[:, :10] for part, _ in parts])

    class Ones:
        def tokenize(self, texts):
            return texts

        def embed(self, tokenized, advance):
            return np.random.default_rng(len(tokenized)).normal(size=(len(tokenized), 40))

    expected = embedded()
    assert not caplog.records
    for seed in range(60):
        files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        how = mutate(files[seed % len(files)], seed)
        caplog.clear()
        np.testing.assert_array_equal(embedded(), expected, err_msg=how)
        assert ["is made again" in record.message for record in caplog.records] == [True], how


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


def test_padding_is_that_of_the_tokenizer_on_the_right(tokenizer, texts):
    batches = chunks.tokenized_batches(tokenizer, texts[:-1], chunks.Layout(40, 300))
    assert len(batches) > 2
    assert sorted(row for rows, _ in batches for row in rows.tolist()) == list(range(len(texts) - 1))
    encoded = tokenizer(texts[:-1], truncation=True, max_length=40)
    for rows, features in batches:
        chosen = {name: [values[row] for row in rows] for name, values in encoded.items()}
        expected = tokenizer.pad(chosen, return_tensors="pt", padding_side="right")
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
