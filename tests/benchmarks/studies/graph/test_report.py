"""The study of graphs: its cells, and what its tables and pages say."""

import re

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.engine.results import read_results
from benchmarks.engine.study import Study
from benchmarks.studies.adaptation.sets import DataSet, Measured
from benchmarks.studies.graph import report, step
from tests.benchmarks.studies.results import results_of
from tests.processes import ROOT


def test_the_cells_of_the_study(tmp_path):
    for name in ("wikipedia", "20newsgroups", "ecthr", "aan", "start"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.parquet").write_text(name)
    given = {"data_dir": str(tmp_path), "start": str(tmp_path / "start")}
    cells, _ = Study(report.STUDY, tmp_path / "work", given).cells()
    trainings = [(cell.group, cell.fields["method"], cell.fields["seed"]) for cell in cells.values()]
    assert {(method, seed) for group, method, seed in trainings if group == "three_seeds"} == {
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
    rows = list(step.rows_of(DataSet("classification", [], texts, lambda features: measured), measured))
    values = {row["metric"]: row["value"] for row in rows}
    assert values == {"f1": 0.5, "accuracy": 0.5, "f1, short": 0.5, "f1, medium": 0.0, "f1, long": 1.0}
    assert rows[-1]["words"] == [500, 600]
    rows = [row | {"data": "20news", "method": method, "read": read, "seed": seed}
            for method, read in (("graph", "truncate"), ("DocSplit", "chunk_mean")) for seed in (0, 1)
            for row in rows]  # fmt: skip
    rows.append({"data": "pretraining", "method": "graph", "seed": 0, "metric": "tokens", "value": 3e6})
    results = results_of(rows, not_run=["one"])
    lines = report.markdown(results).replace(" ", "").splitlines()
    assert "|method|20newsf1|20newsaccuracy|" in lines
    assert "|graph|50.0±0.0|50.0±0.0|" in lines
    assert "|graph|50.0±0.0|0.0±0.0|100.0±0.0|" in lines  # by length
    assert any(line.startswith("|DocSplit,chunk_mean|") for line in lines)
    assert "|graph|3.0|" in lines
    assert "20news,long:500to600words." in lines
    drawn: list[plt.Figure] = []
    monkeypatch.setattr(report.plt, "close", drawn.append)
    curve = [{"epoch": 0.25, "accuracy": 0.1}, {"epoch": 0.5, "accuracy": 0.3}]
    tuned = {"data": "20news", "metric": "fine-tuned accuracy", "method": "graph", "value": 0.3, "curve": curve}
    for more in ([], [tuned]):
        report.plot(results_of(rows + more), tmp_path / "plot.png")
    assert [len(figure.axes) for figure in drawn] == [1, 2]
    assert drawn[0].get_suptitle() == "Short, medium or long: the graph is behind DocSplit in 0 of 3 cases"
    (line,) = drawn[1].axes[1].get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[0.25, 10], [0.5, 30]])


def test_differences_are_over_the_same_items_and_over_seeds():
    rng = np.random.default_rng(0)
    hard = rng.random(400)  # of each document, for every encoder: what pairing takes away

    def rows_of(method, skill, seeds):
        for seed in range(seeds):
            right = (hard + 0.05 * rng.standard_normal(400) < skill).astype(int)
            measured = Measured("f1", lambda rows, right=right: float(right[rows].mean()), 400)
            row = {"metric": "f1", **step.on_items(measured, np.arange(400))}
            yield row | {"data": "20news", "method": method, "seed": seed}

    rows = [
        *rows_of("graph", 0.6, 3),
        *rows_of("graph, no contrast", 0.5, 3),
        *rows_of("DocSplit", 0.6, 3),
        *rows_of("graph of sections", 0.5, 1),
        *(row | {"seed": None} for row in rows_of("TF-IDF + SVD", 0.3, 1)),
    ]
    differences = {line[2]: line[3:] for line in report.differences(rows)}
    pairs = ("graph - graph, no contrast", "graph - DocSplit", "graph of sections - graph", "graph - TF-IDF + SVD")
    assert differences.keys() == set(pairs)
    difference, interval, p, seeds, ahead = differences["graph - graph, no contrast"]
    low, high = map(float, interval.split(" to "))
    assert 0 < low < float(difference) < high
    assert 4 * 2 / 501 <= float(p) + 5e-4 < 0.05  # Holm: at least the smallest p of 500 draws, four times
    assert (seeds, ahead) == ("3 / 3", "graph")
    assert differences["graph - DocSplit"][-1] == ""
    assert differences["graph - TF-IDF + SVD"][3:] == ["3 / -", "graph"]  # which would be the same with any seed
    assert differences["graph of sections - graph"][3:] == ["1 / 3", ""]  # one seed is never ahead
    low, high = map(float, differences["graph of sections - graph"][1].split(" to "))
    assert high < 0


def test_pages_show_the_results():
    folder = ROOT / "benchmarks" / "results"
    generated = report.markdown(read_results(folder / "graph.json"))
    assert (folder / "graph.md").read_text(encoding="utf-8") == generated
    page = (ROOT / "docs" / "studies" / "graph.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- from \.\./\.\./benchmarks/results/graph\.json -->\n\n((?:\|.*\n)+)", page)
    assert len(shown.splitlines()) > 5
    assert shown in generated


def test_the_figure_says_what_was_measured(tmp_path, monkeypatch):
    drawn: list[plt.Figure] = []
    monkeypatch.setattr(report.plt, "close", drawn.append)
    report.plot(read_results(ROOT / "benchmarks" / "results" / "graph.json"), tmp_path / "plot.png")
    assert drawn[0].get_suptitle() == "Short, medium or long: the graph is behind DocSplit in 6 of 6 cases"
    short = drawn[0].axes[0].get_lines()[0].get_xdata()
    generated = (ROOT / "benchmarks" / "results" / "graph.md").read_text(encoding="utf-8")
    by_length = generated.partition("By length")[2]
    for method, value in zip(report.PLOTTED, short):
        line = next(line for line in by_length.splitlines() if line.startswith(f"| {method} "))
        assert f"| {value:.1f}" in re.sub(r"\| +", "| ", line)
