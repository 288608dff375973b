"""Metrics against scikit-learn and loops."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from docsplit.evaluation.results.metrics import (
    ClassificationMetric,
    LinkMetric,
    accuracy_items,
    micro_f1_items,
    predictions,
)


def f1_by_counting(true, predicted):
    both, either = sum(true & predicted), sum(true) + sum(predicted)
    return 2 * both / either if either else None


@pytest.fixture
def labels():
    rng = np.random.default_rng(0)
    references = rng.integers(0, 4, 60)
    predicted = np.where(rng.random(60) < 0.6, references, rng.integers(0, 4, 60))
    return predicted, references


@pytest.fixture
def multi_hot():
    rng = np.random.default_rng(1)
    references = (rng.random((50, 4)) < [0.5, 0.2, 0, 0]).astype(np.int8)
    predicted = (references ^ (rng.random((50, 4)) < [0.3, 0.1, 0.1, 0])).astype(np.int8)
    return predicted, references


def test_single_label_equals_scikit_learn(labels):
    predicted, references = labels
    values = ClassificationMetric().compute(predictions=predicted, references=references)
    assert values == {
        "accuracy": pytest.approx(accuracy_score(references, predicted)),
        "macro_f1": pytest.approx(f1_score(references, predicted, average="macro")),
        "micro_f1": pytest.approx(accuracy_score(references, predicted)),
    }


def test_multi_label_equals_counting(multi_hot):
    predicted, references = multi_hot
    values = ClassificationMetric().compute(predictions=predicted, references=references)
    per_label = [f1_by_counting(references[:, label] == 1, predicted[:, label] == 1) for label in range(4)]
    assert per_label[2] == 0  # predicted, never true
    assert per_label[3] is None  # neither
    assert values["accuracy"] == pytest.approx(np.mean([(p == r).all() for p, r in zip(predicted, references)]))
    assert values["per_label_f1"][:3] == pytest.approx(per_label[:3])
    assert np.isnan(values["per_label_f1"][3])
    assert values["macro_f1"] == pytest.approx(sum(per_label[:3]) / 4)  # the last one counts as 0
    assert values["micro_f1"] == pytest.approx(f1_by_counting(references.ravel() == 1, predicted.ravel() == 1))


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_scikit_learns_over_all_labels_and_lexglues_has_a_column_for_none(seed):
    rng = np.random.default_rng(seed)
    references = (rng.random((40, 6)) < [0.5, 0.3, 0.2, 0.05, 0, 0]).astype(np.int8)
    predicted = (rng.random((40, 6)) < [0.4, 0.3, 0, 0.05, 0.1, 0]).astype(np.int8)  # the last one: nowhere
    assert not references.any(axis=1).all()
    assert not predicted.any(axis=1).all()
    values = ClassificationMetric().compute(predictions=predicted, references=references)
    assert values["macro_f1"] == pytest.approx(f1_score(references, predicted, average="macro", zero_division=0))
    columns = [(references[:, label] == 1, predicted[:, label] == 1) for label in range(6)]
    columns.append((references.sum(axis=1) == 0, predicted.sum(axis=1) == 0))
    assert values["macro_f1_lexglue"] == pytest.approx(np.mean([f1_by_counting(*both) or 0 for both in columns]))


def test_a_class_that_nothing_has_counts_as_0_where_it_is_known_to_be_one():
    labels = {"predictions": [0, 0, 2], "references": [0, 0, 0]}
    assert ClassificationMetric().compute(**labels)["macro_f1"] == pytest.approx((0.8 + 0) / 2)
    assert ClassificationMetric().compute(**labels, num_classes=4)["macro_f1"] == pytest.approx(0.8 / 4)


def test_nothing_true_and_nothing_predicted_is_no_success():
    values = ClassificationMetric().compute(predictions=[[0, 0]], references=[[0, 0]])
    assert (values["accuracy"], values["macro_f1"], values["micro_f1"]) == (1, 0, 0)


def test_links_equal_scikit_learn():
    rng = np.random.default_rng(0)
    references = rng.integers(0, 2, 40)
    scores = references + rng.standard_normal(40)
    predicted = (scores > 0.2).astype(int)
    assert LinkMetric().compute(predictions=predicted, references=references, scores=scores) == {
        "accuracy": pytest.approx(accuracy_score(references, predicted)),
        "f1": pytest.approx(f1_score(references, predicted)),
        "roc_auc": pytest.approx(roc_auc_score(references, scores)),
    }
    with pytest.raises(ValueError, match="both of them"):
        LinkMetric().compute(predictions=[1, 1], references=[1, 1], scores=[0.5, 0.7])


def test_metrics_leave_no_trace_and_do_not_mix(tmp_path, monkeypatch, labels):
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    references = labels[1]
    right, wrong = ClassificationMetric(), ClassificationMetric()
    right.add_batch(predictions=references[:30], references=references[:30])
    wrong.add_batch(predictions=(references + 1) % 4, references=references)
    right.add_batch(predictions=references[30:], references=references[30:])
    assert right.compute()["accuracy"] == 1
    assert wrong.compute()["accuracy"] == 0
    assert not list(tmp_path.iterdir())


def test_predictions_are_the_highest_score_or_those_from_one_half():
    scores = np.array([[[0.2, 0.5], [0.6, 0.4]]])
    np.testing.assert_array_equal(predictions(scores, multi_label=False), [[1, 0]])
    np.testing.assert_array_equal(predictions(scores, multi_label=True), [[[0, 1], [1, 0]]])
    scores[0, 1, 1] = np.nan
    with pytest.raises(ValueError, match="1 of 2 predictions"):
        predictions(scores, multi_label=False)


def test_item_scores_add_up_to_accuracy_and_micro_f1(labels, multi_hot):
    predicted, references = labels
    runs = np.stack([predicted, references])
    expected = [accuracy_score(references, predicted), 1]
    np.testing.assert_allclose(accuracy_items(runs, references).of_runs(), expected)
    predicted, references = multi_hot
    runs = np.stack([predicted, references])
    expected = [f1_score(references, predicted, average="micro"), 1]
    np.testing.assert_allclose(micro_f1_items(runs, references).of_runs(), expected)
    all_right = [accuracy_score(references, predicted), 1]
    np.testing.assert_allclose(accuracy_items(runs, references).of_runs(), all_right)
    silent = np.zeros_like(references)
    assert micro_f1_items(silent[None], silent).of_runs() == 0
