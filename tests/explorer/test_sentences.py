"""Sentences: all that is shown is in the text; those that match say something, and are the best of all pairs."""

import numpy as np
import pytest

from docsplit.embedding.neighbours import nearest
from docsplit.explorer.sentences import (
    SentencePair,
    best_sentences,
    is_prose,
    opening_document,
    split_texts,
    telling_sentences,
    words_of_sentences,
)

TELLING = "Copper wires carry current through old houses."
LICENCE = "Permission is hereby granted to any person obtaining this software."


def unit_vectors(shape, seed=0):
    vectors = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_sentences_and_breaks_give_the_text_back():
    text = "One is here. Two is\nthere.\n\nThree, a paragraph.\n- an item\n- an item"
    (shown,) = split_texts([text])
    assert shown.sentences == ["One is here.", "Two is there.", "Three, a paragraph.", "- an item", "- an item"]
    assert shown.breaks == [0, 0, 2, 1, 1]
    assert shown.left_out == 0


def chosen(documents):
    return [numbers.tolist() for numbers in telling_sentences(documents, words_of_sentences(documents))]


def test_what_many_documents_say_is_boilerplate():
    documents = [[LICENCE, f"{TELLING} number{place}"] for place in "abc"]
    documents[1][0] = "PERMISSION is hereby granted, to any person obtaining  this software"  # but for case and stops
    assert chosen(documents) == [[1], [1], [1]]
    assert chosen(documents[:2]) == [[0, 1], [0, 1]]  # two documents may be alike
    years = [[f"This was last changed by somebody unknown in {year}."] for year in (2001, 2002, 2003)]
    assert chosen(years) == [[], [], []]


def test_short_sentences_code_and_copyright_say_little():
    code = ">>> result = compute value from other numbers"
    rights = "Copyright 2001 Acme Widgets Corporation, Springfield, every single right reserved."
    assert chosen([["See also", "References", "Lines: 28", code, rights, TELLING]]) == [[5]]
    assert chosen([["Lines: 28", "The and of."]]) == [[0]]  # nothing else: the short one; no word is no sentence
    row = "text_column, 0.25 [0.2, 0.3] | a string, an integer, or 17 of them (not 99)"
    assert [is_prose(text) for text in (TELLING, code, rights, row)] == [True, False, False, False]
    assert is_prose("東京タワーへ行く人は多い")


def test_best_sentences_against_all_pairs():
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 6, size=9)
    assert 0 in counts
    candidates = [np.sort(rng.permutation(20)[:count]) for count in counts]
    starts = np.cumsum([0, *counts])[:-1]
    vectors = unit_vectors((counts.sum(), 6), seed=2)
    neighbours, _ = nearest(unit_vectors((9, 4), seed=3), 3)
    matches = best_sentences(vectors, candidates, neighbours)
    for row in range(9):
        for other, pair in zip(neighbours[row], matches[row], strict=True):
            cosine = {
                (here, there): float(vectors[starts[row] + first] @ vectors[starts[other] + second])
                for first, here in enumerate(candidates[row])
                for second, there in enumerate(candidates[other])
            }
            if not cosine:
                assert pair is None
                continue
            best = max(cosine, key=cosine.get)
            assert pair[:2] == best
            assert pair.cosine == pytest.approx(cosine[best], abs=1e-6)


def test_the_page_opens_where_neighbours_say_the_same_in_other_words():
    words = [[(1, 2, 3)], [(1, 2, 3)], [(4, 5, 6)], [(7, 8, 9)]]
    neighbours = np.array([[1], [0], [3], [2]])
    matches = [[SentencePair(0, 0, 0.99)], [SentencePair(0, 0, 0.99)], [SentencePair(0, 0, 0.6)], [None]]
    assert opening_document(matches, neighbours, words) == 2  # the first two are copies
