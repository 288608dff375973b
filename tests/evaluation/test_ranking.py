"""nDCG and BM25 of queries, clusters and spectra, each against a slow obvious version."""

import sys

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from docsplit.data.rankings import Ranking
from docsplit.evaluation.analysis import effective_rank, kmeans_nmi
from docsplit.evaluation.ranking import bm25_of_queries, ndcg_of_queries

RANKING = Ranking(
    [str(number) for number in range(30)], [f"word{number % 7} thing{number % 5} filler" for number in range(30)],
    ["x", "y"], ["word3", "thing4 word1"], {"x": {"3": 2, "10": 1, "4": 0}, "y": {"29": 1}},
)  # fmt: skip


def test_ndcg_against_scikit_learn():
    pytest.importorskip("ir_measures")
    scores = np.random.default_rng(0).normal(size=(2, 30))
    grades = np.array([[RANKING.judgments[query].get(name, 0) for name in RANKING.document_ids] for query in "xy"])
    expected = [ndcg_score(grades[[row]], scores[[row]], k=10) for row in range(2)]
    np.testing.assert_allclose(ndcg_of_queries(scores, RANKING), expected, atol=1e-6)
    assert ndcg_of_queries(grades.astype(float), RANKING).tolist() == [1.0, 1.0]


def test_without_ir_measures_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(ValueError, match="pip install ir-measures"):
        ndcg_of_queries(np.zeros((2, 30)), RANKING)


def test_bm25_ranks_documents_with_the_words_of_the_query_first():
    scores = bm25_of_queries(RANKING)
    assert scores.shape == (2, 30)
    has_word = np.array(["word3" in text for text in RANKING.documents])
    assert scores[0][has_word].min() > scores[0][~has_word].max()
    assert RANKING.documents[scores[1].argmax()].startswith("word1 thing4")


def test_clusters_of_separate_classes_are_those_classes():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    separate = np.eye(3)[labels] + 0.01 * generator.normal(size=(60, 3))
    assert kmeans_nmi(separate, labels) > 0.85  # of five starts one may join two classes
    assert kmeans_nmi(generator.normal(size=(60, 3)), labels) < 0.3


def test_effective_rank_of_equal_and_of_single_directions():
    vectors = np.random.default_rng(0).normal(size=(4000, 8))
    assert effective_rank(vectors) == pytest.approx(8, rel=0.01)
    assert effective_rank(vectors * [10, *[0.01] * 7]) == pytest.approx(1, rel=0.01)
