"""Read files that are one document each: plain text, Markdown, LaTeX, web pages."""

import re

from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.decoding import decode, flaw_of
from docsplit.data.readers.files import File
from docsplit.data.readers.html import text_of_page

TEXT_SUFFIXES = (".txt", ".md", ".markdown", ".rst", ".tex")
HTML_SUFFIXES = (".html", ".htm", ".xhtml")
LONGEST_TITLE = 90  # characters
_HEADER_LINE = re.compile(r"[A-Za-z][\w-]+: ")
_SUBJECT = re.compile(r"(?im)^subject:[ \t]*(.*\w.*)")


def read_text_file(file: File, problems: Problems) -> Document:
    """Read a file as one document; its id is its name, its title that of the page or the first line.

    Raises:
        Unreadable: if the file cannot be opened, is binary, or is of an encoding that it does not name.
    """
    decoded = decode(file.read())
    text, byte = decoded.text, f"at byte {decoded.first_bad:,}"
    if flaw := flaw_of(text):
        what = flaw.reason.removeprefix("that ")
        convert = f" {byte}: convert it, for example with {flaw.remedy}" if flaw.remedy else ""
        place = f"{file.name} {byte}" if flaw.remedy else file.name
        raise Unreadable(flaw.reason, f"{file.path} {what}{convert}", flaw.remedy, place)
    if decoded.is_mended:
        problems.note("mended", f"{file.name} {byte}")
    title = ""
    if file.suffix in HTML_SUFFIXES:
        title, text = text_of_page(text)
    return as_document(file, text, title)


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
