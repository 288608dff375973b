"""Read the rows of .json, .jsonl, .csv, .tsv files, and of .txt by lines, one by one, as a stream reads them.

A row that cannot be read costs that row alone: it is counted with its file and line, or refused where a table has to
be whole. Cells of .csv and .tsv stay strings, so that the id 0012 is not read as 12.
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from docsplit.data.readers.base import Problems, Unreadable
from docsplit.data.readers.decoding import HEAD, LONGEST_MARK, Line, flaw_of, lines_of
from docsplit.data.readers.files import DAMAGED, File
from docsplit.runtime.files import JsonObject

LINE_SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt")
Row = tuple[int, JsonObject]  # its number, from 0; rows that cannot be read count, so that numbers stay when they can
CUT_OFF = "and all after it, since the file is damaged there"
NO_JSON = "that are no JSON"
NO_OBJECT = "that are no JSON objects"
_NUL = "\ufdd0"  # stands for NUL, which csv refuses before Python 3.11; no text has this code point
_END = f"{_NUL}the end of the file{_NUL}"  # a row that a quote that is never closed swallows with all rows before it

csv.field_size_limit(2**31 - 1)  # of the whole process; the default refuses texts of more than 131,072 characters


def read_line_rows(file: File, problems: Problems) -> Iterator[Row]:
    """Read the rows of a file, and count in `problems` those that cannot be read.

    Raises:
        Unreadable: if the file cannot be opened, or is binary; if rows are refused.
    """
    head = file.head(LONGEST_MARK)
    newline = "" if file.suffix in (".csv", ".tsv") else None
    with file.open() as content:
        lines = _Lines(file, lines_of(content, head, newline), problems)
        for row in _READERS[file.suffix](lines):
            if lines.mended:
                problems.note("mended", lines.mended)
                lines.mended = ""
            yield row


class _Lines:
    """The lines of a file up to where it is damaged, and the account of rows that cannot be read.

    Attributes:
        number: of the line that was given last.
        mended: the place of the first line since the last row with bytes that could not be read.
        is_cut_off: whether the file is damaged after the last line.
    """

    def __init__(self, file: File, lines: Iterator[Line], problems: Problems):
        self.file, self.number, self.mended, self.is_cut_off = file, 0, "", False
        self._lines, self._problems = lines, problems

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                line = next(self._lines)
            except StopIteration:
                return
            except DAMAGED as error:
                if self.number == 0:
                    raise self.file.cannot_be_opened(error) from error
                self.is_cut_off = True
                self.skip(CUT_OFF, self.place(self.number + 1), " ".join(str(error).split()))
                return
            self.number = line.number
            if line.is_mended:
                self.mended = self.mended or self.place()
            yield line.text

    def place(self, number: int | None = None) -> str:
        """Name the file and a line, by default the last one."""
        return f"{self.file.name}, line {number or self.number}"

    def skip(self, reason: str, place: str = "", cause: str = "", remedy: str = "") -> None:
        """Count a row that cannot be read, by default that of the last line."""
        self.mended = ""
        self._problems.skip_row(f"{self.file.suffix} {reason}", place or self.place(), cause, remedy)

    def is_text(self, text: str, place: str = "") -> bool:
        """Whether a part of the file is text; if not, it is counted. A table keeps all rows, whatever they are."""
        flaw = None if self._problems.refuses_rows else flaw_of(text)
        if flaw:
            self.skip(flaw.reason.replace("that is", "that are"), place, remedy=flaw.remedy)
        return flaw is None

    def note(self, kind: str, place: str) -> None:
        """Count a row that is read although something is wrong with it."""
        self._problems.note(kind, place)


def _text_rows(lines: _Lines) -> Iterator[Row]:
    read = 0
    for row, line in enumerate(lines):
        text = line.removesuffix("\n")
        if "\x00" in text and read < HEAD:  # other lines of a binary file might pass for text
            raise Unreadable("that is binary", f"{lines.file.path} is binary, from line {lines.number} on.")
        read += len(line)
        if lines.is_text(text):
            yield row, {"text": text}


# --- JSON ---


def _json_rows(lines: _Lines) -> Iterator[Row]:
    """Read JSON lines, or one array or object over many lines, whichever the first line shows it to be."""
    rest = iter(lines)
    first = next((line for line in rest if line.strip()), "")
    is_spread = first.strip() == "{" or (first.lstrip().startswith("[") and not _parses(first))
    if is_spread:
        yield from _json_document([first, *rest], lines)
        return
    number = 0
    first_line = lines.number
    for line in itertools.chain([first], rest):
        if not line.strip():
            continue
        place = lines.place(first_line if number == 0 else None)
        value = _parsed(line, place, lines)
        for item in value if isinstance(value, list) and number == 0 else [value]:
            if item is not _BROKEN and _is_object(item, place, lines):
                yield number, item
            number += 1


_BROKEN = object()


def _parsed(line: str, place: str, lines: _Lines) -> Any:
    """Parse a line. `json` raises RecursionError for deep nesting, and ValueError for numbers of thousands of digits.

    Returns:
        _BROKEN if it cannot be parsed or is no text.
    """
    if not lines.is_text(line, place):
        return _BROKEN
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        lines.skip(NO_JSON, place, str(error))
        return _BROKEN


def _parses(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_object(value: Any, place: str, lines: _Lines) -> bool:
    if not isinstance(value, dict):
        lines.skip(NO_OBJECT, place, f"found {type(value).__name__}")
    return isinstance(value, dict)


def _json_document(content: list[str], lines: _Lines) -> Iterator[Row]:
    """Read an array of rows, item by item up to where it is broken, or one object, which is a row."""
    text = "".join(content)
    decoder = json.JSONDecoder()
    place = text.index("[") + 1 if text.lstrip().startswith("[") else 0
    is_array, before, line = place > 0, 0, 1 + lines.number - len(content)
    for number in itertools.count():
        while text[place : place + 1].isspace() or (is_array and number and text[place : place + 1] == ","):
            place += 1
        if place == len(text) or (is_array and text[place] == "]"):
            if is_array and place == len(text) and not lines.is_cut_off:
                lines.skip("and all after it, since the array does not end", lines.place())
            return
        line, before = line + text.count("\n", before, place), place
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            if not lines.is_cut_off:
                lines.skip(f"{NO_JSON}, and all after them", lines.place(line), str(error))
            return
        if lines.is_text(text[place:end], lines.place(line)) and _is_object(value, lines.place(line), lines):
            yield number, value
        place = end


# --- Tables ---


def _table_rows(lines: _Lines) -> Iterator[Row]:
    """Read a table with a header. Rows that are too short have no value in their last columns."""
    delimiter = "\t" if lines.file.suffix == ".tsv" else ","
    content = (line.replace("\x00", _NUL) for line in lines)
    table = csv.reader(itertools.chain(content, ["\n", _END]), delimiter=delimiter)
    header: list[str] | None = None
    number, first_line = -1, 1
    while True:
        try:
            fields = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            lines.skip("that are no row of a table", lines.place(first_line), str(error))
            fields, number = [], number + (header is not None)
        place, first_line = lines.place(first_line), lines.number + 1
        if fields == [_END]:
            return
        if fields and _END in fields[-1]:
            lines.skip("and all after it, since a quote is never closed", place)
            return
        if not any(fields):
            continue
        fields = [field.replace(_NUL, "\x00") for field in fields]
        if header is None:
            header = fields
            continue
        number += 1
        if any(fields[len(header) :]):
            cause = f"{len(fields)} fields, expected {len(header)}"
            lines.skip("with more fields than the header", place, cause)
        elif lines.is_text("\n".join(fields), place):
            if delimiter == "\t" and any("\t" in field and "\n" in field for field in fields):
                lines.note("swallowed", place)
            row: JsonObject = dict.fromkeys(header)
            for column, field in reversed(list(zip(header, fields))):  # of columns of one name, the first counts
                row[column] = field
            yield number, row


_READERS: dict[str, Callable[[_Lines], Iterator[Row]]] = {
    ".txt": _text_rows,
    ".json": _json_rows,
    ".jsonl": _json_rows,
    ".csv": _table_rows,
    ".tsv": _table_rows,
}
