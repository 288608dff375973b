"""Nearest neighbours of documents, and every document's vector averaged with those of its neighbours.

Averaging with neighbours needs no training, only the vectors of a corpus: `smooth` is a baseline of its own in the
probes (--smooth_neighbours), and what `docsplit.modeling.neighbour_distillation` teaches an encoder. In image
retrieval it is known as database-side augmentation (Turcot and Lowe 2009; weighted: Radenovic et al. 2018).

The search is exact up to `EXACT_DOCUMENTS`, and approximate with faiss above.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from docsplit.data.preparation import document_id
from docsplit.embedding import inverted_file

logger = logging.getLogger(__name__)

EXACT_DOCUMENTS = 100_000
CHUNK_VALUES = 2**25  # similarities at a time: 128 MB


def nearest(embeddings: np.ndarray, count: int, chunk: int = 1024) -> tuple[np.ndarray, np.ndarray]:
    """Rows and cosines of the `count` nearest other documents, (N, count) each, the nearest first.

    Args:
        embeddings: (N, H), of length one.
        count: less than N.
    """
    documents, found, cosines = torch.from_numpy(embeddings), [], []
    for start in range(0, len(documents), chunk):
        similarities = documents[start : start + chunk] @ documents.T
        similarities.diagonal(start).fill_(float("-inf"))  # each with itself
        best, rows = similarities.topk(count, dim=1)
        found.append(rows)
        cosines.append(best)
    return torch.cat(found).numpy(), torch.cat(cosines).numpy()


def check_search(num_documents: int) -> None:
    """Stop before any long work where the search would lack faiss.

    Raises:
        ValueError: naming the remedy.
    """
    if num_documents > EXACT_DOCUMENTS:
        try:
            import faiss  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f"The neighbours of {num_documents:,} documents are searched with faiss (above {EXACT_DOCUMENTS:,}), "
                "which is not installed: pip install faiss-cpu, or give fewer documents."
            ) from error


def nearest_approximately(embeddings: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """As `nearest`, with faiss: some neighbours are missed; where fewer are found, the rest has a cosine of -inf."""
    embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
    index, _ = inverted_file.make([embeddings])
    found, cosines = inverted_file.search(index, [embeddings], embeddings, count + 1)
    own = (found == np.arange(len(found))[:, None]) | (found < 0)
    cosines[own] = -np.inf
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return np.maximum(np.take_along_axis(found, order, axis=1), 0), np.take_along_axis(cosines, order, axis=1)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors (N, H) of length one, float32; those of length zero stay."""
    vectors = vectors.astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def smooth(
    vectors: np.ndarray, neighbours: int = 20, rounds: int = 2, share: float = 0.5, temperature: float = 0.1
) -> np.ndarray:
    """Average each vector with those of its nearest others.

    In each round v becomes (1 - share) v + share sum_j w_j v_j, of length one again, over its nearest neighbours in
    that round, where w is the softmax of cosine / temperature.

    Args:
        vectors: (N, H), of documents that all differ: a document must not be its own neighbour.
        neighbours: of each; all others where there are fewer. 0, as 0 rounds, averages nothing.

    Returns: (N, H) float32, of length one.

    Raises:
        ValueError: for fewer than two documents.
    """
    if neighbours == 0 or rounds == 0:
        return unit(vectors)
    if len(vectors) < 2:
        raise ValueError(f"{len(vectors)} document has no neighbours: give a corpus.")
    if neighbours >= len(vectors):
        logger.warning(f"{neighbours} neighbours of {len(vectors)} documents: each is averaged with all others.")
    check_search(len(vectors))
    count, chunk = min(neighbours, len(vectors) - 1), max(CHUNK_VALUES // len(vectors), 1)
    smoothed = unit(vectors)
    for _ in range(rounds):
        exact = len(vectors) <= EXACT_DOCUMENTS
        found, cosines = nearest(smoothed, count, chunk) if exact else nearest_approximately(smoothed, count)
        weights = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / temperature)  # (N, count)
        weights /= weights.sum(axis=1, keepdims=True)
        means = np.empty_like(smoothed)
        for start in range(0, len(means), 4096):
            rows = slice(start, start + 4096)
            means[rows] = np.einsum("nk,nkh->nh", weights[rows], smoothed[found[rows]])
        smoothed = unit((1 - share) * smoothed + share * means)
    return smoothed


def smooth_texts(texts: Sequence[str], vectors: np.ndarray, neighbours: int) -> np.ndarray:
    """`smooth` the vectors (N, H) of texts; texts that are the same document count as one."""
    ids = np.array([document_id(text) for text in texts])
    _, first, of_each = np.unique(ids, return_index=True, return_inverse=True)
    return smooth(vectors[first], neighbours)[of_each]
