"""An index on disk: it finds what a slow search finds."""

import pytest

from docsplit.data.passages import to_passages
from docsplit.data.words import words_in
from docsplit.index import index as index_module
from docsplit.index.changes import add, build, delete
from docsplit.index.index import Index
from docsplit.index.segments import query_words
from tests.index.conftest import ENCODER, WORDS, answers, embed


def test_the_nearest_passage_counts(built, documents, queries):
    index = Index(built)
    assert max(len(to_passages(document.text, WORDS)) for document in documents) > 3
    for query in queries:
        vector = embed([query])[0]
        expected = {}
        for document in documents:
            passages = [passage.text for passage in to_passages(document.text, WORDS)]
            scores = embed(passages) @ vector
            expected[document.id] = float(scores.max()), passages[int(scores.argmax())]
        best = sorted(expected, key=lambda key: -expected[key][0])[:5]
        hits = index.search(vector, [], 5, "dense")
        assert [hit.id for hit in hits] == best
        for hit in hits:
            assert (pytest.approx(hit.score, abs=1e-6), hit.passage) == expected[hit.id]
    assert hits[0].title == next(document.title for document in documents if document.id == best[0])


def test_documents_are_embedded_whole_too(built, documents):
    whole = {document.id: embed([document.text])[0] for document in documents}
    index = Index(built)
    for (segment, row), vector in zip(index.documents(), index.document_vectors()):
        text = segment.texts[row]
        if len(to_passages(text, WORDS)) == 1:
            assert vector.tolist() == embed([to_passages(text, WORDS)[0].text])[0].tolist()
        else:
            assert vector.tolist() == whole[segment.ids[row]].tolist()


def test_a_hybrid_counts_both_ranks(built, queries):
    index = Index(built)
    for query in queries:
        vector, words = embed([query])[0], query_words(query)
        both = [
            [(hit.id, hit.score) for hit in index.search(vector, words, 1000, method)] for method in ("dense", "bm25")
        ]
        expected: dict[str, float] = {}
        for rank, hit in (place for ranking in both for place in enumerate(ranking, start=1)):
            expected[hit[0]] = expected.get(hit[0], 0) + 1 / (60 + rank)
        hits = index.search(vector, words, 5, "hybrid")
        assert [hit.score for hit in hits] == sorted(expected.values(), reverse=True)[:5]
        assert all(expected[hit.id] == hit.score for hit in hits)


def test_what_is_open_can_be_read_whatever_writers_do(documents, queries, built, tmp_path, monkeypatch):
    """Also if they come between the manifest and the files that it names; what is gone for good is named."""
    build(tmp_path, documents, ENCODER, WORDS)
    opened, wanted = Index(tmp_path), answers(built, queries, "hybrid")
    read, manifests = index_module.read_manifest, []

    def overtaken(directory):
        manifests.append(read(directory))
        if len(manifests) == 1:
            monkeypatch.setattr(index_module, "read_manifest", read)
            delete(directory, [document.id for document in documents[1:]])
            add(directory, documents[1:], ENCODER)
            delete(directory, [documents[0].id])
            add(directory, documents[:1], ENCODER)
        return manifests[-1]

    monkeypatch.setattr(index_module, "read_manifest", overtaken)
    assert answers(tmp_path, queries, "hybrid") == wanted
    first = opened.segments[0]
    assert not first.folder.exists()
    assert [hit.id for hit in opened.search(None, query_words(queries[0]), 1, "bm25")] == [documents[0].id]
    (Index(tmp_path).segments[0].folder / "texts.utf8").unlink()
    with pytest.raises(ValueError, match=r"texts\.utf8 is missing\. Restore the index"):
        Index(tmp_path)


def test_a_hit_has_the_words_that_its_document_has(built, documents):
    """With the passage that has most of them where words alone count."""
    index, text_of = Index(built), {document.id: document.text for document in documents}
    words = query_words("how does the kettle boil in a harbour with butter")
    for method in ("bm25", "hybrid"):
        vector = None if method == "bm25" else embed(["kettle"])[0]
        for hit in index.search(vector, words, 20, method):
            text = text_of[hit.id]
            assert hit.words == [word for word in ("kettle", "boil", "harbour", "butter") if word in words_in(text)]
            passages = [passage.text for passage in to_passages(text, WORDS)]
            if method == "bm25":
                assert hit.similarity is None
                most = max(len(set(hit.words) & words_in(passage)) for passage in passages)
                assert len(set(hit.words) & words_in(hit.passage)) == most > 0
            else:
                scores = embed(passages) @ vector
                assert hit.similarity == pytest.approx(float(scores.max()), abs=1e-6)
                assert hit.passage == passages[int(scores.argmax())]
