"""The report has the papers' tables whole, our numbers in their places, and a way to where each is from."""

import argparse
import html
import json
import re

import pytest
from markdown_it import MarkdownIt

from benchmarks.engine.results import SAMPLES, Record
from benchmarks.engine.study import RECORD, Study
from benchmarks.studies.reproduction.hypotheses import read_hypotheses
from benchmarks.studies.reproduction.paper_numbers import read_paper
from benchmarks.studies.reproduction.plan import make_plan, read_recipe
from benchmarks.studies.reproduction.report import write_report
from benchmarks.studies.reproduction.tables import TABLES
from tests.processes import ROOT

SMALL = ROOT / "recipes" / "reproduction" / "small.yaml"
HOSTILE = "<script>alert(1)</script> | `rm` [x](javascript:1)"
MEASURED = {  # method: accuracy and macro-F1 of each seed, by the MLP on raw features with all labels
    "DocSplit": [(0.5, 0.40), (0.6, 0.50), (0.7, 0.60)],
    "SimCSE_long": [(0.5, 0.25), (0.5, 0.25), (0.5, 0.25)],
}


SHARED = {"head": "mlp", "features": "raw", "shots": None, "runs": 1, "std": None, "seconds": 1.0}


def rows_of(accuracy, macro_f1):
    items = [1.0] * round(100 * accuracy) + [0.0] * round(100 - 100 * accuracy)
    return [SHARED | {"metric": "accuracy", "value": accuracy, SAMPLES: items},
            SHARED | {"features": "standardized", "metric": "accuracy", "value": accuracy, SAMPLES: items},
            SHARED | {"metric": "macro_f1", "value": macro_f1}]  # fmt: skip


def write_done(study, cell, rows):
    study.folder(cell).mkdir(parents=True)
    rows = [{"cell": cell.key} | cell.fields | row for row in rows]
    record = Record(cell.name, "done", cell.key, cell.content, "abc", seconds=1.0, rows=rows)
    record.write(study.folder(cell) / RECORD)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder of a report of the small recipe, of which a few cells are done; and the study."""
    folder = tmp_path_factory.mktemp("reproduction")
    recipe = read_recipe(SMALL)
    recipe["methods"][HOSTILE] = {"family": "docsplit", "words": "tfidf"}
    recipe["evaluations"]["classification"]["methods"] = [*recipe["evaluations"]["classification"]["methods"], HOSTILE]
    for name in ("words", "attention"):
        recipe["evaluations"][name]["options"]["spacy_pipeline"] = "spacy"  # nothing is tagged here
    plan = make_plan(recipe, folder / "no data")
    study = Study(plan.study, folder / "cells", {"data_dir": "no data"})
    for cell in study.cells().values():
        method, seed = cell.fields["method"], cell.fields["seed"]
        if cell.group in (f"classification python_docs: {name}" for name in MEASURED):
            write_done(study, cell, rows_of(*MEASURED[method][seed]))
        elif cell.group == f"classification python_docs: {HOSTILE}":
            write_done(study, cell, [row | {"warning": "predicts one class"} for row in rows_of(0.9, 0.9)])
        elif cell.group == "fine-tuning of the graph paper python_docs: graph" and seed == 1:
            rows = [row | {"head": "finetune"} for row in rows_of(0.5, 0.5)]
            curve = {"metric": "fine-tuning", "curve": [{"accuracy": 0.125}, {"accuracy": 0.5}]}
            write_done(study, cell, [*rows, rows[1] | curve])
        elif cell.group == "attention python_docs: DocSplit":
            values = {"head": "attention", "metric": "noun_to_uniform", "value": 1.5 + 0.25 * seed}
            weight = {"head": "attention", "metric": "noun_weight", "value": 0.0021}
            write_done(study, cell, [SHARED | values, SHARED | weight])
        elif cell.group == "links python_docs: crop":
            study.folder(cell).mkdir(parents=True)
            Record(cell.name, "failed", cell.key, cell.content, error="no").write(study.folder(cell) / RECORD)
    options = argparse.Namespace(recipe=SMALL, output_dir=folder)
    write_report(study, plan, read_hypotheses(recipe), options)
    return folder


@pytest.fixture(scope="module")
def contents(reported):
    return json.loads((reported / "results.json").read_text())


def row_of(contents, table, row, column):
    (found,) = [one for one in contents["rows"] if (one["table"], one["row"], one["column"]) == (table, row, column)]
    return found


def test_each_table_has_the_papers_rows_columns_and_numbers(contents):
    for filled in TABLES:
        paper = read_paper(filled.paper)
        table = paper.table(filled.table, filled.part)
        start = f"{paper.short}, Table {filled.table}" + (f", {filled.part}" if filled.part else "")
        tail = "" if filled.with_paper else f", {filled.head or 'mlp'} on {filled.features} features"
        ours = {(one["row"], one["column"]): one for one in contents["rows"] if one["table"] == start + tail}
        for row, values in table.rows.items():
            for (data, metric), value in zip(table.columns, values):
                figure = ours[row, " ".join(part for part in (data, metric) if part)]
                assert figure["paper"] == (float(value) if value is not None and filled.with_paper else None)
                assert figure["ours"] is not None or figure["lacks"]


def test_the_numbers_in_the_tables_are_shown_with_the_papers(reported):
    text = (reported / "report.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("| DocSplit_bert (ours: DocSplit)"))
    assert "50.0 ± 10.0" in line
    assert "needs FakeNews: see docs/datasets.md (paper 60.04)" in line
    curve = next(line for line in text.splitlines() if line.startswith("| graph, python_docs, seed 1"))
    assert re.findall(r"\[([\d.]+)\]", curve) == ["12.5", "50.0"]  # Figure 5
    (attention,) = [line for line in text.splitlines() if line.startswith("| DocSplit, python_docs  ")]  # SimLTE's 3
    assert re.findall(r"\[(.+?)\]", attention) == ["1.75 ± 0.25", "2.10 ± 0.00"]
    assert attention.count("does not apply") == 6, "verbs, adjectives and others"
    assert re.search(r"^\| MLM, python_docs +\|( +not run yet \|){8}$", text, re.MULTILINE)
    assert re.search(
        r"\. 14 of \d+ cells ran\. Not run: trainings \(\d+\), classification python_docs \(\d+\), .*\. "
        r"Failed: links python_docs: crop seed=0, ",
        text,
    )


def test_what_others_wrote_is_text(reported):
    page, text = ((reported / name).read_text() for name in ("report.html", "report.md"))
    assert "<script>" not in page
    assert html.escape(HOSTILE) in page
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    parts = [part for token in tokens for part in (token, *(token.children or []))]
    raw = [part.content for part in parts if part.type.startswith("html")]
    assert raw
    assert all(re.fullmatch(r'<a id="[\w-]+">|</a>', one) for one in raw)
    links = [part.attrs["href"] for part in parts if part.type == "link_open"]
    assert links
    assert all(re.fullmatch(r"#from-[\w-]+|cells[\w/.]+", link) for link in links)
    assert HOSTILE in "".join(part.content for part in parts if part.type.startswith("text"))


def test_verdicts_stand_beside_the_numbers(contents):
    found = row_of(contents, "DocSplit v2, Table 1", "DocSplit_bert", "python_docs accuracy")
    assert set(found["verdict"].split("; ")) >= {"H1 open"}
    claims = {one["name"]: one for one in contents["hypotheses"]}
    comparison = claims["H1"]["comparisons"][0]
    assert comparison["name"] == "DocSplit v SimCSE_long, python_docs, all labels"
    assert comparison["found"]["difference"] == pytest.approx(0.1, abs=1e-6)
