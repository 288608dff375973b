"""The encoder of an index: documents and queries to vectors that its similarity compares by a dot product."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.embedding.encode import embed_documents, identity
from docsplit.embedding.loading import describe_encoder, load_encoder, resolve_prompt
from docsplit.embedding.neighbours import unit
from docsplit.embedding.queries import SIMILARITIES, embed_queries
from docsplit.modeling.settings import Pooling


class IndexedEncoder:
    """An encoder with the options that an index was built with.

    Args:
        name: of a SentenceTransformer or any `AutoModel`, on the Hub or here.
        pooling, max_seq_length, prompt: as those of the probes; None: the encoder's own.
        cache_dir: where embeddings are kept until the index is written: a run that was stopped goes on.

    Raises:
        ValueError: if it cannot be loaded, or compares vectors neither by cosine nor by dot product.
    """

    def __init__(
        self,
        name: str,
        pooling: Pooling | None = None,
        max_seq_length: int | None = None,
        prompt: str | None = None,
        cache_dir: Path | None = None,
    ):
        self.model, self.cache_dir = load_encoder(name, pooling, max_seq_length), cache_dir
        self.prompt = resolve_prompt(self.model, prompt)
        similarity = str(self.model.similarity_fn_name or "cosine")
        if similarity not in SIMILARITIES:
            raise ValueError(f"{name} compares vectors by {similarity}: an index can by cosine or dot product alone.")
        self.is_cosine = similarity == "cosine"
        facts = describe_encoder(self.model)
        local = Path(name)
        self.description: dict[str, Any] = {
            "name": str(local.resolve()) if local.exists() else name,
            "hash": identity(self.model),
            "given": {"pooling": pooling, "max_seq_length": max_seq_length, "prompt": prompt},
            "pooling": facts["pooling"],
            "max_seq_length": facts["max_seq_length"],
            "prompt": self.prompt,
            "similarity": similarity,
            "dimension": self.model.truncate_dim or self.model.get_embedding_dimension(),
        }

    @classmethod
    def of(
        cls, description: dict[str, Any], name: str | None = None, cache_dir: Path | None = None
    ) -> "IndexedEncoder":
        """The one that a manifest describes, at another place perhaps."""
        return cls(name or description["name"], **description["given"], cache_dir=cache_dir)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Documents or passages, (N, H) float32, of length one if the similarity is the cosine."""
        vectors, _ = embed_documents(
            self.model, texts, prompt=self.prompt, cache_dir=self.cache_dir, show_progress=True
        )
        return unit(vectors) if self.is_cosine else vectors

    def embed_query(self, text: str) -> np.ndarray:
        """A query, (H,) float32: with the encoder's prompt for queries, where it has one."""
        vectors, _ = embed_queries(self.model, [text])
        return (unit(vectors) if self.is_cosine else vectors)[0]
