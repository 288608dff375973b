"""The study of adaptation: baselines against formulas, rows as others rely on them, and what its tables say."""

import json
import re

import numpy as np
import pytest
import yaml

from benchmarks.engine.study import Study
from benchmarks.studies.adaptation import measure as adaptation_measure
from benchmarks.studies.adaptation import report as adaptation
from benchmarks.studies.adaptation.limits import COPIES, CORPORA, LIMITS, near_duplicates
from benchmarks.studies.adaptation.sets import SETS, DataSet, Measured
from docsplit.embedding.loading import load_encoder
from docsplit.runtime.vectors import unit
from tests.conftest import make_corpus
from tests.processes import ROOT


def vectors_of(size, width=6):
    return unit(np.random.default_rng(0).normal(size=(size, width)).astype(np.float32) + 0.5)


def test_whitening_and_removed_components_against_their_definitions():
    vectors = vectors_of(400)
    covariance = np.cov(vectors, rowvar=False)
    inverse = np.linalg.inv(np.linalg.cholesky(covariance))  # another root: cosines are the same
    expected = unit((vectors - vectors.mean(axis=0)) @ inverse.T)
    ours = adaptation_measure.whiten(vectors, vectors, None)
    np.testing.assert_allclose(ours @ ours.T, expected @ expected.T, atol=1e-3)
    assert adaptation_measure.whiten(vectors, vectors, 2).shape == (400, 2)
    top = np.linalg.eigh(covariance)[1][:, -1]
    rest = adaptation_measure.without_first_components(vectors, vectors, 1)
    np.testing.assert_allclose(rest @ top, 0, atol=1e-4)
    centred = adaptation_measure.without_first_components(vectors, vectors, 0)
    np.testing.assert_allclose(centred, unit(vectors - vectors.mean(axis=0)), atol=1e-5)


def _first_column(features):
    column = np.asarray(features[:, [0]].todense() if hasattr(features, "todense") else features[:, [0]]).ravel()
    return Measured("own", lambda rows: float(column[rows].mean()), len(column), {"other": 1.0})


def test_rows_of_what_needs_no_training():
    texts = [row["text"] for row in make_corpus(60)]
    data = DataSet("toy", texts[:40], texts, _first_column)
    read = [text[: len(text) // 3] for text in texts]
    more = vectors_of(60)[:, ::-1].copy()
    found = dict(adaptation_measure.untrained(data, vectors_of(60), more, read))
    assert next(iter(found)) == "start"
    assert {"whitening", "without the first component", "smoothing, 20 neighbours", "TF-IDF"} <= set(found)
    assert {"word vectors", "with word vectors", "with word vectors, smoothed"} <= set(found)
    assert {"word vectors of what the start reads", "with word vectors of that, smoothed"} <= set(found)
    assert found["word vectors"].value != found["word vectors of what the start reads"].value
    assert found["the start on 1024 tokens"].value == pytest.approx(more[:, 0].mean())
    assert found["the start on 1024 tokens"].value != found["start"].value
    assert found["smoothing, 10 neighbours"].value != found["smoothing, 10 neighbours of the encoder"].value
    rows = list(adaptation_measure.rows_of(found["whitening"], found["start"], method="whitening", part="test"))
    assert rows[0]["difference"] == pytest.approx(found["whitening"].value - found["start"].value)
    assert rows[0]["low"] < rows[0]["difference"] < rows[0]["high"]
    assert len(rows[0]["bootstrap"]) == adaptation_measure.DRAWS
    assert rows[1] == {"method": "whitening", "part": "test", "metric": "other", "value": 1.0}
    (same, _) = adaptation_measure.rows_of(found["start"], found["start"], method="start", part="test")
    assert same["low"] == same["high"] == 0


def test_beginnings_are_what_a_cut_text_is_embedded_by(encoder):
    texts = [row["text"] for row in make_corpus(5)] + ["short", ""]
    model = load_encoder(str(encoder), "mean", 12)
    read = adaptation_measure.beginnings(model, texts, 12)
    assert all(text.startswith(own) for text, own in zip(texts, read))
    assert len(read[0]) < len(texts[0])
    assert read[-2:] == ["short", ""]
    np.testing.assert_allclose(model.encode(read), model.encode(texts), atol=1e-6)
    assert adaptation_measure.beginnings(model, read, 12) == read


def test_the_study_has_the_sets_and_cells_that_were_agreed(tmp_path):
    content = yaml.safe_load(adaptation.STUDY.read_text())
    (tmp_path / "files").mkdir()
    for name in ("20newsgroups", "aan", "cranfield", "ecthr", "wikipedia"):
        (tmp_path / "files" / name).mkdir()
        (tmp_path / "files" / name / "data.txt").write_text(name)
    given = {"data_dir": str(tmp_path / "files"), "model": "all-MiniLM-L6-v2", "masked_lm": "bert-base-uncased"}
    cells, waiting = Study(adaptation.STUDY, tmp_path, given).cells()
    searched = [cell for cell in cells.values() if cell.group.startswith("search")]
    assert len(searched) + waiting["search"] == 27
    assert sorted({cell.fields["data"] for cell in searched if cell.group != "search_words_too"}) == ["20news"]
    assert (
        waiting["adapt"]
        == waiting["adapt_without_words"]
        == waiting["docsplit"] + waiting["docsplit_again"]
        == len(SETS) * 3
    )
    assert waiting["limits"] + waiting["limits_again"] == len(LIMITS) * 3
    grids = [group.get("grid", {}) for group in content["groups"].values()]
    assert all(set(grid.get("data", [])) <= set(SETS) | set(LIMITS) for grid in grids)
    for cell in cells.values():  # nothing but places is left open
        assert "{" not in json.dumps(cell.steps).replace("{folder}", "").replace("{data_dir}", "").replace('{"', ""), (
            cell
        )


def test_tables_pool_seeds_and_items(tmp_path):
    def row(data, method, seed, difference, **more):
        own = {"difference": difference, "low": 0, "high": 0, "bootstrap": [difference - 0.01, difference + 0.01]}
        return {"cell": f"{method}{seed}", "data": data, "task": "t", "method": method, "seed": seed,
                "part": "test", "metric": "acc", "value": 0.5 + difference} | own | more  # fmt: skip

    rows = [row("a", "start", None, 0.0), row("a", "adapt", 0, 0.02), row("a", "adapt", 1, 0.04)]
    for number, (accuracy, cosine) in enumerate([(0.1, 0.5), (0.2, 0.4), (0.3, 0.3)]):
        rows.append(
            row("20news", f"search {number}", 0, accuracy, part="validation")
            | {"metric": "5shot_accuracy", "value": accuracy}
        )
        rows.append(
            {
                "cell": f"search {number}0",
                "data": "20news",
                "method": "s",
                "part": "validation",
                "metric": "mean_cosine",
                "value": cosine,
            }
        )
    rows += [row("a", "adapt, 5 steps", 0, 0.1), row("a, small", "adapt", 0, -0.1)]
    rows += [row("a", "adapt", 0, 0.2, metric="acc, smoothed"), row("a", "masked LM, adapt", 0, 0.3)]
    results = {"rows": rows, "cells": {"x": {"name": "y", "status": "failed"}}, "not_run": ["z"], "waiting": {"g": 3}}
    found = adaptation.summaries(rows)["a", "adapt"]
    assert (found["value"], found["difference"], found["seeds"]) == (pytest.approx(0.53), pytest.approx(0.03), 2)
    assert 0.01 <= found["low"] < 0.02 < 0.04 < found["high"] <= 0.05
    assert adaptation.signs(rows)["mean_cosine"] == (pytest.approx(-1), 3)
    text = adaptation.markdown(results)
    assert "| start | 50.0 |" in text
    assert re.search(r"\| adapt \| 53\.0 \(\+3\.0; \+1\.\d to \+4\.\d, 2 seeds\) \|", text)
    assert "| adapt, smoothed | 70.0 (+20.0;" in text
    assert "| masked LM, adapt | 80.0 (" in text.partition("From the masked LM")[2].partition("By the number")[0]
    assert "| a, acc | 60.0 (+10.0;" in text.partition("By the number of steps")[2]
    assert "| a, small, acc | 40.0 (-10.0;" in text.partition("Limits")[2]
    assert "| mean_cosine | -1.00 | 3 |" in text
    assert "Cells not run: z, 3 cells of g. Failed: y." in text
    drawn = ["adapt", "adapt, smoothed", "adapt, with word vectors, smoothed", "docsplit, learning rate 3e-5"]
    assert all(adaptation._is_drawn(method, True) for method in drawn)
    assert adaptation._is_drawn("with word vectors, smoothed", False)
    assert not adaptation._is_drawn("crop, smoothed", True)
    assert not adaptation._is_drawn("adapt, neighbours by the encoder alone, smoothed by the encoder alone", True)
    adaptation.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_limits_change_what_is_adapted_on():
    texts = ["First one. Second two. Third three.", "Alone"] + [row["text"] for row in make_corpus(30)]
    copies = near_duplicates(texts, None, 10)
    assert sorted(copies[:3]) == ["First one. Second two.", "First one. Third three.", "Second two. Third three."]
    assert copies[3] == "Alone"
    assert len(near_duplicates(texts[2:], None, 30)) <= 30 // COPIES * COPIES
    assert CORPORA["20news, 100 documents"](texts * 9, None, 2000) == (texts * 9)[:100]


def test_limits_of_real_data(real_data):
    asking = LIMITS["20news, asking or not"](real_data, "test", 200)
    measured = asking.measure(vectors_of(len(asking.texts)))
    assert measured.metric == "5shot_accuracy"
    assert 0.3 < measured.value < 0.7  # of random vectors and two classes
    mixed = LIMITS["20news, five fields mixed"](real_data, "test", 200)
    assert len(mixed.corpus) > len(set(mixed.corpus) & set(asking.corpus)) > 0
    assert mixed.texts == asking.texts


@pytest.mark.parametrize("page", ["README.md", "docs/adaptation.md"])
def test_pages_show_the_results(page):
    results = json.loads((ROOT / "benchmarks" / "results" / "adaptation.json").read_text())
    generated = adaptation.markdown(results)
    assert (ROOT / "benchmarks" / "results" / "adaptation.md").read_text() == generated
    text = (ROOT / page).read_text()
    shown = re.search(r"<!-- from [./]*benchmarks/results/adaptation\.json -->\n\n((?:\|.*\n)+)", text)[1].splitlines()
    assert len(shown) > 4
    assert set(shown) <= set(generated.splitlines())
