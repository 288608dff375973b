"""What names say about documents, against loops; and names that say nothing."""

import math

import numpy as np
import pytest

from docsplit.evaluation.heads.class_names import NamedClasses
from docsplit.runtime.vectors import unit


def named(number=60, seed=0):
    """Documents of three classes around directions of their own, away from the origin; the names are near these."""
    generator = np.random.default_rng(seed)
    directions = np.eye(6)[:3]
    vectors = directions[np.arange(number) % 3] + 0.25 * generator.normal(size=(number, 6)) + 1
    return NamedClasses.of(vectors, directions + 0.1 * generator.normal(size=(3, 6)) + 1)


@pytest.mark.parametrize("labelled", [0, 7])
def test_seeds_equal_a_loop(labelled):
    names = named()
    known, pile = np.arange(labelled), np.arange(labelled, 60)
    targets = np.array([0, 0, 0, 0, 1, 1, 2])[:labelled]
    places = [3 * direction for direction in names.names]
    for row, of in zip(known, targets):
        places[of] = places[of] + names.documents[row]
    near = {}
    for row in pile:
        similarity = [names.documents[row] @ place / np.linalg.norm(place) for place in places]
        best = max(range(3), key=lambda of: similarity[of])
        near.setdefault(best, []).append((-similarity[best], row))
    expected = {}
    for of, rows in near.items():
        for _, row in sorted(rows)[: math.ceil(len(rows) / 2)]:
            expected[row] = of
    rows, classes, weights = names.seeds(known, targets, pile)
    assert dict(zip(rows.tolist(), classes.tolist())) == expected
    for of, weight in zip(classes, weights):
        counted = sum(target == of for target in targets)
        assert weight == pytest.approx(min(1, 20 / (1 + counted) * 3 / len(rows)))
    assert [len(of) for of in names.seeds(known, targets, pile[:0])] == [0, 0, 0]


def test_names_that_are_no_documents_directions_have_a_small_spread():
    names = named(90)
    alike = [a @ b for i, a in enumerate(names.documents) for b in names.documents[:i]]
    between = np.sqrt(np.mean(np.square(alike)))
    seen = np.sqrt(np.mean([np.std([row @ name for name in names.names], ddof=1) ** 2 for row in names.documents]))
    assert names.spread == pytest.approx(seen / between)
    elsewhere = NamedClasses(names.documents, unit(np.eye(6)[3:] @ np.diag([0, 0, 0, 1, 1, 1])))
    assert elsewhere.spread < 0.6 < names.spread
    same = NamedClasses(names.documents, names.names[[0, 0, 0]])
    assert same.spread == pytest.approx(0, abs=1e-6)
