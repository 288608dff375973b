"""The exact search: blocks of any size, and segments, give the same answers."""

import dataclasses

import numpy as np

from docsplit.data.readers.base import Document
from docsplit.index import first_stage
from docsplit.index.changes import add, build, delete
from docsplit.index.first_stage import best_by_words, bm25, nearest
from docsplit.index.index import Index
from docsplit.index.segments import query_words
from tests.index.conftest import ENCODER, WORDS, embed


def test_many_queries_are_answered_as_one_by_one_whatever_a_block_holds(built, queries, monkeypatch):
    index, vectors = Index(built), embed(queries)
    expected = [nearest(index.segments, vector[None], 9)[0] for vector in vectors]
    for values in (1, 300, 10**6):
        monkeypatch.setattr(first_stage, "BLOCK_VALUES", values)
        for hits, wanted in zip(nearest(index.segments, vectors, 9), expected):
            assert [key for key, _ in hits] == [key for key, _ in wanted]
            np.testing.assert_allclose([score for _, score in hits], [score for _, score in wanted], atol=1e-6)


def test_copies_come_in_the_order_of_segments_and_rows(documents, tmp_path, monkeypatch):
    """Equal scores: the document that came first is found first, whatever a block holds."""

    def whole_numbers(texts):  # whose products are exact
        return np.rint(4 * embed(texts))

    encoder = dataclasses.replace(ENCODER, embed=whole_numbers)
    copies = [Document(f"copy {number}", documents[0].text) for number in range(12)]
    build(tmp_path, [*copies[:6], documents[1]], encoder, WORDS)
    add(tmp_path, copies[6:], encoder)
    delete(tmp_path, ["copy 2"])
    index, vectors = Index(tmp_path), whole_numbers([documents[0].text])
    expected = [(0, row) for row in (0, 1, 3, 4, 5)] + [(1, row) for row in range(6)]
    for values in (1, 40, 10**6):
        monkeypatch.setattr(first_stage, "BLOCK_VALUES", values)
        for count in (3, 7, 11):
            (dense,) = nearest(index.segments, vectors, count)
            by_words = best_by_words(index.segments, query_words(documents[0].text), count)
            assert [key for key, _ in dense] == [key for key, _ in by_words] == expected[:count]


def test_by_words_only_documents_with_a_word_are_found(built, documents):
    segments = Index(built).segments
    scores = np.concatenate(bm25(segments, query_words(documents[3].text[:40])))
    hits = best_by_words(segments, query_words(documents[3].text[:40]), 1000)
    assert len(hits) == (scores > 0).sum() < len(documents)
    assert [row for (_, row), _ in hits] == np.argsort(-scores, kind="stable")[: len(hits)].tolist()
    assert best_by_words(segments, ["nothingofthekind"], 10) == []


def test_an_index_without_segments_finds_nothing():
    assert nearest([], embed(["a", "b"]), 5) == [[], []]
    assert best_by_words([], ["word"], 5) == []
