"""The sample that all encoders are analysed on, and what is read of one: as much as is asked for, and no more."""

from collections import Counter

import numpy as np
import pytest

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.arguments import EncoderArguments
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.neighbours import nearest, unit
from docsplit.evaluation.arguments import AnalysisArguments
from docsplit.evaluation.analysis.sample import choose_documents, embed, num_neighbours, random_halves
from tests.conftest import make_corpus


@pytest.fixture
def split():
    rows = make_corpus(60, seed=1)
    names = sorted({row["label"] for row in rows})
    texts, labels = [row["text"] for row in rows], np.array([names.index(row["label"]) for row in rows])
    return LabelledSplit(texts[:30], labels[:30], texts[30:], labels[30:], names)


@pytest.fixture
def analysed(split, headless):
    """Embeds for these analyses with an encoder that says nothing about pooling."""
    encoder = Encoder(str(headless), EncoderArguments(["unused"], dtype="float32"))

    def run(*analyses):
        options = AnalysisArguments(analyses=[*analyses], sample_documents=12)
        documents = choose_documents(split, options, None)
        return embed(encoder, split, documents, options, True), documents, encoder

    return run


def test_the_sample_alone_is_embedded_where_that_is_enough(analysed, split):
    embedded, documents, encoder = analysed("similarity")
    assert {name: len(part) for name, part in embedded.parts["raw"].items()} == {"test": 12}
    np.testing.assert_array_equal(embedded.sentences, encoder.embed(documents.sentences.texts))
    assert embedded.halves is embedded.neighbours is embedded.attention is embedded.graph_attention is None
    embedded, _, _ = analysed("map")
    assert {name: len(part) for name, part in embedded.parts["raw"].items()} == {"test": 30}


def test_neighbours_are_those_of_all_test_documents(analysed, split):
    embedded, documents, encoder = analysed("geometry")
    vectors = unit(encoder.embed(split.test_texts))
    np.testing.assert_array_equal(embedded.neighbours, nearest(vectors, 10)[0])
    np.testing.assert_array_equal(embedded.halves, encoder.embed(documents.halves))
    assert (num_neighbours(5), num_neighbours(1000)) == (4, 10)


def test_an_encoder_that_says_nothing_about_pooling_is_clustered_by_its_mean_too(analysed, split):
    embedded, _, encoder = analysed("clustering")
    assert [*embedded.parts] == ["raw", "mean pooling"]
    assert embedded.info["pooling"] == "cls"
    mean = encoder.with_pooling("mean").embed(split.train_texts)
    np.testing.assert_allclose(embedded.parts["mean pooling"]["train"], mean, atol=1e-6)
    assert np.abs(embedded.parts["raw"]["train"] - mean).max() > 1e-3


def test_reading_attention_leaves_the_encoder_as_it_was(analysed, split):
    before = analysed("map")[2].embed(split.test_texts)
    embedded, documents, encoder = analysed("attention")
    facts, tokens = embedded.attention
    assert facts["attended_from"] == "[CLS]"
    weights = [text.weights for text in tokens]
    assert len(weights) == len(documents.texts)
    np.testing.assert_allclose([one.sum() for one in weights], 1, atol=1e-5)
    np.testing.assert_array_equal(encoder.embed(split.test_texts), before)
    assert encoder.model[0].model.config._attn_implementation != "eager"


def test_the_sample_depends_on_the_seed_alone_and_has_what_the_analyses_need(split):
    options = AnalysisArguments(analyses=["similarity", "geometry"], sample_documents=12)
    sample, again = (choose_documents(split, options, None) for _ in range(2))
    np.testing.assert_array_equal(sample.rows, again.rows)
    assert sample.texts == [split.test_texts[row] for row in sample.rows]
    assert max(Counter(sample.classes.tolist()).values()) <= 12 / 3 + 1  # stratified
    assert sample.halves == again.halves
    assert sample.sentences.texts
    bare = choose_documents(split, AnalysisArguments(analyses=["map"], sample_documents=12), None)
    np.testing.assert_array_equal(bare.rows, sample.rows)  # whatever is analysed
    assert bare.halves == bare.sentences.texts == bare.words == []
    other = choose_documents(split, AnalysisArguments(analyses=["map"], sample_documents=12, seed=1), None)
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
