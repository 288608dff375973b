"""The data sets of the study of adaptation: a metric as a function of items, and no test document is adapted on."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from benchmarks.studies.adaptation.sets import SETS, classes_of, load, with_validation
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.runtime.vectors import unit


@pytest.fixture
def split():
    """Two classes, forty documents to train on, twenty to test on."""
    labels = np.tile([0, 1], 30)
    texts = [f"document {number} of class {label}" for number, label in enumerate(labels)]
    return LabelledSplit(texts[:40], labels[:40], texts[40:], labels[40:], ["no", "yes"])


def vectors_of(labels):
    """Vectors that tell two classes apart."""
    noise = np.random.default_rng(0).normal(scale=0.1, size=(len(labels), 4))
    return unit((np.eye(4)[labels] + noise).astype(np.float32))


def test_classes_that_are_apart_are_told_apart(split):
    data = classes_of(split, "test")
    labels = np.concatenate([split.train_labels, split.test_labels])
    assert data.texts == [*split.train_texts, *split.test_texts]
    measured = data.measure(vectors_of(labels))
    assert (measured.metric, measured.num_items, measured.value) == ("5shot_accuracy", 20, 1.0)
    assert measured.others["accuracy"] == 1
    assert measured.others["neighbour_purity"] == pytest.approx(0.9)  # nine others are of the class, of ten neighbours
    wrong = data.measure(vectors_of(np.where(np.arange(60) < 50, labels, 1 - labels)))
    assert wrong.value == 0.5
    assert (wrong.of_items(np.arange(10)), wrong.of_items(np.arange(10, 20))) == (1, 0)
    assert data.measure(csr_array(vectors_of(labels))).others.keys() == {"accuracy"}


def test_the_validation_part_comes_from_the_training_documents(split):
    divided = with_validation(split)
    assert with_validation(divided) is divided
    assert sorted([*divided.train_texts, *divided.validation_texts]) == sorted(split.train_texts)
    assert len(divided.validation_texts) == 12
    assert np.bincount(divided.validation_labels).tolist() == [6, 6]
    data = classes_of(split, "validation")
    assert data.corpus == split.train_texts
    assert sorted(data.texts) == sorted(split.train_texts)


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [("no", "test", "no data set 'no'"), ("aan", "validation", "aan has no validation part")],
)
def test_what_there_is_not_is_named(tmp_path, name, part, message):
    with pytest.raises(ValueError, match=message):
        load(name, tmp_path, part)


@pytest.mark.parametrize(
    "name", [pytest.param("python_docs", marks=pytest.mark.slow), "aan", "cranfield", "ecthr", "20news"]
)
def test_no_test_document_is_adapted_on(real_data, name):
    size = 2000  # enough for five labels of every class
    data = SETS[name](real_data, "test", size)
    assert 0 < len(data.corpus) <= size
    measured = data.measure(unit(np.random.default_rng(0).normal(size=(len(data.texts), 8)).astype(np.float32)))
    assert 0 <= measured.value <= 1
    if data.task != "ranking":
        tested = set(data.texts[-measured.num_items :]) if data.task != "links" else set()
        assert not tested & set(data.corpus)
