"""Words fitted to vectors: features beside a slow TF-IDF, vectors beside the formula, bad input in one line."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LinearRegression
from tokenizers import Tokenizer, models, pre_tokenizers

from docsplit.embedding import lexical_ridge
from docsplit.embedding.lexical_ridge import (
    RidgeSettings,
    conjugate_gradients,
    count_tokens,
    explained,
    fit,
    leave_one_out,
    save_static,
    weights,
    whole_text_tokenizer,
)
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
    for row, wanted in enumerate(expected):
        features = fitted.features[row].toarray()[0]
        by_token = {token: features[column] for column, token in enumerate(tokenizer.convert_ids_to_tokens(pieces))}
        assert {token for token, value in by_token.items() if value} == set(wanted)
        for token, weight in wanted.items():
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
    by_row = leave_one_out(fitted.features, targets, 0.7)
    np.testing.assert_allclose(fitted.leave_one_out(), unit(by_row), atol=1e-6)


def test_empty_texts_and_copies_are_left_out_and_counted(wordpiece, caplog):
    texts = [*TEXTS, "", TEXTS[3].replace(" ", "\n"), " \t", TEXTS[0], "?!"]
    vectors = vectors_of(texts)
    caplog.set_level("INFO")
    fitted = fit(Encoder(wordpiece), texts, vectors, PLAIN)
    alone = fit(Encoder(wordpiece), [*TEXTS, "?!"], np.concatenate([vectors[:40], vectors[-1:]]), PLAIN)
    assert (fitted.facts.documents, fitted.facts.empty, fitted.facts.duplicates) == (41, 2, 2)
    assert fitted.facts.without_pieces == 1
    assert "Words of 41 documents: " in caplog.text
    assert "; empty: 2; copies: 2; without a token of others: 1" in caplog.text
    for outputs, of_alone in ((fitted.fitted(), alone.fitted()), (fitted.leave_one_out(), alone.leave_one_out())):
        assert outputs.shape == vectors.shape
        np.testing.assert_allclose(outputs[[*range(40), 44]], of_alone, atol=1e-6)
        np.testing.assert_array_equal(outputs[[41, 43]], outputs[[3, 0]])
        assert not outputs[[40, 42, 44]].any()


def test_the_penalty_is_chosen_on_plain_vectors_left_out(wordpiece, monkeypatch):
    vectors = vectors_of(TEXTS)
    fitted = fit(Encoder(wordpiece), TEXTS, vectors)
    assert tuple(fitted.facts.shares_explained) == lexical_ridge.PENALTIES
    for penalty, share in fitted.facts.shares_explained.items():
        directions = unit(leave_one_out(fitted.features, vectors, penalty))
        assert share == pytest.approx(explained(vectors, directions), abs=1e-4)
    assert fitted.facts.share_explained == max(fitted.facts.shares_explained.values())
    # Of very many documents, some evenly spaced ones are enough
    monkeypatch.setattr(lexical_ridge, "DUAL_DOCUMENTS", 20)
    fewer = fit(Encoder(wordpiece), TEXTS, vectors).facts.shares_explained
    without = leave_one_out(fitted.features[::2], vectors[::2], 1.0)
    assert fewer[1.0] == pytest.approx(explained(vectors[::2], unit(without)), abs=1e-6)


def test_words_of_vectors_that_share_a_direction_explain_what_tells_them_apart(wordpiece):
    common = 10 * np.ones((1, 8)) / np.sqrt(8)
    assert not fit(Encoder(wordpiece), TEXTS, vectors_of(TEXTS) + common).facts.explains_nothing
    drawn = np.random.default_rng(0).normal(size=(40, 8)) + common
    assert fit(Encoder(wordpiece), TEXTS, drawn).facts.explains_nothing


def test_words_that_explain_little_get_less_weight(wordpiece):
    facts = fit(Encoder(wordpiece), TEXTS, vectors_of(TEXTS), PLAIN).facts
    assert (facts.share_explained > 0.2, facts.weight) == (True, 1)
    assert "weight" not in facts.sentence()
    less = replace(facts, shares_explained={1.0: 0.1})
    assert less.weight == 0.5
    assert "they explain little, which makes their weight 0.5" in less.sentence()
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


@pytest.mark.parametrize(
    ("texts", "vectors", "problem"),
    [
        (TEXTS[:19] + [""] * 9, vectors_of([*TEXTS[:19]] * 2)[:28], "19 distinct documents with text, of 28, are too"),
        (TEXTS[:1] * 30, vectors_of(TEXTS[:30]), "1 distinct documents with text, of 30, are too few"),
        (TEXTS, vectors_of(TEXTS)[:-1], r"40 texts came with vectors \(39, 8\): expected one vector a text"),
        (TEXTS, vectors_of(TEXTS) * np.nan, "vectors are not finite"),
        (TEXTS, np.ones((40, 8)), "one vector for all 40 documents"),
        ([chr(ord("𐀀") + number) for number in range(30)], vectors_of(TEXTS[:30]), "No token is in two of the 30"),
    ],
)
def test_what_words_cannot_be_learnt_from_is_refused_in_one_line(wordpiece, texts, vectors, problem):
    with pytest.raises(ValueError, match=problem) as failure:
        fit(Encoder(wordpiece), texts, vectors)
    assert "\n" not in str(failure.value)


# --- Ridge regression ---


def draw(documents=40, features=60, width=5, seed=0):
    """Draw rows of length one, some without any feature, and targets with a part that features explain."""
    rng = np.random.default_rng(seed)
    dense = rng.random((documents, features)) * (rng.random((documents, features)) < 0.15)
    dense[::13] = 0
    dense /= np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-12)
    targets = dense @ rng.normal(size=(features, width)) + 0.3 * rng.normal(size=(documents, width))
    return csr_matrix(dense.astype(np.float32)), targets.astype(np.float32)


def solve(features, targets, penalty):
    """Solve the normal equations densely, in double precision."""
    dense = features.toarray().astype(np.float64)
    return np.linalg.solve(dense.T @ dense + penalty * np.eye(dense.shape[1]), dense.T @ targets)


@pytest.mark.parametrize("penalty", [0.1, 10.0])
@pytest.mark.parametrize("shape", [(40, 60), (60, 25)], ids=["more features", "more documents"])
def test_all_ways_give_the_dense_solution(penalty, shape, monkeypatch):
    features, targets = draw(*shape)
    expected = solve(features, targets, penalty)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(weights(features, targets, penalty), expected, atol=1e-5)
    monkeypatch.setattr(lexical_ridge, "DUAL_DOCUMENTS", len(targets) - 1)
    np.testing.assert_allclose(weights(features, targets, penalty), expected, atol=1e-5)
    monkeypatch.setattr(lexical_ridge, "PRIMAL_FEATURES", len(expected) - 1)
    np.testing.assert_allclose(weights(features, targets, penalty), expected, atol=1e-3)
    np.testing.assert_allclose(conjugate_gradients(features, targets, penalty, 1e-7), expected, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_leave_one_out_is_refitting_without_each_document(penalty, monkeypatch):
    features, targets = draw()
    expected = np.empty(targets.shape)
    for row in range(len(targets)):
        others = np.arange(len(targets)) != row
        expected[row] = features[row] @ solve(features[others], targets[others], penalty)
    monkeypatch.setattr(lexical_ridge, "BLOCK", 7)
    outputs = leave_one_out(features, targets, penalty)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    assert np.abs(outputs - features @ solve(features, targets, penalty)).max() > 1e-2  # not the fitted ones


def test_of_many_documents_each_document_is_left_out_with_a_fifth(monkeypatch):
    features, targets = draw()
    monkeypatch.setattr(lexical_ridge, "DUAL_DOCUMENTS", 0)
    outputs = leave_one_out(features, targets, 1.0)
    fold_of = np.random.default_rng(0).permutation(len(targets)) % lexical_ridge.RIDGE_FOLDS
    for fold in range(lexical_ridge.RIDGE_FOLDS):
        outside, inside = fold_of != fold, fold_of == fold
        assert 0 < inside.sum() <= -(-len(targets) // lexical_ridge.RIDGE_FOLDS)
        expected = features[inside] @ solve(features[outside], targets[outside], 1.0)
        np.testing.assert_allclose(outputs[inside], expected, atol=1e-3)


def test_gradients_that_have_not_converged_are_named(monkeypatch, caplog):
    monkeypatch.setattr(lexical_ridge, "MOST_ITERATIONS", 2)
    conjugate_gradients(*draw(), 1e-3)
    assert "conjugate gradients stopped after 2 steps. A penalty above 0.001 needs fewer" in caplog.text


def test_sums_over_many_documents_keep_their_digits():
    """Long documents of few tokens: nearly every document has every token, about as often as the others have it."""
    rng = np.random.default_rng(0)
    dense = 1 + np.log(rng.poisson(2000, (100_000, 20)).astype(np.float32))
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    targets = (dense @ rng.normal(size=(20, 3)) + 0.1 * rng.normal(size=(len(dense), 3))).astype(np.float32)
    expected = solve(csr_matrix(dense), targets, 0.1)
    found = weights(csr_matrix(dense), targets, 0.1)
    assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)


def test_gradients_converge_on_dimensions_of_an_encoder_that_are_dead(caplog):
    """Of all-MiniLM-L6-v2 three are: up to 1e-32 and 1e-7 for any document."""
    features, targets = draw(60, 90)
    targets[:, 0] *= 1e-7
    targets[:, 1] *= 1e-32
    found = conjugate_gradients(features, targets, 0.1)
    assert caplog.text == ""
    expected = solve(features, targets, 0.1)
    np.testing.assert_allclose(found[:, 0], expected[:, 0], atol=1e-3 * np.abs(expected[:, 0]).max())


def test_what_is_explained_is_a_share_of_the_variance():
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(50, 3))
    assert explained(vectors, 5 * vectors + 7) == pytest.approx(1)
    assert explained(vectors, -vectors) == pytest.approx(-1)
    assert explained(vectors, np.ones_like(vectors)) == 0
    # As of a regression with one slope for all dimensions, and an intercept for each
    directions = vectors + draw.normal(size=(50, 3))
    inputs, outputs = ((rows - rows.mean(axis=0)).ravel() for rows in (directions, vectors))
    expected = LinearRegression(fit_intercept=False).fit(inputs[:, None], outputs).score(inputs[:, None], outputs)
    assert 0.2 < expected < 0.9
    assert explained(vectors, directions) == pytest.approx(expected)


# --- Folders ---

STATIC = [*TEXTS[:5], "", "☃", "ship", "bread " * 3000 + "storm"]


@pytest.fixture
def words(tokenizer):
    """Words of an encoder whose tokenizer.json cuts and pads."""
    tokenizer.backend_tokenizer.enable_truncation(16)
    tokenizer.backend_tokenizer.enable_padding(length=16)
    vectors = np.random.default_rng(0).normal(size=(40, 12))
    words = fit(Encoder(tokenizer), TEXTS, vectors, RidgeSettings(1.0, 0, sublinear=False)).words
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
    expected = directions_of(words, STATIC)
    model = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode(STATIC), expected, atol=1e-5)
    lengths = np.linalg.norm(model.encode(STATIC), axis=1)
    np.testing.assert_allclose(lengths, expected.any(axis=1), atol=1e-5)  # 1, or 0 for what has no known token
    assert not lengths[5]


def test_model2vec_gives_the_same_vectors(words, folder):
    model2vec = pytest.importorskip("model2vec")
    vectors = model2vec.StaticModel.from_pretrained(str(folder)).encode(STATIC, max_length=None)
    np.testing.assert_allclose(vectors, directions_of(words, STATIC), atol=1e-5)
