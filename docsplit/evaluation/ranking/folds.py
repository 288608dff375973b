"""Queries to train on, to choose by and to report, fold by fold."""

import numpy as np

from docsplit.data.sets.rankings import Ranking
from docsplit.evaluation.ranking.fusion import make_folds

FEWEST = 3
SEED = 0  # of folds that are drawn: an encoder must not have been trained on the queries that it is measured on


def divide(ranking: Ranking, folds: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of queries to train on, to choose by, and to report: of fold `number` (from 0), and of the one after it.

    Training and evaluation call this with the same collection, and get the same parts.

    Args:
        folds: as `docsplit.evaluation.ranking.fusion.make_folds` takes it.

    Raises:
        ValueError: if there are fewer than three folds, or none of this number.
    """
    parts = make_folds(ranking, folds, SEED)
    if len(parts) < FEWEST:
        raise ValueError(
            f"--folds {folds} gives {len(parts)} folds: to train, to choose and to report takes {FEWEST}."
        )
    if not 0 <= number < len(parts):
        raise ValueError(f"--fold is {number}: the {len(parts)} folds are counted from 0.")
    chosen = (number + 1) % len(parts)
    others = [part for own, part in enumerate(parts) if own not in (number, chosen)]
    return np.sort(np.concatenate(others)), parts[chosen], parts[number]


def describe(folds: str, number: int) -> str:
    """What results say of a fold that is reported."""
    return f"The queries of fold {number} (--folds {folds}) alone; what is chosen is chosen on those of the next fold."
