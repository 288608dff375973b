"""Rows against scikit-learn, comparisons against the bootstrap of one pair."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from docsplit.evaluation.heads.frozen import HeadOutput
from docsplit.evaluation.results.bootstrap import paired_bootstrap, resample
from docsplit.evaluation.results.comparison import comparisons
from docsplit.evaluation.results.items import ItemPairs, ItemScores, rank_correlation
from docsplit.evaluation.results.metrics import micro_f1_items
from docsplit.evaluation.results.result import Result, System, link_result
from docsplit.evaluation.results.tables import difference_table, encoder_names
from docsplit.evaluation.results.task import CLASSIFICATION, Task
from tests.evaluation.results.examples import (
    LABELS,
    LINKED,
    SEVERAL,
    cells,
    interval_of,
    json_comparisons,
    json_rows,
    make_group,
    make_result,
    make_scores,
)


def test_single_label_rows_equal_scikit_learn():
    result = make_result("a", 1.0, max_seq_length=512, num_parameters=300)
    (row,) = json_rows([result])
    runs = [scores.argmax(axis=1) for scores in make_scores(1.0)]
    accuracies = [accuracy_score(LABELS, run) for run in runs]
    macro = [f1_score(LABELS, run, average="macro") for run in runs]
    assert row["accuracy_mean"] == row["micro_f1_mean"] == pytest.approx(np.mean(accuracies))
    assert row["accuracy_std"] == row["micro_f1_std"] == pytest.approx(np.std(accuracies, ddof=1))
    assert row["accuracy_std"] > 0
    assert (row["macro_f1_mean"], row["macro_f1_std"]) == pytest.approx((np.mean(macro), np.std(macro, ddof=1)))
    correct = np.array([run == LABELS for run in runs])
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(interval_of(correct))
    expected = {"encoder": "a", "head": "linear", "shots": None, "runs": 3, "seconds": 1.5, "pooling": "mean"}
    assert row.items() >= (expected | {"max_seq_length": 512, "features": "raw", "trainable_share": 0.25}).items()
    assert "per_label_f1" not in row


def test_multi_label_rows_equal_scikit_learn():
    (row,) = json_rows([make_result("a", 3.0, "multi")])
    runs = [scores >= 0.5 for scores in make_scores(3.0, "multi")]
    assert row["accuracy_mean"] == pytest.approx(np.mean([accuracy_score(SEVERAL, run) for run in runs]))
    assert row["micro_f1_mean"] == pytest.approx(np.mean([f1_score(SEVERAL, run, average="micro") for run in runs]))
    per_label = np.mean([f1_score(SEVERAL[:, :2], run[:, :2], average=None) for run in runs], axis=0)
    assert row["per_label_f1"] == pytest.approx({"kitchen": per_label[0], "harbour": per_label[1], "orchard": None})
    macro = [f1_score(SEVERAL, run, average="macro", zero_division=0) for run in runs]
    assert row["macro_f1_mean"] == pytest.approx(np.mean(macro))
    assert row["macro_f1_mean"] == pytest.approx(per_label.sum() / 3)  # the last one: neither true nor predicted
    with_none = [np.column_stack([part, part.sum(axis=1) == 0]) for part in (SEVERAL, *runs)]
    lexglue = [f1_score(with_none[0], run, average="macro", zero_division=0) for run in with_none[1:]]
    assert row["macro_f1_lexglue_mean"] == pytest.approx(np.mean(lexglue))
    assert row["accuracy_low"] < row["accuracy_mean"] < row["accuracy_high"]
    assert row["micro_f1_low"] < row["micro_f1_mean"] < row["micro_f1_high"]
    exact = np.array([(run == SEVERAL).all(axis=1) for run in runs])
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(interval_of(exact))


@pytest.mark.parametrize(("num_runs", "threshold"), [(3, 0.5), (1, 0.7)])
def test_link_rows_equal_scikit_learn_and_keep_a_threshold_that_is_not_one_half(num_runs, threshold):
    link = make_scores(2.0, "links", num_runs)
    both = np.concatenate([1 - link, link], axis=2)  # as the MLP gives them
    for scores in (link, both):
        system, output = System(encoder="a", head="mlp"), HeadOutput(scores, 1.5, 100)
        (row,) = json_rows([link_result(system, output, LINKED, threshold)])
        runs = [(run[:, 0], run[:, 0] >= threshold) for run in link]
        expected = {
            "accuracy_mean": np.mean([accuracy_score(LINKED, run) for _, run in runs]),
            "micro_f1_mean": np.mean([accuracy_score(LINKED, run) for _, run in runs]),
            "macro_f1_mean": np.mean([f1_score(LINKED, run, average="macro") for _, run in runs]),
            "f1_mean": np.mean([f1_score(LINKED, run) for _, run in runs]),
            "roc_auc_mean": np.mean([roc_auc_score(LINKED, real) for real, _ in runs]),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected)
        if num_runs == 1:  # a single run has no deviation
            assert row["roc_auc_std"] is None
        else:
            areas = [roc_auc_score(LINKED, real) for real, _ in runs]
            assert row["roc_auc_std"] == pytest.approx(np.std(areas, ddof=1))
        assert row["accuracy_low"] < row["accuracy_mean"] < row["accuracy_high"]
        assert row["shots"] is None


@pytest.mark.parametrize(
    ("head", "trainable", "num_parameters", "share"),
    [("mlp", 100, 300, 0.25), ("finetune", 310, 300, 1), ("knn", 0, 300, 0), ("linear", 100, None, None)],
)
def test_the_share_of_trained_parameters(head, trainable, num_parameters, share):
    result = make_result("a", 1.0, head=head, num_parameters=num_parameters)
    result.trainable_parameters = trainable
    assert json_rows([result])[0]["trainable_share"] == share


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_comparisons_are_those_of_each_pair(kind):
    results = [
        make_result(encoder, signal, kind, head, shots, seed=seed, features=features)
        for seed, (encoder, signal) in enumerate([("a", 2.0), ("b", 2.0), ("c", 0.5)])
        for head, shots, features in [("linear", None, "raw"), ("linear", 5, "raw"), ("linear", 5, "standardized")]
    ]
    found = json_comparisons(results)
    kinds = [(None, "raw"), (5, "raw"), (5, "standardized")]
    pairs = {(row["shots"], row["features"], row["a"], row["b"]) for row in found}
    assert pairs == {(*kind, a, b) for kind in kinds for a, b in ("ab", "ac", "bc")}
    assert len(found) == 9
    items = []
    for signal, seed in ((2.0, 0), (0.5, 2)):  # a and c on the full training set
        scores = make_scores(signal, kind, seed=seed)
        if kind == "multi":
            items.append(micro_f1_items((scores >= 0.5).astype(np.int8), SEVERAL))
        else:
            correct = (scores.argmax(axis=2) == LABELS).astype(np.float32)
            items.append(ItemScores(correct, np.ones_like(correct)))
    alone = asdict(paired_bootstrap(*resample(items)))
    together = next(row for row in found if (row["shots"], row["a"], row["b"]) == (None, "a", "c"))
    assert {name: together[name] for name in alone} == pytest.approx(alone)
    assert together["measure"] == ("micro_f1" if kind == "multi" else "accuracy")
    assert together["low"] > 0
    full = [row for row in json_rows(results) if row["shots"] is None]
    means = {row["encoder"]: row[f"{together['measure']}_mean"] for row in full}
    assert together["difference"] == pytest.approx(means["a"] - means["c"])


def test_baselines_meet_the_head_of_every_encoder_that_the_task_names():
    results = [make_result("bm25", 1.0, "links", head="bm25", num_runs=1)]
    results += [make_result(encoder, 2.0, "links", head, seed=7) for encoder in "ab" for head in ("mlp", "cosine")]
    results += [make_result("popularity", 0.0, "links", head="popularity", num_runs=1)]
    pairs = [(row["head"], row["a"], row["b"]) for row in json_comparisons(results)]
    assert sorted(pairs) == [
        ("cosine", "a", "b"),
        ("mlp", "a", "b"),
        ("mlp", "a", "bm25"),
        ("mlp", "a", "popularity"),
        ("mlp", "b", "bm25"),
        ("mlp", "b", "popularity"),
    ]


def test_ahead_is_who_has_several_seeds_or_needs_none():
    a, (single, *_) = make_group("A=o/a1,o/a2", ["o/a1", "o/a2"], 3.0)
    b, _ = make_group("o/b1,o/b2", ["o/b1", "o/b2"], 0.0, seed=7)
    tfidf = replace(make_result("tfidf", 0.0, seed=5), pretraining_seeds=None)
    found = {(row["a"], row["b"]): row for row in json_comparisons([a, b, single, tfidf])}
    assert all(row["low"] > 0 for (one, other), row in found.items() if one == a.encoder and other != "o/a1")
    assert found[a.encoder, b.encoder]["ahead"] == a.encoder
    assert found[a.encoder, "tfidf"]["ahead"] == a.encoder
    assert found["o/a1", "tfidf"]["ahead"] is None
    assert found["o/a1", "tfidf"]["low"] > 0
    assert found[b.encoder, "tfidf"]["ahead"] is None
    assert found[a.encoder, "tfidf"]["pretraining_seeds"] == [2, None]
    names = encoder_names({result.encoder: result.members for result in (a, b, single, tfidf)})
    table = difference_table(comparisons([a, b, single, tfidf]), CLASSIFICATION, names)
    shown = {cells(line)[0]: cells(line) for line in table.split("\n")[2:]}
    assert shown["A - tfidf"][-1] == "A"
    assert shown["A - tfidf"][4].startswith("**+")
    assert shown["A - b1 and 1 more"][5] == "2 / 2"
    assert shown["o/a1 - tfidf"][-1] == "one run says"
    assert not shown["o/a1 - tfidf"][4].startswith("**")
    backwards = json_comparisons([b, a])[0]
    assert (backwards["a"], backwards["ahead"]) == (b.encoder, a.encoder)


def test_raw_is_compared_with_raw_and_standardised_with_standardised():
    results = [make_result(name, 1.0, features=kind) for name in "ab" for kind in ("raw", "standardized")]
    assert [row["features"] for row in json_comparisons(results)] == ["raw", "standardized"]


def test_a_task_may_compare_encoders_by_a_rank_correlation():
    """Similarity of pairs: intervals and paired tests are those of Spearman, on the items that all tasks draw."""
    task = Task(
        name="sentence-similarity",
        measures={"spearman": "Spearman"},
        main="spearman",
        columns=("spearman",),
        layout="lines",
        items="pairs",
        statistics={"spearman": rank_correlation},
    )
    rng = np.random.default_rng(0)
    gold = rng.random((1, 200)).round(1)  # with ties
    near, far = (ItemPairs(gold, -0.5 + gold + noise * rng.standard_normal((1, 200))) for noise in (0.1, 2.0))
    results = [
        Result(task=task, encoder=name, head="cosine", measured={"spearman": items})
        for name, items in (("near", near), ("far", far))
    ]
    table, (compared,) = json_rows(results), json_comparisons(results)
    assert table[0]["spearman_mean"] == pytest.approx(spearmanr(near.first[0], near.second[0]).statistic)
    assert table[0]["spearman_low"] < table[0]["spearman_mean"] < table[0]["spearman_high"] < 1
    assert table[1]["spearman_low"] < 0.2  # not cut off at 0, as a share is
    assert compared["difference"] == pytest.approx(table[0]["spearman_mean"] - table[1]["spearman_mean"])
    assert 0 < compared["low"] < compared["difference"] < compared["high"]
    assert compared["p_value"] < 0.01
    assert json_comparisons([results[0], replace(results[0], encoder="again")])[0]["p_value"] == 1
