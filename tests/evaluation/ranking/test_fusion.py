"""Two rankings joined, against dictionaries and loops; and weights that are never chosen on what is reported."""

import numpy as np
import pytest

from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.evaluation.arguments import HYBRID_MEASURES
from docsplit.evaluation.ranking import (
    WEIGHTS,
    best_weight,
    cross_validated,
    reciprocal_rank_fusion,
    union_of,
    values_of_weights,
)
from docsplit.evaluation.ranking import measure_retrieved

SIZE, QUERIES, DEPTH = 50, 40, 20


def example(seed=0):
    """Queries with three relevant documents: the first list finds those of even queries, the second of odd ones."""
    rng = np.random.default_rng(seed)
    judgments = {
        f"q{q}": {str(row): 1 + int(row) % 2 for row in rng.choice(SIZE, 3, replace=False)} for q in range(QUERIES)
    }
    lists = []
    for number in range(2):
        scores = rng.normal(size=(QUERIES, SIZE)) * (1 + 9 * number)  # of different scales
        for query, relevant in enumerate(judgments.values()):
            if query % 2 == number:
                scores[query, [int(row) for row in relevant]] += 2 * (1 + 9 * number)
        lists.append(Retrieved.best(np.broadcast_to(np.arange(SIZE), scores.shape), scores, DEPTH))
    names = [str(row) for row in range(SIZE)]
    lists[1].rows[3, 5:], lists[1].scores[3, 5:] = -1, 0  # fewer share a word with the query
    lists[1].scores[3, :5] = [5, 4, 3, 2, 1]
    return Ranking(names, names, list(judgments), list(judgments), judgments), *lists


def scaled(rows, scores):
    """One list as a dictionary, its scores from 0 to 1."""
    low, high = scores.min(), scores.max()
    return {int(row): (score - low) / (high - low) for row, score in zip(rows, scores) if row >= 0}


@pytest.mark.parametrize("weight", [0.0, 0.35, 1.0])
def test_a_weighted_sum_equals_dictionaries(weight):
    _, dense, words = example()
    retrieved = union_of(dense, words).ranked(np.full(QUERIES, weight), 1000)
    for query in range(QUERIES):
        dense_scores, word_scores = (
            scaled(dense.rows[query], dense.scores[query]),
            scaled(words.rows[query], words.scores[query]),
        )
        sums = {
            row: weight * dense_scores.get(row, 0) + (1 - weight) * word_scores.get(row, 0)
            for row in {*dense_scores, *word_scores}
        }
        expected = sorted(sums, key=lambda row: (-round(sums[row], 5), row))
        rows = retrieved.rows[query][retrieved.rows[query] >= 0]
        assert {*rows} == {*expected}
        assert [round(sums[row], 4) for row in rows] == [round(sums[row], 4) for row in expected]


def test_reciprocal_ranks_equal_a_loop():
    _, dense, words = example()
    retrieved = reciprocal_rank_fusion(dense, words, 10)
    for query in range(QUERIES):
        sums = {}
        for rows in (dense.rows[query], words.rows[query]):
            for rank, row in enumerate((row for row in rows if row >= 0), start=1):
                sums[int(row)] = sums.get(int(row), 0) + 1 / (60 + rank)
        expected = sorted(sums, key=lambda row: (-round(sums[row], 7), row))[:10]
        assert [round(sums[row], 6) for row in retrieved.rows[query]] == [round(sums[row], 6) for row in expected]


def test_a_query_without_a_word_is_ranked_by_the_other_list_alone():
    _, dense, words = example()
    words.rows[0], words.scores[0] = -1, 0
    assert (union_of(dense, words).ranked(np.full(QUERIES, 0.5), 10).rows[0] == dense.rows[0, :10]).all()
    assert (reciprocal_rank_fusion(dense, words, 10).rows[0] == dense.rows[0, :10]).all()


@pytest.mark.parametrize("measure", HYBRID_MEASURES)
def test_what_a_weight_is_chosen_by_is_that_of_ir_measures(measure):
    ranking, dense, words = example()
    ranking.judgments["q0"] |= dict.fromkeys([*ranking.judgments["q0"]][:2], 40_000)  # clicks: 16 bits hold fewer
    union = union_of(dense, words)
    values = values_of_weights(union, ranking, measure)
    for number in (0, 7, 20):
        measured = measure_retrieved(union.ranked(np.full(QUERIES, WEIGHTS[number]), 100), ranking)
        assert values[number] == pytest.approx(measured[measure].numerators[0], abs=1e-5)


def test_a_weight_is_chosen_on_the_other_folds_alone():
    ranking, dense, words = example()
    union, folds = union_of(dense, words), [np.arange(QUERIES)[0::2], np.arange(QUERIES)[1::2]]
    weights = cross_validated(union, ranking, folds, "ndcg_at_10")
    values = values_of_weights(union, ranking, "ndcg_at_10")
    # The first list is good for even queries: odd ones get the weight that is best there, and the other way round.
    assert weights[1::2] == pytest.approx(best_weight(values[:, 0::2]))
    assert weights[0::2] == pytest.approx(best_weight(values[:, 1::2]))
    assert weights[1] > 0.6 > 0.4 > weights[0]
    for query in folds[0]:  # whatever is relevant to the queries of a fold, it has no say in their own weight
        ranking.judgments[ranking.query_ids[query]] = {str(words.rows[query, 0]): 3}
    assert (cross_validated(union, ranking, folds, "ndcg_at_10")[folds[0]] == weights[folds[0]]).all()
    assert (cross_validated(union, ranking, folds, "ndcg_at_10")[folds[1]] != weights[folds[1]]).all()


def test_of_weights_that_are_equally_good_the_middle_one_is_taken():
    values = np.zeros((21, 4))
    values[[4, 5, 6, 7, 8]] = 0.5
    assert best_weight(values) == WEIGHTS[6]
