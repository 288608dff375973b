"""Files and Hub splits of labelled documents: labels, texts, parts that are held out, and what is refused."""

import gzip
from collections import Counter

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from sklearn.datasets import fetch_20newsgroups, load_files

from docsplit.data.sets import labelled_files
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import load_labelled
from docsplit.data.sets.labelled_files import stratified_sample, strip_newsgroup_headers
from tests.conftest import make_corpus
from tests.data.sets.tables import rewrite, write

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


def test_numbers_are_the_same_classes_in_each_format(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nNA,10\n1984,9\na,2\n")
    rows = [{"text": "x", "label": 10}, {"text": "y", "label": 2}]
    test, validation = write(tmp_path / "a.jsonl", rows), tmp_path / "b.parquet"
    Dataset.from_list(
        [{"text": f"{row['text']} of validation", "label": str(row["label"])} for row in rows]
    ).to_parquet(validation)
    split = load_labelled(
        LabelledArguments(train_file=str(tmp_path / "train.csv"), test_file=test, validation_file=str(validation))
    )
    assert split.train_texts == ["NA", "1984", "a"]
    assert split.class_names == ["2", "9", "10"]
    assert [labels.tolist() for labels in split.labels.values()] == [[2, 1, 0], [2, 0], [2, 0]]


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
        ([["x", "y"], ["x", "x"]], r"row 1 .* is \['x', 'x'\]: .* twice"),
        ([[1, 0, 0], [0, 1, 2]], r"row 0 .* is \[1, 0, 0\]: .* twice"),  # no vectors, as of the 2
        ([[1, 0, 0], []], r"row 0 .* is \[1, 0, 0\]: .* twice"),
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


def test_a_column_without_text_is_not_hidden_by_sections(tmp_path):
    rows = [{"sections": [{"heading": "H", "text": f"t{row}"}], "label": "ab"[row % 2]} for row in range(20)]
    with pytest.raises(ValueError, match="--text_column names titel"):
        load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", rows), text_column=["titel"]))


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
    with pytest.raises(ValueError, match=r"alone have one of their labels .* --test_file"):
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


def test_postings_are_stripped_as_scikit_learn_does(tmp_path, monkeypatch):
    postings = [
        POSTING,
        POSTING.replace("--\n", "\n"),
        "Subject: x\n\nOnly one line",
        "no blank line",
        "A: b\n\n> q\n",
    ]
    for group, group_postings in {"sci.space": postings[:3], "rec.autos": postings[3:]}.items():
        for part in ("train", "test"):
            folder = tmp_path / "source" / f"20news-bydate-{part}" / group
            folder.mkdir(parents=True)
            for number, posting in enumerate(group_postings):
                (folder / str(number)).write_bytes(posting.encode())
    loader = "sklearn.datasets._twenty_newsgroups"

    def from_here(target_dir, cache_path, n_retries, delay):
        return {
            part: load_files(str(tmp_path / "source" / f"20news-bydate-{part}"), encoding="latin1")
            for part in ("train", "test")
        }

    monkeypatch.setattr(f"{loader}._download_20newsgroups", from_here)
    options = {"data_home": str(tmp_path / "home"), "subset": "train", "shuffle": False}
    raw = fetch_20newsgroups(**options).data
    stripped = fetch_20newsgroups(**options, remove=("headers", "footers", "quotes")).data
    assert sorted(raw) == sorted(postings)
    assert [strip_newsgroup_headers(text) for text in raw] == stripped
    body = strip_newsgroup_headers(POSTING)
    assert "Planets" in body
    assert not any(word in body for word in ("Subject", "refractor", "reflector", "Department"))


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


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, r"'label' of row 4 \(from 0\) of the train file .* is empty"),
        (float("nan"), "row 4 .* is empty"),
        ("", r"row 4 .* is empty"),
        (2.5, "row 4 .* is 2.5"),
    ],
)
def test_labels_of_other_kinds_are_named_with_their_row(files, monkeypatch, label, message):
    rows = make_corpus(30)
    values = [row["label"] for row in rows]
    values[4] = label
    # Arrow would refuse such a column or make strings of it, so it is handed over as a library would see it.
    dataset = Dataset.from_list([{"text": row["text"]} for row in rows])
    monkeypatch.setattr(labelled_files, "load_corpus", lambda file, split, encoding: FakeDataset(dataset, values))
    with pytest.raises(ValueError, match=message):
        load_labelled(LabelledArguments(train_file=files["train_file"]))


@pytest.mark.parametrize("missing", [",", ""])
def test_an_empty_label_of_a_table_is_named_with_its_own_row(tmp_path, missing):
    path = tmp_path / "train.csv"
    rows = (f"a document{missing if row == 7 else f',{row % 2}'}\n" for row in range(9))
    path.write_text("text,label\n" + "".join(rows))
    with pytest.raises(ValueError, match=r"row 7 .* is empty"):
        load_labelled(LabelledArguments(train_file=str(path)))


class FakeDataset:
    """A data set whose label column holds any Python values."""

    def __init__(self, dataset, values):
        self.column_names = ["text", "label"]
        self.features = dataset.features | {"label": Value("string")}
        self.columns = {"text": dataset["text"], "label": values}

    def __getitem__(self, column):
        return self.columns[column]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": 0.5}, {"text": "b", "label": 1.5}], "row 0 .* is 0.5"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": None}], "row 1 .* is empty"),
        (
            [{"text": "a", "label": ["x"]}, {"text": "b", "label": None}],
            "row 1 .* is None, while other rows have a list",
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
    with pytest.raises(ValueError, match=r"labels of the test file .* differ: make them lists in both"):
        load_labelled(LabelledArguments(**files))


def test_classes_of_one_document_cannot_be_held_out_and_are_named(tmp_path):
    rows = [*make_corpus(60), {"text": "alone", "label": "single"}]
    with pytest.raises(ValueError, match=r"single document of each of these classes.*: single\. Drop"):
        load_labelled(LabelledArguments(train_file=write(tmp_path / "train.jsonl", rows)))
    with pytest.raises(ValueError, match=r"3 documents in the train file .* are too few to hold out"):
        load_labelled(LabelledArguments(train_file=write(tmp_path / "few.jsonl", rows[:3])))


def test_missing_files_are_named_beside_those_that_exist(files, tmp_path):
    with pytest.raises(
        ValueError, match=r"no --test_file .*tests.jsonl.* there is test.jsonl, train.jsonl, validation"
    ):
        load_labelled(LabelledArguments(**(files | {"test_file": str(tmp_path / "tests.jsonl")})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_name": "a/b", "train_file": "TRAIN"}, "Both --dataset_name a/b and --train_file"),
        ({"dataset_name": "a/b", "test_file": "TRAIN"}, "go with a --train_file"),
        ({"dataset_name": "TRAIN"}, "is a file or folder here"),
        ({"test_file": "TRAIN"}, "--test_file cannot go with 'python_docs'"),
    ],
)
def test_sources_that_contradict_each_other_are_named(files, options, message):
    options = {name: files["train_file"] if value == "TRAIN" else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        load_labelled(LabelledArguments(**options))
