"""Every way to the ridge solution is numpy's dense one, and leave-one-out is refitting without each document."""

import logging

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LinearRegression

from docsplit.embedding import ridge
from docsplit.embedding.ridge import Decomposed, conjugate_gradients, explained, leave_one_out, weights

PENALTIES = (0.1, 1.0, 10.0)


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


def use(way, patch):
    """Let `weights` and `leave_one_out` go one way, whatever the size."""
    patch.setattr(ridge, "DUAL_DOCUMENTS", 10**9 if way == "dual" else 0)
    patch.setattr(ridge, "PRIMAL_FEATURES", 10**9 if way == "primal" else 0)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("shape", [(40, 60), (60, 25)], ids=["more features", "more documents"])
def test_all_ways_give_the_dense_solution(penalty, shape, monkeypatch):
    features, targets = draw(*shape)
    expected = solve(features, targets, penalty)
    assert np.abs(expected).max() > 0.05
    for way, distance in (("dual", 1e-5), ("primal", 1e-5), ("gradients", 1e-3)):
        use(way, monkeypatch)
        np.testing.assert_allclose(weights(features, targets, penalty), expected, atol=distance, err_msg=way)
    np.testing.assert_allclose(conjugate_gradients(features, targets, penalty, 1e-7), expected, atol=1e-5)


@pytest.mark.parametrize("way", ["dual", "primal"])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_leave_one_out_is_refitting_without_each_document(way, penalty, monkeypatch):
    features, targets = draw()
    expected = np.empty(targets.shape)
    for row in range(len(targets)):
        others = np.arange(len(targets)) != row
        expected[row] = features[row] @ solve(features[others], targets[others], penalty)
    use(way, monkeypatch)
    monkeypatch.setattr(ridge, "BLOCK", 7)
    outputs = leave_one_out(features, targets, penalty)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
    np.testing.assert_allclose(Decomposed.of(features).leave_one_out(targets, penalty), expected, atol=2e-5)
    assert np.abs(outputs - features @ solve(features, targets, penalty)).max() > 1e-2  # not the fitted ones


def test_where_neither_fits_each_document_is_left_out_with_a_fifth(monkeypatch):
    features, targets = draw()
    use("gradients", monkeypatch)
    outputs = leave_one_out(features, targets, 1.0)
    fold_of = np.random.default_rng(0).permutation(len(targets)) % ridge.FOLDS
    for fold in range(ridge.FOLDS):
        outside, inside = fold_of != fold, fold_of == fold
        assert 0 < inside.sum() <= -(-len(targets) // ridge.FOLDS)
        expected = features[inside] @ solve(features[outside], targets[outside], 1.0)
        np.testing.assert_allclose(outputs[inside], expected, atol=1e-3)


def test_a_document_that_shares_nothing_is_predicted_by_nothing():
    features = csr_matrix(np.diag([1.0, 1, 1, 0]).astype(np.float32))
    outputs = leave_one_out(features, np.ones((4, 2), dtype=np.float32), 1e-9)
    np.testing.assert_allclose(outputs, 0, atol=1e-2)


def test_gradients_that_have_not_converged_are_named(monkeypatch, caplog):
    features, targets = draw()
    with caplog.at_level(logging.WARNING):
        conjugate_gradients(features, targets, 1.0)
        assert caplog.text == ""
        monkeypatch.setattr(ridge, "MOST_ITERATIONS", 2)
        conjugate_gradients(features, targets, 1e-3)
    assert "conjugate gradients stopped after 2 steps. A penalty above 0.001 needs fewer" in caplog.text


def test_sums_over_many_documents_keep_their_digits():
    """Long documents of few tokens: nearly every document has every token, about as often as the others have it."""
    rng = np.random.default_rng(0)
    dense = 1 + np.log(rng.poisson(2000, (100_000, 20)).astype(np.float32))
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    targets = (dense @ rng.normal(size=(20, 3)) + 0.1 * rng.normal(size=(len(dense), 3))).astype(np.float32)
    features = csr_matrix(dense)
    expected = solve(features, targets, 0.1)
    found = weights(features, targets, 0.1)
    assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)
    residuals = targets - dense @ expected
    leverages = np.einsum("np,pq,nq->n", dense, np.linalg.inv(dense.T.astype(float) @ dense + 0.1 * np.eye(20)), dense)
    outputs = leave_one_out(features, targets, 0.1)
    np.testing.assert_allclose(outputs, targets - residuals / (1 - leverages)[:, None], atol=1e-6)


def test_gradients_converge_on_dimensions_of_an_encoder_that_are_dead(caplog):
    """Of all-MiniLM-L6-v2 three are: up to 1e-32 and 1e-7 for any document."""
    features, targets = draw(60, 90)
    targets[:, 0] *= 1e-7
    targets[:, 1] *= 1e-32
    with caplog.at_level(logging.WARNING):
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
