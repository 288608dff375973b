"""An inverted file: search a part of millions of vectors for the nearest, with exact scores.

faiss sorts the vectors into cells and keeps 8 bits of each number. A query reads the nearest cells, and its candidates
are scored again with the vectors as they are. How many cells it reads is measured when the file is made: some of the
vectors are queries, and 98 % of their ten best must be those of an exact search.

The vectors may lie in several arrays, memory-mapped too; rows are counted through all of them.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from docsplit.runtime.vectors import best_of_blocks

logger = logging.getLogger(__name__)

RECALL, TRIED, DEEP = 0.98, 200, 10  # the share of the ten best to be found, measured with 200 vectors as queries
CANDIDATES, FEWEST_CANDIDATES = 2, 100  # vectors that are scored anew, for each that is wanted; at least in all
TRAINED = 64  # vectors a cell, from which the cells are learnt
CHUNK = 100_000  # vectors at a time
CHUNK_VALUES = 2**23  # numbers of candidates at a time: 32 MB


def make(parts: Sequence[np.ndarray]) -> tuple[Any, float]:
    """Sort all vectors into 4 sqrt(N) cells.

    It needs memory for 64 vectors a cell while the cells are learnt, and then a byte for each number.

    Args:
        parts: arrays (N', H) float32, of N vectors together.

    Returns: a faiss index that looks into as many cells as `RECALL` takes, and the recall that was measured.

    Raises:
        ImportError: without faiss.
    """
    import faiss

    total, width = sum(map(len, parts)), parts[0].shape[1]
    cells, generator = max(int(4 * total**0.5), 1), np.random.default_rng(0)

    def sample(count: int) -> np.ndarray:
        return vectors_of(parts, np.sort(generator.choice(total, min(count, total), replace=False)))

    index = faiss.index_factory(width, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(sample(TRAINED * cells))
    for part in parts:
        for start in range(0, len(part), CHUNK):
            index.add(np.ascontiguousarray(part[start : start + CHUNK]))
    queries, depth = sample(TRIED), min(DEEP, total)
    blocks = (queries @ part[start : start + CHUNK].T for part in parts for start in range(0, len(part), CHUNK))
    exact, _ = best_of_blocks(blocks, len(queries), depth)
    index.nprobe, recall = 1, 0.0
    while recall < RECALL and index.nprobe < cells:
        index.nprobe = min(2 * index.nprobe, cells)
        rows, _ = search(index, parts, queries, depth)
        recall = float(np.mean([len({*some} & {*best}) / depth for some, best in zip(rows.tolist(), exact.tolist())]))
    best = f"{100 * recall:.1f} % of the best"
    logger.info(f"{total:,} vectors are in {cells:,} cells; a query reads {index.nprobe}: {best}.")
    return index, recall


def search(index: Any, parts: Sequence[np.ndarray], queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find vectors that probably have the highest scalar products with each query.

    Args:
        index: from `make`, for these parts.
        queries: (Q, H) float32.
        count: K.

    Returns: rows and exact scores, (Q, K) each, the best first; -1 and -inf where fewer were found.
    """
    depth = num_candidates(count)
    rows = np.full((len(queries), count), -1, dtype=np.int64)
    scores = np.full((len(queries), count), -np.inf, dtype=np.float32)
    step = max(CHUNK_VALUES // (depth * queries.shape[1]), 1)
    for start in range(0, len(queries), step):
        block = np.ascontiguousarray(queries[start : start + step])
        candidates = index.search(block, depth)[1]  # (Q', depth)
        exact = np.einsum("qkh,qh->qk", vectors_of(parts, np.maximum(candidates, 0)), block)
        exact[candidates < 0] = -np.inf
        best = np.argsort(-exact, axis=1, kind="stable")[:, :count]
        rows[start : start + step] = np.take_along_axis(candidates, best, axis=1)
        scores[start : start + step] = np.take_along_axis(exact, best, axis=1)
    return rows, scores


def num_candidates(count: int, for_each: int = CANDIDATES) -> int:
    """Count the vectors that are scored anew where `count` are wanted."""
    return max(for_each * count, FEWEST_CANDIDATES)


def vectors_of(parts: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Gather the vectors (..., H) of rows (...) that are counted through all parts."""
    ends = np.cumsum([len(part) for part in parts])
    owners = np.searchsorted(ends, rows, side="right")
    vectors = np.empty((*rows.shape, parts[0].shape[1]), dtype=np.float32)
    for owner in np.unique(owners):
        inside = owners == owner
        vectors[inside] = parts[owner][rows[inside] - (ends[owner] - len(parts[owner]))]
    return vectors
