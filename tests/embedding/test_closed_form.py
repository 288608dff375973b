"""The closed form: what training arrives at, canonical correlations, and halves as the view draws them."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.cross_decomposition import CCA

from docsplit.data.views import docsplit
from docsplit.embedding import closed_form


def halves_that_agree(count=200, width=6, shared=3):
    """Two halves of each document, (n, D) each, with a common part; some directions vary more than others."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(count, shared)) @ rng.normal(size=(shared, width))
    scale = np.linspace(0.5, 2, width)
    return [1.5 + common + scale * rng.normal(size=(count, width)) for _ in range(2)]


def counts_of(num_documents=60, size=30, topics=3):
    """Documents of a few topics of their own words and of common ones."""
    rng = np.random.default_rng(0)
    rows = np.zeros((num_documents, size), dtype=np.float32)
    for number, row in enumerate(rows):
        own = np.arange(size // topics) + (number % topics) * (size // topics)
        np.add.at(row, rng.choice(own, 20), 1)
        np.add.at(row, rng.choice(size, 10), 1)
    return csr_matrix(rows)


def test_training_a_linear_encoder_arrives_at_it():
    first, second = halves_that_agree()
    ridge, width = 0.5, 2
    agreements, directions = closed_form.agreeing(*closed_form.moments([(first, second)]), ridge)
    assert agreements[0] > 2 * agreements[width] > 0  # there is something to find and to leave
    kept = directions[:, :width] * agreements[:width] ** 0.5
    mean = (first.mean(axis=0) + second.mean(axis=0)) / 2
    a, b = (torch.from_numpy(half - mean) for half in (first, second))
    rows = torch.cat([a, b])
    rows = torch.cat([rows, (ridge * rows.square().mean() * len(rows)) ** 0.5 * torch.eye(6)])  # the ridge, as rows
    torch.manual_seed(0)
    encoder = torch.randn(6, width, dtype=torch.float64).mul_(0.1).requires_grad_()
    optimizer = torch.optim.LBFGS([encoder], max_iter=500, tolerance_change=1e-14, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        agree = ((a @ encoder) * (b @ encoder)).sum(dim=1).mean()
        products = (rows @ encoder) @ (rows @ encoder).T / (2 * len(a))  # of all pairs
        value = -2 * agree + products.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    trained = (encoder @ encoder.T).detach().numpy()  # free of rotations
    np.testing.assert_allclose(trained, kept @ kept.T, atol=1e-4 * np.abs(trained).max())


def test_without_a_ridge_these_are_canonical_correlations():
    first, second = halves_that_agree()
    agreements, directions = closed_form.agreeing(*closed_form.moments([(first, second)]), 0)
    one, other = np.concatenate([first, second]), np.concatenate([second, first])
    of_library = CCA(3, scale=False, max_iter=5000, tol=1e-12).fit(one, other)
    scores = of_library.transform(one, other)
    correlations = [np.corrcoef(scores[0][:, place], scores[1][:, place])[0, 1] for place in range(3)]
    np.testing.assert_allclose(agreements[:3], correlations, atol=1e-5)
    ours = (one - one.mean(axis=0)) @ directions[:, :3]
    for place in range(3):
        assert abs(np.corrcoef(ours[:, place], scores[0][:, place])[0, 1]) == pytest.approx(1, abs=1e-4)


def test_moments_are_sums_over_documents():
    first, second = halves_that_agree()
    mean = np.concatenate([first, second]).mean(axis=0)
    a, b = first - mean, second - mean
    covariance, cross = closed_form.moments((first[rows], second[rows]) for rows in np.array_split(range(200), 7))
    np.testing.assert_allclose(covariance, (a.T @ a + b.T @ b) / 400, atol=1e-9)
    np.testing.assert_allclose(cross, (a.T @ b + b.T @ a) / 400, atol=1e-9)


def test_halves_of_tokens_are_those_of_the_view():
    counts = csr_matrix(np.array([[1, 0, 1], [0, 3, 1], [2, 0, 0]], dtype=np.float32))
    rng, draws = np.random.default_rng(0), 1500
    drawn = np.zeros((3, 3))
    for _ in range(draws):
        first, second = closed_form.halves_of_tokens(counts, rng)
        assert ((first + second) != counts).nnz == 0
        assert min(half.sum(axis=1).min() for half in (first, second)) > 0
        drawn += first.toarray() ** 2  # the mean alone is a half of any such law
    words = [[0, 2], [1, 1, 1, 2], [0, 0]]
    of_view = np.zeros((3, 3))
    for row, of_document in enumerate(words):
        for _ in range(draws):
            mask, _ = docsplit(np.ones(len(of_document), dtype=int), rng)
            of_view[row] += np.bincount(np.array(of_document)[mask], minlength=3) ** 2
    np.testing.assert_allclose(drawn / draws, of_view / draws, atol=0.2)


def test_topics_are_found_and_a_document_without_words_is_zero():
    counts = counts_of()
    fitted = closed_form.fit(counts, width=2)
    vectors = fitted.vectors(counts)
    assert (vectors.shape, fitted.table.shape) == ((60, 2), (30, 2))
    near = vectors @ vectors.T
    same = np.equal.outer(np.arange(60) % 3, np.arange(60) % 3)
    assert near[same].min() > 0.5 > near[~same].max()
    again = closed_form.fit(counts, width=2).vectors(counts)
    assert np.array_equal(vectors, again)
    # Slowly: means of token vectors, whose mean over documents is zero
    dense = counts.toarray()
    rows = (dense / dense.sum(axis=1, keepdims=True))[:, fitted.tokens] @ fitted.table
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-5 * np.abs(rows).max())
    np.testing.assert_allclose(vectors, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-5)
    assert not fitted.vectors(csr_matrix((1, 30), dtype=np.float32)).any()


def test_documents_that_cannot_be_halved_are_counted_and_too_few_are_refused():
    counts = counts_of()
    short = csr_matrix(([1.0, 1.0], ([0, 1], [0, 0])), shape=(2, 30), dtype=np.float32)
    both = csr_matrix(np.concatenate([counts.toarray(), short.toarray(), np.zeros((1, 30), dtype=np.float32)]))
    fitted = closed_form.fit(both, width=2)
    assert fitted.halved == 60
    assert np.isfinite(fitted.vectors(both)).all()
    with pytest.raises(ValueError, match="19 documents have two words"):
        closed_form.fit(csr_matrix(np.concatenate([counts.toarray()[:19], short.toarray()[:1]])))
