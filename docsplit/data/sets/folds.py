"""Divide a collection's queries into folds: to train on, to choose by and to report."""

import json
from pathlib import Path

import numpy as np

from docsplit.data.sets.rankings import Ranking

FEWEST = 3
SEED = 0  # of folds that are drawn: an encoder must not have been trained on the queries that it is measured on


def make_folds(ranking: Ranking, folds: str, seed: int) -> list[np.ndarray]:
    """Return the numbers of the queries in each fold.

    Args:
        folds: how many, drawn with `seed`; or a JSON file with the query ids of each, [["301", ...], ...], as others
            give Robust04's. Ids of queries that were left out may be among them.

    Raises:
        ValueError: if there are fewer than two, or a query is in none of them or in two.
    """
    count = len(ranking.query_ids)
    if count < 2:
        raise ValueError(
            f"There is {count} query: --folds needs two or more. Name other queries by --selection_split."
        )
    if folds.isdigit():
        if not 2 <= int(folds) <= count:
            raise ValueError(f"--folds is {folds}: expected 2 to {count}, the number of queries.")
        return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(count), int(folds))]
    if not Path(folds).is_file():
        raise ValueError(f"--folds {folds} is neither a number nor a JSON file with lists of query ids.")
    try:
        lists = json.loads(Path(folds).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--folds {folds} is no JSON: {error}.") from error
    if not isinstance(lists, list) or len(lists) < 2 or not all(isinstance(entry, list) for entry in lists):
        raise ValueError(f"--folds {folds} should be two or more lists of query ids: [[id, id, ...], [id, ...]].")
    fold_of: dict[str, int] = {}
    for number, ids in enumerate(lists):
        for query in map(str, ids):
            if fold_of.setdefault(query, number) != number:
                raise ValueError(f"--folds {folds} has query {query} in two folds.")
    if missing := [query for query in ranking.query_ids if query not in fold_of]:
        raise ValueError(f"--folds {folds} lacks {len(missing):,} of {count:,} queries, such as {missing[0]}.")
    folds_of_queries = np.array([fold_of[query] for query in ranking.query_ids])
    parts = [np.flatnonzero(folds_of_queries == number) for number in range(len(lists))]
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        raise ValueError(f"--folds {folds} has all {count:,} queries in one fold: two or more must have one of them.")
    return parts


def divide(ranking: Ranking, folds: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide queries into rows to train on, to choose by and to report: fold `number` (from 0) is reported.

    The fold after it is for choosing. Training and evaluation call this with the same collection, and get the same
    parts.

    Args:
        folds: as `make_folds` takes it.

    Raises:
        ValueError: if there are fewer than three folds, or none of this number.
    """
    parts = make_folds(ranking, folds, SEED)
    if len(parts) < FEWEST:
        raise ValueError(
            f"--folds {folds} gives {len(parts)} folds, expected {FEWEST} or more: to train, choose and report."
        )
    if not 0 <= number < len(parts):
        raise ValueError(f"--fold is {number}, expected 0 to {len(parts) - 1}: the {len(parts)} folds count from 0.")
    chosen = (number + 1) % len(parts)
    others = [part for place, part in enumerate(parts) if place not in (number, chosen)]
    return np.sort(np.concatenate(others)), parts[chosen], parts[number]


def describe(folds: str, number: int) -> str:
    """Describe a fold that is reported, for notes of results."""
    return f"The queries of fold {number} (--folds {folds}) alone; what is chosen is chosen on those of the next fold."
