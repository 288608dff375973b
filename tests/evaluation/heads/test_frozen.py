"""Heads on frozen features, TF-IDF and the quick probe, each against a slow, obvious version of itself."""

import dataclasses
import logging

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from docsplit.evaluation.analysis.clustering import tfidf_svd
from docsplit.evaluation.heads import frozen as heads
from docsplit.evaluation.heads import logistic
from docsplit.evaluation.heads.base import HeadInput, HeadRun, head_runs
from docsplit.evaluation.heads.frozen import PROBE_C, knn, linear, probe_accuracy, standardize, tfidf_features
from tests.evaluation.heads.examples import CLASSES, WIDTH, everything, several


def test_runs_depend_on_labels_shots_and_seed_alone(split):
    runs, again = (head_runs(split, 5, 4, num_seeds=9) for _ in range(2))
    for run, same in zip(runs, again):
        np.testing.assert_array_equal(run.indices, same.indices)
        assert np.bincount(split.train_labels[run.indices]).tolist() == [5, 5, 5]
    assert len({run.seed for run in runs}) == len({tuple(run.indices) for run in runs}) == 4
    assert [run.seed for run in runs] == [run.seed for run in again]
    full = head_runs(split, None, 9, num_seeds=3)
    assert len({run.seed for run in full}) == 3
    assert all(len(set(run.indices)) == 120 for run in full)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": np.full((60, WIDTH), np.nan)}, "60 of 60 training documents"),
        ({"test": np.r_[np.zeros((4, WIDTH)), np.full((2, WIDTH), np.inf)]}, "2 of 6 test documents"),
        ({"runs": [HeadRun(np.arange(60), 0), HeadRun(np.array([0, 1, 3, 4]), 1)]}, r"Run 1 .* classes \[2\]"),
        ({"validation": (np.full((2, WIDTH), np.nan), np.zeros(2, int))}, "2 of 2 validation documents"),
    ],
)
def test_what_does_not_agree_raises(change, message, train, test):
    arguments = {"train": train[0], "labels": train[1], "runs": everything(train[1], 0), "test": test[0]}
    arguments |= {"num_classes": CLASSES, "few_shot": False, "validation": None} | change
    with pytest.raises(ValueError, match=message):
        HeadInput(**arguments)


def test_linear_equals_a_grid_search(train, test):
    runs = everything(train[1], 0)
    scores = linear(HeadInput(*train, runs, test[0], CLASSES, few_shot=False)).scores
    for run, probabilities in zip(runs, scores):
        folds = StratifiedKFold(5, shuffle=True, random_state=run.seed)
        search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": list(heads.C_GRID)}, cv=folds)
        expected = search.fit(*train).predict_proba(test[0])
        np.testing.assert_allclose(probabilities, expected, atol=1e-3)


def test_linear_with_several_labels_is_one_against_rest_and_constant_ones_stay_constant(monkeypatch):
    monkeypatch.setattr(heads, "C_GRID", (1.0,))
    train, labels = several(60)
    test, _ = several(30, seed=1)
    labels = np.column_stack([labels, np.zeros(60, np.int8), np.ones(60, np.int8)])
    scores = linear(HeadInput(train, labels, everything(labels, 0), test, CLASSES + 2, few_shot=False)).scores[0]
    for label in range(CLASSES):
        expected = LogisticRegression().fit(train, labels[:, label]).predict_proba(test)[:, 1]
        np.testing.assert_allclose(scores[:, label], expected, atol=1e-5)
    np.testing.assert_allclose(scores[:, CLASSES:], [[0, 1]] * 30, atol=1e-12)


def test_sparse_features_of_few_documents_are_rotated_and_nothing_changes(split, monkeypatch):
    train, test = tfidf_features(split.train_texts, split.test_texts)
    draw = split.draws(5, 1)[0]
    runs = [HeadRun(np.concatenate([draw, draw[:4]]), 0)]  # some documents twice: fewer dimensions than documents
    labels = split.train_labels
    assert logistic.in_row_space(train[runs[0].indices], test)[0].shape == (19, 19)
    rotated = linear(HeadInput(train, labels, runs, test, CLASSES, few_shot=True)).scores
    monkeypatch.setattr(logistic, "MAX_ROW_SPACE", 0)
    assert logistic.in_row_space(train[runs[0].indices], test)[0].shape[1] == train.shape[1]
    np.testing.assert_allclose(
        rotated, linear(HeadInput(train, labels, runs, test, CLASSES, few_shot=True)).scores, atol=2e-3
    )


def test_one_shot_has_no_folds_and_says_so_once(train, test, caplog):
    runs = [HeadRun(np.arange(3), 0), HeadRun(np.arange(3, 6), 1)]
    with caplog.at_level(logging.WARNING, logger="docsplit.evaluation.heads.frozen"):
        scores = linear(HeadInput(*train, runs, test[0], CLASSES, few_shot=True)).scores
    assert len(caplog.records) == 1
    assert "2 of 2 runs" in caplog.text
    expected = LogisticRegression(C=1.0).fit(train[0][:3], train[1][:3]).predict_proba(test[0])
    np.testing.assert_allclose(scores[0], expected, atol=1e-5)


@pytest.mark.parametrize("few_shot", [True, False])
def test_knn_equals_brute_force(few_shot, train, test):
    runs = [HeadRun(np.arange(15), 0), HeadRun(np.arange(3, 24), 1)]
    output = knn(HeadInput(*train, runs, test[0], CLASSES, few_shot=few_shot))
    assert len(output.scores) == (2 if few_shot else 1)
    unit = [features / np.linalg.norm(features, axis=1, keepdims=True) for features in (train[0], test[0])]
    for run, scores in zip(runs, output.scores):
        nearest_first = np.argsort(-(unit[1] @ unit[0][run.indices].T), axis=1)
        k = {15: 5, 21: 7}[len(run.indices)] if few_shot else 10
        for document, order in enumerate(nearest_first):
            votes = np.bincount(train[1][run.indices][order[:k]], minlength=CLASSES)
            np.testing.assert_allclose(scores[document], votes / k, rtol=1e-6)


def test_standardised_features_have_mean_zero_and_deviation_one_over_the_training_documents():
    train = np.random.default_rng(0).normal(5, [0.01, 1, 100], (50, 3))
    train, test = (np.column_stack([part, np.full(len(part), 0.3)]).astype(np.float32) for part in (train, train[:7]))
    scaled, scaled_test = standardize(train, test)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 1, 0], atol=1e-5)
    np.testing.assert_array_equal(scaled_test, scaled[:7])
    assert scaled.dtype == np.float32


def test_words_are_those_of_bm25_in_chinese_too():
    """scikit-learn's own pattern takes a clause for one word: the test texts would have none that is known."""
    train = ["今天天气很好,我们去海边。", "股票价格下跌了,投资者很担心。"]
    of_train, of_test = tfidf_features(train, ["海边的天气", "投资股票", "a ship"])
    assert (of_test @ of_train.T).toarray().argmax(axis=1)[:2].tolist() == [0, 1]
    assert (of_test @ of_train.T).toarray().min(axis=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("word", ["\N{SNOWFLAKE}", "x y", "ship"])
def test_texts_without_words_or_with_one_have_features(word, caplog):
    train, test = tfidf_features([word] * 5, ["a ship", ""])
    assert (train.shape, test.shape) == ((5, 1), (2, 1))
    assert (train.nnz, test.nnz) == ((5, 1) if word == "ship" else (0, 0))
    assert tfidf_svd({"train": train, "test": test})["test"].tolist() == [[float(word == "ship")], [0.0]]
    assert ("zero" in caplog.text) == (word != "ship")


@pytest.fixture
def probed(split):
    """With validation documents: every third of those to test on."""
    is_third = np.arange(len(split.test_labels)) % 3 == 1
    parts = {}
    for name, rows in {"validation": np.flatnonzero(is_third), "test": np.flatnonzero(~is_third)}.items():
        parts[f"{name}_texts"] = [split.test_texts[row] for row in rows]
        parts[f"{name}_labels"] = split.test_labels[rows]
    return dataclasses.replace(split, **parts)


def noisy(split, noise, scale=1.0):
    rng = np.random.default_rng(0)
    labels = {name: getattr(split, f"{name}_labels") for name in split.texts}
    return {
        name: scale * (np.eye(3)[own] + noise * rng.standard_normal((len(own), 3))) for name, own in labels.items()
    }


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
