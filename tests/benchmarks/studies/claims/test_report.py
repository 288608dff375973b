"""The study of the papers' explanations: its pages show what was measured."""

import re

from benchmarks.engine.results import read_results
from benchmarks.studies.claims import report as claims
from tests.processes import ROOT


def test_pages_show_the_results():
    generated = claims.markdown(read_results(ROOT / "benchmarks" / "results" / "claims.json"))
    assert (ROOT / "benchmarks" / "results" / "claims.md").read_text() == generated
    page = (ROOT / "docs" / "studies" / "claims.md").read_text()
    shown = re.findall(r"<!-- from \.\./\.\./benchmarks/results/claims\.json -->\n\n((?:\|.*\n)+)", page)
    assert len(shown) == 3
    for table in shown:
        assert len(table.splitlines()) > 5
        assert set(table.splitlines()) <= set(generated.splitlines())
