"""Every method of ranking a collection's documents for its queries, as `Result`s: dense, BM25, and both together.

`RankingRun` holds what encoders share: the queries, BM25's lists and the folds that a hybrid's weight is chosen on.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.evaluation.heads.presets import BM25 as BM25_NAME
from docsplit.evaluation.heads.presets import BM25_PARAMETERS
from docsplit.evaluation.ranking.fusion import (
    best_weight,
    cross_validated,
    ndcg_of_weights,
    reciprocal_rank_fusion,
    union_of,
)
from docsplit.evaluation.ranking.measures import BM25, curves, measure_retrieved
from docsplit.evaluation.results.plots import plot_ranking
from docsplit.evaluation.results.result import NO_ENCODER, Result
from docsplit.evaluation.results.tables import encoder_names
from docsplit.evaluation.results.task import RANKING
from docsplit.runtime.files import write_text

DEPTH = 1000  # documents a query: of all lists, and of what a hybrid joins
SELECTION_QUERIES = 1000  # at most, of another split: MS MARCO has 367,000 for training
CURVE_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass
class RankingRun:
    """A collection that encoders are compared on, and what was found in it so far."""

    ranking: Ranking
    collection: str  # what results call it
    folds: list[np.ndarray]  # query numbers of each
    selection: Ranking | None  # queries that a hybrid's weight is chosen on, in place of the folds
    show_progress: bool = False

    def __post_init__(self) -> None:
        self.bm25: tuple[Retrieved, Retrieved] | None = None  # by default parameters: reported, and for selection
        self.curves: dict[tuple[str, str], dict[str, np.ndarray]] = {}  # of each encoder and method
        self.weights: dict[str, np.ndarray] = {}  # of each encoder's hybrid, a query

    @property
    def queries(self) -> list[str]:
        """Those reported, and after them those for selection."""
        return [*self.ranking.queries, *(self.selection.queries if self.selection else [])]

    def find_by_words(self) -> list[Result]:
        """BM25 with the default parameters, which hybrids use too, and with Anserini's."""
        results = []
        for method, parameters in BM25_PARAMETERS.items():
            started = perf_counter()
            index = BM25(self.ranking.documents, **parameters, show_progress=self.show_progress)
            found, others = index.retrieve(self.queries, DEPTH).divided(len(self.ranking.queries))
            self.bm25 = self.bm25 or (found, others)
            info = NO_ENCODER | {f"bm25_{name}": value for name, value in parameters.items()}
            seconds = perf_counter() - started
            results.append(self._result(BM25_NAME, method, found, info, seconds, is_baseline=True))
        return results

    def rank(
        self, name: str, found: Retrieved, info: dict[str, Any], seconds: float, methods: Sequence[str]
    ) -> list[Result]:
        """The lists of an encoder, alone and joined with BM25's.

        Args:
            found: for `queries`.
            seconds: that the search took.
            methods: of dense, hybrid and rrf.
        """
        dense, dense_others = found.divided(len(self.ranking.queries))
        results = [self._result(name, "dense", dense, info, seconds)] if "dense" in methods else []
        if self.bm25 is None or not {"hybrid", "rrf"} & {*methods}:
            return results
        if "hybrid" in methods:
            union = union_of(dense, self.bm25[0])
            if self.selection is None:
                weights = cross_validated(union, self.ranking, self.folds)
            else:
                values = ndcg_of_weights(union_of(dense_others, self.bm25[1]), self.selection)
                weights = np.full(len(self.ranking.queries), best_weight(values))
            chosen = {"hybrid_weights": sorted({float(weight) for weight in weights})}
            self.weights[name] = weights
            results.append(self._result(name, "hybrid", union.ranked(weights, DEPTH), info | chosen, seconds))
        if "rrf" in methods:
            joined = reciprocal_rank_fusion(dense, self.bm25[0], DEPTH)
            results.append(self._result(name, "rrf", joined, info, seconds))
        return results

    def _result(
        self, name: str, method: str, found: Retrieved, info: dict[str, Any], seconds: float, is_baseline: bool = False
    ) -> Result:
        self.curves[name, method] = curves(found, self.ranking, CURVE_DEPTHS)
        return Result(
            RANKING,
            name,
            method,
            None,
            dict(measure_retrieved(found, self.ranking)),
            seconds,
            trainable_parameters=0,
            info=info | {"method": method.partition(" ")[0], "collection": self.collection},
            is_baseline=is_baseline,
            pretraining_seeds=None if is_baseline else 1,
            test_documents=len(self.ranking.documents),
        )


def with_plain_measures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that have each mean under the name of its measure too: there is one run of each search."""
    return [row | {measure: row[f"{measure}_mean"] for measure in RANKING.measures} for row in rows]


def write_queries(path: Path, results: Sequence[Result], run: RankingRun) -> None:
    """Every measure of every query, encoder and method, as CSV: means over the members of a group of seeds."""
    fold_of = np.zeros(len(run.ranking.queries), dtype=int)
    for number, fold in enumerate(run.folds):
        fold_of[fold] = number
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["encoder", "method", "query_id", "query", "fold", "hybrid_weight", *RANKING.measures])
    for result in results:
        items = [result.measured[measure].numerators.mean(axis=0) for measure in RANKING.measures]  # type: ignore[union-attr]
        names = result.members or (result.encoder,)
        known = result.head == "hybrid" and all(name in run.weights for name in names)
        weights = np.mean([run.weights[name] for name in names], axis=0) if known else None
        for number, (query, text) in enumerate(zip(run.ranking.query_ids, run.ranking.queries)):
            own_weight = "" if weights is None else f"{weights[number]:g}"
            own_fold = str(fold_of[number]) if run.folds else ""
            shown = [f"{values[number]:.6g}" for values in items]
            table.writerow([result.encoder, result.head, query, text, own_fold, own_weight, *shown])
    write_text(path, written.getvalue())


def draw_curves(folder: Path, results: Sequence[Result], run: RankingRun) -> None:
    """nDCG and recall over depth: curves.png, and the numbers as curves.csv; means over a group's members."""
    shown = encoder_names([{"encoder": result.encoder, "members": result.members} for result in results])
    written, named = io.StringIO(), {}
    table = csv.writer(written, lineterminator="\n")
    table.writerow(["encoder", "method", "depth", "ndcg", "recall"])
    for result in results:
        own = [run.curves[name, result.head] for name in result.members or (result.encoder,)]
        values = {measure: np.mean([curve[measure] for curve in own], axis=0) for measure in ("ndcg", "recall")}
        named[result.head if result.is_baseline else f"{shown[result.encoder]} {result.head}"] = values
        for depth, ndcg, recall in zip(CURVE_DEPTHS, values["ndcg"], values["recall"]):
            table.writerow([result.encoder, result.head, depth, f"{ndcg:.6g}", f"{recall:.6g}"])
    write_text(folder / "curves.csv", written.getvalue())
    plot_ranking(named, CURVE_DEPTHS, folder / "curves.png")
