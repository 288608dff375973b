"""Read data files with a document in each row: text files line by line, parquet and arrow files batch by batch.

A row that cannot be read costs that row alone: it is counted with its file and line, or refused where a table has to
be whole. Cells of .csv and .tsv stay strings, so that the id 0012 is not read as 12.
"""

import csv
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow
from pyarrow import parquet

from docsplit.data.passages import SECTION_BREAK
from docsplit.data.readers.base import Problems, Unreadable, normalized
from docsplit.data.readers.files import DAMAGED, HEAD, UNPACK, File, encoding_of, flaw_of, lines_of, printable
from docsplit.runtime.files import JsonObject

Row = tuple[int, JsonObject]  # its number, from 0; rows that cannot be read count, so that numbers stay when they can
CUT_OFF = "and all after it, since the file is damaged there"
NO_JSON = "that are no JSON"
PEEKED_ROWS = 1000  # in which the text column has to be
DAMAGED_ROWS = (pyarrow.ArrowException, OSError, UnicodeDecodeError)  # what reading a parquet or arrow file may raise
_NUL = "\ufdd0"  # stands for NUL, which csv refuses before Python 3.11; no text has this code point
_END = f"{_NUL}the end of the file{_NUL}"  # a row that a quote that is never closed swallows with all rows before it

csv.field_size_limit(2**31 - 1)  # of the whole process; the default refuses texts of more than 131,072 characters


@dataclass(frozen=True)
class Columns:
    """How data files are read.

    Attributes:
        text: the column of the text.
        id: the column of the ids; None for the first of id, _id and doc_id that a row has.
        encoding: of text files of all kinds; None: UTF-8, or what is detected.
    """

    text: str = "text"
    id: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        try:
            bytes(4).decode(self.encoding or "utf-8", errors="ignore")
        except LookupError as error:
            raise ValueError(f"--encoding {self.encoding!r} is none that Python knows, such as cp1252.") from error


# --- Rows of any file ---


def read_rows(file: File, problems: Problems, encoding: str | None = None, part: int | None = None) -> Iterator[Row]:
    """Read the rows of a file, or of a part of a parquet file, and count in `problems` those that cannot be read.

    Raises:
        Unreadable: if the file cannot be opened, or has nothing that can be read; if rows are refused.
    """
    if file.suffix in (".parquet", ".arrow"):
        return _read_arrow(file, problems, part)
    return read_line_rows(file, problems, encoding)


def read_texts(
    file: File, columns: Columns, problems: Problems, part: int | None = None
) -> Iterator[tuple[int, JsonObject, str]]:
    """Read number, row and text of the rows of a data file, or of a part of it.

    Raises:
        Unreadable: as `read_rows`, and without rows or texts.
        ValueError: if there is no such id column.
    """
    rows = read_rows(file, problems, columns.encoding, part)
    head: list[Row] = []
    names: dict[str, None] = {}
    for number, row in rows:
        head.append((number, row))
        names |= dict.fromkeys(row)
        has_text = columns.text in names or "sections" in names
        if (has_text and (columns.id is None or columns.id in names)) or len(head) == PEEKED_ROWS:
            break
    if not head and part:  # it may be empty: the file has rows in other parts
        return
    if not head:
        skipped = problems.skipped("row")
        reason = f"that cannot be read as {file.suffix.removeprefix('.')}" if skipped else "without rows"
        raise Unreadable(reason, f"{file.path} has no rows{' that can be read. ' if skipped else ''}{skipped}.")
    try:
        check_text_column(list(names), columns.text)
    except ValueError as error:
        raise Unreadable(f"without a column {columns.text!r}", f"{file.path}: {error}") from error
    if columns.id and columns.id not in names:
        raise ValueError(f"--id_column is {columns.id!r}, but the columns of {file.path} are {list(names)}.")
    for number, row in itertools.chain(head, rows):
        yield number, row, text_of_row(row, columns.text) or ""


def parts_of(file: File) -> list[int | None]:
    """List the parts of a file that can be read independently: the row groups of a parquet file.

    Returns:
        [None] for a file that has no parts, or cannot be read.
    """
    if file.suffix != ".parquet":
        return [None]
    try:
        with file.open() as content:
            return list(range(parquet.ParquetFile(content).num_row_groups)) or [None]
    except (Unreadable, *DAMAGED_ROWS):
        return [None]


def _read_arrow(file: File, problems: Problems, part: int | None) -> Iterator[Row]:
    """Read the rows of a parquet or arrow file up to where it is damaged."""
    number = 0
    with file.open() as content:
        try:
            for batch in _batches(file, content, part):
                batch.validate(full=True)  # also that strings are UTF-8
                for row in batch.to_pylist():
                    yield number, row
                    number += 1
        except DAMAGED_ROWS as error:
            cause = " ".join(str(error).split())
            if number == 0 and not part:
                kind = file.suffix.removeprefix(".")
                message = f"{file.path} cannot be read as {kind}: {cause}"
                raise Unreadable(f"that cannot be read as {kind}", message) from error
            problems.skip_row(f"{file.suffix} {CUT_OFF}", f"{file.name}, row {number}", cause)


def _batches(file: File, content: IO[bytes], part: int | None) -> Iterator[pyarrow.RecordBatch]:
    if file.suffix == ".parquet":
        groups = None if part is None else [part]
        yield from parquet.ParquetFile(content).iter_batches(1000, row_groups=groups)
        return
    try:
        yield from pyarrow.ipc.open_stream(content)
    except pyarrow.ArrowInvalid:
        content.seek(0)
        reader = pyarrow.ipc.open_file(content)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


# --- Rows of text files ---


def read_line_rows(file: File, problems: Problems, encoding: str | None = None) -> Iterator[Row]:
    """Read the rows of a .json, .jsonl, .csv or .tsv file, or of a .txt file by lines.

    Raises:
        Unreadable: if the file cannot be opened, or is binary or an archive; if rows are refused.
    """
    head = file.read(512)
    if head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar":
        raise Unreadable("that is an archive", f"{file.path} is an archive: {UNPACK}", UNPACK)
    with file.open() as content:
        found = encoding_of(content, encoding)
    if found.is_detected:
        problems.note("detected", f"{file.name} as {found.name}")
    read = {".csv": _table_rows, ".tsv": _table_rows, ".txt": _text_rows}.get(file.suffix, _json_rows)
    with file.open() as content:
        lines = _Lines(file, problems, lines_of(content, found, "" if read == _table_rows else None))
        for row in read(lines):
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

    def __init__(self, file: File, problems: Problems, lines: Iterator[Any]):
        self.file, self.problems, self.lines = file, problems, lines
        self.number, self.mended, self.is_cut_off = 0, "", False

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.lines:
                self.number = line.number
                if line.is_mended:
                    self.mended = self.mended or self.place()
                yield line.text
        except DAMAGED as error:
            if self.number == 0:
                raise self.file.cannot_be_opened(error) from error
            self.is_cut_off = True
            self.skip(CUT_OFF, self.place(self.number + 1), " ".join(str(error).split()))

    def place(self, number: int | None = None) -> str:
        """Name the file and a line, by default the last one."""
        return f"{self.file.name}, line {number or self.number}"

    def skip(self, reason: str, place: str, cause: str = "", remedy: str = "") -> None:
        """Count a row that cannot be read."""
        self.mended = ""
        self.problems.skip_row(f"{self.file.suffix} {reason}", place, cause, remedy)

    def is_text(self, text: str, place: str) -> bool:
        """Whether a part of the file is text; if not, it is counted. A table keeps all rows, whatever they are."""
        flaw = None if self.problems.refuses_rows else flaw_of(text)
        if flaw:
            self.skip(f"that are {flaw}", place, remedy="" if flaw == "binary" else "--encoding")
        return flaw is None


def _text_rows(lines: _Lines) -> Iterator[Row]:
    read = 0
    for row, line in enumerate(lines):
        text = line.removesuffix("\n")
        if "\x00" in text and read < HEAD:  # other lines of a binary file might pass for text
            raise Unreadable("that is binary", f"{lines.file.path} is binary, from line {lines.number} on.")
        read += len(line)
        if lines.is_text(text, lines.place()):
            yield row, {"text": text}


def _json_rows(lines: _Lines) -> Iterator[Row]:
    """Read JSON lines, or one array or object over many lines, whichever the first line shows it to be."""
    rest = iter(lines)
    first = next((line for line in rest if line.strip()), "")
    if first.strip() == "{" or (first.lstrip().startswith("[") and not _parses(first)):
        yield from _json_document([first, *rest], lines)
        return
    number = 0
    for line in itertools.chain([first], rest):
        if not line.strip():
            continue
        place = lines.place()
        if not lines.is_text(line, place):
            number += 1
            continue
        # json raises RecursionError for deep nesting, and ValueError for numbers of thousands of digits.
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            lines.skip(NO_JSON, place, str(error))
            number += 1
            continue
        for item in value if isinstance(value, list) and number == 0 else [value]:
            if _is_object(item, place, lines):
                yield number, item
            number += 1


def _parses(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_object(value: Any, place: str, lines: _Lines) -> bool:
    if not isinstance(value, dict):
        lines.skip("that are no JSON objects", place, f"found {type(value).__name__}")
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


def _table_rows(lines: _Lines) -> Iterator[Row]:
    """Read a table with a header. Rows that are too short have no value in their last columns."""
    delimiter = "\t" if lines.file.suffix == ".tsv" else ","
    content = (line.replace("\x00", _NUL) for line in lines)
    table = csv.reader(itertools.chain(content, ["\n", _END]), delimiter=delimiter)
    header: list[str] | None = None
    number, first_line = -1, 1
    while True:
        try:
            fields = next(table, [_END])
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
                lines.problems.note("swallowed", place)
            row: JsonObject = dict.fromkeys(header)
            for column, field in reversed(list(zip(header, fields))):  # of columns of one name, the first counts
                row[column] = field
            yield number, row


# --- Ids and texts of rows ---


class RowIds:
    """The ids of the rows of a file, all different.

    The id of a row is that of the id column, by default the first of id, _id and doc_id. In a folder the file's name
    stands before it, `file#id`, so that two files may have the same ids. A row without an id, or with one that an
    earlier row of the file has, gets `file#number`.
    """

    def __init__(self, file: File, id_column: str | None, in_folder: bool, problems: Problems):
        self.file, self.in_folder, self.problems = file, in_folder, problems
        self.columns = (id_column,) if id_column else ("id", "_id", "doc_id")
        self.given: set[str] = set()
        self.num_named, self.num_without, self.first_without = 0, 0, ""  # the latter until a row has an id

    def of(self, number: int, row: dict[str, Any]) -> str:
        """Return the id of a row, and note if it has none while others have, or one that another row has."""
        numbered = f"{self.file.name}#{number}"
        name = next((name for column in self.columns if (name := _id(row.get(column))) is not None), None)
        document_id = numbered if name is None else f"{self.file.name}#{name}" if self.in_folder else name
        self.num_named += name is not None
        if name is None:
            self.num_without, self.first_without = self.num_without + 1, self.first_without or numbered
        if self.num_named and self.num_without:
            self.problems.note("without_id", self.first_without, self.num_without)
            self.num_without, self.first_without = 0, ""
        if document_id in self.given:
            self.problems.note("repeated_id", f"{document_id} of row {number}")
            document_id = numbered
            while document_id in self.given:  # an earlier row is called like the number of this one
                document_id += "+"
        self.given.add(document_id)
        return document_id


def _id(value: Any) -> str | None:
    """Write an id as text; None for what is none: nothing, white space, no number, lists."""
    if value is None or isinstance(value, list | dict | bytes) or (isinstance(value, float) and math.isnan(value)):
        return None
    name = printable(str(value))
    return name if name.strip() else None


def check_text_column(columns: list[str], text_column: str) -> None:
    """Check that rows with these columns have a text, or sections in place of it.

    Raises:
        ValueError: naming the columns.
    """
    if text_column not in columns and "sections" not in columns:
        raise ValueError(f"--text_column is {text_column!r}, but the columns are {columns}: name one of them.")


def text_of_row(row: JsonObject, text_column: str) -> str | None:
    """Return the text of a row, joined from paragraphs or sections where it is not a string; None without one."""
    return join_paragraphs(row[text_column]) if text_column in row else join_sections(row, text_column)[text_column]


def join_paragraphs(value: Any) -> str | None:
    """Join a list of paragraphs by newlines; a string stays, but for `normalized`; anything else is None."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    return normalized(value) if isinstance(value, str) else None


def text_of_cell(value: Any, place: str) -> str:
    """Return a text, paragraphs of one, or a number, such as the title 1984, as a text; nothing is an empty text.

    Raises:
        ValueError: for anything else, naming the place.
    """
    if isinstance(value, int | float) and value == value:
        return str(value)
    text = "" if value is None else join_paragraphs(value)
    if text is None:
        raise ValueError(f"{place} is {value!r}, expected a text.")
    return text


def id_of_cell(value: Any, place: str) -> str:
    """Return an id that is a text or a whole number.

    Raises:
        ValueError: for anything else, naming the place.
    """
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f"{place} is {value!r}, expected a text or a whole number.")
    return printable(str(value))


def join_sections(row: JsonObject, text_column: str) -> dict[str, str]:
    """Join sections to one text. They are dicts, a dict of lists (older `datasets`) or strings.

    A `SECTION_BREAK` stands between sections; it is white space for all but the maker of passages. A heading without a
    text goes with the section after it. What is none of this is no text.
    """
    text, ends = "", False  # whether the last section is complete
    for heading, body in _sections_of(row):
        if content := "\n\n".join(part for part in (heading, body) if part):
            text += ("\n\n" if text else "") + (SECTION_BREAK if ends else "") + content
            ends = bool(body)
    return {text_column: text}


def headings_of(row: JsonObject) -> list[str]:
    """List the headings of a row's `sections`, without those that are empty."""
    return [heading for heading, _ in _sections_of(row) if heading]


def _sections_of(row: JsonObject) -> Iterator[tuple[str | None, str | None]]:
    """Yield heading and text of each section."""
    sections = row.get("sections") or []
    if isinstance(sections, dict):
        columns = {name: values for name, values in sections.items() if isinstance(values, list)}
        sections = [dict(zip(columns, values)) for values in zip(*columns.values())]
    for section in sections if isinstance(sections, list) else [sections]:
        parts = section if isinstance(section, dict) else {"text": section}
        yield join_paragraphs(parts.get("heading")), join_paragraphs(parts.get("text"))
