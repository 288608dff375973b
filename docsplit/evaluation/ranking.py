"""Documents ranked for queries by each encoder (dense), by BM25, and by both together (hybrid, rrf).

A hybrid is the weighted sum of `docsplit.data.fusion`, of the documents that either list finds; both scores of each
are computed. Its weight is a constant, or chosen on other queries: the weight of a query's fold is the one with which
all other folds are best by a measure of `CHOOSING`, or one weight is chosen on queries that are not reported at all:
never on what is reported.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from docsplit.data.bm25 import BM25
from docsplit.data.fusion import LOWEST, reciprocal_ranks, sum_of_scores
from docsplit.data.seen_documents import share_of_queries
from docsplit.data.sets import rankings
from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.data.words import warn_of_other_language
from docsplit.embedding.encoder import Encoder, EncoderGroup
from docsplit.embedding.encoder_arguments import EncoderArguments, members_of
from docsplit.embedding.neighbours import make_comparable, search
from docsplit.evaluation.compare import Evaluation
from docsplit.evaluation.results.bootstrap import ItemScores
from docsplit.evaluation.results.plots import plot_ranking, write_csv
from docsplit.evaluation.results.report import Json, names_of, text_statistics
from docsplit.evaluation.results.result import NO_ENCODER, RANKING, Facts, Result, join_folds
from docsplit.evaluation.task_arguments import BM25 as BM25_NAME
from docsplit.evaluation.task_arguments import BM25_PARAMETERS, RetrievalArguments

logger = logging.getLogger(__name__)

DEPTH = 1000  # documents a query: of all lists, and of what a hybrid joins
SELECTION_QUERIES = 1000  # at most, of another split: MS MARCO has 367,000 for training
MEASURED_QUERIES = 32  # at a time: bounds the memory
JOINED = ("hybrid", "rrf")  # rows of results: an encoder together with BM25, by their sum and by reciprocal ranks
Scores = Callable[[np.ndarray], np.ndarray]  # of documents of each query, by their rows (Q, U): (Q, U)
RANKING_CUT = 10  # of the main measure
ALIKE = 1e-4  # of the highest score: scores that differ by less tell nothing
MANY_ALIKE, FEW_TIED = 0.5, 0.05  # shares of queries that reports speak of
CURVE_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
WEIGHTS = tuple(number / 20 for number in range(21))  # of the similarity
# Names of results, and those of ir_measures (https://ir-measur.es). Gains of nDCG are the grades, as in trec_eval.
RANKING_MEASURES = {
    "ndcg_at_10": "nDCG@10", "ndcg_at_20": "nDCG@20", "precision_at_5": "P@5", "precision_at_10": "P@10",
    "precision_at_20": "P@20", "mrr_at_10": "RR@10", "mrr_at_100": "RR@100", "recall_at_100": "R@100",
    "map": "AP", "judged_at_10": "Judged@10", "judged_at_20": "Judged@20",
}  # fmt: skip
WEIGHT_COLUMN = "hybrid_weight"  # of each query: a column of queries.csv
# The measures that a weight can be chosen by: of the grades (Q, k) of the k best documents, and the ideal DCG, (Q,).
CHOOSING: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ndcg": lambda grades, ideal: dcg(grades)[:, -1] / ideal,
    "precision": lambda grades, ideal: (grades > 0).mean(axis=1),
    "mrr": lambda grades, ideal: np.where((grades > 0).any(axis=1), 1 / (1 + (grades > 0).argmax(axis=1)), 0),
}


# --- Measures ---


def measure_retrieved(retrieved: Retrieved, ranking: Ranking) -> dict[str, ItemScores]:
    """Compute each of `RANKING_MEASURES` for each query by ir_measures; unjudged documents are not relevant.

    The order of the lists is what counts, also where scores are equal. Of an empty list all is 0.
    """
    from ir_measures import iter_calc, parse_measure

    names = {parse_measure(name): measure for measure, name in RANKING_MEASURES.items()}
    values = {measure: np.zeros((1, len(ranking.query_ids)), dtype=np.float32) for measure in RANKING_MEASURES}
    positions = {query: number for number, query in enumerate(ranking.query_ids)}
    for start in range(0, len(ranking.query_ids), MEASURED_QUERIES):
        lists = dict(zip(ranking.query_ids[start:], retrieved.rows[start : start + MEASURED_QUERIES].tolist()))
        run = {
            query: {ranking.document_ids[row]: -float(rank) for rank, row in enumerate(rows) if row >= 0}
            for query, rows in lists.items()
            if max(rows) >= 0
        }
        qrels = {query: ranking.judgments[query] for query in run}
        for value in iter_calc([*names], qrels, run) if run else ():
            values[names[value.measure]][0, positions[value.query_id]] = value.value
    return {measure: _one_run(numerators[0]) for measure, numerators in values.items()}


def _one_run(values: np.ndarray) -> ItemScores:
    """Make the items of a number of each query, (Q,), whose mean is reported."""
    return ItemScores(values[None].astype(np.float32), np.ones((1, len(values)), dtype=np.float32))


def ties_of(retrieved: Retrieved) -> Facts:
    """Return the share of queries with equal scores at ranks 10 and 11, and with nearly one score in all the list."""
    scores = np.where(retrieved.rows >= 0, retrieved.scores, -np.inf)  # (Q, K)
    found = np.isfinite(scores)
    last, beyond = (
        scores[:, place] if place < scores.shape[1] else -np.inf for place in (RANKING_CUT - 1, RANKING_CUT)
    )
    tied = np.isfinite(last) & (last == beyond)
    lowest = np.where(found, scores, np.inf).min(axis=1)
    alike = (found.sum(axis=1) > 1) & (lowest >= scores[:, 0] - ALIKE * np.abs(scores[:, 0]))
    return {"tied_at_10_share": float(np.mean(tied)), "alike_share": float(alike.mean())}


def top_of_scores(scores: np.ndarray, depth: int) -> Retrieved:
    """Return the best documents by a matrix of scores (Q, N)."""
    return Retrieved.best(np.broadcast_to(np.arange(scores.shape[1]), scores.shape), scores, depth)


def grades_of(rows: np.ndarray, ranking: Ranking) -> np.ndarray:
    """Return the grade, at least 0, of each query's documents (Q, K); 0 of those not judged and of row -1. int32."""
    position = {name: row for row, name in enumerate(ranking.document_ids)}
    grades = np.zeros(rows.shape, dtype=np.int32)
    for line, own, query in zip(grades, rows, ranking.query_ids):
        known = {position[name]: grade for name, grade in ranking.judgments[query].items() if name in position}
        line[:] = [max(known.get(row, 0), 0) for row in own.tolist()]
    return grades


def ideal_dcg(ranking: Ranking, depth: int) -> np.ndarray:
    """Return the DCG of the best order at each depth, (Q, depth); judged documents count that the collection lacks."""
    best = np.zeros((len(ranking.query_ids), depth))
    for row, query in zip(best, ranking.query_ids):
        grades = sorted((max(grade, 0) for grade in ranking.judgments[query].values()), reverse=True)[:depth]
        row[: len(grades)] = grades
    return dcg(best)


def dcg(grades: np.ndarray) -> np.ndarray:
    """Return the discounted cumulative gain of ranked grades (Q, K) at each depth: grade / log2(1 + rank)."""
    return np.cumsum(grades / np.log2(2 + np.arange(grades.shape[1])), axis=1)


def curves(retrieved: Retrieved, ranking: Ranking) -> dict[str, ItemScores]:
    """Return nDCG and recall of each query at each of `CURVE_DEPTHS`: `ndcg@5`, `recall@5` ..."""
    grades = grades_of(retrieved.rows, ranking)
    relevant = np.array([sum(g > 0 for g in ranking.judgments[query].values()) for query in ranking.query_ids])
    gains, found, ideal = dcg(grades), np.cumsum(grades > 0, axis=1), ideal_dcg(ranking, max(CURVE_DEPTHS))
    of_depths = {}
    for depth in CURVE_DEPTHS:
        last = min(depth, grades.shape[1]) - 1
        of_depths[f"ndcg@{depth}"] = _one_run(gains[:, last] / ideal[:, depth - 1])
        of_depths[f"recall@{depth}"] = _one_run(found[:, last] / relevant)
    return of_depths


# --- Two rankings as one ---


@dataclass
class Candidates:
    """The documents that either of two lists finds for each query, with both scores."""

    rows: np.ndarray  # (Q, U) int32, ascending; -1 in places that are empty
    similarities: np.ndarray  # (Q, U) float32; -inf in places that are empty
    bm25: np.ndarray  # (Q, U) float32
    lowest: float  # similarity there can be

    @classmethod
    def of(cls, lists: tuple[Retrieved, Retrieved], similarities: Scores, bm25: Scores, lowest: float) -> "Candidates":
        """Join two lists of each query, and score all documents of both."""
        joined = [np.union1d(first, second) for first, second in zip(*(retrieved.rows for retrieved in lists))]
        joined = [rows[rows >= 0] for rows in joined]
        rows = np.full((len(joined), max(1, *map(len, joined))), -1, dtype=np.int32)
        for row, documents in zip(rows, joined):
            row[: len(documents)] = documents
        return cls(rows, np.where(rows >= 0, similarities(rows), -np.inf), bm25(rows), lowest)

    def scores(self, weights: np.ndarray | float) -> np.ndarray:
        """Add both scores, (Q, U), -inf in places that are empty; a weight a query, (Q, 1), or one."""
        return sum_of_scores(self.similarities, self.bm25, weights, self.lowest)

    def ranked(self, weights: np.ndarray, depth: int) -> Retrieved:
        """Rank by the sum, one weight a query, (Q,)."""
        return Retrieved.best(self.rows, self.scores(weights[:, None]), depth)


def reciprocal_rank_fusion(first: Retrieved, second: Retrieved, depth: int) -> Retrieved:
    """Rank by the sum of 1 / (60 + rank) over both lists; ranks begin at 1."""
    rows = np.full((len(first.rows), depth), -1, dtype=np.int32)
    scores = np.full(rows.shape, -np.inf, dtype=np.float32)
    for number, lists in enumerate(zip(first.rows, second.rows)):
        fused = reciprocal_ranks([ranked[ranked >= 0].tolist() for ranked in lists])[:depth]
        rows[number, : len(fused)], scores[number, : len(fused)] = zip(*fused) if fused else ((), ())
    return Retrieved(rows, scores)


def cross_validated(candidates: Candidates, ranking: Ranking, folds: Sequence[np.ndarray], measure: str) -> np.ndarray:
    """Return the weight of each query, (Q,): the best by this measure for the queries of all other folds."""
    values, weights = values_of_weights(candidates, ranking, measure), np.empty(len(ranking.query_ids))
    for fold in folds:
        weights[fold] = best_weight(np.delete(values, fold, axis=1))
    return weights


def values_of_weights(candidates: Candidates, ranking: Ranking, measure: str) -> np.ndarray:
    """Return a measure of each query with each of `WEIGHTS`, (weights, Q).

    Args:
        measure: KIND_at_DEPTH, its kind one of `CHOOSING`.
    """
    kind, _, number = measure.partition("_at_")
    depth = int(number)
    grades, ideal = grades_of(candidates.rows, ranking), ideal_dcg(ranking, depth)[:, -1]
    values = []
    for weight in WEIGHTS:
        best = np.argsort(-candidates.scores(weight), axis=1, kind="stable")[:, :depth]
        found = np.zeros((len(best), depth), dtype=grades.dtype)
        found[:, : best.shape[1]] = np.take_along_axis(grades, best, axis=1)
        values.append(CHOOSING[kind](found, ideal))
    return np.stack(values)


def best_weight(values: np.ndarray) -> float:
    """Return the weight with the highest mean of values (weights, queries); of several, the middle one."""
    means = values.mean(axis=1).round(12)
    best = np.flatnonzero(means == means.max())
    return WEIGHTS[int(best[(len(best) - 1) // 2])]


# --- The evaluation ---


class DocumentRanking(Evaluation):
    """Documents ranked for queries by each encoder, by BM25, and by both together."""

    title = card_title = "Documents ranked for queries"
    reports_each = False
    data_args: RankingArguments
    args: RetrievalArguments
    ranking: Ranking
    selection: Ranking | None = None  # queries that a hybrid's weight is chosen on, in place of the folds
    folds: Sequence[np.ndarray] = ()  # query numbers of each
    bm25: BM25  # with the default parameters
    show_progress = False

    def __init__(self, data_args: RankingArguments, args: RetrievalArguments):
        super().__init__(data_args, args)
        self.given: list[str] = []  # encoders, and bm25, as they were typed
        self.by_words: list[Result] = []
        self.by_bm25: tuple[Retrieved, Retrieved] | None = None  # by default parameters: reported, and for selection

    def load(self, show_progress: bool) -> None:
        """Read the collection, and choose the queries that a hybrid's weight is chosen on, if it is.

        Raises:
            ValueError: if ir_measures is not installed; if there is no such split or fold, or one that others would
                not find.
        """
        try:
            import ir_measures  # noqa: F401
        except ImportError as error:
            raise ValueError("Rankings are measured by ir_measures: pip install ir-measures.") from error
        options, args = self.data_args, self.args
        if options.max_queries is not None and (args.fold is not None or args.encoders_by_fold):
            raise ValueError("--max_queries would make other folds than those of the training: leave it out.")
        self.ranking = rankings.load_collection(options, args.seed).in_order_of_hash()
        self.show_progress = show_progress
        if args.fold is not None:
            _, chosen, reported = rankings.divide_queries(self.ranking, args.folds, args.fold)
            notes = [*self.ranking.notes, rankings.describe_fold(args.folds, args.fold)]
            self.ranking, self.selection = self.ranking.with_queries(reported), self.ranking.with_queries(chosen)
            self.ranking.notes = notes
        elif args.selection_split:
            chosen_on = replace(options, split=args.selection_split, max_queries=SELECTION_QUERIES)
            self.selection = rankings.other_queries(self.ranking, chosen_on, args.seed)
        elif args.choose_weight:
            self.folds = rankings.make_folds(self.ranking, args.folds, args.seed)

    def statistics(self) -> list[Json]:
        """Documents and queries."""
        parts = {"documents": self.ranking.documents, "queries": self.ranking.queries}
        return text_statistics(self.source(), parts, num_classes=None)

    def settings(self) -> Facts:
        """Return facts about the collection and what was left out."""
        return {
            "counts": self.ranking.counts,
            "data_fingerprint": self.ranking.fingerprint(),
            "queries_reported": len(self.ranking.queries),
            "documents": len(self.ranking.documents),
        }

    def describe(self) -> str:
        """Return the data in one line, with the fold."""
        return super().describe() + (f", queries of fold {self.args.fold}" if self.args.fold is not None else "")

    def sample(self) -> list[str]:
        """Two documents."""
        return self.ranking.documents[:2]

    def names(self, given: list[str]) -> list[str]:
        """Return the encoders; bm25 is none, and stands where it was typed."""
        self.given = given
        return [name for name in given if name != BM25_NAME] if {*self.args.methods} != {BM25_NAME} else []

    @property
    def queries(self) -> list[str]:
        """The queries reported, then those for selection."""
        return [*self.ranking.queries, *(self.selection.queries if self.selection else [])]

    def lists_of(self, retrieved: Retrieved) -> tuple[Retrieved, Retrieved]:
        """Leave its own document out of the list of each of `queries`; divide into those reported and for selection.

        Args:
            retrieved: lists of `DEPTH` + 1.
        """
        own = [ranking.own for ranking in (self.ranking, self.selection) if ranking is not None]
        return retrieved.without(np.concatenate(own), DEPTH).divided(len(self.ranking.queries))

    def prepare(self, is_main: bool) -> None:
        """Rank by BM25, where it is reported or joined with an encoder."""
        only_dense = {*self.args.methods} == {"dense"} and self.names(self.given)
        if is_main and (BM25_NAME in self.given or not only_dense):
            self.by_words = self.find_by_words()

    def find_by_words(self) -> list[Result]:
        """Rank by BM25 with the default parameters, which hybrids use too, and with Anserini's."""
        results: list[Result] = []
        warn_of_other_language(self.ranking.documents, self.args.language)
        for method, parameters in BM25_PARAMETERS.items():
            started = perf_counter()
            index = BM25(self.ranking.documents, self.args.language, **parameters, show_progress=self.show_progress)
            both = self.lists_of(index.retrieve(self.queries, DEPTH + 1))
            if self.by_bm25 is None:
                self.bm25, self.by_bm25 = index, both
            info = NO_ENCODER | {f"bm25_{name}": value for name, value in parameters.items()}
            info["bm25_language"] = self.args.language
            results.append(self._result(BM25_NAME, method, both[0], info, perf_counter() - started))
        return results

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> list[Result]:
        """Embed by all processes; search, join with BM25 and measure, by the first of them."""
        assert encoder is not None
        ranking = self.ranking
        documents, facts = encoder.embed_all(ranking.documents, ranking.relevant_documents, is_main)
        queries, query_facts = encoder.embed_queries(self.queries, is_main)
        encoder.rest()
        if not is_main:
            return []
        if seen := share_of_queries(name, ranking.queries):
            ranking.notes.append(
                f"{name} was trained on {100 * seen:.1f} % of these queries: its results on them are too good."
            )
            logger.warning(ranking.notes[-1])
        started = perf_counter()
        for vectors in (queries, documents):
            make_comparable(vectors, query_facts.similarity)
        both = self.lists_of(search(queries, documents, DEPTH + 1))
        seconds = perf_counter() - started
        info = facts | asdict(query_facts) | {"queries_seen_in_training_share": seen}
        return self.rank(name, both, queries, documents, info, seconds)

    def rank(
        self, name: str, dense: tuple[Retrieved, Retrieved], queries: np.ndarray, documents: np.ndarray, info: Facts,
        seconds: float,
    ) -> list[Result]:  # fmt: skip
        """Measure the lists of an encoder, alone and joined with BM25's, which `find_by_words` found before.

        Args:
            dense: the lists of the queries that are reported, and of those that a weight is selected on.
            queries: of both, (Q, H), comparable with the documents by scalar products.
            documents: (N, H).
            seconds: how long the search took.
        """
        args, results, (reported, others) = self.args, list[Result](), dense
        if "dense" in args.methods:
            results.append(self._result(name, "dense", reported, info, seconds))
        if "hybrid" not in args.methods:
            return results
        assert self.by_bm25 is not None
        if "sum" in args.fusion:
            lowest, count = LOWEST[info["similarity"]], len(reported.rows)
            if info["similarity"] == "dot":
                logger.info(f"{name} compares by dot products, which have no lowest value: the sum counts from 0.")

            def candidates(part: slice, lists: tuple[Retrieved, Retrieved]) -> Candidates:
                def similarities(rows: np.ndarray) -> np.ndarray:
                    return np.stack([documents[own] @ query for own, query in zip(rows, queries[part])])

                return Candidates.of(lists, similarities, partial(self.bm25.scores, self.queries[part]), lowest)

            joined, weights = candidates(slice(count), (reported, self.by_bm25[0])), np.full(count, args.weight)
            if args.choose_weight and self.selection is None:
                weights = cross_validated(joined, self.ranking, self.folds, args.hybrid_measure)
            elif args.choose_weight:
                assert self.selection is not None
                chosen_on = candidates(slice(count, None), (others, self.by_bm25[1]))
                values = values_of_weights(chosen_on, self.selection, args.hybrid_measure)
                weights = np.full(count, best_weight(values))
            chosen = info | {"hybrid_weights": sorted({float(weight) for weight in weights})}
            results.append(self._result(name, "hybrid", joined.ranked(weights, DEPTH), chosen, seconds, weights))
        if "rrf" in args.fusion:
            fused = reciprocal_rank_fusion(reported, self.by_bm25[0], DEPTH)
            results.append(self._result(name, "rrf", fused, info, seconds))
        return results

    def _result(
        self, name: str, method: str, retrieved: Retrieved, info: Facts, seconds: float,
        weights: np.ndarray | None = None,
    ) -> Result:  # fmt: skip
        is_baseline = name == BM25_NAME
        return Result(
            task=RANKING,
            encoder=name,
            head=method,
            measured=measure_retrieved(retrieved, self.ranking),
            further=curves(retrieved, self.ranking) | ({} if weights is None else {WEIGHT_COLUMN: _one_run(weights)}),
            seconds=seconds,
            info=info | {"method": method.partition(" ")[0], "collection": self.source()} | ties_of(retrieved),
            is_baseline=is_baseline,
            pretraining_seeds=None if is_baseline else 1,
            test_documents=len(self.ranking.documents),
        )

    def finish(self) -> None:
        """Put BM25 where it was typed, else last, and the joined methods behind all others."""
        if BM25_NAME in (*self.given, *self.args.methods):
            self.results += self.by_words
        order = [*self.given, BM25_NAME]
        self.results.sort(key=lambda result: (result.head in JOINED, order.index(result.encoder)))

    def notes(self, frame: pd.DataFrame) -> list[str]:
        """Return notes: what was left out, whose training had these queries, and whose scores are equal."""
        notes, names = [*self.ranking.notes], names_of(frame)
        for row in frame.to_dict("records"):
            name = names[row["encoder"]]
            if row["method"] == "dense" and row["alike_share"] > MANY_ALIKE:
                notes.append(
                    f"{name} gives its best documents all but the same score for {row['alike_share']:.0%} of the "
                    "queries: it tells no documents apart, and its numbers are chance."
                )
            elif row["tied_at_10_share"] > FEW_TIED:
                notes.append(
                    f"{name}, {row['head']}: {row['tied_at_10_share']:.0%} of the queries have equal scores on both "
                    "sides of rank 10, where a hash of the id decides."
                )
        return notes

    def write_further(self, frame: pd.DataFrame, folder: Path) -> list[str]:
        """Write each query's measures (queries.csv), and nDCG and recall over depth (curves.csv, curves.png)."""
        fold_of = {query: number for number, fold in enumerate(self.folds) for query in fold.tolist()}
        names, queries, depths, named = names_of(frame), [], [], {}
        for result in self.results:
            numbers = [result.items(measure) for measure in RANKING.measures]
            if (weights := result.further.get(WEIGHT_COLUMN)) is not None:
                numbers.insert(0, weights)
            values = np.stack([items.numerators.mean(axis=0) for items in numbers], axis=1)  # (Q, numbers)
            for number, (query, text) in enumerate(zip(self.ranking.query_ids, self.ranking.queries)):
                cells = [f"{value:.6g}" for value in values[number]]
                cells = cells if weights is not None else ["", *cells]
                queries.append([result.encoder, result.head, query, text, fold_of.get(number, ""), *cells])
            of_depths = {
                measure: np.array([result.further[f"{measure}@{depth}"].of_runs().mean() for depth in CURVE_DEPTHS])
                for measure in ("ndcg", "recall")
            }
            named[result.head if result.is_baseline else f"{names[result.encoder]} {result.head}"] = of_depths
            for depth, *both in zip(CURVE_DEPTHS, *of_depths.values()):
                depths.append([result.encoder, result.head, depth, *(f"{value:.6g}" for value in both)])
        header = ["encoder", "method", "query_id", "query", "fold", WEIGHT_COLUMN, *RANKING.measures]
        write_csv(folder / "queries.csv", header, queries)
        write_csv(folder / "curves.csv", ["encoder", "method", "depth", "ndcg", "recall"], depths)
        plot_ranking(named, CURVE_DEPTHS, folder / "curves.png")
        return ["queries.csv", "curves.csv", "curves.png"]


class RankingByFold(DocumentRanking):
    """Several trainings as one row: each encoder measured on the queries of the fold that it was trained without.

    Robust04's five trainings (graph document model, section 3.3) become one number over its 249 queries, and one
    paired test. Fold by fold it is what `--fold` measures: the hybrid's weight is chosen on the queries of the next
    fold.
    """

    def load(self, show_progress: bool) -> None:
        """Read the collection, and divide its queries as the trainings did.

        Raises:
            ValueError: as `DocumentRanking.load`; if there are too few folds.
        """
        super().load(show_progress)
        rankings.divide_queries(self.ranking, self.args.folds, 0)  # raises where they are too few
        self.folds = rankings.make_folds(self.ranking, self.args.folds, rankings.FOLD_SEED)
        self.fold_of: dict[str, int] = {}  # of each encoder

    def check(self, encoder_args: EncoderArguments) -> None:
        """Check that each argument names an encoder a fold.

        Raises:
            ValueError: naming the argument.
        """
        for name in self.names(encoder_args.model_name_or_path):
            members = members_of(name)
            if len(members) != len(self.folds):
                raise ValueError(
                    f"--encoders_by_fold: {name} names {len(members)} encoders for {len(self.folds)} folds. Name one "
                    "for each, in their order: NAME=PATH,PATH,PATH."
                )
            for fold, member in enumerate(members):
                if self.fold_of.setdefault(member, fold) != fold:
                    raise ValueError(f"--encoders_by_fold: {member} stands for two folds, so it was trained on one.")

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> list[Result]:
        """Measure an encoder on the queries of its fold, with BM25's lists of these and of those that choose."""
        _, chosen, reported = rankings.divide_queries(self.ranking, self.args.folds, fold := self.fold_of[name])
        part = DocumentRanking(self.data_args, replace(self.args, encoders_by_fold=False, fold=fold))
        part.ranking, part.selection = self.ranking.with_queries(reported), self.ranking.with_queries(chosen)
        if self.by_bm25 is not None:
            words, _ = self.by_bm25
            first, second = (Retrieved(words.rows[rows], words.scores[rows]) for rows in (reported, chosen))
            part.bm25, part.by_bm25 = self.bm25, (first, second)
        return part.measure(name, encoder, is_main)

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Join what was measured fold by fold: each query once, by the encoder that was trained without it."""
        for of_folds in zip(*measured):
            joined = join_folds(group.name, of_folds, self.folds)
            if WEIGHT_COLUMN in joined.further:
                weights = joined.further[WEIGHT_COLUMN].numerators.ravel().astype(np.float64).round(2)
                joined.info["hybrid_weights"] = sorted({*weights.tolist()})
            self.results.append(joined)

    def notes(self, frame: pd.DataFrame) -> list[str]:
        """Return notes, with what a row is of."""
        return [
            f"A row is of {len(self.folds)} encoders, each measured on the fold of queries that it was trained "
            f"without (--folds {self.args.folds}).",
            *super().notes(frame),
        ]
