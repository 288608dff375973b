"""SentenceTransformer's module of a graph document model: passages, their numbers, and vectors of whole texts."""

import pytest
import torch

from docsplit.data.passages import Passage, to_passages
from docsplit.modeling.families.graph_document_transformer import GraphDocumentTransformer, rows_of
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
from tests.conftest import make_corpus, tiny_config

TEXTS = [
    f"## One\n\n{first['text']}\n\n## Two\n\n{second['text']}" for first, second in zip(*[iter(make_corpus(8))] * 2)
]


@pytest.fixture
def module(wordpiece):
    torch.manual_seed(0)
    config = tiny_config(wordpiece, initializer_range=0.3)
    config = GraphDocumentConfig(config, graph_hidden_size=16, graph_kind="section", passage_words=10)
    return GraphDocumentTransformer(GraphDocumentModel(config).eval(), wordpiece, 24)


def test_passages_are_numbered_as_by_a_loop():
    documents = [[Passage("a", 0), Passage("b", 0), Passage("c", 2)], [Passage("d", 0)], [Passage("", 1)] * 2]
    rows = rows_of(documents)
    for row, values in enumerate(zip(*(rows[name].tolist() for name in ("document", "section", "position")))):
        before = [len(passages) for passages in documents[: values[0]]]
        assert documents[values[0]][values[2]].section == values[1]
        assert sum(before) + values[2] == row
    assert not rows["is_query"].any()
    assert rows_of(documents, are_queries=True)["is_query"].all()


def test_a_text_has_its_passages_and_an_empty_one_has_one(module):
    lists = module.passages([*TEXTS, "", " \n"])
    assert lists[:-2] == [to_passages(text, 10) for text in TEXTS]
    assert lists[-2:] == [[Passage("", 0)]] * 2
    assert [len(passages) for passages in module.passages(TEXTS, are_queries=True)] == [1] * len(TEXTS)
    module.max_passages = 2
    assert module.passages(TEXTS) == [passages[:2] for passages in lists[:-2]]


def test_a_batch_has_the_vector_of_each_text_alone(module):
    with torch.no_grad():
        together = module(module.preprocess(TEXTS))["sentence_embedding"]
        alone = torch.cat([module(module.preprocess([text]))["sentence_embedding"] for text in TEXTS])
        query = module(module.preprocess(TEXTS[:1], task="query"))["sentence_embedding"]
    assert together.shape == (len(TEXTS), module.get_embedding_dimension())
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert (query - alone[:1]).abs().max() > 1e-3
