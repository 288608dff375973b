"""Figures of runs: what they draw."""

import csv

from docsplit.evaluation.results.plots import loss_parts, plot_convergence, plot_training
from docsplit.evaluation.results.task import CLASSIFICATION


def test_the_loss_is_drawn_with_the_parts_that_an_objective_logs(tmp_path):
    logs = [
        {"step": 1, "contrastive_loss": 8.0, "info_nce_loss": 2.0, "bregman_loss": 3.0, "loss": 8.1},
        {"step": 2, "contrastive_loss": 7.0, "mlm_loss": 1.0, "eval_loss": 5.0},
        {"step": 2, "train_loss": 9.0},
    ]
    assert loss_parts(logs) == {
        "contrastive": [(1, 8.0), (2, 7.0)],
        "masked LM": [(2, 1.0)],
        "bregman, unweighted": [(1, 3.0)],
        "info nce, unweighted": [(1, 2.0)],
    }
    assert loss_parts(logs[2:]) == {}
    plot_training(logs, {}, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 1000


def test_convergence_is_drawn_of_every_run(tmp_path):
    curve = [{"epoch": 1.0, "step": 5, "accuracy": 0.5, "macro_f1": 0.4}]
    curve += [{"epoch": 2.0, "step": 10, "accuracy": 0.75, "macro_f1": 0.7}]
    row = {"encoder": 'a, "b"', "members": [], "pooling": None, "max_seq_length": None}
    path = tmp_path / "convergence.png"
    assert plot_convergence([row | {"validation_curves": [curve, curve[::-1]]}, row], CLASSIFICATION, path)
    assert path.stat().st_size > 1000
    lines = list(csv.reader((tmp_path / "convergence.csv").read_text().splitlines()))
    assert lines[0] == ["encoder", "run", "epoch", "step", "accuracy", "macro_f1"]
    assert lines[1] == ['a, "b"', "0", "1.0", "5", "0.5", "0.4"]
    assert [line[1] for line in lines[1:]] == ["0", "0", "1", "1"]
    assert not plot_convergence([row], CLASSIFICATION, path)
    assert not list(tmp_path.iterdir())
