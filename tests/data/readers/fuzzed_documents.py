"""Damaged documents of every suffix, made from valid ones with a seed, for tests and for long runs."""

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from docsplit.data.corpora import load_local, stream_corpus
from docsplit.data.readers.documents import read_documents
from docsplit.data.streaming import take
from tests.data.readers.office import make_docx, make_pdf

LONGEST = 60  # seconds for a file, on a machine that does other things as well
WORDS = ("a ship", "in the storm", "had torn sails;", "das Schiff fährt", "船は海を渡る。", "naïve", "café")
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", " ", "\x00", "\ud800", "\x1b[2J", "\u202e"),
    *([], {}, [None], ["a", "b"], [1, "a"], [[["a"]]], {"a": {"b": [1]}}, "x" * 5000, "a\r\nb\u2028c", "#"),
)
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
ENCODINGS = ("utf-8-sig", "latin-1", "cp1251", "utf-16", "utf-16-le", "utf-32", "shift-jis", "utf-7")


@dataclass(frozen=True)
class Fuzzed:
    """A file that may be damaged.

    Attributes:
        how: the changes that made it.
    """

    name: str
    content: bytes
    how: tuple[str, ...]


def fuzzed_documents(count: int, seed: int = 0) -> Iterator[Fuzzed]:
    """Make so many files; the same for the same seed."""
    for number in range(count):
        yield _fuzzed(random.Random(f"{seed} {number}"), number)


def _fuzzed(draw: random.Random, number: int) -> Fuzzed:
    suffix = draw.choice(list(VALID))
    content, how = VALID[suffix](draw), [suffix]
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        change = draw.choice(CHANGES)
        content = change(draw, content)
        how.append(change.__name__)
    name = f"{number}{suffix}"
    if draw.random() < 0.3:
        compression = draw.choice(list(COMPRESS))
        content, name = COMPRESS[compression](content), name + compression
        how.append(compression)
        if draw.random() < 0.5:
            change = draw.choice((cut, flip, append))
            content = change(draw, content)
            how.append(change.__name__)
    return Fuzzed(name, content, tuple(how))


# --- Valid files, of which some rows are odd ---


def _text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randrange(1, 60))) + draw.choice(("", ".", "\n\n"))


def _rows(draw: random.Random) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(draw.randrange(1, 30)):
        row: dict[str, Any] = {"id": number, "text": _text(draw), "title": "A title"}
        for _ in range(draw.choice((0, 0, 0, 1, 2))):
            row[draw.choice(("id", "text", "title", "sections", "other", ""))] = draw.choice(ODD_VALUES)
        if draw.random() < 0.1:
            del row[draw.choice(list(row))]
        rows.append(row)
    return rows


def _lines(draw: random.Random) -> bytes:
    return "".join(_text(draw) + "\n" for _ in range(draw.randrange(30))).encode()


def _html(draw: random.Random) -> bytes:
    tags = (
        "<p>",
        "</p>",
        "<h1>",
        "<title>",
        "</title>",
        "<script>",
        "<!--",
        "-->",
        "<",
        "&#x110000;",
        "&amp",
        "<![",
        "<?",
    )
    return "".join(_text(draw) + draw.choice(tags) for _ in range(draw.randrange(20))).encode()


def _jsonl(draw: random.Random) -> bytes:
    odd = (
        "5",
        "[]",
        "null",
        '"a"',
        "{",
        '{"text": ' + "[" * 3000,
        '{"id": ' + "1" * 5000 + "}",
        "[" * 100_000,
        "\x00",
    )
    lines = [json.dumps(row, ensure_ascii=draw.random() < 0.5) for row in _rows(draw)]
    for _ in range(draw.choice((0, 0, 1, 3))):
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(odd))
    return "\n".join(lines).encode(errors="surrogatepass")


def _json(draw: random.Random) -> bytes:
    rows = _rows(draw)
    value: Any = draw.choice(
        (rows, rows, rows[0], {"data": rows}, [rows], {"text": [row.get("text") for row in rows]})
    )
    return json.dumps(value, indent=draw.choice((None, 1))).encode()


def _table(separator: str) -> Callable[[random.Random], bytes]:
    def make(draw: random.Random) -> bytes:
        file = io.StringIO()
        writer = csv.writer(file, delimiter=separator)
        header = draw.choice((["id", "text", "title"], ["text", "text", ""], ["body"], ["", "text"], ["text"]))
        writer.writerow(header)
        for row in _rows(draw):
            cells = [row.get("id"), row.get("text"), row.get("title"), *(["more"] if draw.random() < 0.05 else [])]
            with contextlib.suppress(csv.Error):  # before Python 3.11 csv writes no NUL
                writer.writerow(cells[: len(header) + (len(cells) > 3)])
        text = file.getvalue()
        if draw.random() < 0.2:
            place = draw.randrange(len(text) + 1)
            text = text[:place] + '"' + text[place:]
        return text.encode(errors="surrogatepass")

    return make


def _columns(draw: random.Random) -> pyarrow.Table:
    rows, size = _rows(draw), 20
    columns = {
        "id": draw.choice((list(range(size)), [1.0, None] * 10, ["a", None] * 10, [b"a"] * size, [1] * size)),
        "text": draw.choice(([row.get("text", "a") for row in rows] * size, ["a b c"] * size, [["a", "b"]] * size)),
        "title": draw.choice(([1984] * size, [None] * size, ["T"] * size, [{"a": 1}] * size)),
    }
    columns["text"] = [text if isinstance(text, str | list) else "a" for text in columns["text"]][:size]
    columns["text"] = [str(text).encode(errors="replace").decode() for text in columns["text"]]
    return pyarrow.table(columns)


def _parquet(draw: random.Random) -> bytes:
    content = io.BytesIO()
    parquet.write_table(_columns(draw), content, row_group_size=draw.choice((3, 100)))
    return content.getvalue()


def _arrow(draw: random.Random) -> bytes:
    content, table = io.BytesIO(), _columns(draw)
    new = draw.choice((pyarrow.ipc.new_stream, pyarrow.ipc.new_file))
    with new(content, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return content.getvalue()


VALID: dict[str, Callable[[random.Random], bytes]] = {
    **dict.fromkeys((".txt", ".md", ".rst", ".tex", ".markdown"), _lines),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _html),
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".pdf": lambda draw: make_pdf([_text(draw).encode("ascii", "ignore").decode()]),
    ".docx": lambda draw: make_docx("A title", "A text."),
    ".pptx": lambda draw: make_docx("A title", "A text of another kind of file."),
}


# --- Damage ---


def flip(draw: random.Random, content: bytes) -> bytes:
    """Change some bits."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 5, 100))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(draw: random.Random, content: bytes) -> bytes:
    """Lose the end, or the beginning."""
    place = draw.randrange(len(content) + 1)
    return content[:place] if draw.random() < 0.8 else content[place:]


def append(draw: random.Random, content: bytes) -> bytes:
    """Add something at the end."""
    return content + draw.choice((b"\x00" * 100, b"\n" * 100, draw.randbytes(50), b'"', b"{", content))


def insert(draw: random.Random, content: bytes) -> bytes:
    """Put something into the middle."""
    place = draw.randrange(len(content) + 1)
    odd = (
        b"\x00",
        b"\xff",
        b"\r",
        b"\n",
        b'"',
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\x1b[2J",
        draw.randbytes(20),
        b",\t",
    )
    return content[:place] + draw.choice(odd) + content[place:]


def recode(draw: random.Random, content: bytes) -> bytes:
    """Write it in another encoding."""
    return content.decode(errors="replace").encode(draw.choice(ENCODINGS), errors="replace")


def empty(draw: random.Random, content: bytes) -> bytes:
    """Leave nothing, or white space."""
    return draw.choice((b"", b"\n", b" \n\t\n", b"\xef\xbb\xbf", b"\xff\xfe"))


def other(draw: random.Random, content: bytes) -> bytes:
    """Be a file of another kind."""
    return draw.choice(list(VALID.values()))(draw)


CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip, cut, append, insert, recode, empty, other)


# --- Reading ---

READERS: dict[str, Callable[[Path], int]] = {
    "search": lambda path: sum(len(document.text.encode()) > -1 for document in read_documents(path)),
    "map": lambda path: len(load_local(path, "text").to_list()),
    "table": lambda path: len(load_local(path).to_list()),
    "stream": lambda path: len(take(stream_corpus(str(path), text_column="text"), 10**6, "text")),
}


def failure_of(reader: str, path: Path) -> str | None:
    """Read a file or folder; return what went wrong: anything but documents or one line that names the file."""

    def too_late(*_: object) -> None:
        raise TimeoutError(f"{path} is still read after {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LONGEST)
    try:
        READERS[reader](path)
    except ValueError as error:
        message = str(error)
        if type(error).__name__ not in ("ValueError", "Unreadable") or "\n" in message or path.name not in message:
            return f"{type(error).__name__}: {message}"
    except BaseException:  # a panic of a library below as well
        return traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None
