"""Verdicts on claims, on items that were made to show, to refute, or to leave them open."""

import numpy as np
import pytest

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.reproduction.hypotheses import (
    OPEN,
    REFUTED,
    SHOWN,
    Comparison,
    HeadTest,
    correct,
    judge,
)
from docsplit.evaluation.results.bootstrap import Difference

SEEDS, RUNS, ITEMS = 3, 2, 400
HEADS = ["mlp raw", "linear raw"]
CLAIM = {"family": "docsplit", "says": "", "source": "", "evaluation": "classification", "a": "a"}


def scores(rng, mean, spread=0.005, runs=RUNS):
    """Correct or not, (SEEDS, runs, ITEMS): each seed has a mean of its own, around this one."""
    means = (mean + spread * rng.standard_normal(SEEDS)).clip(0, 1)
    return (rng.random((SEEDS, runs, ITEMS)) < means[:, None, None]).astype(np.float32)


def rows_of(method, head, values, shots=None, data="news"):
    return [
        {"task": "classification", "data": data, "method": method, "seed": seed, "head": head.split()[0],
         "features": "raw", "shots": shots, "runs": of_seed.shape[0], "metric": "accuracy",
         "value": float(of_seed.mean()), SAMPLES: of_seed.ravel().tolist()}
        for seed, of_seed in enumerate(values)
    ]  # fmt: skip


def rows_with(rng, means, shots=None):
    """Rows of methods a and b with each head, with means {head: (a, b)}."""
    return [row for head, pair in means.items() for method, mean in zip("ab", pair)
            for row in rows_of(method, head, scores(rng, mean), shots)]  # fmt: skip


def one(kind, rows, **stated):
    claim = CLAIM | {"kind": kind, "b": ["b"], "heads": HEADS} | stated
    (judged,) = judge({"H": claim}, rows)
    return judged


@pytest.mark.parametrize(
    ("means", "verdict", "heads"),
    [
        ({"mlp raw": (0.8, 0.6), "linear raw": (0.8, 0.6)}, SHOWN, "heads: 2 for"),
        ({"mlp raw": (0.6, 0.8), "linear raw": (0.6, 0.8)}, REFUTED, "heads: 2 against"),
        ({"mlp raw": (0.7, 0.7), "linear raw": (0.7, 0.7)}, OPEN, "heads: 2 unclear"),
        ({"mlp raw": (0.8, 0.6), "linear raw": (0.7, 0.7)}, OPEN, "heads: 1 for, 1 unclear"),
    ],
)
def test_a_claim_is_shown_or_refuted_by_all_heads_or_by_none(means, verdict, heads):
    judged = one("greater", rows_with(np.random.default_rng(0), means), shots=["all"])
    (comparison,) = judged.comparisons
    assert (judged.verdict, comparison.heads) == (verdict, heads)
    assert comparison.heads_disagree == ("," in heads)
    assert [test.head for test in comparison.tests] == HEADS


def test_a_head_that_was_not_measured_leaves_it_open():
    rows = rows_with(np.random.default_rng(0), {"mlp raw": (0.9, 0.5)})
    judged = one("greater", rows, shots=["all"])
    assert judged.verdict == OPEN
    assert judged.comparisons[0].lacks == "a not measured with linear raw; b not measured with linear raw"


def test_seeds_that_differ_make_a_difference_unsure():
    """Of one pretraining seed each, 0.8 against 0.6 would be clear: the spread between seeds is what says no."""
    rng = np.random.default_rng(0)
    means = ((0.95, 0.8, 0.55), (0.45, 0.9, 0.6))
    values = [(rng.random((SEEDS, RUNS, ITEMS)) < np.array(mean)[:, None, None]).astype(np.float32) for mean in means]
    rows = [row for method, value in zip("ab", values) for row in rows_of(method, "mlp raw", value)]
    assert one("greater", rows, shots=["all"], heads=["mlp raw"]).verdict == OPEN
    first = [row for row in rows if row["seed"] == 0]
    assert one("greater", first, shots=["all"], heads=["mlp raw"]).verdict == SHOWN


@pytest.mark.parametrize(("pair", "verdict"), [((0.7, 0.7), SHOWN), ((0.9, 0.5), REFUTED), ((0.7, 0.66), OPEN)])
def test_equality_is_two_one_sided_tests(pair, verdict):
    rng = np.random.default_rng(2)
    base = rng.random((1, RUNS, ITEMS))
    values = [np.repeat((base < mean), SEEDS, axis=0).astype(np.float32) for mean in pair]
    rows = [row for method, value in zip("ab", values) for row in rows_of(method, "mlp raw", value)]
    assert one("equal", rows, shots=["all"], heads=["mlp raw"], margin=0.05).verdict == verdict


@pytest.mark.parametrize(("few", "verdict"), [(0.9, SHOWN), (0.62, OPEN), (0.4, REFUTED)])
def test_a_gain_that_grows_with_fewer_labels(few, verdict):
    rng = np.random.default_rng(4)
    rows = rows_with(rng, {"mlp raw": (0.7, 0.6)}) + rows_with(rng, {"mlp raw": (few, 0.52)}, shots=5)
    rows += rows_with(rng, {"mlp raw": (0.1, 0.9)}, shots=20)  # the smallest number is meant
    assert one("interaction", rows, heads=["mlp raw"]).verdict == verdict


@pytest.mark.parametrize(("mean", "verdict"), [(0.2, SHOWN), (-0.2, REFUTED), (0.0, OPEN)])
def test_a_number_is_compared_with_nothing(mean, verdict):
    rng = np.random.default_rng(0)
    rows = [
        {"task": "sentences", "data": "news", "method": "a", "seed": seed, "head": "similarity", "features": "raw",
         "shots": None, "runs": 1, "metric": "inner_minus_inter", "value": mean + 0.001 * seed, "drawn": True,
         SAMPLES: (mean + 0.02 * rng.standard_normal(2000)).tolist()}
        for seed in range(SEEDS)
    ]  # fmt: skip
    claim = CLAIM | {"kind": "positive", "evaluation": "sentences", "metric": "inner_minus_inter"}
    judged = judge({"H": claim}, rows)[0]
    assert judged.verdict == verdict
    assert (300 * judged.comparisons[0].tests[0].difference.p_value < 0.05) == (verdict != OPEN)  # survives Holm


def test_holm_corrects_for_all_tests_of_a_family():
    def family(*p_values):
        comparisons = [Comparison("", tests=[HeadTest("mlp", Difference(0.1, 0.05, 0.15, p))]) for p in p_values]
        correct(comparisons)
        return [(comparison.verdict, round(comparison.tests[0].corrected, 3)) for comparison in comparisons]

    assert family(0.03) == [(SHOWN, 0.03)]
    assert family(0.03, 0.9) == [(OPEN, 0.06), (OPEN, 0.9)]
    assert family(0.01, 0.9) == [(SHOWN, 0.02), (OPEN, 0.9)]
