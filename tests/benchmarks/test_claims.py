"""The study of the papers' explanations: its pages show what was measured."""

import json
import re

from benchmarks.studies.claims import report as claims
from tests.processes import ROOT


def test_pages_show_the_results():
    results = json.loads((ROOT / "benchmarks" / "results" / "claims.json").read_text())
    generated = claims.markdown(results)
    assert (ROOT / "benchmarks" / "results" / "claims.md").read_text() == generated
    page = (ROOT / "docs" / "analyses.md").read_text()
    shown = re.findall(r"<!-- from \.\./benchmarks/results/claims\.json -->\n\n((?:\|.*\n)+)", page)
    assert len(shown) == 3
    for table in shown:
        assert len(table.splitlines()) > 5
        assert set(table.splitlines()) <= set(generated.splitlines())
