"""Rankings by an encoder and by words, alone and together, against the functions that they are made of."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.embedding.encoder import EncoderGroup
from docsplit.evaluation.arguments import RetrievalArguments
from docsplit.evaluation.ranking import cross_validated, reciprocal_rank_fusion, union_of
from docsplit.evaluation.ranking import curves, measure_retrieved
from docsplit.evaluation.ranking import CURVE_DEPTHS, DEPTH, DocumentRanking
from tests.conftest import make_corpus

COUNT, QUERIES = 30, 12
ENCODER = {"pooling": "mean", "num_parameters": 10}


@pytest.fixture
def ranked():
    """An evaluation whose collection is in memory, and the lists of an encoder: random."""
    documents = [row["text"] for row in make_corpus(COUNT, seed=2)]
    names = [f"d{number}" for number in range(COUNT)]
    queries = [" ".join(documents[number].split()[:4]) for number in range(QUERIES)]
    judgments = {f"q{number}": {f"d{number}": 1, f"d{(number + 3) % COUNT}": 2} for number in range(QUERIES)}
    evaluation = DocumentRanking(RankingArguments(collection="ships"), RetrievalArguments())
    evaluation.ranking = Ranking(names, documents, [*judgments], queries, judgments)
    evaluation.folds = [np.arange(QUERIES)[number::3] for number in range(3)]
    scores = np.random.default_rng(0).normal(size=(QUERIES, COUNT)).astype(np.float32)
    retrieved = Retrieved.best(np.broadcast_to(np.arange(COUNT), scores.shape), scores, DEPTH)
    return evaluation, retrieved


def test_a_hybrid_without_bm25_is_an_error(ranked):
    evaluation, retrieved = ranked
    with pytest.raises(ValueError, match="hybrid and rrf of ours need BM25's lists"):
        evaluation.rank("ours", retrieved, ENCODER, 0.1)
    evaluation.args.methods = ["dense"]
    assert [result.head for result in evaluation.rank("ours", retrieved, ENCODER, 0.1)] == ["dense"]


def test_hybrids_join_the_encoder_with_bm25_of_default_parameters(ranked):
    evaluation, retrieved = ranked
    first, second = evaluation.find_by_words()
    assert (first.info["bm25_k1"], second.info["bm25_k1"]) == (1.5, 0.9)
    dense, hybrid, rrf = evaluation.rank("ours", retrieved, ENCODER, 0.1)
    union = union_of(retrieved, evaluation.bm25[0])
    weights = cross_validated(union, evaluation.ranking, evaluation.folds, "ndcg_at_10")
    expected = {"dense": retrieved, "hybrid": union.ranked(weights, DEPTH)}
    expected["rrf"] = reciprocal_rank_fusion(retrieved, evaluation.bm25[0], DEPTH)
    for result in (dense, hybrid, rrf):
        for measure, items in measure_retrieved(expected[result.head], evaluation.ranking).items():
            np.testing.assert_array_equal(result.measured[measure].numerators, items.numerators)
    assert hybrid.info["hybrid_weights"] == sorted({*weights})
    assert dense.measured["map"].numerators.mean() < hybrid.measured["map"].numerators.mean()


def test_the_weight_is_that_of_other_queries_where_they_are_given(ranked):
    evaluation, retrieved = ranked
    selection = evaluation.ranking.with_queries(range(8, QUERIES))
    evaluation.ranking, evaluation.selection = evaluation.ranking.with_queries(range(8)), selection
    assert evaluation.queries == [*evaluation.ranking.queries, *selection.queries]
    evaluation.find_by_words()
    hybrid = evaluation.rank("ours", retrieved, ENCODER, 0.1)[1]
    assert len(hybrid.info["hybrid_weights"]) == 1
    assert (hybrid.weights == hybrid.info["hybrid_weights"][0]).all()
    for query in evaluation.ranking.query_ids:  # whatever is relevant to those reported
        evaluation.ranking.judgments[query] = {"d0": 1}
    assert evaluation.rank("ours", retrieved, ENCODER, 0.1)[1].info["hybrid_weights"] == hybrid.info["hybrid_weights"]


@pytest.mark.parametrize(("given", "order"), [(["ours"], ["ours", "bm25"]), (["bm25", "ours"], ["bm25", "ours"])])
def test_joined_rows_come_last_and_bm25_where_it_was_typed(ranked, given, order):
    evaluation, retrieved = ranked
    assert evaluation.names(given) == ["ours"]
    evaluation.prepare(is_main=True)
    evaluation.results = evaluation.rank("ours", retrieved, ENCODER, 0.1)
    evaluation.finish()
    rows = [(result.encoder, result.head) for result in evaluation.results]
    alone = {"ours": [("ours", "dense")], "bm25": [("bm25", "bm25"), ("bm25", "bm25 k1=0.9 b=0.4")]}
    assert rows == [*alone[order[0]], *alone[order[1]], ("ours", "hybrid"), ("ours", "rrf")]


def test_curves_and_weights_are_kept_by_argument_where_an_encoder_stands_in_two(ranked):
    """As in --model_name_or_path ours ours@mean: the second measurement takes nothing from the first."""
    evaluation, retrieved = ranked
    evaluation.find_by_words()
    other = Retrieved(retrieved.rows[:, ::-1].copy(), retrieved.scores)
    for name, lists in (("ours", retrieved), ("ours@mean", other)):
        evaluation.add(
            EncoderGroup(name, [SimpleNamespace(name="ours")]), [evaluation.rank("ours", lists, ENCODER, 0.1)]
        )
    for name, lists in (("ours", retrieved), ("ours@mean", other)):
        dense, hybrid, _ = [result for result in evaluation.results if result.encoder == name]
        weights = hybrid.weights
        np.testing.assert_array_equal(dense.depths["ndcg"], curves(lists, evaluation.ranking, CURVE_DEPTHS)["ndcg"])
        union = union_of(lists, evaluation.bm25[0])
        expected = cross_validated(union, evaluation.ranking, evaluation.folds, "ndcg_at_10")
        np.testing.assert_array_equal(weights, expected)
    assert [result.encoder for result in evaluation.results] == ["ours"] * 3 + ["ours@mean"] * 3


def test_the_weight_is_chosen_by_the_measure_that_is_asked_for(ranked):
    evaluation, retrieved = ranked
    evaluation.find_by_words()
    union = union_of(retrieved, evaluation.bm25[0])
    weights = {}
    for measure in ("ndcg_at_10", "precision_at_20"):
        evaluation.args.hybrid_measure = measure
        weights[measure] = evaluation.rank("ours", retrieved, ENCODER, 0.1)[1].weights
        expected = cross_validated(union, evaluation.ranking, evaluation.folds, measure)
        np.testing.assert_array_equal(weights[measure], expected)
    assert (weights["ndcg_at_10"] != weights["precision_at_20"]).any()


def test_no_query_finds_itself_by_any_method_nor_where_a_weight_is_chosen(monkeypatch):
    """Every query is a document of the collection, which comes first by every method; its answer comes second."""
    documents = [f"{row['text']} ship{number}" for number, row in enumerate(make_corpus(COUNT, seed=2))]
    documents[1::2] = [f"{text} Others disagree." for text in documents[::2]]  # all words of the question, and more
    names = [f"d{number}" for number in range(COUNT)]
    asked = [f"d{number}" for number in range(0, COUNT, 2)]
    judgments = {name: {f"d{int(name[1:]) + 1}": 1} for name in asked}
    queries = [documents[int(name[1:])] for name in asked]
    evaluation = DocumentRanking(RankingArguments(collection="ships"), RetrievalArguments())
    whole = Ranking(names, documents, asked, queries, judgments)
    evaluation.ranking, evaluation.selection = whole.with_queries(range(8)), whole.with_queries(range(8, len(asked)))
    nearest = np.eye(COUNT, dtype=np.float32)
    vectors = (nearest + np.roll(nearest, 1, axis=1) / 2)[::2]  # of the queries: themselves, then their answers

    class Perfect:
        def embed_all(self, *_):
            return nearest, EncoderFacts()

        def embed_queries(self, *_):
            return vectors, EncoderFacts()

        def rest(self):
            pass

    monkeypatch.setattr("docsplit.evaluation.ranking.share_of_queries", lambda *_: None)
    results = [*evaluation.find_by_words(), *evaluation.measure("ours", Perfect(), is_main=True)]
    assert [result.head for result in results] == ["bm25", "bm25 k1=0.9 b=0.4", "dense", "hybrid", "rrf"]
    for result in results:
        assert result.measured["ndcg_at_10"].numerators.tolist() == [[1] * 8], result.head
        assert (result.depths["ndcg"] == 1).all()
    assert not (evaluation.bm25[1].rows == whole.own[8:, None]).any()  # the lists that a weight is chosen by
    assert (evaluation.bm25[1].rows[:, 0] == whole.own[8:] + 1).all()


@dataclass
class EncoderFacts:
    similarity: str = "dot"

    def row(self):
        return {}
