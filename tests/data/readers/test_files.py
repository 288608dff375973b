"""Which files of a folder are read, and their bytes."""

import bz2
import dataclasses
import gzip
import json
import lzma
import os
import socket
from pathlib import Path

import pytest
from fsspec.utils import compressions

from docsplit.data.readers.base import Unreadable
from docsplit.data.readers.files import INDEX_FILE, File, find_files
from docsplit.index.store import FILE, Manifest

SUFFIXES = (".txt", ".csv")


def test_the_rest_is_counted_and_hidden_files_are_left_out(tmp_path, write):
    kept = ["a.txt", "b/c.TXT", "b/d.csv.gz", "e.txt.XZ"]
    skipped = {
        ".png": ["b/x.png"],
        "without suffix": ["LICENSE", "b/y.gz"],
        "hidden": [".git", ".x.txt", "_tmp/part.csv", "b/.k"],
    }
    others = ["_d.txt", "b/x.png", "LICENSE", "b/y.gz", ".git/z.txt", ".x.txt", "_tmp/part.csv", "b/.k/l.txt"]
    for name in [*kept, *others]:
        write(name)
    found = find_files(tmp_path, SUFFIXES, hidden_by_underscore=[".csv"])
    assert [file.name for file in found.files] == ["_d.txt", *kept]
    assert {kind: (count, found.skipped.names[kind]) for kind, count in found.skipped.counts.items()} == {
        kind: (len(names), sorted(names)[:2]) for kind, names in skipped.items()
    }


def test_a_file_that_is_named_is_read_though_it_is_hidden(tmp_path, write):
    for name in (".git/z.txt", "_tmp/part.csv"):
        found = find_files(write(name), SUFFIXES, hidden_by_underscore=[".csv"])
        assert [file.name for file in found.files] == [name.rpartition("/")[2]]
        assert not found.is_folder
    assert find_files(write("a.png"), SUFFIXES).files == []
    with pytest.raises(ValueError, match="There is no"):
        find_files(tmp_path / "nowhere", SUFFIXES)


def test_links_to_folders_and_to_nothing_are_counted(tmp_path, write):
    write("a/b.txt")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    (tmp_path / "d.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "e.txt").symlink_to(tmp_path / "a" / "b.txt")
    found = find_files(tmp_path, SUFFIXES)
    assert [file.name for file in found.files] == ["a/b.txt", "e.txt"]
    assert found.skipped.names == {"links to folders": ["c"], "links to nothing": ["d.txt"]}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every folder")
def test_a_folder_that_may_not_be_opened_is_counted(tmp_path, write):
    write("a/b.txt").parent.chmod(0)
    found = find_files(tmp_path, SUFFIXES)
    (tmp_path / "a").chmod(0o755)
    assert found.skipped.names == {"that cannot be opened": [str(tmp_path / "a")]}


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.ARROW.xz"])
def test_what_is_compressed_inside_is_not_read_from_outside(name, write):
    path = write(name, b"...")
    with pytest.raises(Unreadable, match="decompress it") as error:
        File(path, name).check_compression()
    assert error.value.reason == f"in {path.suffix}"


def test_compressed_files_give_their_bytes(write):
    for suffix, compress in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), ("", bytes)):
        path = write(f"a.note.TXT{suffix}", compress(b"A ship."))
        file = File(path, path.name)
        assert (file.read(), file.suffix, file.stem) == (b"A ship.", ".txt", "a.note")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_damaged_file_cannot_be_opened(write, suffix):
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
    whole = compress(b"A ship. " * 1000)
    for content in (whole[: len(whole) // 2], b"no such thing", whole[:20] + b"\xff" * 20 + whole[40:]):
        path = write(f"a.txt{suffix}", content)
        with pytest.raises(Unreadable, match=r"a\.txt\.\w+ cannot be opened: "):
            File(path, path.name).read()


def test_zst_needs_a_package_that_is_named(write, monkeypatch):
    path = write("a.txt.zst", b"...")
    monkeypatch.delitem(compressions, "zst", raising=False)
    with pytest.raises(Unreadable, match="pip install zstandard"):
        File(path, path.name).read()


def test_names_that_are_no_utf8_are_written_as_codes(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("...")
    (file,) = find_files(tmp_path, SUFFIXES).files
    assert (file.name, file.stem) == (r"caf\udce9.txt", r"caf\udce9")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_what_is_no_file_is_counted_and_never_waited_for(tmp_path, write):
    """A pipe without a writer would be waited for as long as there is none."""
    pipe = tmp_path / "docs" / "pipe.txt"
    write("docs/a.txt", "A ship.")
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(tmp_path / "docs")  # the path of a socket is short
        listener.bind("socket.txt")
        os.chdir(here)
    (tmp_path / "docs" / "null.txt").symlink_to("/dev/null")
    found = find_files(tmp_path / "docs", SUFFIXES)
    assert [file.name for file in found.files] == ["a.txt"]
    assert found.skipped.counts == {"pipes, sockets or devices": 3}
    with pytest.raises(ValueError, match=r"pipe\.txt is no file, but a pipe, socket or device"):
        find_files(pipe, SUFFIXES)
    with pytest.raises(Unreadable, match="is no file") as caught:  # it takes the place of a file after the listing
        File(pipe, "pipe.txt").read()
    assert caught.value.reason == "that is no file"


def test_a_file_that_vanishes_is_named(tmp_path):
    with pytest.raises(Unreadable, match=r"a\.txt cannot be opened: No such file") as caught:
        File(tmp_path / "a.txt", "a.txt").read()
    assert caught.value.reason == "that is gone"
    assert File(tmp_path / "a.txt", "a.txt").version() is None


def test_indexes_among_the_documents_are_left_alone(tmp_path, write):
    manifest = {"version": 3, "encoder": {}, "segments": [], "passage_words": 100}
    write("a.txt")
    write("x.index/manifest.json", json.dumps(manifest))
    write("x.index/cache/a.csv")
    write("deep/damaged/manifest.json", "{")
    write("deep/damaged/segments/0/notes.txt")
    write("unfinished/segments/0/notes.txt")
    write("unfinished/lock")
    write("extension/manifest.json", json.dumps({"name": "of something else"}))
    write("extension/b.txt")
    found = find_files(tmp_path, SUFFIXES)
    assert [file.name for file in found.files] == ["a.txt", "extension/b.txt"]
    assert found.skipped.counts["indexes of search.py"] == 3
    with pytest.raises(ValueError, match=r"x\.index is an index of search\.py: name the documents"):
        find_files(tmp_path / "x.index", SUFFIXES)


def test_a_real_index_is_known_by_its_manifest(tmp_path):
    """By the names that the manifest has, whatever its version."""
    assert {"segments", "encoder"} <= {field.name for field in dataclasses.fields(Manifest)}
    assert FILE == INDEX_FILE


def test_archives_are_counted_with_the_remedy(tmp_path, write):
    for name in ("a.zip", "b.tar.gz", "c.tgz", "d.7z"):
        write(name)
    skipped = find_files(tmp_path, SUFFIXES).skipped
    assert skipped.sentence() == (
        "Skipped 4 files: 1 .zip (a.zip), 1 .tar (b.tar.gz), 1 .tgz (c.tgz), 1 .7z (d.7z). To read more: unpack "
        "archives first (unzip, tar -xf)"
    )


@pytest.mark.parametrize("size", [0, 10, 200_000])
def test_a_zst_file_is_read_to_its_end_or_refused(write, size):
    zstandard = pytest.importorskip("zstandard")
    content = bytes(range(256)) * (size // 256) + b"x"
    whole = zstandard.compress(content)
    path = write("a.txt.zst", whole + whole)  # of two frames
    assert File(path, path.name).read() == content * 2
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole + whole[:9], b"no such thing", whole + b"x"):
        path = write("a.txt.zst", damaged)
        with pytest.raises(Unreadable, match=r"a\.txt\.zst cannot be opened: "):
            File(path, path.name).read()
