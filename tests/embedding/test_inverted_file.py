"""The inverted file against an exact search."""

import numpy as np
import pytest

from docsplit.embedding import inverted_file


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


def test_few_cells_are_not_enough():
    """The measured recall grows with the cells that are read: it is not a constant."""
    pytest.importorskip("faiss")
    documents = vectors_of(3000)
    index, recall = inverted_file.make([documents])
    assert index.nprobe > 1
    index.nprobe = 1
    rows, _ = inverted_file.search(index, [documents], documents[:100], 10)
    best = np.argsort(-(documents[:100] @ documents.T), axis=1)[:, :10]
    assert (
        np.mean([len({*approximate} & {*exact}) / 10 for approximate, exact in zip(rows.tolist(), best.tolist())])
        < recall - 0.2
    )
