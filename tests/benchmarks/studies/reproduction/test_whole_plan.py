"""A whole recipe, run in seconds: each cell is done, with made-up numbers by the writers of the real ones."""

import argparse
import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.engine.results import Record, Results, write_results
from benchmarks.engine.study import Study
from benchmarks.studies.reproduction import hypotheses
from benchmarks.studies.reproduction.measure import DRAWN, WEIGHTS, rows_of, rows_of_analysis
from benchmarks.studies.reproduction.plan import NOT_HERE, make_plan, options_of, read_recipe
from benchmarks.studies.reproduction.report import write_report
from docsplit.evaluation.analysis.redundancy import ALL, LENGTH_CLASSES
from docsplit.evaluation.heads.table import TFIDF_HEADS, TUNING_HEADS
from docsplit.evaluation.results.bootstrap import ItemScores, Resampled
from docsplit.evaluation.results.result import (
    CLASSIFICATION,
    CLUSTERING,
    LINKS,
    MULTI_LABEL_CLASSIFICATION,
    RANKING,
    Result,
)
from docsplit.evaluation.task_arguments import LINK_BASELINES
from tests.processes import ROOT

RECIPES = ROOT / "recipes" / "reproduction"
SEVERAL_LABELS = ("ECtHR", "MIMIC")
GENERATOR = np.random.default_rng(0)


def result(task, head, features="raw", shots=None):
    """What one head measured of an encoder: a number of each measure, of two test items."""
    measured = {name: GENERATOR.random(1) for name in task.measures}
    measured[task.main] = ItemScores(GENERATOR.random((1, 2)).astype(np.float32), np.ones((1, 2), np.float32))
    about = {"info": {"features": features, "num_parameters": 9}, "trainable_parameters": 3}
    curves = [[{"epoch": 1.0, "accuracy": 0.5}]] if head == "finetune" else []
    return Result(task=task, encoder="a", head=head, shots=shots, measured=measured, curves=curves, **about,
                  details={name: {} for name in task.details})  # fmt: skip


def listed(value):
    return [value] if isinstance(value, str | int) else list(value)


def results_of(options, data):
    """The results that the script of an evaluation has, by its options."""
    kind, encoder = options["evaluation"], options["model_name_or_path"]
    if kind == "ranking":
        return [result(RANKING, head) for head in listed(options["methods"])]
    if kind in ("links", "rotated links"):
        heads = listed(options["heads"])
        kinds = {"mlp": ("raw", "standardized")}
        return [result(LINKS, head, features) for head in heads for features in kinds.get(head, ("raw",))
                if encoder not in LINK_BASELINES or head == encoder]  # fmt: skip
    task = MULTI_LABEL_CLASSIFICATION if data in SEVERAL_LABELS else CLASSIFICATION
    results, shots = [], [one for one in listed(options.get("shots", 5)) if one]
    for head in listed(options.get("heads", ["mlp", "linear", "knn"])):
        if head in TUNING_HEADS:
            results += [result(task, head, shots=one) for one in ([None] if head == "finetune" else shots)]
        elif encoder != "tfidf" or head in TFIDF_HEADS:
            kinds = ("raw",) if encoder == "tfidf" else ("raw", "standardized")
            results += [result(task, head, features, one) for features in kinds for one in (None, *shots)]
    return results


def analysed(options, folder):
    """The rows of the analyses of an encoder."""
    analyses = listed(options["analyses"])

    def estimates(names):
        return SimpleNamespace(values={name: Resampled(np.ones(1), GENERATOR.random((3, 1)), 1) for name in names})

    one = SimpleNamespace(
        clustering=[result(CLUSTERING, "k-means")] if "clustering" in analyses else None,
        similarity=estimates(DRAWN["similarity"]) if "similarity" in analyses else None,
        attention=estimates([*DRAWN["attention"], *WEIGHTS]) if "attention" in analyses else None,
    )
    counted = {}
    if "redundancy" in analyses:
        growth = {"r_to_null": 1.0, "r_to_null_low": 0.5, "r_to_null_high": 2.0}
        counted["redundancy"] = {"rows": [{"length": name, "n": 1, "r_mean": 1.2} for name in (*LENGTH_CLASSES, ALL)],
                                  "growth": growth}  # fmt: skip
    (folder / "analysis.json").write_text(json.dumps(counted))
    split = SimpleNamespace(texts={"train": ["a b", "c"]}, class_names=["x", "y"])
    return rows_of_analysis(SimpleNamespace(measured=[one], split=split), folder)


def rows_of_cell(cell, folder):
    if cell.fields["task"] == "pretraining":
        return [{"metric": measure["metric"], "value": 1.0} for measure in cell.measures]
    options = options_of(cell.steps[-1])
    if options["evaluation"] == "analysis":
        return list(analysed(options, folder))
    return list(rows_of(results_of(options, cell.fields["data"])))


@pytest.mark.parametrize("name", ["paper", "small"])
def test_no_row_is_empty_where_its_cells_are_done(name, tmp_path, monkeypatch):
    monkeypatch.setattr(hypotheses, "NUM_SAMPLES", 100)
    recipe = read_recipe(RECIPES / f"{name}.yaml") | {"seeds": [0]}
    plan = make_plan(recipe, with_all_data=True)
    study = Study(plan.study, tmp_path / "cells", {"data_dir": NOT_HERE})
    done = Results()
    for key, cell in study.all_cells().items():
        rows = [{"cell": key} | cell.fields | row | {"seconds": 1.0} for row in rows_of_cell(cell, tmp_path)]
        done.cells[key] = Record(cell.name, "done", key, cell.content, "abc", seconds=1.0, rows=rows)
    write_results(done, tmp_path / "cells.json")
    study = Study(plan.study, tmp_path / "cells", {"data_dir": NOT_HERE}, tmp_path / "cells.json")
    options = argparse.Namespace(recipe=RECIPES / f"{name}.yaml", output_dir=tmp_path)
    write_report(study, plan, hypotheses.read_hypotheses(recipe), options)
    contents = json.loads((tmp_path / "results.json").read_text())
    tables = {}
    for row in contents["rows"]:
        tables.setdefault((row["family"], row["table"]), []).append(row)
    empty = [table for table, rows in tables.items() if all(row["ours"] is None for row in rows)]
    words = {method for method, stated in recipe["methods"].items() if "words" in stated}
    lacking = {(row["table"], row["row"]) for row in contents["rows"]
               if row["lacks"] == "does not apply" and row["method"] not in words}  # fmt: skip
    assert (empty, lacking) == ([], set())
