"""Attention to words against loops over pieces and words; and what a graph's nodes attend to."""

import csv

import numpy as np
import pytest
import torch

from docsplit.data.passages import to_passages
from docsplit.embedding.attention import attention_by_kind
from docsplit.evaluation.analysis.attention import (
    CLASSES,
    TERCILES,
    WordWeights,
    attention_estimates,
    choose_document,
    document_words,
    graph_attention_analysis,
    word_weights,
)
from docsplit.modeling.loading import load_encoder
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig
from tests.conftest import make_corpus, tiny_config

GENERATOR = np.random.default_rng(0)


def test_words_get_the_sum_of_their_pieces():
    #         unaffordable ships
    spans = np.array([[0, 12], [13, 18], [19, 23]])
    offsets = np.array(
        [[0, 0], [0, 2], [2, 8], [8, 12], [12, 18], [12, 13], [0, 0]]
    )  # a byte-level piece has its space
    weights = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.1, 0.2])
    found = word_weights(weights, offsets, spans)
    np.testing.assert_allclose(found.weights, [0.2, 0.2, np.nan])  # the third was not read
    assert (found.special, found.outside) == (pytest.approx(0.5), pytest.approx(0.1))
    np.testing.assert_allclose(word_weights(weights, offsets, spans, "mean").weights, [0.2 / 3, 0.2, np.nan])


def test_thirds_are_by_the_number_of_documents_that_have_a_word():
    """Each of 30 documents has a word of all, one of ten, one of its own; punctuation is in no third."""
    documents = [
        (["all", f"ten{row % 3}", f"own{row}", "."], ["NOUN"] * 3 + ["PUNCT"], np.zeros((4, 2), int))
        for row in range(30)
    ]
    for words in document_words(documents):
        assert [TERCILES[number] for number in words.terciles[:3]] == ["frequent", "medium", "rare"]


def random_documents():
    tagged, attention = [], []
    for _ in range(12):
        size = int(GENERATOR.integers(3, 30))
        parts = list(GENERATOR.choice(["NOUN", "VERB", "ADJ", "ADP", "PUNCT"], size))
        tagged.append(
            ([f"w{number}" for number in GENERATOR.integers(40, size=size)], parts, np.zeros((size, 2), int))
        )
        weights = GENERATOR.random(size)
        weights = 0.4 * weights / weights.sum()
        weights[GENERATOR.random(size) < 0.2] = np.nan  # not read
        attention.append(WordWeights(weights, 0.5, 0.1))
    return document_words(tagged), attention


def test_estimates_against_loops():
    documents, attention = random_documents()
    found, counts = attention_estimates(documents, attention)
    for number, name in enumerate(CLASSES):
        to_uniform, weights, shares = [], [], []
        for words, own in zip(documents, attention):
            read = [row for row in range(len(words.classes)) if not np.isnan(own.weights[row])]
            mass = sum(own.weights[row] for row in read)
            of_class = [own.weights[row] for row in read if words.classes[row] == number]
            to_uniform += [weight / mass * len(read) for weight in of_class]
            weights += of_class
            shares.append(sum(of_class) / mass)
        for kind, values in {"to_uniform": to_uniform, "weight": weights, "share": shares}.items():
            assert found[f"{name}_{kind}"].scores == pytest.approx([np.mean(values)]), (name, kind)
        assert counts[f"words_{name}"] == len(to_uniform)
    assert sum(found[f"{name}_share"].scores[0] for name in CLASSES) == pytest.approx(1)
    assert found["special_share"].scores == pytest.approx([0.5])
    assert counts["documents"] == 12
    # One of which no word was read is left out, and counted
    attention[0] = WordWeights(np.full(len(documents[0].classes), np.nan), 1.0, 0)
    found, counts = attention_estimates(documents, attention)
    assert (counts["documents"], counts["documents_without_a_word"]) == (11, 1)
    assert found["special_share"].scores == pytest.approx([0.5])


TEXTS = [f"# One\n\n{row['text']}\n\n# Two\n\n{row['text'][::-1]} And so on." for row in make_corpus(35, seed=3)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, wordpiece):
    folder = tmp_path_factory.mktemp("graph")
    torch.manual_seed(0)
    config = GraphDocumentConfig(
        tiny_config(wordpiece, initializer_range=0.5), graph_hidden_size=16, graph_kind="section", passage_words=8
    )
    DocSplitForContrastivePretraining.from_config(config, wordpiece, max_seq_length=24).save_pretrained(folder)
    return load_encoder(str(folder), device="cpu")


def test_both_graphs_are_shown_and_the_model_is_as_before(encoder, tmp_path):
    before = encoder.encode(TEXTS[:2])
    reading = attention_by_kind(encoder, "ours", TEXTS[0])
    np.testing.assert_array_equal(encoder.encode(TEXTS[:2]), before)
    assert (list(reading.weights), reading.kind) == (["full", "section"], "section")
    sections = [passage.section for passage in to_passages(TEXTS[0], 8)]
    second = 1 + sections.index(1)
    assert (reading.weights["full"] > 0).all()
    assert reading.weights["section"][0, second] > 0  # the first of a section is the document's neighbour
    assert reading.weights["section"][0, second + 1] == 0  # the others are not
    contents, section = graph_attention_analysis(7, {"ours": reading}, tmp_path)
    assert contents == {"document": 7, "encoders": {"ours": reading}}
    of_node, of_all = (
        list(csv.DictReader(figure.picture.with_suffix(".csv").read_text().splitlines())) for figure in section.figures
    )
    nodes = len(sections) + 1
    assert (len(of_node), len(of_all)) == (2 * nodes, 2 * nodes**2)
    last = reading.weights["section"][-1, -1]
    assert float(of_all[-1]["attention"]) == pytest.approx(float(last), rel=1e-4)
    assert all(figure.picture.stat().st_size > 1000 for figure in section.figures)
    rows = section.tables[0].rows
    assert rows[0][:2] == ["ours", "0"]
    best = 1 + reading.weights["section"][0, 1:].argmax()
    assert rows[1][1] == str(best)
    assert rows[1][3] == " ".join(to_passages(TEXTS[0], 8)[best - 1].text.split())


def test_the_document_with_most_sections_is_shown():
    words = "word " * 99 + "end. "
    three, many = "# A\n\n" + words * 3 + "\n\n# B\n\n" + words + "\n\n# C\n\n" + words, words * 30
    assert choose_document(["Short.", words * 2, three, many], [100]) == 2
    assert choose_document([many, words * 60], [100]) == 0  # the second has more than fifty passages
    with pytest.raises(ValueError, match=r"2 to 50 passages.*leave graph_attention out"):
        choose_document(["Short.", words * 60], [100])
