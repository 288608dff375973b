"""BM25 finds the best documents of a collection for queries, and scores given pairs of documents."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from docsplit.data.sets.citations import PairPart, pair_products
from docsplit.data.sets.rankings import Retrieved
from docsplit.data.words import ENGLISH, Stems, stem_tokens

logger = logging.getLogger(__name__)


class BM25:
    """An index of documents by the stems of their words, by bm25s.

    Args:
        language: of the stems (`docsplit.data.words.LANGUAGES`); none: whole words.
        k1, b: the defaults are those of bm25s; Anserini's are 0.9 and 0.4.
    """

    def __init__(
        self,
        documents: Sequence[str],
        language: str = ENGLISH,
        k1: float = 1.5,
        b: float = 0.75,
        show_progress: bool = False,
    ):
        self.size, self.stems, self.show_progress = len(documents), Stems(language), show_progress
        _, self.retriever = _index(documents, language, show_progress, k1=k1, b=b)

    def retrieve(self, queries: Sequence[str], depth: int) -> Retrieved:
        """Return the `depth` best documents of each query, only those that share a word with it."""
        if self.retriever is None:
            nothing = np.full((len(queries), min(depth, self.size)), -1, dtype=np.int32)
            return Retrieved(nothing, np.zeros(nothing.shape, dtype=np.float32))
        words = [self.stems.of(query) for query in queries]
        rows, scores = self.retriever.retrieve(
            words, k=min(depth, self.size), show_progress=self.show_progress, leave_progress=False
        )
        return Retrieved.best(np.where(scores > 0, rows, -1), np.where(scores > 0, scores, 0), depth)

    def scores(self, queries: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Score documents of each query by their rows, (Q, K), -1: none. Returns (Q, K) float32."""
        scores = np.zeros(rows.shape, dtype=np.float32)
        for place, query in enumerate(queries):
            if self.retriever is not None and (numbers := self.retriever.get_tokens_ids(self.stems.of(query))):
                scores[place] = np.where(rows[place] >= 0, self.retriever.get_scores(numbers)[rows[place]], 0)
        return scores


def _index(texts: Sequence[str], language: str, show_progress: bool, **parameters: float) -> tuple[Any, Any]:
    """Return the stems of texts and bm25s's index of them; None where no text has a word, of which it makes none."""
    import bm25s  # starts JAX where that is installed, whose threads and the forks of loaders do not go together

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import asks for all its messages
    tokens = stem_tokens(texts, language, show_progress)
    if not any(tokens.ids):
        logger.warning(f"None of the {len(texts):,} documents has a word that BM25 counts: it finds none.")
        return tokens, None
    retriever = bm25s.BM25(**parameters)
    retriever.index(tokens, show_progress=show_progress, leave_progress=False)
    return tokens, retriever


def bm25_scores(
    texts: Sequence[str], part: PairPart, language: str = ENGLISH, show_progress: bool = False
) -> np.ndarray:
    """Score pairs by BM25 (bm25s, its defaults, stems), averaged over both directions: (P,) float32.

    Each paper of a pair is a query for the other.

    The term weights of the index are those of `bm25s`; only the scores of the pairs asked for are added up.

    Args:
        texts: all papers. They are the collection in which terms are rare or frequent.
        part: the pairs. Reading the texts takes long, so join the pairs of all splits and score them at once.
    """
    tokens, retriever = _index(texts, language, show_progress)
    if retriever is None:
        return np.zeros(len(part.labels), dtype=np.float32)
    index = retriever.scores
    num_terms = len(index["indptr"]) - 1
    weights = scipy.sparse.csc_matrix(
        (index["data"], index["indices"], index["indptr"]), shape=(len(texts), num_terms)
    ).tocsr()  # (N, V): what a term adds for a document that has it
    starts = np.cumsum([0, *map(len, tokens.ids)])
    terms = np.fromiter((term for ids in tokens.ids for term in ids), dtype=np.int32, count=starts[-1])
    queries = scipy.sparse.csr_matrix((np.ones(len(terms), dtype=np.float32), terms, starts), weights.shape)
    queries.sum_duplicates()  # (N, V): how often a query has each term
    return (pair_products(queries, weights, part) + pair_products(weights, queries, part)) / 2
