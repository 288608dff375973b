"""Every method of ranking a collection's documents for its queries, as `Result`s: dense, BM25, and both together.

`DocumentRanking` holds what encoders share: the queries, BM25's lists and the folds that a hybrid's weight is chosen
on.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from docsplit.data.bm25 import BM25
from docsplit.data.seen_documents import share_of_queries
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import (
    FOLD_SEED,
    Ranking,
    Retrieved,
    describe_fold,
    divide,
    load_collection,
    make_folds,
    other_queries,
)
from docsplit.embedding.arguments import EncoderArguments, members_of
from docsplit.embedding.encoder import Encoder, EncoderGroup
from docsplit.embedding.neighbours import make_comparable, search
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
from docsplit.evaluation.results.plots import plot_ranking, write_csv
from docsplit.evaluation.results.report import Json, names_of, text_statistics
from docsplit.evaluation.results.result import NO_ENCODER, RANKING, Facts, Result, join_folds, merge_members

logger = logging.getLogger(__name__)

DEPTH = 1000  # documents a query: of all lists, and of what a hybrid joins
SELECTION_QUERIES = 1000  # at most, of another split: MS MARCO has 367,000 for training
JOINED = ("hybrid", "rrf")  # methods: an encoder together with BM25
CURVE_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(kw_only=True)
class RankingResult(Result):
    """One method on one encoder, with what is drawn of it."""

    depths: dict[str, np.ndarray]  # nDCG and recall at each of `CURVE_DEPTHS`, means over queries
    weights: np.ndarray | None = None  # (Q,) of each query, of the hybrid


class DocumentRanking(Evaluation):
    """Documents ranked for queries by each encoder, by BM25, and by both together."""

    title = card_title = "Documents ranked for queries"
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
        results: list[Result] = []
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
        info = facts | asdict(query_facts) | {"queries_seen_in_training_share": seen}
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
        results: list[Result] = (
            [self._result(name, "dense", dense, info, seconds)] if "dense" in self.args.methods else []
        )
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
            ranked = union.ranked(weights, DEPTH)
            results.append(self._result(name, "hybrid", ranked, info | chosen, seconds, weights=weights))
        if "rrf" in joined:
            fused = reciprocal_rank_fusion(dense, words, DEPTH)
            results.append(self._result(name, "rrf", fused, info, seconds))
        return results

    def _result(
        self, name: str, method: str, retrieved: Retrieved, info: Facts, seconds: float, **about: Any
    ) -> RankingResult:
        is_baseline = name == BM25_NAME
        return RankingResult(
            task=RANKING,
            encoder=name,
            head=method,
            measured=dict(measure_retrieved(retrieved, self.ranking)),
            seconds=seconds,
            info=info | {"method": method.partition(" ")[0], "collection": self.source()},
            is_baseline=is_baseline,
            pretraining_seeds=None if is_baseline else 1,
            test_documents=len(self.ranking.documents),
            depths=curves(retrieved, self.ranking, CURVE_DEPTHS),
            **about,
        )

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Keep the results of an argument, with the means of its members' curves and weights."""
        for of_members in zip(*measured):
            (merged,) = merge_members(group.name, group.members, [[result] for result in of_members])
            depths = {name: np.mean([one.depths[name] for one in of_members], axis=0) for name in of_members[0].depths}
            known = [one.weights for one in of_members if one.weights is not None]
            weights = np.mean(known, axis=0) if known else None
            self.results.append(replace(merged, depths=depths, weights=weights))  # type: ignore[call-arg]

    def finish(self) -> None:
        """Put BM25 where it was typed, else last, and the joined methods behind all others."""
        if BM25_NAME in (*self.given, *self.args.methods):
            self.results += self.by_words
        order = [*self.given, BM25_NAME]
        self.results.sort(key=lambda result: (result.head in JOINED, order.index(result.encoder)))

    def notes(self, frame: pd.DataFrame) -> list[str]:
        """Return notes: what was left out, and whose training had these queries."""
        return self.ranking.notes

    def write_further(self, frame: pd.DataFrame, folder: Path) -> list[str]:
        """Write each query's measures (queries.csv), and nDCG and recall over depth (curves.csv, curves.png)."""
        fold_of = {query: number for number, fold in enumerate(self.folds) for query in fold.tolist()}
        names, queries, depths, named = names_of(frame), [], [], {}
        for result in self.results:
            assert isinstance(result, RankingResult)
            values = np.stack([result.items(measure).arrays()[0].mean(axis=0) for measure in RANKING.measures])
            for number, (query, text) in enumerate(zip(self.ranking.query_ids, self.ranking.queries)):
                weight = "" if result.weights is None else f"{result.weights[number]:g}"
                place = [result.encoder, result.head, query, text, fold_of.get(number, ""), weight]
                queries.append([*place, *(f"{value:.6g}" for value in values[:, number])])
            named[result.head if result.is_baseline else f"{names[result.encoder]} {result.head}"] = result.depths
            for depth, ndcg, recall in zip(CURVE_DEPTHS, result.depths["ndcg"], result.depths["recall"]):
                depths.append([result.encoder, result.head, depth, f"{ndcg:.6g}", f"{recall:.6g}"])
        header = ["encoder", "method", "query_id", "query", "fold", "hybrid_weight", *RANKING.measures]
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
        if self.data_args.max_queries is not None:
            raise ValueError("--max_queries would make other folds than those of the training: leave it out.")
        super().load(show_progress)
        divide(self.ranking, self.args.folds, 0)  # raises where they are too few
        self.folds = make_folds(self.ranking, self.args.folds, FOLD_SEED)
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
        _, chosen, reported = divide(self.ranking, self.args.folds, fold := self.fold_of[name])
        part = DocumentRanking(self.data_args, replace(self.args, encoders_by_fold=False, fold=fold))
        part.ranking, part.selection = self.ranking.with_queries(reported), self.ranking.with_queries(chosen)
        if self.bm25 is not None:
            words, _ = self.bm25
            first, second = (Retrieved(words.rows[rows], words.scores[rows]) for rows in (reported, chosen))
            part.bm25 = first, second
        return part.measure(name, encoder, is_main)

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Join what was measured fold by fold: each query once, by the encoder that was trained without it."""
        sizes = [len(fold) for fold in self.folds]
        for of_folds in zip(*measured):
            joined: Any = join_folds(group.name, of_folds, self.folds)
            for name in joined.depths:
                joined.depths[name] = np.average([one.depths[name] for one in of_folds], axis=0, weights=sizes)
            if joined.weights is not None:
                joined.weights = np.empty(sum(sizes))
                for one, fold in zip(of_folds, self.folds):
                    joined.weights[fold] = one.weights
                joined.info["hybrid_weights"] = sorted({float(weight) for weight in joined.weights})
            self.results.append(joined)

    def notes(self, frame: pd.DataFrame) -> list[str]:
        """Return notes, with what a row is of."""
        return [
            f"A row is of {len(self.folds)} encoders, each measured on the fold of queries that it was trained "
            f"without (--folds {self.args.folds}).",
            *super().notes(frame),
        ]
