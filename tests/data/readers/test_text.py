"""Files that are one document each."""

import gzip

import pytest

from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.files import File
from docsplit.data.readers.text import LONGEST_TITLE, first_line, read_text_file


@pytest.fixture
def read(write):
    def read(name, content):
        return read_text_file(File(write(name, content), name), Problems())

    return read


def test_titles_are_of_the_page_or_the_first_line_or_the_file(read):
    assert read("a.txt", "\n--\nA ship.\nIt sank.") == Document("a.txt", "\n--\nA ship.\nIt sank.", "A ship.")
    assert read("b/c.md", "## The  harbour\n\nBoats.").title == "The harbour"
    assert read("d.html", "<title>A page</title><p>Boats.") == Document("d.html", "Boats.", "A page")
    assert read("e.html", "<p>Boats.").title == "Boats."
    assert read("f.x.txt", "1\n2").title == "f.x"
    assert read("g.txt.gz", gzip.compress(b"3")) == Document("g.txt.gz", "3", "g")


def test_some_bytes_that_are_no_utf8_are_replaced_and_said(write):
    problems = Problems()
    content = b"\xef\xbb\xbfA caf\xe9. " + b"And a long text after it. " * 5
    document = read_text_file(File(write("a.txt", content), "a.txt"), problems)
    assert document.text.startswith("A caf\N{REPLACEMENT CHARACTER}. And")
    assert problems.notes == {"mended": (1, "a.txt at byte 8")}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("Déjà vu à la carte.".encode("latin-1"), "that is not UTF-8"),
        ("Проба пера".encode("cp1251"), "that is not UTF-8"),
        ("A ship.".encode("utf-16-le"), "that is binary"),  # without a mark nobody knows
        (b"\x7fELF\x02\x01\x01" + b"\x00" * 9 + b"text " * 1000, "that is binary"),
        (b"\x01\x02\x03 text", "that is binary"),
    ],
)
def test_what_is_no_text_is_no_document(read, content, reason):
    with pytest.raises(
        Unreadable, match=r"a\.md is (not UTF-8 at byte \d: convert it, for example with iconv|binary)"
    ) as caught:
        read("a.md", content)
    assert caught.value.reason == reason


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_byte_order_mark_says_the_encoding(read, encoding):
    text = "Déjà vu. \N{REPLACEMENT CHARACTER}" + "Long. " * 20  # with the sign itself, which is no damage
    content = text.encode(encoding)
    if encoding.endswith("be"):
        content = "\ufeff".encode(encoding) + content
    assert read("a.txt", content) == Document("a.txt", text, text[:89] + "…")


def test_long_first_lines_are_shortened():
    assert first_line("a" * LONGEST_TITLE) == "a" * LONGEST_TITLE
    assert first_line("a" * (LONGEST_TITLE + 1)) == "a" * (LONGEST_TITLE - 1) + "…"
    assert first_line("1\n2") == ""


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("From: a@b.c (A)\nSubject: Re: Sails\n\nHello.", "Re: Sails"),
        ("\nSubject: Sails\n\nHello.", "Sails"),
        ("From: a@b.c\nSubject:\n\nHello.", "From: a@b.c"),
        ("From: a@b.c\n\nSubject: in the body", "From: a@b.c"),
        ("About ships\nSubject: no mail", "About ships"),
    ],
)
def test_the_title_of_a_mail_is_its_subject(text, title):
    assert first_line(text) == title
