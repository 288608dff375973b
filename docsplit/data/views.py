"""Functions that draw two views of a document from the lengths of its units and a random generator.

A view is a mask over the tokens of a document. Tokens keep their order and views are never empty. A unit is a
sentence, or a passage for the views of `PASSAGE_VIEWS`. Every document has two units or more: `tokenize` cuts a text
of one sentence in two and drops a text of one passage. To add a view, write a function
`(unit_lengths, rng) -> (view, view)` and name it in `VIEWS`.
"""

from collections.abc import Callable

import numpy as np

from docsplit.runtime.plugins import Table

View = np.ndarray  # (T,) bool, one for each token of the document
CROP_SHARES = 0.05, 0.5  # of a document's tokens (Contriever, section 3.2 and its released options)
DELETION_PROBABILITY = 0.1  # of a token of a crop (Contriever, section 3.2)


def docsplit(unit_lengths: np.ndarray, rng: np.random.Generator) -> tuple[View, View]:
    """Put each sentence into one of two halves at random, in its order (DocSplit, section 2.2).

    Both halves have probability 0.5. The paper leaves open what happens when one half is empty: the document is drawn
    again.
    """
    assert len(unit_lengths) >= 2, "a document of one unit has no two halves"
    while True:
        heads = rng.random(len(unit_lengths)) < 0.5
        if heads.any() and not heads.all():
            first = np.repeat(heads, unit_lengths)
            return first, ~first


def simcse(unit_lengths: np.ndarray, rng: np.random.Generator) -> tuple[View, View]:
    """Take the whole document twice: only dropout differs (SimCSE, section 3; SimCSE_long of DocSplit)."""
    everything = np.ones(unit_lengths.sum(), dtype=bool)
    return everything, everything


def crop(unit_lengths: np.ndarray, rng: np.random.Generator) -> tuple[View, View]:
    """Draw two spans of 5-50 % of the tokens, which may overlap, and delete a tenth of their tokens (Contriever).

    Section 3.2: independent cropping and token deletion. Contriever crops pieces of 256 tokens of its corpus; here the
    document is cropped.
    """
    views = []
    for _ in range(2):
        view = _span(unit_lengths.sum(), rng)
        kept = view & (rng.random(len(view)) >= DELETION_PROBABILITY)
        views.append(kept if kept.any() else view)
    return views[0], views[1]


def ict(unit_lengths: np.ndarray, rng: np.random.Generator) -> tuple[View, View]:
    """Draw one span; the rest is the other view: inverse cloze task of DocSplit's second version (section 3.1).

    The paper gives no length of the span. Here it is as long as a crop.
    """
    span = _span(unit_lengths.sum(), rng)
    return span, ~span


def half(unit_lengths: np.ndarray, rng: np.random.Generator) -> tuple[View, View]:
    """Cut the document in two between units near its middle: cropping in DocSplit's second version (section 3.1)."""
    first = np.arange(unit_lengths.sum()) < _middle(unit_lengths)
    return first, ~first


def passages(unit_lengths: np.ndarray, rng: np.random.Generator) -> tuple[View, View]:
    """Draw half of the passages; the rest is the other view (graph document model, sections 2.2 and 3.2)."""
    count = len(unit_lengths)
    chosen = np.isin(np.arange(count), rng.permutation(count)[: count // 2])
    first = np.repeat(chosen, unit_lengths)
    return first, ~first


def passage_vs_rest(unit_lengths: np.ndarray, rng: np.random.Generator) -> tuple[View, View]:
    """Draw one passage, half of the time the first; the rest is the other view (graph document model, section 3.3).

    The first passage is drawn with probability 0.5, else any of them.
    """
    count = len(unit_lengths)
    chosen = 0 if rng.random() < 0.5 else rng.integers(count)
    first = np.repeat(np.arange(count) == chosen, unit_lengths)
    return first, ~first


def _span(num_tokens: int, rng: np.random.Generator) -> View:
    """Draw a contiguous span whose share of the tokens is uniform within `CROP_SHARES`; one token at least."""
    length = max(int(rng.uniform(*CROP_SHARES) * num_tokens), 1)
    start = rng.integers(num_tokens - length + 1)
    view = np.zeros(num_tokens, dtype=bool)
    view[start : start + length] = True
    return view


def _middle(unit_lengths: np.ndarray) -> int:
    """Count the tokens before the boundary of units that is nearest to the middle."""
    ends = unit_lengths.cumsum()
    return ends[:-1][np.abs(2 * ends[:-1] - ends[-1]).argmin()]


VIEWS: Table[Callable[[np.ndarray, np.random.Generator], tuple[View, View]]] = Table(
    "view",
    {
        "docsplit": docsplit,
        "simcse": simcse,
        "crop": crop,
        "ict": ict,
        "half": half,
        "passages": passages,
        "passage_vs_rest": passage_vs_rest,
    },
)
PASSAGE_VIEWS = {"passages", "passage_vs_rest"}
MOST_PASSAGES = 50  # of a document, in pretraining
QUERY_DOCUMENT = "query_document"  # pairs of documents, of `docsplit.data.query_documents`
# Embedded like a query by models that embed queries otherwise (graph document model, section 3.3)
FIRST_IS_QUERY = {"passage_vs_rest"}
