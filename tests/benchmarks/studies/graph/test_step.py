"""The step of the study of graphs: which documents it reads, what it standardises and what it draws."""

import json
from dataclasses import replace

import numpy as np

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.adaptation.sets import DataSet, Measured
from benchmarks.studies.graph import step


def test_words_are_learnt_from_the_training_documents_alone(monkeypatch, tmp_path):
    texts = [f"known {word} text number {row}" for row, word in enumerate(["shared", "other"] * 10)]
    measured = Measured("f1", lambda rows: 0.5, 4)
    seen = []
    data = DataSet(
        "links", texts[:16], [*texts[:16], *["known unseen"] * 4], lambda vectors: seen.append(vectors) or measured
    )
    monkeypatch.setattr(step, "load", lambda *args, **options: replace(data, bm25=lambda: measured))
    rows = run_step(monkeypatch, tmp_path, "--data", "aan", "--encoder", "tfidf")
    assert [row["method"] for row in rows] == ["TF-IDF", "TF-IDF + SVD", "BM25"]
    counts, dense = seen
    assert (counts[-1].nnz, counts.shape[0], len(dense)) == (1, 20, 20)  # "unseen" is no column


def test_rows_of_a_fine_tuned_encoder_have_its_curve(monkeypatch, tmp_path):
    curve = [{"epoch": 0.25, "accuracy": 0.1}]
    results = {"rows": [{"accuracy_mean": 0.3, "validation_curves": [curve]}]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (row,) = run_step(monkeypatch, tmp_path, "--data", "20news", "--finetuned", str(tmp_path / "results.json"))
    assert row == {"data": "20news", "metric": "fine-tuned accuracy", "value": 0.3, "curve": curve}


def run_step(monkeypatch, folder, *options):
    given = ["--data_dir", str(folder), "--rows", str(folder / "rows.json"), *options]
    monkeypatch.setattr("sys.argv", ["step", *given])
    step.main()
    return json.loads((folder / "rows.json").read_text())


def test_two_encoders_are_drawn_the_same_items():
    first, second = (Measured("f1", lambda rows, values=values: float(values[rows].mean()), 50)
                     for values in (np.arange(50.0), 1 - np.arange(50.0)))  # fmt: skip
    samples, two = (step.on_items(measured, np.arange(50)) for measured in (first, second))
    np.testing.assert_allclose(np.add(samples[SAMPLES], two[SAMPLES]), 1, atol=2e-5)
    assert len(set(samples[SAMPLES])) > 100


def test_standardised_vectors_and_raw_ones():
    """By the mean and deviation of training documents; a number that is always the same stays 0."""
    rng = np.random.default_rng(0)
    vectors = (np.array([5.0, 1.0, 3.0]) + rng.standard_normal((8, 3)) * [1, 10, 0]).astype(np.float32)
    given = []
    measured = Measured("f1", lambda rows: 0.5, 3)
    data = DataSet("classification", [], ["text"] * 8, lambda features: given.append(features) or measured)
    rows = list(step.rows_of_vectors(data, vectors, np.arange(6)))
    assert [row["metric"] for row in rows] == ["f1", "f1, short", "f1, medium", "f1, long", "f1, raw"]
    standardised, raw = given
    np.testing.assert_allclose(standardised[:6].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(standardised[:6].std(axis=0), [1, 1, 0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-5)


def test_of_links_only_papers_that_count_are_embedded(monkeypatch):
    """The papers of pairs are embedded, and some more that standardise."""
    texts = [f"paper {row}" for row in range(10)]
    data = DataSet("links", texts[4:], texts, lambda features: Measured("roc_auc", lambda rows: 0.5, 2))
    monkeypatch.setattr(step, "KNOWN", 2)
    embedded = []

    class CountingEncoder:
        def __init__(self, *loaded_from):
            pass

        def embed_all(self, given):
            embedded.extend(given)
            return np.array([[float(text.split()[1]) + 1] for text in given]), None

    monkeypatch.setattr(step, "Encoder", CountingEncoder)
    vectors, known = step.embed("ours", data, "truncate")
    assert embedded == texts[:6]
    np.testing.assert_array_equal(vectors[:, 0], [1, 2, 3, 4, 5, 6, 0, 0, 0, 0])
    assert known.tolist() == [4, 5]
