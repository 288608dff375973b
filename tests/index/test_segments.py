"""Segments: strings that come back, and words weighed as bm25s weighs them."""

import bm25s
import numpy as np
import pytest

from docsplit.index import changes
from docsplit.index.changes import add, build, delete
from docsplit.index.first_stage import bm25
from docsplit.index.index import Index
from docsplit.index.segments import Segment, Strings, merge_segments, query_words, renew_segment
from docsplit.index.vectors import Vectors
from tests.index.conftest import ENCODER, WORDS


def test_strings_come_back_and_are_found(tmp_path):
    strings = ["", "a", "ä\n", "zebra", "aardvark", "\ud800", "日本"]
    Strings.write(tmp_path / "s", strings)
    read = Strings(tmp_path / "s")
    kept = [string.encode(errors="replace").decode() for string in strings]
    assert list(read) == kept
    order = np.array(sorted(range(len(kept)), key=kept.__getitem__))
    assert [read.find(string, order) for string in kept] == list(range(len(kept)))
    assert read.find("zebr", order) is None
    Strings.write(tmp_path / "none", [])
    assert list(Strings(tmp_path / "none")) == []


@pytest.mark.parametrize("cut", [1, 3])
def test_words_are_weighed_as_bm25s_does(documents, queries, tmp_path, monkeypatch, cut):
    """In one segment or in several: what a word is worth is known of all."""
    monkeypatch.setattr(changes, "SEGMENT_DOCUMENTS", -(-len(documents) // cut))
    build(tmp_path, documents, ENCODER, WORDS)
    index = Index(tmp_path)
    assert len(index.segments) == cut
    retriever = bm25s.BM25()
    texts = [document.text for document in documents]
    retriever.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    for query in [*queries, "harbour harbour ship", "nothingofthekind"]:
        words = query_words(query)
        ours = np.concatenate(bm25(index.segments, words))
        known = [word for word in words if word in retriever.vocab_dict]
        np.testing.assert_allclose(ours, retriever.get_scores(known) if known else 0, atol=1e-5)


def test_a_word_that_a_query_has_often_is_looked_up_once(built, queries, monkeypatch):
    words, asked = query_words(queries[0]), []
    find = Strings.find
    monkeypatch.setattr(Strings, "find", lambda *given: asked.append(given[1]) or find(*given))
    (scores,) = bm25(Index(built).segments, words * 1000)
    assert len(asked) == len(set(words))
    assert scores == pytest.approx(1000 * bm25(Index(built).segments, words)[0], rel=1e-5)


def test_a_merge_keeps_vectors_with_words_and_without(documents, worded_encoder, tmp_path):
    build(tmp_path, documents[:30], worded_encoder, WORDS)
    add(tmp_path, documents[30:], worded_encoder, refit="never")
    delete(tmp_path, [documents[7].id, documents[64].id])
    segments = Index(tmp_path).segments
    (tmp_path / "merged").mkdir()
    assert merge_segments(tmp_path / "merged", segments) == len(documents) - 2
    merged = Segment(tmp_path / "merged")
    places = [(segment, row) for segment in segments for row in np.flatnonzero(segment.alive)]
    for number, (segment, row) in enumerate(places):
        old, new = segment.passages_of(row), merged.passages_of(number)
        assert merged.texts[number] == segment.texts[row]
        for ours, theirs in (
            (merged.document_vectors[number], segment.document_vectors[row]),
            (merged.passage_vectors[new], segment.passage_vectors[old]),
            (merged.plain_vectors().documents[number], segment.plain_vectors().documents[row]),
            (merged.plain_vectors().passages[new], segment.plain_vectors().passages[old]),
        ):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("deleted", [None, "deleted-2.npy"])
def test_a_renewed_segment_has_other_vectors_and_nothing_that_is_left_over(documents, tmp_path, deleted):
    build(tmp_path, documents[:5], ENCODER, WORDS)
    (segment,) = Index(tmp_path).segments
    for name in ("deleted-1.npy", "deleted-2.npy", ".deleted-3.npy.1.partial"):
        np.save((segment.folder / name).open("wb"), np.array([1]))
    vectors = Vectors(-segment.document_vectors, -segment.passage_vectors)
    (tmp_path / "new").mkdir()
    renew_segment(tmp_path / "new", segment, deleted, vectors)
    renewed = Segment(tmp_path / "new")
    np.testing.assert_array_equal(renewed.document_vectors, vectors.documents)
    np.testing.assert_array_equal(renewed.passage_vectors, vectors.passages)
    assert list(renewed.texts) == list(segment.texts)
    assert {file.name for file in renewed.folder.iterdir() if "deleted" in file.name} == ({deleted} - {None})
    np.testing.assert_array_equal(segment.document_vectors, -vectors.documents)  # the old one is as it was
