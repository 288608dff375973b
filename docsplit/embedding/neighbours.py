"""Nearest neighbours of documents, and vectors that are averaged with those of their neighbours.

Averaging needs no training, only the vectors of a corpus. `smooth` is a baseline in the probes (--smooth_neighbours),
and `docsplit.modeling.objectives.neighbour_distillation` teaches it to an encoder. In image retrieval it is known as
database-side augmentation (Turcot and Lowe 2009; weighted: Radenovic et al. 2018).

Neighbours are near by the encoder's cosine and by words (`word_vectors`): an encoder that has not seen the terms of a
field takes documents for alike that share none. The search is exact up to `EXACT_DOCUMENTS` documents, and above it is
approximate, with faiss.
"""

import contextlib
import logging
from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch

from docsplit.data.seen_documents import document_id
from docsplit.data.words import tfidf_counter
from docsplit.embedding import inverted_file
from docsplit.runtime.vectors import unit

logger = logging.getLogger(__name__)

EXACT_DOCUMENTS = 100_000
CHUNK_VALUES = 2**25  # similarities at a time: 128 MB
WORD_DIMENSIONS = 128
WORD_DOCUMENTS = 100_000  # from which words and dimensions are learnt, evenly spaced in the corpus


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
    index, _ = inverted_file.make([embeddings])
    rows, products = inverted_file.search(index, [embeddings], embeddings, count + 1)
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
