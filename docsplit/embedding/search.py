"""The documents with the highest scalar products with each query: exact, or above a million documents nearly so.

Exact search is by faiss where it is installed, else by torch in blocks, and needs some megabytes beside the vectors
either way: no matrix of all scores is ever made. Above `EXACT_DOCUMENTS`, faiss looks through a part of the cells of
an inverted file with 8 bits a number, and what it finds is scored anew with the vectors as they are; without faiss
the search stays exact, and takes longer.
"""

import logging
from typing import Any

import numpy as np
import torch

from docsplit.data.rankings import Retrieved
from docsplit.embedding.neighbours import unit

logger = logging.getLogger(__name__)

EXACT_DOCUMENTS = 1_000_000
BLOCK_VECTORS = 4096  # brought to length one at a time
BLOCK_QUERIES, BLOCK_VALUES = 256, 2**21  # scores at a time: 8 MB
PROBED_CELLS = 64  # of the inverted file, of 4 sqrt(N)
RESCORED = 2  # candidates, as a multiple of the depth
TRAINING_VECTORS = 64  # of the inverted file, a cell


def search(queries: np.ndarray, documents: np.ndarray, depth: int) -> tuple[Retrieved, str]:
    """The `depth` best documents of each query, equal scores in the order of rows.

    Args:
        queries: (Q, H) float32.
        documents: (N, H) float32, also memory-mapped.

    Returns: rows and scores, and how they were found, for the row of results.
    """
    depth, faiss = min(depth, len(documents)), _faiss()
    if faiss is None:
        return _by_torch(queries, documents, depth), "exact"
    if len(documents) > EXACT_DOCUMENTS:
        found = _by_inverted_file(faiss, queries, documents, depth)
        return Retrieved.best(*found, depth), "inverted file, 8 bits, rescored"
    scores, rows = faiss.knn(queries, documents, depth, faiss.METRIC_INNER_PRODUCT)  # in blocks of its own
    return Retrieved.best(rows, scores, depth), "exact"


def make_comparable(vectors: np.ndarray, similarity: str) -> None:
    """Bring vectors (N, H) to length one where `similarity` is cosine, in place: a copy would double the memory.

    Their scalar products are then the similarities that their encoder was trained for, cosine or dot.
    """
    for start in range(0, len(vectors) if similarity == "cosine" else 0, BLOCK_VECTORS):
        vectors[start : start + BLOCK_VECTORS] = unit(vectors[start : start + BLOCK_VECTORS])


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        return None
    return faiss


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


def _by_inverted_file(
    faiss: Any, queries: np.ndarray, documents: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """An index of 8 bits a number, and the best of what it finds by their true scores; (-1, -inf) where it is less."""
    cells = 4 * int(len(documents) ** 0.5)
    index = faiss.index_factory(documents.shape[1], f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    logger.info(f"Indexing {len(documents):,} documents in {cells:,} cells")
    sample = np.random.default_rng(0).permutation(len(documents))[: TRAINING_VECTORS * cells]
    index.train(np.ascontiguousarray(documents[np.sort(sample)]))
    for start in range(0, len(documents), EXACT_DOCUMENTS):
        index.add(np.ascontiguousarray(documents[start : start + EXACT_DOCUMENTS]))
    faiss.extract_index_ivf(index).nprobe = PROBED_CELLS
    all_rows, all_scores = [], []
    for query in queries:
        candidates = index.search(query[None], min(RESCORED * depth, len(documents)))[1][0]
        candidates = np.sort(candidates[candidates >= 0])
        scores = documents[candidates] @ query
        best = np.argsort(-scores, kind="stable")[:depth]
        missing = depth - len(best)
        all_rows.append(np.pad(candidates[best], (0, missing), constant_values=-1).astype(np.int32))
        all_scores.append(np.pad(scores[best], (0, missing), constant_values=-np.inf))
    return np.stack(all_rows), np.stack(all_scores)
