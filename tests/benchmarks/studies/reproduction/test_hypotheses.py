"""Verdicts on claims, on items that were made to show, to refute, or to leave them open."""

import math

import numpy as np
import pytest

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.reproduction.hypotheses import (
    OPEN,
    REFUTED,
    SHOWN,
    Comparison,
    HeadTest,
    Measured,
    combined,
    correct,
    growth_of_gain,
    judge,
    read_hypotheses,
)
from docsplit.evaluation.results.bootstrap import Difference, resample
from docsplit.evaluation.results.bootstrap import ItemScores

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
        ({"mlp raw": (0.8, 0.6), "linear raw": (0.6, 0.8)}, OPEN, "heads: 1 for, 1 against"),
        ({"mlp raw": (0.8, 0.6), "linear raw": (0.7, 0.7)}, OPEN, "heads: 1 for, 1 unclear"),
    ],
    ids=["shown", "refuted", "open", "opposite heads", "one head alone"],
)
def test_a_claim_is_shown_or_refuted_by_all_heads_or_by_none(means, verdict, heads):
    judged = one("greater", rows_with(np.random.default_rng(0), means), shots=["all"])
    (comparison,) = judged.comparisons
    assert (judged.verdict, comparison.heads) == (verdict, heads)
    assert comparison.heads_disagree == ("," in heads)
    assert [test.head for test in comparison.tests] == HEADS


def test_a_clear_difference_stays_clear_among_the_tests_of_a_family():
    """The bootstrap draws so often that its least p survives Holm's correction."""
    rows = rows_with(np.random.default_rng(0), {"mlp raw": (0.9, 0.2)}, shots=None)
    (comparison,) = one("greater", rows, shots=["all"], heads=HEADS[:1]).comparisons
    family = [comparison, *(Comparison("other", tests=list(comparison.tests)) for _ in range(299))]
    correct(family)
    assert comparison.tests[0].corrected < 0.05
    assert comparison.verdict == SHOWN


def test_a_head_that_was_not_measured_leaves_it_open():
    rows = rows_with(np.random.default_rng(0), {"mlp raw": (0.9, 0.5)})
    judged = one("greater", rows, shots=["all"])
    assert judged.verdict == OPEN
    assert judged.comparisons[0].lacks == "a not measured with linear raw; b not measured with linear raw"
    judged = one("greater", rows, shots=["all"], heads=["mlp raw", "mlp raw"], heads_of_b=["bm25 raw", "knn raw"])
    assert judged.comparisons[0].lacks == "b not measured with bm25 raw, knn raw", "the heads of b"
    judged = one("interaction", rows_with(np.random.default_rng(0), {"mlp raw": (0.9, 0.5)}, shots=5))
    assert judged.comparisons[0].lacks == "few or all labels not measured with mlp raw, linear raw"


def test_a_system_with_other_parameters_is_another_one():
    """BM25 is measured with two pairs of parameters: the claim is about the one whose head it names."""
    rng = np.random.default_rng(0)
    better, worse = scores(rng, 0.8), scores(rng, 0.5)
    rows = [*rows_of("a", "hybrid", better), *rows_of("b", "bm25", better), *rows_of("b", "bm25", worse)]
    for row in rows[-SEEDS:]:
        row["head"] = "bm25 k1=0.9 b=0.4"
    (comparison,) = one("greater", rows, shots=["all"], heads=["hybrid raw"], heads_of_b=["bm25 raw"]).comparisons
    assert comparison.tests[0].difference.difference == 0
    (comparison,) = one("greater", rows, shots=["all"], heads=["hybrid raw"],
                        heads_of_b=["bm25 k1=0.9 b=0.4 raw"]).comparisons  # fmt: skip
    assert comparison.verdict == SHOWN


def test_two_measurements_of_one_place_are_refused():
    rows = rows_of("a", "mlp", scores(np.random.default_rng(0), 0.8))
    with pytest.raises(ValueError, match="Two measurements of classification, news, a, mlp, raw, None, accuracy, 0"):
        Measured([*rows, rows[0]])


def test_a_claim_without_measurements_is_open():
    judged = one("greater", [], shots=["all"])
    assert (judged.verdict, judged.comparisons[0].lacks) == (OPEN, "not measured")


def test_seeds_that_differ_make_a_difference_unsure():
    """Of one pretraining seed each, 0.8 against 0.6 would be clear: the spread between seeds is what says no."""
    rng = np.random.default_rng(0)
    means = ((0.95, 0.8, 0.55), (0.45, 0.9, 0.6))
    values = [(rng.random((SEEDS, RUNS, ITEMS)) < np.array(mean)[:, None, None]).astype(np.float32) for mean in means]
    rows = [row for method, value in zip("ab", values) for row in rows_of(method, "mlp raw", value)]
    assert one("greater", rows, shots=["all"], heads=["mlp raw"]).verdict == OPEN
    first = [row for row in rows if row["seed"] == 0]
    assert one("greater", first, shots=["all"], heads=["mlp raw"]).verdict == SHOWN


def slow_difference(a, b, draws=2000, seed=5):
    """The two-level bootstrap, draw by draw: items with replacement, runs with replacement, seeds by Student's t.

    a, b: (S, R, M). Returns low, high and the two-sided p of mean(a) - mean(b).
    """
    rng, found = np.random.default_rng(seed), []
    variances = [value.mean(axis=(1, 2)).var(ddof=1) / len(value) for value in (a, b)]
    freedom = sum(variances) ** 2 / sum(variance**2 / (SEEDS - 1) for variance in variances)
    for _ in range(draws):
        items = rng.integers(ITEMS, size=ITEMS)
        drawn_runs = rng.integers(a.shape[1], size=max(a.shape[1] - 1, 1))
        difference = a[:, drawn_runs][:, :, items].mean() - b[:, drawn_runs][:, :, items].mean()
        deviation = sum(math.sqrt(variance) * rng.standard_normal() for variance in variances)
        found.append(difference + deviation / math.sqrt(rng.chisquare(freedom) / freedom))
    found = np.sort(found)
    tail = min((found <= 0).sum(), (found >= 0).sum())
    return found[int(0.025 * draws)], found[int(0.975 * draws)], min(1, 2 * (1 + tail) / (1 + draws))


@pytest.mark.parametrize("spread", [0.002, 0.03], ids=["items vary", "seeds vary"])
@pytest.mark.parametrize("gap", [0.0, 0.06, -0.04])
def test_the_interval_and_p_are_those_of_the_slow_version(gap, spread):
    rng = np.random.default_rng(3)
    a, b = scores(rng, 0.7 + gap, spread), scores(rng, 0.7, spread)
    rows = rows_of("a", "mlp raw", a) + rows_of("b", "mlp raw", b)
    found = one("greater", rows, shots=["all"], heads=["mlp raw"]).comparisons[0].tests[0].difference
    low, high, p_value = map(float, slow_difference(a, b))
    assert found.difference == pytest.approx(float(a.mean() - b.mean()), abs=1e-6)
    width = high - low
    assert found.low == pytest.approx(low, abs=0.12 * width)
    assert found.high == pytest.approx(high, abs=0.12 * width)
    assert found.p_value == pytest.approx(p_value, abs=0.05)


def test_items_of_rows_are_those_of_the_encoders():
    rng = np.random.default_rng(1)
    values = scores(rng, 0.5)
    rows = rows_of("a", "mlp raw", values)
    rows[0] |= {"metric": "micro_f1"}
    rows = [row | {"metric": "micro_f1"} for row in rows]
    below = [row | {"metric": "micro_f1, denominators", SAMPLES: [2.0] * (RUNS * ITEMS)} for row in rows]
    items, seeds = Measured(rows[::-1] + below).system(("classification", "news", "a", "mlp raw", None))
    assert seeds == SEEDS
    assert (items.numerators == values.reshape(-1, ITEMS)).all()
    assert (items.denominators == 2).all()


@pytest.mark.parametrize(
    ("pair", "verdict"), [((0.7, 0.7), SHOWN), ((0.9, 0.5), REFUTED), ((0.7, 0.66), OPEN)],
    ids=["equal", "apart", "near the margin"],
)  # fmt: skip
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


def test_the_growth_of_a_gain_is_a_difference_of_differences():
    rng = np.random.default_rng(6)
    values = [scores(rng, mean, runs=runs) for mean, runs in ((0.8, 4), (0.6, 4), (0.7, 2), (0.65, 2))]
    items = [ItemScores(value.reshape(-1, ITEMS), np.ones_like(value.reshape(-1, ITEMS))) for value in values]
    growth = growth_of_gain(*(resample([one], pretraining_seeds=[SEEDS])[0] for one in items))
    means = [value.mean() for value in values]
    assert growth.difference == pytest.approx(means[0] - means[1] - means[2] + means[3], abs=1e-6)
    assert growth.low < growth.difference < growth.high


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


@pytest.mark.parametrize(("ends", "verdict"), [((0.1, 0.3), SHOWN), ((-0.3, -0.1), REFUTED), ((-0.1, 0.3), OPEN)])
def test_an_interval_alone_counts_as_it_is(ends, verdict):
    row = {"task": "words", "data": "news", "method": "a", "seed": None, "head": "redundancy", "features": "raw",
           "shots": None, "metric": "growth", "value": sum(ends) / 2, "low": ends[0], "high": ends[1]}  # fmt: skip
    claim = CLAIM | {"kind": "positive", "evaluation": "words", "metric": "growth"}
    assert judge({"H": claim}, [row])[0].verdict == verdict
    with pytest.raises(ValueError, match="measured by several heads"):
        judge({"H": claim}, [row, row | {"head": "other"}])


def test_holm_corrects_for_all_tests_of_a_family():
    def family(*p_values):
        tests = [HeadTest("mlp", Difference(0.1, 0.05, 0.15, p_value)) for p_value in p_values]
        comparisons = [Comparison(str(number), tests=[test]) for number, test in enumerate(tests)]
        correct(comparisons)
        return [(comparison.verdict, round(comparison.tests[0].corrected, 3)) for comparison in comparisons]

    assert family(0.03) == [(SHOWN, 0.03)]
    assert family(0.03, 0.9) == [(OPEN, 0.06), (OPEN, 0.9)]
    assert family(0.01, 0.9) == [(SHOWN, 0.02), (OPEN, 0.9)]


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [([SHOWN, SHOWN], SHOWN), ([SHOWN, OPEN], OPEN), ([SHOWN, REFUTED], REFUTED), ([], OPEN)],
)
def test_a_claim_on_several_sets_holds_on_all_of_them(verdicts, together):
    assert combined(verdicts) == together


def test_a_name_of_the_papers_stands_for_a_method():
    rows = rows_with(np.random.default_rng(0), {"mlp raw": (0.9, 0.5)})
    named = {"A": "a", "B": "b"}
    claim = CLAIM | {"kind": "greater", "a": "A", "b": ["B"], "shots": ["all"], "heads": ["mlp raw"]}
    (judged,) = judge({"H": claim}, rows, lambda name, evaluation, data: named[name])
    assert judged.verdict == SHOWN
    assert judged.comparisons[0].method == "a"


def test_the_papers_claims_are_all_there():
    claims = read_hypotheses({})
    assert {name.partition(",")[0] for name in claims} == {f"H{number}" for number in range(1, 12)}
    assert all(stated["says"] and stated["source"] for stated in claims.values())


@pytest.mark.parametrize(
    ("line", "message"), [("kind: better", "kind 'better'"), ("kind: equal\n  metric: x", "metric")]
)
def test_a_claim_with_a_word_that_means_nothing_is_refused(tmp_path, line, message):
    path = tmp_path / "claims.yaml"
    path.write_text(f"H1:\n  family: docsplit\n  says: x\n  source: y\n  evaluation: e\n  a: a\n  {line}\n")
    with pytest.raises(ValueError, match=message):
        read_hypotheses({}, path)
