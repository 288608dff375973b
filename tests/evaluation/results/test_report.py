"""Paired tests, the table, the line that says who is ahead, notes and files."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest

from docsplit.evaluation.results.bootstrap import (
    ItemScores,
    holm,
    paired_bootstrap,
    paired_randomisation,
    resample,
)
from docsplit.evaluation.results.report import (
    Report,
    comparisons,
    encoder_names,
    notes_of,
    records,
    rows,
    short_names,
    table_of,
    text_statistics,
    verdict,
    write_comparison,
)
from docsplit.evaluation.results.result import CLASSIFICATION, LINKS, RANKING, Result, merge_seeds
from tests.evaluation.results.examples import (
    LABELS,
    TASKS,
    json_comparisons,
    json_rows,
    make_group,
    make_result,
    make_scores,
)


def test_comparisons_are_those_of_each_pair_with_the_same_head_labels_and_features():
    results = [
        make_result(encoder, signal, head=head, shots=shots, seed=seed, features=features)
        for seed, (encoder, signal) in enumerate([("a", 2.0), ("b", 2.0), ("c", 0.5)])
        for head, shots, features in [("linear", None, "raw"), ("linear", 5, "raw"), ("linear", 5, "standardized")]
    ]
    found = json_comparisons(results)
    kinds = [(None, "raw"), (5, "raw"), (5, "standardized")]
    pairs = [(row["shots"], row["features"], row["a"], row["b"]) for row in found]
    assert sorted(pairs, key=str) == sorted([(*kind, a, b) for kind in kinds for a, b in ("ab", "ac", "bc")], key=str)
    items = []
    for signal, seed in ((2.0, 0), (0.5, 2)):  # a and c on the full training set
        correct = (make_scores(signal, seed=seed).argmax(axis=2) == LABELS).astype(np.float32)
        items.append(ItemScores(correct, np.ones_like(correct)))
    alone = asdict(paired_bootstrap(*resample(items)))
    together = next(row for row in found if (row["shots"], row["a"], row["b"]) == (None, "a", "c"))
    assert {name: together[name] for name in alone} == pytest.approx(alone)
    means = {row["encoder"]: row["accuracy_mean"] for row in json_rows(results) if row["shots"] is None}
    assert together["difference"] == pytest.approx(means["a"] - means["c"])
    assert together["low"] > 0
    assert together["ahead"] is None  # single pretraining runs


def test_baselines_meet_the_head_of_every_encoder_that_the_task_names():
    results = [make_result("bm25", 1.0, "links", head="bm25", num_runs=1)]
    results += [make_result(encoder, 2.0, "links", head, seed=7) for encoder in "ab" for head in ("mlp", "cosine")]
    results += [make_result("popularity", 0.0, "links", head="popularity", num_runs=1)]
    pairs = [(row["head"], row["a"], row["b"]) for row in json_comparisons(results)]
    with_baselines = [("mlp", encoder, baseline) for encoder in "ab" for baseline in ("bm25", "popularity")]
    assert sorted(pairs) == sorted([("cosine", "a", "b"), ("mlp", "a", "b"), *with_baselines])
    text = verdict(Report(LINKS, rows(results), comparisons(results)))
    assert [line.partition(":")[0] for line in text] == ["a", "b"]  # no test of two baselines
    assert "accuracy, all labels, mlp against bm25; 90 pairs)" in text[0]


def rankings(gains):
    ones = np.ones((1, 40), np.float32)
    results = []
    for encoder, head, gain in gains:
        values = (np.random.default_rng(5).random((1, 40)) * gain).astype(np.float32)
        measured = dict.fromkeys(RANKING.measures, ItemScores(values, ones))
        is_baseline = encoder == "bm25"
        about = {"is_baseline": is_baseline, "pretraining_seeds": None if is_baseline else 1, "test_documents": 500}
        results.append(Result(task=RANKING, encoder=encoder, head=head, measured=measured, **about))
    return results


def test_rankings_are_tested_by_randomisation_and_corrected():
    results = rankings([("a", "dense", 1.0), ("a", "hybrid", 0.99), ("bm25", "bm25", 0.5)])
    found = json_comparisons(results)
    assert [(row["a"], row["b"], row["heads"]) for row in found] == [
        ("a", "a", ["hybrid", "dense"]), ("a", "bm25", ["dense", "bm25"]), ("a", "bm25", ["hybrid", "bm25"]),
    ]  # fmt: skip
    items = [result.items("ndcg_at_10") for result in results]
    expected = [paired_randomisation(items[a], items[b]) for a, b in ((1, 0), (0, 2), (1, 2))]
    assert [row["p_value"] for row in found] == expected
    assert [row["p_holm"] for row in found] == pytest.approx(holm(expected))
    row = json_rows(results)[0]
    assert row["ndcg_at_10"] == row["ndcg_at_10_mean"]
    assert (row["test_queries"], row["test_documents"]) == (40, 500)
    (line,) = verdict(Report(RANKING, rows(results), comparisons(results), {"methods": ["dense", "bm25", "hybrid"]}))
    assert re.fullmatch(
        r"bm25: -\d+\.\d points \[-\S+, -\S+\] against a \(\S+, \S+; nDCG@10, bm25 against dense; 40 queries\)", line
    )


def test_ahead_is_who_has_several_seeds_or_needs_none():
    a, (single, *_) = make_group("A=o/a1,o/a2", ["o/a1", "o/a2"], 3.0)
    b, _ = make_group("o/b1,o/b2", ["o/b1", "o/b2"], 0.0, seed=7)
    tfidf = replace(make_result("tfidf", 0.0, seed=5), pretraining_seeds=None)
    results = [a, b, single, tfidf]
    found = {(row["a"], row["b"]): row for row in json_comparisons(results)}
    assert found[a.encoder, b.encoder]["ahead"] == found[a.encoder, "tfidf"]["ahead"] == a.encoder
    assert found["o/a1", "tfidf"]["low"] > 0
    assert found["o/a1", "tfidf"]["ahead"] is found[b.encoder, "tfidf"]["ahead"] is None
    assert found[a.encoder, "tfidf"]["pretraining_seeds"] == [2, None]
    backwards = json_comparisons([b, a])[0]
    assert (backwards["a"], backwards["ahead"]) == (b.encoder, a.encoder)


def test_short_names_are_short_and_never_equal():
    paths = ["/long/way/to/simcse/checkpoint-500", "/long/way/to/docsplit/checkpoint-500", "docsplit/checkpoint-500"]
    paths += ["checkpoint-500", "sentence-transformers/all-MiniLM-L6-v2", "outputs/docsplit"]
    short = short_names(paths)
    assert len(set(short.values())) == len(paths)
    assert [short[path] for path in (paths[0], *paths[-2:])] == [
        "simcse/checkpoint-500", "all-MiniLM-L6-v2", "docsplit",
    ]  # fmt: skip
    typed = ["tfidf", "models/long/a@mean", "B=models/b@cls", "models/c,models/d@max", "e@prompt=x, y/z=1"]
    members = [[], ["models/long/a"], ["models/b"], ["models/c", "models/d"], ["e"]]
    shown = ["tfidf", "a@mean", "B", "c and 1 more", "e@prompt=x, y/z=1"]
    assert list(encoder_names(dict(zip(typed, members))).values()) == shown
    assert list(encoder_names(dict(zip(shown, members))).values()) == shown  # as a card has them


def test_the_table_has_a_line_an_encoder_head_and_features_and_is_bold_where_best():
    good = "good|model\nwith **news**"
    results = [
        make_result(name, signal, head=head, shots=shots, features=kind)
        for name, signal in ((good, 3.0), ("poor", 0.1))
        for kind in ("raw", "standardized")
        for head in ("mlp", "linear")
        for shots in (10, 5, None)
    ]
    results.append(replace(make_result("tfidf", 1.0), pretraining_seeds=None))
    results[0].preset = results[1].preset = results[2].preset = "bregman"
    frame = rows(results)
    table = table_of(frame, CLASSIFICATION)
    assert [line[:3] for line in table.rows][:2] == [[good, "mlp (bregman)", "raw"], [good, "linear", "raw"]]
    of_labels = ["Accuracy", "95 % interval", "Macro-F1"]
    labels = [f"{title}{end}" for end in (", 5 labels", ", 10 labels", ", all") for title in of_labels]
    assert table.header == ["encoder", "head", "features", *labels]
    assert table.rows[-1] == ["tfidf", "linear", "raw", *[""] * 6, *table.rows[-1][9:]]
    of_poor = {"encoder": "poor", "head": "mlp", "features": "raw", "shots": 5}
    (row,) = [row for row in records(frame) if row.items() >= of_poor.items()]
    line = next(line for line in table.rows if line[:3] == ["poor", "mlp", "raw"])
    assert line[3] == f"{100 * row['accuracy_mean']:.1f} ± {100 * row['accuracy_std']:.1f}"
    assert line[4] == f"[{100 * row['accuracy_low']:.1f}, {100 * row['accuracy_high']:.1f}]"
    assert all(table.rows[line][0] == good for line, column in table.best if column < 9)
    assert r"| good\|model with \*\*news\*\* |" in table.markdown()
    brief = table_of(frame, CLASSIFICATION, brief=True)
    assert brief.header == ["encoder", "head", *(f"Accuracy{end}" for end in (", 5 labels", ", 10 labels", ", all"))]
    assert len(brief.rows) == 5


def made(encoder, accuracy, head="linear", shots=5, features="raw"):
    row = {"encoder": encoder, "head": head, "shots": shots, "features": features, "accuracy_mean": accuracy / 100}
    return row | {"test_documents": 600, "warning": None, "members": [], "runs": 1}


def compared(a, b, points, head="linear", shots=5, features="raw", **further):
    difference = dict(zip(("difference", "low", "high"), (point / 100 for point in points)))
    row = {"head": head, "shots": shots, "features": features, "a": a, "b": b, "pretraining_seeds": [1, 1]}
    return row | difference | further


def said(tests, listed=(("start", 89.7), ("words", 93.2)), **settings):
    frames = [pd.DataFrame(listed_of, dtype=object) for listed_of in ([made(*one) for one in listed], tests)]
    return verdict(Report(CLASSIFICATION, *frames, settings))


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ((3.5, 2.0, 5.0), "words: +3.5 points [2.0, 5.0] against start"),
        ((-3.5, -5.0, -2.0), "words: -3.5 points [-5.0, -2.0] against start"),
        ((0.5, -1.0, 2.0), "words: no clear difference against start, +0.5 points [-1.0, 2.0]"),
        ((0.5, 0.0, 2.0), "words: no clear difference against start, +0.5 points [0.0, 2.0]"),
    ],
)
def test_a_line_says_how_far_an_encoder_is_from_the_first(points, expected, is_turned):
    test = compared("words", "start", points)
    if is_turned:
        low, high = -points[2], -points[1]
        test = compared("start", "words", (-points[0], low, high))
    assert said([test]) == [f"{expected} (93.2, 89.7; accuracy, 5 labels a class, linear; 600 documents)"]


def test_the_line_is_of_one_primary_figure():
    """Few labels, the fewest; the first of the heads that both have; raw features."""
    kinds = [("linear", None, "raw"), ("knn", 5, "raw"), ("linear", 10, "raw"), ("linear", 5, "standardized"),
             ("linear", 5, "raw")]  # fmt: skip
    tests = [compared("words", "start", (number + 1, 1, 9), *kind) for number, kind in enumerate(kinds)]
    listed = [(encoder, 50 + number, *kind) for encoder in ("start", "words") for number, kind in enumerate(kinds)]
    assert said(tests, listed, heads=["mlp", "linear", "knn"])[0].startswith("words: +5.0 points")
    assert said(tests, listed, heads=["knn", "linear"])[0].startswith("words: +2.0 points")
    all_labels = said(tests[:1], listed[::5], heads=["linear"])
    assert "accuracy, all labels, linear" in all_labels[0]
    assert said([]) == []


def test_an_interval_that_holm_does_not_confirm_is_no_clear_difference():
    assert said([compared("words", "start", (3.5, 2.0, 5.0), p_holm=0.2)]) == [
        "words: no clear difference against start, +3.5 points [2.0, 5.0], p 0.20 after Holm's correction "
        "(93.2, 89.7; accuracy, 5 labels a class, linear; 600 documents)"
    ]
    assert said([compared("words", "start", (3.5, 2.0, 5.0), p_holm=0.01)])[0].startswith("words: +3.5 points")


def notes(*results, task=CLASSIFICATION):
    return notes_of(rows(results), task)


def test_notes_say_what_changes_a_readers_mind_and_nothing_that_is_always_true(monkeypatch):
    monkeypatch.setattr("docsplit.evaluation.results.report.FEW_ITEMS", 10)
    assert notes(make_result("a", 1.0), make_result("b", 1.0)) == []
    none_seen = {"seen_in_pretraining_share": 0.0, "near_duplicate_share": 0.0}
    ours = [make_result(name, 1.0, **none_seen) for name in ("ours", "theirs")]
    assert notes(ours[0]) == []  # nothing is compared
    assert notes(*ours, make_result("other", 1.0)) == [
        "One training run of ours, theirs: another seed may turn the order round (NAME=PATH,PATH,PATH)."
    ]
    seen = make_result("a", 1.0, seen_in_pretraining_share=0.25, near_duplicate_share=0.5)
    assert notes(seen) == ["a saw 25.0 % of the test documents in training (50.0 % with near-duplicates)."]
    names = [f"outputs/{letter}" for letter in "abc"]
    kept = [make_result(name, 1.0, kept_start=value) for name, value in zip(names, (False, True, True))]
    assert notes(kept[0]) == []
    (said_of_start,) = notes(kept[1])
    assert "The start stands for outputs/b: " in said_of_start
    seeds = merge_seeds(f"S={','.join(names)}", names, kept)
    (said_of_seeds,) = notes(seeds)
    assert "The start stands for b, c of S: " in said_of_seeds
    assert json_rows([seeds])[0]["kept_start"] == names[1:]
    assert table_of(rows([seeds]), CLASSIFICATION, brief=True).rows[0][:3] == ["S", "linear", "3"]
    assert notes(merge_seeds("S=x,y", ["x", "y"], [kept[0], kept[0]])) == []
    unlike = [make_result(f"e{length}", 1.0, max_seq_length=length, long_documents="truncate") for length in (8, 1024)]
    assert notes(*unlike) == [
        "Encoders read different lengths: e8 the first 8 tokens, e1024 the first 1,024 tokens; --max_seq_length sets "
        "one for all."
    ]
    assert notes(unlike[0], replace(unlike[1], info=unlike[1].info | {"long_documents": "chunk_mean"})) == []
    warned = replace(make_result("bad", 1.0), one_class=np.ones(3))
    assert notes(warned) == ["† gives nearly all test documents one class: bad, linear."]
    assert "†" in table_of(rows([warned]), CLASSIFICATION).rows[0][2]


@pytest.mark.parametrize("kind", ["multi", "links"])
def test_files_are_complete_and_readable(kind, tmp_path):
    names = ["kit|chen", "har\nbour", "orchard"]
    kinds = [("a|b", 3.0, None), ("c", 0.0, None), *([] if kind == "links" else [("c", 0.0, 5)])]
    results = [make_result(encoder, signal, kind, shots=shots, class_names=names) for encoder, signal, shots in kinds]
    task, frame, tests = TASKS[kind], rows(results), comparisons(results)
    statistics = text_statistics("made up", {"train": ["a b c", "d\ne"], "test": ["f"]}, 3)
    settings = {"path": tmp_path, "rate": np.float32(0.5), "bad": float("nan"), "many": np.arange(2), "text": "\ud800"}
    report = Report(task, frame, tests, settings, statistics, "Made | up", notes=["first\nnote"])
    lines = write_comparison(tmp_path / "new", report, ["curve.png"]).strip().split("\n")
    assert lines[0] == "Made | up"
    assert lines[1:2] == verdict(report)
    assert lines[-1] == f"In {tmp_path / 'new'}: results.md (all tables), results.json, curve.png."
    saved = json.loads((tmp_path / "new" / "results.json").read_text(), parse_constant=pytest.fail)
    assert saved["rows"] == json.loads(json.dumps(records(frame)))
    assert saved["comparisons"] == records(tests)
    assert saved["settings"] == {"path": str(tmp_path), "rate": 0.5, "bad": None, "many": [0, 1], "text": "\ud800"}
    assert saved["versions"].keys() >= {"python", "torch", "transformers", "scikit-learn", "numpy", "datasets"}
    assert [(part["documents"], part["mean_words"], part["max_words"]) for part in saved["statistics"]] == [
        (2, 2.5, 3), (1, 1, 1),
    ]  # fmt: skip
    markdown = (tmp_path / "new" / "results.md").read_text()
    assert table_of(frame, task).markdown() in markdown
    assert "- first note" in markdown
    assert ("F1 of each label" in markdown) == (kind == "multi")
    (line,) = [line for line in markdown.split("\n") if line.startswith("| a\\|b - c ")]
    assert f" {100 * saved['comparisons'][0]['difference']:+.1f} [" in line
    assert line.endswith("| one run says |")
