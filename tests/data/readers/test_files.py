"""Which files of a folder are read, their bytes and encodings, and the account of what is not read."""

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import os
import socket
from pathlib import Path

import pytest
from fsspec.utils import compressions

from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.files import (
    INDEX_FILE,
    Encoding,
    File,
    decode,
    encoding_of,
    find_files,
    flaw_of,
    is_plain,
    lines_of,
)
from docsplit.index.index import FILE, Manifest

SUFFIXES = (".txt", ".csv")
REPLACED = "\N{REPLACEMENT CHARACTER}"


# --- What was not read ---


def test_what_is_skipped_or_mended_is_counted_written_and_merged():
    """By kind, with two names each that cannot act on a terminal, and what would help said once."""
    problems, other = Problems(), Problems()
    for name in ("a\x1b[2J\n.png", "b/c.png", "d.png"):
        problems.skip_file(".png", name)
    problems.skip_row(".jsonl that are no JSON", "a.jsonl, line 2")
    problems.note("mended", "a.jsonl, line 5")
    for name in ("a.pdf", "b.docx"):
        other.skip_file(f"{name[1:]} for lack of something", name, "pip install something")
    other.skip_row(".jsonl that are no JSON", "b.jsonl, line 1")
    other.note("mended", "d.txt at byte 1", 1000)
    problems.merge(Problems.from_json(other.to_json()))
    assert (problems.number_of("file"), problems.number_of("file", "row")) == (5, 7)
    files, rows, mended = problems.warnings()
    assert files == (
        r"Skipped 5 files: 3 .png (a\x1b[2J\n.png, b/c.png ...), 1 .pdf for lack of something (a.pdf), "
        "1 .docx for lack of something (b.docx). To read more: pip install something"
    )
    assert rows == "Skipped 2 rows: 2 .jsonl that are no JSON (a.jsonl, line 2; b.jsonl, line 1)"
    assert mended.startswith("Texts with bytes that cannot be read: 1,001, the first is a.jsonl, line 5.")
    assert Problems().warnings() == []


def test_rows_of_tables_are_refused():
    problems = Problems(refuses_rows=True)
    with pytest.raises(Unreadable, match=r"^a\.jsonl, line 2 is no JSON: Expecting value$"):
        problems.skip_row(".jsonl that are no JSON", "a.jsonl, line 2", "Expecting value")
    with pytest.raises(Unreadable, match=r"^a\.csv, line 2 with more fields than the header: not read: 3 fields$"):
        problems.skip_row(".csv with more fields than the header", "a.csv, line 2", "3 fields")


def test_texts_are_written_in_one_form():
    """NFC, so that copies are equal, and without lone surrogates."""
    assert Document("a", "cafe\u0301 \ud800", "e\u0301") == Document("a", "caf\xe9  ", "\xe9")


# --- Folders ---


def test_the_rest_is_counted_and_hidden_files_are_left_out(tmp_path, write):
    kept = ["a.txt", "b/c.TXT", "b/d.csv.gz", "e.txt.XZ"]
    others = ["_d.txt", "b/x.png", "LICENSE", "b/y.gz", ".git/z.txt", ".x.txt", "_tmp/part.csv", "b/.k/l.txt"]
    for name in [*kept, *others, "c.tar.gz"]:
        write(name)
    (tmp_path / "f").symlink_to(tmp_path / "b")
    (tmp_path / "g.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "h.txt").symlink_to(tmp_path / "a.txt")
    found = find_files(tmp_path, SUFFIXES, hidden_by_underscore=[".csv"])
    assert [file.name for file in found.files] == ["_d.txt", *kept, "h.txt"]
    assert found.is_folder
    assert found.problems.counts["file"] == {
        ".png": (1, ["b/x.png"]),
        "without suffix": (2, ["LICENSE", "b/y.gz"]),
        "hidden": (4, [".git", ".x.txt"]),
        "links to folders": (1, ["f"]),
        "links to nothing": (1, ["g.txt"]),
        ".tar": (1, ["c.tar.gz"]),
    }
    assert found.problems.remedies["file"] == ["unpack archives first (unzip, tar -xf)"]
    for name in (".git/z.txt", "_tmp/part.csv"):  # who names a file wants it
        found = find_files(tmp_path / name, SUFFIXES, hidden_by_underscore=[".csv"])
        assert ([file.name for file in found.files], found.is_folder) == ([name.rpartition("/")[2]], False)
    assert find_files(tmp_path / "b/x.png", SUFFIXES).files == []
    with pytest.raises(ValueError, match="There is no"):
        find_files(tmp_path / "nowhere", SUFFIXES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every folder")
def test_a_folder_that_may_not_be_opened_is_counted(tmp_path, write):
    write("a/b.txt").parent.chmod(0)
    found = find_files(tmp_path, SUFFIXES)
    (tmp_path / "a").chmod(0o755)
    assert found.problems.counts["file"] == {"that cannot be opened": (1, [str(tmp_path / "a")])}


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
    assert found.problems.counts["file"]["pipes, sockets or devices"][0] == 3
    with pytest.raises(ValueError, match=r"pipe\.txt is no file, but a pipe, socket or device"):
        find_files(pipe, SUFFIXES)
    with pytest.raises(Unreadable, match="is no file") as caught:  # it takes the place of a file after the listing
        File(pipe, "pipe.txt").read()
    assert caught.value.reason == "that is no file"


def test_indexes_among_the_documents_are_left_alone(tmp_path, write):
    assert {"segments", "encoder"} <= {field.name for field in dataclasses.fields(Manifest)}  # whatever its version
    assert FILE == INDEX_FILE
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
    assert found.problems.counts["file"]["indexes of search.py"][0] == 3
    with pytest.raises(ValueError, match=r"x\.index is an index of search\.py: name the documents"):
        find_files(tmp_path / "x.index", SUFFIXES)


# --- Bytes ---


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), ("", bytes)],
)
def test_files_give_their_bytes_or_cannot_be_opened(write, suffix, compress):
    path = write(f"a.note.TXT{suffix}", compress(b"A ship."))
    file = File(path, path.name)
    assert (file.read(), file.read(2), file.suffix, file.stem) == (b"A ship.", b"A ", ".txt", "a.note")
    whole = compress(b"A ship. " * 1000)
    for content in (whole[: len(whole) // 2], b"no such thing", whole[:20] + b"\xff" * 20 + whole[40:]):
        path = write(f"a.txt{suffix}", content)
        if suffix:
            with pytest.raises(Unreadable, match=r"a\.txt\.\w+ cannot be opened: "):
                File(path, path.name).read()
    with pytest.raises(Unreadable, match=r"b\.txt cannot be opened: No such file") as caught:
        File(path.parent / "b.txt", "b.txt").read()
    assert caught.value.reason == "that is gone"
    assert File(path.parent / "b.txt", "b.txt").version() is None


def test_what_cannot_be_decompressed_says_what_helps(write, monkeypatch):
    for name in ("a.parquet.gz", "a.ARROW.xz"):
        path = write(name, b"...")
        with pytest.raises(Unreadable, match="decompress it") as error:
            File(path, name).read()
        assert error.value.reason == f"in {path.suffix}"
    path = write("a.txt.zst", b"...")
    monkeypatch.delitem(compressions, "zst", raising=False)
    with pytest.raises(Unreadable, match="pip install zstandard"):
        File(path, path.name).read()


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


# --- Encodings ---


def lines(content, newline=None, given=None):
    encoding = encoding_of(io.BytesIO(content), given)
    return [(line.number, line.text, line.is_mended) for line in lines_of(io.BytesIO(content), encoding, newline)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_file_and_its_lines_are_decoded_alike(encoding):
    text = f"Größe {REPLACED}\n\n大きさ\u2028x\x0cy\n👩"
    content = (b"" if not encoding.endswith("be") else "\ufeff".encode(encoding)) + text.encode(encoding)
    assert decode(content, encoding_of(io.BytesIO(content), "cp1251" if encoding != "utf-8" else None)) == (text, -1)
    assert lines(content) == [(n, line, False) for n, line in enumerate(io.StringIO(text), 1)]


FRENCH = "L'été dernier, nous avons mangé des crêpes près de la forêt où l'élève écrivait."


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("Déjà vu.", "latin-1", "cp1252"),
        ("caf\xe9", "latin-1", "cp1252"),
        (FRENCH, "latin-1", "cp1252"),
        ("He said \u201cno\u201d \u2013 it\u2019s a na\xefve caf\xe9.", "cp1252", "cp1252"),
        ("A plain text. " * 100_000 + FRENCH, "latin-1", "cp1252"),
        ("Корабль вышел в море и попал в шторм, паруса порвались.", "cp1251", "cp1251"),
        ("船は海を渡る。嵐の中で帆が破れた。" * 3, "shift-jis", "shift_jis"),
    ],
)
def test_other_encodings_are_detected_or_given(text, encoding, name):
    content = text.encode(encoding)
    found = encoding_of(io.BytesIO(content))
    assert found == Encoding(name, is_detected=True)
    assert decode(content, found) == (text, -1)
    assert lines(content) == [(1, text, False)]
    given = encoding_of(io.BytesIO(content), encoding)
    assert (given, decode(content, given)) == (Encoding(encoding), (text, -1))


def test_damaged_utf8_is_no_other_encoding():
    """Characters that are more than the bytes which cannot be read show what it is; so does noise."""
    french = f"{FRENCH} x".encode()
    for content, bad in ((french + b"\xe9", len(french)), (b"\xef\xbb\xbfab\xe9", 5), (b"\xff\xfea\x00b", 4)):
        found = encoding_of(io.BytesIO(content))
        text, place = decode(content, found)
        assert (found.is_detected, place, text.count(REPLACED), text[-1]) == (False, bad, 1, REPLACED)
    for content in (bytes(range(256)) * 10, b"\x00\x01caf\xe9", b"\x81\x8d. A ship sank in the bay."):
        assert encoding_of(io.BytesIO(content)) == Encoding()
    assert lines("é\n".encode() + b"b\xe9\r\nc\xff") == [
        *((1, "é\n", False), (2, f"b{REPLACED}\n", True), (3, f"c{REPLACED}", True))
    ]
    assert lines(b"a\r\nb\n", newline="") == [(1, "a\r\n", False), (2, "b\n", False)]
    assert lines(b"") == []


def test_one_bad_byte_makes_no_other_encoding_of_what_follows():
    """However far behind it the first characters of UTF-8 stand."""
    english = b"The quick brown fox jumps over the lazy dog.\n" * 5000
    assert encoding_of(io.BytesIO(english + b"\xff\n" + english + "\xe9 ".encode() * 3)) == Encoding()
    assert encoding_of(io.BytesIO(english + b"caf\xe9 noir\n" + english)).name == "cp1252"


def test_a_file_without_a_mark_and_binary_bytes_is_plain():
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert not is_plain("a".encode(encoding))
    assert is_plain(b"caf\xe9")  # the reader fails at it, and then its lines are read one by one
    assert not is_plain(b"a\x00b")


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("", None),
        ("A ship.\tx\r\n\x0c\x1b[1mbold\x1b[0m", None),
        (f"{'x' * 99}{REPLACED}", None),
        (f"{'x' * 98}{REPLACED}", "of an unknown encoding"),
        ("a\x00" + "x" * 1000, "binary"),
        ("x" * 9000 + "\x00", None),
        ("\x01\x02 a", "binary"),
    ],
)
def test_what_is_no_text_says_why(text, flaw):
    assert flaw_of(text) == flaw
