"""The benchmark of graph document models and their study: what is counted, the cells, and what the tables say."""

import json
import re
from dataclasses import replace

import numpy as np
from matplotlib import pyplot as plt
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine.study import Study
from benchmarks.speed import graph_document
from benchmarks.studies.adaptation.sets import DataSet, Measured
from benchmarks.studies.graph import report as graph_study
from benchmarks.studies.graph import step as graph_study_step
from tests.processes import ROOT


def test_a_step_is_the_papers_and_its_operations_are_those_that_are_needed(monkeypatch):
    """Passages of one length, so that there is no padding among tokens; in graphs there is a little."""
    monkeypatch.setattr(graph_document, "DEVIATION", 0)
    batch = graph_document.make_batch(6, 30522)
    rows = {name: values.numpy() for name, values in batch["rows"].items()}
    for document in range(6):
        own = rows["document"] == document
        assert (rows["view"][own] == 0).sum() == own.sum() // 2
        assert sorted(rows["position"][own]) == list(range(own.sum()))
    lengths = batch["attention_mask"].sum(dim=1).numpy()
    model = graph_document.make_model(4096)
    model.set_attn_implementation("eager")  # whose products are counted
    with FlopCounterMode(display=False) as counted:
        model(**batch).loss.backward()
    needed = graph_document.needed_flops(rows["view"], rows["document"], lengths)
    assert np.isclose(counted.get_total_flops(), sum(needed.values()), rtol=0.02)
    assert graph_document.compare_caching(2, 512)["gradient_difference"] == 0


def test_the_cells_of_the_study(tmp_path):
    for name in ("wikipedia", "20newsgroups", "ecthr", "aan", "start"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.parquet").write_text(name)
    given = {"data_dir": str(tmp_path), "start": str(tmp_path / "start")}
    cells, _ = Study(graph_study.STUDY, tmp_path / "work", given).cells()
    found = [(cell.group, cell.fields["method"], cell.fields["seed"]) for cell in cells.values()]
    assert {(method, seed) for group, method, seed in found if group == "three_seeds"} == {
        (method, seed)
        for method in ("graph, no contrast", "graph", "mean of passages", "DocSplit")
        for seed in (0, 1, 2)
    }
    untrained = {cell.fields["method"]: cell.steps for cell in cells.values() if cell.group == "untrained"}
    assert untrained.keys() == {"start, mean", "start, [CLS]", "words"}
    for (only,) in untrained.values():
        assert only["options"]["seen"] is None
        assert only["options"]["encoder"] in ("{start}", "tfidf")
    for cell in cells.values():
        if cell.group == "untrained":
            continue
        options = cell.steps[0]["options"]
        method, overrides = cell.fields["method"], str(options.get("config_overrides"))
        assert ("graph_layers=0" in overrides) == (method == "mean of passages")
        assert ("section" in overrides) == ("sections" in method)
        assert (options.get("model_type") == "graph_document") == (method != "DocSplit")
        assert (options["learning_rate"] == 0) == ("no contrast" in method)


def test_rows_and_tables_of_the_study(tmp_path, monkeypatch):
    words = np.array([5, 50, 500, 6, 60, 600])
    texts = ["not tested", *("word " * count for count in words)]
    right = np.array([1, 0, 1, 0, 0, 1])
    measured = Measured("f1", lambda rows: float(right[rows].mean()), 6, {"accuracy": 0.5})
    rows = list(graph_study_step.rows_of(DataSet("classification", [], texts, lambda features: measured), measured))
    found = {row["metric"]: row["value"] for row in rows}
    assert found == {"f1": 0.5, "accuracy": 0.5, "f1, short": 0.5, "f1, medium": 0.0, "f1, long": 1.0}
    assert rows[-1]["words"] == [500, 600]
    rows = [row | {"data": "20news", "method": method, "read": read, "seed": seed}
            for method, read in (("graph", "truncate"), ("DocSplit", "chunk_mean")) for seed in (0, 1)
            for row in rows]  # fmt: skip
    rows.append({"data": "pretraining", "method": "graph", "seed": 0, "metric": "tokens", "value": 3e6})
    results = json.loads(json.dumps({"rows": rows, "not_run": ["one"], "waiting": {}, "cells": {}}))
    lines = graph_study.markdown(results).replace(" ", "").splitlines()
    assert "|method|20newsf1|20newsaccuracy|" in lines
    assert "|graph|50.0±0.0|50.0±0.0|" in lines
    assert "|graph|50.0±0.0|0.0±0.0|100.0±0.0|" in lines  # by length
    assert any(line.startswith("|DocSplit,chunk_mean|") for line in lines)
    assert "|graph|3.0|" in lines
    assert "20news,long:500to600words." in lines
    drawn: list[plt.Figure] = []
    monkeypatch.setattr(graph_study.plt, "close", drawn.append)
    curve = [{"epoch": 0.25, "accuracy": 0.1}, {"epoch": 0.5, "accuracy": 0.3}]
    tuned = {"data": "20news", "metric": "fine-tuned accuracy", "method": "graph", "value": 0.3, "curve": curve}
    for more in ([], [tuned]):
        graph_study.plot(results | {"rows": rows + more}, tmp_path / "plot.png")
    assert [len(figure.axes) for figure in drawn] == [1, 2]
    (line,) = drawn[1].axes[1].get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[0.25, 10], [0.5, 30]])


def test_words_are_learnt_from_the_training_documents_alone(monkeypatch, tmp_path):
    texts = [f"known {word} text number {row}" for row, word in enumerate(["shared", "other"] * 10)]
    measured = Measured("f1", lambda rows: 0.5, 4)
    seen = []
    data = DataSet("links", texts[:16], [*texts[:16], *["known unseen"] * 4], lambda own: seen.append(own) or measured)
    monkeypatch.setattr(graph_study_step, "load", lambda *args, **options: replace(data, bm25=lambda: measured))
    rows = run_step(monkeypatch, tmp_path, "--data", "aan", "--encoder", "tfidf")
    assert [row["method"] for row in rows] == ["TF-IDF", "TF-IDF + SVD", "BM25"]
    counts, dense = seen
    assert (counts[-1].nnz, counts.shape[0], len(dense)) == (1, 20, 20)  # "unseen" is no column


def test_rows_of_a_fine_tuned_encoder_have_its_curve(monkeypatch, tmp_path):
    curve = [{"epoch": 0.25, "accuracy": 0.1}]
    found = {"rows": [{"accuracy_mean": 0.3, "validation_curves": [curve]}]}
    (tmp_path / "results.json").write_text(json.dumps(found))
    (row,) = run_step(monkeypatch, tmp_path, "--data", "20news", "--finetuned", str(tmp_path / "results.json"))
    assert row == {"data": "20news", "metric": "fine-tuned accuracy", "value": 0.3, "curve": curve}


def run_step(monkeypatch, folder, *options):
    given = ["--data_dir", str(folder), "--rows", str(folder / "rows.json"), *options]
    monkeypatch.setattr("sys.argv", ["graph_study_step", *given])
    graph_study_step.main()
    return json.loads((folder / "rows.json").read_text())


def test_two_encoders_are_drawn_the_same_items():
    first, second = (Measured("f1", lambda rows, own=own: float(own[rows].mean()), 50)
                     for own in (np.arange(50.0), 1 - np.arange(50.0)))  # fmt: skip
    one, two = (graph_study_step.on_items(measured, np.arange(50)) for measured in (first, second))
    np.testing.assert_allclose(np.add(one["drawn"], two["drawn"]), 1, atol=2e-5)
    assert len(set(one["drawn"])) > 100


def test_differences_are_over_the_same_items_and_over_seeds():
    rng = np.random.default_rng(0)
    hard = rng.random(400)  # of each document, for every encoder: what pairing takes away

    def rows_of(method, skill, seeds):
        for seed in range(seeds):
            right = (hard + 0.05 * rng.standard_normal(400) < skill).astype(int)
            measured = Measured("f1", lambda rows, right=right: float(right[rows].mean()), 400)
            row = {"metric": "f1", **graph_study_step.on_items(measured, np.arange(400))}
            yield row | {"data": "20news", "method": method, "seed": seed}

    rows = [
        *rows_of("graph", 0.6, 3),
        *rows_of("graph, no contrast", 0.5, 3),
        *rows_of("DocSplit", 0.6, 3),
        *rows_of("graph of sections", 0.5, 1),
        *(row | {"seed": None} for row in rows_of("TF-IDF + SVD", 0.3, 1)),
    ]
    found = {line[2]: line[3:] for line in graph_study.differences(rows)}
    pairs = ("graph - graph, no contrast", "graph - DocSplit", "graph of sections - graph", "graph - TF-IDF + SVD")
    assert found.keys() == set(pairs)
    difference, interval, p, seeds, ahead = found["graph - graph, no contrast"]
    low, high = map(float, interval.split(" to "))
    assert 0 < low < float(difference) < high
    assert 4 * 2 / 501 <= float(p) + 5e-4 < 0.05  # Holm: at least the smallest p of 500 draws, four times
    assert (seeds, ahead) == ("3 / 3", "graph")
    assert found["graph - DocSplit"][-1] == ""
    assert found["graph - TF-IDF + SVD"][3:] == ["3 / -", "graph"]  # which would be the same with any seed
    assert found["graph of sections - graph"][3:] == ["1 / 3", ""]  # one seed is never ahead
    low, high = map(float, found["graph of sections - graph"][1].split(" to "))
    assert high < 0


def test_standardised_vectors_and_raw_ones():
    """By the mean and deviation of training documents; a number that is always the same stays 0."""
    rng = np.random.default_rng(0)
    vectors = (np.array([5.0, 1.0, 3.0]) + rng.standard_normal((8, 3)) * [1, 10, 0]).astype(np.float32)
    given = []
    measured = Measured("f1", lambda rows: 0.5, 3)
    data = DataSet("classification", [], ["text"] * 8, lambda features: given.append(features) or measured)
    rows = list(graph_study_step.rows_of_vectors(data, vectors, np.arange(6)))
    assert [row["metric"] for row in rows] == ["f1", "f1, short", "f1, medium", "f1, long", "f1, raw"]
    standardised, raw = given
    np.testing.assert_allclose(standardised[:6].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(standardised[:6].std(axis=0), [1, 1, 0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-5)


def test_of_links_only_papers_that_count_are_embedded(monkeypatch):
    """Those of pairs, and some that standardise."""
    texts = [f"paper {row}" for row in range(10)]
    data = DataSet("links", texts[4:], texts, lambda features: Measured("roc_auc", lambda rows: 0.5, 2))
    monkeypatch.setattr(graph_study_step, "KNOWN", 2)
    embedded = []

    class Counting:
        def __init__(self, *loaded_from):
            pass

        def embed_all(self, given):
            embedded.extend(given)
            return np.array([[float(text.split()[1]) + 1] for text in given]), None

    monkeypatch.setattr(graph_study_step, "Encoder", Counting)
    vectors, known = graph_study_step.embed("ours", data, "truncate")
    assert embedded == texts[:6]
    np.testing.assert_array_equal(vectors[:, 0], [1, 2, 3, 4, 5, 6, 0, 0, 0, 0])
    assert known.tolist() == [4, 5]


def test_pages_show_the_results():
    folder = ROOT / "benchmarks" / "results"
    generated = graph_study.markdown(json.loads((folder / "graph_study.json").read_text(encoding="utf-8")))
    assert (folder / "graph_study.md").read_text(encoding="utf-8") == generated
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- from \.\./benchmarks/results/graph_study\.json -->\n\n((?:\|.*\n)+)", page)
    assert [len(table.splitlines()) for table in shown] == [16, 15]
    for table in shown:
        assert set(table.splitlines()) <= set(generated.splitlines())
