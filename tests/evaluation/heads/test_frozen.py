"""Logistic regression and nearest neighbours, each against a slow, obvious version of itself."""

import logging

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from docsplit.evaluation.heads import frozen as heads
from docsplit.evaluation.heads.base import HeadInput, Run
from docsplit.evaluation.heads.frozen import knn, linear, standardize
from docsplit.evaluation.heads.tfidf import tfidf_features
from tests.evaluation.heads.examples import CLASSES, everything, several


def test_linear_equals_a_grid_search(train, test):
    runs = everything(train[1], 1)
    scores = linear(HeadInput(*train, runs, test[0], CLASSES, few_shot=False)).scores
    for run, probabilities in zip(runs, scores):
        folds = StratifiedKFold(5, shuffle=True, random_state=run.seed)
        search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": list(heads.C_GRID)}, cv=folds)
        expected = search.fit(*train).predict_proba(test[0])
        np.testing.assert_allclose(probabilities, expected, atol=1e-3)


@pytest.mark.parametrize("best", heads.C_GRID)
def test_c_is_the_one_that_does_best_on_held_out_documents(best, train, test, monkeypatch):
    monkeypatch.setattr(heads, "_path", lambda *_: [float(c == best) for c in heads.C_GRID])
    expected = LogisticRegression(C=best, max_iter=2000).fit(*train).predict_proba(test[0])
    scores = linear(HeadInput(*train, everything(train[1], 1), test[0], CLASSES, few_shot=False)).scores[0]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_linear_with_several_labels_is_one_against_rest_and_constant_ones_stay_constant(monkeypatch):
    monkeypatch.setattr(heads, "C_GRID", (1.0,))
    train, labels = several(60)
    test, _ = several(30, seed=1)
    labels = np.column_stack([labels, np.zeros(60, np.int8), np.ones(60, np.int8)])
    scores = linear(HeadInput(train, labels, everything(labels, 1), test, CLASSES + 2, few_shot=False)).scores[0]
    for label in range(CLASSES):
        expected = LogisticRegression().fit(train, labels[:, label]).predict_proba(test)[:, 1]
        np.testing.assert_allclose(scores[:, label], expected, atol=1e-5)
    assert (scores[:, CLASSES] == 0).all()
    assert (scores[:, CLASSES + 1] == 1).all()


def test_sparse_features_of_few_documents_are_rotated_and_nothing_changes(split, monkeypatch):
    train, test = tfidf_features(split.train_texts, split.test_texts)
    draw = split.draws(5, 1)[0]
    runs = [Run(np.concatenate([draw, draw[:4]]), 0)]  # some documents twice: fewer dimensions than documents
    labels = split.train_labels
    assert heads.in_row_space(train[runs[0].indices], test)[0].shape == (19, 15)
    rotated = linear(HeadInput(train, labels, runs, test, CLASSES, few_shot=True)).scores
    monkeypatch.setattr(heads, "MAX_ROW_SPACE", 0)
    assert heads.in_row_space(train[runs[0].indices], test)[0].shape[1] == train.shape[1]
    np.testing.assert_allclose(
        rotated, linear(HeadInput(train, labels, runs, test, CLASSES, few_shot=True)).scores, atol=2e-3
    )


def test_one_shot_has_no_folds_and_says_so_once(train, test, caplog):
    runs = [Run(np.arange(3), 0), Run(np.arange(3, 6), 1)]
    with caplog.at_level(logging.WARNING, logger="docsplit.evaluation.heads.frozen"):
        scores = linear(HeadInput(*train, runs, test[0], CLASSES, few_shot=True)).scores
    assert len(caplog.records) == 1
    assert "2 of 2 runs" in caplog.text
    expected = LogisticRegression(C=1.0).fit(train[0][:3], train[1][:3]).predict_proba(test[0])
    np.testing.assert_allclose(scores[0], expected, atol=1e-5)


def test_fits_that_do_not_converge_are_counted_in_one_line(train, test, monkeypatch, caplog, recwarn):
    monkeypatch.setattr(heads, "MAX_ITERATIONS", 1)
    with caplog.at_level(logging.WARNING, logger="docsplit.evaluation.heads.frozen"):
        linear(HeadInput(*train, everything(train[1], 3), test[0], CLASSES, few_shot=False))
    assert len(caplog.records) == 1
    assert "did not converge" in caplog.text
    assert not recwarn.list


@pytest.mark.parametrize("few_shot", [True, False])
def test_knn_equals_brute_force(few_shot, train, test):
    runs = [Run(np.arange(15), 0), Run(np.arange(3, 24), 1)]
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
