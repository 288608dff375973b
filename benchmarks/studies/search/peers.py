"""What other tools find, as they come, from the same texts and vectors: rows of documents, the best first.

txtai and LanceDB are not among the requirements: pip install txtai lancedb.
"""

import tempfile
from collections.abc import Callable
from functools import partial

import bm25s
import numpy as np
import torch
from sentence_transformers.util import semantic_search

from docsplit.data.sets.rankings import Ranking

Lists = list[list[int]]  # of each query


def by_semantic_search(ranking: Ranking, documents: np.ndarray, queries: np.ndarray, depth: int) -> Lists:
    """Search by sentence-transformers, by vectors alone."""
    hits = semantic_search(torch.from_numpy(queries), torch.from_numpy(documents), top_k=depth)
    return [[int(hit["corpus_id"]) for hit in found] for found in hits]


def by_bm25s(ranking: Ranking, documents: np.ndarray, queries: np.ndarray, depth: int) -> Lists:
    """Search by bm25s with its defaults: BM25 of words, without English stop-words, no stemmer."""
    index = bm25s.BM25()
    index.index(bm25s.tokenize(ranking.documents, show_progress=False), show_progress=False)
    words = bm25s.tokenize(ranking.queries, return_ids=False, show_progress=False)
    rows, _ = index.retrieve(words, k=depth, show_progress=False)
    return rows.tolist()


def by_txtai(normalize: bool | str, ranking: Ranking, documents: np.ndarray, queries: np.ndarray, depth: int) -> Lists:
    """Search by txtai's hybrid: the cosine by exact search, and its own BM25 of words.

    Its default backend, faiss, looks into a few cells of an index of more than 5,000 documents. Vectors are compared
    here, not indexes of them.

    Args:
        normalize: of BM25. True is what `hybrid=True` says: scaled by the collection's average, then half of each.
            "bb25": both as log-odds, scaled by a query's own scores (https://github.com/neuml/txtai/pull/1041).
    """
    from txtai import Embeddings

    vector_of = dict(zip(ranking.documents, documents)) | dict(zip(ranking.queries, queries))

    def vectors_of(texts: list[str]) -> np.ndarray:
        return np.stack([vector_of[text] for text in texts])

    scoring = {"method": "bm25", "terms": True, "normalize": normalize}
    index = Embeddings(method="external", transform=vectors_of, scoring=scoring, backend="numpy")
    index.index(ranking.documents)
    return [[int(row) for row, _ in found] for found in index.batchsearch(ranking.queries, depth)]


def by_lancedb(ranking: Ranking, documents: np.ndarray, queries: np.ndarray, depth: int) -> Lists:
    """Search by LanceDB's hybrid: reciprocal ranks of exact search and of its own BM25 of English stems."""
    import lancedb
    from lancedb.index import FTS

    rows = [
        {"row": row, "text": text, "vector": vector}
        for row, (text, vector) in enumerate(zip(ranking.documents, documents))
    ]
    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder).create_table("documents", rows)
        table.create_index("text", config=FTS())
        texts = [query.replace('"', " ") for query in ranking.queries]  # a phrase in quotes is an error by default
        asked = (table.search(query_type="hybrid").vector(v).text(t) for v, t in zip(queries, texts))
        return [[found["row"] for found in query.limit(depth).to_list()] for query in asked]


PEERS: dict[str, Callable[[Ranking, np.ndarray, np.ndarray, int], Lists]] = {  # a package, and what is asked of it
    "semantic_search": by_semantic_search,
    "bm25s": by_bm25s,
    "txtai": partial(by_txtai, True),
    "txtai, BB25": partial(by_txtai, "bb25"),
    "lancedb": by_lancedb,
}
