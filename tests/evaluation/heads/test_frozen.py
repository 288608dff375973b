"""Heads on frozen features: each against a slow, obvious version of itself."""

import csv
import dataclasses
import logging
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from torch import nn

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.arguments import ProbeArguments
from docsplit.evaluation.classification import head_of
from docsplit.evaluation.heads import frozen as heads
from docsplit.evaluation.heads import mlp as mlp_head
from docsplit.evaluation.heads.frozen import Run, knn, linear, standardize
from docsplit.evaluation.heads.mlp import mlp
from docsplit.evaluation.heads.presets import PRESETS
from docsplit.evaluation.heads.table import (
    HEADS,
    PROBE_C,
    few_shot_runs,
    full_runs,
    probe_accuracy,
    tfidf_accuracy,
    tfidf_features,
)
from docsplit.evaluation.results.plots import plot_convergence
from docsplit.evaluation.results.records import Row
from docsplit.evaluation.results.task import CLASSIFICATION
from tests.conftest import make_corpus

WIDTH, CLASSES = 12, 3


def clusters(size: int, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features around a centre per class, (size, WIDTH), and labels in turn, (size,)."""
    labels = np.arange(size) % CLASSES
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((CLASSES, WIDTH))
    return (centres[labels] + noise * rng.standard_normal((size, WIDTH))).astype(np.float32), labels


def several(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and multi-hot labels, (size, CLASSES), each of which a linear rule gives."""
    features = np.random.default_rng(seed).standard_normal((size, WIDTH)).astype(np.float32)
    return features, (features[:, :CLASSES] > 0.3).astype(np.int8)


def everything(labels: np.ndarray, num_seeds: int) -> list[Run]:
    return [Run(np.arange(len(labels)), seed) for seed in range(num_seeds)]


@pytest.fixture
def change_mlp(monkeypatch):
    """Changes how the default preset trains its MLP."""

    def change(**values):
        preset = PRESETS["docsplit"]
        monkeypatch.setitem(PRESETS, "docsplit", replace(preset, mlp=replace(preset.mlp, **values)))

    return change


@pytest.fixture(autouse=True)
def _few_epochs(change_mlp):
    change_mlp(few_shot_epochs=30)


@pytest.fixture
def train():
    return clusters(60)


@pytest.fixture
def test():
    return clusters(30, seed=1)


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    sizes = (10, 12, 17, 31, 60)  # the first two have as many batches, full and partial ones
    return [Run(np.r_[0:3, 3 + rng.permutation(57)[: size - 3]], seed + 7) for seed, size in enumerate(sizes)]


@pytest.fixture
def split():
    rows = make_corpus(150)
    names = sorted({row["label"] for row in rows})
    texts, labels = [row["text"] for row in rows], np.array([names.index(row["label"]) for row in rows])
    return LabelledSplit(texts[:120], labels[:120], texts[120:], labels[120:], names)


def test_runs_depend_on_labels_shots_and_seed_alone(split):
    runs, again = few_shot_runs(split, 5, 4), few_shot_runs(split, 5, 4)
    for run, same in zip(runs, again):
        np.testing.assert_array_equal(run.indices, same.indices)
        assert np.bincount(split.train_labels[run.indices]).tolist() == [5, 5, 5]
    assert len({run.seed for run in runs}) == len({tuple(run.indices) for run in runs}) == 4
    assert [run.seed for run in runs] == [run.seed for run in again]
    full = full_runs(split, 3)
    assert len({run.seed for run in full}) == 3
    assert all(len(set(run.indices)) == 120 for run in full)


# The mlp head


@pytest.mark.parametrize("labelled", ["one label", "several labels"])
def test_few_shot_runs_of_an_ensemble_end_as_if_trained_alone(draws, labelled):
    (train, labels), (test, _) = (
        (clusters(60), clusters(30, seed=1)) if labelled == "one label" else (several(60),) * 2
    )
    together = mlp(train, labels, draws, test, CLASSES, few_shot=True).scores
    assert together.dtype == np.float32
    for run, scores in zip(draws, together):
        alone = mlp(train, labels, [run], test, CLASSES, few_shot=True).scores[0]
        np.testing.assert_allclose(scores, alone, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-2  # and runs are different ones


def test_runs_that_stop_early_at_different_epochs_end_as_if_trained_alone(train, test, change_mlp, monkeypatch):
    change_mlp(learning_rate=1e-2)
    epochs = []
    train_epoch = mlp_head._train_epoch

    def counted(parameters, *rest):
        epochs.append(len(parameters[0]))
        train_epoch(parameters, *rest)

    monkeypatch.setattr(mlp_head, "_train_epoch", counted)
    runs = everything(train[1], 5)
    together = mlp(*train, runs, test[0], CLASSES, few_shot=False).scores
    assert sorted(set(epochs), reverse=True)[0] == 5
    assert len(set(epochs)) > 1, "no run stopped before another: nothing was tested"
    assert len(epochs) < PRESETS["docsplit"].mlp.max_epochs
    for run, scores in zip(runs, together):
        np.testing.assert_allclose(scores, mlp(*train, [run], test[0], CLASSES, few_shot=False).scores[0], atol=1e-5)


def test_threads_change_nothing(train, test, draws):
    one = mlp(*train, draws, test[0], CLASSES, few_shot=True).scores
    torch.set_num_threads(2)
    try:
        two = mlp(*train, draws, test[0], CLASSES, few_shot=True).scores
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
    output = mlp(train, labels, draws, test, CLASSES, few_shot=True, hidden=20)
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
    scores = mlp(*train, [run], test[0], CLASSES, few_shot=False, validation=validation).scores[0]
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


def test_dropout_is_at_work_in_training_only(train, test, change_mlp):
    runs = [Run(np.arange(60), 0)]
    with_dropout = mlp(*train, runs, test[0], CLASSES, few_shot=True).scores
    np.testing.assert_array_equal(with_dropout, mlp(*train, runs, test[0], CLASSES, few_shot=True).scores)
    change_mlp(dropout=0.0)
    without = mlp(*train, runs, test[0], CLASSES, few_shot=True).scores
    assert np.abs(with_dropout - without).max() > 1e-4


def test_validation_labels_may_have_classes_too_rare_to_stratify():
    train, labels = clusters(31)
    labels[30] = CLASSES  # a single document
    output = mlp(train, labels, everything(labels, 2), train, CLASSES + 1, few_shot=False)
    assert output.scores.shape == (2, 31, CLASSES + 1)


# Presets


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
    output = function(*train, [run], test[0], CLASSES, few_shot=few_shot, validation=None if few_shot else held)
    model = slow_head(*train, run, settings, CLASSES, few_shot, held)
    expected = model(torch.as_tensor(test[0])).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(output.scores[0], expected, atol=1e-4)
    assert output.trainable_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_bregman_papers_mlp_drops_inputs_in_training_only(train, test):
    settings, run = replace(PRESETS["bregman"].mlp, dropout=0.0, few_shot_epochs=5), [Run(np.arange(60), 0)]
    with_dropout = mlp(*train, run, test[0], CLASSES, few_shot=True, training=settings).scores
    again = mlp(*train, run, test[0], CLASSES, few_shot=True, training=settings).scores
    np.testing.assert_array_equal(with_dropout, again)
    settings = replace(settings, input_dropout=0.0)
    without = mlp(*train, run, test[0], CLASSES, few_shot=True, training=settings).scores
    assert np.abs(with_dropout - without).max() > 1e-4


def test_micro_f1_of_several_labels_chooses_the_epoch_as_scikit_learn_would():
    (train, labels), held = several(60), several(24, seed=2)
    settings = replace(PRESETS["bregman"].mlp, learning_rate=3e-2)
    parameters = [part[None] for part in mlp_head._initial([WIDTH, WIDTH, CLASSES], torch.Generator().manual_seed(0))]
    features, targets = (torch.as_tensor(part, dtype=torch.float32) for part in held)
    rows = torch.arange(24)[None]
    (quality,) = mlp_head._quality(parameters, features, targets, rows, settings)
    predicted = mlp_head._logits(parameters, features[None], settings)[0] >= 0
    assert quality == pytest.approx(f1_score(held[1], predicted, average="micro"))
    output = mlp(train, labels, everything(labels, 1), train, CLASSES, False, held, training=settings)
    assert f1_score(labels, output.scores[0] >= 0.5, average="micro") > 0.8


def test_heads_that_no_preset_names_and_sparse_features_stay_as_they_are():
    assert head_of("knn", "bregman") == (knn, None)
    assert head_of("linear", "docsplit") == (linear, "docsplit")
    assert head_of("linear", "bregman", is_sparse=True) == (linear, "docsplit")


# The linear head


def test_linear_equals_a_grid_search(train, test):
    runs = everything(train[1], 1)
    scores = linear(*train, runs, test[0], CLASSES, few_shot=False).scores
    for run, probabilities in zip(runs, scores):
        folds = StratifiedKFold(5, shuffle=True, random_state=run.seed)
        search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": list(heads.C_GRID)}, cv=folds)
        expected = search.fit(*train).predict_proba(test[0])
        np.testing.assert_allclose(probabilities, expected, atol=1e-3)


@pytest.mark.parametrize("best", heads.C_GRID)
def test_c_is_the_one_that_does_best_on_held_out_documents(best, train, test, monkeypatch):
    monkeypatch.setattr(heads, "_path", lambda *_: [float(c == best) for c in heads.C_GRID])
    expected = LogisticRegression(C=best, max_iter=2000).fit(*train).predict_proba(test[0])
    scores = linear(*train, everything(train[1], 1), test[0], CLASSES, few_shot=False).scores[0]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_linear_with_several_labels_is_one_against_rest_and_constant_ones_stay_constant(monkeypatch):
    monkeypatch.setattr(heads, "C_GRID", (1.0,))
    train, labels = several(60)
    test, _ = several(30, seed=1)
    labels = np.column_stack([labels, np.zeros(60, np.int8), np.ones(60, np.int8)])
    scores = linear(train, labels, everything(labels, 1), test, CLASSES + 2, few_shot=False).scores[0]
    for label in range(CLASSES):
        expected = LogisticRegression().fit(train, labels[:, label]).predict_proba(test)[:, 1]
        np.testing.assert_allclose(scores[:, label], expected, atol=1e-5)
    assert (scores[:, CLASSES] == 0).all()
    assert (scores[:, CLASSES + 1] == 1).all()


def test_linear_takes_sparse_features(train, test):
    runs = [Run(np.arange(20), 0), Run(np.arange(20, 60), 1)]
    dense = linear(*train, runs, test[0], CLASSES, few_shot=True).scores
    sparse = linear(csr_matrix(train[0]), train[1], runs, csr_matrix(test[0]), CLASSES, few_shot=True).scores
    np.testing.assert_allclose(sparse, dense, atol=1e-3)


def test_sparse_features_of_few_documents_are_rotated_and_nothing_changes(split, monkeypatch):
    train, test = tfidf_features(split.train_texts, split.test_texts)
    draw = split.draws(5, 1)[0]
    runs = [Run(np.concatenate([draw, draw[:4]]), 0)]  # some documents twice: fewer dimensions than documents
    labels = split.train_labels
    assert heads.in_row_space(train[runs[0].indices], test)[0].shape == (19, 15)
    rotated = linear(train, labels, runs, test, CLASSES, few_shot=True).scores
    monkeypatch.setattr(heads, "MAX_ROW_SPACE", 0)
    assert heads.in_row_space(train[runs[0].indices], test)[0].shape[1] == train.shape[1]
    np.testing.assert_allclose(rotated, linear(train, labels, runs, test, CLASSES, few_shot=True).scores, atol=2e-3)


def test_one_shot_has_no_folds_and_says_so_once(train, test, caplog):
    runs = [Run(np.arange(3), 0), Run(np.arange(3, 6), 1)]
    with caplog.at_level(logging.WARNING, logger="docsplit.evaluation.heads.table"):
        scores = linear(*train, runs, test[0], CLASSES, few_shot=True).scores
    assert len(caplog.records) == 1
    assert "2 of 2 runs" in caplog.text
    expected = LogisticRegression(C=1.0).fit(train[0][:3], train[1][:3]).predict_proba(test[0])
    np.testing.assert_allclose(scores[0], expected, atol=1e-5)


def test_fits_that_do_not_converge_are_counted_in_one_line(train, test, monkeypatch, caplog, recwarn):
    monkeypatch.setattr(heads, "MAX_ITERATIONS", 1)
    with caplog.at_level(logging.WARNING, logger="docsplit.evaluation.heads.table"):
        linear(*train, everything(train[1], 3), test[0], CLASSES, few_shot=False)
    assert len(caplog.records) == 1
    assert "did not converge" in caplog.text
    assert not recwarn.list


# The knn head


@pytest.mark.parametrize("few_shot", [True, False])
def test_knn_equals_brute_force(few_shot, train, test):
    runs = [Run(np.arange(15), 0), Run(np.arange(3, 24), 1)]
    output = knn(*train, runs, test[0], CLASSES, few_shot=few_shot)
    assert len(output.scores) == (2 if few_shot else 1)
    unit = [features / np.linalg.norm(features, axis=1, keepdims=True) for features in (train[0], test[0])]
    for run, scores in zip(runs, output.scores):
        nearest_first = np.argsort(-(unit[1] @ unit[0][run.indices].T), axis=1)
        k = {15: 5, 21: 7}[len(run.indices)] if few_shot else 10
        for document, order in enumerate(nearest_first):
            votes = np.bincount(train[1][run.indices][order[:k]], minlength=CLASSES)
            np.testing.assert_allclose(scores[document], votes / k, rtol=1e-6)


def test_knn_with_several_labels_gives_their_shares():
    train, labels = several(40)
    scores = knn(csr_matrix(train), labels, everything(labels, 3), train[:5], CLASSES, few_shot=False).scores
    assert scores.shape == (1, 5, CLASSES)
    unit = train / np.linalg.norm(train, axis=1, keepdims=True)
    nearest = np.argsort(-(unit[:5] @ unit.T), axis=1)[:, :10]
    np.testing.assert_allclose(scores[0], labels[nearest].mean(axis=1), rtol=1e-6)


# All heads


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
        output = HEADS[name](given, labels, runs, asked, CLASSES, few_shot=few_shot)
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
    scores = HEADS[name](train, labels, runs, test, CLASSES, few_shot=few_shot).scores
    quality = [f1_score(expected, run_scores >= 0.5, average="micro") for run_scores in scores]
    assert min(quality) > (0.6 if name == "knn" else 0.85)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": np.full((60, WIDTH), np.nan)}, "60 of 60 training documents"),
        ({"test": np.r_[np.zeros((4, WIDTH)), np.full((2, WIDTH), np.inf)]}, "2 of 6 test documents"),
        ({"test": np.zeros((4, WIDTH + 1))}, "test features are"),
        ({"test": np.zeros((0, WIDTH))}, "test features are"),
        ({"labels": np.zeros(59, dtype=int)}, "training labels are"),
        ({"labels": np.arange(60) % 4}, "from 0 to 3, expected 0 to 2"),
        ({"labels": np.zeros((60, 2), dtype=int)}, "expected 3 columns"),
        ({"runs": []}, "at least one run"),
        ({"runs": [Run(np.arange(60), 0), Run(np.array([0, 1, 3, 4]), 1)]}, r"Run 1 .* classes \[2\]"),
        ({"runs": [Run(np.array([0, 1, 60]), 0)]}, "rows outside 0 to 59"),
        ({"runs": [Run(np.array([], dtype=int), 0)]}, "no documents"),
        ({"validation": (np.full((2, WIDTH), np.nan), np.zeros(2, int))}, "2 of 2 validation documents"),
        ({"validation": (np.zeros((2, WIDTH)), np.zeros((2, 3), int))}, "validation labels are"),
    ],
)
def test_what_does_not_agree_raises(name, change, message, train, test):
    arguments = {"train": train[0], "labels": train[1], "runs": everything(train[1], 1), "test": test[0]}
    arguments |= {"num_classes": CLASSES, "few_shot": False, "validation": None} | change
    with pytest.raises(ValueError, match=message):
        HEADS[name](**arguments)


def test_the_mlp_takes_no_sparse_features(train):
    with pytest.raises(ValueError, match="use linear or knn"):
        mlp(csr_matrix(train[0]), train[1], everything(train[1], 1), csr_matrix(train[0]), CLASSES, few_shot=False)


# Features


def test_standardised_features_have_mean_zero_and_deviation_one_over_the_training_documents():
    train = np.random.default_rng(0).normal(5, [0.01, 1, 100], (50, 3))
    train, test = (np.column_stack([part, np.full(len(part), 0.3)]).astype(np.float32) for part in (train, train[:7]))
    scaled, scaled_test = standardize(train, test)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 1, 0], atol=1e-5)
    np.testing.assert_array_equal(scaled_test, scaled[:7])
    assert scaled.dtype == np.float32


def test_tfidf_vocabulary_is_that_of_the_training_part():
    train, test, other = tfidf_features(["an oven", "a ship ship"], ["an anchor"], ["ship"])
    assert train.shape == (2, 3)
    assert (test.nnz, other.nnz) == (1, 1)


# The quick probe beside pretraining


@pytest.fixture
def probed(split):
    """With validation documents: every third of those to test on."""
    third = np.arange(len(split.test_labels)) % 3 == 1
    texts = np.array(split.test_texts, dtype=object)
    return dataclasses.replace(
        split,
        validation_texts=texts[third].tolist(),
        validation_labels=split.test_labels[third],
        test_texts=texts[~third].tolist(),
        test_labels=split.test_labels[~third],
    )


def noisy(split, noise, scale=1.0):
    rng = np.random.default_rng(0)
    labels = {name: getattr(split, f"{name}_labels") for name in split.texts}
    return {
        name: scale * (np.eye(3)[own] + noise * rng.standard_normal((len(own), 3))) for name, own in labels.items()
    }


def test_accuracy_is_that_of_the_right_features(probed):
    perfect = probe_accuracy(probed, noisy(probed, 0.01))
    nothing = {name: np.random.default_rng(1).standard_normal((len(texts), 3)) for name, texts in probed.texts.items()}
    useless = probe_accuracy(probed, nothing)
    for part in ("validation", "test"):
        assert perfect[part]["accuracy"] == perfect[part]["5shot_accuracy"] == 1.0
        assert useless[part]["accuracy"] < 0.7
        assert useless[part]["5shot_accuracy"] < 0.6
        assert useless[part]["5shot_accuracy_std"] > 0


def test_c_is_that_of_the_validation_part_and_the_spread_that_of_a_sample(probed):
    features = noisy(probed, 0.5, scale=0.1)  # small features: C = 1 is too strong a penalty
    validation, test = probe_accuracy(probed, features).values()
    draws, accuracies = probed.draws(), {}
    for c in PROBE_C:
        classifiers = [
            LogisticRegression(C=c, max_iter=1000).fit(features["train"][draw], probed.train_labels[draw])
            for draw in draws
        ]
        accuracies[c] = [
            [classifier.score(features[part], getattr(probed, f"{part}_labels")) for classifier in classifiers]
            for part in ("validation", "test")
        ]
    best = max(PROBE_C, key=lambda c: (round(np.mean(accuracies[c][0]), 9), -c))
    assert validation["5shot_c"] == test["5shot_c"] == best
    for result, values in zip((validation, test), accuracies[best]):
        assert result["5shot_accuracy"] == pytest.approx(np.mean(values))
        assert result["5shot_accuracy_std"] == pytest.approx(np.std(values, ddof=1))
    assert len({tuple(values) for _, values in accuracies.values()}) == 3  # or any C would do


def test_test_labels_choose_nothing(probed):
    features = noisy(probed, 0.7, scale=0.3)
    first = probe_accuracy(probed, features)
    scrambled = dataclasses.replace(probed, test_labels=np.roll(probed.test_labels, 1))
    second = probe_accuracy(scrambled, features)
    assert first["validation"] == second["validation"]
    assert (first["test"]["c"], first["test"]["5shot_c"]) == (second["test"]["c"], second["test"]["5shot_c"])
    assert first["test"]["accuracy"] > second["test"]["accuracy"]
    assert (
        first["validation"]
        == probe_accuracy(probed, {name: features[name] for name in ("train", "validation")})["validation"]
    )


def test_tfidf_reads_the_topics(probed):
    assert tfidf_accuracy(probed)["test"]["accuracy"] > 0.9


def test_the_graph_papers_fine_tuning():
    """Table 6: batch, epochs and rate of its four data sets."""
    table = {"graph": (5e-5, 20), "graph_arxiv": (1e-4, 20), "graph_hyperpartisan": (3e-5, 15)}
    for name, (rate, epochs) in table.items():
        own = ProbeArguments(probe_preset=name, heads=["finetune"]).finetuning
        assert own == {"learning_rate": rate, "num_epochs": epochs, "batch_size": 32, "select_by": "accuracy"}
    given = ProbeArguments(probe_preset="graph", finetune_epochs=2, finetune_batch_size=8).finetuning
    assert (given["num_epochs"], given["batch_size"], given["learning_rate"]) == (2, 8, 5e-5)


def test_convergence_is_drawn_of_every_run(tmp_path):
    curve = [{"epoch": 1.0, "step": 5, "accuracy": 0.5, "macro_f1": 0.4}]
    curve += [{"epoch": 2.0, "step": 10, "accuracy": 0.75, "macro_f1": 0.7}]
    row = Row(CLASSIFICATION, 'a, "b"', "finetune", None, 2, {})
    path = tmp_path / "convergence.png"
    assert plot_convergence([replace(row, validation_curves=[curve, curve[::-1]]), row], CLASSIFICATION, path)
    assert path.stat().st_size > 1000
    lines = list(csv.reader((tmp_path / "convergence.csv").read_text().splitlines()))
    assert lines[0] == ["encoder", "run", "epoch", "step", "accuracy", "macro_f1"]
    assert lines[1] == ['a, "b"', "0", "1.0", "5", "0.5", "0.4"]
    assert [line[1] for line in lines[1:]] == ["0", "0", "1", "1"]
    assert not plot_convergence([row], CLASSIFICATION, path)
    assert not list(tmp_path.iterdir())
