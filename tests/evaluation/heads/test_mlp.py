"""The probe by gradient against a slow, obvious version of itself: modules and an optimizer of torch."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from torch import nn

from docsplit.evaluation.classification import head_of
from docsplit.evaluation.heads import mlp as mlp_head
from docsplit.evaluation.heads.base import HeadInput, Run
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.heads.presets import PRESETS
from tests.evaluation.heads.examples import CLASSES, WIDTH, clusters, everything, several


def test_runs_that_stop_early_at_different_epochs_end_as_if_trained_alone(train, test, change_mlp, monkeypatch):
    change_mlp(learning_rate=1e-2)
    epochs = []
    train_epoch = mlp_head._train_epoch

    def counted(*arguments):
        epochs.append(1)
        train_epoch(*arguments)

    monkeypatch.setattr(mlp_head, "_train_epoch", counted)
    runs = everything(train[1], 5)
    together = mlp(HeadInput(*train, runs, test[0], CLASSES, few_shot=False)).scores
    assert len(epochs) < PRESETS["docsplit"].mlp.max_epochs
    lengths = set()
    for run, scores in zip(runs, together):
        epochs.clear()
        alone = mlp(HeadInput(*train, [run], test[0], CLASSES, few_shot=False)).scores[0]
        np.testing.assert_allclose(scores, alone, atol=1e-5)
        lengths.add(len(epochs))
    assert len(lengths) > 1, "no run stopped before another: nothing was tested"


def test_threads_change_nothing(train, test, draws):
    one = mlp(HeadInput(*train, draws, test[0], CLASSES, few_shot=True)).scores
    torch.set_num_threads(2)
    try:
        two = mlp(HeadInput(*train, draws, test[0], CLASSES, few_shot=True)).scores
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    np.testing.assert_allclose(one, two, atol=1e-5)


def slow_mlp(train, labels, run, hidden, num_classes, epochs):
    """An `nn.Sequential`, `torch.optim.Adam` and a loop over the batches and dropout masks that a run draws.

    Returns: the model after each epoch.
    """
    generator = torch.Generator().manual_seed(run.seed)
    settings = PRESETS["docsplit"].mlp
    weights_1, biases_1, weights_2, biases_2 = mlp_head._initial([train.shape[1], hidden, num_classes], generator)
    masks = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
    model = nn.Sequential(nn.Linear(train.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
    values = {"0.weight": weights_1.T, "0.bias": biases_1[0], "2.weight": weights_2.T, "2.bias": biases_2[0]}
    model.load_state_dict(values)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    loss_of = nn.BCEWithLogitsLoss() if labels.ndim == 2 else nn.CrossEntropyLoss()
    targets = torch.as_tensor(labels, dtype=torch.float32 if labels.ndim == 2 else torch.int64)
    models = []
    for _ in range(epochs):
        order = torch.as_tensor(run.indices)[torch.randperm(len(run.indices), generator=generator)]
        batches = order.split(8)
        kept = torch.empty(len(batches), 8, hidden).bernoulli_(1 - settings.dropout, generator=masks)
        for batch, mask in zip(batches, kept):
            optimizer.zero_grad()
            activations = model[:2](torch.as_tensor(train)[batch]) * mask[: len(batch)] / (1 - settings.dropout)
            loss_of(model[2](activations), targets[batch]).backward()
            optimizer.step()
        copy = nn.Sequential(nn.Linear(train.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
        copy.load_state_dict(model.state_dict())
        models.append(copy)
    return models


@pytest.mark.parametrize("labelled", ["one label", "several labels"])
def test_mlp_equals_a_sequential_and_adam(draws, labelled):
    one = labelled == "one label"
    (train, labels), (test, _) = (clusters(60), clusters(30, seed=1)) if one else (several(60), several(30, seed=1))
    output = mlp(HeadInput(train, labels, draws, test, CLASSES, few_shot=True), hidden=20)
    for run, scores in zip(draws, output.scores):
        model = slow_mlp(train, labels, run, 20, CLASSES, 30)[-1]
        logits = model(torch.as_tensor(test))
        expected = logits.softmax(dim=1) if one else logits.sigmoid()
        np.testing.assert_allclose(scores, expected.detach().numpy(), atol=1e-5)
    assert output.trainable_parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("given", [True, False])
def test_early_stopping_uses_the_weights_of_the_best_epoch(given, train, test, change_mlp):
    change_mlp(dropout=0.0, learning_rate=3e-2)  # so that it overfits
    run = Run(np.arange(60), 3)
    validation = clusters(24, noise=2.0, seed=2) if given else None
    scores = mlp(HeadInput(*train, [run], test[0], CLASSES, few_shot=False, validation=validation)).scores[0]
    if given:
        fitted, held, held_labels = run.indices, *validation
    else:
        fitted, rows = train_test_split(run.indices, test_size=6, stratify=train[1], random_state=3)
        held, held_labels = train[0][rows], train[1][rows]
        assert np.bincount(held_labels).tolist() == [2, 2, 2]
    models = slow_mlp(*train, Run(fitted, 3), WIDTH, CLASSES, PRESETS["docsplit"].mlp.max_epochs)
    loss_of = nn.CrossEntropyLoss()
    with torch.no_grad():
        losses = [float(loss_of(model(torch.as_tensor(held)), torch.as_tensor(held_labels))) for model in models]
        best = next(epoch for epoch in range(50) if losses[epoch] < min(losses[epoch + 1 : epoch + 4], default=np.inf))
        expected = models[best](torch.as_tensor(test[0])).softmax(dim=1).numpy()
        too_late = models[best + 3](torch.as_tensor(test[0])).softmax(dim=1).numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.abs(too_late - expected).max() > 1e-2


def slow_head(train, labels, run, settings, num_classes, few_shot, held=None):
    """A preset's head as modules and an optimizer of torch, its dropout off, batch by batch.

    Returns: the model, after the best epoch by the share of right answers on `held` if there is one.
    """
    generator = torch.Generator().manual_seed(run.seed)
    width = train.shape[1]
    widths = [width, width, num_classes] if settings.hidden_layer else [width, num_classes]
    weights = mlp_head._initial(widths, generator)
    torch.randint(2**62, (), generator=generator)  # the seed of the masks
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
    for layer, weight, bias in zip(layers, weights[::2], weights[1::2]):
        layer.load_state_dict({"weight": weight.T, "bias": bias[0]})
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1]) if settings.hidden_layer else layers[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    best, kept, waited = -1.0, None, 0
    for _ in range(settings.few_shot_epochs if few_shot else settings.max_epochs):
        order = torch.as_tensor(run.indices)[torch.randperm(len(run.indices), generator=generator)]
        for batch in order.split(settings.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                model(torch.as_tensor(train)[batch]), torch.as_tensor(labels)[batch]
            ).backward()
            optimizer.step()
        if few_shot:
            continue
        right = float((model(torch.as_tensor(held[0])).argmax(dim=1).numpy() == held[1]).mean())
        waited = 0 if right > best else waited + 1
        if right > best:
            best, kept = right, {name: value.clone() for name, value in model.state_dict().items()}
        if waited == settings.patience:
            break
    if kept is not None:
        model.load_state_dict(kept)
    return model


@pytest.mark.parametrize("few_shot", [True, False])
@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_the_bregman_papers_heads_equal_torchs_modules(head, few_shot, train, test, monkeypatch):
    paper = PRESETS["bregman"]
    settings = {"mlp": paper.mlp, "linear": paper.linear}[head]
    assert (settings.learning_rate, settings.batch_size, settings.patience) == (1e-4, 16, 3)
    settings = replace(settings, learning_rate=1e-2, few_shot_epochs=12, dropout=0.0, input_dropout=0.0)
    monkeypatch.setitem(PRESETS, "bregman", replace(paper, **{head: settings}))
    function, preset = head_of(head, "bregman")
    assert preset == "bregman"
    run, held = Run(np.arange(60), 5), clusters(24, noise=2.0, seed=2)
    output = function(
        HeadInput(*train, [run], test[0], CLASSES, few_shot=few_shot, validation=None if few_shot else held)
    )
    model = slow_head(*train, run, settings, CLASSES, few_shot, held)
    expected = model(torch.as_tensor(test[0])).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(output.scores[0], expected, atol=1e-4)
    assert output.trainable_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_bregman_papers_mlp_drops_inputs_in_training_only(train, test):
    settings, run = replace(PRESETS["bregman"].mlp, dropout=0.0, few_shot_epochs=5), [Run(np.arange(60), 0)]
    with_dropout = mlp(HeadInput(*train, run, test[0], CLASSES, few_shot=True), training=settings).scores
    again = mlp(HeadInput(*train, run, test[0], CLASSES, few_shot=True), training=settings).scores
    np.testing.assert_array_equal(with_dropout, again)
    settings = replace(settings, input_dropout=0.0)
    without = mlp(HeadInput(*train, run, test[0], CLASSES, few_shot=True), training=settings).scores
    assert np.abs(with_dropout - without).max() > 1e-4


def test_micro_f1_of_several_labels_chooses_the_epoch_as_scikit_learn_would():
    (train, labels), held = several(60), several(24, seed=2)
    settings = replace(PRESETS["bregman"].mlp, learning_rate=3e-2)
    parameters = [part[None] for part in mlp_head._initial([WIDTH, WIDTH, CLASSES], torch.Generator().manual_seed(0))]
    features, targets = (torch.as_tensor(part, dtype=torch.float32) for part in held)
    rows = torch.arange(24)[None]
    (quality,) = mlp_head._quality(parameters, (features, targets), rows, settings)
    predicted = mlp_head._logits(parameters, features[None], settings)[0] >= 0
    assert quality == pytest.approx(f1_score(held[1], predicted, average="micro"))
    output = mlp(HeadInput(train, labels, everything(labels, 1), train, CLASSES, False, held), training=settings)
    assert f1_score(labels, output.scores[0] >= 0.5, average="micro") > 0.8
