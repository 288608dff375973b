"""The probe: who is trained and tested on what."""

import numpy as np
import pytest
from datasets import Dataset

from docsplit import probing
from docsplit.corpora import document_id, tokenize
from docsplit.probing import probe_accuracy, split_labelled, tfidf_accuracy, without_test_documents
from tests.conftest import TOPICS, make_corpus


@pytest.fixture(scope="module")
def labelled():
    rows = make_corpus(150)
    # The documents 0 to 29 once more, nearly, with a label of their own that is too rare to be a class.
    rows += [{"text": row["text"] + " Storm.", "label": f"rare {index}"} for index, row in enumerate(rows[:30])]
    return Dataset.from_list(rows)


@pytest.fixture
def split(labelled, monkeypatch):
    monkeypatch.setattr(probing, "MAX_CLASSES", len(TOPICS))
    return split_labelled(labelled)


def test_train_and_test_share_nothing_and_near_duplicates_are_dropped(split, labelled):
    assert not set(split.train_texts) & set(split.test_texts)
    assert split.class_names == sorted(TOPICS)
    whole_test_part = round(0.2 * 150)
    assert 0 < split.num_near_duplicates < whole_test_part
    assert len(split.test_texts) == whole_test_part - split.num_near_duplicates
    long_copied = {text for text in labelled["text"][:30] if len(text.split()) > 20}
    assert not long_copied & set(split.test_texts)


def test_labels_belong_to_their_texts(split, labelled):
    label_of = dict(zip(labelled["text"], labelled["label"]))
    for texts, labels in ((split.train_texts, split.train_labels), (split.test_texts, split.test_labels)):
        assert [split.class_names[label] for label in labels] == [label_of[text] for text in texts]


def test_draws_have_the_shots_of_each_class_and_are_fixed(split):
    draws = split.draws(shots=5, num_draws=10)
    for draw in draws:
        assert len(set(draw)) == 15
        assert np.bincount(split.train_labels[draw]).tolist() == [5, 5, 5]
    assert len({tuple(draw) for draw in draws}) == 10
    np.testing.assert_array_equal(draws, split.draws(shots=5, num_draws=10))


def test_test_documents_are_kept_out_of_pretraining(split, labelled, wordpiece):
    dataset, _ = tokenize(labelled, wordpiece, "text", "rules")
    rest, counts = without_test_documents(dataset, split)
    test_ids = {document_id(text) for text in split.test_texts}
    assert not test_ids & set(rest["document_id"])
    assert counts["documents_kept_for_probe"] == len(dataset) - len(rest) >= len(split.test_texts)


def test_accuracy_is_that_of_the_right_features(split):
    def features(labels, noise):
        rng = np.random.default_rng(0)
        return np.eye(3)[labels] + noise * rng.standard_normal((len(labels), 3))

    perfect = probe_accuracy(split, features(split.train_labels, 0.01), features(split.test_labels, 0.01))
    useless = probe_accuracy(split, features(0 * split.train_labels, 1.0), features(0 * split.test_labels, 1.0))
    assert perfect["accuracy"] == perfect["5shot_accuracy"] == 1.0
    assert useless["accuracy"] < 0.7
    assert useless["5shot_accuracy"] < 0.6
    assert useless["5shot_accuracy_std"] > 0


def test_small_classes_and_rows_without_a_label_do_no_harm(monkeypatch):
    monkeypatch.setattr(probing, "MAX_TRAIN", 30)
    rows = make_corpus(300)
    rows = [row | {"label": "rare" if index < 12 else row["label"]} for index, row in enumerate(rows)]
    rows += [{"text": None, "label": "kitchen"}, {"text": "A ship.", "label": None}]
    split = split_labelled(Dataset.from_list(rows))
    assert split.class_names == ["harbour", "kitchen", "orchard", "rare"]
    assert len(split.draws()) == probing.NUM_DRAWS
    assert len(split.train_texts) < 45


def test_tfidf_reads_the_topics(split):
    assert tfidf_accuracy(split)["accuracy"] > 0.9


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
