"""Changes of an index: the answers do not depend on how documents came in, and a failure leaves it as it was."""

import dataclasses
import json
import logging
import shutil
import textwrap
import time

import numpy as np
import pytest

from docsplit.data.readers.base import Document
from docsplit.index import changes
from docsplit.index.changes import add, build, delete, writing
from docsplit.index.index import Index
from docsplit.index.results import Added
from tests.index.conftest import ENCODER, WORDS, answers
from tests.processes import Script

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
    for content, message in (("{", "cannot be read"), (json.dumps({"version": 99}), "version 99"), (None, "no index")):
        (tmp_path / "manifest.json").unlink()
        if content is not None:
            (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            Index(tmp_path)
        (tmp_path / "manifest.json").touch()


def test_folders_of_others_are_left_alone(documents, tmp_path):
    """`segments` and `cache` are names that others use too; what they hold is not an unfinished run of ours."""
    theirs = [tmp_path / "project" / name / "file" for name in ("segments/own", "cache")]
    for file in theirs:
        file.parent.mkdir(parents=True)
        file.touch()
    for change in (
        lambda: build(tmp_path / "project", documents[:5], ENCODER, WORDS),
        lambda: add(tmp_path / "project", documents[:5], ENCODER),
        lambda: delete(tmp_path / "project", ["own"]),
    ):
        with pytest.raises(ValueError, match="no index"):
            change()
    assert all(file.exists() for file in theirs)
    with pytest.raises(ValueError, match="There is no index"):
        delete(tmp_path / "mistyped", ["own"])
    assert not (tmp_path / "mistyped").exists()


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


KILLED = """
    import sys
    from pathlib import Path
    from tests.index.conftest import ENCODER
    from docsplit.data.readers.base import Document
    from docsplit.index.changes import add, delete

    directory, number = Path(sys.argv[1]), 0
    while True:
        added = [Document(f"more {number} {one}", f"A text number {number} about {one}.") for one in range(5)]
        add(directory, added, ENCODER)
        delete(directory, [document.id for document in added])
        number += 1
        if number == 2:
            print("ready", flush=True)
"""


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
    (tmp_path / "segments" / "unfinished").mkdir()
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", refuse)
        with writing(tmp_path):
            pass
    assert "unfinished, which is no longer used, cannot be removed yet" in caplog.text
    with writing(tmp_path):
        pass
    assert [entry.name for entry in (tmp_path / "segments").iterdir()] == [
        entry.name for entry in Index(tmp_path).manifest.segments
    ]


def test_killed_at_any_moment_it_is_the_old_or_the_new_index(documents, queries, tmp_path):
    build(tmp_path / "index", documents[:20], ENCODER, WORDS)
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
