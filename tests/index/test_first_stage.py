"""The exact search: blocks of any size, and segments, give the same answers."""

import numpy as np

from docsplit.index import first_stage
from docsplit.index.first_stage import nearest
from docsplit.index.index import Index
from tests.index.conftest import embed


def test_many_queries_are_answered_as_one_by_one_whatever_a_block_holds(built, queries, monkeypatch):
    index, vectors = Index(built), embed(queries)
    expected = [nearest(index.segments, vector[None], 9)[0] for vector in vectors]
    for values in (1, 300, 10**6):
        monkeypatch.setattr(first_stage, "BLOCK_VALUES", values)
        for found, wanted in zip(nearest(index.segments, vectors, 9), expected):
            assert [key for key, _ in found] == [key for key, _ in wanted]
            np.testing.assert_allclose([score for _, score in found], [score for _, score in wanted], atol=1e-6)
