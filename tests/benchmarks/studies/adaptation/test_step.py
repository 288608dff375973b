"""The step of the study of adaptation: baselines against formulas, and rows as others rely on them."""

import numpy as np
import pytest

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.adaptation import step
from benchmarks.studies.adaptation.sets import DataSet, Measured
from docsplit.embedding.loading import load_encoder
from docsplit.runtime.vectors import unit
from tests.benchmarks.studies.adaptation.vectors import vectors_of
from tests.conftest import make_corpus


def test_whitening_and_removed_components_against_their_definitions():
    vectors = vectors_of(400)
    covariance = np.cov(vectors, rowvar=False)
    inverse = np.linalg.inv(np.linalg.cholesky(covariance))  # another root: cosines are the same
    expected = unit((vectors - vectors.mean(axis=0)) @ inverse.T)
    ours = step.whiten(vectors, vectors, None)
    np.testing.assert_allclose(ours @ ours.T, expected @ expected.T, atol=1e-3)
    assert step.whiten(vectors, vectors, 2).shape == (400, 2)
    top = np.linalg.eigh(covariance)[1][:, -1]
    rest = step.without_first_components(vectors, vectors, 1)
    np.testing.assert_allclose(rest @ top, 0, atol=1e-4)
    centred = step.without_first_components(vectors, vectors, 0)
    np.testing.assert_allclose(centred, unit(vectors - vectors.mean(axis=0)), atol=1e-5)


def _first_column(features):
    column = np.asarray(features[:, [0]].todense() if hasattr(features, "todense") else features[:, [0]]).ravel()
    return Measured("own", lambda rows: float(column[rows].mean()), len(column), {"other": 1.0})


def test_rows_of_what_needs_no_training():
    texts = [row["text"] for row in make_corpus(60)]
    data = DataSet("toy", texts[:40], texts, _first_column)
    read = [text[: len(text) // 3] for text in texts]
    more = vectors_of(60)[:, ::-1].copy()
    measured = dict(step.untrained(data, vectors_of(60), more, read))
    assert next(iter(measured)) == "start"
    assert {"whitening", "without the first component", "smoothing, 20 neighbours", "TF-IDF"} <= set(measured)
    assert {"word vectors", "with word vectors", "with word vectors, smoothed"} <= set(measured)
    assert {"word vectors of what the start reads", "with word vectors of that, smoothed"} <= set(measured)
    assert measured["word vectors"].value != measured["word vectors of what the start reads"].value
    assert measured["the start on 1024 tokens"].value == pytest.approx(more[:, 0].mean())
    assert measured["the start on 1024 tokens"].value != measured["start"].value
    assert measured["smoothing, 10 neighbours"].value != measured["smoothing, 10 neighbours of the encoder"].value
    rows = list(step.rows_of(measured["whitening"], measured["start"], method="whitening", part="test"))
    assert rows[0]["difference"] == pytest.approx(measured["whitening"].value - measured["start"].value)
    assert rows[0]["low"] < rows[0]["difference"] < rows[0]["high"]
    assert len(rows[0][SAMPLES]) == step.DRAWS
    assert rows[1] == {"method": "whitening", "part": "test", "metric": "other", "value": 1.0}
    (same, _) = step.rows_of(measured["start"], measured["start"], method="start", part="test")
    assert same["low"] == same["high"] == 0


def test_beginnings_are_what_a_cut_text_is_embedded_by(encoder):
    texts = [row["text"] for row in make_corpus(5)] + ["short", ""]
    model = load_encoder(str(encoder), "mean", 12)
    read = step.beginnings(model, texts, 12)
    assert all(text.startswith(beginning) for text, beginning in zip(texts, read))
    assert len(read[0]) < len(texts[0])
    assert read[-2:] == ["short", ""]
    np.testing.assert_allclose(model.encode(read), model.encode(texts), atol=1e-6)
    assert step.beginnings(model, read, 12) == read
