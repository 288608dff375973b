"""View makers: the units of a document and a random generator in, two views out.

A view is an increasing array of unit indices. Every document that reaches a view maker has two or more units (a text
of one sentence was cut in two when it was tokenised), so there is no special case here. To add a view, write a
function `(num_units, rng) -> (view, view)` and name it in `VIEWS`.
"""

from collections.abc import Callable

import numpy as np

View = np.ndarray  # (K,) increasing unit indices, K >= 1


def docsplit(num_units: int, rng: np.random.Generator) -> tuple[View, View]:
    """Each sentence to one of two halves with probability 0.5, order kept (DocSplit, section 2.2).

    The paper leaves open what happens when one half is empty: the document is drawn again.
    """
    assert num_units >= 2, "a document of one unit has no two halves"
    while True:
        heads = rng.random(num_units) < 0.5
        first, second = heads.nonzero()[0], (~heads).nonzero()[0]
        if len(first) and len(second):
            return first, second


def simcse(num_units: int, rng: np.random.Generator) -> tuple[View, View]:
    """The whole document twice: dropout is the only augmentation (SimCSE, section 3; SimCSE_long of DocSplit)."""
    units = np.arange(num_units)
    return units, units


VIEWS: dict[str, Callable[[int, np.random.Generator], tuple[View, View]]] = {
    "docsplit": docsplit,
    "simcse": simcse,
}
