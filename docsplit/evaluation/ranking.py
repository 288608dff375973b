"""Scores of documents by their words, and what a ranking of documents for queries is worth."""

from collections.abc import Sequence

import bm25s
import numpy as np
import scipy.sparse

from docsplit.data.citation_splits import PairPart
from docsplit.data.rankings import Ranking
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


def bm25_of_queries(ranking: Ranking) -> np.ndarray:
    """BM25 (as `bm25_scores`) of each document for each query, (Q, N) float32."""
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(ranking.documents, stopwords="en", show_progress=False), show_progress=False)
    queries = bm25s.tokenize(ranking.queries, stopwords="en", show_progress=False, return_ids=False)
    return np.stack([retriever.get_scores(words) for words in queries]).astype(np.float32)


def ndcg_of_queries(scores: np.ndarray, ranking: Ranking, depth: int = 10) -> np.ndarray:
    """nDCG at `depth` of each query, (Q,), by ir_measures: gains are grades; what is not judged is not relevant.

    Args:
        scores: (Q, N), of each document for each query.

    Raises:
        ValueError: if ir_measures is not installed.
    """
    try:
        from ir_measures import Qrel, ScoredDoc, iter_calc, nDCG
    except ImportError as error:
        raise ValueError(
            "nDCG is computed by ir_measures, which is not installed: pip install ir-measures."
        ) from error
    best = np.argsort(-scores, axis=1, kind="stable")[:, : 10 * depth]
    run = [
        ScoredDoc(query, ranking.document_ids[row], float(own[row]))
        for query, own, rows in zip(ranking.query_ids, scores, best)
        for row in rows
    ]
    judged = [
        Qrel(query, document, grade) for query, one in ranking.judgments.items() for document, grade in one.items()
    ]
    values = {metric.query_id: metric.value for metric in iter_calc([nDCG @ depth], judged, run)}
    return np.array([values[query] for query in ranking.query_ids])
