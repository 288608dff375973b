"""An index on disk finds what a slow search finds, whatever its segments and blocks are."""

import os
import subprocess
import sys

import numpy as np
import pytest

from docsplit.data.bm25 import BM25
from docsplit.data.passages import to_passages
from docsplit.data.readers.base import Document, TableColumns
from docsplit.data.words import CUT, Stems
from docsplit.index import changes
from docsplit.index import index as index_module
from docsplit.index.changes import add, build, delete
from docsplit.index.index import IndexReader, bm25
from docsplit.runtime.files import ROOT
from tests.index.conftest import DESCRIPTION, ENCODER, WORDS, Encoder, answers, embed


def test_the_nearest_passage_counts(built, documents, queries):
    index = IndexReader(built)
    assert max(len(to_passages(document.text, WORDS)) for document in documents) > 3
    for query in queries:
        vector = embed([query])[0]
        expected = {}
        for document in documents:
            passages = [passage.text for passage in to_passages(document.text, WORDS)]
            scores = embed(passages) @ vector
            expected[document.id] = float(scores.max()), passages[int(scores.argmax())]
        best = sorted(expected, key=lambda key: -expected[key][0])[:5]
        hits = index.search(vector, "", 5, "dense")
        assert [hit.id for hit in hits] == best
        for hit in hits:
            assert (pytest.approx(hit.score, abs=1e-6), hit.passage) == expected[hit.id]
            assert hit.similarity == pytest.approx(hit.score, abs=1e-6)
    assert hits[0].title == next(document.title for document in documents if document.id == best[0])


@pytest.mark.parametrize("cut", [CUT - 1, CUT + 1])
def test_words_are_weighed_as_bm25s_does(documents, queries, tmp_path, monkeypatch, cut):
    """In one segment or in several, also after a deletion: what a word is worth is known of all that are there."""
    monkeypatch.setattr(changes, "SEGMENT_DOCUMENTS", -(-len(documents) // cut))
    build(tmp_path, [*documents[1:], documents[0]], ENCODER, WORDS)
    delete(tmp_path, [documents[0].id])
    kept, index = documents[1:], IndexReader(tmp_path)
    assert len(index.segments) == cut
    retriever = BM25([document.text for document in kept])
    for query in [*queries, "harbour harbour ship", "nothingofthekind"]:
        found = retriever.retrieve([query], len(kept))
        expected = {kept[row].id: score for row, score in zip(found.rows[0], found.scores[0]) if row >= 0}
        hits = index.search(None, query, 100, "bm25")
        assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert len(hits) < len(kept)


@pytest.mark.parametrize("language", ["english", "none"])
@pytest.mark.parametrize(("fusion", "weight"), [("sum", 0.8), ("sum", 0.0), ("sum", 1.0), ("rrf", 0.8)])
def test_a_hybrid_joins_both_as_a_loop_over_all_documents_does(documents, queries, tmp_path, language, fusion, weight):
    """Also in several segments, after a deletion; of documents that words do not find the similarity alone counts."""
    build(tmp_path, documents[:50], ENCODER, WORDS, language=language)
    add(tmp_path, documents[50:], ENCODER)
    delete(tmp_path, [documents[3].id])
    index = IndexReader(tmp_path)
    for query in queries:
        vector = embed([query])[0]
        dense, words = ({hit.id: hit.score for hit in index.search(vector, query, 1000, m)} for m in ("dense", "bm25"))
        for (segment, row), whole in zip(index.documents(), index.document_vectors()):
            dense[segment.ids[row]] = (dense[segment.ids[row]] + float(whole @ vector)) / 2
        expected: dict[str, float] = {}
        for found in (dense, words):
            for rank, key in enumerate(sorted(found, key=lambda key: -found[key]), start=1):
                expected[key] = expected.get(key, 0) + 1 / (60 + rank)
        if fusion == "sum":
            best = max(dense.values()) + 1, max(words.values())
            expected = {
                key: weight * (score + 1) / best[0] + (1 - weight) * words.get(key, 0) / best[1]
                for key, score in dense.items()
            }
        hits = index.search(vector, query, 5, "hybrid", fusion, weight)
        assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True)[:5], abs=1e-6)
        assert all(expected[hit.id] == pytest.approx(hit.score, abs=1e-6) for hit in hits)


def test_documents_are_embedded_whole_too(built, documents):
    index = IndexReader(built)
    for (segment, row), vector in zip(index.documents(), index.document_vectors(), strict=True):
        passages = [passage.text for passage in to_passages(segment.texts[row], WORDS)]
        whole = passages[0] if len(passages) == 1 else segment.texts[row]
        assert vector.tolist() == embed([whole])[0].tolist()


def test_copies_come_in_the_order_of_segments_and_rows(documents, tmp_path, monkeypatch):
    """Equal scores: the document that came first is found first, whatever a block holds."""
    encoder = Encoder(lambda texts: np.rint(4 * embed(texts)))  # whole numbers, whose products are exact
    copies = [Document(f"copy {number}", documents[0].text) for number in range(12)]
    build(tmp_path, [*copies[:6], documents[1]], encoder, WORDS)
    add(tmp_path, copies[6:], encoder)
    delete(tmp_path, ["copy 2"])
    index, vectors = IndexReader(tmp_path), encoder.embed_for_index([documents[0].text])
    expected = [f"copy {number}" for number in (0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11)]
    for count in (3, 7, 11):
        for method in ("dense", "bm25", "hybrid"):
            vector = None if method == "bm25" else vectors[0]
            hits = index.search(vector, documents[0].text, count + 1, method)
            assert [hit.id for hit in hits if hit.id != documents[1].id][:count] == expected[:count]


def test_an_index_without_documents_finds_nothing(documents, tmp_path):
    build(tmp_path, documents[:2], ENCODER, WORDS)
    delete(tmp_path, [document.id for document in documents[:2]])
    index = IndexReader(tmp_path)
    assert len(index) == index.num_passages() == len(bm25(index.segments, ["ship"])) == 0
    assert index.search(embed(["ship"])[0], "ship", 5, "hybrid") == []
    assert index.reading() is None
    assert add(tmp_path, documents[:3], ENCODER).documents == len(IndexReader(tmp_path)) == 3


def test_a_hit_has_the_words_that_its_document_has(built, documents):
    """With the passage that has most of them where words alone count."""
    index, text_of = IndexReader(built), {document.id: document.text for document in documents}
    query, stems = "how does the kettles boil in a harbouring with butter", Stems()
    for method in ("bm25", "hybrid"):
        vector = None if method == "bm25" else embed(["kettle"])[0]
        for hit in index.search(vector, query, 20, method):
            text = text_of[hit.id]
            said = ("kettles", "boil", "harbouring", "butter")
            assert hit.words == [word for word in said if stems.stem(word) in stems.of(text)]
            passages = [passage.text for passage in to_passages(text, WORDS)]
            if method == "bm25":
                assert hit.similarity is None
                wanted = {*map(stems.stem, hit.words)}
                most = max(len(wanted.intersection(stems.of(passage))) for passage in passages)
                assert len(wanted.intersection(stems.of(hit.passage))) == most > 0
            else:
                scores = embed(passages) @ vector
                assert hit.similarity == pytest.approx(float(scores.max()), abs=1e-6)
                assert hit.passage == passages[int(scores.argmax())]


def test_what_is_open_can_be_read_whatever_writers_do(documents, queries, built, tmp_path, monkeypatch):
    """Also if they come between the manifest and the file that it names; what is gone for good is named."""
    build(tmp_path, documents, ENCODER, WORDS)
    opened, wanted = IndexReader(tmp_path), answers(built, queries, "hybrid")
    read, manifests = index_module.read_manifest, []

    def overtaken(*arguments):
        manifests.append(read(*arguments))
        if len(manifests) == 1:
            monkeypatch.setattr(index_module, "read_manifest", read)
            monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 0)
            delete(tmp_path, [documents[0].id])
            add(tmp_path, documents[:1], ENCODER)
        return manifests[-1]

    monkeypatch.setattr(index_module, "read_manifest", overtaken)
    assert answers(tmp_path, queries, "hybrid") == wanted
    assert not (tmp_path / opened.manifest.file).exists()
    assert [hit.id for hit in opened.search(None, queries[0], 1, "bm25")] == [documents[0].id]
    data = tmp_path / IndexReader(tmp_path).manifest.file
    data.unlink()
    with pytest.raises(ValueError, match=rf"{data.name} is missing\. Restore the index"):
        IndexReader(tmp_path)


def test_an_index_says_what_is_read_of_it(documents, tmp_path):
    """Of tokens, which are counted one by one; and that documents carry words."""
    encoder = Encoder(embed, count=lambda texts: (np.array([len(text) for text in texts]), 80), has_words=True)
    encoder.description = {**DESCRIPTION, "max_seq_length": 80}
    built = build(tmp_path, documents[50:], encoder, WORDS)
    delete(tmp_path, [documents[60].id])
    add(tmp_path, documents[:5], encoder)
    kept = [*documents[50:60], *documents[61:], *documents[:5]]
    sizes = [[len(passage.text) for passage in to_passages(document.text, WORDS)] for document in kept]
    total = sum(map(sum, sizes))
    of_passages = sum(min(size, 80) for several in sizes for size in several) / total
    of_documents = sum(min(sum(several), 80) for several in sizes) / total
    assert of_documents < of_passages < 1
    reading = IndexReader(tmp_path).reading()
    for share in (of_passages, of_documents):
        assert f" {np.floor(1000 * share) / 10:g} %" in reading
    assert "fewer --passage_words" in reading != built.reading
    assert reading.count("and all words") == 2
    assert IndexReader(tmp_path).manifest.has_words
    assert IndexReader(tmp_path).manifest.sources == {"": TableColumns()}


FEW = """
import os, resource, sys
from pathlib import Path
from docsplit.index.index import IndexReader
from docsplit.index.results import Checked
directory = Path(sys.argv[1])
before = len(os.listdir("/proc/self/fd"))
index = IndexReader(directory)
print(len(index.segments), len(os.listdir("/proc/self/fd")) - before)
resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1, before - 1))
for use in (IndexReader, Checked.of, lambda directory: index.current()):
    try:
        use(directory)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no list of open files")
def test_it_needs_one_file_descriptor_at_any_size_and_the_lack_of_them_is_no_damage(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "SEGMENT_DOCUMENTS", 1)
    build(tmp_path, documents[:40], ENCODER, WORDS)
    command = [sys.executable, "-c", FEW, str(tmp_path)]
    first, *errors = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert first == "40 1"
    assert len(errors) == 3
    assert all(line.startswith("OSError [Errno 24] Too many open files") for line in errors)
