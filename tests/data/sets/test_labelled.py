"""Labelled documents: who is trained and tested on what."""

import gzip
import json
from collections import Counter

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from docsplit.data.corpora import PYTHON_DOCS
from docsplit.data.sets import labelled as labelled_module
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import (
    LabelledSplit,
    load_labelled,
    load_probe,
    split_labelled,
    stratified_sample,
    strip_newsgroup_headers,
)
from tests.conftest import TOPICS, make_corpus
from tests.data.sets.tables import rewrite, rows_of, write

# --- One corpus, split here ---


@pytest.fixture(scope="module")
def labelled():
    rows = make_corpus(150)
    # The documents 0 to 29 once more, nearly, with a label of their own that is too rare to be a class.
    rows += [{"text": row["text"] + " Storm.", "label": f"rare {index}"} for index, row in enumerate(rows[:30])]
    return Dataset.from_list(rows)


@pytest.fixture
def split(labelled, monkeypatch):
    monkeypatch.setattr(labelled_module, "MAX_CLASSES", len(TOPICS))
    return split_labelled(labelled)


def test_parts_share_nothing_and_near_duplicates_are_dropped(split, labelled):
    parts = {name: set(texts) for name, texts in split.texts.items()}
    assert list(parts) == ["train", "validation", "test"]
    assert len(set.union(*parts.values())) == sum(map(len, parts.values()))
    assert split.class_names == sorted(TOPICS)
    held = round(0.2 * 150)
    assert 0 < split.counts["near_duplicates_dropped"] < held
    assert len(split.test_texts) + len(split.validation_texts) == held - split.counts["near_duplicates_dropped"]
    long_copied = {text for text in labelled["text"][:30] if len(text.split()) > 20}
    assert not long_copied & (parts["test"] | parts["validation"])


def test_a_third_of_what_is_held_out_is_for_validation_in_each_class():
    split = split_labelled(Dataset.from_list(make_corpus(300)))
    assert split.counts["near_duplicates_dropped"] == 0
    assert np.bincount(split.train_labels).tolist() == [80] * 3
    assert sorted(np.bincount(split.test_labels)) == [13, 13, 14]
    assert sorted(np.bincount(split.validation_labels)) == [6, 7, 7]


def test_labels_belong_to_their_texts(split, labelled):
    label_of = dict(zip(labelled["text"], labelled["label"]))
    for name, texts in split.texts.items():
        labels = getattr(split, f"{name}_labels")
        assert [split.class_names[label] for label in labels] == [label_of[text] for text in texts]


@pytest.mark.parametrize(("size", "warned"), [(150, True), (900, False)])
def test_few_test_documents_are_said(tmp_path, caplog, size, warned):
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, make_corpus(size))))
    split = load_probe(str(tmp_path / "all.jsonl"))
    assert (len(split.test_texts) < 100) == warned
    assert ("fewer than 100" in caplog.text) == warned


def test_small_classes_and_rows_without_a_label_do_no_harm(monkeypatch):
    monkeypatch.setattr(labelled_module, "MAX_TRAIN", 30)
    monkeypatch.setattr(labelled_module, "DRAWABLE", 5)
    rows = make_corpus(300)
    rows = [row | {"label": "rare" if index < 12 else row["label"]} for index, row in enumerate(rows)]
    rows += [{"text": None, "label": "kitchen"}, {"text": "A ship.", "label": None}]
    split = split_labelled(Dataset.from_list(rows))
    assert split.class_names == ["harbour", "kitchen", "orchard", "rare"]
    assert len(split.draws()) == labelled_module.NUM_DRAWS
    assert len(split.train_texts) < 45
    monkeypatch.setattr(labelled_module, "DRAWABLE", 20)
    more = split_labelled(Dataset.from_list(rows))  # of each class 20, or all that it has
    assert np.bincount(more.train_labels)[:3].tolist() == [20, 20, 20]


def test_a_probe_leaves_out_the_empty_labels_of_a_table(tmp_path, caplog):
    rows = make_corpus(90)
    lines = ["text,label", *(f"{row['text']},{row['label'] if number % 9 else ''}" for number, row in enumerate(rows))]
    (tmp_path / "documents.csv").write_text("\n".join(lines))
    assert len(load_probe(str(tmp_path / "documents.csv")).class_names) == 3
    assert "leaves out 10 documents without a text or a single label" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a b"}], "label"),
        ([{"text": "a b", "label": "x"}] * 30, "two or more classes"),
        ([{"text": f"a b {n}", "label": "x" if n else "y"} for n in range(30)], r"y \(1\)"),
    ],
)
def test_labelled_sets_that_cannot_be_probed_raise(rows, message):
    with pytest.raises(ValueError, match=message):
        split_labelled(Dataset.from_list(rows))


# --- Few-shot draws ---


def split_of(train_labels, class_names):
    """A split whose texts do not matter."""
    texts = [f"text {row}" for row in range(len(train_labels))]
    return LabelledSplit(texts, train_labels, [], train_labels[:0], class_names)


def test_draws_have_the_shots_of_each_class_and_are_fixed(split):
    draws = split.draws(shots=5, num_draws=10)
    for draw in draws:
        assert len(set(draw)) == 15
        assert np.bincount(split.train_labels[draw]).tolist() == [5, 5, 5]
    assert len({tuple(draw) for draw in draws}) == 10
    np.testing.assert_array_equal(draws, split.draws(shots=5, num_draws=10))


def test_draws_of_several_labels_have_the_shots_of_each_and_no_document_twice():
    labels = (np.random.default_rng(0).random((200, 4)) < [0.1, 0.2, 0.4, 0.6]).astype(np.int8)
    split = split_of(labels, list("abcd"))
    assert split.multi_label
    draws = split.draws(shots=5, num_draws=10, seed=1)
    for draw in draws:
        assert len(set(draw)) == len(draw) <= 20
        assert (labels[draw].sum(axis=0) >= 5).all()
    assert len({tuple(draw) for draw in draws}) == 10
    for draw, again in zip(draws, split.draws(shots=5, num_draws=10, seed=1)):
        np.testing.assert_array_equal(draw, again)


@pytest.mark.parametrize("multi_label", [False, True])
def test_a_class_with_fewer_documents_than_shots_is_named(multi_label):
    labels = np.repeat([0, 1, 2], [9, 3, 2])
    split = split_of(np.eye(3, dtype=np.int8)[labels] if multi_label else labels, ["many", "three", "two"])
    with pytest.raises(ValueError, match=r"three \(3\), two \(2\)\. Lower --shots"):
        split.draws(shots=4, num_draws=1)
    assert len(split.draws(shots=2, num_draws=3)) == 3


# --- Files ---


def test_files_arrive_as_they_are_and_in_their_order(files):
    split = load_labelled(LabelledArguments(**files))
    assert split.class_names == sorted(TOPICS)
    assert not split.multi_label
    assert set(split.counts.values()) == {0}
    for part in ("train", "validation", "test"):
        rows = rows_of(files[f"{part}_file"])
        assert getattr(split, f"{part}_texts") == [row["text"] for row in rows]
        labels = getattr(split, f"{part}_labels")
        assert labels.dtype == np.int64
        assert [split.class_names[label] for label in labels] == [row["label"] for row in rows]


def test_several_labels_become_multi_hot(tmp_path):
    rows = [{"text": "a", "label": ["y", "x"]}, {"text": "b", "label": []}, {"text": "c", "label": ["z"]}]
    split = load_labelled(
        LabelledArguments(
            train_file=write(tmp_path / "train.jsonl", rows),
            test_file=write(tmp_path / "test.jsonl", [{"text": "d", "label": ["z", "x"]}]),
        )
    )
    assert split.multi_label
    assert split.class_names == ["x", "y", "z"]
    assert split.train_labels.dtype == np.int8
    assert split.train_labels.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert split.test_labels.tolist() == [[1, 0, 1]]


def test_documents_without_text_are_dropped_and_counted(files, caplog):
    def spoil(rows):
        rows[0]["text"], rows[1]["text"], rows[2]["text"] = "", " \n ", None

    rewrite(files["train_file"], spoil)
    split = load_labelled(LabelledArguments(**files))
    assert split.counts["train_empty_dropped"] == 3
    assert "3 train empty dropped" in caplog.text
    kept = rows_of(files["train_file"])[3:]
    assert split.train_texts == [row["text"] for row in kept]
    assert [split.class_names[label] for label in split.train_labels] == [row["label"] for row in kept]


def test_what_is_no_text_is_dropped_and_counted(files, tmp_path):
    numbers = [{"text": number, "label": "kitchen"} for number in range(3)]
    with pytest.raises(ValueError, match=r"No document is left of the test file .*'test_not_a_string_dropped': 3"):
        load_labelled(LabelledArguments(**(files | {"test_file": write(tmp_path / "numbers.jsonl", numbers)})))


def test_duplicates_are_dropped_from_train_and_validation_never_from_test(files, caplog):
    test_texts = [row["text"] for row in rows_of(files["test_file"])]
    validation_texts = [row["text"] for row in rows_of(files["validation_file"])]
    train_row = rows_of(files["train_file"])[5]

    def add_to_train(rows):
        rows.append(
            {"text": "  " + test_texts[0].replace(" ", "\n"), "label": rows_of(files["test_file"])[0]["label"]}
        )
        rows.append({"text": test_texts[1], "label": "kitchen"})  # the second test document is about the harbour
        rows.append({"text": validation_texts[0], "label": "kitchen"})
        rows.append(train_row)  # a duplicate within train stays

    rewrite(files["validation_file"], lambda rows: rows.append({"text": test_texts[2], "label": "kitchen"}))
    assert rows_of(files["test_file"])[1]["label"] != "kitchen"
    rewrite(files["train_file"], add_to_train)
    split = load_labelled(LabelledArguments(**files))
    assert split.counts == {
        "train_not_a_string_dropped": 0,
        "train_empty_dropped": 0,
        "validation_not_a_string_dropped": 0,
        "validation_empty_dropped": 0,
        "test_not_a_string_dropped": 0,
        "test_empty_dropped": 0,
        "validation_duplicates_dropped": 1,
        "train_duplicates_dropped": 3,
        "test_duplicates_dropped": 0,
    }
    assert split.test_texts == test_texts
    assert split.validation_texts == validation_texts
    assert split.train_texts[-1] == train_row["text"]
    assert len(split.train_texts) == len(split.train_labels) == 121
    assert "3 train duplicates dropped" in caplog.text


def test_the_same_seed_gives_the_same_data_and_another_seed_does_not(tmp_path):
    train_file = write(tmp_path / "train.jsonl", make_corpus(200))
    prints = [load_labelled(LabelledArguments(train_file=train_file), seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 16


def test_the_fingerprint_sees_every_text_label_and_border(files):
    split = load_labelled(LabelledArguments(**files))
    seen = {split.fingerprint()}
    split.validation_labels[3] = (split.validation_labels[3] + 1) % 3
    seen.add(split.fingerprint())
    split.test_texts[-1] += "!"
    seen.add(split.fingerprint())
    split.train_texts[0], split.train_texts[1] = (
        split.train_texts[0] + split.train_texts[1][:1],
        split.train_texts[1][1:],
    )
    seen.add(split.fingerprint())
    split.class_names[0] = "other"
    seen.add(split.fingerprint())
    assert len(seen) == 5


def test_samples_keep_the_proportions_and_the_order(files):
    split = load_labelled(LabelledArguments(**files, max_train_samples=31, max_test_samples=12))
    assert len(split.train_texts) == 31
    assert np.bincount(split.train_labels).tolist() in ([10, 10, 11], [10, 11, 10], [11, 10, 10])
    assert np.bincount(split.test_labels).tolist() == [4, 4, 4]
    assert np.bincount(split.validation_labels).tolist() == [4, 4, 4]
    whole = load_labelled(LabelledArguments(**files)).train_texts
    positions = [whole.index(text) for text in split.train_texts]
    assert positions == sorted(positions)
    assert load_labelled(LabelledArguments(**files, max_train_samples=31)).train_texts == split.train_texts


def test_the_default_is_the_built_in_corpus_by_its_own_parts(monkeypatch):
    parts = ["train"] * 6 + ["test"] * 3 + ["validation"]
    rows = [row | {"part": parts[number // 3 % 10]} for number, row in enumerate(make_corpus(300))]
    monkeypatch.setattr(labelled_module, "load_corpus", {PYTHON_DOCS: Dataset.from_list(rows)}.__getitem__)
    split = load_labelled(LabelledArguments())
    for name, texts in split.texts.items():
        assert sorted(texts) == sorted(row["text"] for row in rows if row["part"] == name)
        labels = getattr(split, f"{name}_labels")
        assert Counter(zip(texts, (split.class_names[label] for label in labels))) == Counter(
            (row["text"], row["label"]) for row in rows if row["part"] == name
        )
    same = load_labelled(LabelledArguments(dataset_name=PYTHON_DOCS), seed=7)  # a seed varies draws, never the split
    assert same.fingerprint() == split.fingerprint()
    smaller = load_labelled(LabelledArguments(max_train_samples=30, max_test_samples=6))
    assert [len(texts) for texts in smaller.texts.values()] == [30, 6, 6]
    assert set(smaller.train_texts) < set(split.train_texts)
    assert (
        smaller.fingerprint()
        == load_labelled(LabelledArguments(max_train_samples=30, max_test_samples=6), seed=7).fingerprint()
    )
    with pytest.raises(ValueError, match=r"--test_file and --strip_newsgroup_headers cannot go with 'python_docs'"):
        load_labelled(LabelledArguments(test_file="test.jsonl", strip_newsgroup_headers=True))


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_label_that_training_does_not_have_is_named(files, part):
    rewrite(files[f"{part}_file"], lambda rows: [row.update(label="garden") for row in rows[:2]])
    with pytest.raises(
        ValueError, match=rf"the {part} file .* has labels that no training document has: garden \(2\)"
    ):
        load_labelled(LabelledArguments(**files))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([10, 9, 2], ["2", "9", "10"]),  # integers in their own order
        (["10", "9", "2"], ["2", "9", "10"]),
        (["10", "9", "2.0"], ["10", "2.0", "9"]),
        ([True, False, True], ["False", "True"]),
    ],
)
def test_labels_may_be_strings_integers_and_bools(tmp_path, values, names):
    rows = [{"text": f"text {row}", "label": values[row % 3]} for row in range(30)]
    split = load_labelled(
        LabelledArguments(
            train_file=write(tmp_path / "a.jsonl", rows), test_file=write(tmp_path / "b.jsonl", rows[:3])
        )
    )
    assert split.class_names == names
    assert [names[label] for label in split.test_labels] == [str(value) for value in values]


CODES = ["01", "007", "1.0", "NA", "None", "true", "1"]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz"])
def test_codes_of_a_table_are_texts_that_agree_with_those_of_other_formats(tmp_path, suffix):
    """pandas would take them for numbers, bools and nothing; an empty cell elsewhere changes none of them."""
    separator = "\t" if suffix == "tsv" else ","
    lines = [
        separator.join(row)
        for row in [("text", "label", "n"), *((f"{row} {c}", c, "") for row in "ab" for c in CODES)]
    ]
    content = "\n".join(lines).encode()
    path = tmp_path / f"train.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    test = write(tmp_path / "test.jsonl", [{"text": f"c {code}", "label": code} for code in CODES])
    split = load_labelled(LabelledArguments(train_file=str(path), test_file=test))
    assert split.class_names == sorted(CODES)
    assert [split.class_names[label] for label in split.train_labels] == CODES * 2
    assert [split.class_names[label] for label in split.test_labels] == CODES


@pytest.mark.parametrize("kind", [int, float, bool])
@pytest.mark.parametrize("in_train", [[[1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]], [[1, 0], [0, 1], [1, 1]]])
def test_vectors_of_zeros_and_ones_are_no_sets(tmp_path, kind, in_train):
    """All parts decide together: the test part alone, [1, 0] and [0, 1], might be sets."""
    in_test = [[1, 0], [0, 1]] if len(in_train[0]) == 2 else [[0, 1, 1]]
    files = {
        f"{part}_file": write(
            tmp_path / f"{part}.jsonl",
            [{"text": f"{part} {row}", "label": list(map(kind, vector))} for row, vector in enumerate(vectors)],
        )
        for part, vectors in (("train", in_train), ("test", in_test))
    }
    split = load_labelled(LabelledArguments(**files))
    assert split.class_names == ["0", "1", "2"][: len(in_train[0])]
    assert (split.train_labels.tolist(), split.test_labels.tolist()) == (in_train, in_test)


def test_vectors_have_the_class_names_of_the_data_set(tmp_path):
    features = Features({"text": Value("string"), "label": List(ClassLabel(names=["zebra", "ant"]))})
    rows = Dataset.from_dict({"text": ["a", "b", "c"], "label": [[1, 0], [0, 1], [0, 0]]}, features=features)
    rows.to_parquet(tmp_path / "rows.parquet")
    test = write(tmp_path / "test.jsonl", [{"text": "d", "label": [0, 1]}])
    split = load_labelled(LabelledArguments(train_file=str(tmp_path / "rows.parquet"), test_file=test))
    assert split.class_names == ["ant", "zebra"]
    assert split.train_labels.tolist() == [[0, 1], [1, 0], [0, 0]]
    assert split.test_labels.tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([["x", "y"], ["x", "x"]], r"row 1 .* is \['x', 'x'\]: .* each label once"),
        ([[1, 0, 0], [0, 1, 2]], r"row 0 .* is \[1, 0, 0\]: .* each label once"),  # no vectors, as of the 2
        ([[1, 0, 0], []], r"row 0 .* is \[1, 0, 0\]: .* each label once"),
        ([[1, 0], [0, 1]], r"Every document of the train file .* has every class, 0, 1: .* vectors"),
        ([["x", "y"], ["y", "x"]], "has every class, x, y: .* vectors"),
    ],
)
def test_sets_that_say_nothing_or_repeat_a_label_are_refused(tmp_path, labels, message):
    rows = [{"text": f"text {row}", "label": row_labels} for row, row_labels in enumerate(labels)]
    test = write(tmp_path / "test.jsonl", [{"text": "t", "label": labels[0][:1]}])
    if labels == [[1, 0], [0, 1]]:
        test = write(tmp_path / "test.jsonl", [{"text": "t", "label": [1, 0]}])
    with pytest.raises(ValueError, match=message):
        load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", rows), test_file=test))


def test_class_names_of_the_data_set_are_used(tmp_path):
    def save(name, texts, labels, feature):
        path = tmp_path / f"{name}.parquet"
        features = Features({"text": Value("string"), "label": feature})
        Dataset.from_dict({"text": texts, "label": labels}, features=features).to_parquet(path)
        return str(path)

    feature = ClassLabel(names=["zebra", "ant"])
    files = {f"{part}_file": save(part, [f"{part} a", f"{part} b"], [0, 1], feature) for part in ("train", "test")}
    split = load_labelled(LabelledArguments(**files))
    assert split.class_names == ["ant", "zebra"]
    assert split.test_labels.tolist() == [1, 0]

    several = List(feature)
    files = {
        f"{part}_file": save(part, [f"{part} a", f"{part} b"], [[0, 1], []], several) for part in ("train", "test")
    }
    split = load_labelled(LabelledArguments(**files))
    assert split.class_names == ["ant", "zebra"]
    assert split.test_labels.tolist() == [[1, 1], [0, 0]]

    files["test_file"] = save("unlabelled", ["x"], [-1], feature)  # how Hub data sets hide the labels of a test part
    files["train_file"] = save("train", ["a", "b"], [0, 1], feature)
    with pytest.raises(ValueError, match=r"row 0 .* of the test file .* is -1"):
        load_labelled(LabelledArguments(**files))


def test_columns_are_joined_and_paragraphs_too(tmp_path):
    rows = [
        {"title": "One", "body": "first", "label": "a"},
        {"title": None, "body": "second", "label": "b"},
        {"title": " ", "body": "third", "label": "b"},
    ]
    train_file = write(tmp_path / "train.jsonl", rows)
    split = load_labelled(
        LabelledArguments(
            train_file=train_file,
            test_file=write(tmp_path / "t.jsonl", [{"title": "Four", "body": "x", "label": "a"}]),
            text_column=["title", "body"],
        )
    )
    assert split.train_texts == ["One\n\nfirst", "second", "third"]
    assert split.test_texts == ["Four\n\nx"]
    paragraphs = [{"text": ["One.", "Two."], "label": "a"}, {"text": ["Three."], "label": "b"}]
    train_file = write(tmp_path / "paragraphs.jsonl", paragraphs)
    split = load_labelled(
        LabelledArguments(
            train_file=train_file, test_file=write(tmp_path / "u.jsonl", [{"text": ["Four."], "label": "a"}])
        )
    )
    assert split.train_texts == ["One.\nTwo.", "Three."]


def test_sections_make_a_text(tmp_path):
    rows = [{"sections": [{"heading": "H", "text": f"t{row}"}], "label": "ab"[row % 2]} for row in range(20)]
    split = load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", rows)))
    assert sorted(split.train_texts + split.validation_texts + split.test_texts) == sorted(
        f"H\n\nt{row}" for row in range(20)
    )


@pytest.mark.parametrize("missing", [",", ""])
def test_an_empty_label_of_a_table_is_named_with_its_own_row(tmp_path, missing):
    path = tmp_path / "train.csv"
    rows = (f"a document{missing if row == 7 else f',{row % 2}'}\n" for row in range(9))
    path.write_text("text,label\n" + "".join(rows))
    with pytest.raises(ValueError, match=r"row 7 .* is .*: labels should be strings"):
        load_labelled(LabelledArguments(train_file=str(path)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": 0.5}, {"text": "b", "label": 1.5}], "row 0 .* is 0.5"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": None}], "row 1 .* is None: labels should be strings"),
        (
            [{"text": "a", "label": ["x"]}, {"text": "b", "label": None}],
            "row 1 .* is None: give every row of all parts a list",
        ),
        ([{"text": "a", "label": ["x", None]}, {"text": "b", "label": ["y"]}], r"row 0 .* is \['x', None\]"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], r"has the classes \['x'\]: two or more"),
        ([{"text": "a", "label": []}, {"text": "b", "label": ["x"]}], r"has the classes \['x'\]: two or more"),
        (
            [{"text": "a", "class": "x"}],
            r"--label_column is 'label', but the train file .* has the columns \['text', 'class'",
        ),
        (
            [{"body": "a", "label": "x"}, {"body": "b", "label": "y"}],
            r"--text_column names text, but the train file .*'body'",
        ),
        ([{"text": "a", "label": "x"}, {"text": " ", "label": "y"}], "two or more"),
    ],
)
def test_bad_train_files_are_named(tmp_path, rows, message):
    test_rows = [{"text": "t", "body": "t", "label": row["label"]} for row in rows[:1] if "label" in row]
    train_file = write(tmp_path / "train.jsonl", rows)
    files = {"train_file": train_file, "test_file": write(tmp_path / "test.jsonl", test_rows or rows)}
    with pytest.raises(ValueError, match=message):
        load_labelled(LabelledArguments(**files))


def test_parts_with_one_and_with_several_labels_do_not_mix(files):
    rewrite(files["test_file"], lambda rows: [row.update(label=[row["label"]]) for row in rows])
    with pytest.raises(ValueError, match=r"row 0 .* of the test file .*: give every row of all parts a list"):
        load_labelled(LabelledArguments(**files))


def test_missing_files_are_named_beside_those_that_exist(files, tmp_path):
    with pytest.raises(
        ValueError, match=r"no --test_file .*tests.jsonl.* there is test.jsonl, train.jsonl, validation"
    ):
        load_labelled(LabelledArguments(**(files | {"test_file": str(tmp_path / "tests.jsonl")})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_name": "a/b", "train_file": "TRAIN"}, "--dataset_name cannot go with --train_file"),
        ({"dataset_name": "a/b", "test_file": "TRAIN"}, "--test_file cannot go with --dataset_name a/b"),
        ({"dataset_name": "TRAIN"}, "is a file or folder here"),
        ({"test_file": "TRAIN"}, "--test_file cannot go with 'python_docs'"),
    ],
)
def test_sources_that_contradict_each_other_are_named(files, options, message):
    options = {name: files["train_file"] if value == "TRAIN" else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        load_labelled(LabelledArguments(**options))


# --- Parts that are held out ---


def test_without_a_test_part_one_is_held_out_with_each_class_in_its_proportion(tmp_path):
    rows = make_corpus(400)
    for row in rows[:100]:
        row["label"] = "rare" if row["label"] == "kitchen" else row["label"]
    train_file = write(tmp_path / "train.jsonl", rows)
    split = load_labelled(LabelledArguments(train_file=train_file), seed=3)
    sizes = {"train": 320, "validation": 40, "test": 40}
    of_all = Counter(row["label"] for row in rows)
    for part, size in sizes.items():
        assert len(getattr(split, f"{part}_texts")) == size
        for label, count in enumerate(np.bincount(getattr(split, f"{part}_labels"), minlength=4)):
            assert abs(count - of_all[split.class_names[label]] * size / 400) <= 1
    assert sorted(split.train_texts + split.validation_texts + split.test_texts) == sorted(row["text"] for row in rows)
    order = {row["text"]: position for position, row in enumerate(rows)}
    positions = [order[text] for text in split.train_texts]
    assert positions == sorted(positions)

    label_of = {row["text"]: row["label"] for row in rows}
    assert [split.class_names[label] for label in split.test_labels] == [label_of[text] for text in split.test_texts]


def test_with_a_validation_part_all_that_is_held_out_is_for_testing(files):
    del files["test_file"]
    split = load_labelled(LabelledArguments(**files))
    assert [len(part) for part in (split.train_texts, split.validation_texts, split.test_texts)] == [96, 30, 24]
    assert np.bincount(split.test_labels).tolist() == [8, 8, 8]


def test_with_a_test_part_no_validation_part_is_made(files):
    del files["validation_file"]
    split = load_labelled(LabelledArguments(**files))
    assert split.validation_texts is None
    assert split.validation_labels is None
    assert len(split.train_texts) == 120


def test_several_labels_are_split_at_random_and_it_is_said(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [{"text": f"text {row}", "label": ["x", "y"][: row % 3]} for row in range(100)]
    split = load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", rows)))
    assert [len(part) for part in (split.train_texts, split.validation_texts, split.test_texts)] == [80, 10, 10]
    assert "at random" in caplog.text
    expected = {row["text"]: [int("x" in row["label"]), int("y" in row["label"])] for row in rows}
    assert split.test_labels.tolist() == [expected[text] for text in split.test_texts]


def test_a_label_that_one_document_has_stays_in_training(tmp_path):
    rows = [{"text": f"text {row}", "label": ["x", f"rare {row}"] if row < 30 else ["x", "y"]} for row in range(100)]
    for seed in range(3):
        split = load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", rows)), seed=seed)
        assert split.train_labels.any(axis=0).all()
        sizes = [len(part) for part in (split.train_texts, split.validation_texts, split.test_texts)]
        assert sum(sizes) == 100
        assert sizes[0] > 80
        assert abs(sizes[1] - sizes[2]) <= 1
    alone = [row | {"label": [f"rare {number}"]} for number, row in enumerate(rows)]
    with pytest.raises(ValueError, match=r"too many alone have one of their labels: name a --test_file"):
        load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", alone)))


def test_stratified_samples_are_fair():
    strata = np.repeat([0, 1, 2, 3], [50, 30, 3, 1])
    chosen = np.zeros(84)
    for seed in range(2000):
        rows = stratified_sample(strata, 21, seed)
        assert len(set(rows)) == 21
        counts = np.bincount(strata[rows], minlength=4)
        assert (np.abs(counts - np.array([50, 30, 3, 1]) / 4) < 1).all()
        chosen[rows] += 1
    # Each row has the chance 1/4; a binomial standard deviation is 0.0097.
    np.testing.assert_allclose(chosen / 2000, 0.25, atol=0.05)
    np.testing.assert_array_equal(stratified_sample(strata, 100, 0), np.arange(84))


def test_classes_of_one_document_cannot_be_held_out_and_are_named(tmp_path):
    rows = [*make_corpus(60), {"text": "alone", "label": "single"}]
    with pytest.raises(ValueError, match=r"single document of each of these classes.*: single\. Drop"):
        load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", rows)))
    with pytest.raises(ValueError, match=r"3 documents in the train file .* are too few to hold out"):
        load_labelled(
            LabelledArguments(train_file=write(tmp_path / "few.jsonl", [row | {"label": "x"} for row in rows[:3]]))
        )


# --- Newsgroups ---


POSTING = """From: somebody@example.org (Some Body)
Subject: Re: Telescopes
Lines: 12

In article <1@example.org> other@example.org writes:
>Is a refractor better?
| Or a reflector?

It depends on what you look at.
Planets want contrast.

For galaxies take the larger mirror.
--
Some Body, Department of Things
"""


def test_postings_lose_what_gives_their_group_away():
    """As scikit-learn's `fetch_20newsgroups(remove=("headers", "footers", "quotes"))`."""
    body = "It depends on what you look at.\nPlanets want contrast.\n\nFor galaxies take the larger mirror."
    assert strip_newsgroup_headers(POSTING).strip() == body
    assert strip_newsgroup_headers("Subject: x\n\nOnly one line") == "Only one line"


def test_postings_that_become_empty_are_dropped_and_counted(tmp_path):
    rows = [{"text": f"Subject: {row}\n\nBody {row}", "label": "ab"[row % 2]} for row in range(10)]
    rows += [{"text": "Subject: nothing else", "label": "a"}, {"text": "Subject: x\n\n> quoted", "label": "b"}]
    files = {
        "train_file": write(tmp_path / "train.jsonl", rows),
        "test_file": write(tmp_path / "test.jsonl", [{"text": "Subject: t\n\nTest", "label": "a"}]),
    }
    split = load_labelled(LabelledArguments(**files, strip_newsgroup_headers=True))
    assert split.train_texts == [f"Body {row}" for row in range(10)]
    assert split.counts["train_empty_dropped"] == 2
    assert split.test_texts == ["Test"]
    assert load_labelled(LabelledArguments(**files)).test_texts == ["Subject: t\n\nTest"]


# --- The Hub ---


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the Hub with one data set of 60, 15 and 15 documents; returns the splits that were loaded."""
    rows = make_corpus(90)
    parts = {"train": rows[:60], "validation": rows[60:75], "test": rows[75:]}
    loaded = []

    def load_dataset(name, configuration=None, *, split):
        assert (name, configuration) == ("somebody/documents", "long")
        loaded.append(split)
        if split not in parts:
            raise ValueError(f'Unknown split "{split}". Should be one of {list(parts)}.')
        return Dataset.from_list(parts[split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name, configuration: list(parts))
    return loaded


def test_the_usual_splits_of_a_hub_data_set_are_used(hub):
    split = load_labelled(LabelledArguments(dataset_name="somebody/documents:long"))
    assert hub == ["train", "validation", "test"]
    assert [len(part) for part in (split.train_texts, split.validation_texts, split.test_texts)] == [60, 15, 15]
    # A test split without labels, as some have: the validation split serves for testing, and for that alone.
    other = load_labelled(LabelledArguments(dataset_name="somebody/documents:long", test_split="validation"))
    assert other.test_texts == split.validation_texts
    assert other.validation_texts is None


def test_a_missing_split_is_named_beside_those_that_exist(hub, monkeypatch):
    options = {"dataset_name": "somebody/documents:long", "test_split": "dev"}
    with pytest.raises(ValueError, match="no split dev; it has train, validation, test"):
        load_labelled(LabelledArguments(**options))

    def offline(name, configuration):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "get_dataset_split_names", offline)
    with pytest.raises(ValueError, match=r'Unknown split "dev". Should be one of .*train'):
        load_labelled(LabelledArguments(**options))


# --- Real documents ---


def test_20_newsgroups(real_data):
    files = {f"{part}_file": str(real_data / "20newsgroups" / f"{part}.parquet") for part in ("train", "test")}
    split = load_labelled(LabelledArguments(**files))
    assert len(split.class_names) == 20
    assert len(split.test_texts) == 7532
    assert len(split.train_texts) + split.counts["train_duplicates_dropped"] == 11314
    stripped = load_labelled(LabelledArguments(**files, strip_newsgroup_headers=True))
    assert not any("\nSubject: " in text[:200] and text.startswith("From: ") for text in stripped.test_texts[:500])
    assert stripped.counts["test_empty_dropped"] > 0


def test_ecthr(real_data):
    files = {f"{part}_file": str(real_data / "ecthr" / f"{part}.parquet") for part in ("train", "validation", "test")}
    split = load_labelled(LabelledArguments(**files, label_column="labels"))
    assert split.multi_label
    assert split.train_labels.shape == (len(split.train_texts), len(split.class_names))
    assert split.train_labels.sum() > 0
