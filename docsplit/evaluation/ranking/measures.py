"""Measures of a ranking of documents for queries."""

import math
from collections.abc import Sequence

import numpy as np

from docsplit.data.sets.rankings import Ranking, Retrieved
from docsplit.evaluation.results.bootstrap import ItemScores

MEASURED_QUERIES = 32  # at a time: bounds the memory
# Names of results, and those of ir_measures (https://ir-measur.es). Gains of nDCG are the grades, as in trec_eval.
MEASURES = {
    "ndcg_at_10": "nDCG@10",
    "ndcg_at_20": "nDCG@20",
    "precision_at_5": "P@5",
    "precision_at_10": "P@10",
    "precision_at_20": "P@20",
    "mrr_at_10": "RR@10",
    "mrr_at_100": "RR@100",
    "recall_at_100": "R@100",
    "map": "AP",
    "judged_at_10": "Judged@10",
    "judged_at_20": "Judged@20",
}
DEEPEST_CUTOFF = 100  # of these but AP, which reads the whole list


def top_of_scores(scores: np.ndarray, depth: int) -> Retrieved:
    """Return the best documents by a matrix of scores (Q, N)."""
    return Retrieved.best(np.broadcast_to(np.arange(scores.shape[1]), scores.shape), scores, depth)


def measure_retrieved(retrieved: Retrieved, ranking: Ranking) -> dict[str, ItemScores]:
    """Compute each of `MEASURES` for each query by ir_measures, as one run; unjudged documents are not relevant.

    The order of the lists is what counts, also where scores are equal.

    Raises:
        ValueError: if ir_measures is not installed.
    """
    check_measures()
    from ir_measures import iter_calc, parse_measure

    names = {parse_measure(name): measure for measure, name in MEASURES.items()}
    ap = parse_measure(MEASURES["map"])
    values = {measure: np.zeros((1, len(ranking.query_ids)), dtype=np.float32) for measure in MEASURES}
    positions = {query: number for number, query in enumerate(ranking.query_ids)}
    for start in range(0, len(ranking.query_ids), MEASURED_QUERIES):
        lists = dict(zip(ranking.query_ids[start:], retrieved.rows[start : start + MEASURED_QUERIES].tolist()))
        lists = {query: rows for query, rows in lists.items() if max(rows) >= 0}  # of an empty list all is 0
        qrels = {query: ranking.judgments[query] for query in lists}
        for measures, depth in (([ap], None), ([name for name in names if name != ap], DEEPEST_CUTOFF)):
            run = {
                query: {ranking.document_ids[row]: -float(rank) for rank, row in enumerate(rows[:depth]) if row >= 0}
                for query, rows in lists.items()
            }
            for value in iter_calc(measures, qrels, run) if run else ():
                values[names[value.measure]][0, positions[value.query_id]] = value.value
    ones = np.ones((1, len(ranking.query_ids)), dtype=np.float32)
    return {measure: ItemScores(numerators, ones) for measure, numerators in values.items()}


def check_measures() -> None:
    """Check before any long work that the measures can be computed.

    Raises:
        ValueError: naming the remedy.
    """
    try:
        import ir_measures  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "Rankings are measured by ir_measures, which is not installed: pip install ir-measures."
        ) from error


def grades_of(rows: np.ndarray, ranking: Ranking) -> np.ndarray:
    """Return the grade, at least 0, of each query's documents (Q, K); 0 of those not judged and of row -1. int32."""
    position = {name: row for row, name in enumerate(ranking.document_ids)}
    grades = np.zeros(rows.shape, dtype=np.int32)
    for query_grades, query_rows, query in zip(grades, rows, ranking.query_ids):
        known = {position[name]: grade for name, grade in ranking.judgments[query].items() if name in position}
        judged = np.array(sorted(known), dtype=np.int64)
        if len(judged):
            values = np.maximum([known[row] for row in judged], 0)
            nearest = np.searchsorted(judged, query_rows).clip(max=len(judged) - 1)
            query_grades[:] = np.where(judged[nearest] == query_rows, values[nearest], 0)
    return grades


def ideal_dcg(ranking: Ranking, depths: Sequence[int]) -> np.ndarray:
    """Return the DCG of the best order, (Q, depths); judged documents count even if the collection lacks them."""
    deepest = max(depths)
    best = np.zeros((len(ranking.query_ids), deepest))
    for row, query in zip(best, ranking.query_ids):
        grades = sorted((max(grade, 0) for grade in ranking.judgments[query].values()), reverse=True)[:deepest]
        row[: len(grades)] = grades
    return dcg(best, depths)


def dcg(grades: np.ndarray, depths: Sequence[int]) -> np.ndarray:
    """Return the discounted cumulative gain of ranked grades (Q, K), (Q, depths): grade / log2(1 + rank)."""
    discounts = np.array([1 / math.log2(2 + rank) for rank in range(grades.shape[1])])
    sums = np.cumsum(grades * discounts, axis=1)
    return sums[:, np.minimum(depths, grades.shape[1]) - 1]


def curves(retrieved: Retrieved, ranking: Ranking, depths: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the mean nDCG and recall over queries at each depth, (depths,) each."""
    grades = grades_of(retrieved.rows, ranking)
    relevant = np.array([sum(g > 0 for g in ranking.judgments[query].values()) for query in ranking.query_ids])
    found_so_far = np.cumsum(grades > 0, axis=1)[:, np.minimum(depths, grades.shape[1]) - 1]
    return {
        "ndcg": (dcg(grades, depths) / ideal_dcg(ranking, depths)).mean(axis=0),
        "recall": (found_so_far / relevant[:, None]).mean(axis=0),
    }
