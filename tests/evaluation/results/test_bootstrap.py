"""The bootstrap against a loop, and on simulated noise."""

import itertools

import numpy as np
import pytest
from scipy.stats import binomtest

from docsplit.evaluation.results import bootstrap
from docsplit.evaluation.results.bootstrap import (
    Difference,
    ItemScores,
    holm,
    interval,
    is_clear,
    paired_bootstrap,
    paired_randomisation,
    resample,
    wilson,
)


@pytest.mark.parametrize(("chunk", "gain"), [(1, 0.3), (100, 1)])  # counts, and fractions as nDCG has them
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


def test_intervals_of_shares_are_those_of_scipy():
    for right, number in ((10, 10), (30, 30), (0, 7), (3, 5), (812, 1000)):
        expected = binomtest(right, number).proportion_ci(method="wilson")
        assert wilson(right / number, number) == pytest.approx((expected.low, expected.high), abs=1e-12)
        low, high = wilson(right / number, number)
        assert 0 <= low <= high <= 1  # of 30 of 30 the end was 1.0000000000000002


def test_fractions_that_add_up_to_the_same_are_ties():
    """Sums in float32 would be rounded, and a tie would look like a difference."""
    gains = (np.random.default_rng(0).integers(2**16, size=(1, 3000)) / 2**16).astype(np.float32)
    a = ItemScores(gains, np.ones_like(gains))
    b = ItemScores(3 * gains, np.full_like(gains, 3))
    assert compared(a, b) == Difference(0, 0, 0, 1)


def compared(a, b):
    return paired_bootstrap(*resample([a, b]))


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


def right_or_not(correct):
    return ItemScores(correct.astype(np.float32), np.ones(correct.shape, np.float32))


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
        assert found.p_value == pytest.approx(2 * (1 + min((samples <= 0).sum(), (samples >= 0).sum())) / 201)


def test_systems_on_other_items_cannot_be_compared():
    a, b = right_or_not(np.ones((2, 5), bool)), right_or_not(np.ones((2, 6), bool))
    with pytest.raises(ValueError, match="5 and 6"):
        resample([a, b])
