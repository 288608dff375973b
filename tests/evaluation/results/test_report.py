"""results.json and results.md: complete, readable, whole."""

import json
import os
import re

import numpy as np
import pytest

from docsplit.evaluation.results.comparison import comparisons, rows
from docsplit.evaluation.results.markdown import inline
from docsplit.evaluation.results.records import Report, text_statistics
from docsplit.evaluation.results.report import write_comparison
from docsplit.evaluation.results.tables import result_tables
from docsplit.evaluation.results.task import CLASSIFICATION, task_of_file
from docsplit.evaluation.results.verdict import verdict
from tests.evaluation.results.examples import TASKS, cells, make_result


@pytest.mark.parametrize("kind", TASKS)
def test_files_are_complete_and_readable(kind, tmp_path):
    names = ["kit|chen", "har\nbour", "orchard"]
    kinds = [("a|b", 3.0, None), ("c", 0.0, None), *([] if kind == "links" else [("c", 0.0, 5)])]
    results = [make_result(encoder, signal, kind, shots=shots, class_names=names) for encoder, signal, shots in kinds]
    task, table, differences = TASKS[kind], rows(results), comparisons(results)
    statistics = text_statistics("made up", {"train": ["a b c", "d\ne"], "test": ["f"]}, 3)
    settings = {"path": tmp_path, "rate": np.float32(0.5), "bad": float("nan"), "many": np.arange(2), "text": "\ud800"}
    report = Report(task, table, differences, settings, statistics, "Made | up", notes=["first\nnote"])
    shown = write_comparison(tmp_path / "new", report)

    assert result_tables(table, task) in shown
    sentences = verdict(report)
    assert shown.endswith("\n\n" + "\n".join(sentences) + "\n")
    assert re.search(r"a\|b scored \S+ points more than c |c scored \S+ points less than a\|b ", sentences[0])
    saved = json.loads((tmp_path / "new" / "results.json").read_text(), parse_constant=pytest.fail)
    assert saved["rows"] == json.loads(json.dumps([row.to_json() for row in table]))
    assert task_of_file(saved) == task
    assert saved["comparisons"] == [comparison.to_json() for comparison in differences]
    assert saved["settings"] == {"path": str(tmp_path), "rate": 0.5, "bad": None, "many": [0, 1], "text": "\ud800"}
    assert saved["versions"].keys() >= {"python", "torch", "transformers", "scikit-learn", "numpy", "datasets"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"results.json", "results.md"}

    markdown = (tmp_path / "new" / "results.md").read_text()
    assert result_tables(table, task) in markdown
    assert "- first note" in markdown
    assert markdown.split("\n\n")[1:3] == ["## In short", "\n".join(f"- {inline(sentence)}" for sentence in sentences)]
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            assert len({len(cells(line)) for line in block.split("\n")}) == 1, block
    assert ("F1 of each label" in markdown) == (kind == "multi")
    measure = "Micro-F1" if kind == "multi" else "Accuracy"
    (line,) = [line for line in markdown.split("\n") if line.startswith("| a\\|b - c ")]
    assert cells(line)[3] == measure
    measured = differences[0].difference
    assert cells(line)[4].startswith(f"{100 * measured.difference:+.1f} [")
    assert measured.low > 0
    assert cells(line)[5:] == ["1 / 1", f"{measured.p_value:.3f}", "one run says"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    write_comparison(tmp_path, Report(CLASSIFICATION, [], [], {"run": 1}))
    monkeypatch.setattr(os, "replace", lambda *paths: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        write_comparison(tmp_path, Report(CLASSIFICATION, [], [], {"run": 2}))
    assert json.loads((tmp_path / "results.json").read_text())["settings"] == {"run": 1}
