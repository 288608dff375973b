"""Every method of ranking a collection's documents for its queries, as `Result`s: dense, BM25, and both together.

`DocumentRanking` holds what encoders share: the queries, BM25's lists and the folds that a hybrid's weight is chosen
on.
"""

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from docsplit.data.bm25 import BM25
from docsplit.data.seen_documents import share_of_queries
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import (
    Ranking,
    Retrieved,
    describe_fold,
    divide,
    load_collection,
    make_folds,
    other_queries,
)
from docsplit.embedding.encoder import Encoder, EncoderGroup
from docsplit.embedding.search import make_comparable, search
from docsplit.evaluation.compare import Evaluation
from docsplit.evaluation.ranking.arguments import BM25 as BM25_NAME
from docsplit.evaluation.ranking.arguments import BM25_PARAMETERS, RetrievalArguments
from docsplit.evaluation.ranking.fusion import (
    best_weight,
    cross_validated,
    reciprocal_rank_fusion,
    union_of,
    values_of_weights,
)
from docsplit.evaluation.ranking.measures import check_measures, curves, measure_retrieved
from docsplit.evaluation.results.plots import plot_ranking
from docsplit.evaluation.results.records import Facts, Row, TextStatistics, text_statistics
from docsplit.evaluation.results.result import NO_ENCODER, Result
from docsplit.evaluation.results.tables import encoder_names
from docsplit.evaluation.results.task import RANKING
from docsplit.runtime.files import write_text

logger = logging.getLogger(__name__)

Curves = dict[str, np.ndarray]  # of each measure, (depths,)
DEPTH = 1000  # documents a query: of all lists, and of what a hybrid joins
SELECTION_QUERIES = 1000  # at most, of another split: MS MARCO has 367,000 for training
JOINED = ("hybrid", "rrf")  # methods: an encoder together with BM25
CURVE_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


class DocumentRanking(Evaluation):
    """Documents ranked for queries by each encoder, by BM25, and by both together."""

    title = card_title = "Documents ranked for queries"
    files = (*Evaluation.files, "queries.csv", "curves.csv", "curves.png")
    reports_each = False
    data_args: RankingArguments
    args: RetrievalArguments
    ranking: Ranking
    selection: Ranking | None = None  # queries that a hybrid's weight is chosen on, in place of the folds
    folds: Sequence[np.ndarray] = ()  # query numbers of each
    show_progress = False

    def __init__(self, data_args: RankingArguments, args: RetrievalArguments):
        super().__init__(data_args, args)
        self.given: list[str] = []  # encoders, and bm25, as they were typed
        self.by_words: list[Result] = []
        self.bm25: tuple[Retrieved, Retrieved] | None = None  # by default parameters: reported, and for selection
        self.curves: dict[tuple[str, str], Curves] = {}  # of each encoder and method, as measured last
        self.weights: dict[str, np.ndarray] = {}  # of each encoder's hybrid, a query, likewise
        self.all_curves: dict[tuple[str, str], list[Curves]] = {}  # of each argument and method, one a member
        self.all_weights: dict[str, list[np.ndarray]] = {}  # of each argument, one a member

    def load(self, show_progress: bool) -> None:
        """Read the collection, and choose the queries that a hybrid's weight is chosen on.

        Raises:
            ValueError: if there is no such split or fold, or one that others would not find.
        """
        check_measures()
        options, args = self.data_args, self.args
        self.ranking, self.show_progress = load_collection(options, args.seed), show_progress
        if args.fold is not None:
            if options.max_queries is not None:
                raise ValueError("--max_queries would make other folds than those of the training: leave it out.")
            _, chosen, reported = divide(self.ranking, args.folds, args.fold)
            notes = [*self.ranking.notes, describe_fold(args.folds, args.fold)]
            self.ranking, self.selection = self.ranking.with_queries(reported), self.ranking.with_queries(chosen)
            self.ranking.notes = notes
        elif args.selection_split:
            chosen_on = replace(options, split=args.selection_split, max_queries=SELECTION_QUERIES)
            self.selection = other_queries(self.ranking, chosen_on, args.seed)
        elif "hybrid" in args.methods:
            self.folds = make_folds(self.ranking, args.folds, args.seed)

    def statistics(self) -> list[TextStatistics]:
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

    def without_own(self, retrieved: Retrieved) -> Retrieved:
        """Leave the own document of each of `queries` out of its list of `DEPTH` + 1."""
        own = [ranking.own for ranking in (self.ranking, self.selection) if ranking is not None]
        return retrieved.without(np.concatenate(own), DEPTH)

    def prepare(self, is_main: bool) -> None:
        """Rank by BM25, where it is reported or joined with an encoder."""
        only_dense = {*self.args.methods} == {"dense"} and self.names(self.given)
        if is_main and (BM25_NAME in self.given or not only_dense):
            self.by_words = self.find_by_words()

    def find_by_words(self) -> list[Result]:
        """Rank by BM25 with the default parameters, which hybrids use too, and with Anserini's."""
        results = []
        for method, parameters in BM25_PARAMETERS.items():
            started = perf_counter()
            index = BM25(self.ranking.documents, **parameters, show_progress=self.show_progress)
            retrieved, of_other_queries = self.without_own(index.retrieve(self.queries, DEPTH + 1)).divided(
                len(self.ranking.queries)
            )
            self.bm25 = self.bm25 or (retrieved, of_other_queries)
            info = NO_ENCODER | {f"bm25_{name}": value for name, value in parameters.items()}
            seconds = perf_counter() - started
            results.append(self._result(BM25_NAME, method, retrieved, info, seconds))
        return results

    def measure(self, name: str, encoder: Encoder | None, is_main: bool) -> list[Result]:
        """Embed by all processes; search, join with BM25 and measure, by the first of them."""
        assert encoder is not None
        ranking = self.ranking
        documents, facts = encoder.embed_all(ranking.documents, ranking.relevant_documents, is_main)
        queries, query_facts = encoder.embed_queries(self.queries, self.args.query_prompt, is_main)
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
        retrieved = self.without_own(search(queries, documents, DEPTH + 1))
        seconds = perf_counter() - started
        info = facts.row() | asdict(query_facts) | {"queries_seen_in_training_share": seen}
        return self.rank(name, retrieved, info, seconds)

    def rank(self, name: str, retrieved: Retrieved, info: Facts, seconds: float) -> list[Result]:
        """Measure the lists of an encoder, alone and joined with BM25's.

        Args:
            retrieved: the lists of `queries`.
            seconds: how long the search took.

        Raises:
            ValueError: if they are to be joined with BM25's, and `find_by_words` was not called.
        """
        dense, dense_others = retrieved.divided(len(self.ranking.queries))
        results = [self._result(name, "dense", dense, info, seconds)] if "dense" in self.args.methods else []
        joined = [method for method in self.args.methods if method in JOINED]
        if not joined:
            return results
        if self.bm25 is None:
            raise ValueError(f"{' and '.join(joined)} of {name} need BM25's lists: call find_by_words first.")
        words, words_others = self.bm25
        if "hybrid" in joined:
            union = union_of(dense, words)
            if self.selection is None:
                weights = cross_validated(union, self.ranking, self.folds, self.args.hybrid_measure)
            else:
                others = union_of(dense_others, words_others)
                values = values_of_weights(others, self.selection, self.args.hybrid_measure)
                weights = np.full(len(self.ranking.queries), best_weight(values))
            chosen = {"hybrid_weights": sorted({float(weight) for weight in weights})}
            self.weights[name] = weights
            results.append(self._result(name, "hybrid", union.ranked(weights, DEPTH), info | chosen, seconds))
        if "rrf" in joined:
            fused = reciprocal_rank_fusion(dense, words, DEPTH)
            results.append(self._result(name, "rrf", fused, info, seconds))
        return results

    def _result(self, name: str, method: str, retrieved: Retrieved, info: Facts, seconds: float) -> Result:
        is_baseline = name == BM25_NAME
        self.curves[name, method] = curves(retrieved, self.ranking, CURVE_DEPTHS)
        return Result(
            task=RANKING,
            encoder=name,
            head=method,
            measured=dict(measure_retrieved(retrieved, self.ranking)),
            seconds=seconds,
            info=info | {"method": method.partition(" ")[0], "collection": self.source()},
            is_baseline=is_baseline,
            pretraining_seeds=None if is_baseline else 1,
            test_documents=len(self.ranking.documents),
        )

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Keep the results of an argument, with its curves and weights: an encoder may stand in several."""
        super().add(group, measured)
        for method in {result.head for of_member in measured for result in of_member}:
            self.all_curves[group.name, method] = [self.curves[member, method] for member in group.members]
        if all(member in self.weights for member in group.members):
            self.all_weights[group.name] = [self.weights[member] for member in group.members]

    def finish(self) -> None:
        """Put BM25 where it was typed, else last, and the joined methods behind all others."""
        if BM25_NAME in (*self.given, *self.args.methods):
            self.results += self.by_words
            self.all_curves |= {(BM25_NAME, one.head): [self.curves[BM25_NAME, one.head]] for one in self.by_words}
        order = [*self.given, BM25_NAME]
        self.results.sort(key=lambda result: (result.head in JOINED, order.index(result.encoder)))

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Return notes: what was left out, and whose training had these queries."""
        return self.ranking.notes

    def write_further(self, rows: Sequence[Row], folder: Path) -> list[str]:
        """Write queries.csv, and curves.csv with curves.png."""
        write_queries(folder / "queries.csv", self.results, self)
        draw_curves(folder, self.results, self)
        return []


def write_queries(path: Path, results: Sequence[Result], run: DocumentRanking) -> None:
    """Write every measure of every query, encoder and method as CSV: means over the members of a group of seeds."""
    fold_of = np.zeros(len(run.ranking.queries), dtype=int)
    for number, fold in enumerate(run.folds):
        fold_of[fold] = number
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["encoder", "method", "query_id", "query", "fold", "hybrid_weight", *RANKING.measures])
    for result in results:
        items = [result.measured[measure].numerators.mean(axis=0) for measure in RANKING.measures]  # type: ignore[union-attr]
        known = result.head == "hybrid" and result.encoder in run.all_weights
        weights = np.mean(run.all_weights[result.encoder], axis=0) if known else None
        for number, (query, text) in enumerate(zip(run.ranking.query_ids, run.ranking.queries)):
            weight = "" if weights is None else f"{weights[number]:g}"
            fold_shown = str(fold_of[number]) if run.folds else ""
            shown = [f"{values[number]:.6g}" for values in items]
            table.writerow([result.encoder, result.head, query, text, fold_shown, weight, *shown])
    write_text(path, written.getvalue())


def draw_curves(folder: Path, results: Sequence[Result], run: DocumentRanking) -> None:
    """nDCG and recall over depth: curves.png, and the numbers as curves.csv; means over a group's members."""
    shown = encoder_names({result.encoder: result.members for result in results})
    written, named = io.StringIO(), {}
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["encoder", "method", "depth", "ndcg", "recall"])
    for result in results:
        members = run.all_curves[result.encoder, result.head]
        values = {measure: np.mean([curve[measure] for curve in members], axis=0) for measure in ("ndcg", "recall")}
        named[result.head if result.is_baseline else f"{shown[result.encoder]} {result.head}"] = values
        for depth, ndcg, recall in zip(CURVE_DEPTHS, values["ndcg"], values["recall"]):
            table.writerow([result.encoder, result.head, depth, f"{ndcg:.6g}", f"{recall:.6g}"])
    write_text(folder / "curves.csv", written.getvalue())
    plot_ranking(named, CURVE_DEPTHS, folder / "curves.png")
