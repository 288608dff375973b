"""The script classify.py: fit and predict as its user calls them."""

import csv
import json

import pytest

import classify
from docsplit import Classifier
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
    assert "is there already" in failure_of(classify.main, *words)


def test_predict_reads_the_columns_that_fit_read(tmp_path, answer, failure_of):
    """A table of two columns, divided by semicolons, whose words are in both; the user's table stays."""
    rows = make_corpus(30)
    halves = [(row["text"][: len(row["text"]) // 2], row["text"][len(row["text"]) // 2 :]) for row in rows]
    lines = [f'"{title}"; "{body}"; {row["label"]} ' for (title, body), row in zip(halves, rows)]
    table = tmp_path / "labelled.csv"
    table.write_text("\n".join(["title; body; label", *lines]) + "\n")
    words = ["fit", table, "--output_dir", tmp_path / "c", "--model", ENCODER, "--features", "tfidf"]
    answer(*words, "--text_column", "title", "body")
    labels = [row["label"] for row in json.loads(answer("predict", tmp_path / "c", table, "--json"))]
    classifier = Classifier.load(tmp_path / "c")
    assert labels == classifier.predict([f"{title}\n\n{body}" for title, body in halves]).tolist()
    assert sum(label == row["label"] for label, row in zip(labels, rows)) > 25
    of_titles = json.loads(answer("predict", tmp_path / "c", table, "--text_column", "title", "--json"))
    assert [row["label"] for row in of_titles] == classifier.predict([title for title, _ in halves]).tolist()
    before = table.read_bytes()
    message = failure_of(classify.main, "predict", tmp_path / "c", table, "--output_file", table)
    assert f"{table} exists: name another --output_file, or remove it." in message
    assert table.read_bytes() == before
    (tmp_path / "other.csv").write_text("title,text\na,b\n")
    message = failure_of(classify.main, "predict", tmp_path / "c", tmp_path / "other.csv")
    assert "--text_column is 'body', but the columns are ['title', 'text']" in message
