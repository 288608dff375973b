"""Documents of all kinds of files and their titles, what is skipped, and that nothing ends with a traceback."""

import bz2
import gzip
import json
import lzma
import os
import re
import sys
import types

import pytest
from datasets import Dataset

from docsplit.data.corpora import load_local
from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.documents import (
    SUFFIXES,
    converter_version,
    documents_in,
    documents_of,
    find_documents,
    read_documents,
    read_file,
    text_of_page,
    text_of_pdf,
    title_of,
)
from docsplit.data.readers.files import File
from docsplit.data.readers.rows import Columns
from tests.data.readers.fuzzed_documents import READERS, VALID, failure_of, fuzzed_documents
from tests.data.readers.office import make_docx, make_pdf, make_pptx

FUZZED, READ_AT_ONCE = 200, 8  # of so many files one is read in the ways that cost most
PIP = 'pip install "markitdown[pdf,docx,pptx]"'


@pytest.fixture
def read(write):
    def read(name, content, problems=None, encoding=None):
        return read_file(File(write(name, content), name), problems or Problems(), encoding)

    return read


# --- Folders ---


def test_a_folder_of_files(tmp_path, write, caplog, no_markitdown):
    write(".hidden/no.txt", "Not this.")
    write("a.txt", "\n--\nA ship in a storm.\nIt sank.")
    write("bad.txt", "À la carte. ".encode() * 9 + b"A caf\xe9.")
    write("latin.txt", b"D\xe9j\xe0 vu.")
    write("deep/b.md", "# The harbour\n\nBoats.")
    write("deep/er/c.HTML", "<title>A page</title><p>Torn sails.")
    write("deep/z.tex.gz", gzip.compress(b"\\section{Ropes}"))
    write("noise.txt", b"\x81\x8d\x8f" * 20)
    write("picture.png", b"\x89PNG")
    write("paper.pdf", b"%PDF")
    documents = {document.id: document for document in read_documents(tmp_path)}
    assert list(documents) == ["a.txt", "bad.txt", "deep/b.md", "deep/er/c.HTML", "deep/z.tex.gz", "latin.txt"]
    assert documents["a.txt"] == Document("a.txt", "\n--\nA ship in a storm.\nIt sank.", "A ship in a storm.")
    assert documents["deep/er/c.HTML"] == Document("deep/er/c.HTML", "Torn sails.", "A page")
    assert documents["latin.txt"].text == "Déjà vu."
    assert "Texts with bytes that cannot be read: 1, the first is bad.txt at byte 122." in caplog.text
    assert "Files that are no UTF-8: 1, latin.txt as cp1252. Their encodings were detected" in caplog.text
    line = (
        "Skipped 4 files: 1 hidden (.hidden), 1 .png (picture.png), 1 .txt that is of an unknown encoding (noise.txt "
    )
    line += f"at byte 0), 1 .pdf for lack of markitdown (paper.pdf). To read more: --encoding, {PIP}"
    assert line in caplog.messages


def test_rows_have_the_ids_of_their_files(tmp_path, write, caplog):
    """Two tables with the same ids stay two."""
    caplog.set_level("INFO")
    write("a.csv", "id,text\n1,A ship.\n2,A storm.\n")
    write("b.csv", "id,text\n1,A sail.\n")
    write("c.tsv", "id\ttext\n1\tA rope, a tar\n")
    write("e.md", "A note.")
    texts = {document.id: document.text for document in read_documents(tmp_path)}
    assert texts == {
        "a.csv#1": "A ship.",
        "a.csv#2": "A storm.",
        "b.csv#1": "A sail.",
        "c.tsv#1": "A rope, a tar",
        "e.md": "A note.",
    }
    assert caplog.text.count("The ids of rows begin with the name of their file") == 1


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
    with pytest.raises(ValueError, match="There is no file in it"):
        list(read_documents(tmp_path))
    paper = write("paper.pdf", b"%PDF")
    write("notes.odt", b"")
    for path in (tmp_path, paper):
        with pytest.raises(ValueError, match=r'pip install "markitdown\[pdf,docx,pptx\]"'):
            list(read_documents(path))
    with pytest.raises(ValueError, match=r"no documents that can be read\. Skipped 1 file: 1 \.odt \(notes\.odt\)"):
        list(read_documents(tmp_path / "notes.odt"))


def test_what_a_python_call_is_given_are_documents(tmp_path, write):
    """A folder, a file, texts by id, texts, `Document`s; no table."""
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
    with pytest.raises(ValueError, match=r"are a Dataset with the columns \['id', 'text'\]: .* documents\['text'\]"):
        list(documents_of(Dataset.from_dict({"id": [1], "text": ["a"]})))


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


# --- Titles ---


def test_titles_are_of_the_page_or_the_first_line_or_the_file(read):
    assert read("a.txt", "\n--\nA ship.\nIt sank.") == Document("a.txt", "\n--\nA ship.\nIt sank.", "A ship.")
    assert read("d.html", "<title>A page</title><p>Boats.") == Document("d.html", "Boats.", "A page")
    assert read("e.html", "<p>Boats.").title == "Boats."
    assert read("f.x.txt", "1\n2").title == "f.x"
    assert read("g.txt.gz", gzip.compress(b"3")) == Document("g.txt.gz", "3", "g")
    assert read("h.md", "A badge.\n\nTitle\n=====\n\nText.").title == "Title"  # of Markdown the first heading
    assert read("h.txt", "A line.\n\nTitle\n=====\n\nText.").title == "A line."


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("a" * 90, "a" * 90),
        ("a" * 91, "a" * 89 + "…"),
        ("1\n2", ""),
        ("## The  harbour\n\nBoats.", "The harbour"),
        ("From: a@b.c (A)\nSubject: Re: Sails\n\nHello.", "Re: Sails"),
        ("\nSubject: Sails\n\nHello.", "Sails"),
        ("From: a@b.c\nSubject:\n\nHello.", "From: a@b.c"),
        ("From: a@b.c\n\nSubject: in the body", "From: a@b.c"),
        ("About ships\nSubject: no mail", "About ships"),
        ("11/26/26, 5:54 AM\n\nSails and ropes", "Sails and ropes"),
        ("11/26/26, 5:54 AM Sails and ropes\n1/3", "Sails and ropes"),
        ("2026-11-26 17:54\nSails", "Sails"),
        (".. _wine_dataset:\n\nWine recognition dataset\n------------------------\n", "Wine recognition dataset"),
        ("<!-- a comment -->\n# Sails", "Sails"),
        ("---\ntitle: npm-publish\nsection: 1\n---\n\nPublish it.", "npm-publish"),
        ("---\nname: x\ntitle: 'Of: ships'\n---\n", "Of: ships"),
        ("---\nsection: 1\n---\n\n# Ropes\n", "Ropes"),
        ("---\ntitle: 7\n---", "7"),
        ("title: npm-publish", "title: npm-publish"),  # without lines around it, it is a text
    ],
)
def test_the_title_of_a_text(text, title):
    assert title_of(text) == title == title_of(text, has_headings=True)


@pytest.mark.parametrize("heading", ["# Sails", "=====\nSails\n=====", "## Sails"])
def test_the_first_heading_is_the_title_of_a_text_with_headings(heading):
    text = f"Intro.\n\n>>> # no\n\n{heading}\n\nTorn."
    assert (title_of(text), title_of(text, has_headings=True)) == ("Intro.", "Sails")


# --- Plain text and web pages ---


def test_bytes_that_cannot_be_read_are_replaced_and_said(read):
    problems = Problems()
    document = read("a.txt", b"\xef\xbb\xbfA caf\xe9. " + b"And a long text after it. " * 5, problems)
    assert document.text.startswith("A caf\N{REPLACEMENT CHARACTER}. And")
    assert problems.counts["note"] == {"mended": (1, ["a.txt at byte 8"])}
    assert read("b.txt", "Łódź".encode("cp1250"), encoding="cp1250").text == "Łódź"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x81\x8d\x8f" * 9, "of an unknown encoding, from byte 0 on: name it with --encoding"),
        ("A ship.".encode("utf-16-le"), "binary"),  # without a mark nobody knows
        (b"\x7fELF\x02\x01\x01" + b"\x00" * 9 + b"text " * 1000, "binary"),
        (b"\x01\x02\x03 text", "binary"),
    ],
)
def test_what_is_no_text_is_no_document(read, content, reason):
    with pytest.raises(Unreadable, match=rf"a\.md is {reason}$") as caught:
        read("a.md", content)
    assert caught.value.reason == f"that is {reason.partition(',')[0]}"


def test_blocks_headings_and_what_nobody_sees():
    page = (
        "<html><head><title>A  page</title><style>p {}</style></head><body><h1>Sails</h1><p>Torn <b>sails</b>"
        "\n\nand ropes.</p><script>let x = 1</script><ul><li>One &amp; two</li></ul><h2></h2></body></html>"
    )
    assert text_of_page(page) == ("A page", "## Sails\n\nTorn sails and ropes.\n\nOne & two")
    assert text_of_page("no tags") == ("", "no tags")


def test_marks_that_nothing_closes_are_no_tags_and_take_no_time():
    """The standard library would seek the end of each mark to the end of the page: for minutes."""
    assert text_of_page("<p>a <b>c</b> < 5 <!-- d <i>e</i> <f") == ("", "a c < 5 d e f")
    assert text_of_page("a<![ b]>c<![CDATA[d]]>e<![if x]>f") == ("", "acef")
    for mark in ("<a b='", "<!--", "<a", "</script"):
        title, text = text_of_page(f"<title>T</title>{mark * 100_000}")
        assert title == "T"
        assert "<" not in text


# --- PDF, Word and PowerPoint ---


def test_a_converted_file_is_a_document(read, markitdown):
    """Compressed or not; without what stands for slides and pictures, and without marks of escaping."""
    assert read("a.pdf", b"ok # A ship\n\nIt sank.") == Document("a.pdf", "# A ship\n\nIt sank..pdf", "A ship")
    assert read("b.docx.gz", gzip.compress(b"ok snake\\_case ![a\\]](b.png)")).text == "snake_case .docx"
    assert read("c.pptx", b"ok <!-- Slide number: 1 -->\n![a](b.jpg)\n# C").text == "# C.pptx"
    assert read("d.pdf", "ok the ﬂoor ex-\necutes a\\_b".encode()).text == "the floor executes a\\_b.pdf"
    with pytest.raises(Unreadable, match=r"a\.pdf cannot be converted: .* Pdf threw Damage") as caught:
        read("a.pdf", b"Damage")
    assert caught.value.reason == "that cannot be converted"
    with pytest.raises(Unreadable, match="cannot be opened"):
        read("a.pdf.gz", b"ok no gzip")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The ﬂoor of the oﬃce.", "The floor of the office."),
        ("It ex-\necutes and compiles.", "It executes and compiles."),
        ("It ex\u00ad\necutes, ex\u2010 \n  ecutes.", "It executes, executes."),
        ("state-of-the-\nart, as state-of-the-art", "state-of-the-art, as state-of-the-art"),
        ("Jean-\nPaul, 2019-\n2020, a -\nb, pre- and post-war", "Jean-Paul, 2019-\n2020, a -\nb, pre- and post-war"),
        ("a" * 1_000_000 + "-1", "a" * 1_000_000 + "-1"),
        ("a-" * 300_000, "a-" * 300_000),
    ],
)
def test_ligatures_and_divided_words_of_pdf_become_words(text, expected):
    assert text_of_pdf(text) == expected


def test_the_title_of_a_pdf_is_in_its_metadata(read, markitdown, monkeypatch):
    """A stub of pdfminer, which markitdown brings; names of files are no titles."""
    info = {}
    modules = {name: types.ModuleType(f"pdfminer.{name}") for name in ("pdfdocument", "pdfparser", "utils")}
    modules["pdfparser"].PDFParser = lambda file: file.read()
    modules["pdfdocument"].PDFDocument = lambda parser: types.SimpleNamespace(info=[info])
    modules["utils"].decode_text = bytes.decode
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"pdfminer.{name}", module)
    for title, expected in (("On ﬂoors ", "On floors"), ("x.pdf", "A ship"), ("Untitled", "A ship"), ("1", "A ship")):
        info["Title"] = title.encode()
        assert read("a.pdf", b"ok A ship\n\nIt sank.").title == expected
    info["Title"] = 5  # no text
    assert read("a.pdf", b"ok 11/26/26, 5:54 AM\n\nIt sank").title == "It sank.pdf"


def test_without_markitdown_or_a_part_of_it_the_command_is_named(read, markitdown, request):
    needs = rf"a\.\w+ needs markitdown: {re.escape(PIP)}"
    with pytest.raises(Unreadable, match=needs):  # markitdown is there, what reads pdf is not
        read("a.pdf", b"MissingDependencyException")
    request.getfixturevalue("no_markitdown")
    with pytest.raises(Unreadable, match=needs):
        read("a.docx", make_docx("Sails", "..."))


def test_real_files_are_converted(read):
    pytest.importorskip("markitdown")
    text = "A torn sail &amp; a [rope], snake_case."
    assert read("a.docx", make_docx("Sails", text)) == Document(
        "a.docx", "# Sails\n\nA torn sail & a [rope], snake_case.", "Sails"
    )
    pdf = make_pdf(["Storms at sea", "A ship sank."])
    assert read("b.pdf", pdf) == Document("b.pdf", "Storms at sea\nA ship sank.", "Storms at sea")
    assert read("c.pptx", make_pptx("Harbours", "Boats\nCranes")) == Document(
        "c.pptx", "# Harbours\nBoats\nCranes", "Harbours"
    )
    assert converter_version()
    for content in (b"", b"%PDF", b"A plain text.", make_docx("a", "b")[:100], pdf[:150]):
        for suffix in (".pdf", ".docx", ".pptx"):
            with pytest.raises(Unreadable, match="cannot be converted"):
                read(f"a{suffix}", content)


# --- Damaged documents of every suffix ---


@pytest.fixture(scope="module")
def fuzzed_folder(tmp_path_factory):
    """Fuzzed files of every suffix."""
    folder = tmp_path_factory.mktemp("fuzzed")
    for fuzzed in fuzzed_documents(FUZZED):
        (folder / fuzzed.name).write_bytes(fuzzed.content)
    suffixes = {re.sub(r"^\d+|\.(gz|bz2|xz)$", "", path.name) for path in folder.iterdir()}
    assert suffixes == {*VALID} == {*SUFFIXES}
    return folder


def test_each_file_is_read_or_refused_in_a_line_that_names_it(fuzzed_folder):
    failures = {}
    for number, path in enumerate(sorted(fuzzed_folder.iterdir())):
        for reader in READERS if number % READ_AT_ONCE == 0 else ("search", "stream"):
            if failure := failure_of(reader, path):
                failures[path.name, reader] = failure
    assert failures == {}


def test_each_file_of_a_folder_gives_documents_or_is_counted(fuzzed_folder):
    found = find_documents(fuzzed_folder)
    documents = list(documents_in(found, Columns()))
    assert len({document.id for document in documents}) == len(documents)
    read = {re.sub("#.*", "", document.id, flags=re.DOTALL) for document in documents}
    assert len(read) + found.problems.number_of("file") == FUZZED
    assert len(read) > FUZZED / 3
    for document in documents:
        document.text.encode()
        document.id.encode()
        assert "None" not in document.id
    for warning in found.problems.warnings():
        assert "\n" not in warning
    assert load_local(fuzzed_folder, "text").to_list() == [
        {"id": document.id, "title": document.title, "text": document.text} for document in documents
    ]
