"""Sections: what tables and figures show is what the rows say, and figures have their numbers beside them."""

import csv

import numpy as np
import pytest

from docsplit.evaluation.analysis import sections
from docsplit.evaluation.analysis.attention_by_word import CLASSES, DocumentWords, WordWeights, attention_estimates
from docsplit.evaluation.analysis.contents import (
    AttentionContents,
    GeometryContents,
    RedundancyContents,
    SimilarityContents,
)
from docsplit.evaluation.analysis.estimates import Estimates, differences, mean_row, over_documents, row_of
from docsplit.evaluation.analysis.redundancy import ALL, LENGTH_CLASSES, VARIANTS, content_words, redundancy_rows
from docsplit.evaluation.analysis.similarity import COMPARED

GENERATOR = np.random.default_rng(0)


def numbers_of(figure):
    return list(csv.DictReader(figure.numbers.read_text().splitlines()))


def test_redundancy_has_a_table_for_each_variant_and_the_papers_row_beside_the_first(tmp_path):
    tagged = [
        ([f"w{word}" for word in GENERATOR.integers(20, size=size)], ["NOUN"] * size)
        for size in GENERATOR.integers(5, 100, size=60)
    ]
    rows, growth = redundancy_rows(content_words(tagged, [4 * len(lemmas) for lemmas, _ in tagged]))
    contents = RedundancyContents(rows, growth, 60, ", all", "a tagger")
    section = sections.redundancy_section(contents, "20news", tmp_path)
    *tables, correlations = section.tables
    assert len(tables) == len(correlations.rows) == len(VARIANTS)
    assert [line[0] for line in tables[0].rows] == [*LENGTH_CLASSES, ALL]
    assert tables[0].rows[-1][-1] == "1.28"  # R of 20News, all lengths
    assert len(tables[1].header) == len(tables[0].header) - 1
    whole = next(row for row in rows if row.length == ALL)
    assert tables[0].rows[-1][2].startswith(f"{whole.numbers['r'].mean:.2f} [")
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
    rows, compared = [row_of(estimates) for estimates in measured], differences(measured, COMPARED)
    contents = SimilarityContents(rows, compared, 30, counts, inter_pairs=100, same_class_pairs=0, splitter="rules")
    section = sections.similarity_section(contents, "unknown", tmp_path)
    cosines, pairs = section.tables
    assert [line[0] for line in cosines.rows[:2]] == ["a", "b"]
    assert len(cosines.header) == 1 + 4  # nothing is said of a class that no two documents share
    assert [line[:2] for line in pairs.rows] == [["a v b", "inner - inter"], ["a v b", "AUC inner v inter"]]
    assert {line[-1] for line in pairs.rows} == {"yes"}
    drawn = {(row["encoder"], row["what"]): float(row["mean"]) for row in numbers_of(section.figures[0])}
    assert set(drawn) == {(name, kind) for name in "ab" for kind in ("inner", "inter")}
    assert drawn["a", "inner"] == pytest.approx(rows[0].numbers["inner"].mean)


def test_attention_marks_what_is_uniform(tmp_path):
    """Weights that are all alike are 1 for each class."""
    words = [DocumentWords(np.zeros((10, 2)), np.arange(10) % 5, np.arange(10) % 3) for _ in range(20)]
    values, counts = attention_estimates(words, [WordWeights(np.full(10, 0.09), 0.1, 0.0, 0, 10)] * 20)
    estimates = Estimates("a", values, {"attended_from": "[CLS]", "max_tokens": 64} | counts)
    section = sections.attention_section(AttentionContents([row_of(estimates)], [], 20, "a tagger", "sum"), tmp_path)
    assert section.tables[0].rows == [["a", *["1.00 [1.00, 1.00]"] * len(CLASSES)]]
    assert [float(row["mean"]) for row in numbers_of(section.figures[0])] == pytest.approx([1.0] * len(CLASSES))
    read = next(table for table in section.tables if table.caption == "What was read.")
    assert read.rows[0][:5] == ["a", "[CLS]", "64", "20", "0"]
    assert read.rows[0][5:10] == ["40"] * 5  # words of each class


def test_geometry_shows_the_spread_over_seeds_where_there_is_one():
    values = [dict.fromkeys(sections.GEOMETRY, place + 0.5) for place in range(2)]
    rows = [mean_row("one", ["one"], values[:1]), mean_row("G=1,2", ["1", "2"], values)]
    (table,) = sections.geometry_section(GeometryContents(rows, documents=9, halved=4, neighbours=5)).tables
    assert table.rows[0][:2] == ["one", "0.500"]
    assert table.rows[1][:2] == ["G", "1.000 ± 0.707"]


def test_cells():
    cells = [sections.cell(value) for value in (None, 1234, 1234.5, 0.25, "mean")]
    assert cells == ["", "1,234", "1,234", "0.2", "mean"]
