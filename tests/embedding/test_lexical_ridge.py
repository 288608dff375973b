"""Words fitted to vectors: features beside a slow TF-IDF, vectors beside the formula, bad input in one line."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers

from docsplit.embedding import lexical_ridge, ridge
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.lexical_ridge import RidgeSettings, count_tokens, distinct, fit, whole_text_tokenizer
from docsplit.embedding.loading import load_encoder
from docsplit.embedding.neighbours import smooth, word_vectors
from docsplit.runtime.vectors import unit
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(40, seed=7)]
PLAIN = RidgeSettings(penalty=1.0, neighbours=0)


class Encoder(list):
    """A first module with a tokenizer: all that `fit` asks of an encoder."""

    def __init__(self, tokenizer):
        super().__init__([type("First", (), {"tokenizer": tokenizer})()])


def vectors_of(texts, width=8):
    """Draw a vector for each distinct text, nearer to those of the same words than chance."""
    rng = np.random.default_rng(0)
    words = {word: rng.normal(size=width) for text in TEXTS for word in text.split()}
    return unit(
        np.array([sum((words.get(word, 0) for word in text.split()), rng.normal(size=width)) for text in texts])
    )


def slow_features(tokenizer, texts, sublinear):
    """TF-IDF with counters: a dictionary of weights by token for each text, of length one."""
    special = set(tokenizer.all_special_tokens)
    counts = [Counter(token for token in tokenizer.tokenize(text) if token not in special) for text in texts]
    frequencies = Counter(token for count in counts for token in count)
    kept = {token for token, number in frequencies.items() if number >= 2}
    idf = {token: math.log((1 + len(texts)) / (1 + frequencies[token])) + 1 for token in kept}
    rows = []
    for count in counts:
        damped = {token: 1 + math.log(number) if sublinear else number for token, number in count.items()}
        row = {token: number * idf[token] for token, number in damped.items() if token in kept}
        length = math.sqrt(sum(value**2 for value in row.values()))
        rows.append({token: value / length for token, value in row.items()})
    return rows, idf


@pytest.mark.parametrize("sublinear", [True, False])
def test_features_are_tf_idf_of_whole_texts(tokenizer, sublinear, monkeypatch):
    texts = [*TEXTS, "zyzzyva qi 99", "xu"]  # what no other text has, as far as the tokenizer knows it
    monkeypatch.setattr(tokenizer, "model_max_length", 8)  # other tests have this tokenizer too
    fitted = fit(Encoder(tokenizer), texts, vectors_of(texts), RidgeSettings(1.0, 0, sublinear))
    expected, idf = slow_features(tokenizer, texts, sublinear)
    pieces = fitted.words.pieces.tolist()
    assert tokenizer.convert_ids_to_tokens(pieces) == sorted(idf, key=tokenizer.convert_tokens_to_ids)
    for row, weights in enumerate(expected):
        features = fitted.features[row].toarray()[0]
        by_token = {token: features[column] for column, token in enumerate(tokenizer.convert_ids_to_tokens(pieces))}
        assert {token for token, value in by_token.items() if value} == set(weights)
        for token, weight in weights.items():
            assert by_token[token] == pytest.approx(weight, abs=1e-6)
    assert max(fitted.features.getnnz(axis=1)) > 8


@pytest.mark.parametrize("neighbours", [0, 3])
def test_vectors_are_those_of_the_formula(tokenizer, neighbours):
    vectors = vectors_of(TEXTS)
    fitted = fit(Encoder(tokenizer), TEXTS, 3 * vectors, RidgeSettings(0.7, neighbours))
    dense = fitted.features.toarray().astype(np.float64)
    targets = smooth(vectors, neighbours, words=word_vectors(TEXTS)) if neighbours else vectors
    solution = np.linalg.solve(dense.T @ dense + 0.7 * np.eye(dense.shape[1]), dense.T @ targets)
    np.testing.assert_allclose(fitted.fitted(), unit(dense @ solution), atol=1e-5)
    # By the module, from the texts alone
    by_module = fitted.words(**fitted.words.preprocess(TEXTS)).numpy()
    np.testing.assert_allclose(by_module, fitted.fitted(), atol=1e-5)
    # Each by a solution without it
    for row in range(0, len(TEXTS), 9):
        others = np.delete(dense, row, axis=0)
        without = np.linalg.solve(
            others.T @ others + 0.7 * np.eye(dense.shape[1]), others.T @ np.delete(targets, row, 0)
        )
        np.testing.assert_allclose(fitted.leave_one_out()[row], unit(dense[row : row + 1] @ without)[0], atol=1e-5)
    assert np.abs(fitted.leave_one_out() - fitted.fitted()).max() > 1e-2


def test_empty_texts_and_copies_are_left_out_and_counted(wordpiece, caplog):
    texts = [*TEXTS, "", TEXTS[3].replace(" ", "\n"), " \t", TEXTS[0], "?!"]
    vectors = vectors_of(texts)
    caplog.set_level("INFO")
    fitted = fit(Encoder(wordpiece), texts, vectors, PLAIN)
    alone = fit(Encoder(wordpiece), [*TEXTS, "?!"], np.concatenate([vectors[:40], vectors[-1:]]), PLAIN)
    assert (fitted.facts.documents, fitted.facts.empty, fitted.facts.duplicates) == (41, 2, 2)
    assert fitted.facts.without_pieces == 1
    assert "Words of 41 documents (without 2 empty and 2 copies): " in caplog.text
    assert "1 documents share no token with another" in caplog.text
    for outputs, of_alone in ((fitted.fitted(), alone.fitted()), (fitted.leave_one_out(), alone.leave_one_out())):
        assert outputs.shape == vectors.shape
        np.testing.assert_allclose(outputs[[*range(40), 44]], of_alone, atol=1e-6)
        np.testing.assert_array_equal(outputs[[41, 43]], outputs[[3, 0]])
        assert not outputs[[40, 42, 44]].any()


def test_the_penalty_is_chosen_on_plain_vectors_left_out(wordpiece, monkeypatch):
    vectors = vectors_of(TEXTS)
    fitted = fit(Encoder(wordpiece), TEXTS, vectors)
    assert tuple(fitted.facts.shares_explained) == lexical_ridge.PENALTIES
    dense = fitted.features.toarray().astype(np.float64)
    for penalty, share in fitted.facts.shares_explained.items():
        predicted = np.empty(vectors.shape)
        for row in range(len(dense)):
            others = np.delete(dense, row, axis=0)
            gram = others.T @ others + penalty * np.eye(dense.shape[1])
            predicted[row] = dense[row] @ np.linalg.solve(gram, others.T @ np.delete(vectors, row, 0))
        pairs = [
            rows - rows.mean(axis=0) for rows in (vectors, predicted / np.linalg.norm(predicted, axis=1)[:, None])
        ]
        assert share == pytest.approx(np.corrcoef(*(rows.ravel() for rows in pairs))[0, 1] ** 2, abs=1e-4)
    assert fitted.facts.share_explained == max(fitted.facts.shares_explained.values())
    # Of very many documents, some evenly spaced ones are enough
    monkeypatch.setattr(lexical_ridge, "DUAL_DOCUMENTS", 20)
    fewer = fit(Encoder(wordpiece), TEXTS, vectors).facts.shares_explained
    decomposed = ridge.Decomposed.of(fitted.features[::2])
    expected = ridge.explained(vectors[::2], unit(decomposed.leave_one_out(vectors[::2], 1.0)))
    assert fewer[1.0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shared", [0, 10])
def test_words_of_vectors_that_share_a_direction_explain_what_tells_them_apart(wordpiece, shared):
    common = shared * np.ones((1, 8)) / np.sqrt(8)
    assert not fit(Encoder(wordpiece), TEXTS, vectors_of(TEXTS) + common).facts.explains_nothing
    drawn = np.random.default_rng(0).normal(size=(40, 8)) + common
    assert fit(Encoder(wordpiece), TEXTS, drawn).facts.explains_nothing


def test_words_that_explain_little_get_less_weight(wordpiece, monkeypatch, caplog):
    facts = fit(Encoder(wordpiece), TEXTS, vectors_of(TEXTS), PLAIN).facts
    assert (facts.share_explained > lexical_ridge.FULL_SHARE, facts.weight) == (True, 1)
    assert "weight" not in facts.sentence()
    monkeypatch.setattr(lexical_ridge, "FULL_SHARE", 2 * facts.share_explained)
    assert facts.weight == 0.5
    assert "they explain little, which makes their weight 0.5" in facts.sentence()
    assert replace(facts, shares_explained={1.0: -0.3}).weight == 0


def unigram():
    pieces = [("<unk>", 0.0), ("▁", -5.0), *((word, -3.0) for word in ("▁ship", "▁sea", "▁bread", "er", "s"))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def test_unknown_and_special_tokens_do_not_count(wordpiece):
    counts = count_tokens(unigram(), ["ships sea ☃ sea", "☃☃", ""]).toarray()
    np.testing.assert_array_equal(counts, [[0, 1, 1, 2, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0], [0] * 7])
    backend = whole_text_tokenizer(Encoder(wordpiece))
    counts = count_tokens(backend, ["[CLS] ☃ ship [PAD] [MASK] [UNK]", "\ud800"]).toarray()
    assert counts[0].sum() == len(wordpiece.tokenize("ship"))
    assert counts[:, wordpiece.all_special_ids].sum() == 0


def test_the_tokenizer_neither_truncates_nor_pads_and_the_encoders_own_stays(wordpiece):
    wordpiece.backend_tokenizer.enable_truncation(4)
    wordpiece.backend_tokenizer.enable_padding(length=9)
    copy = whole_text_tokenizer(Encoder(wordpiece))
    assert copy.truncation is None
    assert copy.padding is None
    assert wordpiece.backend_tokenizer.truncation["max_length"] == 4
    wordpiece.backend_tokenizer.no_truncation()
    wordpiece.backend_tokenizer.no_padding()


@pytest.mark.parametrize("tokenizer", ["byte_level_bpe"], indirect=True)
def test_a_module_that_lower_cases_does_so_for_words(tokenizer, checkpoint):
    as_it_is, lower = (
        SentenceTransformer(modules=[Transformer(str(checkpoint), do_lower_case=flag)], device="cpu")
        for flag in (False, True)
    )
    ids = whole_text_tokenizer(lower).encode(" SHIP").ids
    assert ids == tokenizer.backend_tokenizer.encode(" ship").ids
    assert whole_text_tokenizer(as_it_is).encode(" SHIP").ids != ids


def test_a_static_encoder_has_a_tokenizer_too(wordpiece):
    static = SentenceTransformer(modules=[StaticEmbedding(wordpiece.backend_tokenizer, embedding_dim=8)])
    assert whole_text_tokenizer(static).get_vocab() == wordpiece.get_vocab()


def test_distinct_texts_are_those_that_differ_in_more_than_white_space():
    kept, document_of = distinct(["a b", "", "a\nb ", "c", " "])
    assert kept == [0, 3]
    assert document_of.tolist() == [0, -1, 0, 1, -1]


def test_an_encoder_is_fitted_to_its_own_vectors(checkpoint, texts):
    model = load_encoder(str(checkpoint), device="cpu")
    vectors, _ = embed_documents(model, texts)
    fitted = fit(model, texts, vectors)
    assert fitted.fitted().shape == vectors.shape
    assert fitted.facts.share_explained < 1


@pytest.mark.parametrize(
    ("texts", "vectors", "problem"),
    [
        (TEXTS[:1], vectors_of(TEXTS[:1]), "1 distinct documents with text, of 1, are too few"),
        (TEXTS[:19] + [""] * 9, vectors_of([*TEXTS[:19]] * 2)[:28], "19 distinct documents with text, of 28, are too"),
        (TEXTS[:1] * 30, vectors_of(TEXTS[:30]), "1 distinct documents with text, of 30, are too few"),
        (TEXTS, vectors_of(TEXTS)[:-1], r"40 texts came with vectors \(39, 8\): expected one vector a text"),
        (TEXTS, vectors_of(TEXTS)[:, 0], r"40 texts came with vectors \(40,\): expected one vector a text"),
        (TEXTS, vectors_of(TEXTS) * np.nan, "vectors are not finite"),
        (TEXTS, np.ones((40, 8)), "one vector for all 40 documents"),
        ([chr(ord("𐀀") + number) for number in range(30)], vectors_of(TEXTS[:30]), "No token is in two of the 30"),
    ],
)
def test_what_words_cannot_be_learnt_from_is_refused_in_one_line(wordpiece, texts, vectors, problem):
    with pytest.raises(ValueError, match=problem) as failure:
        fit(Encoder(wordpiece), texts, vectors)
    assert "\n" not in str(failure.value)


def test_a_tokenizer_without_a_fast_form_is_refused():
    with pytest.raises(ValueError, match=r"tokenizer is a dict, which has no fast form \(tokenizer.json\)"):
        fit(Encoder({"ship": 1}), TEXTS, vectors_of(TEXTS))


@pytest.mark.parametrize("given", [{"penalty": 0}, {"penalty": -1.0}, {"penalty": float("nan")}, {"neighbours": -1}])
def test_settings_out_of_range_are_refused(given):
    with pytest.raises(ValueError, match="expected"):
        RidgeSettings(**given)
