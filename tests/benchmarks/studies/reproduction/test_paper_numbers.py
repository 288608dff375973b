"""The papers' numbers are whole."""

import pytest

from benchmarks.studies.reproduction.paper_numbers import read_paper
from docsplit.runtime.files import ROOT

CELLS = {  # tables, cells with a number and the sum of these, of each paper
    "docsplit_v2": (3, 216, "10821752.27"),
    "docsplit_v1": (6, 249, "10770345.80"),
    "simlte": (5, 211, "10768705.43"),
    "bregman": (9, 142, "17844.77"),
    "graph": (6, 142, "4897.7612300"),
}


@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "docs" / "papers").glob("*.json")])
def test_the_papers_tables_are_whole(name):
    tables = read_paper(name).tables
    for table in tables:
        assert {len(row) for row in table.rows.values()} == {len(table.columns)}
        assert len({(data, metric) for data, metric in table.columns}) == len(table.columns)
    numbers = [value for table in tables for row in table.rows.values() for value in row if value is not None]
    assert (len(tables), len(numbers), str(sum(numbers))) == CELLS[name]
