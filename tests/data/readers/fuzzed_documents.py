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
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from docsplit.data.corpora import load_local, stream_corpus
from docsplit.data.readers.documents import read_documents
from docsplit.data.streaming import take
from tests.data.readers.office import make_docx, make_pdf, make_xlsx

LONGEST = 60  # seconds for a file, on a machine that does other things as well
WORDS = ("a ship", "in the storm", "had torn sails;", "das Schiff fährt", "船は海を渡る。", "naïve", "café")
TAGS = ("<p>", "</p>", "<h1>", "<title>", "</title>", "<script>", "<!--", "-->", "&#x110000;", "&amp", "<![", "<?")
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 10**30, 1.5, float("nan"), float("inf"), "", " ", "\x00", "\ud800", "\x1b[2J", "\u202e"),
    *([], {}, [None], ["a", "b"], [1, "a"], [[["a"]]], {"a": {"b": [1]}}, "x" * 5000, "a\r\nb\u2028c", "#"),
)
ODD_LINES = ("5", "[]", '"a"', "{", '{"text": ' + "[" * 3000, '{"id": ' + "1" * 5000 + "}", "[" * 10**5, "\x00")
ODD_BYTES = (b"\x00", b"\xff", b"\r", b"\n", b'"', b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b[2J", b",\t", b"\x81\x8d")
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
ENCODINGS = ("utf-8-sig", "latin-1", "cp1251", "utf-16", "utf-16-le", "utf-32", "shift-jis", "utf-7")


def fuzzed_documents(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Make so many files, names and contents; the same for the same seed."""
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        suffix = draw.choice(list(VALID))
        name, content = f"{number}{suffix}", VALID[suffix](draw)
        for change in draw.choices(CHANGES, k=draw.choice((0, 1, 1, 1, 2, 3))):
            content = change(draw, content)
        if draw.random() < 0.3:
            compression = draw.choice(list(COMPRESS))
            name, content = name + compression, COMPRESS[compression](content)
            if draw.random() < 0.5:
                content = draw.choice((cut, flip, append))(draw, content)
        yield name, content


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
    return "".join(_text(draw) + draw.choice(TAGS) for _ in range(draw.randrange(20))).encode()


def _jsonl(draw: random.Random) -> bytes:
    lines = [json.dumps(row, ensure_ascii=draw.random() < 0.5) for row in _rows(draw)]
    for _ in range(draw.choice((0, 0, 1, 3))):
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(ODD_LINES))
    return "\n".join(lines).encode(errors="surrogatepass")


def _json(draw: random.Random) -> bytes:
    rows = _rows(draw)
    value: Any = draw.choice((rows, rows, rows[0], {"data": rows}, [rows]))
    return json.dumps(value, indent=draw.choice((None, 1))).encode()


def _table(draw: random.Random, separator: str) -> bytes:
    file = io.StringIO()
    header = draw.choice((["id", "text", "title"], ["text", "text", ""], ["body"], ["", "text"], ["text"]))
    writer = csv.writer(file, delimiter=separator)
    writer.writerow(header)
    for row in _rows(draw):
        cells = [row.get("id"), row.get("text"), row.get("title")][: len(header)]
        with contextlib.suppress(csv.Error):  # before Python 3.11 csv writes no NUL
            writer.writerow([*cells, *(["more"] if draw.random() < 0.05 else [])])
    return file.getvalue().encode(errors="surrogatepass")


def _columns(draw: random.Random) -> pyarrow.Table:
    texts = [str(row.get("text", "a")).encode(errors="replace").decode() for row in _rows(draw)] * 20
    columns = {
        "id": draw.choice((list(range(20)), [1.0, None] * 10, ["a", None] * 10, [b"a"] * 20, [1] * 20)),
        "text": draw.choice((texts[:20], ["a b c"] * 20, [["a", "b"]] * 20)),
        "title": draw.choice(([1984] * 20, [None] * 20, ["T"] * 20, [{"a": 1}] * 20)),
    }
    return pyarrow.table(columns)


def _sheet(draw: random.Random) -> bytes:
    rows = [[row.get("id"), row.get("text"), row.get("title")] for row in _rows(draw)]
    return make_xlsx(
        [["id", "text", "title"], *([None if cell is None else str(cell) for cell in row] for row in rows)]
    )


def _parquet(draw: random.Random) -> bytes:
    content = io.BytesIO()
    parquet.write_table(_columns(draw), content, row_group_size=draw.choice((3, 100)))
    return content.getvalue()


def _arrow(draw: random.Random) -> bytes:
    content, table = io.BytesIO(), _columns(draw)
    with draw.choice((pyarrow.ipc.new_stream, pyarrow.ipc.new_file))(content, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return content.getvalue()


VALID: dict[str, Callable[[random.Random], bytes]] = {
    **dict.fromkeys((".txt", ".md", ".rst", ".tex", ".markdown"), _lines),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _html),
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": lambda draw: _table(draw, ","),
    ".tsv": lambda draw: _table(draw, "\t"),
    ".xlsx": _sheet,
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
    for _ in range(draw.choice((1, 1, 5, 100)) if changed else 0):
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
    return content[:place] + draw.choice(ODD_BYTES) + content[place:]


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
