"""The script classify.py: fit and predict as its user calls them."""

import csv
import json

import pytest

import classify
from tests.conftest import make_corpus
from tests.test_classifier import ENCODER


@pytest.fixture
def answer(run_here, capsys):
    def run(*words):
        capsys.readouterr()
        run_here(classify.main, *words)
        return capsys.readouterr().out

    return run


def test_fit_then_predict(tmp_path, answer):
    rows = make_corpus(40)
    with (tmp_path / "labelled.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        table.writerows([row["text"], "" if number > 36 else row["label"]] for number, row in enumerate(rows))
    folder, new = tmp_path / "classifier", tmp_path / "new"
    fitted = json.loads(answer("fit", tmp_path / "labelled.csv", "--model", ENCODER, "--output_dir", folder, "--json"))
    assert fitted["classes"] == ["harbour", "kitchen", "orchard"]
    assert fitted["counts"]["rows without a label"] == fitted["counts"]["unlabelled"] == 3
    assert fitted["score"]["value"] > 0.8
    new.mkdir()
    for number, row in enumerate(make_corpus(6, seed=2)):
        (new / f"{number}-{row['label']}.txt").write_text(row["text"])
    (new / "empty.txt").write_text(" ")
    rows = json.loads(answer("predict", folder, new, "--json"))
    assert [list(row) for row in rows] == [["id", "label", "probability"]] * 7
    assert {row["id"]: row["label"] for row in rows}.pop("empty.txt") is None
    assert all(row["label"] in row["id"] for row in rows if row["label"])
    text = answer("predict", folder, new, "--unsure", 0.9999, "--output_file", tmp_path / "labels.csv")
    sure = [row["id"] for row in rows if row["label"] and row["probability"] >= 0.99995]
    assert text.splitlines()[-1] == f"7 documents; {7 - len(sure)} of them without a label."
    with (tmp_path / "labels.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table if row["label"]] == sure


def test_several_labels_in_a_cell(tmp_path, answer, failure_of):
    lines = [f'"{row["text"]}","{row["label"]}{"; long" * (len(row["text"]) > 250)}"' for row in make_corpus(30)]
    (tmp_path / "labelled.csv").write_text("\n".join(["text,topics", *lines]) + "\n")
    words = ["fit", tmp_path / "labelled.csv", "--output_dir", tmp_path / "c", "--model", ENCODER]
    assert "['text', 'topics']" in failure_of(classify.main, *words)
    text = answer(*words, "--features", "tfidf", "--label_column", "topics", "--label_separator", ";")
    assert "Documents of 4 classes: 30 labelled" in text
    assert "micro-F1" in text
    (row, *_) = json.loads(answer("predict", tmp_path / "c", tmp_path / "labelled.csv", "--json"))
    assert list(row) == ["id", "labels", "probabilities"]
    assert len(row["labels"]) == len(row["probabilities"])
    assert "exists and is not empty" in failure_of(classify.main, *words)
