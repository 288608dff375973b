"""The report: cells that cannot break the page, and a CSV beside each figure."""

import json

import matplotlib.pyplot as plt

from docsplit.evaluation.analysis.estimates import Estimate
from docsplit.evaluation.analysis.report import Section, Table, number, save_figure, with_interval, write_report


def make_figure(folder, name="curve.png"):
    figure, axis = plt.subplots()
    axis.plot([1, 2])
    return save_figure(figure, folder / name, "A curve.", ["x", "y"], [[1, "a,b"], [2, 0.5]])


def test_a_figure_has_its_numbers_beside_it(tmp_path):
    figure = make_figure(tmp_path)
    assert figure.numbers.read_text() == 'x,y\n1,"a,b"\n2,0.5\n'
    first = figure.picture.read_bytes()
    assert make_figure(tmp_path).picture.read_bytes() == first  # repeatable


def test_the_page_and_the_tables(tmp_path):
    table = Table("Cells <script>", ["a|b", "n"], [["<b>x</b>", "1"], ["y|z", ""]])
    section = Section("Clusters & co", ["A note."], [table, Table("Empty", ["x"], [])], [make_figure(tmp_path)])
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


def test_cells():
    assert with_interval(Estimate(1.234, 1.2, 1.29)) == "1.23 [1.20, 1.29]"
    assert with_interval(None) == ""
    assert (number(None), number(float("nan")), number(1234.5, 1)) == ("", "", "1,234.5")
