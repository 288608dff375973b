"""Queries to vectors: how an encoder wants a query is decided here and nowhere else."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer

from docsplit.embedding.encode import embed_documents
from docsplit.embedding.loading import resolve_query_prompt

logger = logging.getLogger(__name__)

SIMILARITIES = ("cosine", "dot")


def embed_queries(
    model: SentenceTransformer,
    queries: Sequence[str],
    prompt: str | None = None,
    dtype: torch.dtype | None = None,
    micro_batch_tokens: int | None = None,
    cache_dir: Path | None = None,
    show_progress: bool = False,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Embed queries, as `model.encode_query` would: with the prompt for queries, on the route for queries.

    Args:
        model: of `load_encoder`.
        prompt: put before each query. Default: the model's own for queries, else its default prompt.
        dtype, micro_batch_tokens, cache_dir, show_progress: as in `docsplit.embedding.encode.embed_documents`.

    Returns: (Q, H) float32, and for rows of results `query_prompt` and `similarity`, by which they and documents are
        to be compared, cosine or dot.
    """
    prompt = resolve_query_prompt(model, prompt)
    similarity = model.similarity_fn_name
    if similarity not in SIMILARITIES:
        logger.warning(f"This encoder compares by {similarity} distance; here documents are ranked by cosine.")
        similarity = "cosine"
    if not isinstance(model[0], Transformer):  # it has its own ways, a route for queries, say
        vectors = model.encode_query(list(queries), prompt=prompt, show_progress_bar=False)
    else:
        vectors, _ = embed_documents(
            model,
            queries,
            prompt,
            dtype=dtype,
            micro_batch_tokens=micro_batch_tokens,
            cache_dir=cache_dir,
            show_progress=show_progress,
        )
    return np.asarray(vectors, dtype=np.float32), {"query_prompt": prompt, "similarity": str(similarity)}
