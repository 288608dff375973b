"""Geometry of documents against loops: hubs, mean cosine, halves."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import skew

from docsplit.evaluation.analysis.geometry import effective_rank, geometry, hubness, mean_cosine, spread, usage

GENERATOR = np.random.default_rng(0)


def neighbours_of(vectors, count):
    cosines = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    np.fill_diagonal(cosines, -2)
    return np.argsort(-cosines, axis=1)[:, :count]


def test_hubs_against_counting():
    neighbours = neighbours_of(GENERATOR.normal(size=(50, 6)), 5)
    counts = Counter(neighbours.ravel().tolist())
    of_each = [counts[document] for document in range(50)]
    found = hubness(neighbours)
    assert found["hubness"] == pytest.approx(skew(of_each))
    assert found["largest_hub"] == pytest.approx(max(of_each) / 5)
    assert found["antihubs"] == pytest.approx(of_each.count(0) / 50)


def test_mean_cosine_against_a_loop():
    vectors = GENERATOR.normal(1, 1, size=(30, 8)).astype(np.float32)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for i, a in enumerate(vectors) for b in vectors[:i]]
    assert mean_cosine(vectors) == pytest.approx(np.mean(cosines), abs=1e-6)


def test_collapsed_vectors_show_it():
    spread_out = GENERATOR.normal(size=(300, 16)).astype(np.float32)
    collapsed = 1 + 0.01 * spread_out
    halves = GENERATOR.normal(size=(20, 2, 16)).astype(np.float32)
    good, bad = (geometry(vectors, halves, neighbours_of(vectors, 10)) for vectors in (spread_out, collapsed))
    assert good["dimension_std"] == pytest.approx(1, abs=0.05)  # times the root of the width
    assert bad["dimension_std"] < 0.1
    assert abs(good["mean_cosine"]) < 0.05
    assert bad["mean_cosine"] > 0.99
    assert 14 < good["effective_rank"] <= 16 == good["width"]
    same = geometry(spread_out, np.repeat(halves[:, :1], 2, axis=1), neighbours_of(spread_out, 10))
    assert same["alignment"] == pytest.approx(0, abs=1e-5)
    assert good["alignment"] > 1


def test_spread_and_usage_against_loops():
    vectors = np.random.default_rng(0).normal(size=(40, 5)) * [1, 1, 0.3, 2, 0]
    vectors[:, 1] += vectors[:, 0]
    vectors = vectors.astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    pairs = [
        abs(np.corrcoef(unit[:, i], unit[:, j])[0, 1]) for i in range(4) for j in range(i)
    ]  # the last is constant
    ours = spread(vectors)
    assert ours["dimension_correlation"] == pytest.approx(np.mean(pairs))
    assert ours["dimension_std"] == pytest.approx(np.mean([np.std(column) for column in unit.T]))
    assert ours["effective_rank"] == pytest.approx(effective_rank(unit))
    collapsed = spread(np.ones((6, 4), dtype=np.float32))
    assert collapsed == pytest.approx({"dimension_std": 0, "dimension_correlation": 0, "effective_rank": 1}, abs=1e-6)
    assert usage(np.array([0, 3, 0, 3])) == pytest.approx({"active": 0.5, "entropy": math.log(2)})
    assert usage(np.array([5, 0])) == {"active": 0.5, "entropy": 0}
