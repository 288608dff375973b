"""Turn the bytes of text files into text: UTF-8, or what a byte order mark says; everything else is noticed.

Some bytes that cannot be read become U+FFFD, and the caller counts them. A text that has more of them, as one of
another encoding has, is no text to search or to train on, and neither is a binary file.
"""

import codecs
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from docsplit.data.readers.base import ICONV

MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
LONGEST_MARK = 4  # bytes
HEAD = 8000  # characters in which a NUL makes a file a binary one, as for git
MOST_UNREADABLE = 0.01  # share of a text's characters
_UNREAD = "\udcff"  # stands for bytes that cannot be decoded; no decoder gives it for good bytes
_CONTROL = re.compile(r"[\x00-\x07\x0e-\x1a\x7f-\x84\x86-\x9f]")  # of no use in a text; colours of terminals are
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class Decoded:
    """A text, and whether bytes of it could not be read.

    Attributes:
        first_bad: the first such byte, from 0; -1 if all could be read.
    """

    text: str
    first_bad: int = -1

    @property
    def is_mended(self) -> bool:
        """Whether bytes could not be read."""
        return self.first_bad >= 0


@dataclass(frozen=True)
class Line:
    """A line of a file with its number, from 1.

    Attributes:
        is_mended: whether bytes of it could not be read.
    """

    number: int
    text: str
    is_mended: bool


@dataclass(frozen=True)
class Flaw:
    """Why a text is no text, as a reason to skip it, and what would help."""

    reason: str
    remedy: str = ""


def decode(content: bytes) -> Decoded:
    """Decode a file; bytes that cannot be read become U+FFFD."""
    mark, encoding = _mark_and_encoding(content)
    try:
        return Decoded(content[len(mark) :].decode(encoding))
    except UnicodeDecodeError as error:
        return Decoded(content[len(mark) :].decode(encoding, errors="replace"), len(mark) + error.start)


def lines_of(content: IO[bytes], head: bytes, newline: str | None) -> Iterator[Line]:
    r"""Decode a file line by line.

    Args:
        content: an open file, at its beginning.
        head: its first `LONGEST_MARK` bytes.
        newline: as `open` takes it: None to end lines at "\r" and "\r\n" as well, and write "\n".
    """
    mark, encoding = _mark_and_encoding(head)
    content.read(len(mark))
    lines = io.TextIOWrapper(content, encoding=encoding, errors="docsplit_unread", newline=newline)
    for number, line in enumerate(lines, start=1):
        is_mended = _UNREAD in line
        yield Line(number, line.replace(_UNREAD, "\N{REPLACEMENT CHARACTER}") if is_mended else line, is_mended)


def flaw_of(text: str) -> Flaw | None:
    """Say why a decoded text is no text: it has another encoding, or is binary; None if it is one."""
    most = MOST_UNREADABLE * len(text)
    if "\x00" in text[:HEAD]:
        return Flaw("that is binary")
    if text.count("\N{REPLACEMENT CHARACTER}") > most:
        return Flaw("that is not UTF-8", ICONV)
    if sum(1 for _ in _CONTROL.finditer(text)) > most:
        return Flaw("that is binary")
    return None


def is_plain(head: bytes) -> bool:
    """Whether a file begins as UTF-8 without a mark, which other programs' readers take as it is."""
    return not _mark_and_encoding(head)[0] and b"\x00" not in head


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON may have and UTF-8 cannot hold, by spaces."""
    return text if text.isascii() else _SURROGATE.sub(" ", text)


def _mark_and_encoding(head: bytes) -> tuple[bytes, str]:
    return next(((mark, encoding) for mark, encoding in MARKS if head.startswith(mark)), (b"", "utf-8"))


def _unread(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _UNREAD, error.end


codecs.register_error("docsplit_unread", _unread)
