"""Tokens of whole texts to directions, and these to vectors of an encoder: each step beside the formula by hand."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from docsplit.modeling import encoder_with_words
from docsplit.modeling.encoder_with_words import AddWords, Words, add_words, token_ids
from tests.mutations import mutated_copy

VOCABULARY = {"ship": 0, "sea": 1, "[UNK]": 2, "bread": 5}  # with ids that no token has
VECTORS = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])  # of ship and bread


@pytest.fixture
def tokenizer():
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture
def words(tokenizer):
    return Words(tokenizer, torch.tensor([0, 5]), VECTORS)


def directions(words, texts):
    return words(**words.preprocess(texts)).numpy()


def test_a_direction_is_that_of_the_sum_of_token_vectors(words):
    texts = ["ship ship bread", "", "sea nothing", "sea " * 20_000 + "bread", "ship " * 2, ""]
    expected = [[6, 4, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]]
    expected = np.array(expected) / np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(directions(words, texts), expected, atol=1e-6)
    for row, text in enumerate(texts):  # alone, as in a batch
        np.testing.assert_array_equal(directions(words, [text])[0], directions(words, texts)[row])
    assert directions(words, []).shape == (0, 3)


def test_texts_are_tokenised_some_at_a_time(words, tokenizer, monkeypatch):
    texts = ["ship", "bread sea", "", "\ud800 ship", "sea"]
    whole = directions(words, texts)
    monkeypatch.setattr(encoder_with_words, "TEXTS_AT_ONCE", 2)
    np.testing.assert_array_equal(directions(words, texts), whole)
    assert [ids.tolist() for ids in token_ids(tokenizer, texts)] == [[0], [5, 1], [], [2, 0], [1]]


def test_words_are_summed_in_full_precision(words):
    texts = ["ship " * 1000 + "bread"]
    expected = directions(words, texts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(directions(words, texts), expected)


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_words_are_added_to_the_direction_and_leave_the_length(weight):
    rng = np.random.default_rng(0)
    vectors, words = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    words[2] = 0
    summed = add_words(torch.from_numpy(vectors), torch.from_numpy(words), weight).numpy()
    np.testing.assert_array_equal(summed[2], vectors[2])  # exactly: it has no words
    for row in (0, 1, 3):
        length = np.linalg.norm(vectors[row])
        direction = vectors[row] / length + weight * words[row]
        np.testing.assert_allclose(summed[row], length * direction / np.linalg.norm(direction), atol=1e-6)
    features = {"sentence_embedding": torch.from_numpy(vectors).bfloat16(), "words": torch.from_numpy(words)}
    embedding = AddWords(weight)(features)["sentence_embedding"]  # of the type that it was, as near as that can be
    assert embedding.dtype == torch.bfloat16
    np.testing.assert_allclose(embedding.float(), summed, atol=3e-2)


@pytest.mark.parametrize("weight", [-1, float("nan"), "1"])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(ValueError, match="The weight of words is"):
        AddWords(weight)


def test_words_come_back_from_files(words, tmp_path):
    words.save(tmp_path)
    again = Words.load(str(tmp_path / "words.safetensors"), str(tmp_path / "tokenizer.json"))
    texts = ["ship bread bread", "sea"]
    np.testing.assert_array_equal(directions(again, texts), directions(words, texts))
    assert (again.pieces.tolist(), again.sublinear, again.neighbours) == ([0, 5], False, 0)
    torch.testing.assert_close(again.vectors(), VECTORS)
    Words(words.tokenizer, words.pieces, words.vectors(), sublinear=True, neighbours=7).save(tmp_path)
    again = Words.load(str(tmp_path / "words.safetensors"), str(tmp_path / "tokenizer.json"))
    assert (again.sublinear, again.neighbours) == (True, 7)


def test_no_damaged_file_of_words_is_believed(words, tmp_path):
    (tmp_path / "whole").mkdir()
    words.save(tmp_path / "whole")
    for seed in range(25):
        how = mutated_copy(tmp_path / "whole", tmp_path / f"{seed}", seed)
        with pytest.raises(ValueError, match="fit the words again") as error:
            Words.load(*(str(tmp_path / f"{seed}" / name) for name in ("words.safetensors", "tokenizer.json")))
        assert "\n" not in str(error.value), how


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_give_nearly_the_same_and_are_saved(tokenizer, dtype, tmp_path):
    words = Words(tokenizer, torch.tensor([0, 5]), VECTORS, sublinear=True)
    texts = ["ship ship bread", "", "bread ship " * 700]
    expected = directions(words, texts)
    np.testing.assert_allclose(directions(words.to(dtype), texts), expected, atol=0.01)
    words.save(tmp_path)
    loaded = Words.load(str(tmp_path / "words.safetensors"), str(tmp_path / "tokenizer.json"))
    np.testing.assert_array_equal(directions(loaded, texts), directions(words, texts))
