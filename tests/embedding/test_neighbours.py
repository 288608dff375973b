"""The best documents of each query as a full sort finds them, and averages with neighbours as a loop makes them."""

import re
import sys
from collections import Counter

import numpy as np
import pytest

from docsplit.embedding import neighbours
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.lexical_ridge import fit, save_with_words
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.vectors import unit
from tests.conftest import make_corpus


def vectors_of(size, width=8, seed=0):
    return np.random.default_rng(seed).normal(size=(size, width)).astype(np.float32)


# --- The best for queries ---


def drawn(queries=30, documents=500, width=16):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(count, width)).astype(np.float32) for count in (queries, documents))


@pytest.fixture
def without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK_QUERIES", 7)
    monkeypatch.setattr(neighbours, "BLOCK_VALUES", 7 * 64)


def check(queries, documents, depth):
    retrieved = neighbours.search(queries, documents, depth)
    scores = queries.astype(np.float64) @ documents.T.astype(np.float64)
    expected = np.sort(scores, axis=1)[:, ::-1][:, :depth]
    assert retrieved.scores == pytest.approx(expected, abs=1e-4)
    assert np.take_along_axis(scores, retrieved.rows.astype(int), axis=1) == pytest.approx(expected, abs=1e-4)
    assert all(len({*rows}) == len(rows) for rows in retrieved.rows.tolist())
    assert (np.diff(retrieved.scores) <= 0).all()


@pytest.mark.parametrize("depth", [1, 100])
def test_blocks_find_what_a_full_sort_finds(without_faiss, small_blocks, depth):
    check(*drawn(), depth)


def test_faiss_finds_the_same():
    pytest.importorskip("faiss")
    check(*drawn(), 50)


def test_equal_scores_are_in_the_order_of_rows(without_faiss):
    queries = np.rint(next(iter(drawn())))  # whose products are exact
    retrieved = neighbours.search(queries, np.tile(queries[:1], (9, 1)), 20)
    assert (retrieved.rows == np.arange(9)).all()  # and no more than there are


def test_cosine_is_of_unit_vectors_and_dot_of_vectors_as_they_are():
    _, documents = drawn()
    before = documents.copy()
    neighbours.make_comparable(documents, "dot")
    assert (documents == before).all()
    neighbours.make_comparable(documents, "cosine")
    np.testing.assert_array_equal(documents, unit(before))


@pytest.mark.parametrize("count", [20, 3000])
def test_most_of_the_best_are_found_and_their_scores_are_exact(count, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbours, "CHUNK", 700)
    monkeypatch.setattr(neighbours, "CANDIDATE_VALUES", 16_000)  # ten queries
    parts = np.split(vectors_of(count, 16), [count // 3])
    documents, queries = np.concatenate(parts), vectors_of(25, 16, seed=1)
    index, recall = neighbours.make_inverted_file(parts)
    rows, scores = neighbours.search_inverted_file(index, parts, queries, 40)
    exact = queries @ documents.T
    there = min(count, 40)
    assert (np.sort(-scores, axis=1) == -scores).all()
    assert (rows[:, there:] == -1).all()
    assert np.isneginf(scores[rows < 0]).all()
    np.testing.assert_allclose(scores[rows >= 0], np.take_along_axis(exact, rows, axis=1)[rows >= 0], atol=1e-5)
    best = np.argsort(-exact, axis=1)[:, :there]
    share = np.mean([len({*approximate} & {*true}) / there for approximate, true in zip(rows.tolist(), best.tolist())])
    assert min(share, recall) > 0.9


# --- Neighbours, and averages with them ---


def smooth_slowly(vectors, count, rounds, share, temperature, words=None):
    """One document after another, in float64."""
    vectors = unit(vectors).astype(np.float64)
    words = np.zeros((len(vectors), 1)) if words is None else words.astype(np.float64)
    for _ in range(rounds):
        averaged = []
        for number, vector in enumerate(vectors):
            near = vectors @ vector + words @ words[number]
            near[number] = -np.inf
            best = np.argsort(-near)[:count]
            weights = np.exp(near[best] / temperature)
            averaged.append((1 - share) * vector + share * weights @ vectors[best] / weights.sum())
        vectors = np.array(averaged) / np.linalg.norm(averaged, axis=1, keepdims=True)
    return vectors


def test_nearest_against_sorting_all():
    vectors = unit(vectors_of(40, 5))
    rows, cosines = neighbours.nearest(vectors, 4, chunk=7)
    products = vectors @ vectors.T - 9 * np.eye(40)
    np.testing.assert_array_equal(rows, np.argsort(-products, axis=1)[:, :4])
    np.testing.assert_allclose(cosines, np.take_along_axis(products, rows, axis=1), atol=1e-6)


@pytest.mark.parametrize(
    ("count", "rounds", "share", "temperature"),
    [(4, 1, 0.5, 0.1), (3, 3, 0.3, 0.5), (0, 2, 0.5, 0.1), (4, 0, 0.5, 0.1)],
)
def test_smoothing_against_a_loop(count, rounds, share, temperature, monkeypatch):
    monkeypatch.setattr(neighbours, "CHUNK_VALUES", 100)  # several chunks of documents
    vectors = vectors_of(30)
    for words in (None, unit(vectors_of(30, 5, seed=1))):
        ours = neighbours.smooth(vectors, count, rounds, share, temperature, words)
        expected = smooth_slowly(vectors, count, rounds if count else 0, share, temperature, words)
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_word_vectors_have_the_cosines_of_tf_idf(monkeypatch):
    """Fewer documents than dimensions: nothing is lost. A word counts if it is in two documents."""
    texts = [row["text"] for row in make_corpus(38)] + ["kaikkein hiisi", "北京大学 kaikkein"]
    counts = [Counter(re.findall(r"[北京大学]|[a-z]{2,}", text.lower())) for text in texts]
    num_texts = {
        word: sum(word in text_counts for text_counts in counts) for text_counts in counts for word in text_counts
    }
    kept = [word for word, number in num_texts.items() if number > 1]
    assert len(kept) < len(num_texts)
    rows = [
        [(1 + np.log(n)) * (np.log(41 / (num_texts[w] + 1)) + 1) if (n := text_counts[w]) else 0 for w in kept]
        for text_counts in counts
    ]
    expected = unit(np.array(rows))
    vectors = neighbours.word_vectors(texts)
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)
    assert vectors[-1] @ vectors[-2] > 0.99
    monkeypatch.setattr(neighbours, "WORD_DIMENSIONS", 3)
    assert neighbours.word_vectors(texts).shape == (40, 3)
    monkeypatch.setattr(neighbours, "WORD_DOCUMENTS", 20)  # every second document: of these "kaikkein" is in one
    assert not neighbours.word_vectors(texts)[-1].any()


def test_few_documents_are_averaged_with_all_others(caplog):
    vectors = vectors_of(4)
    np.testing.assert_allclose(neighbours.smooth(vectors, 20, 1), smooth_slowly(vectors, 3, 1, 0.5, 0.1), atol=1e-5)
    assert "20 neighbours of 4 documents" in caplog.text
    with pytest.raises(ValueError, match="1 document has no neighbours"):
        neighbours.smooth(vectors[:1])


def test_a_document_that_stands_twice_is_not_its_own_neighbour():
    texts = [row["text"] for row in make_corpus(12)]
    vectors = vectors_of(12)
    copies = [*texts, *(f" {text}\n" for text in texts)], np.tile(vectors, (2, 1)), 2
    assert neighbours.word_vectors(texts).any()
    for by_words in (True, False):
        expected = smooth_slowly(vectors, 2, 2, 0.5, 0.1, neighbours.word_vectors(texts) if by_words else None)
        np.testing.assert_allclose(neighbours.smooth_texts(*copies, by_words), np.tile(expected, (2, 1)), atol=1e-5)


def test_a_large_corpus_needs_faiss(monkeypatch):
    monkeypatch.setattr(neighbours, "EXACT_DOCUMENTS", 10)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ValueError, match="pip install faiss-cpu"):
        neighbours.smooth(vectors_of(11))


def test_the_approximate_search_finds_most_neighbours():
    pytest.importorskip("faiss")
    centres = vectors_of(60, 16)
    vectors = unit(np.repeat(centres, 50, axis=0) + 0.3 * vectors_of(3000, 16, seed=1))
    exact, cosines = neighbours.nearest(vectors, 10)
    rows, theirs = neighbours.nearest_approximately(vectors, 10)
    assert not (rows == np.arange(3000)[:, None]).any()
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact, rows)]) > 0.95
    np.testing.assert_allclose(theirs[:, 0], cosines[:, 0], atol=0.2)


def test_averages_are_of_vectors_with_words(scattered, tmp_path):
    texts = [row["text"] for row in make_corpus(30)]
    model = load_encoder(str(scattered))
    save_with_words(model, fit(model, texts, model.encode(texts)).words, 1.0, tmp_path / "words")
    name = str(tmp_path / "words")
    options = {"dtype": "float32", "smooth_neighbours": 3}
    smoothed, facts = Encoder(name, EncoderArguments([name], **options)).embed_all(texts)
    with_words = load_encoder(name).encode_document(texts)
    expected = smooth_slowly(with_words, 3, 2, 0.5, 0.1, neighbours.word_vectors(texts))
    np.testing.assert_allclose(smoothed, expected, atol=1e-4)
    assert np.abs(smoothed - smooth_slowly(model.encode(texts), 3, 2, 0.5, 0.1)).max() > 0.01
    assert facts["smooth_neighbours"] == 3
