"""The sample that all encoders are analysed on, and what is measured of one; a group of seeds is its mean."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.embedding.neighbours import nearest, unit
from docsplit.evaluation.analysis import analyses, similarity
from docsplit.evaluation.analysis.analyses import EmbeddingAnalysis, Measured, choose_documents, random_halves
from docsplit.evaluation.analysis.geometry import geometry
from docsplit.evaluation.task_arguments import AnalysisArguments
from tests.conftest import make_corpus


@pytest.fixture
def split():
    rows = make_corpus(60, seed=1)
    names = sorted({row["label"] for row in rows})
    texts, labels = [row["text"] for row in rows], np.array([names.index(row["label"]) for row in rows])
    return LabelledSplit(texts[:30], labels[:30], texts[30:], labels[30:], names)


@pytest.fixture
def evaluation(split):
    def make(*analyses, **options):
        args = AnalysisArguments(analyses=[*analyses], sample_documents=12, num_seeds=1, map_method="pca", **options)
        made = EmbeddingAnalysis(LabelledArguments(train_file="x"), args)
        made.split = split
        return made

    return make


@pytest.mark.parametrize("name", ["ours", "tfidf"])
def test_numbers_are_those_of_the_encoders_own_vectors(name, evaluation, split, headless, monkeypatch):
    monkeypatch.setattr(similarity, "NUM_PAIRS", 500)
    encoder = Encoder(str(headless), EncoderArguments(["unused"], dtype="float32")) if name == "ours" else None
    made = evaluation("similarity", "clustering", "geometry", "map")
    made.prepare(is_main=True)
    measured = made.measure(name, encoder, is_main=True)
    kinds = ["raw", "normalized", "mean pooling", "mean pooling, normalized"]  # it says nothing about pooling
    assert [result.features for result in measured.clustering] == kinds[: 4 if encoder else 2]
    assert {result.pretraining_seeds for result in measured.clustering} == {1 if encoder else None}
    assert measured.map[0].shape == (12, 2)
    assert measured.attention is measured.graph_attention is None
    if encoder:
        vectors = encoder.embed(split.test_texts)
        halves = encoder.embed(made.documents.halves).reshape(-1, 2, vectors.shape[1])
        assert measured.geometry == pytest.approx(geometry(vectors, halves, nearest(unit(vectors), 10)[0]))
        sentences = similarity.similarity(encoder.embed(made.documents.sentences.texts), made.documents.sentences)
        assert measured.similarity.values["auc"].scores == sentences["auc"].scores
    assert made.measure(name, encoder, is_main=False) is None


def test_the_sample_depends_on_the_seed_alone_and_has_what_the_analyses_need(split):
    def choose(*analyses, seed=0):
        return choose_documents(split, AnalysisArguments(analyses=[*analyses], sample_documents=12, seed=seed), None)

    sample, again = (choose("similarity", "geometry") for _ in range(2))
    np.testing.assert_array_equal(sample.rows, again.rows)
    assert sample.texts == [split.test_texts[row] for row in sample.rows]
    assert max(Counter(sample.classes.tolist()).values()) <= 12 / 3 + 1  # stratified
    assert sample.halves == again.halves
    assert sample.sentences.texts
    bare = choose("map")
    np.testing.assert_array_equal(bare.rows, sample.rows)  # whatever is analysed
    assert (bare.halves, bare.sentences, bare.words) == ([], None, [])
    assert (choose("map", seed=1).rows != sample.rows).any()


def test_halves_are_a_partition_of_the_sentences():
    sentences = [[f"S{row}.{number}." for number in range(row)] for row in range(6)]
    halves = random_halves(sentences, seed=0)
    assert len(halves) == 2 * 4  # those of fewer than two sentences have none
    for own, pair in zip(sentences[2:], zip(halves[::2], halves[1::2]), strict=True):
        first, second = (half.split() for half in pair)
        assert min(len(first), len(second)) > 0
        assert sorted(first + second) == own
        assert first == sorted(first)
    with pytest.raises(ValueError, match="two or more"):
        random_halves(sentences[:3], seed=0)


def test_a_group_is_the_mean_of_its_members_and_its_map_the_first_ones(evaluation):
    points, made = [np.full((4, 2), place) for place in range(2)], evaluation("geometry", "map")
    members = [
        Measured(name, {}, geometry={"uniformity": float(place)}, map=(points[place], "by hand"))
        for place, name in enumerate("ab")
    ]
    made.add(SimpleNamespace(name="G=a,b", members=["a", "b"]), members)
    made.add(SimpleNamespace(name="b", members=["b"]), members[1:])
    group, alone = made.measured
    assert (group.encoder, group.members) == ("G=a,b", ["a", "b"])
    assert (group.geometry["uniformity_mean"], group.geometry["uniformity_of_seeds"]) == (0.5, [0, 1])
    np.testing.assert_array_equal(group.map[0], points[0])
    assert (group.similarity, group.attention, group.clustering) == (None, None, None)
    assert (alone.members, alone.geometry) == ([], {"encoder": "b", "members": [], "uniformity_mean": 1.0})


def test_without_a_tagger_what_needs_one_is_left_out_in_one_line(evaluation, monkeypatch, caplog):
    def missing(name):
        raise ValueError(f"--spacy_pipeline {name!r} is not installed")

    monkeypatch.setattr(analyses, "load_tagger", missing)
    made = evaluation("redundancy", "similarity", "attention")
    made.check(EncoderArguments(["a"]))
    assert made.args.analyses == ["similarity"]
    assert caplog.messages == [
        "redundancy and attention are left out: they need parts of speech (python -m spacy download en_core_web_sm)."
    ]
    for asked, options in ((["attention"], {}), (["similarity", "attention"], {"spacy_pipeline": "mine"})):
        with pytest.raises(ValueError, match="is not installed"):
            evaluation(*asked, **options).check(EncoderArguments(["a"]))
