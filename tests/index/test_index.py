"""An index on disk: what it finds is what a slow search finds, however it came to hold its documents."""

import json
import sys
import textwrap
import time

import bm25s
import numpy as np
import pytest

from docsplit.data.own_documents import Document
from docsplit.data.passages import to_passages
from docsplit.embedding import inverted_file
from docsplit.index import approximate, first_stage
from docsplit.index import index as index_module
from docsplit.index.first_stage import nearest
from docsplit.index.index import Index, add, build, delete, writing
from docsplit.index.segments import Strings, bm25, query_words
from tests.conftest import make_corpus
from tests.processes import Script

ENCODER = {"name": "test", "hash": "0123456789", "pooling": "mean"}
WORDS = 20  # of a passage


def embed(texts):
    """Each text gets a vector of its own, of length one."""
    vectors = np.stack([np.random.default_rng(abs(hash_of(text))).normal(size=8) for text in texts])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def hash_of(text):
    return sum(ord(character) * (number + 1) for number, character in enumerate(text))


@pytest.fixture(scope="module")
def documents():
    texts = [row["text"] for row in make_corpus(80)]
    long = [" ".join(texts[start : start + 4]) for start in range(60, 80, 4)]
    texts = [*texts[:60], *long]
    return [Document(f"file {number}.txt", text, f"Title {number}") for number, text in enumerate(texts)]


def answers(directory, queries, method, count=7):
    index = Index(directory)
    found = [index.search(embed([query])[0], query_words(query), count, method) for query in queries]
    return [[(hit.id, round(hit.score, 5), hit.passage) for hit in hits] for hits in found]


@pytest.fixture(scope="module")
def queries(documents):
    return [document.text[:40] for document in documents[:12]]


@pytest.fixture(scope="module")
def built(documents, tmp_path_factory):
    directory = tmp_path_factory.mktemp("index")
    counts = build(directory, documents, embed, ENCODER, WORDS)
    assert counts["documents"] == len(documents)
    return directory


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


def test_many_queries_are_answered_as_one_by_one_whatever_a_chunk_holds(built, queries, monkeypatch):
    index, vectors = Index(built), embed(queries)
    expected = [nearest(index.segments, vector[None], 9)[0] for vector in vectors]
    for values in (1, 300, 10**6):
        monkeypatch.setattr(first_stage, "CHUNK_VALUES", values)
        for found, wanted in zip(nearest(index.segments, vectors, 9), expected):
            assert [key for key, _ in found] == [key for key, _ in wanted]
            np.testing.assert_allclose([score for _, score in found], [score for _, score in wanted], atol=1e-6)


def test_documents_are_embedded_whole_too(built, documents):
    whole = {document.id: embed([document.text])[0] for document in documents}
    index = Index(built)
    for (segment, row), vector in zip(index.documents(), index.document_vectors()):
        text = segment.texts[row]
        if len(to_passages(text, WORDS)) == 1:
            assert vector.tolist() == embed([to_passages(text, WORDS)[0].text])[0].tolist()
        else:
            assert vector.tolist() == whole[segment.ids[row]].tolist()


@pytest.mark.parametrize("cut", [1, 3])
def test_words_are_weighed_as_bm25s_does(documents, queries, tmp_path, monkeypatch, cut):
    """In one segment or in several: what a word is worth is known of all."""
    monkeypatch.setattr(index_module, "SEGMENT_DOCUMENTS", -(-len(documents) // cut))
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


@pytest.mark.parametrize("method", ["hybrid", "dense", "bm25"])
def test_however_documents_came_in_the_answers_are_the_same(documents, queries, built, tmp_path, monkeypatch, method):
    """Built at once; added in parts, some deleted, some replaced; and with small segments merged."""
    monkeypatch.setattr(index_module, "MOST_SMALL_SEGMENTS", 3)
    strange = [Document(document.id, f"Old text {number}.") for number, document in enumerate(documents[:9])]
    build(tmp_path, [*strange, Document("no more", "It goes away.")], embed, ENCODER, WORDS)
    assert add(tmp_path, documents[:30], embed, ENCODER, replace=True)["replaced"] == 9
    assert add(tmp_path, documents[10:30], embed, ENCODER)["unchanged"] == 20
    assert delete(tmp_path, ["no more", documents[20].id]) == 2
    for start in range(30, len(documents), 10):
        add(tmp_path, documents[start : start + 10], embed, ENCODER)
    add(tmp_path, [documents[20]], embed, ENCODER)
    assert len(Index(tmp_path)) == len(documents)
    assert len(Index(tmp_path).segments) <= 4
    for ours, theirs in zip(answers(tmp_path, queries, method), answers(built, queries, method)):
        assert ours == theirs
    assert {folder.name for folder in (tmp_path / "segments").iterdir()} >= {
        entry["name"] for entry in Index(tmp_path).manifest["segments"]
    }


@pytest.mark.parametrize(("limit", "value"), [("SEGMENT_DOCUMENTS", 12), ("SEGMENT_CHARACTERS", 3000)])
def test_a_merge_makes_no_segment_larger_than_others(documents, queries, built, tmp_path, monkeypatch, limit, value):
    """What one addition takes is bounded, by documents and by characters: a merge of all would grow with the index."""
    monkeypatch.setattr(index_module, "MOST_SMALL_SEGMENTS", 3)
    monkeypatch.setattr(index_module, limit, value)
    build(tmp_path, documents[:5], embed, ENCODER, WORDS)
    for start in range(5, len(documents), 5):
        add(tmp_path, documents[start : start + 5], embed, ENCODER)
    index = Index(tmp_path)
    assert len(index) == len(documents)
    assert 4 <= len(index.segments) < len(documents) // 5
    size = {"SEGMENT_DOCUMENTS": len, "SEGMENT_CHARACTERS": lambda texts: sum(map(len, texts))}[limit]
    longest = max(size([document.text]) for document in documents)
    assert max(size(segment.texts) for segment in index.segments) < value + longest
    assert answers(tmp_path, queries, "bm25") == answers(built, queries, "bm25")


def test_what_is_open_can_be_read_whatever_writers_do(documents, queries, built, tmp_path, monkeypatch):
    """Also if they come between the manifest and the files that it names; what is gone for good is named."""
    build(tmp_path, documents, embed, ENCODER, WORDS)
    opened, wanted = Index(tmp_path), answers(built, queries, "hybrid")
    read, manifests = index_module.read_manifest, []

    def overtaken(directory):
        manifests.append(read(directory))
        if len(manifests) == 1:
            monkeypatch.setattr(index_module, "read_manifest", read)
            delete(directory, [document.id for document in documents[1:]])
            add(directory, documents[1:], embed, ENCODER)
            delete(directory, [documents[0].id])
            add(directory, documents[:1], embed, ENCODER)
        return manifests[-1]

    monkeypatch.setattr(index_module, "read_manifest", overtaken)
    assert answers(tmp_path, queries, "hybrid") == wanted
    first = opened.segments[0]
    assert not first.folder.exists()
    assert [hit.id for hit in opened.search(None, query_words(queries[0]), 1, "bm25")] == [documents[0].id]
    (Index(tmp_path).segments[0].folder / "texts.utf8").unlink()
    with pytest.raises(ValueError, match=r"texts\.utf8 is gone: build the index again"):
        Index(tmp_path)


def test_a_word_that_a_query_has_often_is_looked_up_once(built, queries, monkeypatch):
    words, asked = query_words(queries[0]), []
    find = Strings.find
    monkeypatch.setattr(Strings, "find", lambda *given: asked.append(given[1]) or find(*given))
    (scores,) = bm25(Index(built).segments, words * 1000)
    assert len(asked) == len(set(words))
    assert scores == pytest.approx(1000 * bm25(Index(built).segments, words)[0], rel=1e-5)


def test_millions_of_passages_are_found_in_cells(documents, queries, built, tmp_path, monkeypatch):
    """With so many cells read as the recall asks for, the answers are those of an exact search, also after changes."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "PASSAGES", 60)
    monkeypatch.setattr(inverted_file, "RECALL", 1.0)
    build(tmp_path, documents[:40], embed, ENCODER, WORDS)
    first = Index(tmp_path).manifest["approximate"]
    assert first["recall"] == 1.0
    add(tmp_path, documents[40:42], embed, ENCODER)  # few: not in a cell
    assert Index(tmp_path).manifest["approximate"] == first
    delete(tmp_path, [documents[0].id])
    assert documents[0].id not in {hit[0] for hits in answers(tmp_path, queries, "dense", 20) for hit in hits}
    add(tmp_path, [documents[0], *documents[42:]], embed, ENCODER)
    assert Index(tmp_path).manifest["approximate"]["file"] != first["file"]
    assert answers(tmp_path, queries, "dense") == answers(built, queries, "dense")
    delete(tmp_path, [])
    assert len(list(tmp_path.glob("approximate-*"))) == 1
    monkeypatch.setitem(sys.modules, "faiss", None)
    approximate._read.cache_clear()
    with pytest.raises(ValueError, match="pip install faiss-cpu"):
        answers(tmp_path, queries, "dense")


def test_bad_input_leaves_the_index_as_it_was(documents, queries, tmp_path):
    build(tmp_path, documents[:20], embed, ENCODER, WORDS)
    before = (tmp_path / "manifest.json").read_bytes()
    wanted = answers(tmp_path, queries, "hybrid")
    with pytest.raises(ValueError, match=r"'new' is given twice"):
        add(tmp_path, [Document("new", "A text."), Document("new", "Another.")], embed, ENCODER)
    with pytest.raises(ValueError, match=r"with another text: --replace"):
        add(tmp_path, [*documents[20:30], Document(documents[5].id, "Another text.")], embed, ENCODER)
    with pytest.raises(ValueError, match=r"1 ids are not in the index, 'nowhere'"):
        delete(tmp_path, [documents[0].id, "nowhere"])
    with pytest.raises(ValueError, match=r"built with test \(01234567\), not with other .*: other pooling"):
        add(tmp_path, documents[20:], embed, {"name": "other", "hash": "x", "pooling": "cls"})
    with pytest.raises(ValueError, match="There is an index"):
        build(tmp_path, documents, embed, ENCODER, WORDS)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert answers(tmp_path, queries, "hybrid") == wanted
    counts = add(tmp_path, [Document("e", " \n\x00"), Document("f", "A text.")], embed, ENCODER)
    assert counts == {"documents": 1, "passages": 1, "empty": 1, "replaced": 0, "unchanged": 0}
    with pytest.raises(ValueError, match="None of the documents has text"):
        build(tmp_path / "other", [Document("e", "")], embed, ENCODER, WORDS)
    for content, said in (("{", "cannot be read"), (json.dumps({"version": 99}), "version 99"), (None, "no index")):
        (tmp_path / "manifest.json").unlink()
        if content is not None:
            (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match=said):
            Index(tmp_path)
        (tmp_path / "manifest.json").touch()


def test_folders_of_others_are_left_alone(documents, tmp_path):
    """`segments` and `cache` are names that others use too; what they hold is not an unfinished run of ours."""
    theirs = [tmp_path / "project" / name / "file" for name in ("segments/own", "cache")]
    for file in theirs:
        file.parent.mkdir(parents=True)
        file.touch()
    for change in (
        lambda: build(tmp_path / "project", documents[:5], embed, ENCODER, WORDS),
        lambda: add(tmp_path / "project", documents[:5], embed, ENCODER),
        lambda: delete(tmp_path / "project", ["own"]),
    ):
        with pytest.raises(ValueError, match="no index"):
            change()
    assert all(file.exists() for file in theirs)
    with pytest.raises(ValueError, match="There is no index"):
        delete(tmp_path / "mistyped", ["own"])
    assert not (tmp_path / "mistyped").exists()


def test_a_full_disk_leaves_the_index_as_it_was(documents, queries, tmp_path, monkeypatch):
    build(tmp_path, documents[:20], embed, ENCODER, WORDS)
    wanted = answers(tmp_path, queries, "hybrid")
    saved, save = [], np.save

    def full(file, values, **more):
        saved.append(file)
        if len(saved) == 4:
            raise OSError(28, "No space left on device")
        save(file, values, **more)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        add(tmp_path, documents[20:], embed, ENCODER)
    monkeypatch.setattr(np, "save", save)
    assert answers(tmp_path, queries, "hybrid") == wanted
    add(tmp_path, documents[20:], embed, ENCODER)
    assert len(list((tmp_path / "segments").iterdir())) == 2  # what was left unfinished is gone


KILLED = """
    import sys
    from pathlib import Path
    from tests.index.test_index import ENCODER, WORDS, embed
    from docsplit.data.own_documents import Document
    from docsplit.index.index import add, delete

    directory, number = Path(sys.argv[1]), 0
    while True:
        added = [Document(f"more {number} {one}", f"A text number {number} about {one}.") for one in range(5)]
        add(directory, added, embed, ENCODER)
        delete(directory, [document.id for document in added])
        number += 1
        if number == 2:
            print("ready", flush=True)
"""


def test_there_is_one_writer_at_a_time(documents, tmp_path):
    build(tmp_path, documents[:5], embed, ENCODER, WORDS)
    with writing(tmp_path), pytest.raises(ValueError, match="Another process changes the index"):
        delete(tmp_path, [documents[0].id])
    assert len(Index(tmp_path)) == 5


def test_killed_at_any_moment_it_is_the_old_or_the_new_index(documents, queries, tmp_path):
    build(tmp_path / "index", documents[:20], embed, ENCODER, WORDS)
    wanted = answers(tmp_path / "index", queries, "dense")
    script = tmp_path / "again.py"
    script.write_text(textwrap.dedent(KILLED))
    for wait in (0.0, 0.013, 0.031):
        process = Script(script, tmp_path / "index")
        while "ready" not in process.stdout:
            assert process.returncode is None, process.stderr
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        process.wait()
        index = Index(tmp_path / "index")
        assert len(index) in (20, 25)
        ids = [segment.ids[row] for segment, row in index.documents()]
        delete(tmp_path / "index", [name for name in ids if name.startswith("more")])
        assert answers(tmp_path / "index", queries, "dense") == wanted
