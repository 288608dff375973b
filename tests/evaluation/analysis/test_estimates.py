"""Numbers with intervals over documents: against the bootstrap they stand on, groups of seeds, paired differences."""

import numpy as np
import pytest

from docsplit.evaluation.analysis.estimates import (
    Estimates,
    differences,
    mean_row,
    merge_estimates,
    over_documents,
    rows_of,
)
from docsplit.evaluation.results.bootstrap import interval, item_draws, sample_deviation

GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.normal(5, 1, size=(3, 40))
PRESENT = (GENERATOR.random(40) < 0.8).astype(float)


def estimates(name, values, **facts):
    return Estimates(name, over_documents({"mean": (values * PRESENT, PRESENT)}), facts)


def row_of(one):
    (row,) = rows_of([one]).to_dict("records")
    return row


def test_means_over_the_documents_that_have_a_value():
    found = estimates("a", VALUES[0])
    assert found.values["mean"].scores == pytest.approx([VALUES[0][PRESENT > 0].mean()])
    times = np.concatenate(list(item_draws(40)))
    slow = [np.average(VALUES[0], weights=PRESENT * own) for own in times[:50]]
    np.testing.assert_allclose(found.values["mean"].samples[:50, 0], slow)
    row = row_of(found)
    assert (row["mean_low"], row["mean_high"]) == interval(found.values["mean"])
    assert times.sum(axis=1) == pytest.approx(40)
    assert times.mean() == pytest.approx(1)


def test_a_group_of_seeds_is_wider_than_its_members():
    members = [estimates(str(seed), VALUES[0] + shift, n=1) for seed, shift in enumerate((0, 0.5, 1.5))]
    group = merge_estimates("group", ["0", "1", "2"], members)
    row, alone = row_of(group), row_of(members[0])
    assert row["mean_mean"] == pytest.approx(alone["mean_mean"] + 2 / 3)
    assert row["mean_std"] == pytest.approx(sample_deviation(np.array([0, 0.5, 1.5])))
    assert row["mean_of_seeds"] == pytest.approx([alone["mean_mean"] + shift for shift in (0, 0.5, 1.5)])
    assert row["mean_high"] - row["mean_low"] > 2 * (alone["mean_high"] - alone["mean_low"])
    assert row["n"] == 1
    assert merge_estimates("0", ["0"], members[:1]) is members[0]


def test_the_interval_of_a_share_alone_ends_at_1():
    """Seeds of 0.5 to 0.9 may have a mean above 1 where 1 is uniform attention, but no share of it."""
    parts = {name: (np.full(5, 1.0), np.ones(5)) for name in ("noun_to_uniform", "noun_share", "auc")}
    members = [
        Estimates("", over_documents({name: (factor * above, below) for name, (above, below) in parts.items()}))
        for factor in (0.5, 0.7, 0.9)
    ]
    row = row_of(merge_estimates("group", ["0", "1", "2"], members))
    assert row["noun_to_uniform_high"] > 1.05
    assert row["noun_share_high"] == row["auc_high"] == 1


def test_differences_are_paired():
    """b is a plus a little in each document: the difference is clear where both intervals overlap."""
    a, b = estimates("a", VALUES[0]), estimates("b", VALUES[0] + 0.1 + 0.01 * VALUES[1])
    (row,) = differences([a, b], ["mean", "absent"])
    assert row["high"] < 0
    assert row_of(a)["mean_high"] > row_of(b)["mean_low"]
    assert row["difference"] == pytest.approx(a.values["mean"].scores[0] - b.values["mean"].scores[0])
    assert row["ratio"] == pytest.approx(a.values["mean"].scores[0] / b.values["mean"].scores[0])
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"] < 1


def test_a_ratio_is_over_pretraining_seeds_as_its_difference_is():
    """Three seeds that lie far apart: neither the difference nor the ratio is clear, which one of them alone is."""
    members = [estimates(str(seed), VALUES[0] * factor) for seed, factor in enumerate((0.9, 1.1, 1.6))]
    other = estimates("b", VALUES[0])
    (alone,) = differences([members[1], other], ["mean"])
    (row,) = differences([merge_estimates("group", ["0", "1", "2"], members), other], ["mean"])
    assert alone["low"] > 0
    assert (alone["ratio_low"], alone["ratio_high"]) == pytest.approx((1.1, 1.1))
    assert row["low"] < 0 < row["high"]
    assert row["ratio_low"] < 1 < row["ratio"] < row["ratio_high"]
    assert row["ratio"] == pytest.approx(1.2)


def test_no_ratio_to_what_may_be_0():
    (row,) = differences([estimates("a", VALUES[0]), estimates("b", VALUES[1] - 5)], ["mean"])
    assert row["ratio"] is None


def test_mean_rows():
    row = mean_row("g", ["a", "b"], [{"x": 1.0}, {"x": 3.0}])
    assert (row["x_mean"], row["x_std"], row["x_of_seeds"]) == (2.0, pytest.approx(2**0.5), [1.0, 3.0])
    assert mean_row("a", ["a"], [{"x": 1.0}]) == {"encoder": "a", "members": [], "x_mean": 1.0}
