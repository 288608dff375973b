"""Measures, clusters and spectra, each against a slow obvious version."""

import math
import sys

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.evaluation.analysis.geometry import effective_rank
from docsplit.evaluation.ranking import MEASURES, curves, measure_retrieved, top_of_scores
from docsplit.evaluation.results.result import RANKING as TASK

RANKING = Ranking(
    [str(number) for number in range(30)], [f"word{number % 7} thing{number % 5} filler" for number in range(30)],
    ["x", "y"], ["word3", "thing4 word1"], {"x": {"3": 2, "10": 1, "4": 0}, "y": {"29": 1}},
)  # fmt: skip


def values_of(retrieved, ranking=RANKING):
    return {name: items.numerators[0] for name, items in measure_retrieved(retrieved, ranking).items()}


def many_queries(count=200, size=400):
    """Judged in part, with unknown documents, and with lists that end early."""
    rng = np.random.default_rng(0)
    names = [f"d{number}" for number in range(size)]
    judgments = {}
    for query in range(count):
        judged = rng.choice(size, 30, replace=False)
        grades = rng.choice([-1, 0, 0, 1, 2, 3], 30)
        judgments[f"q{query}"] = dict(zip([names[row] for row in judged], map(int, grades))) | {"unknown": 1}
    ranking = Ranking(names, [""] * size, list(judgments), [""] * count, judgments)
    rows = np.argsort(rng.normal(size=(count, size)))[:, :300].astype(np.int32)
    rows[::5, 15:] = -1
    rows[7] = rows[130:] = -1  # nothing found: of one query, and of all that are measured at a time
    return ranking, Retrieved(rows, np.zeros(rows.shape, dtype=np.float32))


def slow_measures(rows, judged):
    """Compute each measure from its definition; gains are linear."""
    grades = [max(judged.get(f"d{row}", 0), 0) for row in rows if row >= 0]
    relevant, ideal = [grade > 0 for grade in grades], sorted((max(g, 0) for g in judged.values()), reverse=True)
    total = sum(grade > 0 for grade in judged.values())

    def gain(values, k):
        return sum(value / math.log2(2 + rank) for rank, value in enumerate(values[:k]))

    first = next((rank for rank, hit in enumerate(relevant, 1) if hit), math.inf)
    hits = [rank for rank, hit in enumerate(relevant, 1) if hit]
    known = [f"d{row}" in judged for row in rows if row >= 0]
    values = {f"ndcg_at_{k}": gain(grades, k) / gain(ideal, k) for k in (10, 20)}
    values |= {f"precision_at_{k}": sum(relevant[:k]) / k for k in (5, 10, 20)}
    values |= {f"mrr_at_{k}": 1 / first if first <= k else 0 for k in (10, 100)}
    values |= {f"judged_at_{k}": sum(known[:k]) / max(min(k, len(known)), 1) for k in (10, 20)}
    values |= {"recall_at_100": sum(relevant[:100]) / total}
    return values | {"map": sum(count / rank for count, rank in enumerate(hits, 1)) / total}


def test_measures_equal_their_definitions():
    ranking, retrieved = many_queries()
    values = values_of(retrieved, ranking)
    assert [*values] == [*MEASURES] == [*TASK.measures]
    for number, query in enumerate(ranking.query_ids):
        for name, expected in slow_measures(retrieved.rows[number], ranking.judgments[query]).items():
            assert values[name][number] == pytest.approx(expected, abs=1e-6), (name, query)


def test_curves_are_the_measures_at_their_depths():
    ranking, retrieved = many_queries()
    values, drawn = values_of(retrieved, ranking), curves(retrieved, ranking, [10, 20, 100, 1000])
    assert drawn["ndcg"][:2] == pytest.approx([values["ndcg_at_10"].mean(), values["ndcg_at_20"].mean()], abs=1e-6)
    assert drawn["recall"][2] == pytest.approx(values["recall_at_100"].mean(), abs=1e-6)
    assert drawn["recall"][3] > drawn["recall"][2]


def test_ndcg_against_scikit_learn():
    scores = np.random.default_rng(0).normal(size=(2, 30))
    grades = np.array([[RANKING.judgments[query].get(name, 0) for name in RANKING.document_ids] for query in "xy"])
    expected = [ndcg_score(grades[[row]], scores[[row]], k=10) for row in range(2)]
    np.testing.assert_allclose(values_of(top_of_scores(scores, 30))["ndcg_at_10"], expected, atol=1e-6)
    assert values_of(top_of_scores(grades.astype(float), 30))["ndcg_at_10"].tolist() == [1.0, 1.0]


def test_equal_scores_count_in_the_order_of_the_list():
    retrieved = Retrieved(np.array([[3, 10], [0, 29]], dtype=np.int32), np.ones((2, 2), dtype=np.float32))
    assert values_of(retrieved)["mrr_at_10"].tolist() == [1.0, 0.5]


def test_without_ir_measures_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(ValueError, match="pip install ir-measures"):
        measure_retrieved(top_of_scores(np.zeros((2, 30)), 10), RANKING)


def test_effective_rank_of_equal_and_of_single_directions():
    vectors = np.random.default_rng(0).normal(size=(4000, 8))
    assert effective_rank(vectors) == pytest.approx(8, rel=0.01)
    assert effective_rank(vectors * [10, *[0.01] * 7]) == pytest.approx(1, rel=0.01)
