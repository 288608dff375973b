"""Blocks of citation pairs: each link once, and no paper of a test pair in a training pair."""

import numpy as np

from benchmarks.studies.reproduction.rotation import blocks
from docsplit.data.python_docs.parts import undirected


def test_each_link_is_tested_once_by_classifiers_that_saw_neither_paper():
    rng = np.random.default_rng(0)
    of_topic = [40 * topic + rng.integers(40, size=(120, 2)) for topic in range(8)]
    links = undirected(np.concatenate([*of_topic, rng.integers(320, size=(150, 2))]))
    pairs, judges, known = blocks(links, 320, seed=0)
    linked = np.sort(np.stack([pairs.first, pairs.second], axis=1)[pairs.labels == 1], axis=1)
    unlinked = np.sort(np.stack([pairs.first, pairs.second], axis=1)[pairs.labels == 0], axis=1)
    assert len(np.unique(linked, axis=0)) == len(linked) == len(unlinked)
    assert len(linked) > 0.9 * len(links), "most links find a negative"
    cited = set(map(tuple, links.tolist()))
    assert set(map(tuple, linked.tolist())) <= cited
    assert not set(map(tuple, unlinked.tolist())) & cited
    assert len(known) == 10
    for number, trained in enumerate(known):
        judged = judges == number
        assert len(np.unique(trained)) == len(trained) == known.shape[1]
        seen = {*pairs.first[trained].tolist(), *pairs.second[trained].tolist()}
        assert seen
        assert not seen & {*pairs.first[judged].tolist(), *pairs.second[judged].tolist()}
        for papers in (pairs.first, pairs.second):  # popularity says nothing
            counts = [np.bincount(papers[judged & (pairs.labels == label)], minlength=320) for label in (0, 1)]
            np.testing.assert_array_equal(*counts)
