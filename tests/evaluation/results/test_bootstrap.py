"""The bootstrap against a loop, and on simulated noise."""

import itertools
import time
from dataclasses import astuple

import numpy as np
import pytest
from scipy.stats import spearmanr

from docsplit.evaluation.results import bootstrap
from docsplit.evaluation.results.bootstrap import (
    Difference,
    ItemPairs,
    ItemScores,
    Resampled,
    holm,
    interval,
    is_clear,
    paired_bootstrap,
    paired_randomisation,
    rank_correlation,
    resample,
)


@pytest.mark.parametrize("chunk", [1, 100, 10**6])
@pytest.mark.parametrize("gain", [1, 0.3])  # counts, and fractions as nDCG has them
def test_resampled_scores_equal_a_loop(chunk, gain, monkeypatch):
    monkeypatch.setattr(bootstrap, "CHUNK_DRAWS", chunk)
    rng = np.random.default_rng(0)
    denominators = rng.integers(0, 5, (3, 20)).astype(np.float32)
    numerators = (gain * np.minimum(denominators, rng.integers(0, 5, (3, 20)))).astype(np.float32)
    system, again = ItemScores(numerators, denominators), ItemScores(numerators[1:2], denominators[1:2])
    one, other = resample([system, again], num_samples=9, seed=4)
    np.testing.assert_allclose(one.scores, numerators.sum(axis=1) / denominators.sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(other.samples, one.samples[:, 1:2])  # the same items for all
    numerators, denominators = numerators.astype(np.float64), denominators.astype(np.float64)
    generator = np.random.default_rng(4)
    for sample in one.samples:
        items = generator.integers(20, size=20)
        for run in range(3):
            expected = sum(numerators[run, item] for item in items) / sum(denominators[run, item] for item in items)
            assert sample[run] == pytest.approx(expected, rel=1e-12)


def test_fractions_that_add_up_to_the_same_are_ties():
    """Sums in float32 would be rounded, and a tie would look like a difference."""
    gains = (np.random.default_rng(0).integers(2**16, size=(1, 3000)) / 2**16).astype(np.float32)
    a = ItemScores(gains, np.ones_like(gains))
    b = ItemScores(3 * gains, np.full_like(gains, 3))
    assert compared(a, b) == Difference(0, 0, 0, 1)


def interval_of(system):
    return interval(*resample([system]))


def compared(a, b, num_samples=bootstrap.NUM_SAMPLES, seed=0):
    return paired_bootstrap(*resample([a, b], num_samples, seed), seed)


def test_randomisation_equals_all_exchanges():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 9)), rng.random((3, 9)) + 0.25  # of two and of three runs
    differences = a.mean(axis=0) - b.mean(axis=0)
    signs = np.array(list(itertools.product([-1, 1], repeat=9)))
    exact = (abs(signs @ differences) >= abs(differences.sum()) - 1e-9).mean()
    items = [ItemScores(values.astype(np.float32), np.ones_like(values, dtype=np.float32)) for values in (a, b)]
    assert 0.005 < exact < 0.5
    assert paired_randomisation(*items) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 10_000))
    assert paired_randomisation(items[0], items[0]) == 1
    assert paired_randomisation(*items) == paired_randomisation(*reversed(items))


def test_holm_equals_its_steps():
    values = [0.01, 0.04, 0.03, 0.005, 0.9]
    by_hand = {0.005: 5 * 0.005, 0.01: 4 * 0.01, 0.03: 3 * 0.03, 0.04: 3 * 0.03, 0.9: 0.9}  # 2 x 0.04 is below 0.09
    assert holm(values) == pytest.approx([by_hand[value] for value in values])
    assert holm([]) == []
    assert holm([0.8, 0.7]) == [1.0, 1.0]
    assert [is_clear(0.1, 0.2, p) for p in (0.04, 0.06)] == [True, False]
    assert [is_clear(0.1, 0.2), is_clear(-0.1, 0.2, 0.01)] == [True, False]


def test_the_interval_is_that_of_the_normal_approximation():
    correct = (np.random.default_rng(0).random((1, 2000)) < 0.7).astype(np.float32)
    mean = correct.mean()
    half = 1.96 * np.sqrt(mean * (1 - mean) / 2000)
    assert interval_of(ItemScores(correct, np.ones_like(correct))) == pytest.approx(
        (mean - half, mean + half), abs=0.003
    )
    copies = np.repeat(correct, 5, axis=0)  # five equal runs tell no more than one
    assert interval_of(ItemScores(copies, np.ones_like(copies))) == pytest.approx(
        (mean - half, mean + half), abs=0.003
    )


def right_or_not(correct):
    return ItemScores(correct.astype(np.float32), np.ones(correct.shape, np.float32))


def simulate(rng, num_runs, num_items, shift=0.0):
    """Correct or not, (R, M), for two systems with common item difficulties and their own effects of items and runs.

    A system of one run is one without chance in its training, as BM25: it has no effect of the run.
    """
    difficulty = rng.standard_normal(num_items)
    systems = []
    for own, size in zip((shift, 0.0), num_runs):
        runs = 0.2 * rng.standard_normal((size, 1)) * (size > 1)
        systems.append(right_or_not(own + difficulty + runs + rng.standard_normal(num_items) > 0))
    return systems


def test_identical_systems_do_not_differ():
    a, _ = simulate(np.random.default_rng(0), num_runs=(4, 4), num_items=100)
    assert compared(a, a) == Difference(0, 0, 0, 1)


def test_a_clear_difference_is_found_and_has_a_sign():
    a, b = simulate(np.random.default_rng(0), num_runs=(5, 5), num_items=500, shift=1.0)
    found, mirrored = compared(a, b), compared(b, a)
    assert found.difference == pytest.approx(a.numerators.mean() - b.numerators.mean(), abs=1e-6)
    assert 0 < found.low < found.difference < found.high
    assert found.p_value < 0.01
    assert astuple(mirrored) == pytest.approx((-found.difference, -found.high, -found.low, found.p_value))


def test_a_difference_that_one_run_in_three_makes_is_noise():
    """Items alone would make it certain: the two systems differ on every item, but in one run only."""
    b = np.zeros((3, 1000), bool)
    a = b.copy()
    a[0] = True
    assert compared(right_or_not(a), right_or_not(b)).p_value > 0.3
    assert compared(right_or_not(a[:1]), right_or_not(b[:1])).p_value < 0.01


def test_the_spread_over_runs_is_that_of_their_mean():
    """With no noise over items the bootstrap's variance is the unbiased var / R, for few runs too."""
    means = np.array([0.2, 0.3, 0.7])
    numerators = np.repeat(means[:, None], 10, axis=1).astype(np.float32)
    (a,) = resample([ItemScores(numerators, np.ones_like(numerators))], 20000)
    samples = bootstrap._resample_runs(a.samples, np.random.default_rng(0))
    assert samples.var() == pytest.approx(means.var(ddof=1) / 3, rel=0.05)
    assert samples.mean() == pytest.approx(means.mean(), abs=0.005)


@pytest.mark.parametrize("num_runs", [(1, 1), (10, 10), (10, 1)])
def test_noise_is_called_a_difference_about_one_time_in_twenty(num_runs):
    rng = np.random.default_rng(0)
    systems = [simulate(rng, num_runs, num_items=150) for _ in range(300)]
    p_values = np.array([compared(a, b, num_samples=200).p_value for a, b in systems])
    assert 0.01 <= np.mean(p_values < 0.05) <= 0.09  # two standard errors of the share are 2.5 %
    assert np.mean(p_values > 0.5) == pytest.approx(0.5, abs=0.12)


def of_seeds(rng, num_seeds, num_runs=1, num_items=300, deviation=1.0):
    """A method's seeds, whose quality varies: right or not (S x R, M), of expected accuracy 1 / 2."""
    quality = np.repeat(rng.normal(0, deviation, num_seeds), num_runs)[:, None]
    noise = rng.logistic(size=(num_seeds * num_runs, num_items))
    return right_or_not(quality + noise > 0)


def test_the_two_levels_equal_a_loop():
    rng = np.random.default_rng(0)
    systems, seeds = [of_seeds(rng, 3, 2), of_seeds(rng, 2, 4), of_seeds(rng, 1, 2)], [3, 2, 1]
    resampled = resample(systems, 200, pretraining_seeds=seeds)

    def deviation(chosen):
        """Student's t, or Welch's for two, of the means of seeds: sample by sample, in float64."""
        generator, found = np.random.default_rng((0, 2)), np.zeros(200)
        variances = {}
        for number in chosen:
            if seeds[number] == 1:
                continue
            means = [part.mean() for part in np.split(resampled[number].scores, seeds[number])]
            center = sum(means) / len(means)
            squares = sum((mean - center) ** 2 for mean in means)
            variances[number] = squares / (len(means) - 1) / len(means)
            for sample in range(200):
                weights = [generator.standard_normal() for _ in means]
                weighted = sum(weight * (mean - center) for weight, mean in zip(weights, means))
                found[sample] += weighted / np.sqrt(len(means) * (len(means) - 1))
        freedom = sum(variances.values()) ** 2 / sum(v**2 / (seeds[number] - 1) for number, v in variances.items())
        return found / np.sqrt(generator.chisquare(freedom, 200) / freedom)

    for number, system in enumerate(resampled[:2]):
        samples = [sample.mean() for sample in system.samples] + deviation([number])
        assert interval(system) == pytest.approx(tuple(np.quantile(np.clip(samples, 0, 1), [0.025, 0.975])))
    for one, other in ((0, 1), (0, 2), (2, 1)):
        a, b = resampled[one], resampled[other]
        generator, parts = np.random.default_rng((0, 1)), []
        draws = [generator.multinomial(max(a.runs - 1, 1), [1 / a.runs] * a.runs, size=200)]
        draws.append(
            draws[0] if a.runs == b.runs else generator.multinomial(max(b.runs - 1, 1), [1 / b.runs] * b.runs, 200)
        )
        for system, drawn in zip((a, b), draws):
            of_sample = []
            for sample, times in zip(system.samples, drawn):
                rows = sample.reshape(system.seeds, system.runs)
                of_sample.append(np.mean([(row * times).sum() / times.sum() for row in rows]))
            parts.append(np.array(of_sample))
        samples = parts[0] - parts[1] + deviation([one, other])
        found = paired_bootstrap(a, b)
        assert (found.low, found.high) == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))
        assert found.difference == pytest.approx(a.scores.mean() - b.scores.mean())


@pytest.mark.parametrize("num_seeds", [2, 4])
def test_methods_that_are_equal_are_not_told_apart_by_their_seeds(num_seeds):
    """Called different one time in twenty at most; taken one seed each, they are a third of the time."""
    rng = np.random.default_rng(num_seeds)
    alarms, alarms_of_one, covered = [], [], []
    for _ in range(200):
        a, b = of_seeds(rng, num_seeds), of_seeds(rng, num_seeds)
        one, other = resample([a, b], 200, pretraining_seeds=[num_seeds, num_seeds])
        alarms.append(paired_bootstrap(one, other).p_value < 0.05)
        low, high = interval(one)
        covered.append(low <= 0.5 <= high)
        first = [Resampled(system.scores[:1], system.samples[:, :1]) for system in (one, other)]
        alarms_of_one.append(paired_bootstrap(*first).p_value < 0.05)
    assert np.mean(alarms) <= 0.08
    assert np.mean(covered) >= 0.89  # two standard errors are 3 %
    assert np.mean(alarms_of_one) > 0.3


def test_methods_that_differ_by_more_than_their_seeds_are_told_apart():
    rng = np.random.default_rng(0)
    shifted = right_or_not(np.repeat(rng.normal(3, 0.1, 3), 1)[:, None] + rng.logistic(size=(3, 300)) > 0)
    a, b = resample([shifted, of_seeds(rng, 3, deviation=0.1)], pretraining_seeds=[3, 3])
    assert paired_bootstrap(a, b).low > 0


def test_systems_on_other_items_cannot_be_compared():
    a, b = right_or_not(np.ones((2, 5), bool)), right_or_not(np.ones((2, 6), bool))
    with pytest.raises(ValueError, match="5 and 6"):
        resample([a, b])


def test_the_bootstrap_is_fast_and_repeatable():
    a, b = simulate(np.random.default_rng(0), num_runs=(10, 10), num_items=10_000, shift=0.01)
    start = time.perf_counter()
    first = compared(a, b)
    assert time.perf_counter() - start < 10  # about half a second on two idle cores
    assert first == compared(a, b)
    assert first != compared(a, b, seed=1)


def test_intervals_and_tests_of_rank_correlations_equal_a_loop():
    rng = np.random.default_rng(0)
    words = rng.integers(1, 20, (2, 40)).astype(float)  # with ties
    systems = [ItemPairs(words, words + noise * rng.standard_normal((2, 40))) for noise in (3, 30)]
    one, other = resample(systems, 50, seed=4, statistic=rank_correlation)
    generator, expected = np.random.default_rng(4), []
    for _ in range(50):
        items = generator.integers(40, size=40)
        expected.append([
            [spearmanr(system.first[run, items], system.second[run, items]).statistic for run in range(2)]
            for system in systems
        ])  # fmt: skip
    expected = np.array(expected)  # (sets, systems, runs)
    np.testing.assert_allclose(one.samples, expected[:, 0], rtol=1e-12)
    np.testing.assert_allclose(other.samples, expected[:, 1], rtol=1e-12)
    exact = [spearmanr(first, second).statistic for first, second in zip(words, systems[0].second)]
    assert one.scores == pytest.approx(exact)
    means = expected.mean(axis=2)
    assert interval(other, is_share=False) == pytest.approx(tuple(np.quantile(means[:, 1], [0.025, 0.975])))
    times = np.random.default_rng((0, 1)).multinomial(1, [0.5, 0.5], size=50)  # one of the two runs
    differences = ((expected[:, 0] - expected[:, 1]) * times).sum(axis=1)
    found = paired_bootstrap(one, other)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(differences, [0.025, 0.975])))
    assert found.p_value == pytest.approx(2 * (1 + min((differences <= 0).sum(), (differences >= 0).sum())) / 51)


def test_a_set_without_a_correlation_leaves_no_interval():
    pairs = ItemPairs(np.array([[1.0, 1.0, 2.0]]), np.array([[1.0, 2.0, 3.0]]))
    one, other = resample([pairs, pairs], 200, statistic=rank_correlation)
    assert one.scores == pytest.approx(spearmanr(pairs.first[0], pairs.second[0]).statistic)
    assert np.isnan(interval(one)).all()
    found = paired_bootstrap(one, other)
    assert (found.difference, np.isnan([found.low, found.high, found.p_value]).all()) == (0, True)


def test_the_rank_correlation_is_scipys_with_ties_too():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, (4, 50)), rng.random((4, 50)).round(1)
    expected = [spearmanr(*pair).statistic for pair in zip(first, second)]
    assert rank_correlation(ItemPairs(first, second)) == pytest.approx(expected)
    constant = ItemPairs(np.ones((1, 5)), rng.random((1, 5)))
    assert np.isnan(rank_correlation(constant)).all()
