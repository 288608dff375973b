"""Exact search by scalar products.

faiss searches where it is installed, else torch in blocks. Either needs some megabytes beside the vectors: no matrix
of all scores is ever made. The search stays exact for millions of documents: to sort 10^6 vectors of 128 dimensions
into the cells of an inverted file took as much processor time as 5,600 exact queries, and few evaluations have more.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from docsplit.data.sets.rankings import Retrieved
from docsplit.runtime.vectors import best_of_blocks, unit

BLOCK_VECTORS = 4096  # at a time
BLOCK_QUERIES, BLOCK_VALUES = 256, 2**21  # scores at a time: 8 MB


def search(queries: np.ndarray, documents: np.ndarray, depth: int) -> Retrieved:
    """Find the `depth` documents with the highest scalar product with each query, equal scores in the order of rows.

    Args:
        queries: (Q, H) float32.
        documents: (N, H) float32, also memory-mapped.
    """
    depth = min(depth, len(documents))
    try:
        import faiss
    except ImportError:
        return _in_blocks(queries, documents, depth)
    scores, rows = faiss.knn(queries, documents, depth, faiss.METRIC_INNER_PRODUCT)  # faiss makes blocks
    return Retrieved.best(rows, scores, depth)


def make_comparable(vectors: np.ndarray, similarity: str) -> None:
    """Scale vectors (N, H) to length one where `similarity` is cosine, in place: a copy would double the memory.

    Scalar products are then the similarities that the encoder was trained for, cosine or dot.
    """
    for start in range(0, len(vectors) if similarity == "cosine" else 0, BLOCK_VECTORS):
        vectors[start : start + BLOCK_VECTORS] = unit(vectors[start : start + BLOCK_VECTORS])


def _in_blocks(queries: np.ndarray, documents: np.ndarray, depth: int) -> Retrieved:
    """Search without faiss: one block of queries at a time, over all blocks of documents."""
    width = max(BLOCK_VALUES // BLOCK_QUERIES, depth)
    buffer = torch.empty(min(len(queries), BLOCK_QUERIES) * min(width, len(documents)))  # memory that is met once

    def products(block: Tensor) -> Iterator[Tensor]:
        for start in range(0, len(documents), width):
            part = torch.from_numpy(np.ascontiguousarray(documents[start : start + width]))
            scores = buffer[: len(block) * len(part)].view(len(block), len(part))
            yield torch.mm(block, part.T, out=scores)  # (Q', N')

    rows, scores = [], []
    for start in range(0, len(queries), BLOCK_QUERIES):
        block = torch.from_numpy(queries[start : start + BLOCK_QUERIES])
        best_rows, best_scores = best_of_blocks(products(block), len(block), depth)
        rows.append(best_rows.astype(np.int32))
        scores.append(best_scores)
    return Retrieved(np.concatenate(rows), np.concatenate(scores))
