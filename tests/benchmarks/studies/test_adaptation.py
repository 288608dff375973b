"""The study of adaptation: what a step measures, and what its tables say."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.engine.results import SAMPLES, Record, Results
from benchmarks.studies.adaptation import report, step
from benchmarks.studies.adaptation.sets import DataSet, Measured
from docsplit.runtime.vectors import unit
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(60)]


def _first_column(features):
    column = np.asarray(features[:, [0]].todense() if hasattr(features, "todense") else features[:, [0]]).ravel()
    return Measured("5shot_accuracy", lambda rows: float(column[rows].mean()), len(column), {"accuracy": 1.0})


def test_rows_have_differences_to_the_start_on_the_same_items_and_nothing_is_fitted_on_tested_texts(
    encoder, tmp_path, run_here, monkeypatch
):
    tested = TEXTS[40:]
    monkeypatch.setattr(step, "load", lambda name, data_dir, draw: DataSet(TEXTS[:40], [*TEXTS[:40], *tested],
                        lambda features: _first_column(features[:40])))  # fmt: skip
    monkeypatch.setattr(step, "model2vec", lambda start, texts: unit(np.ones((len(texts), 4), dtype=np.float32)))
    given = ["--data", "toy", "--data_dir", tmp_path, "--start", encoder, "--max_seq_length", 12]

    def measured():
        run_here(step.main, *given, "--rows", tmp_path / "rows.json")
        rows = json.loads((tmp_path / "rows.json").read_text())
        return {row["method"]: row for row in rows if SAMPLES in row}

    rows = measured()
    assert {"start", "words", "static", "whitening", "without components", "LSA", "with LSA"} <= rows.keys()
    assert (rows["start"]["low"], rows["start"]["high"], rows["start"]["tokens"]) == (0, 0, 12)
    whitened = rows["whitening"]
    assert whitened["difference"] == pytest.approx(whitened["value"] - rows["start"]["value"])
    assert whitened["low"] < whitened["difference"] < whitened["high"]
    tested[-1] = "A text of quite other words."
    assert {name: row["value"] for name, row in measured().items()} == {
        name: row["value"] for name, row in rows.items()
    }


def test_tables_pool_draws_and_items():
    def row(method, seed, difference):
        return {"cell": "", "encoder": "e", "tokens": 9, "data": "aan", "metric": "roc_auc", "method": method,
                "seed": seed, "value": 0.5 + difference, "difference": difference,
                SAMPLES: [difference - 0.01, difference + 0.01]}  # fmt: skip

    rows = [row("start", 0, 0.0), row("words", 0, 0.02), row("words", 1, 0.04), row("words", 1, 0.04)]
    rows += [row("start", 0, 0.0) | {"metric": "accuracy"}]
    text = report.markdown(Results(not_run=["z"], cells={"": Record("", "done", "", "", rows=rows)}))
    assert "citations of papers, ROC-AUC" in text
    words = report.pooled(pd.DataFrame(rows)).set_index("method").loc["words"]
    assert (words.value, words.difference, words.draws) == (pytest.approx(0.53), pytest.approx(0.03), 2)
    assert 0.01 <= words.low < 0.02 < 0.04 < words.high <= 0.05
    assert "**53.0 (+3.0;" in text
    assert "Cells not run: z. Failed: none." in text
