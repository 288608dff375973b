"""The probe by gradient against a slow, obvious version of itself: modules and an optimizer of torch."""

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from torch import nn

from docsplit.evaluation.classification import head_of
from docsplit.evaluation.heads import mlp as mlp_head
from docsplit.evaluation.heads.base import HeadInput, HeadRun
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.heads.presets import PRESETS
from tests.evaluation.heads.examples import CLASSES, clusters, everything, several


def slow_models(train, labels, run, training, hidden, epochs):
    """Layers of torch and its optimizer, a loop over the batches and dropout masks that a run draws.

    Returns: the layers after each epoch.
    """
    generator = torch.Generator().manual_seed(run.seed)
    widths = [train.shape[1], *([hidden] if training.hidden_layer else []), CLASSES]
    weights = mlp_head._initial(widths, generator)
    masks = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
    layers = nn.ModuleList([nn.Linear(*pair) for pair in pairwise(widths)])
    for layer, weight, bias in zip(layers, weights[::2], weights[1::2]):
        layer.load_state_dict({"weight": weight.T, "bias": bias[0]})
    kind = {True: torch.optim.AdamW, False: torch.optim.Adam}[training.weight_decay > 0]
    optimizer = kind(layers.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    loss_of = nn.BCEWithLogitsLoss() if labels.ndim == 2 else nn.CrossEntropyLoss()
    targets = torch.as_tensor(labels, dtype=torch.float32 if labels.ndim == 2 else torch.int64)
    models = []
    for _ in range(epochs):
        order = torch.as_tensor(run.indices)[torch.randperm(len(run.indices), generator=generator)]
        batches, kept = order.split(training.batch_size), []
        for rate, width in zip([training.input_dropout, training.dropout], widths[:-1]):
            drawn = torch.empty(len(batches), training.batch_size, width)
            kept.append(drawn.bernoulli_(1 - rate, generator=masks) / (1 - rate) if rate else None)
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            masks_of_step = [mask if mask is None else mask[step, : len(batch)] for mask in kept]
            loss_of(logits_of(layers, train[batch], training, masks_of_step), targets[batch]).backward()
            optimizer.step()
        models.append(copy.deepcopy(layers))
    return models


def logits_of(layers, features, training, masks=(None, None)):
    values = torch.as_tensor(features)
    for number, (layer, mask) in enumerate(zip(layers, masks)):
        if number:
            values = values.relu() if training.activation == "relu" else values.tanh()
        values = layer(values if mask is None else values * mask)
    return values


@pytest.mark.parametrize("labelled", ["one label", "several labels"])
def test_few_shot_runs_equal_torchs_modules(draws, labelled):
    """Runs of an ensemble, of different sizes, each end as if trained alone."""
    one, training = labelled == "one label", PRESETS["docsplit"].mlp
    (train, labels), (test, _) = (clusters(60), clusters(30, seed=1)) if one else (several(60), several(30, seed=1))
    output = mlp(HeadInput(train, labels, draws, test, CLASSES, few_shot=True), hidden=20)
    for run, scores in zip(draws, output.scores):
        model = slow_models(train, labels, run, training, 20, training.few_shot_epochs)[-1]
        logits = logits_of(model, test, training)
        expected = logits.softmax(dim=1) if one else logits.sigmoid()
        np.testing.assert_allclose(scores, expected.detach().numpy(), atol=1e-5)
    assert output.trainable_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_threads_change_nothing(train, test, draws):
    one = mlp(HeadInput(*train, draws, test[0], CLASSES, few_shot=True)).scores
    torch.set_num_threads(2)
    two = mlp(HeadInput(*train, draws, test[0], CLASSES, few_shot=True)).scores
    assert torch.get_num_threads() == 2
    np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.mark.parametrize("given", [True, False])
def test_early_stopping_uses_the_weights_of_each_runs_best_epoch(given, train, test, change_mlp):
    change_mlp(dropout=0.0, learning_rate=1e-2)  # so that it overfits
    training, validation = PRESETS["docsplit"].mlp, clusters(24, noise=2.0, seed=2) if given else None
    runs, stopped = everything(train[1], 0, 1, 2), set()
    together = mlp(HeadInput(*train, runs, test[0], CLASSES, few_shot=False, validation=validation)).scores
    for run, scores in zip(runs, together):
        fitted, held = run.indices, validation
        if not given:
            fitted, rows = train_test_split(run.indices, test_size=6, stratify=train[1], random_state=run.seed)
            held = train[0][rows], train[1][rows]
        models = slow_models(*train, HeadRun(fitted, run.seed), training, train[0].shape[1], 53)
        with torch.no_grad():
            losses = [
                float(nn.functional.cross_entropy(logits_of(model, held[0], training), torch.as_tensor(held[1])))
                for model in models
            ]
            best = next(e for e in range(50) if losses[e] < min(losses[e + 1 : e + 4], default=np.inf))
            expected, late = (logits_of(models[e], test[0], training).softmax(dim=1).numpy() for e in (best, best + 3))
        np.testing.assert_allclose(scores, expected, atol=1e-4)
        assert np.abs(late - expected).max() > 1e-3
        stopped.add(best)
    assert len(stopped) > 1, "no run stopped before another: nothing was tested"


@pytest.mark.parametrize("few_shot", [True, False])
@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_the_bregman_papers_heads_equal_torchs_modules(head, few_shot, train, test, monkeypatch):
    paper = PRESETS["bregman"]
    settings = {"mlp": paper.mlp, "linear": paper.linear}[head]
    assert (settings.learning_rate, settings.batch_size, settings.patience) == (1e-4, 16, 3)
    settings = replace(settings, learning_rate=1e-2, few_shot_epochs=12)
    monkeypatch.setitem(PRESETS, "bregman", replace(paper, **{head: settings}))
    function, preset = head_of(head, "bregman")
    assert preset == "bregman"
    run, held = HeadRun(np.arange(60), 5), clusters(24, noise=2.0, seed=2)
    validation = None if few_shot else held
    output = function(HeadInput(*train, [run], test[0], CLASSES, few_shot=few_shot, validation=validation))
    models = slow_models(*train, run, settings, train[0].shape[1], 12 if few_shot else 30)
    if not few_shot:  # the first of the best epochs, before three that are no better
        right = [(logits_of(model, held[0], settings).argmax(dim=1).numpy() == held[1]).mean() for model in models]
        end = next((e + 1 for e in range(3, 30) if max(right[e - 2 : e + 1]) <= max(right[: e - 2])), 30)
        models = models[: int(np.argmax(right[:end])) + 1]
    expected = logits_of(models[-1], test[0], settings).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(output.scores[0], expected, atol=1e-4)


def test_micro_f1_of_several_labels_chooses_the_epoch_as_scikit_learn_would():
    (train, labels), held = several(60), several(24, seed=2)
    settings = replace(PRESETS["bregman"].mlp, learning_rate=3e-2)
    initial = mlp_head._initial([train.shape[1], train.shape[1], CLASSES], torch.Generator().manual_seed(0))
    parameters, rows = [part[None] for part in initial], torch.arange(24)[None]
    features, targets = (torch.as_tensor(part, dtype=torch.float32) for part in held)
    (quality,) = mlp_head._quality(parameters, (features, targets), rows, settings)
    predicted = mlp_head._logits(parameters, features[None], settings)[0] >= 0
    assert quality == pytest.approx(f1_score(held[1], predicted, average="micro"))
    output = mlp(HeadInput(train, labels, everything(labels, 0), train, CLASSES, False, held), training=settings)
    assert f1_score(labels, output.scores[0] >= 0.5, average="micro") > 0.8


def test_the_mlp_takes_no_sparse_features(train):
    sparse = csr_matrix(train[0])
    with pytest.raises(ValueError, match="use linear or knn"):
        mlp(HeadInput(sparse, train[1], everything(train[1], 0), sparse, CLASSES, few_shot=False))
