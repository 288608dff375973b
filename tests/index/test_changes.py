"""Changes of an index: the answers do not depend on how documents came in, and a failure leaves it as it was."""

import dataclasses
import itertools
import json
import logging
import multiprocessing
import os
import shutil
import time

import numpy as np
import pytest

from docsplit.data.readers.base import Document
from docsplit.index import changes
from docsplit.index.changes import add, build, delete, writing
from docsplit.index.check import check
from docsplit.index.index import Index
from docsplit.index.results import Added
from docsplit.runtime.files import Damaged
from tests.index.conftest import ENCODER, WORDS, answers
from tests.index.mutations import contents

OTHER = {"name": "other", "hash": "x", "pooling": "cls", "dimension": 8}


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
        add(tmp_path, documents[start : start + 10], ENCODER)
    add(tmp_path, [documents[20]], ENCODER)
    assert len(Index(tmp_path)) == len(documents)
    assert len(Index(tmp_path).segments) <= 4
    for ours, theirs in zip(answers(tmp_path, queries, method), answers(built, queries, method)):
        assert ours == theirs
    assert {folder.name for folder in (tmp_path / "segments").iterdir()} >= {
        entry.name for entry in Index(tmp_path).manifest.segments
    }


@pytest.mark.parametrize(("limit", "value"), [("SEGMENT_DOCUMENTS", 12), ("SEGMENT_CHARACTERS", 3000)])
def test_a_merge_makes_no_segment_larger_than_others(documents, queries, built, tmp_path, monkeypatch, limit, value):
    """An addition reads a bounded number of documents and characters: a merge of all would grow with the index."""
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 3)
    monkeypatch.setattr(changes, limit, value)
    build(tmp_path, documents[:5], ENCODER, WORDS)
    for start in range(5, len(documents), 5):
        add(tmp_path, documents[start : start + 5], ENCODER)
    index = Index(tmp_path)
    assert len(index) == len(documents)
    assert 4 <= len(index.segments) < len(documents) // 5
    size = {"SEGMENT_DOCUMENTS": len, "SEGMENT_CHARACTERS": lambda texts: sum(map(len, texts))}[limit]
    longest = max(size([document.text]) for document in documents)
    assert max(size(segment.texts) for segment in index.segments) < value + longest
    assert answers(tmp_path, queries, "bm25") == answers(built, queries, "bm25")


def test_bad_input_leaves_the_index_as_it_was(documents, queries, tmp_path):
    build(tmp_path, documents[:20], ENCODER, WORDS)
    before = (tmp_path / "manifest.json").read_bytes()
    wanted = answers(tmp_path, queries, "hybrid")
    with pytest.raises(ValueError, match=r"'new' is given twice"):
        add(tmp_path, [Document("new", "A text."), Document("new", "Another.")], ENCODER)
    with pytest.raises(ValueError, match=r"with another text: --replace"):
        add(tmp_path, [*documents[20:30], Document(documents[5].id, "Another text.")], ENCODER)
    with pytest.raises(ValueError, match=r"1 of the ids are not in the index, 'nowhere'"):
        delete(tmp_path, [documents[0].id, "nowhere"])
    with pytest.raises(ValueError, match=r"built with test \(01234567\), not with other .*: other pooling"):
        add(tmp_path, documents[20:], dataclasses.replace(ENCODER, description=OTHER))
    with pytest.raises(ValueError, match="There is an index"):
        build(tmp_path, documents, ENCODER, WORDS)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert answers(tmp_path, queries, "hybrid") == wanted
    counts = add(tmp_path, [Document("e", " \n\x00"), Document("f", "A text.")], ENCODER)
    assert counts == Added(documents=1, passages=1, empty=1, replaced=0, unchanged=0)
    with pytest.raises(ValueError, match="None of the documents has text"):
        build(tmp_path / "other", [Document("e", "")], ENCODER, WORDS)


@pytest.mark.parametrize("marks", [[], ["lock"], ["segments/" + "0" * 32 + "/ids.utf8", "lock"]])
def test_folders_of_others_are_left_alone(documents, tmp_path, marks):
    """`segments`, `cache` and `lock` are names that others use too: a folder is an index by its manifest alone."""
    for name in ("segments/precious/thesis.txt", "cache/embeddings-1/own", "notes.txt", *marks):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(name)
    before = contents(tmp_path / "project")
    with pytest.raises(ValueError, match=r"has no index but other files, .*: name a new folder for the index"):
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
    (segment,) = (tmp_path / "segments").iterdir()
    theirs = ["segments/precious/thesis.txt", "cache/notes.txt", "words-backup/a", "words-1/a", "approximate-a.faiss"]
    theirs += [f"segments/{segment.name}/deleted-pages.npy", "segments/0123/a", "deleted-01234567.npy", "lock.txt"]
    theirs += ["words-aaaaaaaa", "segments/" + "a" * 32, "approximate-aaaaaaaa.faiss/a"]  # files for folders ...
    ours = ["segments/" + "0" * 32 + "/ids.utf8", "words-01234567/a", "approximate-01234567.faiss"]
    ours += [f"segments/{segment.name}/deleted-01234567.npy", ".manifest.json.12.partial", "cache/embeddings-0a/a"]
    ours += [f"segments/{segment.name}/.deleted-01234567.npy.7.partial"]
    for name in theirs + ours:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "segments" / ("1" * 32)).symlink_to(tmp_path / "segments" / "precious")
    add(tmp_path, documents[5:7], ENCODER)
    assert {name for name in theirs if (tmp_path / name).exists()} == set(theirs)
    assert not [name for name in ours if (tmp_path / name).exists()]
    assert (tmp_path / "segments" / ("1" * 32)).is_symlink()
    assert len(Index(tmp_path)) == 7


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"segments": [', '"segmemts": ['),
        ('"name": "', '"name": "0'),
        ('"documents": 5', '"documents": 6'),
        ('"version": 4', '"version": 3'),
        ('"is_built": true', '"is_built": false'),
        ('"checksum"', '"checksun"'),
        (None, ""),
        (None, "\0" * 400),
        (None, '{"version": 4, "encoder": {}, "passage_words": 9, "approximate": null, "segments": []}'),
        (None, "[" * 100_000),
    ],
)
def test_a_damaged_manifest_loses_nothing(documents, tmp_path, old, new):
    """No change removes a segment that the manifest does not name, before the manifest is known to be sound."""
    build(tmp_path, documents[:5], ENCODER, WORDS)
    add(tmp_path, documents[5:10], ENCODER)
    path = tmp_path / "manifest.json"
    path.write_text(new if old is None else path.read_text().replace(old, new, 1))
    before = contents(tmp_path)
    for change in (
        lambda: add(tmp_path, documents[10:12], ENCODER),
        lambda: delete(tmp_path, [documents[0].id]),
        lambda: build(tmp_path, documents[:5], ENCODER, WORDS),
        lambda: Index(tmp_path),
    ):
        with pytest.raises(
            Damaged, match=r"manifest\.json .*Restore the index from a copy, or build it again"
        ) as error:
            change()
        assert "\n" not in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["titles.utf8", "files.json", "documents.npy"])
def test_a_lost_file_loses_no_other(documents, tmp_path, name):
    """Every file is looked at before any is removed."""
    build(tmp_path, documents[:5], ENCODER, WORDS)
    (segment,) = (tmp_path / "segments").iterdir()
    (segment / name).unlink()
    (tmp_path / "segments" / ("0" * 32)).mkdir()
    (tmp_path / "segments" / ("0" * 32) / "ids.utf8").touch()
    before = contents(tmp_path)
    for change in (lambda: add(tmp_path, documents[5:7], ENCODER), lambda: delete(tmp_path, [documents[0].id])):
        with pytest.raises(Damaged, match=rf"{name} is missing\. Restore"):
            change()
    assert contents(tmp_path) == before


def test_an_index_of_version_3_is_read_and_never_changed(documents, queries, tmp_path, caplog):
    """It has no checksums; 0.1.0 wrote such."""
    build(tmp_path, documents[:5], ENCODER, WORDS)
    wanted = answers(tmp_path, queries, "hybrid")
    content = json.loads((tmp_path / "manifest.json").read_text()) | {"version": 3}
    for name in ("checksum", "files", "is_built"):
        del content[name]
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    for file in tmp_path.glob("segments/*/files.json"):
        file.unlink()
    (tmp_path / "segments" / ("0" * 32)).mkdir()
    before = contents(tmp_path)
    assert answers(tmp_path, queries, "hybrid") == wanted
    assert "is of version 3, without checksums: damage goes unnoticed" in caplog.text
    for change in (lambda: add(tmp_path, documents[5:7], ENCODER), lambda: delete(tmp_path, [documents[0].id])):
        with pytest.raises(ValueError, match="an earlier version, which is only read: build it again"):
            change()
    assert contents(tmp_path) == before | {"lock": b""}
    assert (tmp_path / "segments" / ("0" * 32)).exists()


def test_a_build_that_was_stopped_goes_on(documents, queries, built, tmp_path, monkeypatch):
    directory = tmp_path / "index"

    def stopped(*arguments, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(changes, "_commit", stopped)
        with pytest.raises(KeyboardInterrupt):
            build(directory, documents, ENCODER, WORDS)
    assert len(list((directory / "segments").iterdir())) == 1
    for use in (Index, lambda directory: add(directory, documents[:1], ENCODER)):
        with pytest.raises(ValueError, match=r"is not built to its end: run `python search.py build` again"):
            use(directory)
    build(directory, documents, ENCODER, WORDS)
    assert len(list((directory / "segments").iterdir())) == 1
    assert answers(directory, queries, "hybrid") == answers(built, queries, "hybrid")
    shutil.rmtree(tmp_path / "index")
    directory.mkdir()
    (directory / "lock").touch()  # killed before its manifest
    (directory / ".manifest.json.9.partial").touch()
    build(directory, documents[:5], ENCODER, WORDS)
    assert {path.name for path in directory.iterdir()} == {"lock", "manifest.json", "segments"}


@pytest.mark.parametrize("most_small", [0, 16])
def test_damage_is_never_copied_and_sealed(documents, worded_encoder, tmp_path, monkeypatch, most_small):
    """In an index that is too large to be read whenever it is opened: by a merge, or by words that are fitted anew."""
    build(tmp_path, documents[:30], worded_encoder, WORDS)
    (segment,) = (tmp_path / "segments").iterdir()
    content = bytearray((segment / "plain_documents.npy").read_bytes())
    content[-1] ^= 1
    (segment / "plain_documents.npy").write_bytes(content)
    monkeypatch.setattr("docsplit.index.index.READ_WHEN_OPENED", 0)
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", most_small)
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(Damaged, match=r"plain_documents\.npy has changed since it was written"):
        add(tmp_path, documents[30:], worded_encoder, refit="never" if most_small == 0 else "always")
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert len(Index(tmp_path)) == 30


@pytest.mark.parametrize("change", ["build", "add", "delete"])
def test_files_are_on_the_disk_before_the_manifest_names_them(documents, tmp_path, monkeypatch, change):
    """Files, then the folders with their names, then the manifest, then the folder with its name."""
    calls, replace, sync = [], os.replace, os.fsync

    def synced(number):
        calls.append(("sync", os.readlink(f"/proc/self/fd/{number}")))
        sync(number)

    def replaced(old, new):
        calls.append(("replace", str(new)))
        replace(old, new)

    directory = tmp_path / "index"
    if change != "build":
        build(directory, documents[:5], ENCODER, WORDS)
    old = set(directory.rglob("*"))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    if change == "build":
        build(directory, documents[:5], ENCODER, WORDS)
    elif change == "add":
        add(directory, documents[5:7], ENCODER)
    else:
        delete(directory, [documents[0].id])
    *before, last = (
        number for number, call in enumerate(calls) if call == ("replace", str(directory / "manifest.json"))
    )
    assert len(before) == (change == "build")
    assert calls[last + 1] == ("sync", str(directory))
    assert change != "build" or calls[0] == ("sync", str(tmp_path))  # with the name of the folder
    done = {path for kind, path in calls[:last] if kind == "sync"}
    renamed = {path: number for number, (kind, path) in enumerate(calls) if kind == "replace"}
    new = set(directory.rglob("*")) - old - {directory / "lock", directory / "manifest.json"}
    assert len([path for path in new if path.is_file()]) == {"build": 17, "add": 17, "delete": 1}[change]
    for path in new:
        if str(path) in renamed:  # synced under another name, and its folder after it
            assert calls[renamed[str(path)] - 1][1].endswith(".partial")
        else:
            assert str(path) in done
        assert ("sync", str(path.parent)) in calls[renamed.get(str(path), 0) : last]


def test_a_full_disk_leaves_the_index_as_it_was(documents, queries, tmp_path, monkeypatch):
    build(tmp_path, documents[:20], ENCODER, WORDS)
    wanted = answers(tmp_path, queries, "hybrid")
    saved, save = [], np.save

    def full(file, values, **more):
        saved.append(file)
        if len(saved) == 4:
            raise OSError(28, "No space left on device")
        save(file, values, **more)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        add(tmp_path, documents[20:], ENCODER)
    monkeypatch.setattr(np, "save", save)
    assert answers(tmp_path, queries, "hybrid") == wanted
    add(tmp_path, documents[20:], ENCODER)
    assert len(list((tmp_path / "segments").iterdir())) == 2  # what was left unfinished is gone


def test_there_is_one_writer_at_a_time(documents, tmp_path):
    build(tmp_path, documents[:5], ENCODER, WORDS)
    with writing(tmp_path), pytest.raises(ValueError, match="Another process changes the index"):
        delete(tmp_path, [documents[0].id])
    assert len(Index(tmp_path)) == 5


def test_what_a_reader_holds_is_removed_later(documents, tmp_path, monkeypatch, caplog):
    """As on Windows, where nobody removes files that are mapped."""

    def refuse(folder):
        raise PermissionError(13, "in use", str(folder))

    build(tmp_path, documents[:5], ENCODER, WORDS)
    unfinished = "0" * 32
    (tmp_path / "segments" / unfinished).mkdir()
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", refuse)
        with writing(tmp_path):
            pass
    assert f"{unfinished}, which is no longer used, cannot be removed yet" in caplog.text
    with writing(tmp_path):
        pass
    assert [entry.name for entry in (tmp_path / "segments").iterdir()] == [
        entry.name for entry in Index(tmp_path).manifest.segments
    ]


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
        index = Index(tmp_path / "index")
        assert len(index) in (20, 25)
        assert check(tmp_path / "index").faults == []
        ids = [segment.ids[row] for segment, row in index.documents()]
        delete(tmp_path / "index", [name for name in ids if name.startswith("more")])
        assert answers(tmp_path / "index", queries, "dense") == wanted
