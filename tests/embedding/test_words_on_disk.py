"""A static folder gives the words' vectors in every library that loads it, of whole texts."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers

from docsplit.embedding.encode import embed_documents, embed_queries
from docsplit.embedding.lexical_ridge import RidgeSettings, fit
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.words_on_disk import save_static
from docsplit.modeling.encoder_with_words import Words
from tests.conftest import make_corpus
from tests.embedding.test_lexical_ridge import Encoder

CORPUS = [row["text"] for row in make_corpus(40, seed=7)]
TEXTS = [*CORPUS[:5], "", "☃", "ship", "bread " * 3000 + "storm"]


@pytest.fixture
def words(tokenizer):
    """Words of an encoder whose tokenizer.json cuts and pads."""
    tokenizer.backend_tokenizer.enable_truncation(16)
    tokenizer.backend_tokenizer.enable_padding(length=16)
    vectors = np.random.default_rng(0).normal(size=(40, 12))
    words = fit(Encoder(tokenizer), CORPUS, vectors, RidgeSettings(1.0, 0, sublinear=False)).words
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return words


@pytest.fixture
def folder(words, tmp_path):
    folder = tmp_path / "static"
    folder.mkdir()
    save_static(words, folder)
    return folder


def directions_of(words, texts):
    return words(**words.preprocess(texts)).numpy()


def test_sentence_transformers_loads_a_static_encoder_without_trust(words, folder):
    expected = directions_of(words, TEXTS)
    model = SentenceTransformer(str(folder), device="cpu")
    assert [type(module).__name__ for module in model] == ["StaticEmbedding", "Normalize"]
    assert not list(folder.rglob("*.py"))
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(TEXTS), expected, atol=1e-5)
    lengths = np.linalg.norm(model.encode(TEXTS), axis=1)
    np.testing.assert_allclose(lengths, expected.any(axis=1), atol=1e-5)  # 1, or 0 for what has no known token
    assert not lengths[5]


def test_this_package_loads_a_static_encoder_as_any(words, folder, tmp_path):
    expected = directions_of(words, TEXTS)
    model = load_encoder(str(folder), device="cpu")
    np.testing.assert_allclose(embed_documents(model, TEXTS, dtype=torch.float32)[0], expected, atol=1e-5)
    vectors, facts = embed_queries(model, TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert facts.similarity == "cosine"
    model.save(str(tmp_path / "again"))
    np.testing.assert_allclose(load_encoder(str(tmp_path / "again")).encode(TEXTS), expected, atol=1e-5)


def test_the_last_word_of_a_long_text_counts(folder):
    model = SentenceTransformer(str(folder), device="cpu")
    long = "bread " * 3000
    ends = model.encode([long, long + "storm " * 300])
    assert np.abs(ends[0] - ends[1]).max() > 1e-3


def test_model2vec_gives_the_same_vectors(words, folder):
    model2vec = pytest.importorskip("model2vec")
    vectors = model2vec.StaticModel.from_pretrained(str(folder)).encode(TEXTS, max_length=None)
    np.testing.assert_allclose(vectors, directions_of(words, TEXTS), atol=1e-5)


def test_ids_that_no_token_has_get_a_row(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"ship": 0, "[UNK]": 2, "bread": 5}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = Words(tokenizer, torch.tensor([0, 5]), torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    save_static(words, tmp_path)
    vectors = SentenceTransformer(str(tmp_path), device="cpu").encode(["ship ship bread", "sea", "bread"])
    np.testing.assert_allclose(vectors, [[6 / 52**0.5, 4 / 52**0.5], [0, 0], [0, 1]], atol=1e-6)


@pytest.mark.slow
def test_a_program_without_this_package_needs_no_trust(words, folder, tmp_path):
    program = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
np.save(sys.argv[2], SentenceTransformer(sys.argv[1], device="cpu").encode(json.loads(sys.argv[3])))
"""
    command = [sys.executable, "-I", "-c", program, str(folder), str(tmp_path / "out.npy"), json.dumps(TEXTS)]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), directions_of(words, TEXTS), atol=1e-5)
