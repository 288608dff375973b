"""BM25 against the scores of bm25s: the best of a query, and pairs in both directions."""

import functools

import bm25s
import numpy as np
import pytest
import Stemmer

from docsplit.data.bm25 import BM25, bm25_scores
from docsplit.data.sets import citations
from docsplit.data.sets.citations import PairPart


@pytest.fixture
def part():
    rng = np.random.default_rng(0)
    first, second = rng.integers(30, size=(2, 50))
    return PairPart(first, second, rng.integers(2, size=50))


def scores_of_bm25s(documents, queries, **options):
    """Of each document for each query, (Q, N)."""
    retriever, stem = bm25s.BM25(**options), Stemmer.Stemmer("english")
    cut = functools.partial(bm25s.tokenize, stopwords="en", stemmer=stem, return_ids=False, show_progress=False)
    retriever.index(cut(documents), show_progress=False)
    return np.array([retriever.get_scores(words) if words else np.zeros(len(documents)) for words in cut(queries)])


def test_bm25_is_that_of_each_paper_as_a_query_for_the_other(part, corpus, monkeypatch, caplog):
    monkeypatch.setattr(citations, "CHUNK_PAIRS", 7)
    texts = [*corpus["text"][:28], "the of and", "?"]  # the last two have no term
    part.first[:2], part.second[2:4] = 28, 29
    scores = bm25_scores(texts, part)
    assert not caplog.records
    by_query = scores_of_bm25s(texts, texts)
    expected = [(by_query[a][b] + by_query[b][a]) / 2 for a, b in zip(part.first, part.second)]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    assert np.std(scores) > 0
    np.testing.assert_array_equal(scores, bm25_scores(texts, PairPart(part.second, part.first, part.labels)))


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4)])
def test_bm25_finds_what_scores_best(k1, b):
    rng = np.random.default_rng(0)
    words = np.array([*(f"w{number}" for number in range(60)), "the", "of"])
    documents = [" ".join(rng.choice(words, rng.integers(1, 40))) for _ in range(80)]
    queries = [*(" ".join(rng.choice(words, 4)) for _ in range(10)), "the of", "missing"]
    expected = scores_of_bm25s(documents, queries, k1=k1, b=b)
    retrieved = BM25(documents, k1=k1, b=b).retrieve(queries, 200)
    for rows, scores, query_scores in zip(retrieved.rows, retrieved.scores, expected):
        matching = np.flatnonzero(query_scores > 0)
        assert sorted(rows[rows >= 0]) == matching.tolist()
        assert scores[: len(matching)] == pytest.approx(query_scores[rows[rows >= 0]], rel=1e-4)
        assert (np.diff(scores) <= 0).all()
    rows = rng.integers(-1, len(documents), size=(len(queries), 9))
    exact = np.where(rows >= 0, np.take_along_axis(expected, rows, axis=1), 0)
    np.testing.assert_allclose(BM25(documents, k1=k1, b=b).scores(queries, rows), exact, rtol=1e-4)
    assert (retrieved.rows[-2:] == -1).all()  # stop-words alone, and a word that nothing has


@pytest.mark.parametrize("documents", [["\N{SNOWFLAKE}", "x y"], ["the of and"] * 3])
def test_documents_without_words_are_never_found(documents, caplog):
    """Beside documents with words they are not found either."""
    for collection in (documents, [*documents, "a ship"]):
        retrieved = BM25(collection).retrieve(["\N{SNOWFLAKE}", "the", "a tree", ""], 2)
        assert retrieved.rows.tolist() == [[-1, -1]] * 4
        assert retrieved.scores.tolist() == [[0, 0]] * 4
        pairs = PairPart(np.array([0, 1]), np.array([1, 0]), np.array([0, 1]))
        assert bm25_scores(collection, pairs).tolist() == [0, 0]
    warning = f"None of the {len(documents)} documents has a word that BM25 counts: it finds none."
    assert [message for message in caplog.messages if message.startswith("None")] == [warning] * 2
