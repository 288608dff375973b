"""The rows of one encoder: each measure with what its test items add."""

import numpy as np
import pytest

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.reproduction import measure
from benchmarks.studies.reproduction.hypotheses import Measured, place_of
from docsplit.evaluation.results.bootstrap import ItemScores
from docsplit.evaluation.results.result import CLASSIFICATION, MULTI_LABEL_CLASSIFICATION, Result


def result_of(task, items):
    others = {name: np.array([0.25, 0.75]) for name in task.measures if name != task.main}
    info, details = {"features": "raw", "num_parameters": 7}, {name: {} for name in task.details}
    measured = others | {task.main: items}
    return Result(encoder="a", head="mlp", task=task, measured=measured, info=info, details=details)


@pytest.mark.parametrize("task", [CLASSIFICATION, MULTI_LABEL_CLASSIFICATION], ids=["accuracy", "micro-F1"])
def test_items_come_back_out_of_the_rows(task):
    rng = np.random.default_rng(0)
    above = rng.integers(0, 3, (2, 9)).astype(np.float32)
    below = above + rng.integers(0, 3, (2, 9)) if task is MULTI_LABEL_CLASSIFICATION else np.ones_like(above)
    items = ItemScores(above, below.astype(np.float32))
    rows = [
        {"task": "x", "data": "y", "method": "a", "seed": 0} | row for row in measure.rows_of([result_of(task, items)])
    ]
    (main,) = [row for row in rows if row["metric"] == task.main]
    assert main["value"] == pytest.approx(items.of_runs().mean())
    found = Measured(rows, lambda name, *_: name).items[place_of(main)][0]
    assert (found.numerators == items.numerators).all()
    assert (found.denominators == items.denominators).all()
    (other,) = [row for row in rows if row["metric"] == "macro_f1"]
    assert (other["value"], other["std"]) == (0.5, pytest.approx(np.std([0.25, 0.75], ddof=1)))
    assert SAMPLES not in other
