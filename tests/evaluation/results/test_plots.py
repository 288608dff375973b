"""Figures of runs: what they draw."""

from docsplit.evaluation.results.plots import loss_parts, plot_training


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
