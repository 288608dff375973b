"""Figures of runs: what they draw."""

from dataclasses import replace

import matplotlib.pyplot as plt
import pytest

from docsplit.evaluation.results.plots import loss_parts, plot_convergence, plot_few_shot, plot_training
from docsplit.evaluation.results.report import records, rows
from docsplit.evaluation.results.result import CLASSIFICATION
from tests.evaluation.results.examples import make_result


def test_the_loss_is_drawn_with_the_parts_that_an_objective_logs(tmp_path):
    logs = [
        {"step": 1, "contrastive_loss": 8.0, "info_nce_loss": 2.0, "bregman_loss": 3.0, "loss": 8.1},
        {"step": 2, "contrastive_loss": 7.0, "mlm_loss": 1.0, "eval_loss": 5.0},
        {"step": 2, "train_loss": 9.0},
    ]
    assert loss_parts(logs, "contrastive") == {
        "contrastive": [(1, 8.0), (2, 7.0)],
        "masked LM": [(2, 1.0)],
        "bregman, unweighted": [(1, 3.0)],
        "info nce, unweighted": [(1, 2.0)],
    }
    assert next(iter(loss_parts(logs, "distillation"))) == "distillation"
    plot_training(logs, {}, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 1000


def test_curves_show_what_the_rows_say(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)  # to look at them
    results = [
        make_result(encoder, 1.0, head=head, shots=shots, seed=shots or 0)
        for encoder in "ab"
        for head in ("mlp", "linear")
        for shots in (20, 5, None)
    ]
    table = rows(results)
    assert plot_few_shot(table, CLASSIFICATION, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    (figure,) = figures
    assert [axis.get_title() for axis in figure.axes] == ["mlp", "linear"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["5", "20", "all"]
    for axis in figure.axes:
        (line,) = [line for line in axis.get_lines() if line.get_label() == "b"]
        own = [row for row in records(table) if (row["encoder"], row["head"]) == ("b", axis.get_title())]
        chosen = {row["shots"]: 100 * row["accuracy_mean"] for row in own}
        assert line.get_xdata().tolist() == [5, 20]
        assert line.get_ydata() == pytest.approx([chosen[5], chosen[20]])
        assert any(list(point.get_ydata()) == pytest.approx([chosen[None]]) for point in axis.get_lines())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    monkeypatch.undo()
    plt.close(figure)


def test_convergence_is_drawn_of_every_run(tmp_path):
    curve = [{"epoch": 1.0, "step": 5, "accuracy": 0.5, "macro_f1": 0.4}]
    curve += [{"epoch": 2.0, "step": 10, "accuracy": 0.75, "macro_f1": 0.7}]
    row = make_result('a, "b"', 1.0, head="finetune")
    path = tmp_path / "convergence.png"
    assert plot_convergence(rows([replace(row, curves=[curve, curve[::-1]]), row]), CLASSIFICATION, path)
    assert path.stat().st_size > 1000
    assert not plot_convergence(rows([row]), CLASSIFICATION, path)
    assert not list(tmp_path.iterdir())
