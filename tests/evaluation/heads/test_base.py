"""What heads get: runs that depend on labels and seeds alone, and input that is checked before any work."""

import numpy as np
import pytest

from docsplit.evaluation.heads.base import HeadInput, Run, runs_of
from tests.evaluation.heads.examples import CLASSES, WIDTH, everything


def test_runs_depend_on_labels_shots_and_seed_alone(split):
    runs, again = (runs_of(split, 5, 4, num_seeds=9) for _ in range(2))
    for run, same in zip(runs, again):
        np.testing.assert_array_equal(run.indices, same.indices)
        assert np.bincount(split.train_labels[run.indices]).tolist() == [5, 5, 5]
    assert len({run.seed for run in runs}) == len({tuple(run.indices) for run in runs}) == 4
    assert [run.seed for run in runs] == [run.seed for run in again]
    full = runs_of(split, None, 9, num_seeds=3)
    assert len({run.seed for run in full}) == 3
    assert all(len(set(run.indices)) == 120 for run in full)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": np.full((60, WIDTH), np.nan)}, "60 of 60 training documents"),
        ({"test": np.r_[np.zeros((4, WIDTH)), np.full((2, WIDTH), np.inf)]}, "2 of 6 test documents"),
        ({"test": np.zeros((4, WIDTH + 1))}, "test features are"),
        ({"test": np.zeros((0, WIDTH))}, "test features are"),
        ({"labels": np.zeros(59, dtype=int)}, "training labels are"),
        ({"labels": np.zeros((60, 2), dtype=int)}, "training labels are"),
        ({"runs": []}, "at least one run"),
        ({"runs": [Run(np.arange(60), 0), Run(np.array([0, 1, 3, 4]), 1)]}, r"Run 1 .* classes \[2\]"),
        ({"validation": (np.full((2, WIDTH), np.nan), np.zeros(2, int))}, "2 of 2 validation documents"),
        ({"validation": (np.zeros((2, WIDTH)), np.zeros((2, 3), int))}, "validation labels are"),
    ],
)
def test_what_does_not_agree_raises(change, message, train, test):
    arguments = {"train": train[0], "labels": train[1], "runs": everything(train[1], 1), "test": test[0]}
    arguments |= {"num_classes": CLASSES, "few_shot": False, "validation": None} | change
    with pytest.raises(ValueError, match=message):
        HeadInput(**arguments)
