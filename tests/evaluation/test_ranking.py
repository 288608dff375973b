"""Measures, joined rankings and their weights against slow versions; and that no query finds itself."""

import math
from functools import partial

import numpy as np
import pytest

from docsplit.data.bm25 import BM25
from docsplit.data.sets.rankings import CollectionSource, Ranking, Retrieved, assemble
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.embedding.encode import QueryFacts
from docsplit.embedding.neighbours import search
from docsplit.evaluation import ranking
from docsplit.evaluation.ranking import (
    RANKING_MEASURES,
    WEIGHTS,
    Candidates,
    DocumentRanking,
    best_weight,
    cross_validated,
    curves,
    measure_retrieved,
    reciprocal_rank_fusion,
    values_of_weights,
)
from docsplit.evaluation.results.report import rows as rows_of
from docsplit.evaluation.results.result import RANKING
from docsplit.evaluation.task_arguments import HYBRID_MEASURES, RetrievalArguments
from docsplit.runtime.vectors import unit
from tests.conftest import make_corpus


def values_of(retrieved, collection):
    return {name: items.numerators[0] for name, items in measure_retrieved(retrieved, collection).items()}


def many_queries(count=200, size=400):
    """Judged in part, with unknown documents, and with lists that end early."""
    rng = np.random.default_rng(0)
    names = [f"d{number}" for number in range(size)]
    judgments = {}
    for query in range(count):
        judged = rng.choice(size, 30, replace=False)
        grades = rng.choice([-1, 0, 0, 1, 2, 3], 30)
        judgments[f"q{query}"] = dict(zip([names[row] for row in judged], map(int, grades))) | {"unknown": 1}
    collection = Ranking(names, [""] * size, list(judgments), [""] * count, judgments)
    rows = np.argsort(rng.normal(size=(count, size)))[:, :300].astype(np.int32)
    rows[::5, 15:] = -1
    rows[7] = rows[130:] = -1  # nothing found: of one query, and of all that are measured at a time
    return collection, Retrieved(rows, np.zeros(rows.shape, dtype=np.float32))


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
    collection, retrieved = many_queries()
    values = values_of(retrieved, collection)
    assert [*values] == [*RANKING_MEASURES] == [*RANKING.measures]
    for number, query in enumerate(collection.query_ids):
        for name, expected in slow_measures(retrieved.rows[number], collection.judgments[query]).items():
            assert values[name][number] == pytest.approx(expected, abs=1e-6), (name, query)


def test_equal_scores_are_ranked_by_a_hash_of_the_id():
    """Neither the line of the file nor the name decides, which gave an nDCG of 100 or 0: a third is right."""
    first, count = 0, 300
    for number in range(count):
        names = [f"{letter}{number}" for letter in "abc"]  # a is relevant
        values = set()
        for order in (names, names[::-1]):
            source = CollectionSource("s", [(name, "text") for name in order], [("q", "query")], [("q", names[0], 1)])
            collection = assemble(source).in_order_of_hash()
            values.add(values_of(ranking.top_of_scores(np.ones((1, 3)), 3), collection)["mrr_at_10"][0])
        assert len(values) == 1
        first += values == {1}
    assert abs(first / count - 1 / 3) < 0.1


def test_queries_with_equal_scores_are_counted():
    scores = np.random.default_rng(0).permuted(np.tile(np.linspace(0, 1, 40), (4, 1)), axis=1)
    ordered = np.sort(scores[0])[::-1]
    scores[1][scores[1] == ordered[10]] = ordered[9]  # ranks 10 and 11
    scores[2][scores[2] == ordered[3]] = ordered[2]  # within the first ten
    scores[3] = 0.7 + 1e-6 * scores[3]  # a collapsed encoder
    of_all = ranking.ties_of(ranking.top_of_scores(scores.astype(np.float32), 30))
    assert of_all["tied_at_10_share"] in (0.25, 0.5)  # float32 makes some of the last ones equal
    assert of_all["alike_share"] == 0.25
    few = ranking.ties_of(ranking.top_of_scores(np.ones((2, 10), dtype=np.float32), 30))
    assert few == {"tied_at_10_share": 0.0, "alike_share": 1.0}  # nothing is behind rank 10
    nothing = Retrieved(np.full((1, 5), -1), np.zeros((1, 5)))
    assert ranking.ties_of(nothing) == {"tied_at_10_share": 0.0, "alike_share": 0.0}


def test_curves_are_the_measures_at_their_depths():
    collection, retrieved = many_queries()
    values, drawn = values_of(retrieved, collection), curves(retrieved, collection)
    for depth in (10, 20):
        np.testing.assert_allclose(drawn[f"ndcg@{depth}"].numerators[0], values[f"ndcg_at_{depth}"], atol=1e-6)
    np.testing.assert_allclose(drawn["recall@100"].numerators[0], values["recall_at_100"], atol=1e-6)
    assert drawn["recall@1000"].of_runs() > drawn["recall@100"].of_runs()


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


def joined(dense, words, seed=0):
    """Candidates of both lists, whose scores are looked up in whole tables (Q, N)."""
    tables = []
    for retrieved, low in ((dense, -1), (words, 0)):
        table = np.full((QUERIES, SIZE), low, dtype=np.float32)
        for scores, rows, own in zip(table, retrieved.rows, retrieved.scores):
            scores[rows[rows >= 0]] = own[rows >= 0]
        tables.append(table)
    lookups = [partial(np.take_along_axis, table, axis=1) for table in tables]
    return Candidates.of((dense, words), *lookups, -1), tables


@pytest.mark.parametrize("weight", [0.0, 0.35, 1.0])
def test_a_weighted_sum_equals_dictionaries(weight):
    """Of all documents that either list has, both scores count, also those that are in one list alone."""
    _, dense, words = example()
    candidates, (similarities, bm25) = joined(dense, words)
    retrieved = candidates.ranked(np.full(QUERIES, weight), 1000)
    for query in range(QUERIES):
        found = {*dense.rows[query].tolist(), *words.rows[query].tolist()} - {-1}
        best = max(similarities[query, row] for row in found) + 1, max(bm25[query, row] for row in found)
        sums = {
            row: weight * (similarities[query, row] + 1) / best[0] + (1 - weight) * bm25[query, row] / best[1]
            for row in found
        }
        expected = sorted(sums, key=lambda row: (-round(sums[row], 5), row))
        is_there = retrieved.scores[query] > -np.inf
        rows = retrieved.rows[query][is_there].tolist()
        assert {*rows} == {*expected}
        assert [round(float(sums[row]), 4) for row in rows] == [round(float(sums[row]), 4) for row in expected]


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


@pytest.mark.parametrize("measure", HYBRID_MEASURES)
def test_what_a_weight_is_chosen_by_is_that_of_ir_measures(measure):
    collection, dense, words = example()
    collection.judgments["q0"] |= dict.fromkeys(
        [*collection.judgments["q0"]][:2], 40_000
    )  # clicks: 16 bits hold fewer
    union, _ = joined(dense, words)
    values = values_of_weights(union, collection, measure)
    for number in (0, 7, 20):
        measured = measure_retrieved(union.ranked(np.full(QUERIES, WEIGHTS[number]), 100), collection)
        assert values[number] == pytest.approx(measured[measure].numerators[0], abs=1e-5)


def test_a_weight_is_chosen_on_the_other_folds_alone():
    collection, dense, words = example()
    union, folds = joined(dense, words)[0], [np.arange(QUERIES)[0::2], np.arange(QUERIES)[1::2]]
    weights = cross_validated(union, collection, folds, "ndcg_at_10")
    values = values_of_weights(union, collection, "ndcg_at_10")
    # The first list is good for even queries: odd ones get the weight that is best there, and the other way round.
    assert weights[1::2] == pytest.approx(best_weight(values[:, 0::2]))
    assert weights[0::2] == pytest.approx(best_weight(values[:, 1::2]))
    assert weights[1] > 0.6 > 0.4 > weights[0]
    for query in folds[0]:  # whatever is relevant to the queries of a fold, it has no say in their own weight
        collection.judgments[collection.query_ids[query]] = {str(words.rows[query, 0]): 3}
    assert (cross_validated(union, collection, folds, "ndcg_at_10")[folds[0]] == weights[folds[0]]).all()
    assert (cross_validated(union, collection, folds, "ndcg_at_10")[folds[1]] != weights[folds[1]]).all()


def test_of_weights_that_are_equally_good_the_middle_one_is_taken():
    values = np.zeros((21, 4))
    values[[4, 5, 6, 7, 8]] = 0.5
    assert best_weight(values) == WEIGHTS[6]


COUNT, ASKED = 30, 12
ENCODER = {"pooling": "mean", "num_parameters": 10}


@pytest.fixture
def ranked():
    """An evaluation whose collection is in memory; the lists of an encoder that is random, and its vectors."""
    documents = [row["text"] for row in make_corpus(COUNT, seed=2)]
    names = [f"d{number}" for number in range(COUNT)]
    queries = [" ".join(documents[number].split()[:4]) for number in range(ASKED)]
    judgments = {f"q{number}": {f"d{number}": 1, f"d{(number + 3) % COUNT}": 2} for number in range(ASKED)}
    evaluation = DocumentRanking(RankingArguments(collection="ships"), RetrievalArguments(fusion=["sum", "rrf"]))
    evaluation.ranking = Ranking(names, documents, [*judgments], queries, judgments)
    evaluation.folds = [np.arange(ASKED)[number::3] for number in range(3)]
    rng = np.random.default_rng(0)
    vectors = (
        unit(rng.normal(size=(ASKED, 8)).astype(np.float32)),
        unit(rng.normal(size=(COUNT, 8)).astype(np.float32)),
    )
    return evaluation, search(*vectors, 20).divided(ASKED), vectors


def rank(evaluation, retrieved, vectors):
    return evaluation.rank("ours", retrieved, *vectors, ENCODER | {"similarity": "cosine"}, 0.1)


@pytest.mark.parametrize(("kind", "said"), [("apart", []), ("triples", ["ties"]), ("collapsed", ["chance"])])
def test_notes_name_a_collapsed_encoder_and_ties_at_the_cut(ranked, kind, said):
    evaluation, _, (queries, documents) = ranked
    evaluation.args.methods = ["dense"]
    if kind == "triples":  # ranks 10 to 12 are one text
        documents[1::3] = documents[2::3] = documents[::3]
    elif kind == "collapsed":
        documents[:] = documents[0] + 1e-6 * documents
    (result,) = rank(evaluation, search(queries, documents, 20).divided(ASKED), (queries, documents))
    notes = evaluation.notes(rows_of([result]))
    expected = {
        "ties": "ours, dense: 100% of the queries have equal scores",
        "chance": "ours gives its best documents",
    }
    assert [note.startswith(expected[kind]) for kind, note in zip(said, notes, strict=True)] == [True] * len(said)


@pytest.mark.parametrize("chooses", [False, True])
def test_hybrids_join_the_encoder_with_bm25_of_default_parameters(ranked, chooses):
    """By the weight that is given, or the one that is best on the other folds."""
    evaluation, retrieved, (queries, documents) = ranked
    evaluation.args.choose_weight = chooses
    first, second = evaluation.find_by_words()
    assert (first.info["bm25_k1"], second.info["bm25_k1"]) == (1.5, 0.9)
    dense, hybrid, rrf = rank(evaluation, retrieved, (queries, documents))
    words = BM25(evaluation.ranking.documents).scores(evaluation.queries, np.tile(np.arange(COUNT), (ASKED, 1)))
    lookups = [partial(np.take_along_axis, table, axis=1) for table in (queries @ documents.T, words)]
    candidates = Candidates.of((retrieved[0], evaluation.by_bm25[0]), *lookups, -1)
    weights = np.full(ASKED, 0.8)
    if chooses:
        weights = cross_validated(candidates, evaluation.ranking, evaluation.folds, "ndcg_at_10")
        assert (weights != 0.8).any()
    expected = {"dense": retrieved[0], "hybrid": candidates.ranked(weights, ranking.DEPTH)}
    expected["rrf"] = reciprocal_rank_fusion(retrieved[0], evaluation.by_bm25[0], ranking.DEPTH)
    for result in (dense, hybrid, rrf):
        for measure, items in measure_retrieved(expected[result.head], evaluation.ranking).items():
            np.testing.assert_array_equal(result.measured[measure].numerators, items.numerators)
    assert hybrid.info["hybrid_weights"] == sorted({*weights})
    assert dense.measured["map"].numerators.mean() < hybrid.measured["map"].numerators.mean()


def test_the_weight_is_that_of_other_queries_where_they_are_given(ranked):
    evaluation, retrieved, vectors = ranked
    evaluation.args.choose_weight = True
    selection = evaluation.ranking.with_queries(range(8, ASKED))
    evaluation.ranking, evaluation.selection = evaluation.ranking.with_queries(range(8)), selection
    assert evaluation.queries == [*evaluation.ranking.queries, *selection.queries]
    evaluation.find_by_words()
    both = Retrieved(retrieved[0].rows, retrieved[0].scores).divided(8)
    hybrid = rank(evaluation, both, vectors)[1]
    assert len(hybrid.info["hybrid_weights"]) == 1
    np.testing.assert_allclose(hybrid.further["hybrid_weight"].numerators, hybrid.info["hybrid_weights"][0])
    for query in evaluation.ranking.query_ids:  # whatever is relevant to those reported
        evaluation.ranking.judgments[query] = {"d0": 1}
    assert rank(evaluation, both, vectors)[1].info["hybrid_weights"] == hybrid.info["hybrid_weights"]
    for query in selection.query_ids:  # the encoder's best are relevant
        row = retrieved[0].rows[evaluation.queries.index(selection.queries[selection.query_ids.index(query)])][0]
        selection.judgments[query] = {f"d{row}": 1}
    assert rank(evaluation, both, vectors)[1].info["hybrid_weights"][0] > 0.5


def test_no_query_finds_itself_by_any_method_nor_where_a_weight_is_chosen(monkeypatch):
    """Every query is a document of the collection, which comes first by every method; its answer comes second."""
    documents = [f"{row['text']} ship{number}" for number, row in enumerate(make_corpus(COUNT, seed=2))]
    documents[1::2] = [f"{text} Others disagree." for text in documents[::2]]  # all words of the question, and more
    names = [f"d{number}" for number in range(COUNT)]
    asked = [f"d{number}" for number in range(0, COUNT, 2)]
    judgments = {name: {f"d{int(name[1:]) + 1}": 1} for name in asked}
    queries = [documents[int(name[1:])] for name in asked]
    options = RetrievalArguments(fusion=["sum", "rrf"], choose_weight=True)
    evaluation = DocumentRanking(RankingArguments(collection="ships"), options)
    whole = Ranking(names, documents, asked, queries, judgments)
    evaluation.ranking, evaluation.selection = whole.with_queries(range(8)), whole.with_queries(range(8, len(asked)))
    nearest = np.eye(COUNT, dtype=np.float32)
    vectors = (nearest + np.roll(nearest, 1, axis=1) / 2)[::2]  # of the queries: themselves, then their answers

    class Perfect:
        def embed_all(self, *_):
            return nearest, {}

        def embed_queries(self, *_):
            return vectors, QueryFacts("", "dot")

        def rest(self):
            pass

    monkeypatch.setattr("docsplit.evaluation.ranking.share_of_queries", lambda *_: None)
    results = [*evaluation.find_by_words(), *evaluation.measure("ours", Perfect(), is_main=True)]
    assert [result.head for result in results] == ["bm25", "bm25 k1=0.9 b=0.4", "dense", "hybrid", "rrf"]
    for result in results:
        assert result.measured["ndcg_at_10"].numerators.tolist() == [[1] * 8], result.head
        assert result.further["ndcg@1"].of_runs() == 1
    assert not (evaluation.by_bm25[1].rows == whole.own[8:, None]).any()  # the lists that a weight is chosen by
    assert (evaluation.by_bm25[1].rows[:, 0] == whole.own[8:] + 1).all()
