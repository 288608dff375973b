"""The documents of a folder of all kinds of files, what is skipped, and that nothing ends with a traceback."""

import bz2
import gzip
import json
import lzma
import os
import re

import pytest
from datasets import Dataset

from docsplit.data.readers.base import Document, Unreadable
from docsplit.data.readers.corpus import load_local
from docsplit.data.readers.documents import SUFFIXES, Reading, documents_of, find_documents, read_documents
from tests.data.readers.fuzzed_documents import READERS, VALID, failure_of, fuzzed_documents

FUZZED, READ_AT_ONCE = 200, 8  # of so many files one is read in the ways that cost most
PIP = 'pip install "markitdown[pdf,docx,pptx]"'


def test_a_folder_of_files(tmp_path, write, caplog, no_markitdown):
    write(".hidden/no.txt", "Not this.")
    write("a.txt", "\n--\nA ship in a storm.\nIt sank.")
    write("bad.txt", b"A caf\xe9. " + b"And a long text after it. " * 10)
    write("latin.txt", b"D\xe9j\xe0 vu.")
    write("deep/b.md", "# The harbour\n\nBoats.")
    write("deep/er/c.HTML", "<title>A page</title><p>Torn sails.")
    write("deep/z.tex.gz", gzip.compress(b"\\section{Ropes}"))
    write("picture.png", b"\x89PNG")
    write("paper.pdf", b"%PDF")
    documents = {document.id: document for document in read_documents(tmp_path)}
    assert list(documents) == ["a.txt", "bad.txt", "deep/b.md", "deep/er/c.HTML", "deep/z.tex.gz"]
    assert documents["a.txt"] == Document("a.txt", "\n--\nA ship in a storm.\nIt sank.", "A ship in a storm.")
    assert documents["deep/b.md"].title == "The harbour"
    assert documents["deep/er/c.HTML"] == Document("deep/er/c.HTML", "Torn sails.", "A page")
    assert "Texts with bytes that are no UTF-8: 1, the first is bad.txt at byte 5." in caplog.text
    line = "Skipped 4 files: 1 hidden (.hidden), 1 .png (picture.png), "
    line += "1 .txt that is not UTF-8 (latin.txt at byte 1), 1 .pdf for lack of markitdown (paper.pdf)"
    assert f"{line}. To read more: iconv -f LATIN1 -t UTF-8, {PIP}" in caplog.messages


def test_rows_have_the_ids_of_their_files(tmp_path, write, caplog):
    """Two tables with the same ids stay two."""
    caplog.set_level("INFO")
    write("a.csv", "id,text\n1,A ship.\n2,A storm.\n")
    write("b.csv", "id,text\n1,A sail.\n")
    write("c.tsv", "id\ttext\n1\tA rope, a tar\n")
    Dataset.from_list([{"_id": "x", "text": ["A mast.", "A deck."]}]).to_parquet(tmp_path / "d.parquet")
    write("e.md", "A note.")
    texts = {document.id: document.text for document in read_documents(tmp_path)}
    assert texts == {
        "a.csv#1": "A ship.",
        "a.csv#2": "A storm.",
        "b.csv#1": "A sail.",
        "c.tsv#1": "A rope, a tar",
        "d.parquet#x": "A mast.\nA deck.",
        "e.md": "A note.",
    }
    assert caplog.text.count("The ids of rows begin with the name of their file") == 1
    assert [document.id for document in read_documents(tmp_path / "a.csv")] == ["1", "2"]
    with pytest.raises(ValueError, match=r"--id_column is '_id', but the columns of .*a\.csv are"):
        list(read_documents(tmp_path, id_column="_id"))


def test_files_that_cannot_be_read_are_skipped_in_a_folder_and_an_error_alone(tmp_path, write, caplog, markitdown):
    write("a.md", "A note.")
    broken = {
        "bad.docx": (b"Damage", ".docx that cannot be converted"),
        "bad.jsonl": ('{"text": "tw', ".jsonl that cannot be read as jsonl"),
        "bad.txt.gz": (b"no gzip", ".txt that cannot be opened"),
        "empty.jsonl": ("", ".jsonl without rows"),
        "package.json": (json.dumps({"name": "x", "version": 1}), ".json without a column 'text'"),
    }
    for name, (content, _) in broken.items():
        write(name, content)
    assert [document.id for document in read_documents(tmp_path)] == ["a.md"]
    (line,) = [message for message in caplog.messages if message.startswith("Skipped")]
    assert line.startswith("Skipped 5 files: ")
    for name, (_, kind) in broken.items():
        assert f"1 {kind} ({name})" in line
        with pytest.raises(Unreadable, match=name):
            list(read_documents(tmp_path / name))


def test_a_name_that_is_no_utf8_is_the_same_each_time(tmp_path):
    """An index that held another one would take the file for a new document at each addition."""
    for name in (b"caf\xe9.txt", b"caf\xe8.txt"):
        (tmp_path / os.fsdecode(name)).write_text("...")
    documents = list(read_documents(tmp_path))
    assert [document.id for document in documents] == [r"caf\udce8.txt", r"caf\udce9.txt"]
    assert [document.title.encode() for document in documents] == [rb"caf\udce8", rb"caf\udce9"]


def test_nothing_to_read_says_what_was_found(tmp_path, write, no_markitdown):
    with pytest.raises(ValueError, match="There is no"):
        list(read_documents(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="There is no file in it"):
        list(read_documents(tmp_path))
    paper = write("paper.pdf", b"%PDF")
    write("notes.odt", b"")
    for path in (tmp_path, paper):
        with pytest.raises(ValueError, match=r'pip install "markitdown\[pdf,docx,pptx\]"'):
            list(read_documents(path))
    with pytest.raises(ValueError, match=r"no documents that can be read\. Skipped 1 file: 1 \.odt \(notes\.odt\)"):
        list(read_documents(tmp_path / "notes.odt"))


def test_no_suffix_has_two_readers():
    assert len(set(SUFFIXES)) == len(SUFFIXES)


def test_what_a_python_call_is_given_are_documents(tmp_path, write):
    """A folder, a file, texts by id, texts, `Document`s."""
    write("notes/a.txt", "A ship.")
    write("notes/b.csv", "id,text\n1,A storm.\n")
    from_files = [Document("a.txt", "A ship.", "A ship."), Document("b.csv#1", "A storm.", "A storm.")]
    assert list(documents_of(str(tmp_path / "notes"))) == from_files
    assert list(documents_of(tmp_path / "notes" / "b.csv")) == [Document("1", "A storm.", "A storm.")]
    by_id = {"x": "A ship.\nIt sank.", "y": ""}
    assert list(documents_of(by_id)) == [Document("x", "A ship.\nIt sank.", "A ship."), Document("y", "")]
    assert list(documents_of(iter(["A ship.", from_files[0]]))) == [Document("0", "A ship.", "A ship."), from_files[0]]
    with pytest.raises(ValueError, match=r"Document 1 is a float: give texts \(strings\), or a folder or file"):
        list(documents_of(["a", float("nan")]))
    with pytest.raises(ValueError, match="Document 'x' is a NoneType"):
        list(documents_of({"x": None}))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_mixed_folder_of_compressed_files_is_read_whole(tmp_path, write, compress):
    """Two tables with equal ids do not collide."""
    suffix = {gzip.compress: ".gz", bz2.compress: ".bz2", lzma.compress: ".xz"}[compress]
    table = "id,text\na,A ship.\nb,A sail.\n"
    rows = json.dumps({"id": "a", "text": "A rope."})
    texts = {"a.txt": "A ship.", "b.md": "# A sail", "c.rst": "A rope.", "d.tex": "A mast.", "e.html": "<p>A boat."}
    data = {"f.csv": table, "deep/f.csv": table, "g.tsv": table.replace(",", "\t"), "h.jsonl": rows, "i.json": rows}
    for name, content in {**texts, **data, ".hidden.txt": "No."}.items():
        write(f"{name}{suffix}", compress(content.encode()))
    ids = [document.id for document in read_documents(tmp_path)]
    expected = {f"{name}{suffix}" for name in texts}
    for name in data:
        expected |= {f"{name}{suffix}#{row}" for row in (["a"] if name[0] in "hi" else ["a", "b"])}
    assert len(ids) == len(expected)
    assert set(ids) == expected


# --- Damaged documents of every suffix ---


@pytest.fixture(scope="module")
def fuzzed_folder(tmp_path_factory):
    """Fuzzed files of every suffix."""
    folder = tmp_path_factory.mktemp("fuzzed")
    for fuzzed in fuzzed_documents(FUZZED):
        (folder / fuzzed.name).write_bytes(fuzzed.content)
    assert {re.sub(r"^\d+|\.(gz|bz2|xz)$", "", path.name) for path in folder.iterdir()} == {*VALID}
    return folder


def test_each_file_is_read_or_refused_in_a_line_that_names_it(fuzzed_folder):
    failures = {}
    for number, path in enumerate(sorted(fuzzed_folder.iterdir())):
        for reader in READERS if number % READ_AT_ONCE == 0 else ("search", "stream"):
            if failure := failure_of(reader, path):
                failures[path.name, reader] = failure
    assert failures == {}


def test_each_file_of_a_folder_gives_documents_or_is_counted(fuzzed_folder):
    reading = Reading(find_documents(fuzzed_folder))
    documents = list(reading.documents())
    assert len({document.id for document in documents}) == len(documents)
    read = {re.sub("#.*", "", document.id, flags=re.DOTALL) for document in documents}
    assert len(read) + reading.found.skipped.counts.total() == FUZZED
    assert len(read) == reading.num_files > FUZZED / 3
    for document in documents:
        document.text.encode()
        document.id.encode()
        assert "None" not in document.id
    for warning in reading.warnings():
        assert "\n" not in warning
    assert load_local(fuzzed_folder, "text").to_list() == [
        {"id": document.id, "title": document.title, "text": document.text} for document in documents
    ]


def test_the_same_seed_gives_the_same_files():
    assert list(fuzzed_documents(20, seed=3)) == list(fuzzed_documents(20, seed=3)) != list(fuzzed_documents(20))
