"""Scale vectors to length one, and find the best rows of scores: of all at once, or block by block."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a search by words needs no torch
    from torch import Tensor


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (N, H) to length one, float32; a vector of zeros stays."""
    vectors = vectors.astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def best_of(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the `count` highest of scores (N,), the best first; of equal ones the lower row comes first.

    Scores of -inf are none.
    """
    rows = np.flatnonzero(scores > -np.inf)
    if len(rows) > count:
        least = np.partition(scores[rows], -count)[-count]
        rows = rows[scores[rows] >= least]  # also all that equal the last one
    return rows[np.argsort(-scores[rows], kind="stable")[:count]]


def best_of_blocks(
    blocks: "Iterable[np.ndarray | Tensor]", num_queries: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the `count` highest scores of each query, the best first; of equal scores the lower row comes first.

    The result does not depend on where blocks begin, and no more than one block is in memory.

    Args:
        blocks: scores (Q, n) float32, a block after another. Rows are counted through all blocks. A block may be
            overwritten once the next one is asked for.
        num_queries: Q.
        count: K; fewer where there are fewer rows.

    Returns: rows int64 and scores float32, (Q, K) each.
    """
    import torch

    scores, rows, offset = torch.empty(num_queries, 0), torch.empty(num_queries, 0, dtype=torch.int64), 0
    for block in blocks:
        block = torch.as_tensor(block)
        size = wanted = block.shape[1]
        if scores.shape[1] == count:  # fewer and fewer are better than the worst of the best so far
            wanted = int(np.count_nonzero(block > scores.amin(dim=1, keepdim=True), axis=1).max(initial=0))
        if wanted:
            numbers = torch.arange(offset, offset + size).expand(num_queries, size)
            best, places = _best(block, numbers, min(wanted, count))
            scores, rows = _best(torch.cat([scores, best], dim=1), torch.cat([rows, places], dim=1), count)
        offset += size
    order = np.lexsort((rows.numpy(), -scores.numpy()))
    return np.take_along_axis(rows.numpy(), order, axis=1), np.take_along_axis(scores.numpy(), order, axis=1)


def _best(scores: "Tensor", rows: "Tensor", count: int) -> "tuple[Tensor, Tensor]":
    """Choose the best of scores and rows, (Q, n) each, in no order; of equal scores the lower rows are chosen."""
    if scores.shape[1] <= count:
        return scores.clone(), rows
    best, places = scores.topk(count, dim=1, sorted=False)
    chosen, worst = rows.gather(1, places), best.amin(dim=1, keepdim=True)
    # `topk` chooses any of those that equal the worst score.
    candidates = np.count_nonzero(scores >= worst, axis=1)
    for query in np.flatnonzero(candidates > count):
        last = best[query] == worst[query]
        tied = rows[query][scores[query] == worst[query]]
        chosen[query, last] = tied.sort().values[: int(last.sum())]
    return best, chosen
