"""Verdicts on claims, on items that were made to show, to refute, or to leave them open."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.engine.results import SAMPLES
from benchmarks.studies.reproduction.hypotheses import LEVEL, OPEN, REFUTED, SHOWN, Comparison, correct, judge
from benchmarks.studies.reproduction.plan import read_recipe
from docsplit.evaluation.results.bootstrap import Difference
from tests.processes import ROOT

SEEDS, RUNS, ITEMS = 3, 2, 400
CLAIM = {"says": "", "source": "", "evaluation": "classification", "a": "a", "b": ["b"], "head": "mlp raw"}


def scores(rng, mean, spread=0.005, seeds=SEEDS):
    """Correct or not, (seeds, runs, ITEMS): each seed has a mean of its own, around this one."""
    means = (mean + spread * rng.standard_normal(seeds)).clip(0, 1)
    return (rng.random((seeds, RUNS, ITEMS)) < means[:, None, None]).astype(np.float32)


def rows_of(method, values, shots=None, data="news", task="classification", features="raw"):
    return [
        {"task": task, "data": data, "method": method, "seed": seed, "head": "mlp", "features": features,
         "shots": shots, "runs": of_seed.shape[0], "metric": "accuracy", "value": float(of_seed.mean()),
         SAMPLES: of_seed.ravel().tolist()}
        for seed, of_seed in enumerate(values)
    ]  # fmt: skip


def rows_with(rng, a, b, **about):
    return rows_of("a", scores(rng, a), **about) + rows_of("b", scores(rng, b), **about)


def one(kind, rows, **stated):
    (judged,) = judge({"H": CLAIM | {"kind": kind} | stated}, rows)
    return judged


@pytest.mark.parametrize(("a", "b", "verdict"), [(0.8, 0.6, SHOWN), (0.6, 0.8, REFUTED), (0.7, 0.7, OPEN)])
def test_a_claim_is_shown_refuted_or_open(a, b, verdict):
    rng = np.random.default_rng(0)
    rows = rows_with(rng, a, b)
    assert one("greater", rows, shots=["all"]).verdict == verdict
    # The mean over two sets: one that says the opposite leaves it open
    other = rows_with(rng, b, a, data="posts")
    judged = one("greater", rows + other, shots=["all"])
    assert judged.verdict == OPEN
    (comparison,) = judged.comparisons
    sides = {method: np.mean([row["value"] for row in rows + other if row["method"] == method]) for method in "ab"}
    assert comparison.found.difference == pytest.approx(sides["a"] - sides["b"], abs=1e-6)
    lacking = one("greater", [*rows, *rows_of("a", scores(rng, a), data="posts")], shots=["all"])
    assert (lacking.verdict, lacking.comparisons[0].lacks) == (OPEN, "b not measured with mlp raw on posts")


def test_seeds_that_differ_make_a_difference_unsure():
    """Of one pretraining seed each, 0.8 against 0.6 would be clear: the spread between seeds is what says no."""
    rng = np.random.default_rng(0)
    means = ((0.95, 0.8, 0.55), (0.45, 0.9, 0.6))
    values = [(rng.random((SEEDS, RUNS, ITEMS)) < np.array(mean)[:, None, None]).astype(np.float32) for mean in means]
    rows = [row for method, value in zip("ab", values) for row in rows_of(method, value)]
    assert one("greater", rows, shots=["all"]).verdict == OPEN
    first = [row for row in rows if row["seed"] == 0]
    assert one("greater", first, shots=["all"]).verdict == SHOWN


@pytest.mark.parametrize(("pair", "verdict"), [((0.7, 0.7), SHOWN), ((0.9, 0.5), OPEN), ((0.7, 0.66), OPEN)])
def test_equality_is_two_one_sided_tests(pair, verdict):
    base = np.random.default_rng(2).random((1, RUNS, ITEMS))
    values = [np.repeat((base < mean), SEEDS, axis=0).astype(np.float32) for mean in pair]
    rows = [row for method, value in zip("ab", values) for row in rows_of(method, value)]
    assert one("equal", rows, shots=["all"], margin=0.05).verdict == verdict


@pytest.mark.parametrize(("few", "verdict"), [(0.9, SHOWN), (0.62, OPEN), (0.4, REFUTED)])
def test_a_gain_that_grows_with_fewer_labels(few, verdict):
    rng = np.random.default_rng(4)
    rows = rows_with(rng, 0.7, 0.6) + rows_with(rng, few, 0.52, shots=5)
    rows += rows_with(rng, 0.1, 0.9, shots=20)  # the smallest number is meant
    assert one("interaction", rows).verdict == verdict


@pytest.mark.parametrize(("mean", "verdict"), [(0.2, SHOWN), (-0.2, REFUTED), (0.0, OPEN)])
def test_a_number_is_compared_with_nothing(mean, verdict):
    rng = np.random.default_rng(0)
    rows = [
        {"task": "sentences", "data": "news", "method": "a", "seed": seed, "head": "similarity", "features": "raw",
         "shots": None, "runs": 1, "metric": "inner_minus_inter", "value": mean + 0.001 * seed, "drawn": True,
         SAMPLES: (mean + 0.02 * rng.standard_normal(2000)).tolist()}
        for seed in range(SEEDS)
    ]  # fmt: skip
    judged = one("positive", rows, evaluation="sentences", metric="inner_minus_inter")
    assert judged.verdict == verdict
    assert (300 * judged.comparisons[0].found.p_value < 0.05) == (verdict != OPEN)  # survives Holm


def test_a_number_without_items_varies_over_seeds_alone():
    values = {"a": (0.5, 0.51, 0.52), "b": (0.4, 0.41, 0.42)}
    rows = [row | {"metric": "nmi", "value": value} for method in values
            for row, value in zip(rows_of(method, np.zeros((3, 1, 1))), values[method])]  # fmt: skip
    rows = [{name: value for name, value in row.items() if name != SAMPLES} for row in rows]
    judged = one("greater", rows, metric="nmi", shots=["all"])
    found, welch = judged.comparisons[0].found, stats.ttest_ind(values["a"], values["b"], equal_var=False)
    assert found.difference == pytest.approx(0.1)
    assert found.p_value == pytest.approx(welch.pvalue, abs=2e-3)
    assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval()), abs=3e-3)


def test_holm_corrects_for_all_tests_of_a_family():
    def family(*p_values):
        comparisons = [Comparison("", found=Difference(0.1, 0.05, 0.15, p)) for p in p_values]
        correct(comparisons)
        return [(comparison.verdict, round(comparison.corrected, 3)) for comparison in comparisons]

    assert family(0.03) == [(SHOWN, 0.03)]
    assert family(0.03, 0.9) == [(OPEN, 0.06), (OPEN, 0.9)]
    assert family(0.01, 0.9) == [(SHOWN, 0.02), (OPEN, 0.9)]


# --- The six tests of claims.yaml ---

STARTS = 10
CLAIMS = read_recipe(ROOT / "recipes" / "reproduction" / "claims.yaml")["hypotheses"]
PLACES = {"5": ("classification", 5), "all": ("classification", None), "AAN": ("links", None)}


def six_tests(effects, deviation, starts=STARTS):
    """Judge rows whose differences have these means, in points, and this deviation over starts; starts vary by ten."""
    rng, items, rows, truth = np.random.default_rng(7), 10_000, [], {}
    base = {place: 0.5 + 0.1 * rng.standard_normal(starts).clip(-2, 2) for place in PLACES}
    for (other, place), effect in effects.items():
        drawn = rng.standard_normal(starts)
        drawn = (drawn - drawn.mean()) / (drawn.std(ddof=1) if starts > 1 else 1)
        truth[other, place] = np.round(base[place] * items) - np.round(
            (base[place] - (effect + deviation * drawn) / 100) * items
        )
    for place, (task, shots) in PLACES.items():
        methods = {"DocSplit": np.round(base[place] * items)}
        methods |= {other: methods["DocSplit"] - truth[other, place] for other in ("SimCSE_long", "masked LM")}
        for method, correct_of in methods.items():
            values = (np.arange(items)[None] < correct_of[:, None]).astype(np.float32)[:, None]
            rows += rows_of(method, values, shots, task=task, features="standardized")
    judged = judge(CLAIMS, rows)
    names = {"few labels": "5", "all labels": "all"}
    found = {}
    for one in judged:
        for comparison in one.comparisons:
            versus, _, which = comparison.name.split(", ")
            found[versus.split(" v ")[1], "AAN" if one.name == "citations" else names[which]] = comparison
    return found, {key: values / items for key, values in truth.items()}


def test_the_six_tests_are_those_of_scipy():
    effects = {("SimCSE_long", "5"): 1.5, ("SimCSE_long", "all"): 0.0, ("SimCSE_long", "AAN"): -1.2,
               ("masked LM", "5"): 0.9, ("masked LM", "all"): 0.1, ("masked LM", "AAN"): 0.5}  # fmt: skip
    found, truth = six_tests(effects, 0.4)
    assert found.keys() == effects.keys()
    verdicts = {key: comparison.verdict for key, comparison in found.items()}
    assert list(verdicts.values()).count(SHOWN) == 3, verdicts
    assert (verdicts["SimCSE_long", "AAN"], verdicts["SimCSE_long", "all"]) == (REFUTED, LEVEL)
    # p by hand, from the definition of t, and Holm from that of Holm
    p_values, equal = {}, {}
    for key, differences in truth.items():
        error = differences.std(ddof=1) / np.sqrt(STARTS)
        p_values[key] = 2 * stats.t.sf(abs(differences.mean()) / error, STARTS - 1)
        equal[key] = stats.t.sf((0.01 - abs(differences.mean())) / error, STARTS - 1)
        width = stats.t.ppf(0.975, STARTS - 1) * error
        interval = (differences.mean() - width, differences.mean() + width)
        assert (found[key].found.low, found[key].found.high) == pytest.approx(interval, abs=1e-6)
    for of_kind, name in ((p_values, "corrected"), (equal, "equal")):
        largest = 0.0
        for rank, key in enumerate(sorted(of_kind, key=of_kind.get)):
            largest = max(largest, min(1, (6 - rank) * of_kind[key]))
            assert getattr(found[key], name) == pytest.approx(largest, rel=1e-3)


@pytest.mark.parametrize(
    ("effect", "deviation", "verdict"), [(0, 0.4, LEVEL), (2, 1.4, SHOWN), (0.5, 2.5, OPEN), (0, 2.5, OPEN)]
)
def test_a_null_is_level_and_noise_is_open(effect, deviation, verdict):
    effects = dict.fromkeys(((other, place) for other in ("SimCSE_long", "masked LM") for place in PLACES), effect)
    assert {one.verdict for one in six_tests(effects, deviation)[0].values()} == {verdict}
    early, _ = six_tests(effects, deviation, starts=9)
    assert {(one.verdict, one.lacks) for one in early.values()} == {(OPEN, "9 of 10 starts")}
