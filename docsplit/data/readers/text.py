"""Read files that are one document each: plain text, Markdown, LaTeX, web pages."""

import re
from dataclasses import dataclass

from docsplit.data.readers.base import Document
from docsplit.data.readers.files import File
from docsplit.data.readers.html import text_of_page

TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".rst", ".tex")
HTML_SUFFIXES = (".html", ".htm", ".xhtml")
LONGEST_TITLE = 90  # characters
_HEADER_LINE = re.compile(r"[A-Za-z][\w-]+: ")
_SUBJECT = re.compile(r"(?im)^subject:[ \t]*(.*\w.*)")


@dataclass(frozen=True)
class TextFile:
    """A document, and whether its file had bytes that are no UTF-8."""

    document: Document
    is_mended: bool


def read_text_file(file: File) -> TextFile:
    """Read a file as one document; its id is its name, its title that of the page or the first line.

    Raises:
        Unreadable: if the file cannot be opened.
    """
    content = file.read()
    try:
        text, is_mended = content.decode("utf-8-sig"), False
    except UnicodeDecodeError:
        text, is_mended = content.decode("utf-8-sig", errors="replace"), True
    title = ""
    if file.suffix in HTML_SUFFIXES:
        title, text = text_of_page(text)
    return TextFile(as_document(file, text, title), is_mended)


def as_document(file: File, text: str, title: str = "") -> Document:
    """Make a document of a file's text; without a title its first line is one, or else its name."""
    return Document(file.name, text, title or first_line(text) or file.stem)


def first_line(text: str) -> str:
    """Take the first line with a letter in it as a title: without the marks of a heading, shortened.

    The title of a mail is its subject.
    """
    header = text[:2000].lstrip().partition("\n\n")[0]
    subject = _SUBJECT.search(header) if _HEADER_LINE.match(header) else None
    lines = [subject[1]] if subject else text[:2000].splitlines()
    for line in lines:
        if any(character.isalpha() for character in line):
            title = " ".join(line.lstrip("# \t").split())
            return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"
    return ""
