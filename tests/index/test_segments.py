"""Segments: strings that come back, and words weighed as bm25s weighs them."""

import bm25s
import numpy as np
import pytest

from docsplit.index import changes
from docsplit.index.changes import build
from docsplit.index.index import Index
from docsplit.index.segments import Strings, bm25, query_words
from tests.index.conftest import ENCODER, WORDS, embed


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
    build(tmp_path, documents, embed, ENCODER, WORDS)
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
