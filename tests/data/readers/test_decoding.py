"""Bytes of text files: encodings, bytes that cannot be read, and what is no text."""

import io

import pytest

from docsplit.data.readers.decoding import (
    Decoded,
    decode,
    flaw_of,
    is_plain,
    lines_of,
    without_surrogates,
)

REPLACED = "\N{REPLACEMENT CHARACTER}"


def lines(content, newline=None):
    return [(line.number, line.text, line.is_mended) for line in lines_of(io.BytesIO(content), content[:4], newline)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_file_and_its_lines_are_decoded_alike(encoding):
    text = f"Größe {REPLACED}\n\n大きさ\u2028x\x0cy\n👩"
    content = text.encode(encoding)
    assert decode(content) == Decoded(text)
    assert lines(content) == [(n, line, False) for n, line in enumerate(io.StringIO(text), 1)]


def test_bytes_that_cannot_be_read_are_placed():
    assert decode(b"ab\xe9c\xff") == Decoded(f"ab{REPLACED}c{REPLACED}", 2)
    assert decode(b"\xef\xbb\xbfab\xe9") == Decoded(f"ab{REPLACED}", 5)
    assert decode(b"\xff\xfea\x00b") == Decoded(f"a{REPLACED}", 4)
    assert lines(b"a\nb\xe9\r\nc\xff") == [(1, "a\n", False), (2, f"b{REPLACED}\n", True), (3, f"c{REPLACED}", True)]
    assert lines(b"\xff\xfea\x00b") == [(1, f"a{REPLACED}", True)]
    assert lines(b"a\r\nb\n", newline="") == [(1, "a\r\n", False), (2, "b\n", False)]
    assert lines(b"") == []


def test_a_file_without_a_mark_and_binary_bytes_is_plain():
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert not is_plain("a".encode(encoding))
    assert is_plain(b"caf\xe9")  # the reader fails at it, and then its lines are read one by one
    assert not is_plain(b"a\x00b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", None),
        ("A ship.\tx\r\n\x0c\x1b[1mbold\x1b[0m", None),
        (f"{'x' * 99}{REPLACED}", None),
        (f"{'x' * 98}{REPLACED}", "that is not UTF-8"),
        ("a\x00" + "x" * 1000, "that is binary"),
        ("x" * 9000 + "\x00", None),
        ("\x01\x02 a", "that is binary"),
    ],
)
def test_what_is_no_text_says_why(text, reason):
    flaw = flaw_of(text)
    assert (flaw and flaw.reason) == reason


def test_lone_surrogates_become_spaces():
    assert without_surrogates("a\ud800b") == "a b"
    assert without_surrogates("👩 é") == "👩 é"
