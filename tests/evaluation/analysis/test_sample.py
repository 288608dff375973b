"""The sample that all encoders are analysed on."""

from collections import Counter

import numpy as np
import pytest

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.analysis.arguments import AnalysisArguments
from docsplit.evaluation.analysis.sample import choose_documents, random_halves, strata_of
from tests.conftest import make_corpus


@pytest.fixture
def split():
    rows = make_corpus(120, seed=1)
    names = sorted({row["label"] for row in rows})
    texts, labels = [row["text"] for row in rows], np.array([names.index(row["label"]) for row in rows])
    return LabelledSplit(texts[:60], labels[:60], texts[60:], labels[60:], names)


def test_equal_labels_are_one_stratum():
    several = np.array([[1, 0], [0, 1], [1, 0], [1, 1], [0, 1]])
    strata = strata_of(several)
    for one in range(5):
        for other in range(5):
            assert (strata[one] == strata[other]) == (several[one] == several[other]).all()
    np.testing.assert_array_equal(strata_of(np.array([2, 0, 2])), [2, 0, 2])


def test_the_sample_depends_on_the_seed_alone_and_has_what_the_analyses_need(split):
    options = AnalysisArguments(analyses=["similarity", "geometry"], sample_documents=24)
    sample, again = (choose_documents(split, options, None) for _ in range(2))
    np.testing.assert_array_equal(sample.rows, again.rows)
    assert sample.texts == [split.test_texts[row] for row in sample.rows]
    assert max(Counter(sample.classes.tolist()).values()) <= 24 / 3 + 1  # stratified
    assert sample.halves == again.halves
    assert sample.sentences.texts
    bare = choose_documents(split, AnalysisArguments(analyses=["map"], sample_documents=24), None)
    np.testing.assert_array_equal(bare.rows, sample.rows)  # whatever is analysed
    assert bare.halves == bare.sentences.texts == bare.words == []
    other = choose_documents(split, AnalysisArguments(analyses=["map"], sample_documents=24, seed=1), None)
    assert (other.rows != sample.rows).any()


def test_halves_are_a_partition_of_the_sentences():
    sentences = [[f"S{row}.{number}." for number in range(row)] for row in range(6)]
    halves = random_halves(sentences, seed=0)
    assert len(halves) == 2 * 4  # those of fewer than two sentences have none
    for own, pair in zip(sentences[2:], zip(halves[::2], halves[1::2]), strict=True):
        first, second = (half.split() for half in pair)
        assert first
        assert second
        assert sorted(first + second) == own
        assert first == sorted(first)
    with pytest.raises(ValueError, match="two or more"):
        random_halves(sentences[:3], seed=0)
