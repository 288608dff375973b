"""The study of the classifier measures what a user gets, and goes on where it was."""

import numpy as np
import pytest

from benchmarks.studies.classifier import next as following
from benchmarks.studies.classifier.report import DataSet, items_of, markdown, measure, rows_of
from docsplit import Classifier
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import head_runs
from tests.conftest import make_corpus
from tests.test_classifier import ENCODER, NAMES


@pytest.fixture(scope="module")
def data():
    train, test = make_corpus(60), make_corpus(30, seed=1)
    names = sorted({row["label"] for row in train})
    texts, labels = ([[row[key] for row in rows] for rows in (train, test)] for key in ("text", "label"))
    first, second = (np.array([names.index(label) for label in of_part]) for of_part in labels)
    return DataSet(LabelledSplit(texts[0], first, texts[1], second, names), ENCODER)


def test_rows_are_of_what_a_user_gets(data, tmp_path):
    split = data.split
    for method in ("classifier", "tfidf", "probe_knn"):
        measure(data, "5", method, tmp_path / f"dbpedia-5-{method}.npz")
    before = (tmp_path / "dbpedia-5-tfidf.npz").stat().st_mtime_ns
    measure(data, "5", "tfidf", tmp_path / "dbpedia-5-tfidf.npz")
    assert (tmp_path / "dbpedia-5-tfidf.npz").stat().st_mtime_ns == before
    rows = {row["method"]: row for row in rows_of(tmp_path, {"dbpedia": "accuracy"})}
    right = []
    for run in head_runs(split, 5, 3, 1):
        texts = [split.train_texts[row] for row in run.indices]
        classifier = Classifier(ENCODER).fit(texts, split.train_labels[run.indices], documents=split.train_texts)
        right.append((classifier.predict(split.test_texts) == split.test_labels).mean())
    assert rows["classifier"]["value"] == pytest.approx(np.mean(right), abs=1 / 80)
    assert rows["classifier"]["low"] <= rows["classifier"]["value"] <= rows["classifier"]["high"]
    difference = rows["tfidf"]["to_classifier"]
    assert difference["value"] == pytest.approx(rows["tfidf"]["value"] - rows["classifier"]["value"])
    page = markdown(list(rows.values()))
    assert f"{100 * (rows['classifier']['value'] - rows['tfidf']['value']):+.1f}" in page
    assert "## 5 labels a class" in page


def test_names_are_read_in_each_wording(data, tmp_path):
    wordings = {line.split(":")[0]: [line, f"{line} and more", line.replace(" a ", " the ")] for line in NAMES}
    named = DataSet(data.split, ENCODER, wordings)
    for labels, method in (("none", "names"), ("none", "nearest_name"), ("5", "names"), ("all", "names")):
        measure(named, labels, method, tmp_path / f"dbpedia-{labels}-{method}.npz")
    rows = {(row["labels"], row["method"]): row for row in rows_of(tmp_path, {"dbpedia": "accuracy"})}
    assert set(rows) == {("none", "names"), ("none", "nearest_name"), ("5", "names")}
    right = [
        Classifier(ENCODER)
        .fit(documents=data.split.train_texts, classes=[wordings[name][wording] for name in data.split.class_names])
        .score(
            data.split.test_texts, [[*wordings.values()][of][wording].split(":")[0] for of in data.split.test_labels]
        )
        for wording in range(3)
    ]
    assert rows["none", "names"]["value"] == pytest.approx(np.mean(right), abs=1 / 80)


def test_what_is_labelled_next_is_measured_beside_chance(data, monkeypatch):
    monkeypatch.setattr(following, "DRAWS", 2)
    monkeypatch.setattr(following, "STEPS", (2, 4, 20))
    row = following.measure("x", data)
    assert row["by_chance"][0] == row["next"][0]  # the same first labels
    assert row["by_chance"][-1] == row["next"][-1]  # everything has a label
    gain = row["gain"]
    assert gain["low"] <= gain["value"] <= gain["high"]
    assert gain["value"] == pytest.approx(np.mean(row["next"]) - np.mean(row["by_chance"]), abs=1e-3)
    assert f"{100 * gain['value']:+.1f}" in following.markdown([row])


def test_several_labels_are_counted_by_micro_f1():
    split = LabelledSplit(["a"], np.array([[1, 0]]), ["b", "c"], np.array([[1, 1], [0, 1]]), ["x", "y"])
    items = items_of(np.array([[[0.9, 0.1], [0.6, 0.5]]]), split)
    assert items.of_runs() == pytest.approx([2 * 2 / (2 * 2 + 1 + 1)])
