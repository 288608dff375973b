"""What a document's nodes attend to: whose weights they are, and which document is shown."""

import csv

import numpy as np
import pytest
import torch

from docsplit.data.passages import to_passages
from docsplit.embedding.attention import attention_by_kind, document_attention
from docsplit.embedding.loading import load_encoder
from docsplit.evaluation.analysis.graph_attention import choose_document, graph_attention_analysis
from docsplit.explorer.page import heard_passages
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
from tests.conftest import make_corpus, tiny_config

TEXTS = [f"# One\n\n{row['text']}\n\n# Two\n\n{row['text'][::-1]} And so on." for row in make_corpus(35, seed=3)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, wordpiece):
    folder = tmp_path_factory.mktemp("graph")
    torch.manual_seed(0)
    config = GraphDocumentConfig(
        tiny_config(wordpiece, initializer_range=0.5), graph_hidden_size=16, graph_kind="section", passage_words=8
    )
    DocSplitForContrastivePretraining(config, GraphDocumentModel(config), max_seq_length=24).save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    return load_encoder(str(folder), device="cpu")


def test_weights_are_those_of_the_last_layer_of_each_document_alone(encoder):
    found = list(document_attention(encoder, TEXTS))
    assert len(found) == 35  # more than a chunk
    for place in (0, 34):
        features = encoder[0].preprocess([TEXTS[place]])
        with torch.no_grad():
            weights = encoder[0].model(**features, output_attentions=True).attentions[0]
        np.testing.assert_allclose(found[place].weights, weights[-1].mean(dim=0), atol=1e-6)
        assert found[place].passages == to_passages(TEXTS[place], 8)
        np.testing.assert_allclose(found[place].weights.sum(axis=1), 1, atol=1e-5)


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
    of_node, of_all = (list(csv.DictReader(figure.numbers.read_text().splitlines())) for figure in section.figures)
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


def test_without_layers_nobody_attends(wordpiece, tmp_path, caplog):
    """The mean of passages (equation 2): said, not a picture of nothing."""
    config = GraphDocumentConfig(tiny_config(wordpiece), graph_hidden_size=16, graph_layers=0, passage_words=8)
    model = DocSplitForContrastivePretraining(config, GraphDocumentModel(config), max_seq_length=24)
    model.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), device="cpu")
    with caplog.at_level("INFO"):
        assert attention_by_kind(encoder, "ours", TEXTS[0]) is None
    assert "ours has no graph attention" in caplog.text
    assert heard_passages(encoder, TEXTS[:3]) is None
    pieces = [passage.text for passage in to_passages(TEXTS[0], 8)]
    assert len(pieces) > 1
    np.testing.assert_allclose(encoder.encode(pieces).mean(axis=0), encoder.encode(TEXTS[0]), atol=1e-5)


def test_the_document_with_most_sections_is_shown():
    words = "word " * 99 + "end. "
    three, many = "# A\n\n" + words * 3 + "\n\n# B\n\n" + words + "\n\n# C\n\n" + words, words * 30
    assert choose_document(["Short.", words * 2, three, many], [100]) == 2
    assert choose_document([many, words * 60], [100]) == 0  # the second has more than fifty passages
    with pytest.raises(ValueError, match=r"2 to 50 passages.*leave graph_attention out"):
        choose_document(["Short.", words * 60], [100])
