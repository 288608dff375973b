"""Measures and rows against scikit-learn, what a result refuses, and several pretraining seeds as one result."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from docsplit.evaluation.heads.base import HeadOutput
from docsplit.evaluation.results.report import read_result_rows, records, rows
from docsplit.evaluation.results.result import (
    CLASSIFICATION,
    class_measures,
    classification_result,
    link_result,
    merge_seeds,
    predictions,
)
from tests.evaluation.results.examples import (
    LABELS,
    LINKED,
    SEVERAL,
    TASKS,
    interval_of,
    json_rows,
    make_group,
    make_result,
    make_scores,
    make_split,
)


def f1_by_counting(true, predicted):
    both, either = sum(true & predicted), sum(true) + sum(predicted)
    return 2 * both / either if either else None


def test_measures_of_several_labels_equal_counting():
    rng = np.random.default_rng(0)
    true = (rng.random((40, 6)) < [0.5, 0.3, 0.2, 0.05, 0, 0]).astype(np.int8)
    predicted = (rng.random((40, 6)) < [0.4, 0.3, 0, 0.05, 0.1, 0]).astype(np.int8)  # the last one: nowhere
    values = class_measures(predicted, true)
    columns = [(true[:, label] == 1, predicted[:, label] == 1) for label in range(6)]
    per_label = [f1_by_counting(*both) for both in columns]
    assert values["accuracy"] == pytest.approx(np.mean([(p == t).all() for p, t in zip(predicted, true)]))
    assert values["per_label_f1"] == pytest.approx([np.nan if f1 is None else f1 for f1 in per_label], nan_ok=True)
    assert values["macro_f1"] == pytest.approx(np.mean([f1 or 0 for f1 in per_label]))
    assert values["micro_f1"] == pytest.approx(f1_by_counting(true.ravel() == 1, predicted.ravel() == 1))
    columns.append((true.sum(axis=1) == 0, predicted.sum(axis=1) == 0))
    assert values["macro_f1_lexglue"] == pytest.approx(np.mean([f1_by_counting(*both) or 0 for both in columns]))


def test_macro_f1_is_of_the_classes_that_are_true_or_predicted():
    labels = np.array([0, 0, 2]), np.array([0, 0, 0])
    assert class_measures(*labels)["macro_f1"] == pytest.approx((0.8 + 0) / 2)
    assert (
        class_measures(np.array([0, 0, 3]), np.array([0, 0, 3]))["macro_f1"] == 1
    )  # 1 and 2 are not in the test part
    nothing = class_measures(np.zeros((1, 2), int), np.zeros((1, 2), int))
    assert (nothing["accuracy"], nothing["macro_f1"], nothing["micro_f1"]) == (1, 0, 0)


def test_what_is_predicted_from_scores():
    scores = np.array([[[0.2, 0.5], [0.6, 0.4]]])
    np.testing.assert_array_equal(predictions(scores, multi_label=False), [[1, 0]])
    np.testing.assert_array_equal(predictions(scores, multi_label=True), [[[0, 1], [1, 0]]])
    with pytest.raises(ValueError, match="mine: 1 of 2 predictions"):
        predictions(np.array([[0.2, np.nan], [0.1, 0.2]]), multi_label=False, name="mine")


def test_single_label_rows_equal_scikit_learn():
    (row,) = json_rows([make_result("a", 1.0, max_seq_length=512, num_parameters=300)])
    runs = [scores.argmax(axis=1) for scores in make_scores(1.0)]
    accuracies = [accuracy_score(LABELS, run) for run in runs]
    macro = [f1_score(LABELS, run, average="macro") for run in runs]
    assert row["accuracy_mean"] == row["micro_f1_mean"] == pytest.approx(np.mean(accuracies))
    assert row["accuracy_std"] == row["micro_f1_std"] == pytest.approx(np.std(accuracies, ddof=1))
    assert (row["macro_f1_mean"], row["macro_f1_std"]) == pytest.approx((np.mean(macro), np.std(macro, ddof=1)))
    correct = np.array([run == LABELS for run in runs])
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(interval_of(correct))
    expected = {"encoder": "a", "head": "linear", "shots": None, "runs": 3, "seconds": 1.5, "pooling": "mean"}
    expected |= {"max_seq_length": 512, "features": "raw", "trainable_share": 0.25, "test_documents": 90}
    assert row.items() >= expected.items()
    assert "per_label_f1" not in row
    assert "accuracy" not in row  # a bare name stands where nothing is trained
    assert json_rows([make_result("a", 1.0, num_runs=1)])[0]["accuracy_std"] is None


def test_multi_label_rows_equal_scikit_learn():
    (row,) = json_rows([make_result("a", 3.0, "multi")])
    runs = [scores >= 0.5 for scores in make_scores(3.0, "multi")]
    per_label = np.mean([f1_score(SEVERAL[:, :2], run[:, :2], average=None) for run in runs], axis=0)
    assert row["per_label_f1"] == pytest.approx({"kitchen": per_label[0], "harbour": per_label[1], "orchard": None})
    assert row["macro_f1_mean"] == pytest.approx(per_label.sum() / 3)  # the last one: neither true nor predicted
    assert row["micro_f1_mean"] == pytest.approx(np.mean([f1_score(SEVERAL, run, average="micro") for run in runs]))
    assert row["micro_f1_low"] < row["micro_f1_mean"] < row["micro_f1_high"]
    exact = np.array([(run == SEVERAL).all(axis=1) for run in runs])
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(interval_of(exact))


@pytest.mark.parametrize("threshold", [0.5, 0.7])
def test_link_rows_equal_scikit_learn_and_keep_the_threshold(threshold):
    link = make_scores(2.0, "links")
    areas = [roc_auc_score(LINKED, run[:, 0]) for run in link]
    runs = [run[:, 0] >= threshold for run in link]
    expected = {"roc_auc_mean": np.mean(areas), "roc_auc_std": np.std(areas, ddof=1)}
    expected["accuracy_mean"] = np.mean([accuracy_score(LINKED, run) for run in runs])
    expected["macro_f1_mean"] = np.mean([f1_score(LINKED, run, average="macro") for run in runs])
    expected["f1_mean"] = np.mean([f1_score(LINKED, run) for run in runs])
    for scores in (link, np.concatenate([1 - link, link], axis=2)):  # the second as the MLP gives them
        result = link_result(HeadOutput(scores, 1.5, 100), LINKED, threshold, encoder="a", head="mlp")
        (row,) = json_rows([result])
        assert {name: row[name] for name in expected} == pytest.approx(expected)
        assert row["test_pairs"] == row["test_documents"] == 90
    with pytest.raises(ValueError, match="linked and unlinked"):
        link_result(HeadOutput(link, 1.5, 100), np.ones(90, int), encoder="a", head="mlp")


@pytest.mark.parametrize(
    ("head", "trainable", "num_parameters", "share"),
    [("mlp", 100, 300, 0.25), ("finetune", 310, 300, 1), ("knn", 0, 300, 0), ("linear", 100, None, None)],
)
def test_the_share_of_trained_parameters(head, trainable, num_parameters, share):
    result = make_result("a", 1.0, head=head, num_parameters=num_parameters)
    result.trainable_parameters = trainable
    assert json_rows([result])[0]["trainable_share"] == share


@pytest.mark.parametrize("kind", TASKS)
def test_a_group_of_seeds_is_the_mean_of_its_members_with_the_spread_between_and_within(kind):
    members = ["o/a1", "o/a2", "o/a3"]
    group, results = make_group("A=o/a1,o/a2,o/a3", members, 1.0, kind, embedding_seconds=2.0, seen=0.25, prompt="")
    results[1].info |= {"seen": 0.5, "pooling": "cls"}
    merged = merge_seeds("A=o/a1,o/a2,o/a3", members, results)
    (row,), alone = json_rows([merged]), json_rows(results)
    main = group.task.main
    means = [one[f"{main}_mean"] for one in alone]
    assert row[f"{main}_mean"] == pytest.approx(np.mean(means))
    assert row[f"{main}_std"] == pytest.approx(np.std(means, ddof=1))
    assert row[f"{main}_std_runs"] == pytest.approx(np.sqrt(np.mean([one[f"{main}_std"] ** 2 for one in alone])))
    assert row[f"{main}_of_seeds"] == pytest.approx(means)
    assert (row["encoder"], row["members"], row["pretraining_seeds"], row["runs"]) == (group.encoder, members, 3, 9)
    assert (row["embedding_seconds"], row["seen"], row["prompt"], row["pooling"]) == (6.0, 0.5, "", "mean / cls")
    results[0].info["seen"] = None  # unknown of one is unknown of all
    assert json_rows([merge_seeds("A", members, results)])[0]["seen"] is None


@pytest.mark.parametrize("kind", TASKS)
def test_a_head_that_gives_one_class_is_marked(kind, caplog):
    scores = np.full_like(make_scores(1.0, kind), 0.1)
    scores[..., -1] = 0.9
    scores[:, :4] = make_scores(9.0, kind)[:, :4]  # 4 of 90 otherwise
    output, about = HeadOutput(scores, 1.5, 100), {"encoder": "bad", "head": "linear"}
    if kind == "links":
        bad = link_result(output, LINKED, **about)
    else:
        bad = classification_result(output, make_split(kind), **about)
    assert f"'bad' with head 'linear' (shots: None), raw: {bad.warning}." in caplog.text
    assert bad.warning.startswith("predicts one " + ("set of labels" if kind == "multi" else "class"))
    one_in_three = replace(bad, one_class=np.array([1.0, 0.5, 0.5]))  # two that learnt do not hide one that did not
    assert one_in_three.warning.endswith(" in 1 of 3 runs")
    assert replace(bad, one_class=np.array([0.95, 0.9, 0.9])).warning is None
    assert make_result("good", 3.0, kind).warning is None


def test_rows_are_read_as_they_were_written_and_wrong_ones_name_row_and_column():
    group, results = make_group("A=a1,a2", ["a1", "a2"], 2.0)
    frame = rows([group, *results, make_result("tfidf", 1.0, head="tfidf")])
    contents = json.loads(json.dumps({"task": CLASSIFICATION.to_json(), "rows": records(frame)}))
    task, read = read_result_rows(json.loads(json.dumps(contents)))
    assert task.to_json() == CLASSIFICATION.to_json()
    assert [row.items() >= own.items() for row, own in zip(records(read), records(frame), strict=True)] == [True] * 4
    for column, value in {"encoder": 5, "accuracy_mean": "0.5", "macro_f1_mean": None}.items():
        changed = json.loads(json.dumps(contents))
        changed["rows"][1][column] = value
        with pytest.raises(ValueError, match=rf"rows\[1\]: {column}"):
            read_result_rows(changed)
