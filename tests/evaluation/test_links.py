"""Scores of pairs of papers against slow versions, and popularity where it should and should not know links."""

import numpy as np
import pytest
import scipy.sparse

from docsplit.data.sets import citations
from docsplit.data.sets.citations import CitationPairs, PairPart
from docsplit.evaluation import links


def accuracy(scores, labels):
    return float(np.mean((scores >= 0.5) == labels))


def as_pairs(parts):
    return CitationPairs([], [], *parts, counts={}, made_here=True)


def hub_pairs(seed, num_papers=400, num_pairs=600):
    """Positives that cite popular papers, negatives of any two, and papers in all three splits."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, num_papers + 1)
    parts = []
    for size in (num_pairs, num_pairs // 2, num_pairs // 2):
        cited = rng.choice(num_papers, size, p=weights / weights.sum())
        labels = np.repeat([1, 0], [size // 2, size - size // 2])
        second = np.where(labels == 1, cited, rng.integers(num_papers, size=size))
        parts.append(PairPart(rng.integers(num_papers, size=size), second, labels))
    return as_pairs(parts)


def test_popularity_sees_hubs_where_negatives_are_free():
    pairs = hub_pairs(0)
    baseline = accuracy(links.popularity(pairs), pairs.test.labels)
    assert baseline > 0.65
    assert "make splits with --citations_file" in links.popularity_warning(baseline, len(pairs.test.labels))
    np.testing.assert_array_equal(links.popularity(pairs, seed=1), links.popularity(pairs, seed=1))


def test_popularity_features_are_counts_and_no_labels_of_the_part():
    pairs = hub_pairs(1, num_pairs=60)
    part, train = pairs.test, pairs.train
    features = links.popularity_features(part, train)
    train_pairs = list(zip(train.first, train.second, train.labels))
    for row, pair in zip(features, zip(part.first, part.second)):
        expected = []
        for paper in pair:
            first, second = (part.first == paper).sum(), (part.second == paper).sum()
            seen = [sum((a == paper) + (b == paper) for a, b, y in train_pairs if y == label) for label in (1, 0)]
            expected += [first, second, first + second, *seen]
        np.testing.assert_allclose(row[:10], np.log1p(expected))
        left, right = row[2], row[7]
        np.testing.assert_allclose(row[10:], [abs(left - right), min(left, right), max(left, right), left * right])
    flipped = PairPart(part.first, part.second, 1 - part.labels)
    np.testing.assert_array_equal(features, links.popularity_features(flipped, train))


@pytest.mark.parametrize(
    ("share", "number", "chance", "warned"),
    [
        (0.53, 1000, 0.5, False),
        (0.55, 1000, 0.5, True),
        (0.55, 100, 0.5, False),
        (0.7, 1000, 0.7, False),
    ],
)
def test_the_warning_needs_more_than_noise(share, number, chance, warned):
    assert bool(links.popularity_warning(share, number, chance)) == warned


@pytest.fixture
def part():
    rng = np.random.default_rng(0)
    first, second = rng.integers(30, size=(2, 50))
    return PairPart(first, second, rng.integers(2, size=50))


def test_cosine_of_dense_and_sparse_embeddings(part, monkeypatch):
    monkeypatch.setattr(citations, "CHUNK_PAIRS", 7)
    embeddings = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)
    embeddings[part.first[0]] = 0
    expected = []
    for a, b in zip(embeddings[part.first].astype(np.float64), embeddings[part.second].astype(np.float64)):
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        expected.append(a @ b / norms if norms else 0.0)
    np.testing.assert_allclose(links.cosine_scores(embeddings, part), expected, atol=1e-6)
    np.testing.assert_allclose(links.cosine_scores(scipy.sparse.csr_matrix(embeddings), part), expected, atol=1e-6)
