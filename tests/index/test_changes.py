"""Changes of an index: the answers do not depend on how documents came in, and a failure leaves it as it was."""

import errno
import itertools
import multiprocessing
import os
import shutil
import time

import pytest

from docsplit.data.readers.base import Document, TableColumns
from docsplit.index import changes
from docsplit.index import index as index_module
from docsplit.index.changes import add, build, delete, writing
from docsplit.index.index import IndexReader, read_manifest
from docsplit.index.results import Added, Checked
from docsplit.runtime import files
from docsplit.runtime.files import Damaged, read_sealed, write_sealed
from tests.disk import record_disk
from tests.index.conftest import ENCODER, WORDS, Encoder, answers, embed
from tests.index.mutations import contents


@pytest.mark.parametrize("method", ["hybrid", "dense", "bm25"])
def test_however_documents_came_in_the_answers_are_the_same(documents, queries, built, tmp_path, monkeypatch, method):
    """Built at once; added in parts, some deleted, some replaced; and with small segments merged."""
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 3)
    strange = [Document(document.id, f"Old text {number}.") for number, document in enumerate(documents[:9])]
    build(tmp_path, [*strange, Document("no more", "It goes away.")], ENCODER, WORDS)
    assert add(tmp_path, documents[:30], ENCODER, replace=True).replaced == 9
    assert add(tmp_path, documents[10:30], ENCODER).unchanged == 20
    assert delete(tmp_path, ["no more", documents[20].id]) == 2
    for start in range(30, len(documents), 10):
        add(tmp_path, documents[start : start + 10], ENCODER, source=("more", TableColumns()))
    add(tmp_path, [documents[20]], ENCODER)
    index = IndexReader(tmp_path)
    assert len(index) == len(documents)
    assert len(index.segments) <= 4
    assert answers(tmp_path, queries, method) == answers(built, queries, method)
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "lock", index.manifest.file}
    assert (tmp_path / index.manifest.file).stat().st_size == index.manifest.length
    sources = {segment.ids[row]: [*index.manifest.sources][segment.sources[row]] for segment, row in index.documents()}
    assert sources == {document.id: "more" if number >= 30 else "" for number, document in enumerate(documents)}
    vectors = dict(zip(sources, index.document_vectors().tolist()))
    wanted = IndexReader(built)
    assert vectors == {
        segment.ids[row]: vector.tolist()
        for (segment, row), vector in zip(wanted.documents(), wanted.document_vectors())
    }


@pytest.mark.parametrize(("limit", "value"), [("SEGMENT_DOCUMENTS", 12), ("SEGMENT_CHARACTERS", 3000)])
def test_a_merge_makes_no_segment_larger_than_others(documents, queries, built, tmp_path, monkeypatch, limit, value):
    """A merge reads a bounded number of documents and characters; what fills a segment is copied as it is."""
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 3)
    monkeypatch.setattr(changes, limit, value)
    monkeypatch.setattr(index_module, "SEGMENT_DOCUMENTS", 12 if limit == "SEGMENT_DOCUMENTS" else 50_000)
    build(tmp_path, documents[:5], ENCODER, WORDS)
    for start in range(5, len(documents), 5):
        add(tmp_path, documents[start : start + 5], ENCODER)
    index = IndexReader(tmp_path)
    assert len(index) == len(documents)
    assert 4 <= len(index.segments) < len(documents) // 5
    size = {"SEGMENT_DOCUMENTS": len, "SEGMENT_CHARACTERS": lambda texts: sum(map(len, texts))}[limit]
    longest = max(size([document.text]) for document in documents)
    assert max(size(segment.texts) for segment in index.segments) < value + longest
    assert answers(tmp_path, queries, "bm25") == answers(built, queries, "bm25")
    assert Checked.of(tmp_path).faults == []


def test_what_is_of_no_use_leaves_the_file(documents, tmp_path):
    build(tmp_path, documents[:40], ENCODER, WORDS)
    add(tmp_path, documents[40:60], ENCODER)
    before = IndexReader(tmp_path).manifest
    delete(tmp_path, [document.id for document in documents[:39]])
    assert IndexReader(tmp_path).manifest.length == before.length
    delete(tmp_path, [documents[39].id])  # the segment has no other
    after = IndexReader(tmp_path).manifest
    assert after.length == before.segments[1].size
    assert [len(segment.ids) for segment in IndexReader(tmp_path).segments] == [20]
    assert not (tmp_path / before.file).exists()


def test_ids_that_are_no_utf8_come_back_and_hide_no_other(tmp_path):
    """As names of files are on other systems."""
    ids = ["a", "b\udcff", "b\udcfe", "c", "ä", "\ud800", "日本", "b?"]
    build(
        tmp_path, [Document(name, f"A text of {number}. \udcff", "\udcff") for number, name in enumerate(ids)], ENCODER
    )
    index = IndexReader(tmp_path)
    for name in ids:
        segment, row = index.find(name)
        assert segment.ids[row] == name
        assert segment.titles[row] == " "
    assert index.find("b") is index.find("zz") is None
    assert add(tmp_path, [Document(ids[1], "A text of 1. \udcff", "\udcff")], ENCODER).unchanged == 1
    assert add(tmp_path, [Document(ids[1], "A text of 1. \udcff", "a")], ENCODER, replace=True).replaced == 1
    assert delete(tmp_path, ids[1:4]) == 3
    assert [segment.ids[row] for segment, row in IndexReader(tmp_path).documents()] == ["a", *ids[4:]]


OTHER_ENCODER = Encoder(embed)
OTHER_ENCODER.description = {"name": "other", "hash": "x", "pooling": "cls", "dimension": 8}
REFUSED = [
    (
        lambda at, _: add(at, [Document("new", "A text."), Document("new", "Another.")], ENCODER),
        "'new' is given twice",
    ),
    (
        lambda at, given: add(at, [*given[20:30], Document(given[5].id, "Another text.")], ENCODER),
        "with another text: --replace",
    ),
    (lambda at, given: delete(at, [given[0].id, "nowhere"]), r"1 of the ids are not in the index, 'nowhere'"),
    (lambda at, given: add(at, given, OTHER_ENCODER), r"built with test \(01234567\), not with .*: other pooling"),
    (lambda at, given: build(at, given, ENCODER, WORDS), "There is an index"),
    (lambda at, _: delete(at, [1]), r"The id 1 is a int: ids are texts, such as '1'\.$"),
    (lambda at, _: build(at.with_name("other"), [Document("e", "")], ENCODER), "None of the documents has text"),
]


def test_bad_input_leaves_the_index_as_it_was(documents, queries, tmp_path):
    directory = tmp_path / "index"
    build(directory, documents[:20], ENCODER, WORDS)
    before, wanted = contents(directory), answers(directory, queries, "hybrid")
    for call, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            call(directory, documents)
    assert contents(directory) == before
    assert answers(directory, queries, "hybrid") == wanted
    counts = add(directory, [Document("e", " \n\x00"), Document("f", "A text.")], ENCODER)
    assert counts == Added(documents=1, passages=1, empty=1, replaced=0, unchanged=0)


@pytest.mark.parametrize("marks", [[], ["lock"], ["data-01234567.bin", "lock"]])
def test_folders_of_others_are_left_alone(documents, tmp_path, marks):
    """`cache` and `lock` are names that others use too: a folder is an index by its manifest alone."""
    for name in ("cache/embeddings-1/own", "notes.txt", *marks):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(name)
    before = contents(tmp_path / "project")
    with pytest.raises(ValueError, match=r"is there already: name a new folder for the index"):
        build(tmp_path / "project", documents[:5], ENCODER, WORDS)
    for change in (add, lambda directory, *_: delete(directory, ["own"])):
        with pytest.raises(ValueError, match="There is no index"):
            change(tmp_path / "project", documents[:5], ENCODER)
    assert contents(tmp_path / "project") == before
    with pytest.raises(ValueError, match="There is no index"):
        delete(tmp_path / "mistyped", ["own"])
    assert not (tmp_path / "mistyped").exists()


def test_only_what_changes_write_is_removed(documents, tmp_path):
    """Whatever else a user puts into the folder of an index stays."""
    build(tmp_path, documents[:5], ENCODER, WORDS)
    theirs = ["cache/notes.txt", "approximate-a.faiss", "data-0123456.bin", "data-01234567.bin.txt", "lock.txt"]
    theirs += ["data-aaaaaaaa.bin/a"]  # a folder for a file
    ours = ["data-01234567.bin", "approximate-01234567.faiss", ".manifest.json.12.partial", "cache/embeddings-0a/a"]
    for name in theirs + ours:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "data-11111111.bin").symlink_to(tmp_path / "lock.txt")
    add(tmp_path, documents[5:7], ENCODER)
    assert {name for name in theirs if (tmp_path / name).exists()} == set(theirs)
    assert not [name for name in ours if (tmp_path / name).exists()]
    assert (tmp_path / "data-11111111.bin").is_symlink()
    assert len(IndexReader(tmp_path)) == 7


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"segments": [', '"segmemts": ['),
        ('"length": ', '"length": 1'),
        ('"is_built": true', '"is_built": false'),
        ('"checksum"', '"checksun"'),
        (None, ""),
        (None, "\0" * 400),
        (None, '{"version": 4, "encoder": {}, "passage_words": 9, "approximate": null, "segments": []}'),
    ],
)
def test_a_damaged_manifest_loses_nothing(documents, tmp_path, old, new):
    """No change cuts off what the manifest does not name, before the manifest is known to be sound."""
    build(tmp_path, documents[:5], ENCODER, WORDS)
    add(tmp_path, documents[5:10], ENCODER)
    path = tmp_path / "manifest.json"
    path.write_text(new if old is None else path.read_text().replace(old, new, 1))
    before = contents(tmp_path)
    for change in (
        lambda: add(tmp_path, documents[10:12], ENCODER),
        lambda: delete(tmp_path, [documents[0].id]),
        lambda: build(tmp_path, documents[:5], ENCODER, WORDS),
        lambda: IndexReader(tmp_path),
    ):
        with pytest.raises(
            Damaged, match=r"manifest\.json .*Restore the index from a copy, or build it again"
        ) as error:
            change()
        assert "\n" not in str(error.value)
    assert contents(tmp_path) == before


USES = (IndexReader, Checked.of, lambda directory: add(directory, [Document("f", "A text.")], ENCODER))


def test_an_index_of_words_that_were_cut_in_another_way_is_refused(documents, tmp_path):
    build(tmp_path, documents[:5], ENCODER, WORDS)
    path = tmp_path / "manifest.json"
    content = read_sealed(path)
    del content["cut"]
    write_sealed(path, content)
    before = contents(tmp_path)
    for use in USES:
        with pytest.raises(ValueError, match=r"cut words in another way: build the index again, in a new folder\.$"):
            use(tmp_path)
    assert contents(tmp_path) == before


def test_a_build_that_was_stopped_goes_on(documents, queries, built, tmp_path, monkeypatch):
    directory = tmp_path / "index"

    def stopped(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(changes.Change, "commit", stopped)
        with pytest.raises(KeyboardInterrupt):
            build(directory, documents, ENCODER, WORDS)
    for use in USES:
        with pytest.raises(ValueError, match=r"is not built to its end: run `python search.py build` again"):
            use(directory)
    build(directory, documents, ENCODER, WORDS)
    assert answers(directory, queries, "hybrid") == answers(built, queries, "hybrid")
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "lock").touch()  # killed before its manifest
    (directory / ".manifest.json.9.partial").touch()
    build(directory, documents[:5], ENCODER, WORDS)
    assert {path.name for path in directory.iterdir()} == {
        "lock",
        "manifest.json",
        IndexReader(directory).manifest.file,
    }


def test_damage_is_never_copied_and_sealed(documents, tmp_path, monkeypatch):
    """By a merge, in an index that is too large to be read whenever it is opened."""
    build(tmp_path, documents[:30], ENCODER, WORDS)
    data = tmp_path / IndexReader(tmp_path).manifest.file
    content = bytearray(data.read_bytes())
    content[-70] ^= 1
    data.write_bytes(content)
    monkeypatch.setattr("docsplit.index.index.READ_WHEN_OPENED", 0)
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 0)
    before = contents(tmp_path)
    with pytest.raises(Damaged, match=r"data-\w+\.bin has changed since it was written"):
        add(tmp_path, documents[30:], ENCODER)
    assert contents(tmp_path) == before
    assert len(IndexReader(tmp_path)) == 30
    assert len(Checked.of(tmp_path).faults) == 1


@pytest.mark.parametrize("change", ["build", "add", "delete", "merge"])
def test_files_are_on_the_disk_before_the_manifest_names_them(documents, tmp_path, monkeypatch, change):
    """The data file, then the folder with its name, then the manifest, then the folder with its name."""
    directory = tmp_path / "index"
    if change != "build":
        build(directory, documents[:5], ENCODER, WORDS)
    events = record_disk(monkeypatch)
    if change == "build":
        build(directory, documents[:5], ENCODER, WORDS)
        assert events[0][:2] == ("flush", tmp_path)  # with the name of the folder
    elif change == "delete":
        delete(directory, [documents[0].id])
    else:
        monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 16 if change == "add" else 0)
        add(directory, documents[5:7], ENCODER)
    manifest = IndexReader(directory).manifest
    steps = [event[:2] for event in events]
    last = max(number for number, step in enumerate(steps) if step == ("name", directory / "manifest.json"))
    assert steps[last + 1] == ("flush", directory)
    data = events.index(("flush", directory / manifest.file, manifest.length))
    assert ("flush", directory) in steps[data:last]


@pytest.mark.parametrize("merges", [False, True])
def test_a_full_disk_leaves_the_index_as_it_was_and_nothing_more(documents, tmp_path, monkeypatch, merges):
    build(tmp_path, documents[:20], ENCODER, WORDS)
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 0 if merges else 16)
    before, append, appended = contents(tmp_path), changes.append_segment, []

    def full(file, arrays):
        appended.append(append(file, arrays))
        if len(appended) == 1 + merges:
            raise OSError(errno.ENOSPC, "No space left on device")
        return appended[-1]

    def embedded(texts):
        (tmp_path / "cache" / "embeddings-0a").mkdir(parents=True)
        return embed(texts)

    with monkeypatch.context() as patch:
        patch.setattr(changes, "append_segment", full)
        with pytest.raises(OSError, match="No space left"):
            add(tmp_path, documents[20:], Encoder(embedded))
    assert (len(appended), contents(tmp_path)) == (1 + merges, before)
    assert not (tmp_path / "cache").exists()
    add(tmp_path, documents[20:], ENCODER)
    assert len(IndexReader(tmp_path)) == len(documents)


def test_what_a_killed_change_wrote_is_cut_off(documents, queries, tmp_path):
    build(tmp_path, documents[:20], ENCODER, WORDS)
    data, wanted = tmp_path / IndexReader(tmp_path).manifest.file, answers(tmp_path, queries, "hybrid")
    sound = data.read_bytes()
    data.write_bytes(sound + bytes(10**6))
    assert answers(tmp_path, queries, "hybrid") == wanted
    assert Checked.of(tmp_path).faults == []
    assert delete(tmp_path, []) == 0
    assert data.read_bytes() == sound
    with writing(tmp_path), pytest.raises(ValueError, match="Another process changes the index"):
        delete(tmp_path, [documents[0].id])
    assert answers(tmp_path, queries, "hybrid") == wanted


def change_again_and_again(directory, ready):
    """Add five documents and delete them, until somebody ends this process."""
    for number in itertools.count():
        added = [Document(f"more {number} {one}", f"A text number {number} about {one}.") for one in range(5)]
        add(directory, added, ENCODER)
        delete(directory, [document.id for document in added])
        if number == 1:
            ready.set()


@pytest.mark.skipif(os.name == "nt", reason="no process is forked there")
def test_killed_at_any_moment_it_is_the_old_or_the_new_index(documents, queries, tmp_path):
    build(tmp_path / "index", documents[:20], ENCODER, WORDS)
    wanted, forked = answers(tmp_path / "index", queries, "dense"), multiprocessing.get_context("fork")
    for wait in (0.0, 0.007, 0.013, 0.031):
        ready = forked.Event()
        process = forked.Process(target=change_again_and_again, args=(tmp_path / "index", ready))
        process.start()
        assert ready.wait(120)
        time.sleep(wait)
        process.kill()
        process.join()
        index = IndexReader(tmp_path / "index")
        assert len(index) in (20, 25)
        assert Checked.of(tmp_path / "index").faults == []
        ids = [segment.ids[row] for segment, row in index.documents()]
        delete(tmp_path / "index", [name for name in ids if name.startswith("more")])
        assert answers(tmp_path / "index", queries, "dense") == wanted


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "of the disk")], ids=["Ctrl-C", "disk"])
@pytest.mark.parametrize("merges", [False, True])
def test_a_change_that_fails_when_the_manifest_is_replaced_keeps_what_that_names(
    documents, tmp_path, monkeypatch, error, merges
):
    """The new manifest has its name, and the folder is not flushed yet."""
    build(tmp_path, documents[:20], ENCODER, WORDS)
    for start in range(20, 40) if merges else ():
        add(tmp_path, documents[start : start + 1], ENCODER)
    before, flush = read_manifest(tmp_path), files.flush

    def fail_once_replaced(path):
        flush(path)
        if path == tmp_path and read_manifest(tmp_path) != before:
            raise error

    monkeypatch.setattr(files, "flush", fail_once_replaced)
    with pytest.raises(type(error)):
        add(tmp_path, documents[60:], ENCODER)
    monkeypatch.setattr(files, "flush", flush)
    assert not Checked.of(tmp_path).faults
    assert IndexReader(tmp_path).find(documents[60].id) is not None
    assert add(tmp_path, documents[60:], ENCODER).unchanged == len(documents[60:])


def test_a_title_that_no_text_has_is_searched_and_an_unchanged_document_stays_one(tmp_path):
    """As of the rows of a table; a title of the text, also a long one that is shown shortened, is there once."""
    rows = [
        Document("a", "Nothing of it is here.", "Volcanoes"),
        Document("b", "# A lighthouse\nin a gale", "A lighthouse in a …"),
        Document("c", " ", "A title alone"),
        Document("d", "Another ship", "An"),
        Document("e", "old  Ships", "Old\nships"),
    ]
    assert build(tmp_path, rows, ENCODER, WORDS).empty == 1
    index = IndexReader(tmp_path)
    assert [segment.texts[row] for segment, row in index.documents()] == [
        "Volcanoes\n\nNothing of it is here.", rows[1].text, "Another ship", "old  Ships",
    ]  # fmt: skip
    assert [hit.id for hit in index.search(None, "volcano", 5, "bm25")] == ["a"]
    assert add(tmp_path, rows, ENCODER).unchanged == 4
