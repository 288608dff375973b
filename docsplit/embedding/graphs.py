"""Whole documents to vectors with a graph document model, in bulk: passages in micro-batches of similar length."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from docsplit.data.passages import Passage, split_sections
from docsplit.embedding.chunks import Advance, Layout, MicroBatch, embed_chunk, tokenized_batches
from docsplit.embedding.project_modules import plain_encoder
from docsplit.modeling.encoding import Rows
from docsplit.modeling.families.graph_document_transformer import GraphDocumentTransformer, rows_of
from docsplit.modeling.families.table import family_of
from docsplit.modeling.micro_batches import pool_texts
from docsplit.modeling.packed_attention import reading_pack
from docsplit.modeling.pooling import Pooling
from modeling_graph_document import GraphDocumentModel

logger = logging.getLogger(__name__)

CHUNK_TEXTS = 32  # of `document_attention`
SECTIONS_SOUGHT_IN = 1000  # documents


@dataclass(frozen=True)
class DocumentAttention:
    """The attention between the nodes of a document's graph."""

    passages: list[Passage]
    weights: np.ndarray  # (n + 1, n + 1) of the last layer, the mean over heads; node 0 is the document


def is_graph_encoder(model: Any) -> bool:
    """Whether an encoder embeds texts whole, by their passages."""
    return family_of(getattr(model[0], "config", None)).rows == "passages"


def has_graph_attention(model: Any) -> bool:
    """Whether passages attend to each other; a graph document model without layers only takes their mean."""
    return is_graph_encoder(model) and getattr(model[0].config, "graph_layers", 0) > 0


def note_sections(model: Any, name: str, texts: Sequence[str]) -> None:
    """Say in one line where an encoder joins passages by section, and the first documents have no sections."""
    first = [text for text in texts[:SECTIONS_SOUGHT_IN] if text.strip()]
    if not has_graph_attention(model) or model[0].config.graph_kind == "full" or not first:
        return
    if not any(len(split_sections(text)) > 1 for text in first):
        logger.warning(no_sections(name, model[0].config.graph_kind, f"the first {len(first):,} documents"))


def no_sections(name: str, graph_kind: str, documents: str) -> str:
    """Say that an encoder finds no sections to join passages by."""
    return (
        f"{name} joins passages by section (graph_kind {graph_kind}), and none of {documents} has two: all passages "
        "of a document are joined. docs/datasets.md says where sections come from."
    )


@torch.no_grad()
def document_attention(model: Any, texts: Sequence[str], kind: str | None = None) -> Iterator[DocumentAttention]:
    """Yield the graph attention in each text, in order.

    Args:
        model: from `load_encoder`, with `has_graph_attention(model)`.
        kind: the kind of graph, in place of the one it was trained with.
    """
    module: Any = plain_encoder(model, "Graph attention")[0]
    trained = module.config.graph_kind
    for start in range(0, len(texts), CHUNK_TEXTS):
        chunk = [text.encode("utf-8", "replace").decode() for text in texts[start : start + CHUNK_TEXTS]]
        features = {name: value.to(model.device) for name, value in module.preprocess(chunk).items()}
        module.config.graph_kind = kind or trained
        try:
            layers = module.model.eval()(**features, output_attentions=True).attentions
        finally:
            module.config.graph_kind = trained
        for passages, weights in zip(module.passages(chunk), layers):
            yield DocumentAttention(passages, weights[-1].mean(dim=0).float().cpu().numpy())


@dataclass(frozen=True)
class GraphReadings:
    """One document as an encoder reads it in several kinds of graphs, by the same weights."""

    passages: list[str]
    kind: str  # of the graph that the encoder was trained with
    weights: dict[str, np.ndarray]  # for each kind (n + 1, n + 1); node 0 is the document


def attention_by_kind(model: Any, name: str, text: str) -> GraphReadings | None:
    """Read the attention of a text's passages in a full graph and in one of sections.

    Returns: None for an encoder without graph attention, after a message.
    """
    if not has_graph_attention(model):
        logger.info(f"{name} has no graph attention: graph_attention reports the others.")
        return None
    trained = model[0].config.graph_kind
    kinds = list(dict.fromkeys(["full", "section", trained]))
    readings = {kind: next(document_attention(model, [text], kind)) for kind in kinds}
    passages = [passage.text for passage in readings[trained].passages]
    return GraphReadings(passages, trained, {kind: reading.weights for kind, reading in readings.items()})


class GraphEmbedder:
    """Embed as `GraphDocumentTransformer` does, but in micro-batches of passages.

    The passages of all documents of a chunk are sorted by length together; the graphs follow, in full precision.
    """

    def __init__(
        self,
        model: GraphDocumentModel,
        tokenizer: PreTrainedTokenizerBase,
        layout: Layout,
        prompt: str,
        dtype: torch.dtype,
    ):
        self.model, self.tokenizer, self.layout, self.prompt, self.dtype = model, tokenizer, layout, prompt, dtype
        assert layout.max_length is not None
        self.transformer = GraphDocumentTransformer(model, tokenizer, layout.max_length)

    def tokenize(self, texts: list[str]) -> tuple[list[MicroBatch], Rows]:
        """Return batches of the passages, and which document each passage is part of."""
        documents = self.transformer.passages(texts)
        pieces = [self.prompt + passage.text for passages in documents for passage in passages]
        batches = tokenized_batches(self.tokenizer, pieces, self.layout)
        rows = rows_of(documents)
        return batches, Rows(view=torch.zeros_like(rows["document"]), **rows)

    def embed(self, tokenized: tuple[list[MicroBatch], Rows], advance: Advance) -> np.ndarray:
        """Return the embeddings (texts, H), in the order of the texts."""
        batches, rows = tokenized
        device = self.model.device
        with torch.autocast(device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            vectors = torch.from_numpy(embed_chunk(self._forward, device, batches, advance))
        with torch.autocast(device.type, enabled=False):
            return self.model.combine(vectors.to(device, self.model.dtype), rows).float().cpu().numpy()

    def _forward(self, features: dict[str, Any]) -> Tensor:
        if self.layout.packing is None:
            return self.model.encode_passages(features["input_ids"], features["attention_mask"])

        def pool(states: Tensor, pooling: Pooling) -> Tensor:
            return pool_texts(states[0], features["cu_seq_lens_q"].long(), states.shape[1], pooling)

        with reading_pack():
            return self.model.encode_passages(**features, pool=pool)
