"""Rows against scikit-learn, comparisons against the bootstrap of one pair, files that others can read."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from docsplit.evaluation import comparison
from docsplit.evaluation.comparison import (
    Result,
    classification_rows,
    comparisons,
    link_rows,
    text_statistics,
    write_results,
)
from docsplit.evaluation.metrics import interval, paired_bootstrap
from docsplit.evaluation.plots import plot_few_shot
from docsplit.evaluation.tables import result_tables, short_names

CLASSES = ["kitchen", "harbour", "orchard"]
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 90)
SEVERAL = (RNG.random((90, 3)) < [0.5, 0.3, 0]).astype(np.int8)  # nobody has the last label
LINKS = RNG.permutation(np.repeat([0, 1], 45))


def make_result(encoder, signal, labels=LABELS, head="linear", shots=None, num_runs=3, seed=0, **info):
    """Scores that are noise plus `signal` for the right answer; probabilities for labels and links."""
    true = {id(LABELS): np.eye(3)[LABELS], id(SEVERAL): SEVERAL, id(LINKS): LINKS[:, None]}[id(labels)]
    scores = signal * (true - 0.5) + np.random.default_rng(seed).standard_normal((num_runs, *true.shape))
    scores = 1 / (1 + np.exp(-scores))
    if labels is SEVERAL:
        scores[:, :, 2] = 0.1
    return Result(encoder, head, shots, scores.astype(np.float32), 1.5, 100, {"pooling": "mean"} | info)


def test_single_label_rows_equal_scikit_learn():
    result = make_result("a", 1.0, max_seq_length=512, num_parameters=300)
    (row,) = classification_rows([result], LABELS, CLASSES, False)
    runs = [scores.argmax(axis=1) for scores in result.scores]
    accuracies = [accuracy_score(LABELS, run) for run in runs]
    macro = [f1_score(LABELS, run, average="macro") for run in runs]
    assert row["accuracy_mean"] == row["micro_f1_mean"] == pytest.approx(np.mean(accuracies))
    assert row["accuracy_std"] == row["micro_f1_std"] == pytest.approx(np.std(accuracies))
    assert row["accuracy_std"] > 0
    assert (row["macro_f1_mean"], row["macro_f1_std"]) == pytest.approx((np.mean(macro), np.std(macro)))
    correct = np.array([run == LABELS for run in runs], np.float32)
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(interval(correct, np.ones_like(correct)))
    expected = {"encoder": "a", "head": "linear", "shots": None, "runs": 3, "seconds": 1.5, "pooling": "mean"}
    assert row.items() >= (expected | {"max_seq_length": 512, "features": "raw", "trainable_share": 0.25}).items()
    assert "per_label_f1" not in row


def test_multi_label_rows_equal_scikit_learn():
    result = make_result("a", 3.0, SEVERAL)
    (row,) = classification_rows([result], SEVERAL, CLASSES, True)
    runs = [scores >= 0.5 for scores in result.scores]
    assert row["accuracy_mean"] == pytest.approx(np.mean([accuracy_score(SEVERAL, run) for run in runs]))
    assert row["micro_f1_mean"] == pytest.approx(np.mean([f1_score(SEVERAL, run, average="micro") for run in runs]))
    per_label = np.mean([f1_score(SEVERAL[:, :2], run[:, :2], average=None) for run in runs], axis=0)
    assert row["per_label_f1"] == pytest.approx({"kitchen": per_label[0], "harbour": per_label[1], "orchard": None})
    assert row["macro_f1_mean"] == pytest.approx(per_label.mean())
    assert row["accuracy_low"] < row["accuracy_mean"] < row["accuracy_high"]
    assert row["micro_f1_low"] < row["micro_f1_mean"] < row["micro_f1_high"]
    exact = np.array([(run == SEVERAL).all(axis=1) for run in runs], np.float32)
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(interval(exact, np.ones_like(exact)))


def test_link_rows_equal_scikit_learn_and_keep_a_threshold_that_is_not_one_half():
    learned = make_result("a", 2.0, LINKS, head="mlp")
    cosine = make_result("a", 2.0, LINKS, head="cosine", num_runs=1)
    cosine.predicted = (cosine.scores[:, :, 0] >= 0.7).astype(int)
    for result, threshold in ((learned, 0.5), (cosine, 0.7)):
        (row,) = link_rows([result], LINKS)
        runs = [(scores[:, 0], scores[:, 0] >= threshold) for scores in result.scores]
        expected = {
            "accuracy_mean": np.mean([accuracy_score(LINKS, run) for _, run in runs]),
            "micro_f1_mean": np.mean([accuracy_score(LINKS, run) for _, run in runs]),
            "macro_f1_mean": np.mean([f1_score(LINKS, run, average="macro") for _, run in runs]),
            "f1_mean": np.mean([f1_score(LINKS, run) for _, run in runs]),
            "roc_auc_mean": np.mean([roc_auc_score(LINKS, scores) for scores, _ in runs]),
            "roc_auc_std": np.std([roc_auc_score(LINKS, scores) for scores, _ in runs]),
        }
        assert {name: row[name] for name in expected} == pytest.approx(expected)
        assert row["accuracy_low"] < row["accuracy_mean"] < row["accuracy_high"]
        assert row["shots"] is None


@pytest.mark.parametrize(
    ("head", "trainable", "num_parameters", "share"),
    [("mlp", 100, 300, 0.25), ("finetune", 310, 300, 1), ("knn", 0, 300, 0), ("linear", 100, None, None)],
)
def test_the_share_of_trained_parameters(head, trainable, num_parameters, share):
    result = make_result("a", 1.0, head=head, num_parameters=num_parameters)
    result.trainable_parameters = trainable
    assert classification_rows([result], LABELS, CLASSES, False)[0]["trainable_share"] == share


@pytest.mark.parametrize("labels", [LABELS, SEVERAL], ids=["single", "multi"])
def test_comparisons_are_those_of_each_pair(labels):
    multi_label = labels.ndim == 2
    results = [
        make_result(encoder, signal, labels, head, shots, seed=seed, features=features)
        for seed, (encoder, signal) in enumerate([("a", 2.0), ("b", 2.0), ("c", 0.5)])
        for head, shots, features in [("linear", None, "raw"), ("linear", 5, "raw"), ("linear", 5, "standardized")]
    ]
    found = comparisons(results, labels, multi_label)
    kinds = [(None, "raw"), (5, "raw"), (5, "standardized")]
    pairs = {(row["shots"], row["features"], row["a"], row["b"]) for row in found}
    assert pairs == {(*kind, a, b) for kind in kinds for a, b in ("ab", "ac", "bc")}
    assert len(found) == 9
    items = comparison.metrics.item_scores
    first, last = results[0], results[6]  # a and c on the full training set
    runs = [(r.scores >= 0.5).astype(np.int8) if multi_label else r.scores.argmax(axis=2) for r in (first, last)]
    alone = paired_bootstrap(*(items(run, labels, multi_label) for run in runs))
    together = next(row for row in found if (row["shots"], row["a"], row["b"]) == (None, "a", "c"))
    assert {name: together[name] for name in alone} == pytest.approx(alone)
    assert together["measure"] == ("micro_f1" if multi_label else "accuracy")
    assert together["low"] > 0
    rows = classification_rows(results, labels, CLASSES, multi_label)
    means = {row["encoder"]: row[f"{together['measure']}_mean"] for row in rows if row["shots"] is None}
    assert together["difference"] == pytest.approx(means["a"] - means["c"])


def test_baselines_meet_the_mlp_of_every_encoder():
    results = [make_result("bm25", 1.0, LINKS, head="bm25", num_runs=1)]
    results += [make_result(encoder, 2.0, LINKS, head, seed=7) for encoder in "ab" for head in ("mlp", "cosine")]
    results += [make_result("popularity", 0.0, LINKS, head="popularity", num_runs=1)]
    pairs = [(row["head"], row["a"], row["b"]) for row in comparisons(results, LINKS, False)]
    assert sorted(pairs) == [
        ("cosine", "a", "b"),
        ("mlp", "a", "b"),
        ("mlp", "a", "bm25"),
        ("mlp", "a", "popularity"),
        ("mlp", "b", "bm25"),
        ("mlp", "b", "popularity"),
    ]
    opponents = {row["head"] for row in comparisons(results, LINKS, False, "cosine") if row["b"] == "bm25"}
    assert opponents == {"cosine"}


def test_scores_that_cannot_be_measured_name_encoder_and_head():
    broken = make_result("a", 1.0)
    broken.scores[0, 3, 1] = np.nan
    with pytest.raises(ValueError, match=r"'a' with head 'linear' .*1 of 270 predictions"):
        classification_rows([broken], LABELS, CLASSES, False)
    with pytest.raises(ValueError, match=r"'a' with head 'linear'.*another split"):
        classification_rows([make_result("a", 1.0)], LABELS[:-1], CLASSES, False)
    with pytest.raises(ValueError, match="3 classes"):
        comparisons([make_result("a", 1.0)], np.tile(SEVERAL, (2, 1)), True)
    cosine = make_result("a", 1.0, LINKS, head="cosine")
    cosine.predicted = LINKS
    with pytest.raises(ValueError, match="`predicted` of 'a'"):
        link_rows([cosine], LINKS)


def test_short_names_are_short_and_never_equal():
    assert short_names(["outputs/docsplit", "tfidf"]) == {"outputs/docsplit": "outputs/docsplit", "tfidf": "tfidf"}
    paths = ["/long/way/to/simcse/checkpoint-500", "/long/way/to/docsplit/checkpoint-500", "docsplit/checkpoint-500"]
    paths += ["checkpoint-500", "/long/way/to/docsplit/checkpoint-500/", "sentence-transformers/all-MiniLM-L6-v2"]
    short = short_names(paths)
    assert len(set(short.values())) == len(paths)
    assert short[paths[0]] == "simcse/checkpoint-500"
    assert short[paths[5]] == "all-MiniLM-L6-v2"
    assert short["checkpoint-500"] == "checkpoint-500"


def cells(line):
    return [cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")]


def test_tables_survive_hostile_names_and_bold_the_best():
    results = [
        make_result("good|model\nwith **news**", 3.0),
        make_result("poor", 0.1),
        make_result("poor", 0.1, head="knn", num_runs=1),
    ]
    rows = classification_rows(results, LABELS, CLASSES, False)
    title, _, header, _, good, poor = result_tables(rows).split("\n")
    assert title == "## Full training set"
    assert cells(header)[1:] == ["linear: Accuracy", "linear: Macro-F1", "knn: Accuracy", "knn: Macro-F1"]
    percent = f"{100 * rows[0]['accuracy_mean']:.1f} ± {100 * rows[0]['accuracy_std']:.1f}"
    assert cells(good) == [
        "good/model with **news**",
        f"**{percent}**",
        f"**{100 * rows[0]['macro_f1_mean']:.1f} ± {100 * rows[0]['macro_f1_std']:.1f}**",
        "",
        "",
    ]
    assert not cells(poor)[1].startswith("**")
    assert cells(poor)[3] == f"**{100 * rows[2]['accuracy_mean']:.1f}**"  # one run: no deviation


@pytest.mark.parametrize("kind", ["single", "multi", "links"])
def test_files_are_complete_and_readable(kind, tmp_path):
    labels = {"single": LABELS, "multi": SEVERAL, "links": LINKS}[kind]
    names = ["kit|chen", "har\nbour", "orchard"]
    results = [make_result(encoder, signal, labels) for encoder, signal in (("a|b", 3.0), ("c", 0.0))]
    if kind == "links":
        rows = link_rows(results, labels)
    else:
        results += [make_result("c", 0.0, labels, shots=5)]
        rows = classification_rows(results, labels, names, kind == "multi")
    differences = comparisons(results, labels, kind == "multi")
    statistics = text_statistics("made up", {"train": ["a b c", "d\ne"], "test": ["f"]}, 3)
    settings = {"path": tmp_path, "rate": np.float32(0.5), "bad": float("nan"), "many": np.arange(2), "text": "\ud800"}
    shown = write_results(tmp_path / "new", rows, differences, settings, statistics, "Made | up", ["first\nnote"])

    assert result_tables(rows) in shown
    saved = json.loads((tmp_path / "new" / "results.json").read_text(), parse_constant=pytest.fail)
    assert saved["rows"] == json.loads(json.dumps(rows))
    assert saved["comparisons"] == differences
    assert saved["settings"] == {"path": str(tmp_path), "rate": 0.5, "bad": None, "many": [0, 1], "text": "\ud800"}
    assert saved["versions"].keys() >= {"python", "torch", "transformers", "scikit-learn", "numpy", "datasets"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"results.json", "results.md"}

    markdown = (tmp_path / "new" / "results.md").read_text()
    assert result_tables(rows) in markdown
    assert "- first note" in markdown
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            assert len({len(cells(line)) for line in block.split("\n")}) == 1, block
    assert ("F1 of each label" in markdown) == (kind == "multi")
    measure = "Micro-F1" if kind == "multi" else "Accuracy"
    (line,) = [line for line in markdown.split("\n") if line.startswith("| a\\|b - c ")]
    assert cells(line)[3] == measure
    assert cells(line)[4].startswith(f"**{100 * differences[0]['difference']:+.1f} [")


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    write_results(tmp_path, [], [], {"run": 1})
    monkeypatch.setattr(comparison.os, "replace", lambda *paths: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        write_results(tmp_path, [], [], {"run": 2})
    assert json.loads((tmp_path / "results.json").read_text())["settings"] == {"run": 1}


def test_statistics_count_words():
    assert text_statistics("x", {"train": ["a b", "c\nd  e f", "g"], "test": []}, 2) == [
        {"dataset": "x", "part": "train", "documents": 3, "classes": 2}
        | {"mean_words": pytest.approx(7 / 3), "median_words": 2, "max_words": 4},
        {"dataset": "x", "part": "test", "documents": 0, "classes": 2}
        | {"mean_words": 0, "median_words": 0, "max_words": 0},
    ]


def test_curves_show_what_the_rows_say(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)  # to look at them
    results = [
        make_result(encoder, 1.0, head=head, shots=shots, seed=shots or 0)
        for encoder in "ab"
        for head in ("mlp", "linear")
        for shots in (20, 5, None)
    ]
    rows = classification_rows(results, LABELS, CLASSES, False)
    assert plot_few_shot(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    (figure,) = figures
    accuracy, macro_f1 = figure.axes[0], figure.axes[2]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["mlp", "linear"]
    assert [label.get_text() for label in macro_f1.get_xticklabels()] == ["5", "20", "all"]
    for axis, measure in ((accuracy, "accuracy"), (macro_f1, "macro_f1")):
        (line,) = [line for line in axis.get_lines() if line.get_label() == "b"]
        own = [row for row in rows if (row["encoder"], row["head"]) == ("b", "mlp")]
        chosen = {row["shots"]: 100 * row[f"{measure}_mean"] for row in own}
        assert line.get_xdata().tolist() == [5, 20]
        assert line.get_ydata() == pytest.approx([chosen[5], chosen[20]])
        assert any(list(point.get_ydata()) == pytest.approx([chosen[None]]) for point in axis.get_lines())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    monkeypatch.undo()
    plt.close(figure)


def test_without_few_labels_there_is_no_picture(tmp_path):
    rows = classification_rows([make_result("a", 1.0)], LABELS, CLASSES, False)
    (tmp_path / "curves.png").touch()  # of an earlier run, on other data
    assert not plot_few_shot(rows, tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())
