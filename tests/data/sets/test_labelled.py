"""Labelled documents: who is trained and tested on what."""

import json
from collections import Counter

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from sklearn.model_selection import StratifiedKFold

from docsplit.data.copies import near_copy_groups
from docsplit.data.corpora import PYTHON_DOCS
from docsplit.data.sets import labelled as labelled_module
from docsplit.data.sets.labelled import LabelledSplit, folds_of, load_labelled, split_labelled, stratified_sample
from docsplit.data.sets.set_arguments import LabelledArguments
from tests.conftest import TOPICS, make_corpus


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(folder, seed=0, options=None, **parts):
    """Write the rows of each part into a file, and load them."""
    files = {f"{part}_file": write(folder / f"{part}.jsonl", rows) for part, rows in parts.items()}
    return load_labelled(LabelledArguments(**files, **(options or {})), seed)


def rows_of(labels, name="text"):
    return [{"text": f"{name} {row}", "label": label} for row, label in enumerate(labels)]


def names_of(split, part):
    return [split.class_names[label] for label in split.labels[part]]


def sizes_of(split):
    return [len(texts) for texts in split.texts.values()]


@pytest.fixture
def parts():
    """A train, a validation and a test part of 120, 30 and 30 documents."""
    rows = make_corpus(180)
    return {"train": rows[:120], "validation": rows[120:150], "test": rows[150:]}


# --- One corpus, divided for a probe ---


def test_parts_share_nothing_and_near_duplicates_are_dropped(monkeypatch):
    """The documents 0 to 29 are there once more, nearly, with a label of their own that is too rare to be a class."""
    monkeypatch.setattr(labelled_module, "MAX_CLASSES", len(TOPICS))
    rows = make_corpus(150)
    rows += [{"text": row["text"] + " Storm.", "label": f"rare {index}"} for index, row in enumerate(rows[:30])]
    split = split_labelled(Dataset.from_list(rows))
    parts = {name: set(texts) for name, texts in split.texts.items()}
    assert list(parts) == ["train", "validation", "test"]
    assert len(set.union(*parts.values())) == sum(map(len, parts.values()))
    assert split.class_names == sorted(TOPICS)
    dropped = split.counts["near_duplicates_dropped"]
    assert 0 < dropped == 30 - len(split.test_texts) - len(split.validation_texts)
    long_copied = {row["text"] for row in rows[:30] if len(row["text"].split()) > 20}
    assert not long_copied & (parts["test"] | parts["validation"])
    label_of = {row["text"]: row["label"] for row in rows}
    for name, texts in split.texts.items():
        assert names_of(split, name) == [label_of[text] for text in texts]


def test_a_third_of_what_is_held_out_is_for_validation_in_each_class():
    split = split_labelled(Dataset.from_list(make_corpus(300)))
    assert np.bincount(split.train_labels).tolist() == [80] * 3
    assert sorted(np.bincount(split.test_labels)) == [13, 13, 14]
    assert sorted(np.bincount(split.validation_labels)) == [6, 7, 7]
    assert list(labelled_module.probe_counts(split).values()) == [3, 240, 20, 40, 0]


def test_most_copies_of_a_text_decide_its_label(tmp_path, parts, caplog):
    """In a part of its own, and among what one file is divided into; in a probe too."""
    train, test = parts["train"], [*parts["test"]]
    first, second, third = (row["text"] for row in test[:3])
    of = {row["text"]: row["label"] for row in test}
    others = {text: next(topic for topic in TOPICS if topic != of[text]) for text in (first, second, third)}
    test += [{"text": first, "label": of[first]}, {"text": f" {first} ", "label": others[first]}]  # 2 to 1
    test += [{"text": second, "label": others[second]}]  # a tie
    test += [{"text": third, "label": others[third]}] * 2  # 1 to 2
    split = load(tmp_path, train=[*train, {"text": second, "label": of[second]}], test=test)
    labels = {text: [] for text in (first, second, third)}
    for text, label in zip(split.test_texts, names_of(split, "test")):
        labels.get(text, []).append(label)
    assert labels == {first: [of[first]] * 2, second: [], third: [others[third]] * 2}
    assert split.counts["test_other_labels_dropped"] == 4
    assert "3 texts had several labels: 2 took the majority's, 1 left out as ties." in caplog.text
    assert second in split.train_texts  # it is not measured on
    copies = [{"text": row["text"], "label": label} for row in train for label in (*TOPICS, row["label"])]
    divided = load(tmp_path, train=copies)
    of_train = {row["text"]: row["label"] for row in train}
    for part, texts in divided.texts.items():
        assert names_of(divided, part) == [of_train[text] for text in texts]
    rows = make_corpus(150)
    tie = next(topic for topic in TOPICS if topic != rows[0]["label"])
    probe = split_labelled(Dataset.from_list([*rows, rows[0] | {"label": tie}, rows[1] | {"label": "rare"}, rows[1]]))
    label_of = {row["text"]: row["label"] for row in rows[1:]}
    for part, texts in probe.texts.items():
        assert names_of(probe, part) == [label_of[text] for text in texts]


def test_near_copies_are_in_one_part_and_one_fold(tmp_path, caplog):
    """Of a file without a test part, and of folds; without copies both are as scikit-learn's."""
    rows = make_corpus(60)
    rows = [row | {"text": f"{row['text']} {row['text'][::-1]} Note {number}"} for number in range(4) for row in rows]
    groups = near_copy_groups([row["text"] for row in rows])
    assert len(set(groups)) < 61
    group_of = {row["text"]: group for row, group in zip(rows, groups)}
    with caplog.at_level("INFO"):
        split = load(tmp_path, train=rows)
    parts = [{group_of[text] for text in texts} for texts in split.texts.values()]
    assert len(parts) == 3
    assert len(set.union(*parts)) == sum(map(len, parts)) == len(set(groups))
    assert f"{len(rows) - len(set(groups))} near copies of others are in the part of these" in caplog.text
    targets = np.unique([row["label"] for row in rows], return_inverse=True)[1]
    folds = list(folds_of(targets, groups, 5, seed=0))
    assert sorted(np.concatenate([held for _, held in folds])) == list(range(len(rows)))
    for train, held in folds:
        assert not set(groups[train]) & set(groups[held])
        assert len(train) + len(held) == len(rows)
    plain = StratifiedKFold(5, shuffle=True, random_state=0).split(targets, targets)
    for ours, expected in zip(folds_of(targets, np.arange(len(rows))[::-1], 5, seed=0), plain):
        np.testing.assert_array_equal(ours[1], expected[1])
    assert list(folds_of(targets, np.zeros(len(rows)), 5, seed=0)) == []


def test_small_classes_and_rows_without_a_label_do_no_harm(monkeypatch, caplog):
    rows = [row | ({"label": "rare"} if index < 12 else {}) for index, row in enumerate(make_corpus(300))]
    rows += [{"text": None, "label": "kitchen"}, {"text": "A ship.", "label": None}, {"text": "A ship.", "label": ""}]
    monkeypatch.setattr(labelled_module, "MAX_TRAIN", 30)
    for drawable, counts in ((5, [10, 9, 10, 9]), (20, [20, 20, 20, 9])):  # of each class so many, or all that it has
        monkeypatch.setattr(labelled_module, "DRAWABLE", drawable)
        split = split_labelled(Dataset.from_list(rows))
        assert split.class_names == ["harbour", "kitchen", "orchard", "rare"]
        assert (np.abs(np.bincount(split.train_labels) - counts) <= (1 if drawable == 20 else 4)).all()
    assert "leaves out 3 documents without a text or a label" in caplog.text


# --- Few-shot draws ---


def split_of(train_labels, class_names):
    """A split whose texts do not matter."""
    texts = [f"text {row}" for row in range(len(train_labels))]
    return LabelledSplit(texts, train_labels, [], train_labels[:0], class_names)


@pytest.mark.parametrize("multi_label", [False, True])
def test_draws_have_the_shots_of_each_class_and_are_fixed(multi_label):
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=200)
    if multi_label:
        labels = (generator.random((200, 4)) < [0.1, 0.2, 0.4, 0.6]).astype(np.int8)
    split = split_of(labels, list("abcd"))
    assert split.multi_label == multi_label
    draws = split.draws(shots=5, num_draws=10, seed=1)
    for draw, again in zip(draws, split.draws(shots=5, num_draws=10, seed=1), strict=True):
        np.testing.assert_array_equal(draw, again)
        assert len(set(draw)) == len(draw) <= 20
        counts = labels[draw].sum(axis=0) if multi_label else np.bincount(labels[draw])
        assert (counts >= 5).all() if multi_label else counts.tolist() == [5] * 4
    assert len({tuple(draw) for draw in draws}) == 10


def test_a_class_with_fewer_documents_than_shots_is_named():
    split = split_of(np.repeat([0, 1, 2], [9, 3, 2]), ["many", "three", "two"])
    with pytest.raises(ValueError, match=r"three \(3\), two \(2\)\. Lower --shots"):
        split.draws(shots=4, num_draws=1)
    assert len(split.draws(shots=2, num_draws=3)) == 3


# --- Files ---


def test_files_arrive_as_they_are_and_in_their_order(tmp_path, parts):
    split = load(tmp_path, **parts)
    assert (split.class_names, split.multi_label, {*split.counts.values()}) == (sorted(TOPICS), False, {0})
    for part, rows in parts.items():
        assert split.texts[part] == [row["text"] for row in rows]
        assert split.labels[part].dtype == np.int64
        assert names_of(split, part) == [row["label"] for row in rows]
    no_validation = load(tmp_path, train=parts["train"], test=parts["test"])
    assert no_validation.validation_texts is no_validation.validation_labels is None
    assert sizes_of(no_validation) == [120, 30]


def test_documents_without_text_and_duplicates_are_dropped_but_never_from_test(tmp_path, parts, caplog):
    train, validation, test = parts.values()
    others = [train[0] | {"text": text} for text in ("", " \n ", None)]  # without a text
    others += [test[0] | {"text": "  " + test[0]["text"].replace(" ", "\n")}, test[1], validation[0], train[5]]
    split = load(tmp_path, train=train + others, validation=[*validation, test[2]], test=[*test, test[0]])
    assert {name: count for name, count in split.counts.items() if count} == {
        "validation_duplicates_dropped": 1,
        "train_empty_dropped": 3,
        "train_duplicates_dropped": 3,
    }
    assert split.test_texts == [row["text"] for row in [*test, test[0]]]
    assert split.validation_texts == [row["text"] for row in validation]
    assert split.train_texts == [row["text"] for row in [*train, train[5]]]  # a duplicate within train stays
    assert names_of(split, "train") == [row["label"] for row in [*train, train[5]]]
    assert "3 train empty dropped, 3 train duplicates dropped" in caplog.text


def test_the_fingerprint_sees_every_text_label_and_border(tmp_path, parts):
    split = load(tmp_path, **parts)
    seen = {split.fingerprint()}
    assert len(split.fingerprint()) == 16
    split.validation_labels[3] = (split.validation_labels[3] + 1) % 3
    seen.add(split.fingerprint())
    split.test_texts[-1] += "!"
    seen.add(split.fingerprint())
    first, second = split.train_texts[:2]
    split.train_texts[:2] = first + second[:1], second[1:]
    seen.add(split.fingerprint())
    split.class_names[0] = "other"
    assert len({*seen, split.fingerprint()}) == 5


def test_stratified_samples_are_fair():
    strata = np.repeat([0, 1, 2, 3], [50, 30, 3, 1])
    chosen = np.zeros(84)
    for seed in range(300):
        rows = stratified_sample(strata, 21, seed)
        assert len(set(rows)) == 21
        assert (np.abs(np.bincount(strata[rows], minlength=4) - np.array([50, 30, 3, 1]) / 4) < 1).all()
        chosen[rows] += 1
    # Each row has the chance 1/4; a binomial standard deviation is 0.025.
    np.testing.assert_allclose(chosen / 300, 0.25, atol=0.1)
    np.testing.assert_array_equal(stratified_sample(strata, 100, 0), np.arange(84))


def test_the_default_is_the_built_in_corpus_by_its_own_parts(monkeypatch):
    parts = ["train"] * 6 + ["test"] * 3 + ["validation"]
    rows = [row | {"part": parts[number // 3 % 10]} for number, row in enumerate(make_corpus(300))]
    monkeypatch.setattr(labelled_module, "load_corpus", {PYTHON_DOCS: Dataset.from_list(rows)}.__getitem__)
    split = load_labelled(LabelledArguments())
    for name, texts in split.texts.items():
        expected = Counter((row["text"], row["label"]) for row in rows if row["part"] == name)
        assert Counter(zip(texts, names_of(split, name))) == expected
    same = load_labelled(LabelledArguments(dataset_name=PYTHON_DOCS), seed=7)  # a seed varies draws, never the split
    assert same.fingerprint() == split.fingerprint()
    limits = {"max_train_samples": 30, "max_test_samples": 6}
    smaller = load_labelled(LabelledArguments(**limits))
    assert sizes_of(smaller) == [30, 6, 6]
    assert set(smaller.train_texts) < set(split.train_texts)
    assert smaller.fingerprint() == load_labelled(LabelledArguments(**limits), seed=7).fingerprint()


# --- Labels and texts ---


def test_labels_are_texts_and_vectors_are_sets_of_numbers(tmp_path):
    """All parts decide together: the test part alone, [1, 0] and [0, 1], might be sets."""
    split = load(tmp_path, train=rows_of([10, 9.0, 2]), test=rows_of([9], "test"))
    assert (split.class_names, names_of(split, "test")) == (["2", "9", "10"], ["9"])
    in_train, in_test = [[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 1]]
    split = load(tmp_path, train=rows_of(in_train), test=rows_of(in_test, "test"))
    assert (split.class_names, split.train_labels.tolist()) == (["0", "1"], in_train)
    assert split.test_labels.tolist() == in_test


REFUSED = [  # options, labels to train on, rows to test on, a part of the message
    ({}, ["x", "x "], [], "one class in the train file .*, x: label two or more"),
    ({}, [["x", "y"], ["y", "x", "x"]], rows_of([["x"]]), r"Every document of the train file .* has every class"),
    ({}, ["x", None], [], "row 1 .* of the train file .* is None: give each document a label"),
    ({}, ["x", "y"], rows_of([["x"]]), r"row 0 .* of the test file .* is \['x'\]"),
    ({}, ["x", "y"], rows_of(["no", "x", "no"], "test"), r"test file .* has labels that no .* has: no \(2\)"),
    ({}, ["x", "y"], [{"text": "a", "class": "x"}], r"--label_column is 'label', but .* \['text', 'class'"),
    ({"text_column": ["titel"]}, ["x", "y"], [], "--text_column is 'titel', but the columns of the train file"),
    ({}, ["x", "y"], [{"text": number, "label": "x"} for number in range(3)], "No document is left of the test file"),
    ({}, ["x"] * 3, None, r"3 documents in the train file .* are too few to hold out"),
    ({}, [[f"rare {row}"] for row in range(100)], None, "too many alone have one of their labels: name a --test_file"),
]


@pytest.mark.parametrize(("options", "labels", "test", "message"), REFUSED)
def test_what_cannot_be_learnt_or_measured_is_named(tmp_path, options, labels, test, message):
    parts = {} if test is None else {"test": test or [{"text": "t", "label": labels[0]}]}
    with pytest.raises(ValueError, match=message):
        load(tmp_path, options=options, train=rows_of(labels), **parts)


def test_class_names_of_the_data_set_are_used(tmp_path):
    feature = ClassLabel(names=["zebra", "ant"])

    def save(name, labels, kind):
        rows = {"text": [f"{name} {row}" for row in range(len(labels))], "label": labels}
        dataset = Dataset.from_dict(rows, features=Features({"text": Value("string"), "label": kind}))
        dataset.to_parquet(tmp_path / f"{name}.parquet")
        return str(tmp_path / f"{name}.parquet")

    for kind, labels, expected in (
        (feature, [0, 1], [1, 0]),
        (List(feature), [[0, 1], []], [[1, 1], [0, 0]]),
        (List(feature), [[1, 0], [0, 1], [0, 0]], [[0, 1], [1, 0], [0, 0]]),  # vectors
    ):
        split = load_labelled(
            LabelledArguments(train_file=save("train", labels, kind), test_file=save("test", labels, kind))
        )
        assert (split.class_names, split.test_labels.tolist()) == (["ant", "zebra"], expected)
    hidden = save("hidden", [-1], feature)  # how Hub data sets hide the labels of a test part
    with pytest.raises(ValueError, match=r"row 0 .* of the test file .* is -1"):
        load_labelled(LabelledArguments(train_file=save("train", [0, 1], feature), test_file=hidden))


def test_columns_paragraphs_and_sections_make_a_text(tmp_path):
    rows = [("One", "first", "a"), (None, "second", "b"), (" ", "third", "b"), ("Four", "x", "a")]
    rows = [{"title": title, "text": text, "label": label} for title, text, label in rows]
    split = load(tmp_path, options={"text_column": ["title", "text"]}, train=rows[:3], test=rows[3:])
    assert (split.train_texts, split.test_texts) == (["One\n\nfirst", "second", "third"], ["Four\n\nx"])
    paragraphs = [{"text": ["One.", "Two."], "label": "a"}, {"text": ["Three."], "label": "b"}]
    sections = [{"sections": [{"heading": "H", "text": "t"}], "label": "a"}]
    split = load(tmp_path, train=paragraphs, test=sections)
    assert (split.train_texts, split.test_texts) == (["One.\nTwo.", "Three."], ["H\n\nt"])


def test_postings_lose_what_gives_their_group_away(tmp_path):
    """As scikit-learn's `fetch_20newsgroups(remove=("headers", "footers", "quotes"))`."""
    posting = "Subject: Re: Sky\n\nIn article <1@a> b@a writes:\n>Why?\n| How?\n\nPlanets.\n\nStars.\n--\nMe\n"
    train = [{"text": text, "label": label} for text, label in ((posting, "a"), ("Subject: x\n\nSea", "b"))]
    test = [{"text": "Subject: t\n\nTest", "label": "a"}]
    split = load(
        tmp_path,
        options={"strip_newsgroups": ["headers", "footers", "quotes"]},
        train=[*train, {"text": "Subject: x\n\n> quoted", "label": "b"}],
        test=test,
    )
    assert ([text.strip() for text in split.train_texts], split.test_texts) == (
        ["Planets.\n\nStars.", "Sea"],
        ["Test"],
    )
    assert split.counts["train_empty_dropped"] == 1
    without_headers = load(tmp_path, options={"strip_newsgroups": ["headers"]}, train=train, test=test)
    assert without_headers.train_texts[0] == posting.partition("\n\n")[2]
    assert load(tmp_path, train=train, test=test).test_texts == ["Subject: t\n\nTest"]


# --- Parts that are held out ---


def test_without_a_test_part_one_is_held_out_with_each_class_in_its_proportion(tmp_path, parts):
    rows = make_corpus(400)
    for row in rows[:100]:
        row["label"] = "rare" if row["label"] == "kitchen" else row["label"]
    split = load(tmp_path, seed=3, train=rows)
    assert sizes_of(split) == [320, 40, 40]
    of_all = Counter(row["label"] for row in rows)
    order = {row["text"]: (position, row["label"]) for position, row in enumerate(rows)}
    assert sorted(text for texts in split.texts.values() for text in texts) == sorted(order)
    for name, texts in split.texts.items():
        for label, count in Counter(names_of(split, name)).items():
            assert abs(count - of_all[label] * len(texts) / 400) <= 1, name
        assert [order[text] for text in texts] == sorted(order[text] for text in texts)
        assert names_of(split, name) == [order[text][1] for text in texts]
    assert load(tmp_path, seed=3, train=rows).fingerprint() == split.fingerprint()
    assert load(tmp_path, seed=4, train=rows).fingerprint() != split.fingerprint()
    # With a validation part all that is held out is for testing
    split = load(tmp_path, train=parts["train"], validation=parts["validation"])
    assert sizes_of(split) == [96, 30, 24]
    assert np.bincount(split.test_labels).tolist() == [8, 8, 8]


def test_several_labels_are_split_at_random_and_a_label_that_one_document_has_stays_in_training(tmp_path):
    labels = [["x", "y"][: row % 3] for row in range(100)]
    split = load(tmp_path, train=rows_of(labels))
    assert sizes_of(split) == [80, 10, 10]
    assert (split.multi_label, split.class_names, split.train_labels.dtype) == (True, ["x", "y"], np.int8)
    of_text = {f"text {row}": found for row, found in enumerate(labels)}
    expected = [[int(name in of_text[text]) for name in "xy"] for text in split.test_texts]
    assert split.test_labels.tolist() == expected
    rare = [["x", f"rare {row}"] if row < 30 else ["x", "y"] for row in range(100)]
    for seed in range(3):
        split = load(tmp_path, seed=seed, train=rows_of(rare))
        assert split.train_labels.any(axis=0).all()
        train, validation, test = sizes_of(split)
        assert train + validation + test == 100
        assert train > 80
        assert abs(validation - test) <= 1


# --- Sources ---


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


def test_the_usual_splits_of_a_hub_data_set_are_used_and_a_missing_one_is_named(hub, monkeypatch):
    name = "somebody/documents:long"
    split = load_labelled(LabelledArguments(dataset_name=name))
    assert hub == ["train", "validation", "test"]
    assert sizes_of(split) == [60, 15, 15]
    # A test split without labels, as some have: the validation split serves for testing, and for that alone.
    other = load_labelled(LabelledArguments(dataset_name=name, test_split="validation"))
    assert (other.test_texts, other.validation_texts) == (split.validation_texts, None)
    dev = LabelledArguments(dataset_name=name, test_split="dev")
    with pytest.raises(ValueError, match="no split dev; it has train, validation, test"):
        load_labelled(dev)

    def offline(name, configuration):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "get_dataset_split_names", offline)
    with pytest.raises(ValueError, match=r'Unknown split "dev". Should be one of .*train'):
        load_labelled(dev)
    with pytest.raises(ValueError, match="name them with --validation_split and --test_split"):
        load_labelled(LabelledArguments(dataset_name=name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_name": "a/b", "train_file": "TRAIN"}, "--dataset_name cannot go with --train_file"),
        ({"dataset_name": "a/b", "test_file": "TRAIN"}, "--test_file cannot go with --dataset_name"),
        ({"train_file": "TRAIN", "test_split": "test2"}, "--test_split cannot go with --train_file"),
        ({"dataset_name": "TRAIN"}, "is a file or folder here"),
        ({"test_file": "x", "label_column": "y"}, "--label_column and --test_file cannot go with python_docs"),
        ({"train_file": "TRAIN", "test_file": "tests.jsonl"}, r"There is no .*tests.jsonl"),
    ],
)
def test_sources_that_contradict_each_other_are_named(tmp_path, options, message):
    train = write(tmp_path / "train.jsonl", make_corpus(30))
    options = {name: train if value == "TRAIN" else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        load_labelled(LabelledArguments(**options))
