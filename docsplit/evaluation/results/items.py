"""What each test item brings to a figure, and the functions that make the figure of it.

A "run" is one training of a head (one draw of few-shot labels, or one seed), R of them, each measured on the same M
test items. A statistic is any function of `Items` that gives one value a run, (R,): `Task.statistics` names those that
are no ratio of sums. Macro-F1, which no sum over items gives, stays one value a run without an interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata


class Items:
    """Arrays (R, M) with a number for each run and test item: the base of the dataclasses that name them."""

    def __post_init__(self) -> None:
        shapes = {values.shape for values in self.arrays()}
        if len(shapes) > 1 or any(len(shape) != 2 or 0 in shape for shape in shapes):
            raise ValueError(
                f"{' and '.join(vars(self))} of test items must have one shape, runs x test items and neither of them "
                f"0, not {' and '.join(str(values.shape) for values in self.arrays())}."
            )

    def arrays(self) -> list[np.ndarray]:
        """All of them, (R, M) each, in the order of the dataclass."""
        return list(vars(self).values())

    @property
    def runs(self) -> int:
        """R."""
        return self.arrays()[0].shape[0]

    @property
    def size(self) -> int:
        """The number of test items, M."""
        return self.arrays()[0].shape[1]

    def repeated(self, times: np.ndarray) -> "Items":
        """Each item so many times, (M,): a set of items that were drawn with replacement."""
        chosen = np.repeat(np.arange(self.size), times.astype(np.int64))
        return type(self)(*(values[:, chosen] for values in self.arrays()))

    @classmethod
    def joined(cls, parts: Sequence["Items"]) -> "Items":
        """All runs of several systems on the same items, one system after another."""
        return cls(*map(np.concatenate, zip(*(part.arrays() for part in parts))))


@dataclass(frozen=True)
class ItemScores(Items):
    """What each test item adds to the two sides of a ratio, in each run."""

    numerators: np.ndarray  # (R, M) float32
    denominators: np.ndarray  # (R, M) float32

    def of_runs(self) -> np.ndarray:
        """Return the score of each run, (R,) float64."""
        return ratio_of_sums(self)


@dataclass(frozen=True)
class ItemPairs(Items):
    """Two values of each test item, in each run, whose orders are compared."""

    first: np.ndarray  # (R, M)
    second: np.ndarray  # (R, M)


Statistic = Callable[[Any], np.ndarray]


def ratio_of_sums(items: ItemScores) -> np.ndarray:
    """Sum of numerators / sum of denominators of each run, (R,) float64.

    This covers accuracy (correct / 1), micro-F1 (2 tp / (2 tp + fp + fn)) and means such as nDCG (of a query / 1).
    """
    return ratios(items.numerators.sum(axis=1, dtype=np.float64), items.denominators.sum(axis=1, dtype=np.float64))


def rank_correlation(items: ItemPairs) -> np.ndarray:
    """Spearman's correlation of each run, (R,) float64; NaN where all values of a side are equal."""
    ranks = [rankdata(values, axis=1) for values in items.arrays()]
    return np.array([np.nan if _is_constant(*pair) else np.corrcoef(*pair)[1, 0] for pair in zip(*ranks)])


def _is_constant(*sides: np.ndarray) -> bool:
    return any(np.ptp(values) == 0 for values in sides)


def ratios(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """numerators / denominators in float64, 0 where both are 0 (no label true and none predicted)."""
    return numerators / np.where(denominators == 0, 1, denominators).astype(np.float64)
