"""Rows against scikit-learn, comparisons against the bootstrap of one pair, files that others can read."""

import json
import os
from dataclasses import asdict, replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadOutput
from docsplit.evaluation.results.comparison import comparisons, rows
from docsplit.evaluation.results.metrics import ItemScores, interval, micro_f1_items, paired_bootstrap, resample
from docsplit.evaluation.results.plots import plot_few_shot
from docsplit.evaluation.results.report import text_statistics, write_comparison
from docsplit.evaluation.results.result import Result, classification_result, link_result, merge_members, merge_seeds
from docsplit.evaluation.results.tables import difference_table, encoder_names, result_tables, short_names, table_notes
from docsplit.evaluation.results.task import CLASSIFICATION, LINKS, MULTI_LABEL_CLASSIFICATION, Task, task_of_file

CLASSES = ["kitchen", "harbour", "orchard"]
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 90)
SEVERAL = (RNG.random((90, 3)) < [0.5, 0.3, 0]).astype(np.int8)  # nobody has the last label
LINKED = RNG.permutation(np.repeat([0, 1], 45))


TASKS = {"single": CLASSIFICATION, "multi": MULTI_LABEL_CLASSIFICATION, "links": LINKS}
NDCG = Task(
    name="document-ranking",
    measures={"ndcg_10": "nDCG@10", "found_100": "Found@100", "median_rank": "Median rank"},
    main="ndcg_10",
    columns=("ndcg_10", "found_100"),
    layout="lines",
    heading="Documents for queries",
    details={"ndcg_of_topic": "nDCG@10 of each topic"},
    note="Queries without a relevant document are left out.",
    baseline_opponent="cosine",
)


def make_scores(signal, kind="single", num_runs=3, seed=0):
    """(R, M, C): noise plus `signal` for the right answer; probabilities for labels and links."""
    true = {"single": np.eye(3)[LABELS], "multi": SEVERAL, "links": LINKED[:, None]}[kind]
    scores = signal * (true - 0.5) + np.random.default_rng(seed).standard_normal((num_runs, *true.shape))
    scores = 1 / (1 + np.exp(-scores))
    if kind == "multi":
        scores[:, :, 2] = 0.1
    return scores.astype(np.float32)


def make_split(kind, class_names=CLASSES):
    labels = {"single": LABELS, "multi": SEVERAL}[kind]
    texts = [""] * len(labels)
    return LabelledSplit(texts, labels, texts, labels, class_names)


def make_result(
    encoder, signal, kind="single", head="linear", shots=None, num_runs=3, seed=0, class_names=CLASSES, **info
):
    output = HeadOutput(make_scores(signal, kind, num_runs, seed), 1.5, 100)
    info = {"pooling": "mean"} | info
    if kind == "links":
        return link_result(encoder, head, output, LINKED, info, is_baseline=encoder == head)
    split = make_split(kind, class_names)
    return classification_result(encoder, head, shots, output, split, info, head == "finetune")


def make_ranking(encoder, gain, head="cosine", num_queries=60, is_baseline=False):
    """What no function of ours knows: nDCG of each query, a share of all relevant documents, a rank."""
    ndcg = np.random.default_rng(len(encoder)).random((1, num_queries)).astype(np.float32) ** (1 / gain)
    known = np.full((1, num_queries), 4, np.float32)
    measured = {
        "ndcg_10": ItemScores(ndcg, np.ones_like(ndcg)),
        "found_100": ItemScores((known * ndcg).round(), known),
        "median_rank": np.array([0.25]),
    }
    details = {"ndcg_of_topic": {"ships": ndcg[:, ::2].mean(axis=1), "bread": np.array([np.nan])}}
    return Result(NDCG, encoder, head, None, measured, 0.0, 0, {"index": "flat"}, details, is_baseline=is_baseline)


def interval_of(correct):
    correct = correct.astype(np.float32)
    return interval(*resample([ItemScores(correct, np.ones_like(correct))]))


def test_single_label_rows_equal_scikit_learn():
    result = make_result("a", 1.0, max_seq_length=512, num_parameters=300)
    (row,) = rows([result])
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
    (row,) = rows([make_result("a", 3.0, "multi")])
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
        (row,) = rows([link_result("a", "mlp", HeadOutput(scores, 1.5, 100), LINKED, {}, threshold)])
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
    assert rows([result])[0]["trainable_share"] == share


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_comparisons_are_those_of_each_pair(kind):
    results = [
        make_result(encoder, signal, kind, head, shots, seed=seed, features=features)
        for seed, (encoder, signal) in enumerate([("a", 2.0), ("b", 2.0), ("c", 0.5)])
        for head, shots, features in [("linear", None, "raw"), ("linear", 5, "raw"), ("linear", 5, "standardized")]
    ]
    found = comparisons(results)
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
    alone = paired_bootstrap(*resample(items))
    together = next(row for row in found if (row["shots"], row["a"], row["b"]) == (None, "a", "c"))
    assert {name: together[name] for name in alone} == pytest.approx(alone)
    assert together["measure"] == ("micro_f1" if kind == "multi" else "accuracy")
    assert together["low"] > 0
    full = [row for row in rows(results) if row["shots"] is None]
    means = {row["encoder"]: row[f"{together['measure']}_mean"] for row in full}
    assert together["difference"] == pytest.approx(means["a"] - means["c"])


def test_baselines_meet_the_head_of_every_encoder_that_the_task_names():
    results = [make_result("bm25", 1.0, "links", head="bm25", num_runs=1)]
    results += [make_result(encoder, 2.0, "links", head, seed=7) for encoder in "ab" for head in ("mlp", "cosine")]
    results += [make_result("popularity", 0.0, "links", head="popularity", num_runs=1)]
    pairs = [(row["head"], row["a"], row["b"]) for row in comparisons(results)]
    assert sorted(pairs) == [
        ("cosine", "a", "b"),
        ("mlp", "a", "b"),
        ("mlp", "a", "bm25"),
        ("mlp", "a", "popularity"),
        ("mlp", "b", "bm25"),
        ("mlp", "b", "popularity"),
    ]


def test_scores_that_cannot_be_measured_name_encoder_and_head():
    scores = make_scores(1.0)
    scores[0, 3, 1] = np.nan
    with pytest.raises(ValueError, match=r"'a' with head 'linear' .*1 of 270 predictions"):
        classification_result("a", "linear", None, HeadOutput(scores, 1.5, 100), make_split("single"), {})
    output = HeadOutput(make_scores(1.0)[:, :-1], 1.5, 100)
    with pytest.raises(ValueError, match=r"'a' with head 'linear'.*another split"):
        classification_result("a", "linear", None, output, make_split("single"), {})
    with pytest.raises(ValueError, match="2 classes"):
        classification_result("a", "linear", 5, output, make_split("single", ["b", "c"]), {})
    with pytest.raises(ValueError, match=r"'a' with head 'cosine'.*90 test items"):
        link_result("a", "cosine", output, LINKED, {})


def test_results_that_do_not_fit_their_task_or_each_other_are_refused():
    ranking = make_ranking("a", 1.0)
    for change, message in (
        ({"measured": {"ndcg_10": ranking.measured["ndcg_10"]}}, "its task 'document-ranking' expects"),
        ({"measured": ranking.measured | {"ndcg_10": np.array([0.5])}}, "one value a run of ndcg_10"),
        ({"measured": ranking.measured | {"median_rank": np.array([1, 2])}}, r"shape \[\(2,\)\], expected"),
        ({"details": {}}, "details"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(ranking, **change)
    with pytest.raises(ValueError, match="several tasks"):
        rows([ranking, make_result("a", 1.0)])
    with pytest.raises(ValueError, match="60 and 61"):
        comparisons([ranking, make_ranking("b", 1.0, num_queries=61)])
    with pytest.raises(ValueError, match="speed of task 'x' is no measure of it"):
        Task("x", {"accuracy": "Accuracy"}, "accuracy", ("accuracy", "speed"), "grid")


def test_a_measure_nobody_has_heard_of_needs_only_its_name(tmp_path):
    """nDCG of each query goes through rows, paired tests, tables and results.json, which says what it is."""
    results = [make_ranking("bm25", 1.0, head="bm25", is_baseline=True)]
    results += [make_ranking("ours", 9.0), make_ranking("theirs", 1.0)]
    table, differences = rows(results), comparisons(results)
    ours = results[1].measured["ndcg_10"].numerators
    assert table[1]["ndcg_10_mean"] == pytest.approx(ours.mean())
    assert table[1]["ndcg_10_low"] < ours.mean() < table[1]["ndcg_10_high"]
    half = 1.96 * ours.std() / np.sqrt(ours.size)
    assert table[1]["ndcg_10_high"] - table[1]["ndcg_10_low"] == pytest.approx(2 * half, rel=0.15)
    assert {"found_100_low", "found_100_high", "median_rank_mean"} <= table[1].keys()
    assert "median_rank_low" not in table[1]  # no ratio of sums
    assert table[1]["ndcg_of_topic"] == {"ships": pytest.approx(ours[0, ::2].mean()), "bread": None}
    pairs = {(row["a"], row["b"]): row for row in differences}
    assert set(pairs) == {("ours", "bm25"), ("theirs", "bm25"), ("ours", "theirs")}
    assert {row["measure"] for row in differences} == {"ndcg_10"}
    assert pairs["ours", "theirs"]["low"] > 0

    write_comparison(tmp_path, NDCG, table, differences, {})
    markdown = (tmp_path / "results.md").read_text()
    header = ["encoder", "head", "nDCG@10", "Found@100", "seeds", "nDCG@10, 95 % interval"]
    assert header in [cells(line) for line in markdown.split("\n")]
    for heading in ("## Documents for queries", "## nDCG@10 of each topic", NDCG.note):
        assert heading in markdown
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["task"]["measures"] == NDCG.measures
    assert task_of_file(saved) == NDCG
    assert result_tables(saved["rows"], task_of_file(saved)) in markdown


@pytest.mark.parametrize("kind", TASKS)
def test_files_from_before_tasks_were_stated_are_known_by_their_columns(kind):
    table = rows([make_result("a", 1.0, kind)])
    assert task_of_file({"rows": table}) == TASKS[kind]
    assert task_of_file({"rows": table, "task": json.loads(json.dumps(asdict(NDCG)))}) == NDCG


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
    table = rows(results)
    title, _, header, _, good, poor = result_tables(table, CLASSIFICATION).split("\n")
    assert title == "## Full training set"
    assert cells(header)[1:] == ["linear: Accuracy", "linear: Macro-F1", "knn: Accuracy", "knn: Macro-F1"]
    percent = f"{100 * table[0]['accuracy_mean']:.1f} ± {100 * table[0]['accuracy_std']:.1f}"
    assert cells(good) == [
        "good/model with **news**",
        f"**{percent}**",
        f"**{100 * table[0]['macro_f1_mean']:.1f} ± {100 * table[0]['macro_f1_std']:.1f}**",
        "",
        "",
    ]
    assert not cells(poor)[1].startswith("**")
    assert cells(poor)[3] == f"**{100 * table[2]['accuracy_mean']:.1f}**"  # one run: no deviation


@pytest.mark.parametrize("kind", TASKS)
def test_files_are_complete_and_readable(kind, tmp_path):
    names = ["kit|chen", "har\nbour", "orchard"]
    kinds = [("a|b", 3.0, None), ("c", 0.0, None), *([] if kind == "links" else [("c", 0.0, 5)])]
    results = [make_result(encoder, signal, kind, shots=shots, class_names=names) for encoder, signal, shots in kinds]
    task, table, differences = TASKS[kind], rows(results), comparisons(results)
    statistics = text_statistics("made up", {"train": ["a b c", "d\ne"], "test": ["f"]}, 3)
    settings = {"path": tmp_path, "rate": np.float32(0.5), "bad": float("nan"), "many": np.arange(2), "text": "\ud800"}
    texts = {"statistics": statistics, "title": "Made | up", "notes": ["first\nnote"]}
    shown = write_comparison(tmp_path / "new", task, table, differences, settings, **texts)

    assert result_tables(table, task) in shown
    saved = json.loads((tmp_path / "new" / "results.json").read_text(), parse_constant=pytest.fail)
    assert saved["rows"] == json.loads(json.dumps(table))
    assert task_of_file(saved) == task
    assert saved["comparisons"] == differences
    assert saved["settings"] == {"path": str(tmp_path), "rate": 0.5, "bad": None, "many": [0, 1], "text": "\ud800"}
    assert saved["versions"].keys() >= {"python", "torch", "transformers", "scikit-learn", "numpy", "datasets"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"results.json", "results.md"}

    markdown = (tmp_path / "new" / "results.md").read_text()
    assert result_tables(table, task) in markdown
    assert "- first note" in markdown
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            assert len({len(cells(line)) for line in block.split("\n")}) == 1, block
    assert ("F1 of each label" in markdown) == (kind == "multi")
    measure = "Micro-F1" if kind == "multi" else "Accuracy"
    (line,) = [line for line in markdown.split("\n") if line.startswith("| a\\|b - c ")]
    assert cells(line)[3] == measure
    assert cells(line)[4].startswith(f"{100 * differences[0]['difference']:+.1f} [")
    assert differences[0]["low"] > 0
    assert cells(line)[5:] == ["1 / 1", f"{differences[0]['p_value']:.3f}", "one run says"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    write_comparison(tmp_path, CLASSIFICATION, [], [], {"run": 1})
    monkeypatch.setattr(os, "replace", lambda *paths: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        write_comparison(tmp_path, CLASSIFICATION, [], [], {"run": 2})
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
    table = rows(results)
    assert plot_few_shot(table, CLASSIFICATION, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    (figure,) = figures
    accuracy, macro_f1 = figure.axes[0], figure.axes[2]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["mlp", "linear"]
    assert [label.get_text() for label in macro_f1.get_xticklabels()] == ["5", "20", "all"]
    for axis, measure in ((accuracy, "accuracy"), (macro_f1, "macro_f1")):
        (line,) = [line for line in axis.get_lines() if line.get_label() == "b"]
        own = [row for row in table if (row["encoder"], row["head"]) == ("b", "mlp")]
        chosen = {row["shots"]: 100 * row[f"{measure}_mean"] for row in own}
        assert line.get_xdata().tolist() == [5, 20]
        assert line.get_ydata() == pytest.approx([chosen[5], chosen[20]])
        assert any(list(point.get_ydata()) == pytest.approx([chosen[None]]) for point in axis.get_lines())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    monkeypatch.undo()
    plt.close(figure)


def test_without_few_labels_there_is_no_picture(tmp_path):
    (tmp_path / "curves.png").touch()  # of an earlier run, on other data
    assert not plot_few_shot(rows([make_result("a", 1.0)]), CLASSIFICATION, tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


def make_group(name, members, signal, kind="single", head="linear", seed=0, **others):
    """One head on the encoders of several pretraining seeds, as one result."""
    results = [make_result(member, signal, kind, head, seed=seed + i, **others) for i, member in enumerate(members)]
    return merge_seeds(name, members, results), results


@pytest.mark.parametrize("kind", TASKS)
def test_a_group_of_seeds_is_the_mean_of_its_members_with_the_spread_between_and_within(kind):
    members = ["o/a1", "o/a2", "o/a3"]
    group, results = make_group("A=o/a1,o/a2,o/a3", members, 1.0, kind, embedding_seconds=2.0, seen=0.25, prompt="")
    results[1].info["seen"] = 0.5
    merged = merge_seeds("A=o/a1,o/a2,o/a3", members, results)
    (row,), alone = rows([merged]), rows(results)
    main = group.task.main
    means = [one[f"{main}_mean"] for one in alone]
    assert row[f"{main}_mean"] == pytest.approx(np.mean(means))
    assert row[f"{main}_std"] == pytest.approx(np.std(means, ddof=1))
    assert row[f"{main}_std_runs"] == pytest.approx(np.sqrt(np.mean([one[f"{main}_std"] ** 2 for one in alone])))
    assert row[f"{main}_of_seeds"] == pytest.approx(means)
    assert (row["encoder"], row["members"], row["pretraining_seeds"], row["runs"]) == (group.encoder, members, 3, 9)
    assert (row["embedding_seconds"], row["seen"], row["prompt"]) == (6.0, 0.5, "")
    assert row["test_documents"] == 90
    assert row["macro_f1_mean"] == pytest.approx(np.mean([one["macro_f1_mean"] for one in alone]))
    results[0].info["seen"] = None  # unknown of one is unknown of all
    assert rows([merge_seeds("A", members, results)])[0]["seen"] is None
    with pytest.raises(ValueError, match="not measured alike"):
        merge_seeds("A", members, [*results[:2], make_result("o/a3", 1.0, kind, "mlp")])


@pytest.mark.parametrize("kind", TASKS)
def test_an_encoder_with_a_name_has_the_rows_that_it_has_without(kind):
    alone = make_result("o/a1", 1.0, kind)
    assert merge_members("o/a1", ["o/a1"], [[alone]]) == [alone]
    (named,) = merge_members("A=o/a1", ["o/a1"], [[alone]])
    (row,) = rows([named])
    assert row == rows([alone])[0] | {"encoder": "A=o/a1", "members": ["o/a1"]}
    others = rows([make_result("o/lr=1", 1.0, kind)])
    assert encoder_names([row, *others]) == {"A=o/a1": "A", "o/lr=1": "o/lr=1"}
    assert table_notes([row], named.task) == table_notes(rows([alone]), alone.task)
    columns = [cells(result_tables(own, named.task).split("\n")[2]) for own in ([row], rows([alone]))]
    assert columns[0] == columns[1]  # no "seeds" that there was not


def test_ahead_is_who_has_several_seeds_or_needs_none():
    a, (single, *_) = make_group("A=o/a1,o/a2", ["o/a1", "o/a2"], 3.0)
    b, _ = make_group("o/b1,o/b2", ["o/b1", "o/b2"], 0.0, seed=7)
    tfidf = replace(make_result("tfidf", 0.0, seed=5), pretraining_seeds=None)
    found = {(row["a"], row["b"]): row for row in comparisons([a, b, single, tfidf])}
    assert all(row["low"] > 0 for (one, other), row in found.items() if one == a.encoder and other != "o/a1")
    assert found[a.encoder, b.encoder]["ahead"] == a.encoder
    assert found[a.encoder, "tfidf"]["ahead"] == a.encoder
    assert found["o/a1", "tfidf"]["ahead"] is None
    assert found["o/a1", "tfidf"]["low"] > 0
    assert found[b.encoder, "tfidf"]["ahead"] is None
    assert found[a.encoder, "tfidf"]["pretraining_seeds"] == [2, None]
    rows = [{"encoder": one.encoder, "members": one.members} for one in (a, b, single, tfidf)]
    table = difference_table(list(found.values()), CLASSIFICATION, encoder_names(rows))
    shown = {cells(line)[0]: cells(line) for line in table.split("\n")[2:]}
    assert shown["A - tfidf"][-1] == "A"
    assert shown["A - tfidf"][4].startswith("**+")
    assert shown["A - b1 and 1 more"][5] == "2 / 2"
    assert shown["o/a1 - tfidf"][-1] == "one run says"
    assert not shown["o/a1 - tfidf"][4].startswith("**")
    backwards = comparisons([b, a])[0]
    assert (backwards["a"], backwards["ahead"]) == (b.encoder, a.encoder)


def test_raw_is_compared_with_raw_and_standardised_with_standardised():
    results = [make_result(name, 1.0, features=kind) for name in "ab" for kind in ("raw", "standardized")]
    assert [row["features"] for row in comparisons(results)] == ["raw", "standardized"]


@pytest.mark.parametrize("kind", TASKS)
def test_a_head_that_gives_one_class_is_marked_in_row_log_and_table(kind, caplog):
    good = make_result("good", 3.0, kind, features="standardized")
    assert rows([good])[0]["warning"] is None
    scores = np.full_like(make_scores(1.0, kind), 0.1)
    scores[..., -1] = 0.9
    scores[:, :4] = make_scores(9.0, kind)[:, :4]  # 4 of 90 otherwise
    output = HeadOutput(scores, 1.5, 100)
    with caplog.at_level("WARNING"):
        if kind == "links":
            bad = link_result("bad", "linear", output, LINKED, {})
        else:
            bad = classification_result("bad", "linear", None, output, make_split(kind), {})
    row = rows([bad])[0]
    assert row["warning"].startswith("predicts one " + ("set of labels" if kind == "multi" else "class"))
    assert f"'bad' with head 'linear' (shots: None), raw: {row['warning']}." in caplog.text
    table = rows([good, bad])
    assert "†" in result_tables(table, bad.task).split("| bad")[1]
    assert "†" not in result_tables(table, bad.task).split("| bad")[0]
    assert any(note.startswith("† bad, linear") and row["warning"] in note for note in table_notes(table, bad.task))
    assert bad.warning.endswith(" in 3 of 3 runs")
    one_in_three = replace(bad, one_class=np.array([1.0, 0.5, 0.5]))  # two that learnt do not hide one that did not
    assert one_in_three.warning.endswith(" in 1 of 3 runs")
    assert replace(bad, one_class=np.array([0.95, 0.9, 0.9])).warning is None


def test_tables_say_how_many_test_items_and_pretraining_runs_there_are():
    group, (single, _) = make_group("A=o/a1,o/a2", ["o/a1", "o/a2"], 1.0)
    table = rows([group, single])
    notes = " ".join(table_notes(table, CLASSIFICATION))
    for said in ("Test: 90 documents. Fewer than 100", "where `seeds` is 1", "± the standard deviation over them"):
        assert said in notes
    header, _, first, second = result_tables(table, CLASSIFICATION).split("\n")[2:6]
    assert cells(header)[:2] == ["encoder", "seeds"]
    assert (cells(first)[:2], cells(second)[:2]) == (["A", "2"], ["o/a1", "1"])
    links = make_result("a", 1.0, "links")
    links = replace(links, test_documents=61)
    (row,) = rows([links])
    assert (row["test_pairs"], row["test_documents"]) == (90, 61)
    assert "Test: 90 pairs of 61 documents." in table_notes([row], LINKS)[0]
    assert cells(result_tables([row], LINKS).split("\n")[-1])[-2] == "1"
    old = {name: value for name, value in row.items() if not name.startswith(("test_", "pretraining", "warning"))}
    assert table_notes([old], LINKS) == []
    baseline = replace(links, is_baseline=True, pretraining_seeds=None)
    assert "single" not in " ".join(table_notes(rows([baseline]), LINKS))


@pytest.mark.parametrize(("lengths", "read", "said"), [
    ((128, 1024), "truncate", True), ((128, 128), "truncate", False), ((128, None), "truncate", False),
    ((128, 1024), "chunk_mean", False), ((128, 1024), "passages", False),
])  # fmt: skip
def test_tables_say_where_encoders_read_unlike_lengths(lengths, read, said):
    results = [make_result(f"encoder{length}", 1.0, max_seq_length=length, long_documents=read) for length in lengths]
    notes = " ".join(table_notes(rows(results), CLASSIFICATION))
    assert ("the first 128 or 1,024 tokens" in notes) is said


def test_a_grid_has_a_line_for_raw_and_one_for_standardised_features():
    results = [
        make_result(name, 1.0, head=head, features=kind)
        for name in "ab"
        for kind in ("raw", "standardized")
        for head in ("mlp", "linear")
    ]
    results.append(replace(make_result("tfidf", 1.0), pretraining_seeds=None))
    results[0].preset = results[2].preset = "bregman"
    header, _, *lines = result_tables(rows(results), CLASSIFICATION).split("\n")[2:]
    assert cells(header)[:3] == ["encoder", "features", "mlp (bregman): Accuracy"]
    kinds = ("raw", "standardized")
    assert [tuple(cells(line)[:2]) for line in lines] == [(n, k) for n in "ab" for k in kinds] + [("tfidf", "raw")]
    assert cells(lines[-1])[2:4] == ["", ""]
