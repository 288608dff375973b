"""The papers' numbers: whole, and found by the name of data and method."""

import pytest

from docsplit.evaluation.results.paper_numbers import (
    COLUMN,
    PAPERS,
    beside_row,
    read_paper,
)
from docsplit.evaluation.results.report import Report, comparisons, rows, table_of, write_comparison
from docsplit.evaluation.results.result import CLASSIFICATION
from tests.evaluation.results.examples import json_rows, make_result

CELLS = {  # tables, cells with a number and the sum of these, of each paper
    "docsplit_v2": (3, 216, "10821752.27"),
    "docsplit_v1": (6, 249, "10770345.80"),
    "simlte": (5, 211, "10768705.43"),
    "bregman": (9, 142, "17844.77"),
    "graph": (6, 142, "4897.7612300"),
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_tables_are_whole(name):
    tables = read_paper(name).tables
    for table in tables:
        assert {len(row) for row in table.rows.values()} == {len(table.columns)}
        assert len({(data, metric) for data, metric in table.columns}) == len(table.columns)
    numbers = [value for table in tables for row in table.rows.values() for value in row if value is not None]
    assert (len(tables), len(numbers), str(sum(numbers))) == CELLS[name]


@pytest.mark.parametrize(
    ("made", "data", "numbers", "source"),
    [
        ({"encoder": "DocSplit_bert", "head": "mlp"}, "20 Newsgroups", "76.89 / 74.85", "DocSplit v2, Table 1"),
        ({"encoder": "DocSplit_bert", "head": "mlp", "shots": 5}, "20 Newsgroups", "55.79 / 55.43",
         "DocSplit v2, Table 2"),
        ({"encoder": "mine", "head": "mlp"}, "20 Newsgroups", "62.34 to 76.89 / 54.19 to 74.85 (9 methods)", ""),
        ({"encoder": "mine", "head": "mlp", "shots": 10}, "arXiv", "23.42 to 35.79 / 10.14 to 18.80 (10 methods)", ""),
        ({"encoder": "mine", "head": "mlp", "features": "standardized"}, "20 Newsgroups", None, ""),
        ({"encoder": "mine", "head": "mlp"}, "python_docs", None, ""),
        ({"encoder": "Graph-roberta", "head": "finetune"}, "20 Newsgroups", "86.66", "graph document model, Table 2"),
        ({"encoder": "mine", "head": "finetune", "kind": "multi"}, "ECtHR", "78.8 / 71.5 (Longformer_DA)",
         "Bregman, Table 2, fine-tuning"),
        ({"encoder": "BigBird", "head": "mlp", "kind": "links"}, "AAN", "59.29", "DocSplit v1, Table 3"),
    ],
)  # fmt: skip
def test_a_row_has_the_papers_numbers_beside_it(made, data, numbers, source):
    (row,) = json_rows([make_result(signal=1.0, **made)])
    found = beside_row(row, row["encoder"], data)
    assert (found and found.numbers) == numbers
    assert found is None or found.source.startswith(source)


def test_tables_print_the_column_and_name_its_source(tmp_path):
    results = [make_result(name, 1.0, head="mlp") for name in ("SimCSE_long", "mine")]
    results.append(make_result("mine", 1.0, head="knn"))
    frame = rows(results)
    assert COLUMN not in "".join(table_of(frame, CLASSIFICATION, "python_docs").header)
    table = table_of(frame, CLASSIFICATION, "20 Newsgroups")
    assert table.header[-1].startswith("Accuracy / Macro-F1,")
    assert [line[-1] for line in table.rows] == [
        "73.51 / 72.05", "62.34 to 76.89 / 54.19 to 74.85 (9 methods)", "",
    ]  # fmt: skip
    report = Report(CLASSIFICATION, frame, comparisons(results), heading="Probes", data="20 Newsgroups")
    write_comparison(tmp_path, report)
    text = (tmp_path / "results.md").read_text()
    assert f"The {COLUMN}: DocSplit v2, Table 1" in text
    assert table.markdown() in text
    assert COLUMN not in (tmp_path / "results.json").read_text()  # its rows are ours alone
