"""Bulk embedding equals one text at a time, and SentenceTransformer."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from docsplit import embedding
from docsplit.embedding import encode
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, tiny_config


@pytest.fixture
def texts():
    return [row["text"] for row in make_corpus(30)] + ["", "ship", "\ud800 storm"]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_bulk_equals_one_by_one_and_sentence_transformers(tokenizer, texts, pooling, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "CHUNK_TEXTS", 7)
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
