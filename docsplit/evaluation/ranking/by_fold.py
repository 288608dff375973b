"""Several trainings as one row: each encoder measured on the queries of the fold that it was trained without.

Robust04's five trainings (graph document model, section 3.3) become one number over its 249 queries, and one paired
test. Fold by fold it is what `--fold` measures: the hybrid's weight is chosen on the queries of the next fold.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from docsplit.data.sets.rankings import FOLD_SEED, Retrieved, divide, make_folds
from docsplit.embedding.arguments import EncoderArguments, members_of
from docsplit.embedding.encoder import Encoder, EncoderGroup
from docsplit.evaluation.ranking.methods import DocumentRanking
from docsplit.evaluation.results.records import Row
from docsplit.evaluation.results.result import Result, join_folds


class RankingByFold(DocumentRanking):
    """Documents ranked for the queries of each fold by an encoder of its own."""

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
        self.parts: dict[str, DocumentRanking] = {}  # of each encoder: its fold alone, as it was measured last

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
        """Measure an encoder on the queries of its fold."""
        self.parts[name] = self._part(self.fold_of[name])
        return self.parts[name].measure(name, encoder, is_main)

    def _part(self, fold: int) -> DocumentRanking:
        """Make the evaluation of one fold, with BM25's lists of its queries and of those that choose the weight."""
        _, chosen, reported = divide(self.ranking, self.args.folds, fold)
        part = DocumentRanking(self.data_args, replace(self.args, encoders_by_fold=False, fold=fold))
        part.ranking, part.selection = self.ranking.with_queries(reported), self.ranking.with_queries(chosen)
        if self.bm25 is not None:
            words, _ = self.bm25
            lists = [Retrieved(words.rows[rows], words.scores[rows]) for rows in (reported, chosen)]
            part.bm25 = lists[0], lists[1]
        return part

    def add(self, group: EncoderGroup, measured: list[Any]) -> None:
        """Join what was measured fold by fold: each query once, by the encoder that was trained without it."""
        parts, sizes = [self.parts[member] for member in group.members], [len(fold) for fold in self.folds]
        for results in zip(*measured):
            joined = join_folds(group.name, results, self.folds)
            method = joined.head
            if method == "hybrid":
                weights = np.empty(sum(sizes))
                for member, fold, part in zip(group.members, self.folds, parts):
                    weights[fold] = part.weights[member]
                self.all_weights[group.name] = [weights]
                joined.info["hybrid_weights"] = sorted({float(weight) for weight in weights})
            of_folds = [part.curves[member, method] for member, part in zip(group.members, parts)]
            self.all_curves[group.name, method] = [
                {
                    measure: np.average([one[measure] for one in of_folds], axis=0, weights=sizes)
                    for measure in of_folds[0]
                }
            ]
            self.results.append(joined)

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Return notes, with what a row is of."""
        return [
            f"A row of an encoder is of {len(self.folds)} encoders, one for each fold (--folds {self.args.folds}): "
            "each is measured on the queries of its fold alone, which it was trained without, and what is chosen is "
            "chosen on those of the next fold.",
            *super().notes(rows),
        ]
