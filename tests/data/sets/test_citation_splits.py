"""Splits share no paper, and their negatives are balanced and no links."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docsplit.data.sets import citation_splits


def families(sizes, seed):
    """Papers in families that all cite each other, as See Also lists do, and some citations between families."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    links = [(a, b) for end, size in zip(ends, sizes) for a in range(end - size, end) for b in range(a + 1, end)]
    links += rng.integers(ends[-1], size=(len(links) // 10, 2)).tolist()
    return rng.permutation([pair[:: rng.choice([1, -1])] for pair in links]), int(ends[-1])


def unordered(pairs):
    return {frozenset(pair) for pair in np.asarray(pairs).tolist()}


@settings(max_examples=10, deadline=None, derandomize=True)  # shares are bounded of these examples, not of any
@given(st.lists(st.integers(3, 7), min_size=60, max_size=90), st.integers(0, 2**20))
def test_splits_share_no_paper_and_negatives_are_no_links(sizes, seed):
    links, num_papers = families(sizes, seed)
    never = np.random.default_rng(seed).integers(num_papers, size=(200, 2))
    parts, counts = citation_splits.make_splits(links, num_papers, seed, never_negative=never)
    true = {link for link in unordered(links) if len(link) == 2}
    papers, kept = [], 0
    for part in parts:
        pairs = np.stack([part.first, part.second], axis=1)
        positives, negatives = pairs[part.labels == 1], pairs[part.labels == 0]
        papers.append(set(pairs.ravel().tolist()))
        kept += len(positives)
        assert len(positives) == len(negatives) > 0
        assert unordered(positives) <= true
        assert len(unordered(positives)) == len(positives)
        assert not unordered(negatives) & (true | unordered(never))
        assert len(unordered(negatives)) == len(negatives)
        assert all(len(pair) == 2 for pair in unordered(negatives))  # no paper with itself
        for side in (0, 1):
            assert Counter(positives[:, side].tolist()) == Counter(negatives[:, side].tolist())
    assert len(set.union(*papers)) == sum(map(len, papers))
    assert counts["links"] == len(true)
    assert counts["links_repeated_or_to_itself_dropped"] == len(links) - len(true)
    dropped = counts["links_between_splits_dropped"] + counts["links_without_negative_dropped"]
    assert kept == len(true) - dropped
    assert kept > 0.8 * len(true)
    assert all(0.02 < len(part.labels) / 2 / kept < 0.25 for part in parts[1:])


def test_splits_depend_on_the_seed_alone():
    links, num_papers = families([5] * 60, 0)
    first, again, other = (citation_splits.make_splits(links, num_papers, seed)[0] for seed in (1, 1, 2))
    for part, two in zip(first, again):
        np.testing.assert_array_equal(part.first, two.first)
        np.testing.assert_array_equal(part.second, two.second)
        np.testing.assert_array_equal(part.labels, two.labels)
    assert set(first[2].first.tolist()) != set(other[2].first.tolist())


@pytest.mark.parametrize(
    "links",
    [np.empty((0, 2), dtype=int), [(0, number) for number in range(1, 30)], [(0, 0), (1, 2), (3, 4)]],
)
def test_too_few_links_are_an_error(links):
    with pytest.raises(ValueError, match="Give more citations"):
        citation_splits.make_splits(np.array(links), 30)
