"""The study of adaptation: its cells, what a step measures, and what its tables and pages say."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.engine.results import SAMPLES, Record, Results
from benchmarks.studies.adaptation import report, step
from benchmarks.studies.adaptation.sets import SETS, DataSet, Measured
from docsplit.embedding.lexical_ridge import RidgeFacts
from docsplit.embedding.loading import load_encoder
from docsplit.runtime.vectors import unit
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(60)]


def vectors_of(size, width=6):
    """Unit vectors (size, width), always the same."""
    return unit(np.random.default_rng(0).normal(size=(size, width)).astype(np.float32) + 0.5)


def _first_column(features):
    column = np.asarray(features[:, [0]].todense() if hasattr(features, "todense") else features[:, [0]]).ravel()
    return Measured("first", lambda rows: float(column[rows].mean()), len(column), {"accuracy": 1.0})


def toy(num_queries=0):
    """Two thirds of the texts to fit on; the last ones are tested."""
    return DataSet("toy", TEXTS[:40], TEXTS, _first_column, num_queries=num_queries, beside_bm25=_first_column)


# --- A step ---


def test_words_read_no_tested_text_leave_fitted_ones_out_and_queries_as_they_are(encoder, monkeypatch):
    model, vectors = load_encoder(str(encoder), "mean"), vectors_of(60)
    fitted = step.Fitted(toy(), model, vectors, vectors[:40])
    other = replace(toy(), texts=[*TEXTS[:59], "A text of quite other words."])
    again = step.Fitted(other, model, vectors, vectors[:40])
    np.testing.assert_array_equal(again.directions[:59], fitted.directions[:59])
    assert np.abs(again.directions[59] - fitted.directions[59]).max() > 0.01
    without = fitted.without_each()
    np.testing.assert_array_equal(without[40:], fitted.directions[40:])
    np.testing.assert_allclose(without[:40], fitted.ridge.leave_one_out(), atol=1e-6)
    monkeypatch.setattr(RidgeFacts, "weight", 1.0)
    searched = step.Fitted(toy(num_queries=20), model, vectors, vectors[:40]).with_words()
    np.testing.assert_array_equal(searched[40:], vectors[40:])
    np.testing.assert_allclose(searched[:40], unit(vectors + fitted.directions)[:40], atol=1e-6)


def test_rows_have_differences_to_the_start_on_the_same_items(encoder, tmp_path, run_here, monkeypatch):
    monkeypatch.setitem(SETS, "20news", lambda data_dir, size: toy())
    given = ["--data", "20news", "--data_dir", tmp_path, "--start", encoder, "--max_seq_length", 12]

    def rows_of(*options):
        run_here(step.main, *given, *options, "--rows", tmp_path / "rows.json")
        rows = json.loads((tmp_path / "rows.json").read_text())
        return {row["method"]: row for row in rows if "difference" in row}, rows

    rows, everything = rows_of()
    assert {"start", "words", "static", "words, leave-one-out", "words of what the start reads", "whitening",
            "with LSA of the corpus", "with word vectors, smoothed", "TF-IDF"} <= rows.keys()  # fmt: skip
    assert len({row["value"] for row in rows.values()}) > 10
    assert (rows["start"]["low"], rows["start"]["high"]) == (0, 0)
    whitened = rows["whitening"]
    assert whitened["difference"] == pytest.approx(whitened["value"] - rows["start"]["value"])
    assert whitened["low"] < whitened["difference"] < whitened["high"]
    assert len(whitened[SAMPLES]) == step.DRAWS
    assert {"seed": None, "part": "test", "metric": "accuracy", "value": 1.0}.items() <= everything[1].items()
    trained, _ = rows_of("--encoder", encoder, "--measure", "words")
    assert trained["adapt + words"]["value"] == rows["words"]["value"]
    monkeypatch.setitem(SETS, "20news", lambda data_dir, size: toy(20))
    searched, _ = rows_of()
    assert {"start + BM25", "words + BM25"} <= searched.keys()
    assert "words, leave-one-out" not in searched


# --- Tables and pages ---


def test_tables_pool_seeds_and_items(tmp_path):
    def row(data, method, seed, difference, **more):
        compared = {"difference": difference, "low": 0, "high": 0, SAMPLES: [difference - 0.01, difference + 0.01]}
        return {"cell": f"{method}{seed}", "data": data, "task": "t", "method": method, "seed": seed,
                "part": "test", "metric": "acc", "value": 0.5 + difference} | compared | more  # fmt: skip

    rows = [row("aan", "start", None, 0.0), row("aan", "adapt", 0, 0.02), row("aan", "adapt", 1, 0.04)]
    rows += [row("aan, small", "adapt", 0, -0.1), row("aan", "weak start, words", None, 0.3)]
    rows += [row("aan", "words", None, 0.08)]
    results = Results(
        not_run=["z"], cells={"x": Record("y", "failed", "x", "x"), "": Record("", "done", "", "", rows=rows)}
    )
    summary = report.summaries(rows)["aan", "adapt"]
    assert (summary.value, summary.difference, summary.seeds) == (pytest.approx(0.53), pytest.approx(0.03), 2)
    assert 0.01 <= summary.low < 0.02 < 0.04 < summary.high <= 0.05
    text = report.markdown(results)
    assert "| start | 50.0 |" in text
    assert re.search(r"\| adapt \| 53\.0 \(\+3\.0; \+1\.\d to \+4\.\d, 2 seeds\) \|", text)
    assert "| trained on the documents | **53.0** (+3.0) |" in text
    assert "| weak start, words | 80.0 (" in text.partition("From a weak start")[2]
    assert "| aan, small, acc | 40.0 (-10.0;" in text.partition("Other documents to adapt on")[2]
    assert report.against(rows, "words", "adapt")[1][:2] == ["aan", "+5.0"]
    assert "Cells not run: z. Failed: y." in text
    report.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
