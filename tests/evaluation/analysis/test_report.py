"""The report: what its tables and figures show, cells that cannot break the page, a CSV beside each figure."""

import csv
import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

from docsplit.evaluation.analysis.attention_by_word import (
    CLASSES,
    DocumentWords,
    WordWeights,
    attention_analysis,
    attention_estimates,
)
from docsplit.evaluation.analysis.estimates import Estimates, mean_row, over_documents
from docsplit.evaluation.analysis.geometry import geometry, geometry_analysis
from docsplit.evaluation.analysis.redundancy import (
    ALL,
    LENGTH_CLASSES,
    VARIANTS,
    content_words,
    redundancy_rows,
    redundancy_section,
)
from docsplit.evaluation.analysis.report import Section, count, number, save_figure, with_interval, write_report
from docsplit.evaluation.analysis.similarity import Sentences, similarity_analysis
from docsplit.evaluation.results.report import Table

GENERATOR = np.random.default_rng(0)


def numbers_of(figure):
    return list(csv.DictReader(figure.numbers.read_text().splitlines()))


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
    table = Table(["a|b", "n"], [["<b>x</b>", "1"], ["y|z", ""]], title="Cells <script>")
    section = Section("Clusters & co", ["A note."], [table, Table(["x"], [], title="Empty")], [make_figure(tmp_path)])
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
    assert with_interval({"r_mean": 1.234, "r_low": 1.2, "r_high": 1.29}, "r") == "1.23 [1.20, 1.29]"
    assert with_interval({}, "r") == ""
    cells = [count(value) for value in (None, 1234, 1234.5, 0.25, "mean")]
    assert cells == ["", "1,234", "1,234", "0.2", "mean"]
    assert (number(None), number(float("nan")), number(1234.5, 1)) == ("", "", "1,234.5")


def test_redundancy_has_a_table_for_each_variant_and_the_papers_row_beside_the_first(tmp_path):
    tagged = [
        ([f"w{word}" for word in GENERATOR.integers(20, size=size)], ["NOUN"] * size)
        for size in GENERATOR.integers(5, 100, size=60)
    ]
    rows, growth = redundancy_rows(content_words(tagged, [4 * len(lemmas) for lemmas, _ in tagged]))
    about = {"documents": 60, "sampled": ", all", "pipeline": "a tagger"}
    section = redundancy_section({"rows": rows, "growth": growth} | about, "20news", tmp_path)
    *tables, correlations = section.tables
    assert len(tables) == len(correlations.rows) == len(VARIANTS)
    assert [line[0] for line in tables[0].rows] == [*LENGTH_CLASSES, ALL]
    assert tables[0].rows[-1][-1] == "1.28"  # R of 20News, all lengths
    assert len(tables[1].header) == len(tables[0].header) - 1
    whole = next(row for row in rows if row["length"] == ALL)
    assert tables[0].rows[-1][2].startswith(f"{whole['r_mean']:.2f} [")
    drawn = [row for row in numbers_of(section.figures[0]) if row["what"] == "R"]
    assert sum(int(row["n"]) for row in drawn) == 60


def similarity_of(name, shift):
    ones = np.ones(30)
    values = {"inner": 0.5, "inter": 0.2, "inner_minus_inter": 0.3, "auc": 0.8}
    parts = {key: (value + shift + 0.05 * GENERATOR.random(30), ones) for key, value in values.items()}
    return Estimates(name, over_documents(parts))


def test_similarity_shows_each_encoder_once_and_each_pair_of_them(tmp_path):
    measured = [similarity_of("a", 0.0), similarity_of("b", 0.1)]
    counts = dict.fromkeys(("sentences", "short", "duplicates", "beyond_the_cap", "documents_without_pair"), 3)
    sentences = Sentences([], np.zeros(0, int), 30, np.zeros((100, 2), int), np.zeros((0, 2), int), counts)
    contents, section = similarity_analysis(measured, sentences, "rules", "unknown", tmp_path)
    assert (contents["documents"], contents["inter_pairs"], contents["same_class_pairs"]) == (30, 100, 0)
    assert len(contents["differences"]) == 2
    cosines, pairs = section.tables
    assert [line[0] for line in cosines.rows[:2]] == ["a", "b"]
    assert len(cosines.header) == 1 + 4  # nothing is said of a class that no two documents share
    assert [line[:2] for line in pairs.rows] == [["a v b", "inner - inter"], ["a v b", "AUC inner v inter"]]
    assert {line[-1] for line in pairs.rows} == {"yes"}
    drawn = {(row["encoder"], row["what"]): float(row["mean"]) for row in numbers_of(section.figures[0])}
    assert set(drawn) == {(name, kind) for name in "ab" for kind in ("inner", "inter")}
    assert drawn["a", "inner"] == pytest.approx(contents["rows"]["inner_mean"][0])


def test_attention_marks_what_is_uniform(tmp_path):
    """Weights that are all alike are 1 for each class."""
    words = [DocumentWords(np.zeros((10, 2)), np.arange(10) % 5, np.arange(10) % 3) for _ in range(20)]
    values, counts = attention_estimates(words, [WordWeights(np.full(10, 0.09), 0.1, 0.0, 0, 10)] * 20)
    estimates = Estimates("a", values, {"attended_from": "[CLS]", "max_tokens": 64} | counts)
    contents, section = attention_analysis([estimates], 20, "a tagger", "sum", tmp_path)
    assert (contents["documents"], contents["word_weight"], contents["differences"]) == (20, "sum", [])
    assert section.tables[0].rows == [["a", *["1.00 [1.00, 1.00]"] * len(CLASSES)]]
    assert [float(row["mean"]) for row in numbers_of(section.figures[0])] == pytest.approx([1.0] * len(CLASSES))
    read = next(table for table in section.tables if table.title == "What was read.")
    assert read.rows[0][:5] == ["a", "[CLS]", "64", "20", "0"]
    assert read.rows[0][5:10] == ["40"] * 5  # words of each class


def test_geometry_shows_the_spread_over_seeds_where_there_is_one():
    vectors = GENERATOR.normal(size=(9, 4)).astype(np.float32)
    measured = geometry(vectors, vectors[:8].reshape(4, 2, 4), np.zeros((9, 5), int))
    values = [dict.fromkeys(measured, place + 0.5) for place in range(2)]
    rows = [mean_row("one", ["one"], values[:1]), mean_row("G=1,2", ["1", "2"], values)]
    contents, section = geometry_analysis(rows, 9, 4, 5)
    assert contents == {"rows": rows, "documents": 9, "halved": 4, "neighbours": 5}
    (table,) = section.tables
    assert len(table.header) == 1 + len(measured)
    assert table.rows[0][:2] == ["one", "0.500"]
    assert table.rows[1][:2] == ["G", "1.000 ± 0.707"]
