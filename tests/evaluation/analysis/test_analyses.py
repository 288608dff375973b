"""What is measured of an encoder: only what is asked for; a group of seeds is their mean, its map the first one's."""

from types import SimpleNamespace

import numpy as np
import pytest

from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.arguments import EncoderArguments
from docsplit.evaluation.analysis import analyses
from docsplit.evaluation.analysis.analyses import EmbeddingAnalysis, Measured, measure, merge
from docsplit.evaluation.arguments import AnalysisArguments
from docsplit.evaluation.analysis.clustering import clustering_analysis
from docsplit.evaluation.analysis.geometry import geometry
from docsplit.evaluation.analysis.sample import Embedded, choose_documents, nearest_of
from tests.conftest import make_corpus

INFO = {"num_parameters": 1}


@pytest.fixture(scope="module")
def split():
    rows = make_corpus(80, seed=2)
    names = sorted({row["label"] for row in rows})
    texts, labels = [row["text"] for row in rows], np.array([names.index(row["label"]) for row in rows])
    return LabelledSplit(texts[:40], labels[:40], texts[40:], labels[40:], names)


def embedded_of(split, documents, seed=0):
    generator = np.random.default_rng(seed)
    parts = {
        part: np.eye(3)[labels] + 0.1 * generator.normal(size=(len(labels), 3))
        for part, labels in (("train", split.train_labels), ("test", split.test_labels))
    }
    halves = generator.normal(size=(len(documents.halves), 3)).astype(np.float32)
    return Embedded(INFO, {"raw": parts}, halves=halves, neighbours=nearest_of(parts["test"]))


def test_only_what_is_asked_for_is_measured(split):
    options = AnalysisArguments(analyses=["geometry"])
    documents = choose_documents(split, options, None)
    embedded = embedded_of(split, documents)
    measured = measure("a", embedded, split, documents, options)
    expected = geometry(embedded.parts["raw"]["test"], embedded.halves.reshape(-1, 2, 3), embedded.neighbours)
    assert measured.geometry == expected
    others = (measured.similarity, measured.attention, measured.clustering, measured.map, measured.graph_attention)
    assert others == (None,) * 5


def test_clusters_say_on_how_many_documents(split):
    options = AnalysisArguments(analyses=["clustering"], num_seeds=2)
    documents = choose_documents(split, options, None)
    measured = measure("a", embedded_of(split, documents), split, documents, options)
    contents, section = clustering_analysis(measured.clustering, split, "20 Newsgroups")
    assert (contents["train_documents"], contents["test_documents"], contents["clusters"]) == (40, 40, 3)
    assert contents["largest_class"] == np.bincount(split.test_labels).max() / 40
    assert contents["left_out"] == ""
    raw, _ = contents["rows"].to_dict("records")
    ours, papers, pairs = section.tables
    assert [line[:2] for line in ours.rows] == [["a", "raw"], ["a", "normalized"]]
    assert ours.rows[0][2].startswith(f"{raw['nmi_mean']:.3f}")
    assert all(line[0].startswith("Newsgroup, ") for line in papers.rows)
    assert pairs.rows == []
    assert "less than that no purity can be" in section.notes[0]


def test_a_group_is_the_mean_of_its_members_and_its_map_the_first_ones():
    points = [np.full((4, 2), place) for place in range(2)]
    members = [
        Measured(name, [], INFO, geometry={"uniformity": float(place)}, map=(points[place], "by hand"))
        for place, name in enumerate("ab")
    ]
    group = merge("G=a,b", ["a", "b"], members)
    assert (group.encoder, group.members) == ("G=a,b", ["a", "b"])
    assert group.geometry["uniformity_mean"] == 0.5
    assert group.geometry["uniformity_of_seeds"] == [0, 1]
    np.testing.assert_array_equal(group.map[0], points[0])
    assert (group.similarity, group.attention, group.clustering) == (None, None, None)


def test_an_encoder_alone_has_no_members():
    alone = merge("a", ["a"], [Measured("a", [], INFO, geometry={"uniformity": 2.0})])
    assert alone.members == []
    assert alone.geometry == {"encoder": "a", "members": [], "uniformity_mean": 2.0}


def test_the_sample_is_chosen_by_the_passages_of_the_encoders_with_graph_attention(split, monkeypatch):
    asked = []
    monkeypatch.setattr(analyses, "choose_documents", lambda split, args, tagger, words: asked.append(words))
    evaluation = EmbeddingAnalysis(LabelledArguments(train_file="x"), AnalysisArguments(analyses=["graph_attention"]))
    evaluation.split = split
    for words, layers in ((25, 2), (100, 0), (60, 1)):  # one without layers takes the mean
        config = SimpleNamespace(model_type="graph_document", passage_words=words, graph_layers=layers)
        model = [SimpleNamespace(config=config)]
        evaluation.check_encoder(SimpleNamespace(model=model, name="x"))
    evaluation.prepare(is_main=True)
    assert asked == [[25, 60]]


def test_without_a_tagger_what_needs_one_is_left_out_in_one_line(monkeypatch, caplog):
    def missing(name):
        raise ValueError(f"--spacy_pipeline {name!r} is not installed")

    monkeypatch.setattr(analyses, "load_tagger", missing)

    def left(*asked, **options):
        args = AnalysisArguments(analyses=[*asked], **options)
        EmbeddingAnalysis(LabelledArguments(train_file="x"), args).check(EncoderArguments(["a"]))
        return args.analyses

    assert left("redundancy", "similarity", "attention") == ["similarity"]
    (line,) = caplog.messages
    assert line == (
        "redundancy and attention are left out: they need parts of speech (python -m spacy download en_core_web_sm)."
    )
    for asked, options in ((["attention"], {}), (["similarity", "attention"], {"spacy_pipeline": "mine"})):
        with pytest.raises(ValueError, match="is not installed"):
            left(*asked, **options)
