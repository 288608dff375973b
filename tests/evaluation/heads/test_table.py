"""What holds for every head of the table."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from docsplit.evaluation.heads import frozen as heads
from docsplit.evaluation.heads.base import HeadInput, Run
from docsplit.evaluation.heads.table import HEADS
from tests.evaluation.heads.examples import CLASSES, WIDTH, clusters, everything, several


@pytest.mark.parametrize("few_shot", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_separable_classes_are_told_apart_and_labels_without_a_pattern_are_not(
    name, few_shot, change_mlp, monkeypatch
):
    monkeypatch.setattr(heads, "C_GRID", (0.1, 10.0))
    change_mlp(learning_rate=3e-3)  # the features are few and narrow
    (train, labels), (test, expected) = clusters(300, noise=0.3), clusters(300, noise=0.3, seed=1)
    rng = np.random.default_rng(0)
    shots = [np.concatenate([rng.choice(np.flatnonzero(labels == c), 10, False) for c in range(3)]) for _ in range(4)]
    runs = [Run(draw, seed) for seed, draw in enumerate(shots)] if few_shot else everything(labels, 2)
    noise, test_noise = rng.standard_normal((2, 300, WIDTH)).astype(np.float32)
    for given, asked, low, high in ((train, test, 0.99, 1.0), (noise, test_noise, 0.2, 0.47)):
        output = HEADS[name](HeadInput(given, labels, runs, asked, CLASSES, few_shot=few_shot))
        assert low <= (output.scores.argmax(axis=2) == expected).mean() <= high
        np.testing.assert_allclose(output.scores.sum(axis=2), 1, rtol=1e-4)
        assert output.seconds > 0


@pytest.mark.parametrize("few_shot", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_several_labels_are_learnt(name, few_shot, change_mlp, monkeypatch):
    monkeypatch.setattr(heads, "C_GRID", (1.0, 100.0))
    change_mlp(learning_rate=3e-3)
    (train, labels), (test, expected) = several(400), several(200, seed=1)
    runs = [Run(np.arange(200), 0), Run(np.arange(150, 393), 1)] if few_shot else everything(labels, 2)
    scores = HEADS[name](HeadInput(train, labels, runs, test, CLASSES, few_shot=few_shot)).scores
    quality = [f1_score(expected, run_scores >= 0.5, average="micro") for run_scores in scores]
    assert min(quality) > (0.6 if name == "knn" else 0.85)
