"""Whole documents to vectors with a graph document model, in bulk: passages in micro-batches of similar length."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from docsplit.embedding.chunks import Advance, MicroBatch, embed_chunk, padded_batches
from docsplit.embedding.graph_document_transformer import GraphDocumentTransformer, rows_of
from docsplit.modeling.encoding import Rows
from modeling_graph_document import GraphDocumentModel


class GraphEmbedder:
    """What `GraphDocumentTransformer` gives as a module of SentenceTransformer, in micro-batches of passages.

    The passages of all documents of a chunk are sorted by length together; the graphs follow, in full precision.
    """

    def __init__(
        self,
        model: GraphDocumentModel,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        prompt: str,
        dtype: torch.dtype,
        micro_batch_tokens: int,
    ):
        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        self.transformer = GraphDocumentTransformer(model, tokenizer, max_seq_length)
        self.dtype, self.micro_batch_tokens = dtype, micro_batch_tokens

    def tokenize(self, texts: list[str]) -> tuple[list[MicroBatch], Rows]:
        """Batches of the passages, and what each is part of."""
        documents = self.transformer.passages(texts)
        pieces = [self.prompt + passage.text for passages in documents for passage in passages]
        length = self.transformer.max_seq_length
        batches = padded_batches(self.tokenizer, pieces, length, self.micro_batch_tokens, "right", multiple=1)
        rows = rows_of(documents)
        return batches, Rows(view=torch.zeros_like(rows["document"]), **rows)

    def embed(self, tokenized: tuple[list[MicroBatch], Rows], advance: Advance) -> np.ndarray:
        """(texts, H), in their order."""
        batches, rows = tokenized
        device = self.model.device
        with torch.autocast(device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            vectors = torch.from_numpy(embed_chunk(self._forward, device, batches, advance))
        with torch.autocast(device.type, enabled=False):
            return self.model.combine(vectors.to(device), rows).float().cpu().numpy()

    def _forward(self, features: dict[str, Any]) -> Tensor:
        return self.model.encode_passages(features["input_ids"], features["attention_mask"])
