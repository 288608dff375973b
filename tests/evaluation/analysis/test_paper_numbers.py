"""The papers' numbers: found by the name of the data, and whole."""

import pytest

from docsplit.evaluation.analysis.paper_numbers import DOCSPLIT, GRAPH, beside, read_paper, set_named


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("20 Newsgroups", "20News"),
        ("fake-news.csv", "FakeNews"),
        ("BBC news", "BBCNews"),
        ("ecthr", None),
    ],
)
def test_a_data_set_is_known_by_its_spellings(data, expected):
    assert set_named(read_paper(DOCSPLIT), data) == expected


@pytest.mark.parametrize(
    ("data", "column", "expected"),
    [
        ("20 Newsgroups bydate, headers, footers and quotes stripped", "All", "1.28"),
        ("BBC news", "0-50", "1.05"),
        ("ecthr (train.parquet)", "> 300", "1.46 to 1.62 (5 sets)"),
    ],
)
def test_the_papers_number_of_the_same_set_or_its_range(data, column, expected):
    assert beside(read_paper(DOCSPLIT), "4", column, data) == expected


def test_the_papers_tables_are_whole():
    redundancy, similarity = (read_paper(DOCSPLIT)["tables"][name] for name in ("4", "5"))
    assert all(len(row) == len(redundancy["columns"]) for row in redundancy["rows"].values())
    assert all(inner > inter for inner, inter in similarity["rows"].values())
    clusters = read_paper(GRAPH)["tables"]["1"]["rows"]
    assert {len(rows) for rows in clusters.values()} == {4}
    assert clusters["Newsgroup"]["Graph-roberta"] == [0.516, 0.475]
