"""The best documents of each query: in blocks, with and without faiss, as a full sort finds them."""

import sys

import numpy as np
import pytest

from docsplit.embedding import inverted_file
from docsplit.embedding import search as module
from docsplit.embedding.search import make_comparable, search


def vectors(queries=30, documents=500, width=16):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(count, width)).astype(np.float32) for count in (queries, documents))


@pytest.fixture
def without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_QUERIES", 7)
    monkeypatch.setattr(module, "BLOCK_VALUES", 7 * 64)


def check(queries, documents, depth):
    retrieved = search(queries, documents, depth)
    scores = queries.astype(np.float64) @ documents.T.astype(np.float64)
    expected = np.sort(scores, axis=1)[:, ::-1][:, :depth]
    assert retrieved.scores == pytest.approx(expected, abs=1e-4)
    assert np.take_along_axis(scores, retrieved.rows.astype(int), axis=1) == pytest.approx(expected, abs=1e-4)
    assert all(len({*rows}) == len(rows) for rows in retrieved.rows.tolist())
    assert (np.diff(retrieved.scores) <= 0).all()


@pytest.mark.parametrize("depth", [1, 10, 100, 499])
def test_blocks_find_what_a_full_sort_finds(without_faiss, small_blocks, depth):
    check(*vectors(), depth)


def test_faiss_finds_the_same():
    pytest.importorskip("faiss")
    queries, documents = vectors()
    check(queries, documents, 50)
    blocks = module._in_blocks(queries, documents, 50)
    assert search(queries, documents, 50).scores == pytest.approx(blocks.scores, abs=1e-5)


def test_equal_scores_are_in_the_order_of_rows(without_faiss):
    queries = np.rint(next(iter(vectors())))  # whose products are exact
    retrieved = search(queries, np.tile(queries[:1], (9, 1)), 20)
    assert (retrieved.rows == np.arange(9)).all()  # and no more than there are


def test_cosine_is_of_unit_vectors_and_dot_of_vectors_as_they_are(monkeypatch):
    _, documents = vectors()
    before = documents.copy()
    make_comparable(documents, "dot")
    assert (documents == before).all()
    monkeypatch.setattr(module, "BLOCK_VECTORS", 64)
    make_comparable(documents, "cosine")
    assert documents == pytest.approx(before / np.linalg.norm(before, axis=1, keepdims=True), abs=1e-6)


# --- The inverted file ---


def vectors_of(count: int, width: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def test_rows_are_counted_through_all_parts():
    parts = [vectors_of(size, 4, seed) for seed, size in enumerate((3, 1, 5))]
    rows = np.array([[8, 0], [3, 4]])
    assert (inverted_file.vectors_of(parts, rows) == np.concatenate(parts)[rows]).all()


@pytest.mark.parametrize("count", [20, 3000])
def test_most_of_the_best_are_found_and_their_scores_are_exact(count, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(inverted_file, "CHUNK", 700)
    monkeypatch.setattr(inverted_file, "CHUNK_VALUES", 16_000)  # ten queries
    parts = np.split(vectors_of(count), [count // 3])
    documents, queries = np.concatenate(parts), vectors_of(25, seed=1)
    index, recall = inverted_file.make(parts)
    rows, scores = inverted_file.search(index, parts, queries, 40)
    exact = queries @ documents.T
    there = min(count, 40)
    assert (np.sort(-scores, axis=1) == -scores).all()
    assert (rows[:, there:] == -1).all()
    assert np.isneginf(scores[rows < 0]).all()
    np.testing.assert_allclose(scores[rows >= 0], np.take_along_axis(exact, rows, axis=1)[rows >= 0], atol=1e-5)
    best = np.argsort(-exact, axis=1)[:, :there]
    share = np.mean([len({*approximate} & {*true}) / there for approximate, true in zip(rows.tolist(), best.tolist())])
    assert min(share, recall) > 0.9
