"""Reciprocal rank fusion (Cormack et al. 2009): several rankings of the same documents as one."""

from collections.abc import Sequence
from typing import TypeVar

RANK_CONSTANT = 60
Named = TypeVar("Named", int, tuple[int, int])  # the key of a document


def fuse(rankings: Sequence[Sequence[Named]]) -> list[tuple[Named, float]]:
    """Fuse rankings by reciprocal rank: a document scores the sum of 1 / (60 + rank), and the highest comes first."""
    scores: dict[Named, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            scores[key] = scores.get(key, 0.0) + 1 / (RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
