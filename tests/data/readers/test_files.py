"""Which files of a folder are read, and their bytes."""

import bz2
import gzip
import lzma
import os

import pytest
from fsspec.utils import compressions

from docsplit.data.readers.base import Unreadable
from docsplit.data.readers.files import File, find_files

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
