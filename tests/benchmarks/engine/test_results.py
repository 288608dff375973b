"""The results file of a study: what is read is what was written, and samples are no part of the JSON."""

import json

import numpy as np
import pytest

from benchmarks.engine.results import Record, Results, read_results, write_results


def row(cell, value, **more):
    return {"cell": cell, "metric": "accuracy", "value": value} | more


def samples_of(seed, count):
    return np.random.default_rng(seed).normal(size=count).round(5).tolist()


@pytest.fixture
def results():
    """A cell with samples of two lengths and a row without, one without samples, one apart and one that failed."""
    sampled = [row("a", 0.1, samples=samples_of(0, 7)), row("a", 0.2), row("a", 0.3, samples=samples_of(1, 300))]
    cells = {
        "a": Record("first", "done", "a", "x", "commit", 1.5, sampled),
        "b": Record("second", "done", "b", "y", rows=[row("b", 0.4)]),
        "c": Record("third", "failed", "c", "z", error="step 0: exit code 1", log=["one", "two"]),
    }
    apart = {"d": Record("old", "done", "d", "w", rows=[row("d", 0.5, samples=samples_of(2, 3))])}
    return Results({"python": "3"}, ["fourth"], cells, apart)


def test_what_is_read_is_what_was_written(results, tmp_path):
    path = tmp_path / "new" / "study.json"
    write_results(results, path)
    assert read_results(path) == results
    content = json.loads(path.read_text())
    assert [row.get("samples") for row in content["rows"]] == [7, None, 300, None]
    assert content["apart_rows"] == [row("d", 0.5, samples=3)]
    assert path.stat().st_size < 2000 < len(json.dumps(results.rows))
    before = [file.read_bytes() for file in sorted(path.parent.iterdir())]
    write_results(read_results(path), path)
    assert [file.read_bytes() for file in sorted(path.parent.iterdir())] == before


def test_what_is_missing_is_named(results):
    assert results.what_is_missing() == "Cells not run: fourth. Failed: third."
    assert Results().what_is_missing() == "Cells not run: none. Failed: none."
