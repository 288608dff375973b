"""The script classify.py: fit and predict as its user calls them."""

import csv
import json

import pytest

import classify
from docsplit import Classifier
from tests.conftest import make_corpus
from tests.test_classifier import ENCODER, NAMES


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
    assert (fitted["self_trained"], fitted["examples"], fitted["doubtful"]) == (True, [], [])
    new.mkdir()
    for number, row in enumerate(make_corpus(6, seed=2)):
        (new / f"{number}-{row['label']}.txt").write_text(row["text"])
    (new / "empty.txt").write_text(" ")
    rows = json.loads(answer("predict", folder, new, "--json"))
    assert [list(row) for row in rows] == [["id", "label", "probability"]] * 7
    assert {row["id"]: row["label"] for row in rows}.pop("empty.txt") is None
    assert all(row["label"] in row["id"] for row in rows if row["label"])
    text = answer("predict", folder, new, "--unsure", 0.9999, "--top", 2, "--output_file", tmp_path / "labels.csv")
    sure = [row["id"] for row in rows if row["label"] and row["probability"] >= 0.99995]
    assert text.splitlines()[-1] == f"7 documents; {7 - len(sure)} of them without a label."
    with (tmp_path / "labels.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table if row["label"]] == sure
    for line, row in zip(table, rows):
        assert (line["likeliest_1"], line["probability_1"]) == (row["label"] or "", str(row["probability"] or ""))
        assert bool(line["likeliest_2"]) == (line["id"] != "empty.txt")


def test_the_loop_of_a_person_who_labels(tmp_path, answer, failure_of):
    """Labels by file name; a wrong label is found, put right in the table that `predict` wrote, and read again."""
    rows, folder = make_corpus(40), tmp_path / "folder"
    folder.mkdir()
    for number, row in enumerate(rows):
        (folder / f"{number}.txt").write_text(row["text"])
    labels = [row["label"] for row in rows[:30]]
    wrong = {"harbour": "kitchen", "kitchen": "orchard", "orchard": "harbour"}[labels[4]]
    table = tmp_path / "labels.csv"

    def write(labels):
        table.write_text("file,label\n" + "".join(f"{number}.txt,{label}\n" for number, label in enumerate(labels)))

    write([*labels[:4], wrong, *labels[5:]])
    words = ["fit", table, "--documents", folder, "--model", ENCODER, "--features", "tfidf"]
    text = answer(*words, "--output_dir", tmp_path / "first")
    assert "30 labelled, 10 unlabelled" in text
    assert (
        f"Labels that look wrong: 1 of 30 held out, the surest first in {tmp_path / 'first' / 'doubtful.csv'}" in text
    )
    with (tmp_path / "first" / "doubtful.csv").open(newline="") as file:
        ((doubtful),) = csv.DictReader(file)
    assert (doubtful["id"], doubtful["label"], doubtful["guess"]) == ("4.txt", wrong, labels[4])
    assert rows[4]["text"].startswith(doubtful["beginning"][:20])
    with (tmp_path / "first" / "held_out.csv").open(newline="") as file:
        assert {row["id"] for row in csv.DictReader(file)} == {f"{number}.txt" for number in range(30)}
    corrected = tmp_path / "corrected.csv"
    answer("predict", tmp_path / "first", folder, "--output_file", corrected)
    words[1] = corrected
    assert "40 labelled.\n" in answer(*words, "--output_dir", tmp_path / "second")
    words[1:4] = [corrected]
    assert "name them, or another --text_column" in failure_of(
        classify.main, *words, "--output_dir", tmp_path / "third"
    )
    words[2:2] = ["--documents", folder]
    text = answer("next", tmp_path / "second", folder)
    assert text == "There is no document with text and without a label.\n"
    corrected.write_text(corrected.read_text().replace("4.txt", "400.txt", 1))
    message = failure_of(classify.main, *words, "--output_dir", tmp_path / "third")
    assert "1 of 40 ids" in message
    assert "are no document of" in message
    # What to label next is read beside the first table
    write([*labels[:12], *[""] * 18])
    answer("fit", table, *words[2:], "--output_dir", tmp_path / "few")
    assert '"labelled": 12' in answer("fit", table, *words[2:], "--output_dir", tmp_path / "again", "--json")
    more = tmp_path / "more.csv"
    text = answer("next", tmp_path / "few", folder, "--count", 5, "--output_file", more)
    assert f"All 5 are in {more}: fill in its column label" in text
    with more.open(newline="") as file:
        to_fill = list(csv.DictReader(file))
    assert not {row["id"] for row in to_fill} & {f"{number}.txt" for number in range(12)}
    filled = [f"{row['id']},{rows[int(row['id'].split('.')[0])]['label']}" for row in to_fill]
    (folder / "cafe\u0301.txt").write_text(make_corpus(1, seed=5)[0]["text"])  # as some systems write names
    more.write_text("\n".join(["file,label", *filled, f"cafe\u0301.txt,{labels[0]}"]) + "\n")
    assert '"labelled": 18' in answer("fit", table, more, *words[2:], "--output_dir", tmp_path / "more", "--json")


def test_names_of_classes_need_no_labels(tmp_path, answer, failure_of):
    folder, names = tmp_path / "folder", tmp_path / "names.txt"
    folder.mkdir()
    for number, row in enumerate(make_corpus(40)):
        (folder / f"{number}-{row['label']}.txt").write_text(row["text"])
    names.write_text("\ufeff" + "\n\n".join(NAMES) + "\n", encoding="utf-8")
    words = ["fit", "--classes", names, "--documents", folder, "--model", ENCODER]
    text = answer(*words, "--output_dir", tmp_path / "c")
    assert "40 unlabelled" in text
    assert "No score" in text
    assert "  typical " in text
    with (tmp_path / "c" / "examples.csv").open(newline="") as file:
        examples = list(csv.DictReader(file))
    assert len(examples) == 3 * 6
    assert {row["class"] for row in examples} == {"harbour", "kitchen", "orchard"}
    rows = json.loads(answer("predict", tmp_path / "c", folder, "--json"))
    assert sum(row["label"] in row["id"] for row in rows) > 36
    (tmp_path / "one.csv").write_text(f"text,label\n{make_corpus(1)[0]['text']},{make_corpus(1)[0]['label']}\n")
    assert "No score" in answer("fit", tmp_path / "one.csv", *words[1:], "--output_dir", tmp_path / "one")
    examples = json.loads(answer(*words, "--output_dir", tmp_path / "json", "--json"))["examples"]
    assert len(examples) == 3 * 6
    for encoding, given in (("utf-16", []), ("cp1251", ["--encoding", "cp1251"])):  # of Windows programs
        names.write_text("\n".join(NAMES).replace("kitchen", "кухня"), encoding=encoding)
        text = answer(*words, "--output_dir", tmp_path / encoding, "--json", *given)
        assert json.loads(text)["classes"] == ["harbour", "orchard", "кухня"]
    assert "Nothing is labelled" in failure_of(classify.main, *words[:1], *words[3:], "--output_dir", tmp_path / "d")
    assert f"{tmp_path / 'none.txt'}" in failure_of(
        classify.main, *words[:2], tmp_path / "none.txt", *words[3:], "--output_dir", tmp_path / "d"
    )


def test_several_labels_in_a_cell(tmp_path, answer, failure_of):
    lines = [f'"{row["text"]}","{row["label"]}{"; long" * (len(row["text"]) > 250)}"' for row in make_corpus(30)]
    (tmp_path / "labelled.csv").write_text("\n".join(["text,topics", *lines]) + "\n")
    words = ["fit", tmp_path / "labelled.csv", "--output_dir", tmp_path / "c", "--model", ENCODER]
    assert "['text', 'topics']" in failure_of(classify.main, *words)
    text = answer(*words, "--features", "tfidf", "--label_column", "topics", "--label_separator", ";")
    assert "Documents of 4 classes: 30 labelled" in text
    assert "micro-F1" in text
    assert "--unsure" not in text  # which predict would refuse
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
    pile = tmp_path / "pile.csv"
    pile.write_text("title;body\n" + "".join(f"one{number % 2};two{number % 2}\n" for number in range(4)))
    answer(*words[:3], tmp_path / "p", *words[4:], "--text_column", "title", "body", "--documents", pile)
    assert {"one0", "two0"} < {*Classifier.load(tmp_path / "p").tfidf_.vocabulary_}
    held_out = tmp_path / "c" / "held_out.csv"  # whose ids are those that predict prints: they go back
    named = ["fit", held_out, "--documents", table, *words[2:3], tmp_path / "h", *words[4:], "--text_column"]
    assert '"labelled": 30' in answer(*named, "title", "body", "--json")
    before = table.read_bytes()
    message = failure_of(classify.main, "predict", tmp_path / "c", table, "--output_file", table)
    assert f"{table} exists: name another --output_file, or remove it." in message
    assert table.read_bytes() == before
    (tmp_path / "other.csv").write_text("title,text\na,b\n")
    message = failure_of(classify.main, "predict", tmp_path / "c", tmp_path / "other.csv")
    assert "--text_column is 'body', but the columns are ['title', 'text']" in message
