"""The report: numbers with intervals over documents, what its tables show, cells that cannot break the page."""

import csv
import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

from docsplit.evaluation.analysis.attention import (
    CLASSES,
    DocumentWords,
    WordWeights,
    attention_analysis,
    attention_estimates,
)
from docsplit.evaluation.analysis.report import (
    Estimates,
    ReportSection,
    differences,
    merge_estimates,
    over_documents,
    save_figure,
    table_rows,
    write_report,
)
from docsplit.evaluation.results.bootstrap import interval, item_draws, sample_deviation
from docsplit.evaluation.results.report import ResultsTable

GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.normal(5, 1, size=(3, 40))
PRESENT = (GENERATOR.random(40) < 0.8).astype(float)


def estimates(name, values, **facts):
    return Estimates(name, over_documents({"mean": (values * PRESENT, PRESENT)}), facts)


def row_of(one):
    (row,) = table_rows([one]).to_dict("records")
    return row


def test_means_over_the_documents_that_have_a_value():
    found = estimates("a", VALUES[0])
    assert found.values["mean"].scores == pytest.approx([VALUES[0][PRESENT > 0].mean()])
    times = np.concatenate(list(item_draws(40)))
    slow = [np.average(VALUES[0], weights=PRESENT * own) for own in times[:50]]
    np.testing.assert_allclose(found.values["mean"].samples[:50, 0], slow)
    row = row_of(found)
    assert (row["mean_low"], row["mean_high"]) == interval(found.values["mean"])
    assert times.sum(axis=1) == pytest.approx(40)
    assert times.mean() == pytest.approx(1)


def test_a_group_of_seeds_is_wider_than_its_members():
    members = [estimates(str(seed), VALUES[0] + shift, n=1) for seed, shift in enumerate((0, 0.5, 1.5))]
    group = merge_estimates("group", ["0", "1", "2"], members)
    row, alone = row_of(group), row_of(members[0])
    assert row["mean_mean"] == pytest.approx(alone["mean_mean"] + 2 / 3)
    assert row["mean_std"] == pytest.approx(sample_deviation(np.array([0, 0.5, 1.5])))
    assert row["mean_of_seeds"] == pytest.approx([alone["mean_mean"] + shift for shift in (0, 0.5, 1.5)])
    assert row["mean_high"] - row["mean_low"] > 2 * (alone["mean_high"] - alone["mean_low"])
    assert row["n"] == 1
    assert merge_estimates("0", ["0"], members[:1]) is members[0]


def test_differences_and_ratios_are_paired_and_over_pretraining_seeds():
    """b is a plus a little in each document: the difference is clear where both intervals overlap."""
    a, b = estimates("a", VALUES[0]), estimates("b", VALUES[0] + 0.1 + 0.01 * VALUES[1])
    (row,) = differences([a, b], ["mean", "absent"])
    assert row["high"] < 0
    assert row_of(a)["mean_high"] > row_of(b)["mean_low"]
    assert row["difference"] == pytest.approx(a.values["mean"].scores[0] - b.values["mean"].scores[0])
    assert row["ratio"] == pytest.approx(a.values["mean"].scores[0] / b.values["mean"].scores[0])
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"] < 1
    # Of three seeds that lie far apart neither is clear
    members = [estimates(str(seed), VALUES[0] * factor) for seed, factor in enumerate((0.9, 1.1, 1.6))]
    (alone,) = differences([members[1], a], ["mean"])
    (row,) = differences([merge_estimates("group", ["0", "1", "2"], members), a], ["mean"])
    assert alone["low"] > 0
    assert (alone["ratio_low"], alone["ratio_high"]) == pytest.approx((1.1, 1.1))
    assert row["low"] < 0 < row["high"]
    assert row["ratio_low"] < 1 < row["ratio"] < row["ratio_high"]
    assert row["ratio"] == pytest.approx(1.2)


def numbers_of(figure):
    return list(csv.DictReader(figure.picture.with_suffix(".csv").read_text().splitlines()))


def test_the_page_and_the_tables(tmp_path):
    figure = save_figure(plt.figure(), tmp_path / "curve.png", "It rises", "A curve.", ["x", "y"], [[1, "a,b"]])
    table = ResultsTable(["a|b", "n"], [["<b>x</b>", "1"], ["y|z", ""]], title="Cells <script>")
    section = ReportSection("Clusters & co", ["A note."], [table, ResultsTable(["x"], [], title="Empty")], [figure])
    write_report(tmp_path, "Analysis of\nsets", [section], {"value": float("nan"), "title": "t"})
    assert json.loads((tmp_path / "analysis.json").read_text()) == {"value": None, "title": "t"}
    page = (tmp_path / "report.html").read_text()
    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert page.count("<script") == 0
    assert "data:image/png;base64," in page
    assert "<title>Analysis of sets</title>" in page
    assert "Empty" not in page
    text = (tmp_path / "analysis.md").read_text()
    assert r"y\|z" in text
    assert "![A curve.](curve.png)" in text


def test_attention_marks_what_is_uniform(tmp_path):
    """Weights that are all alike are 1 for each class."""
    words = [DocumentWords(np.zeros((10, 2)), np.arange(10) % 5, np.arange(10) % 3) for _ in range(20)]
    values, counts = attention_estimates(words, [WordWeights(np.full(10, 0.09), 0.1, 0.0)] * 20)
    estimates = Estimates("a", values, {"attended_from": "[CLS]", "max_tokens": 64} | counts)
    contents, section = attention_analysis([estimates], 20, "a tagger", "sum", tmp_path)
    assert (contents["documents"], contents["word_weight"], contents["differences"]) == (20, "sum", [])
    assert section.tables[0].rows == [["a", *["1.00 [1.00, 1.00]"] * len(CLASSES)]]
    assert [float(row["mean"]) for row in numbers_of(section.figures[0])] == pytest.approx([1.0] * len(CLASSES))
    read = next(table for table in section.tables if table.title == "What was read.")
    assert read.rows[0][:5] == ["a", "[CLS]", "64", "20", "0"]
    assert read.rows[0][5:10] == ["40"] * 5  # words of each class
