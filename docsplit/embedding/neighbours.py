"""Nearest neighbours by scalar products: exact, or by an inverted file; and vectors averaged with their neighbours'.

search    documents for each query, exactly: by faiss where it is installed, else by torch in blocks. Either needs some
          megabytes beside the vectors: no matrix of all scores is ever made. The search stays exact for millions of
          documents: to sort 10^6 vectors of 128 dimensions into the cells of an inverted file took as much processor
          time as 5,600 exact queries, and few evaluations have more.
nearest   the other documents of each document, exactly
smooth    each vector averaged with those of its neighbours

An inverted file searches a part of millions of vectors for the nearest, with exact scores: faiss sorts the vectors
into cells and keeps 8 bits of each number. A query reads the nearest cells, and its candidates are scored again with
the vectors as they are. How many cells it reads is measured when the file is made: some of the vectors are queries,
and 98 % of their ten best must be those of an exact search.

Averaging needs no training, only the vectors of a corpus. `smooth` is a baseline in the probes (--smooth_neighbours),
and `docsplit.modeling.objectives.neighbour_distillation` teaches it to an encoder. In image retrieval it is known as
database-side augmentation (Turcot and Lowe 2009; weighted: Radenovic et al. 2018). Neighbours are near by the
encoder's cosine and by words (`word_vectors`): an encoder that has not seen the terms of a field takes documents for
alike that share none. Their search is exact up to `EXACT_DOCUMENTS` documents, and above it is approximate.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docsplit.data.copies import document_id
from docsplit.data.sets.rankings import Retrieved
from docsplit.data.words import tfidf_counter
from docsplit.runtime.vectors import best_of_blocks, unit

logger = logging.getLogger(__name__)

BLOCK_QUERIES, BLOCK_VALUES = 256, 2**21  # of an exact search at a time: 8 MB of scores
EXACT_DOCUMENTS = 100_000
CHUNK_VALUES = 2**25  # similarities at a time: 128 MB
RECALL = 0.98  # of an inverted file: the share of the ten best to be found
CHUNK = 100_000  # its vectors at a time
CANDIDATE_VALUES = 2**23  # numbers of its candidates at a time: 32 MB
WORD_DIMENSIONS = 128
WORD_DOCUMENTS = 100_000  # from which words and dimensions are learnt, evenly spaced in the corpus


# --- Documents for queries, exactly ---


def search(queries: np.ndarray, documents: np.ndarray, depth: int) -> Retrieved:
    """Find the `depth` documents with the highest scalar product with each query, equal scores in the order of rows.

    Args:
        queries: (Q, H) float32.
        documents: (N, H) float32, also memory-mapped.
    """
    depth = min(depth, len(documents))
    with contextlib.suppress(ImportError):
        import faiss

        scores, rows = faiss.knn(queries, documents, depth, faiss.METRIC_INNER_PRODUCT)  # faiss makes blocks
        return Retrieved.best(rows, scores, depth)
    # By torch: one block of queries at a time, over all blocks of documents
    width = max(BLOCK_VALUES // BLOCK_QUERIES, depth)
    buffer = torch.empty(min(len(queries), BLOCK_QUERIES) * min(width, len(documents)))  # memory that is met once

    def products(block: Tensor) -> Iterator[Tensor]:
        for start in range(0, len(documents), width):
            part = torch.from_numpy(np.ascontiguousarray(documents[start : start + width]))
            scores = buffer[: len(block) * len(part)].view(len(block), len(part))
            yield torch.mm(block, part.T, out=scores)  # (Q', N')

    blocks = torch.from_numpy(queries).split(BLOCK_QUERIES)
    rows, scores = zip(*(best_of_blocks(products(block), len(block), depth) for block in blocks))
    return Retrieved(np.concatenate(rows).astype(np.int32), np.concatenate(scores))


def make_comparable(vectors: np.ndarray, similarity: str) -> None:
    """Scale vectors (N, H) to length one where `similarity` is cosine, in place: a copy would double the memory.

    Scalar products are then the similarities that the encoder was trained for, cosine or dot.
    """
    for start in range(0, len(vectors) if similarity == "cosine" else 0, 4096):
        vectors[start : start + 4096] = unit(vectors[start : start + 4096])


# --- Documents for queries, by an inverted file. Vectors may lie in several arrays, memory-mapped too: rows are
# counted through all of them.


def make_inverted_file(parts: Sequence[np.ndarray]) -> tuple[Any, float]:
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
    index.train(sample(64 * cells))
    chunks = [part[start : start + CHUNK] for part in parts for start in range(0, len(part), CHUNK)]
    for chunk in chunks:
        index.add(np.ascontiguousarray(chunk))
    # As many cells as it takes
    queries, depth = sample(200), min(10, total)
    exact, _ = best_of_blocks((queries @ chunk.T for chunk in chunks), len(queries), depth)
    index.nprobe, recall = 1, 0.0
    while recall < RECALL and index.nprobe < cells:
        index.nprobe = min(2 * index.nprobe, cells)
        rows, _ = search_inverted_file(index, parts, queries, depth)
        recall = float(np.mean([len({*some} & {*best}) / depth for some, best in zip(rows.tolist(), exact.tolist())]))
    best = f"{100 * recall:.1f} % of the best"
    logger.info(f"{total:,} vectors are in {cells:,} cells; a query reads {index.nprobe}: {best}.")
    return index, recall


def search_inverted_file(
    index: Any, parts: Sequence[np.ndarray], queries: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find vectors that probably have the highest scalar products with each query.

    Args:
        index: from `make_inverted_file`, for these parts.
        queries: (Q, H) float32.
        count: K.

    Returns: rows and exact scores, (Q, K) each, the best first; -1 and -inf where fewer were found.
    """
    depth = max(2 * count, 100)  # candidates, which are scored again
    rows = np.full((len(queries), count), -1, dtype=np.int64)
    scores = np.full((len(queries), count), -np.inf, dtype=np.float32)
    step = max(CANDIDATE_VALUES // (depth * queries.shape[1]), 1)
    for start in range(0, len(queries), step):
        block = np.ascontiguousarray(queries[start : start + step])
        candidates = index.search(block, depth)[1]  # (Q', depth)
        exact = np.einsum("qkh,qh->qk", vectors_of(parts, np.maximum(candidates, 0)), block)
        exact[candidates < 0] = -np.inf
        best = np.argsort(-exact, axis=1, kind="stable")[:, :count]
        rows[start : start + step] = np.take_along_axis(candidates, best, axis=1)
        scores[start : start + step] = np.take_along_axis(exact, best, axis=1)
    return rows, scores


def vectors_of(parts: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Gather the vectors (..., H) of rows (...) that are counted through all parts."""
    ends = np.cumsum([len(part) for part in parts])
    owners = np.searchsorted(ends, rows, side="right")
    vectors = np.empty((*rows.shape, parts[0].shape[1]), dtype=np.float32)
    for owner in np.unique(owners):
        inside = owners == owner
        vectors[inside] = parts[owner][rows[inside] - (ends[owner] - len(parts[owner]))]
    return vectors


# --- Neighbours of documents, and their averages ---


def nearest(embeddings: np.ndarray, count: int, chunk: int = 1024) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest other documents of each document, exactly.

    Args:
        embeddings: (N, H); scalar products are cosines if they have length one.
        count: k, less than N.
        chunk: documents at a time.

    Returns: rows and scalar products, (N, k) each, the nearest first.
    """
    documents, rows, products = torch.from_numpy(embeddings), [], []
    for start in range(0, len(documents), chunk):
        scores = documents[start : start + chunk] @ documents.T
        scores.diagonal(start).fill_(float("-inf"))  # each with itself
        best_scores, best_rows = scores.topk(count, dim=1)
        rows.append(best_rows)
        products.append(best_scores)
    return torch.cat(rows).numpy(), torch.cat(products).numpy()


def check_search(num_documents: int) -> None:
    """Check, before any long work, that faiss is there if the search needs it.

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
    """Search as `nearest` does, with faiss: some neighbours are missed, and missing scalar products are -inf."""
    embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
    index, _ = make_inverted_file([embeddings])
    rows, products = search_inverted_file(index, [embeddings], embeddings, count + 1)
    products[(rows == np.arange(len(rows))[:, None]) | (rows < 0)] = -np.inf  # each with itself, and none
    order = np.argsort(-products, axis=1, kind="stable")[:, :count]
    return np.maximum(np.take_along_axis(rows, order, axis=1), 0), np.take_along_axis(products, order, axis=1)


def word_vectors(texts: Sequence[str]) -> np.ndarray:
    """Reduce TF-IDF of the words of documents to few dimensions: latent semantic analysis (Deerwester et al., 1990).

    A word that only one document has is left out; frequent words weigh little.

    Returns: (N, W) float32, of length one, or zero for a document without any of the words. W is 128 or less.
    """
    from sklearn.decomposition import TruncatedSVD

    learnt = list(islice(texts, 0, None, -(-len(texts) // WORD_DOCUMENTS)))
    counter = tfidf_counter(min_df=2, dtype=np.float32)
    with contextlib.suppress(ValueError):  # no word is left: the only error of `fit` for texts
        counter.fit(learnt)
    if len(getattr(counter, "vocabulary_", ())) < 2:  # the fewest that can be reduced
        logger.warning(f"No words are in two of {len(learnt)} documents: the encoder alone finds neighbours.")
        return np.zeros((len(texts), 1), dtype=np.float32)
    weights = counter.transform(learnt)
    reduced = TruncatedSVD(min(WORD_DIMENSIONS, *weights.shape), random_state=0).fit(weights)
    source, parts = iter(texts), []
    while part := list(islice(source, 10_000)):
        parts.append(unit(reduced.transform(counter.transform(part))))
    return np.concatenate(parts)


def smooth(
    vectors: np.ndarray,
    neighbours: int = 20,
    rounds: int = 2,
    share: float = 0.5,
    temperature: float = 0.1,
    words: np.ndarray | None = None,
) -> np.ndarray:
    """Average each vector with those of its nearest neighbours.

    A round replaces v by (1 - share) v + share sum_j w_j v_j, scaled to length one. The sum is over the nearest
    neighbours in that round, and w is the softmax of similarity / temperature.

    Args:
        vectors: (N, H). All documents must differ: a document must not be its own neighbour.
        neighbours: of each document; all others where there are fewer. 0 averages nothing, and neither do 0 rounds.
        words: (N, W) from `word_vectors`, perhaps scaled. Their scalar product is added to the cosine of the vectors;
            None: the cosine alone is the similarity.

    Returns: (N, H) float32, of length one.

    Raises:
        ValueError: for fewer than two documents.

    Example:
        >>> import numpy as np
        >>> from docsplit import smooth
        >>> smooth(np.float32([[1, 0], [0.8, 0.6], [0, 1]]), neighbours=1, rounds=1).round(2)
        array([[0.95, 0.32],
               [0.95, 0.32],
               [0.45, 0.89]], dtype=float32)
    """
    if neighbours == 0 or rounds == 0:
        return unit(vectors)
    if len(vectors) < 2:
        raise ValueError(f"{len(vectors)} document has no neighbours: give a corpus.")
    if neighbours >= len(vectors):
        logger.warning(f"{neighbours} neighbours of {len(vectors)} documents: each is averaged with all others.")
    check_search(len(vectors))
    count, chunk = min(neighbours, len(vectors) - 1), max(CHUNK_VALUES // len(vectors), 1)
    exact = len(vectors) <= EXACT_DOCUMENTS
    smoothed = unit(vectors)
    for _ in range(rounds):
        # The neighbours of this round, and their weights.
        keys = smoothed if words is None else np.concatenate([smoothed, words], axis=1)
        nearest_rows, similarities = nearest(keys, count, chunk) if exact else nearest_approximately(keys, count)
        weights = np.exp((similarities - similarities.max(axis=1, keepdims=True)) / temperature)  # (N, count)
        weights /= weights.sum(axis=1, keepdims=True)
        # Their weighted means, some documents at a time.
        means = np.empty_like(smoothed)
        for start in range(0, len(means), 4096):
            rows = slice(start, start + 4096)
            means[rows] = np.einsum("nk,nkh->nh", weights[rows], smoothed[nearest_rows[rows]])
        smoothed = unit((1 - share) * smoothed + share * means)
    return smoothed


def smooth_texts(texts: Sequence[str], vectors: np.ndarray, neighbours: int, by_words: bool = True) -> np.ndarray:
    """Smooth the vectors (N, H) of texts; texts of the same document count as one."""
    ids = np.array([document_id(text) for text in texts])
    _, first, document = np.unique(ids, return_index=True, return_inverse=True)
    words = word_vectors([texts[row] for row in first]) if by_words else None
    return smooth(vectors[first], neighbours, words=words)[document]
