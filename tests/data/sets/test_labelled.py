"""Labelled documents: who is trained and tested on what."""

import json
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset

from docsplit.data.corpora import PYTHON_DOCS
from docsplit.data.preparation import document_id, tokenize, without_documents
from docsplit.data.sets import labelled as labelled_module
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import LabelledSplit, load_labelled, load_probe, split_labelled
from docsplit.training.documents import measured_on
from tests.conftest import TOPICS, make_corpus
from tests.data.sets.tables import rewrite, rows_of, write

# --- One corpus, split here ----------------------------------------------------------------------------------------


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


def test_draws_have_the_shots_of_each_class_and_are_fixed(split):
    draws = split.draws(shots=5, num_draws=10)
    for draw in draws:
        assert len(set(draw)) == 15
        assert np.bincount(split.train_labels[draw]).tolist() == [5, 5, 5]
    assert len({tuple(draw) for draw in draws}) == 10
    np.testing.assert_array_equal(draws, split.draws(shots=5, num_draws=10))


def test_what_is_measured_on_is_kept_out_of_pretraining(split, labelled, wordpiece):
    dataset, _ = tokenize(labelled, wordpiece)
    ids = {document_id(text) for text in [*split.test_texts, *split.validation_texts]}
    assert measured_on(split) == ids
    rest, num_left_out = without_documents(dataset, measured_on(split))
    assert not ids & set(rest["document_id"])
    assert num_left_out == len(dataset) - len(rest) >= len(split.test_texts) + len(split.validation_texts)


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


# --- Few-shot draws ------------------------------------------------------------------------------------------------


def split_of(train_labels, class_names):
    """A split whose texts do not matter."""
    texts = [f"text {row}" for row in range(len(train_labels))]
    return LabelledSplit(texts, train_labels, [], train_labels[:0], class_names)


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


# --- Loading -------------------------------------------------------------------------------------------------------


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


def test_a_probe_leaves_out_the_empty_labels_of_a_table(tmp_path, caplog):
    rows = make_corpus(90)
    lines = ["text,label", *(f"{row['text']},{row['label'] if number % 9 else ''}" for number, row in enumerate(rows))]
    (tmp_path / "documents.csv").write_text("\n".join(lines))
    assert len(load_probe(str(tmp_path / "documents.csv")).class_names) == 3
    assert "leaves out 10 documents without a text or a single label" in caplog.text


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
        "test_duplicates_with_another_label": 1,
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


# --- The default -----------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"--test_file, --strip_newsgroup_headers cannot go with 'python_docs'"):
        load_labelled(LabelledArguments(test_file="test.jsonl", strip_newsgroup_headers=True))


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_label_that_training_does_not_have_is_named(files, part):
    rewrite(files[f"{part}_file"], lambda rows: [row.update(label="garden") for row in rows[:2]])
    with pytest.raises(
        ValueError, match=rf"the {part} file .* has labels that no training document has: garden \(2\)"
    ):
        load_labelled(LabelledArguments(**files))


# --- Real documents ------------------------------------------------------------------------------------------------


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
