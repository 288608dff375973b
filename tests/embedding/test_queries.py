"""Queries are embedded as sentence-transformers' own `encode_query` does it."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Router, StaticEmbedding, Transformer

from docsplit.embedding.encode import QueryFacts, embed_documents, embed_queries
from docsplit.embedding.loading import load_encoder

TEXTS = ["bread and butter", "the ship was at anchor", ""]


@pytest.fixture
def model(headless):
    transformer = Transformer(str(headless))
    return SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu").eval()


@pytest.mark.parametrize("prompts", [{}, {"query": "ask: ", "document": "read: "}, {"query": "", "any": "all: "}])
def test_the_prompt_for_queries_then_the_default_one(model, prompts, tmp_path):
    model.prompts, model.default_prompt_name = prompts, "any" if "any" in prompts else None
    model.save(str(tmp_path / "model"))
    loaded = load_encoder(str(tmp_path / "model"), device="cpu")
    vectors, facts = embed_queries(loaded, TEXTS, dtype=torch.float32)
    expected = {"": "", "ask: ": "ask: "}.get(prompts.get("query", "")) or prompts.get("any", "")
    assert facts == QueryFacts(expected, "cosine")
    assert vectors == pytest.approx(model.encode([expected + text for text in TEXTS], prompt=""), abs=1e-5)
    if prompts.get("query"):
        assert vectors == pytest.approx(model.encode_query(TEXTS), abs=1e-5)
        assert abs(vectors - embed_documents(loaded, TEXTS)[0]).max() > 1e-3
    given, _ = embed_queries(loaded, TEXTS, prompt="other: ", dtype=torch.float32)
    assert given == pytest.approx(model.encode([f"other: {text}" for text in TEXTS], prompt=""), abs=1e-5)


def test_a_route_for_queries_is_taken(wordpiece):
    weights = np.random.default_rng(0).normal(size=(2, len(wordpiece), 8)).astype(np.float32)
    routes = [StaticEmbedding(wordpiece.backend_tokenizer, embedding_weights=own) for own in weights]
    router = Router.for_query_document([routes[0]], [routes[1]])
    model = SentenceTransformer(modules=[router, Normalize()], device="cpu").eval()
    vectors, _ = embed_queries(model, TEXTS[:2])
    assert vectors == pytest.approx(model.encode_query(TEXTS[:2]), abs=1e-6)
    documents, _ = embed_documents(model, TEXTS[:2])
    assert documents == pytest.approx(model.encode_document(TEXTS[:2]), abs=1e-6)
    assert abs(vectors - documents).max() > 0.1
    model.prompts = {"query": "bread "}
    asked, plain = (embed_queries(model, TEXTS[1:2], prompt) for prompt in (None, ""))
    assert (asked[1].query_prompt, plain[1].query_prompt) == ("bread ", "")
    assert asked[0] == pytest.approx(model.encode_query(TEXTS[1:2]), abs=1e-6)
    assert plain[0] == pytest.approx(vectors[1:2], abs=1e-6)


def test_distances_are_replaced_by_the_cosine_and_it_is_said(model, caplog):
    model.similarity_fn_name = "dot"
    assert embed_queries(model, TEXTS)[1].similarity == "dot"
    model.similarity_fn_name = "euclidean"
    assert embed_queries(model, TEXTS)[1].similarity == "cosine"
    assert "compares by euclidean distance" in caplog.text
