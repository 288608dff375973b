"""Whole documents to vectors with a graph document model, in bulk: passages in micro-batches of similar length."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from docsplit.embedding.chunks import Advance, MicroBatch, embed_chunk, padded_batches
from docsplit.embedding.graph_document_transformer import GraphDocumentTransformer, rows_of
from docsplit.modeling.encoding import Rows
from docsplit.modeling.graph_documents import GRAPH_MODULE, write_graph_code
from docsplit.modeling.sentence_transformers_files import MODULES
from docsplit.runtime.files import write_text
from modeling_graph_document import GraphDocumentModel


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """A graph document model, saved with the code that programs without this package load it with.

    It has the name of its parent, which stands in the card that it writes.
    """

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """As the parent's, which would name the module as it is called in this package."""
        super().save(path, *args, **kwargs)
        modules = json.loads((Path(path) / MODULES).read_text(encoding="utf-8"))
        modules[0]["type"] = GRAPH_MODULE
        write_text(Path(path) / MODULES, json.dumps(modules, indent=2) + "\n")
        write_graph_code(Path(path))


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
