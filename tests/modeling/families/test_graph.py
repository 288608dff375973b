"""Documents as graphs of passages: equations, batches, losses, and the module for SentenceTransformer."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, LongformerConfig

import modeling_graph_document as graph
from docsplit.data.passages import Passage, to_passages
from docsplit.embedding.encode import embed_documents
from docsplit.modeling.families.graph import GRAPH_DOCUMENTS
from docsplit.modeling.families.graph_document_transformer import GraphDocumentTransformer
from docsplit.modeling.loading import load_encoder
from modeling_docsplit import DocSplitForContrastivePretraining
from modeling_graph_document import GraphDocumentConfig, GraphDocumentModel
from tests.conftest import OF_IDS, make_corpus, tiny_config
from tests.modeling.test_modeling_docsplit import SMALL, loss_and_gradients

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
KINDS = ("full", "section", "star")


def graph_config(**settings):
    return GraphDocumentConfig(BertConfig(**SMALL, **NO_DROPOUT), **{"graph_hidden_size": 16} | settings)


def make_graph_model(**settings):
    """Make the model in float64, with biases that are not 0."""
    torch.manual_seed(0)
    model = GraphDocumentModel(graph_config(**settings)).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def random_rows(sizes, seed=0, sections=3):
    """Make passages of documents of these sizes: their vectors, and where each belongs."""
    generator = torch.Generator().manual_seed(seed)
    document = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    section = [torch.randint(sections, (size,), generator=generator).sort().values for size in sizes]
    position = [torch.randint(1, 4, (size,), generator=generator).cumsum(0) for size in sizes]
    rows = SimpleNamespace(document=document, view=torch.zeros_like(document), is_query=None)
    rows.section, rows.position = torch.cat(section), torch.cat(position)
    return torch.randn(sum(sizes), 16, dtype=torch.float64, generator=generator).tanh(), rows


def random_passages(num_passages, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(20) < torch.randint(3, 21, (num_passages, 1), generator=generator)).long()
    return torch.randint(5, 120, mask.shape, generator=generator) * mask, mask


def neighbours_of(kind, sections):
    """The graph of a document whose passages, in their order, are in these sections: pairs of nodes; 0: document."""
    first = {section: node for node, section in reversed(list(enumerate(sections, start=1)))}
    pairs = {(node, node) for node in range(len(sections) + 1)}
    for sender, receiver in itertools.permutations(range(1, len(sections) + 1), 2):
        if kind == "full" or sections[sender - 1] == sections[receiver - 1]:
            pairs.add((sender, receiver))
    top = [0, *(range(1, len(sections) + 1) if kind == "full" else first.values())]
    for sender, receiver in itertools.permutations(top, 2):
        if kind != "star" or 0 in (sender, receiver):
            pairs.add((sender, receiver))
    return pairs


def attend_slowly(layer, nodes, pairs):
    """One layer, edge by edge."""
    heads, width = layer.sender_attention.shape
    outputs = []
    for receiver, node in enumerate(nodes):
        mixed = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            senders = [sender for message, sender in sorted(pairs) if message == receiver]
            sent = [layer.sender.weight[part] @ nodes[sender] for sender in senders]
            if layer.is_v2:
                received = layer.receiver.weight[part] @ node
                scores = [layer.sender_attention[head] @ F.leaky_relu(received + message, 0.2) for message in sent]
            else:
                received = layer.sender.weight[part] @ node
                both = torch.cat([layer.receiver_attention[head], layer.sender_attention[head]])
                scores = [F.leaky_relu(both @ torch.cat([received, message]), 0.2) for message in sent]
            weights = torch.stack(scores).softmax(0)
            mixed.append(sum(weight * message for weight, message in zip(weights, sent)))
        joined = torch.cat(mixed) if layer.joins_by_concat else sum(mixed) / heads
        outputs.append(layer.norm(node + joined + layer.bias))
    return outputs


@pytest.mark.parametrize(
    "settings",
    [
        *({"graph_kind": kind} for kind in KINDS),
        {"graph_layers": 0},
        {"gat_version": 2},
        {"graph_join_heads": "average", "graph_heads": 3},
        {"graph_layer_norm": True, "graph_layers": 3, "gat_version": 2, "graph_kind": "section"},
    ],
    ids=str,
)
def test_graph_attention_equals_a_loop_over_edges(settings, monkeypatch):
    monkeypatch.setattr(graph, "NUMBERS_PER_CHUNK", 100)
    monkeypatch.setattr(graph, "NODES_PER_GROUP", 12)
    model, sizes = make_graph_model(**settings), [5, 1, 7, 2, 6]
    vectors, rows = random_rows(sizes)
    expected = []
    for number in range(len(sizes)):
        is_inside = rows.document == number
        nodes = [vectors[is_inside].mean(0), *vectors[is_inside]]
        pairs = neighbours_of(model.config.graph_kind, rows.section[is_inside].tolist())
        for depth, layer in enumerate(model.layers):
            nodes = [F.elu(node) for node in nodes] if depth else nodes
            nodes = attend_slowly(layer, nodes, pairs)
        expected.append(nodes[0])
    torch.testing.assert_close(model.combine(vectors, rows), torch.stack(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_passage_is_a_tanh_of_its_first_state_or_of_their_mean(pooling):
    """Of a loop over passages, whatever the padding holds."""
    model = make_graph_model(passage_pooling=pooling)
    input_ids, mask = random_passages(4)
    vectors = model.encode_passages(input_ids, mask)
    for passage, length, vector in zip(input_ids, mask.sum(1).tolist(), vectors, strict=True):
        states = model.passage_encoder(input_ids=passage[None, :length]).last_hidden_state[0]
        pooled = states[0] if pooling == "cls" else states.mean(0)
        torch.testing.assert_close(vector, torch.tanh(model.project.weight @ pooled + model.project.bias))


def test_a_query_is_the_vector_of_its_passage():
    vectors, rows = random_rows([4, 1, 3, 1])
    rows.is_query = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0, 1], dtype=torch.bool)
    model = make_graph_model(graph_kind="section")
    embeddings = model.combine(vectors, rows)
    assert torch.equal(embeddings[[1, 3]], vectors[[4, 8]])
    plain = model.combine(vectors, SimpleNamespace(**vars(rows) | {"is_query": None}))
    torch.testing.assert_close(embeddings[[0, 2]], plain[[0, 2]])
    assert (plain[1] - vectors[4]).abs().max() > 1e-3
    model, node = make_graph_model(graph_queries=True), vectors[4]
    for depth, layer in enumerate(model.layers):  # attention to itself alone is 1
        (node,) = attend_slowly(layer, [F.elu(node) if depth else node], {(0, 0)})
    torch.testing.assert_close(model.combine(vectors, rows)[1], node)


def test_forward_encodes_passages_in_chunks_without_their_padding():
    model, seen = make_graph_model(), []
    input_ids, mask = random_passages(70)
    expected = model.encode_passages(input_ids, mask)
    model.passage_encoder.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    output = model(input_ids, mask, document=torch.arange(70) % 3)
    torch.testing.assert_close(output.passage_vectors, expected)
    lengths = mask.sum(1).sort(descending=True).values
    assert seen == list(zip([32, 32, 6], lengths[[0, 32, 64]].tolist()))
    assert output.embeddings.shape == (3, 16)
    torch.testing.assert_close(model(input_ids[:1, : mask[0].sum()]).passage_vectors, expected[:1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graph_kind": "tree"}, "expected one of .*'full', 'section', 'star'"),
        ({"gat_version": 3}, "gat_version is 3"),
        ({"graph_join_heads": "max"}, "graph_join_heads is 'max'"),
        ({"graph_layers": -1}, "graph_layers is -1, expected 0 or more"),
        ({"graph_attention_dropout": 1.0}, "to be less than 1"),
        ({"graph_heads": 3}, "graph_hidden_size 16 is no multiple of 3 heads"),
        ({"graph_kind": "section"}, "graph_kind is 'section', which needs the section of each passage"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        make_graph_model(**settings)(*random_passages(3))


# --- Trained, by the wrapper ---------------------------------------------------------------------------------------

EQUATION_5 = {"similarity": "dot", "contrastive_temperature": 1.0}
SIZES = [(3, 2), (1, 4), (2, 2), (6, 5), (1, 1), (4, 7), (2, 3), (3, 3)]  # passages of both views of 8 documents


def make_model(dropout=0.0, graph=None, **settings):
    torch.manual_seed(0)
    probabilities = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = GraphDocumentConfig(BertConfig(**SMALL, **probabilities), graph_hidden_size=16, **graph or {})
    model = DocSplitForContrastivePretraining.from_config(config, OF_IDS, **EQUATION_5 | settings)
    return model.double().train()


def passage_batch(sizes, seed=0, queries=False):
    """A batch of the documents whose views have these numbers of passages."""
    places = [
        (document, view, position // 2, position)
        for document, of_views in enumerate(sizes)
        for view, count in enumerate(of_views)
        for position in range(count)
    ]
    input_ids, mask = random_passages(len(places), seed)
    rows = dict(zip(("document", "view", "section", "position"), torch.tensor(places).T))
    rows |= {"is_query": rows["view"] == 0} if queries else {}
    batch = {"input_ids": input_ids, "attention_mask": mask, "rows": rows}
    return batch | {"document_ids": torch.arange(len(sizes))}


def slow_embeddings(model, batch):
    """Embed each sub-document by itself, (B, 2, H)."""
    rows, graph_model, embeddings = batch["rows"], model.encoder, {}
    for document, view in sorted(set(zip(rows["document"].tolist(), rows["view"].tolist()))):
        is_inside = (rows["document"] == document) & (rows["view"] == view)
        parts = {name: rows[name][is_inside] for name in ("section", "position", "is_query") if name in rows}
        embeddings[document, view] = graph_model(
            batch["input_ids"][is_inside], batch["attention_mask"][is_inside], **parts
        ).embeddings
    return torch.cat(list(embeddings.values())).unflatten(0, (-1, 2))


@pytest.mark.parametrize("kind", ["full", "section"])
def test_loss_and_gradients_equal_a_loop_over_equations_5_and_6(kind):
    """In micro-batches, with cached gradients."""
    model, batch = make_model(graph={"graph_kind": kind}, symmetric_loss=True), passage_batch(SIZES)
    embeddings = slow_embeddings(model, batch)
    total = 0.0
    for i in range(len(SIZES)):
        similar = torch.exp(embeddings[i, 0] @ embeddings[i, 1])
        total -= torch.log(similar / sum(torch.exp(embeddings[i, 0] @ other) for other in embeddings[:, 1]))
        total -= torch.log(similar / sum(torch.exp(other @ embeddings[i, 1]) for other in embeddings[:, 0]))
    expected = dict(model.named_parameters())
    expected = dict(zip(expected, torch.autograd.grad(total / (2 * len(SIZES)), list(expected.values()))))
    model.micro_batch_tokens, model.cache_gradients = 40, True
    output, gradients = loss_and_gradients(model, batch)
    torch.testing.assert_close(output.embeddings, embeddings)
    torch.testing.assert_close(output.loss, total / (2 * len(SIZES)))
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-7, atol=1e-11, msg=name)
        assert gradient.abs().max() > 0 or "key.bias" in name, name
    logits = embeddings[:, 0] @ embeddings[:, 1].T
    torch.testing.assert_close(output.objective_parts["logits_std"].double(), logits.std(), rtol=1e-5, atol=0)


def test_what_a_graph_document_model_has_not():
    for settings, message in (
        ({"pooling": "mean"}, "passage_pooling=cls or =mean"),
        ({"mlm_weight": 0.1}, "no masked"),
    ):
        with pytest.raises(ValueError, match=message):
            make_model(**settings)
    with pytest.raises(ValueError, match="LoRA does not work with a graph document model"):
        make_model().add_lora(4)
    with pytest.raises(ValueError, match="longformer is no passage encoder"):
        GRAPH_DOCUMENTS.make_config(LongformerConfig(), {})


TEXTS = [
    f"## One\n\n{first['text']}\n\n## Two\n\n{second['text']}" for first, second in zip(*[iter(make_corpus(8))] * 2)
]


@pytest.fixture
def module(wordpiece):
    torch.manual_seed(0)
    config = tiny_config(wordpiece, initializer_range=0.3)
    config = GraphDocumentConfig(config, graph_hidden_size=16, graph_kind="section", passage_words=10)
    return GraphDocumentTransformer(GraphDocumentModel(config).eval(), wordpiece, 24)


def test_a_text_has_its_passages_and_an_empty_one_has_one(module):
    lists = module.passages([*TEXTS, "", " \n"])
    assert lists[:-2] == [to_passages(text, 10) for text in TEXTS]
    assert lists[-2:] == [[Passage("", 0)]] * 2
    assert [len(passages) for passages in module.passages(TEXTS, are_queries=True)] == [1] * len(TEXTS)
    module.max_passages = 2
    assert module.passages(TEXTS) == [passages[:2] for passages in lists[:-2]]


def test_a_checkpoint_reads_as_many_passages_as_it_says(module, wordpiece, tmp_path):
    whole, cut = module.passages(TEXTS), []
    for most in (0, 2):
        module.config.max_passages = most
        again = GraphDocumentTransformer(module.model, wordpiece, 24)
        again.save(str(tmp_path / str(most)))
        loaded = load_encoder(str(tmp_path / str(most)))
        cut.append(embed_documents(loaded, TEXTS)[0])
        assert loaded[0].passages(TEXTS) == [passages[: most or None] for passages in whole]
    assert np.abs(cut[0] - cut[1]).max() > 1e-3
    with pytest.raises(ValueError, match="max_passages is -1, expected 1 or more"):
        GraphDocumentConfig(max_passages=-1)


def test_a_batch_has_the_vector_of_each_text_alone(module):
    with torch.no_grad():
        together = module(module.preprocess(TEXTS))["sentence_embedding"]
        alone = torch.cat([module(module.preprocess([text]))["sentence_embedding"] for text in TEXTS])
        query = module(module.preprocess(TEXTS[:1], task="query"))["sentence_embedding"]
    assert together.shape == (len(TEXTS), module.get_embedding_dimension())
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert (query - alone[:1]).abs().max() > 1e-3
