"""Documents as graphs of passages: a passage encoder, and graph attention over its vectors (Xu et al., 2021).

A document of thousands of words is cut into passages of about 100. Each passage goes through an encoder by itself, its
[CLS] state through a tanh layer (equation 1), and a document node begins as the mean of them (equation 2). Layers of
graph attention (equation 3; Velickovic et al., 2018) let the nodes exchange what they know, and the document node's
state after the last is the embedding. The cost grows with the number of passages: only the small graph is quadratic.

The graphs of a batch are padded to (documents, nodes, nodes), in groups of similar size. The file needs torch and
transformers alone, and a copy is in each checkpoint: `AutoModel.from_pretrained(path, trust_remote_code=True)`.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput

PASSAGES_PER_CHUNK = 32  # of one forward pass of the passage encoder in `GraphDocumentModel.forward`
NODES_PER_GROUP = 4096  # of the documents whose graphs are padded together
LEAST_FILLED = 7 / 8  # of a padded graph: documents of fewer nodes begin another group
NUMBERS_PER_CHUNK = 2**24  # of the pairs of nodes whose scores GATv2 computes at once


class GraphDocumentConfig(PreTrainedConfig):
    """Configuration of `GraphDocumentModel`; the defaults are the paper's, or decided where it says nothing.

    Args:
        passage_encoder: configuration of any encoder that `AutoModel` knows; None: BERT's.
        graph_hidden_size: width of all nodes, and of the embedding.
        graph_layers: T of equation 3. 0: no graph, the document is the mean of its passages (equation 2).
        graph_heads: attention heads of each layer.
        graph_kind: "full": all nodes are neighbours. "section": passages of one section are, and so are the document
            and the first passages of the sections. "star": as "section", but first passages only of the document.
        gat_version: 1: graph attention as the paper cites it. 2: GATv2 (Brody et al., 2022).
        graph_join_heads: "concat": each has its share of the width. "average": each has the whole width.
        graph_feature_dropout, graph_attention_dropout: of the nodes that a layer reads, and of its attention weights.
        graph_layer_norm: after each skip connection.
        graph_queries: a query too goes through the layers, alone with itself; False: it is its passage's vector.
        passage_words: words of a passage, about.
        passage_pooling: what a passage's vector is made of. "cls": the paper's. "mean": the mean of its states.
        max_passages: passages of a document that are read, the first ones (the paper: 100); 0: all.
    """

    model_type = "graph_document"
    sub_configs = {"passage_encoder": AutoConfig}  # noqa: RUF012
    attribute_map = {"hidden_size": "graph_hidden_size"}  # noqa: RUF012

    def __init__(  # noqa: PLR0913 (a configuration)
        self,
        passage_encoder: PreTrainedConfig | dict[str, Any] | None = None,
        graph_hidden_size: int = 512,
        graph_layers: int = 2,
        graph_heads: int = 2,
        graph_kind: str = "full",
        gat_version: int = 1,
        graph_join_heads: str = "concat",
        graph_feature_dropout: float = 0.0,
        graph_attention_dropout: float = 0.0,
        graph_layer_norm: bool = False,
        graph_queries: bool = False,
        passage_words: int = 100,
        passage_pooling: str = "cls",
        max_passages: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)  # first: it resets the attention implementation of the configurations in it
        if not isinstance(passage_encoder, PreTrainedConfig):
            passage_encoder = AutoConfig.for_model(**({"model_type": "bert"} | (passage_encoder or {})))
        self.passage_encoder: PreTrainedConfig = passage_encoder
        for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):  # Trainer asks this configuration
            setattr(self, name, getattr(passage_encoder, name, None))
        self.graph_hidden_size, self.graph_layers, self.graph_heads = graph_hidden_size, graph_layers, graph_heads
        self.graph_kind, self.gat_version, self.graph_join_heads = graph_kind, gat_version, graph_join_heads
        self.graph_feature_dropout, self.graph_attention_dropout = graph_feature_dropout, graph_attention_dropout
        self.graph_layer_norm, self.graph_queries = graph_layer_norm, graph_queries
        self.passage_words, self.passage_pooling = passage_words, passage_pooling
        self.max_passages = max_passages
        self.check()

    def check(self) -> None:
        """Raise a ValueError for a value that is not possible."""
        choices: dict[str, tuple[Any, ...]] = {"graph_kind": ("full", "section", "star"), "gat_version": (1, 2)}
        choices |= {"graph_join_heads": ("concat", "average"), "passage_pooling": ("cls", "mean")}
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {values}.")
        if max(self.graph_feature_dropout, self.graph_attention_dropout) >= 1:
            raise ValueError("graph_feature_dropout and graph_attention_dropout are to be less than 1.")
        if self.graph_layers < 0:
            raise ValueError(f"graph_layers is {self.graph_layers}, expected 0 or more.")
        if self.max_passages < 0:
            raise ValueError(f"max_passages is {self.max_passages}, expected 1 or more, or 0 for all.")
        if self.graph_join_heads == "concat" and self.graph_hidden_size % self.graph_heads:
            raise ValueError(f"graph_hidden_size {self.graph_hidden_size} is no multiple of {self.graph_heads} heads.")


@dataclass
class GraphDocumentOutput(ModelOutput):
    """The result of `GraphDocumentModel.forward`."""

    embeddings: Tensor | None = None  # (D, H), one for each document
    passage_vectors: Tensor | None = None  # (P, H), before graph attention
    attentions: list[Tensor | None] | None = None  # (layers, heads, n + 1, n + 1) a document; None without a graph


class GraphAttention(nn.Module):
    """Compute x + GAT(x) on padded graphs (Velickovic et al., 2018, equations 1-6; GATv2: Brody et al., 2022)."""

    def __init__(self, config: GraphDocumentConfig):
        super().__init__()
        width, heads = config.graph_hidden_size, config.graph_heads
        self.joins_by_concat, self.is_v2 = config.graph_join_heads == "concat", config.gat_version == 2
        head_width = width // heads if self.joins_by_concat else width
        self.sender = nn.Linear(width, heads * head_width, bias=False)
        self.receiver = nn.Linear(width, heads * head_width, bias=False) if self.is_v2 else None
        self.sender_attention = nn.Parameter(torch.empty(heads, head_width))
        self.receiver_attention: Any = None if self.is_v2 else nn.Parameter(torch.empty(heads, head_width))
        self.bias = nn.Parameter(torch.empty(width))
        self.norm = nn.LayerNorm(width) if config.graph_layer_norm else nn.Identity()
        self.feature_dropout = nn.Dropout(config.graph_feature_dropout)
        self.attention_dropout = nn.Dropout(config.graph_attention_dropout)

    def forward(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Turn nodes (D, N, H) with edges (D, N, N), one or more a node, into nodes and weights (D, heads, N, N)."""
        heads = len(self.sender_attention)
        dropped = self.feature_dropout(nodes).to(self.sender.weight.dtype)
        sent = self.sender(dropped).unflatten(-1, (heads, -1)).transpose(1, 2)  # (D, heads, N, C)
        if self.receiver is not None:
            received = self.receiver(dropped).unflatten(-1, (heads, -1)).transpose(1, 2)
            scores = self._scores_of_pairs(received, sent)
        else:  # a [W h_i, W h_j] of each pair is a sum of two numbers
            of_sender = (sent * self.sender_attention[:, None]).sum(-1)  # (D, heads, N)
            of_receiver = (sent * self.receiver_attention[:, None]).sum(-1)
            scores = F.leaky_relu(of_receiver[..., :, None] + of_sender[..., None, :], 0.2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # softmax in fp32, whatever autocast says
        attention = scores.masked_fill(~edges[:, None], float("-inf")).softmax(dim=-1)  # (D, heads, N, N)
        mixed = self.attention_dropout(attention).to(sent.dtype) @ sent  # (D, heads, N, C)
        joined = mixed.transpose(1, 2).flatten(2) if self.joins_by_concat else mixed.mean(dim=1)
        return self.norm(nodes + joined + self.bias), attention

    def _scores_of_pairs(self, received: Tensor, sent: Tensor) -> Tensor:
        """Return GATv2's scores (D, heads, N, N), in chunks of receivers: a pair has as many numbers as a node."""

        def score(part: Tensor) -> Tensor:
            pairs = F.leaky_relu(part[..., :, None, :] + sent[..., None, :, :], 0.2)  # (D, heads, n, N, C)
            return (pairs * self.sender_attention[:, None, None]).sum(-1)

        if torch.compiler.is_exporting():
            return score(received)
        size = max(NUMBERS_PER_CHUNK // sent.numel(), 1)
        keeps_little = torch.is_grad_enabled() and size < sent.shape[2]
        parts = received.split(size, dim=2)
        scores = [checkpoint(score, part, use_reentrant=False) if keeps_little else score(part) for part in parts]
        return torch.cat(scores, dim=2)


def graph_edges(kind: str, present: Tensor, section: Any, position: Tensor) -> Tensor:
    """Return which nodes are neighbours, (D, n + 1, n + 1): node 0 is the document, each is a neighbour of itself.

    Args:
        kind: `GraphDocumentConfig.graph_kind`.
        present: (D, n), False for padding.
        section: (D, n), the section of each passage; needed unless the graph is full.
        position: (D, n), the place of each passage in its document; the first of a section has the lowest.
    """
    pairs = present[:, :, None] & present[:, None, :]  # (D, n, n)
    of_document = present
    if kind != "full":
        in_section = pairs & (section[:, :, None] == section[:, None, :])
        is_first = present & ~(in_section & (position[:, None, :] < position[:, :, None])).any(dim=-1)
        pairs = in_section | (is_first[:, :, None] & is_first[:, None, :]) if kind == "section" else in_section
        of_document = is_first
    first_row = F.pad(of_document, (1, 0), value=True)  # (D, n + 1)
    edges = torch.cat([first_row[:, None], torch.cat([of_document[:, :, None], pairs], dim=2)], dim=1)
    return edges | torch.eye(edges.shape[-1], dtype=torch.bool, device=edges.device)


def groups_of_similar_size(sizes: list[int]) -> list[list[int]]:
    """Group documents by their sizes, so that padded graphs hold little padding and not too many nodes each."""
    groups: list[list[int]] = []
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        longest = sizes[groups[-1][0]] if groups else 0
        is_full = not groups or (len(groups[-1]) + 1) * longest > NODES_PER_GROUP
        if is_full or sizes[number] < LEAST_FILLED * longest:
            groups.append([])
        groups[-1].append(number)
    return groups


class GraphDocumentModel(PreTrainedModel):
    """A passage encoder and graph attention layers: documents, as rows of passages, to one embedding each.

    Attributes:
        passage_encoder: what `AutoModel` gives, without its pooler.
    """

    config_class = GraphDocumentConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, config: GraphDocumentConfig, passage_encoder: PreTrainedModel | None = None):
        config.check()
        super().__init__(config)
        self.passage_encoder: Any = passage_encoder or AutoModel.from_config(config.passage_encoder)
        if getattr(self.passage_encoder, "pooler", None) is not None:
            self.passage_encoder.pooler = None  # equation 1 has its own
        self.project = nn.Linear(config.passage_encoder.hidden_size, config.graph_hidden_size)
        self.layers = nn.ModuleList(GraphAttention(config) for _ in range(config.graph_layers))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise graph attention as its authors do (Glorot), and the projection as PyTorch does."""
        if isinstance(module, GraphAttention):
            init.zeros_(module.bias)
            init.xavier_uniform_(module.sender_attention)
            if not module.is_v2:
                init.xavier_uniform_(module.receiver_attention)
            for linear in filter(None, (module.sender, module.receiver)):
                init.xavier_uniform_(linear.weight)
            if isinstance(module.norm, nn.LayerNorm):
                init.ones_(module.norm.weight)
                init.zeros_(module.norm.bias)
        elif module is self.project:
            bound = self.project.in_features**-0.5
            init.uniform_(self.project.weight, -bound, bound)
            init.zeros_(self.project.bias)

    def get_input_embeddings(self) -> nn.Module:
        """Return the passage encoder's input embeddings."""
        return self.passage_encoder.get_input_embeddings()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Give the passage encoder rows for other ids, as `PreTrainedModel` does."""
        rows = self.passage_encoder.resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = self.config.passage_encoder.vocab_size = rows.num_embeddings
        return rows

    def encode_passages(self, input_ids: Tensor, attention_mask: Any, pool: Any = None, **more: Any) -> Tensor:
        """Turn passages (P, T), padded on the right, into (P, H): equation 1; `pool` is for other layouts."""
        states = self.passage_encoder(input_ids=input_ids, attention_mask=attention_mask, **more)[0]
        if pool is not None:
            pooled = pool(states, pooling=self.config.passage_pooling)
        elif self.config.passage_pooling == "cls":
            pooled = states[:, 0]
        else:
            wide, mask = torch.promote_types(states.dtype, torch.float32), attention_mask[..., None]
            pooled = (states * mask.to(states.dtype)).sum(dim=1, dtype=wide) / mask.sum(dim=1)
        projected = self.project(pooled.to(states.dtype))
        return torch.tanh(projected.to(torch.promote_types(projected.dtype, torch.float32)))

    def combine(self, row_vectors: Tensor, rows: Any) -> Tensor:
        """Turn passages' vectors (P, H) into one (D, H) for each document and view, by document, then by view.

        Args:
            row_vectors: what `encode_passages` gave.
            rows: what they belong to, best on the host: `document` and `view` (P,), and where they matter `section`,
                `position` and `is_query` (P,), else None. Without `position` passages are in order. A query is the
                mean of its passages (it has one), and goes through graph attention only if the config says so.

        Raises:
            ValueError: if the graph needs sections that are not given.
        """
        return self._combine(row_vectors, rows, with_attentions=False)[0]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document: Tensor | None = None,
        section: Tensor | None = None,
        position: Tensor | None = None,
        is_query: Tensor | None = None,
        output_attentions: bool = False,
    ) -> GraphDocumentOutput:
        """Embed documents; passages go through their encoder in chunks of similar length, one at a time in the memory.

        Args:
            input_ids, attention_mask: (P, T), the passages of all documents, padded on the right; no mask: none is.
            document: (P,), which one a passage is part of, counted from 0; None: all are one document.
            section, position, is_query: (P,), as `combine` takes them.
            output_attentions: return the weights of graph attention too.
        """
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        lengths, order = attention_mask.sum(dim=1).sort(descending=True, stable=True)
        vectors, keeps_little = [], torch.is_grad_enabled() and len(order) > PASSAGES_PER_CHUNK
        for chunk, longest in zip(order.split(PASSAGES_PER_CHUNK), lengths[::PASSAGES_PER_CHUNK].tolist()):
            encode, part = self.encode_passages, (input_ids[chunk, :longest], attention_mask[chunk, :longest])
            vectors.append(checkpoint(encode, *part, use_reentrant=False) if keeps_little else encode(*part))
        passage_vectors = torch.cat(vectors)[order.argsort()]
        document, view = torch.zeros_like(order) if document is None else document, torch.zeros_like(order)
        rows = SimpleNamespace(document=document, view=view, section=section, position=position, is_query=is_query)
        embeddings, attentions = self._combine(passage_vectors, rows, output_attentions)
        return GraphDocumentOutput(embeddings, passage_vectors, attentions)

    def _combine(self, row_vectors: Tensor, rows: Any, with_attentions: bool) -> tuple[Tensor, Any]:
        """Return what `combine` does, and the attention weights that `GraphDocumentOutput` describes, or None."""
        if rows.section is None and self.config.graph_kind != "full":
            raise ValueError(f"graph_kind is {self.config.graph_kind!r}, which needs the section of each passage.")
        place = (rows.view.max() + 1) * rows.document + rows.view
        _, number, counts = torch.unique(place, return_inverse=True, return_counts=True)
        order, starts = number.argsort(stable=True), counts.cumsum(0) - counts
        is_query = torch.zeros_like(counts) if rows.is_query is None else rows.is_query[order[starts]].to(counts)
        sizes, queries = torch.stack([counts, is_query]).tolist()  # read from the device once, for all groups
        device, has_queue = row_vectors.device, row_vectors.device.type not in ("cpu", "mps")

        def move(part: Tensor) -> Tensor:  # without waiting for what the device computes
            return (part.pin_memory() if has_queue and part.is_cpu else part).to(device, non_blocking=has_queue)

        vectors, done, attentions = [], [], list[Tensor | None]([None] * len(sizes))
        for queries_only in (False, True):
            numbers = [number for number, flag in enumerate(queries) if bool(flag) == queries_only]
            for group in groups_of_similar_size([sizes[number] for number in numbers]):
                documents = torch.tensor([numbers[place] for place in group], device=counts.device)
                offsets = torch.arange(sizes[numbers[group[0]]], device=counts.device)
                present = offsets < counts[documents, None]  # (D', n)
                index = order[(starts[documents, None] + offsets).clamp(max=len(order) - 1)]  # (D', n)
                section = None if rows.section is None else move(rows.section[index])
                position = move(offsets.expand_as(index) if rows.position is None else rows.position[index])
                arguments = (row_vectors, move(index), move(present), section, position, queries_only)
                done.append(documents)
                if torch.is_grad_enabled() and not with_attentions:  # keep no activations of the graphs
                    vectors.append(checkpoint(self.attend, *arguments, use_reentrant=False)[0])
                    continue
                vector, weights = self.attend(*arguments)
                vectors.append(vector)
                for place, document in enumerate(documents.tolist() if with_attentions and weights else []):
                    nodes = 1 if queries_only else sizes[document] + 1
                    attentions[document] = torch.stack([layer[place, :, :nodes, :nodes] for layer in weights])
        return torch.cat(vectors)[move(torch.cat(done).argsort())], attentions if with_attentions else None

    def attend(
        self, vectors: Tensor, index: Tensor, present: Tensor, section: Any, position: Tensor, queries: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Turn documents of similar size into vectors (D, H), by equations 2 and 3; return each layer's weights too.

        Args:
            vectors: (P, H), what `encode_passages` gave.
            index: (D, n), which of them a document's passages are.
            present, section, position: (D, n), as `graph_edges` takes them.
            queries: no graph at all, or one of the document node alone.
        """
        passages = vectors[index] * present[..., None]  # (D, n, H)
        document = passages.sum(dim=1) / present.sum(dim=1, keepdim=True)
        if queries and not self.config.graph_queries:
            return document, []
        nodes, attentions = document[:, None], []
        if queries:
            edges = present.new_ones(len(nodes), 1, 1)
        else:
            nodes = torch.cat([nodes, passages], dim=1)  # (D, n + 1, H)
            edges = graph_edges(self.config.graph_kind, present, section, position)
        for number, layer in enumerate(self.layers):
            nodes = F.elu(nodes) if number else nodes
            nodes, attention = layer(nodes, edges)
            attentions.append(attention)
        return nodes[:, 0], attentions


GraphDocumentConfig.register_for_auto_class()
GraphDocumentModel.register_for_auto_class("AutoModel")
if __name__ == "modeling_graph_document":  # not the copy in a checkpoint: another checkpoint may have another one
    AutoConfig.register(GraphDocumentConfig.model_type, GraphDocumentConfig)
    AutoModel.register(GraphDocumentConfig, GraphDocumentModel)
