"""The options of scripts that compare encoders, and what they do with them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from docsplit.embedding.encode import embed_documents
from docsplit.embedding.loading import describe_encoder, load_encoder, resolve_prompt
from docsplit.modeling.long_documents import LongDocuments
from docsplit.modeling.settings import Pooling
from docsplit.runtime.files import cache_directory
from docsplit.runtime.launching import default_dtype

logger = logging.getLogger(__name__)


@dataclass
class EncoderArguments:
    """The encoders to compare and how they embed."""

    model_name_or_path: list[str] = field(
        metadata={
            "help": "Encoders on the Hub or here, side by side: SentenceTransformers or any AutoModel; in the "
            "classification script also tfidf."
        }
    )
    pooling: Pooling | None = field(
        default=None,
        metadata={"help": "Token states to embedding, for encoders that say nothing about it. Default: cls."},
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Tokens of a text, with special ones. Default: the checkpoint's, else 512 (the paper's)."},
    )
    long_documents: LongDocuments = field(
        default="truncate",
        metadata={"help": "Of longer texts: the beginning alone, or the mean over chunks of that length."},
    )
    prompt: str | None = field(
        default=None, metadata={"help": "Put before each text (INSTRUCTOR, E5). Default: the checkpoint's own."}
    )
    dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "Of the matrix products. auto: bfloat16 where the hardware has it."}
    )
    embedding_tokens: int | None = field(
        default=None,
        metadata={"help": "Texts x longest text of one forward pass: speed and memory. Default: 2048 (GPU 16384)."},
    )

    def __post_init__(self) -> None:
        if self.max_seq_length is not None and self.max_seq_length < 3:
            raise ValueError(f"--max_seq_length is {self.max_seq_length}: a token needs room beside the special ones.")
        if self.embedding_tokens is not None and self.embedding_tokens < 1:
            raise ValueError(f"--embedding_tokens is {self.embedding_tokens}: expected 1 or more.")

    def load(self, name: str) -> SentenceTransformer:
        return load_encoder(name, self.pooling, self.max_seq_length)

    def resolve_dtype(self, device: torch.device) -> torch.dtype:
        return default_dtype(device) if self.dtype == "auto" else getattr(torch, self.dtype)

    def embed(
        self, model: SentenceTransformer, texts: Sequence[str], cached: bool = True, show_progress: bool = False
    ) -> tuple[np.ndarray, float]:
        """`embed_documents` with these options."""
        return embed_documents(
            model,
            texts,
            prompt=self.prompt,
            long_documents=self.long_documents,
            dtype=self.resolve_dtype(model.device),
            micro_batch_tokens=self.embedding_tokens,
            cache_dir=cache_directory() if cached else None,
            show_progress=show_progress,
        )

    def check(self, name: str, texts: Sequence[str]) -> None:
        """Load an encoder and embed a few texts, so that what cannot work fails before any long work.

        Raises:
            ValueError: naming the encoder.
        """
        model = self.load(name)
        try:
            self.embed(model, texts, cached=False)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def embed_all(self, name: str, texts: Sequence[str], show_progress: bool) -> tuple[np.ndarray, dict[str, Any]]:
        """Embed each distinct text once.

        Returns: (len(texts), H) float32, and what a row of results says about them.
        """
        model = self.load(name)
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        logger.info(f"Embedding {len(rows):,} texts with {name} on {model.device}")
        embeddings, seconds = self.embed(model, list(rows), show_progress=show_progress)
        dtype = str(self.resolve_dtype(model.device)).removeprefix("torch.")
        info = {"long_documents": self.long_documents, "dtype": dtype, "embedding_seconds": seconds}
        info["prompt"] = resolve_prompt(model, self.prompt)
        return embeddings[[rows[text] for text in texts]], describe_encoder(model) | info
