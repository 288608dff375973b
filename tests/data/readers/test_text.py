"""Files that are one document each."""

import gzip

import pytest

from docsplit.data.readers.base import Document
from docsplit.data.readers.files import File
from docsplit.data.readers.text import LONGEST_TITLE, first_line, read_text_file


@pytest.fixture
def read(write):
    def read(name, content):
        return read_text_file(File(write(name, content), name))

    return read


def test_titles_are_of_the_page_or_the_first_line_or_the_file(read):
    assert read("a.txt", "\n--\nA ship.\nIt sank.").document == Document("a.txt", "\n--\nA ship.\nIt sank.", "A ship.")
    assert read("b/c.md", "## The  harbour\n\nBoats.").document.title == "The harbour"
    assert read("d.html", "<title>A page</title><p>Boats.").document == Document("d.html", "Boats.", "A page")
    assert read("e.html", "<p>Boats.").document.title == "Boats."
    assert read("f.x.txt", "1\n2").document.title == "f.x"
    assert read("g.txt.gz", gzip.compress(b"3")).document == Document("g.txt.gz", "3", "g")


def test_bytes_that_are_no_utf8_are_replaced_and_said(read):
    latin = read("a.txt", b"A caf\xe9.")
    assert latin.is_mended
    assert latin.document.text == "A caf\N{REPLACEMENT CHARACTER}."
    assert not read("c.txt", "The sign \N{REPLACEMENT CHARACTER} itself.").is_mended
    with_mark = read("b.txt", "\ufeffA caf\xe9.")
    assert not with_mark.is_mended
    assert with_mark.document == Document("b.txt", "A caf\xe9.", "A caf\xe9.")


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
