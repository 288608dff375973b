"""Clusters: purity, NMI and the rest against their definitions; fitted on train, assigned on test."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from docsplit.evaluation.analysis.clustering import (
    cluster,
    cluster_measures,
    clusterings,
    purity_items,
    tfidf_svd,
)
from docsplit.evaluation.heads.frozen import tfidf_features
from docsplit.evaluation.results.report import comparisons, records, rows
from docsplit.evaluation.results.result import CLUSTERING

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 4, 60)
CLUSTERS = np.where(GENERATOR.random((3, 60)) < 0.6, (LABELS + 7) % 4, GENERATOR.integers(0, 6, (3, 60)))


def entropy(values):
    shares = np.array(list(Counter(values).values())) / len(values)
    return -(shares * np.log(shares)).sum()


def test_measures_against_their_definitions():
    measured = cluster_measures(CLUSTERS, LABELS)
    assert set(measured) == set(CLUSTERING.measures)
    for run, clusters in enumerate(CLUSTERS):
        majority = [Counter(LABELS[clusters == own]).most_common(1)[0][1] for own in set(clusters)]
        assert measured["purity"].of_runs()[run] == pytest.approx(sum(majority) / 60)
        of_labels, of_clusters = entropy(LABELS.tolist()), entropy(clusters.tolist())
        mutual = of_labels + of_clusters - entropy(list(zip(LABELS.tolist(), clusters.tolist())))
        assert measured["nmi"][run] == pytest.approx(2 * mutual / (of_labels + of_clusters))
        assert measured["nmi_sqrt"][run] == pytest.approx(mutual / (of_labels * of_clusters) ** 0.5)
        assert measured["nmi_max"][run] == pytest.approx(mutual / max(of_labels, of_clusters))
        assert measured["v_measure"][run] == pytest.approx(measured["nmi"][run])
        same = [(a == b, c == d) for a, c in zip(LABELS, clusters) for b, d in zip(LABELS, clusters)]
        together = np.array(same)[~np.eye(60, dtype=bool).ravel()]
        both, own, theirs = together.all(axis=1).mean(), *together.mean(axis=0)
        assert measured["ari"][run] == pytest.approx((both - own * theirs) / ((own + theirs) / 2 - own * theirs))


def blobs(size, centres, labels=None):
    labels = GENERATOR.integers(len(centres), size=size) if labels is None else labels
    return centres[labels] + 0.1 * GENERATOR.normal(size=(size, centres.shape[1])), labels


def test_clusters_are_fitted_on_train_and_test_is_assigned():
    centres = 10 * np.eye(3)
    train, _ = blobs(60, centres)
    test, labels = blobs(40, centres[:2])  # nothing of the third is tested
    clusters, _ = cluster(train, test, 3, num_seeds=2)
    assert clusters.shape == (2, 40)
    assert all(len(np.unique(run)) == 2 for run in clusters)  # fitted on test there would be three
    assert purity_items(clusters, labels).of_runs() == pytest.approx([1, 1])


def test_rows_of_both_kinds_with_their_spread():
    """Lengths of vectors say nothing: where they differ, k-means finds classes in normalised vectors alone."""
    centres = np.eye(3)
    features, labels = {}, {}
    for part in ("train", "test"):
        vectors, labels[part] = blobs(150, centres)
        features[part] = vectors * GENERATOR.uniform(0.05, 20, (150, 1))
    split = SimpleNamespace(train_labels=labels["train"], test_labels=labels["test"])
    found = clusterings("a", {"raw": features}, split, num_seeds=3, seed=0, info={"num_parameters": 1})
    table = {row["features"]: row for row in records(rows(found))}
    assert set(table) == {"raw", "normalized"}
    assert table["normalized"]["purity_mean"] > 0.99 > table["raw"]["purity_mean"]
    assert table["raw"]["runs"] == 3
    assert table["raw"]["purity_low"] < table["raw"]["purity_mean"] < table["raw"]["purity_high"]
    other = clusterings("b", {"raw": features}, split, num_seeds=3, seed=9, info={"num_parameters": 1})
    assert comparisons([*found, *other])["features"].tolist() == ["raw", "normalized"]


def test_tfidf_svd_is_fitted_on_train():
    texts = [f"{word} {other}" for word in ("ship", "bread") for other in ("rope", "oven", "sail", "salt")]
    train, test = tfidf_features(texts, texts[:3])
    features = tfidf_svd({"train": train, "test": test})
    np.testing.assert_allclose(features["test"], features["train"][:3], atol=1e-5)
    assert features["train"].shape == (8, 5)  # one less than there are words
    one, _ = tfidf_features(["a single ship"], ["ship"])
    assert tfidf_svd({"train": one})["train"].shape == (1, 1)
    gram = (train @ train.T).toarray()
    eigenvalues = np.sort(np.linalg.eigvalsh(gram))[::-1]
    np.testing.assert_allclose(np.sort((features["train"] ** 2).sum(axis=0))[::-1], eigenvalues[:5], rtol=1e-3)
