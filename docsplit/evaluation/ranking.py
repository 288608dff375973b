"""Scores of documents for documents by their words."""

from collections.abc import Sequence

import bm25s
import numpy as np
import scipy.sparse

from docsplit.data.citation_splits import PairPart
from docsplit.evaluation.links import pair_products


def bm25_scores(texts: Sequence[str], part: PairPart, show_progress: bool = False) -> np.ndarray:
    """BM25 (bm25s, its defaults, English stop-words) of each paper as a query for the other, averaged, (P,) float32.

    The term weights of the index are those of `bm25s`; only the scores of the pairs asked for are added up.

    Args:
        texts: all papers: they are the collection in which terms are rare or frequent.
        part: the pairs; reading the texts is what takes long, so join the splits' pairs and score them at once.
    """
    tokens = bm25s.tokenize(list(texts), stopwords="en", show_progress=show_progress, leave=False)
    retriever = bm25s.BM25()
    retriever.index(tokens, show_progress=show_progress, leave_progress=False)
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
