"""The documents with the highest scalar products with each query, exactly.

The search is by faiss where it is installed, else by torch in blocks, and needs some megabytes beside the vectors
either way: no matrix of all scores is ever made. It stays exact for millions of documents: to sort 10^6 vectors of 128
dimensions into the cells of an inverted file took as much processor time as 5,600 exact queries, and seldom has an
evaluation more.
"""

import numpy as np
import torch

from docsplit.data.sets.rankings import Retrieved
from docsplit.embedding.neighbours import unit

BLOCK_VECTORS = 4096  # brought to length one at a time
BLOCK_QUERIES, BLOCK_VALUES = 256, 2**21  # scores at a time: 8 MB


def search(queries: np.ndarray, documents: np.ndarray, depth: int) -> Retrieved:
    """The `depth` best documents of each query, equal scores in the order of rows.

    Args:
        queries: (Q, H) float32.
        documents: (N, H) float32, also memory-mapped.
    """
    depth = min(depth, len(documents))
    try:
        import faiss
    except ImportError:
        return _by_torch(queries, documents, depth)
    scores, rows = faiss.knn(queries, documents, depth, faiss.METRIC_INNER_PRODUCT)  # in blocks of its own
    return Retrieved.best(rows, scores, depth)


def make_comparable(vectors: np.ndarray, similarity: str) -> None:
    """Bring vectors (N, H) to length one where `similarity` is cosine, in place: a copy would double the memory.

    Their scalar products are then the similarities that their encoder was trained for, cosine or dot.
    """
    for start in range(0, len(vectors) if similarity == "cosine" else 0, BLOCK_VECTORS):
        vectors[start : start + BLOCK_VECTORS] = unit(vectors[start : start + BLOCK_VECTORS])


def _by_torch(queries: np.ndarray, documents: np.ndarray, depth: int) -> Retrieved:
    """Block by block of queries, and of documents, whose best are joined with the best so far."""
    found = []
    width = max(BLOCK_VALUES // BLOCK_QUERIES, depth)
    buffer = torch.empty(min(len(queries), BLOCK_QUERIES) * min(width, len(documents)))  # memory that is met once
    for start in range(0, len(queries), BLOCK_QUERIES):
        block = torch.from_numpy(queries[start : start + BLOCK_QUERIES])
        scores, rows = torch.empty(len(block), 0), torch.empty(len(block), 0, dtype=torch.int32)
        for first in range(0, len(documents), width):
            part = torch.from_numpy(np.ascontiguousarray(documents[first : first + width]))
            products = buffer[: len(block) * len(part)].view(len(block), len(part))
            torch.mm(block, part.T, out=products)
            count = min(depth, products.shape[1])
            if first:  # fewer and fewer are better than the worst of the best so far
                count = min(count, int(np.count_nonzero(products > scores.amin(dim=1, keepdim=True), axis=1).max()))
            best, own = products.topk(count, dim=1, sorted=False)
            scores, rows = torch.cat([scores, best], dim=1), torch.cat([rows, own.int() + first], dim=1)
            scores, kept = scores.topk(min(depth, scores.shape[1]), dim=1, sorted=False)
            rows = rows.gather(1, kept)
        found.append(Retrieved.best(rows.numpy(), scores.numpy(), depth))
    return Retrieved(np.concatenate([one.rows for one in found]), np.concatenate([one.scores for one in found]))
