"""The study of the closed form: what is chosen by its rule, what is measured, and that it goes on where it was."""

import json
import sys

import numpy as np
import pytest

from benchmarks.studies.closed_form import choices, report
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding import closed_form
from docsplit.evaluation.heads.logistic import fit_head
from tests.conftest import make_corpus


@pytest.fixture(scope="module")
def split():
    train, test = make_corpus(60), make_corpus(30, seed=1)
    names = sorted({row["label"] for row in train})
    texts, labels = ([[row[key] for row in rows] for rows in (train, test)] for key in ("text", "label"))
    first, second = (np.array([names.index(label) for label in of_part]) for of_part in labels)
    return LabelledSplit(texts[0], first, texts[1], second, names)


def test_the_closed_form_of_the_study_is_that_of_the_library(split):
    features = choices.Features(split.train_texts, split.test_texts)
    setting = {"halves": "tokens", "ridge": closed_form.RIDGE, "power": closed_form.POWER, "width": closed_form.WIDTH}
    setting |= {"idf": 2, "form": "mean"}
    words, _ = closed_form.fit_to_texts(split.train_texts)
    for vectors, texts in zip(choices.features_of(features, setting), (split.train_texts, split.test_texts)):
        expected = words(**words.preprocess(texts)).numpy()
        np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-3)  # whatever their signs


def test_halves_are_of_sentences_and_of_words_where_there_is_one_sentence():
    half = choices.Features._half
    sentences = ["a a", "b", "c c"]
    for seed in range(20):
        first, second = half(sentences, np.random.default_rng(seed))
        assert first
        assert second
        assert sorted((first + second).replace(" ", "")) == [*"aabcc"]
        assert all(first.count(word) in (0, 2) for word in "ac")
        assert sorted(half(["a b"], np.random.default_rng(seed))) == ["a", "b"]
    assert half(["a"], np.random.default_rng(0)) is None


def test_a_head_of_few_finds_what_one_of_all_dimensions_finds(split):
    features = choices.Features(split.train_texts, split.test_texts)
    draws = split.draws(2, 2)
    for train, test in (features.tfidf("words", 1), features.lsa("words", 0.5, 12, 2, "mean")):
        found = choices.right((train, test), split, draws)
        for draw, of_draw in zip(draws, found):
            weights, shifts = fit_head(train[draw], split.train_labels[draw], len(split.class_names))
            assert ((np.asarray(test @ weights) + shifts).argmax(axis=1) == split.test_labels).tolist() == (
                of_draw.astype(bool).tolist()
            )


def test_the_rule_takes_the_narrowest_of_the_best_and_words_if_they_are_near():
    def row(method, width, accuracy, **others):
        return {"method": method, "width": width, "accuracy": accuracy, **others}

    rows = [row("lsa", 128, 0.50), row("lsa", 500, 0.60), {"method": "tfidf", "accuracy": 0.4}]
    rows += [row("halves of tokens", 128, 0.6985, ridge=1), row("halves of tokens", 128, 0.6990, ridge=3)]
    rows += [row("halves of tokens", 500, 0.70), row("halves of sentences", 250, 0.7035), row("dampened", 128, 0.7)]
    taken = choices.chosen(rows)
    assert taken["closed form"] == rows[4]  # within .2 of .70, and within .5 of sentences
    assert (taken["lsa"]["width"], taken["lsa 128"]["accuracy"]) == (500, 0.50)
    rows[-2]["accuracy"] = 0.7050
    assert choices.chosen(rows)["closed form"] == rows[-2]
    rows[-1]["accuracy"] = 0.7150
    assert choices.chosen(rows)["closed form"] == rows[-1]  # a mean of token vectors loses too much


def test_rows_have_the_difference_to_lsa_and_what_was_measured_stays(split, tmp_path, monkeypatch):
    setting = {"halves": "tokens", "ridge": 3.0, "power": 1.0, "width": 12, "idf": 2, "form": "mean"}
    of_lsa = {"tokens": "words", "weight": 0.5, "width": 2, "idf": 1, "form": "dampened"}
    taken = {"tfidf": {"tokens": "words", "idf": 1}, "lsa": of_lsa, "closed form": setting}
    monkeypatch.setattr(report, "NAMES", {name: report.NAMES[name] for name in taken})
    monkeypatch.setattr(report, "labelled", lambda name, data_dir, limits: split)
    monkeypatch.setattr(report, "NUM_DRAWS", 3)
    (tmp_path / "choices.json").write_text(json.dumps({"chosen": taken}))
    given = [
        "--data_dir",
        tmp_path,
        "--sets",
        "dbpedia",
        "--work_dir",
        tmp_path,
        "--choices",
        tmp_path / "choices.json",
    ]
    monkeypatch.setattr(sys, "argv", ["report", *map(str, given), "--output", str(tmp_path / "rows.json")])
    report.main()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert len(times) == 3
    report.main()
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    rows = {row["method"]: row for row in report.rows_of(tmp_path)}
    ours, difference = rows["closed form"], rows["closed form"]["to_lsa"]
    assert ours["low"] <= ours["value"] <= ours["high"]
    assert difference["difference"] == pytest.approx(ours["value"] - rows["lsa"]["value"])
    assert difference["p_holm"] == pytest.approx(difference["p_value"])  # one of the two alone
    page = (tmp_path / "rows.md").read_text()
    assert f"{100 * difference['difference']:+.1f}" in page
