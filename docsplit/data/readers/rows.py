"""Read data files with a document in each row: text files line by line, parquet and arrow files batch by batch.

A row that cannot be read costs that row alone: it is counted with its file and line, or refused where a table has to
be whole. Cells of .csv, .tsv and .xlsx are strings, so that the id 0012 is not read as 12.
"""

import csv
import datetime
import io
import itertools
import json
import math
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from docsplit.data.passages import SECTION_BREAK, count_words
from docsplit.data.readers.base import USUAL, Problems, TableColumns, Unreadable, normalized
from docsplit.data.readers.files import DAMAGED, HEAD, MOST_UNREADABLE, File, Line, flaw_of, printable
from docsplit.data.readers.markup import without_data
from docsplit.runtime.files import JsonObject

Row = tuple[int, JsonObject]  # its number, from 0; rows that cannot be read count, so that numbers stay when they can
ID_COLUMNS = ("id", "_id", "doc_id")
_NO_NAME = re.compile(r"[.!?。！？।؟]\s*$|^-?\d+[.,:/-]\d")  # of a column: a sentence, a number, a date
DAMAGED_ROWS = (pyarrow.ArrowException, UnicodeDecodeError, *DAMAGED)  # what a parquet or arrow file may raise

csv.field_size_limit(2**31 - 1)  # of the whole process; the default refuses texts of more than 131,072 characters


# --- Rows of any file ---


def read_rows(file: File, problems: Problems, encoding: str | None = None, part: int | None = None) -> Iterator[Row]:
    """Read the rows of a file (of a .txt file its lines), or of a part of a parquet file.

    Rows that cannot be read are counted in `problems`.

    Raises:
        Unreadable: if the file cannot be opened or read, at the place where it is damaged; if rows are refused.
    """
    if file.suffix in (".parquet", ".arrow"):
        yield from enumerate(row for batch in read_batches(file, part) for row in _rows_of_batch(batch))
        return
    if file.suffix == ".xlsx":
        yield from _sheet_rows(file, problems)
        return
    head = file.read(512)
    if head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar":
        remedy = "unpack archives first (unzip, tar -xf)"
        raise Unreadable(f"that are archives: {remedy}", f"{file.path} is an archive: {remedy}")
    newline = "" if file.suffix in (".csv", ".tsv") else None
    lines = file.lines(problems, encoding, newline)
    read = {".csv": _table_rows, ".tsv": _table_rows, ".txt": _text_rows}.get(file.suffix, _json_rows)
    yield from read(file, lines, problems)


def rows_of_table(path: str | Path) -> Iterator[tuple[str, JsonObject]]:
    """Read the rows of a data file that has to be whole, each with its place: `a.csv, row 1`.

    Raises:
        Unreadable: if the file, or one of its rows, cannot be read.
    """
    problems = Problems(refuses_rows=True)
    for number, row in read_rows(File(Path(path), str(path)), problems):
        yield f"{path}, row {number + 1}", row
    problems.log()


def read_batches(file: File, part: int | None = None) -> Iterator[pyarrow.RecordBatch]:
    """Read a parquet or arrow file, or a row group of the former, up to where it is damaged.

    Raises:
        Unreadable: there.
    """
    number = 0
    with file.open() as content:
        try:
            for batch in _batches(file, content, part):
                batch.validate(full=True)  # also that strings are UTF-8
                yield batch
                number += len(batch)
        except DAMAGED_ROWS as error:
            raise file.unreadable(error, number) from error


def _rows_of_batch(batch: pyarrow.RecordBatch) -> list[JsonObject]:
    """List the rows of a batch; bytes are texts where they are UTF-8, which some programs do not say."""
    has_bytes = any("binary" in str(field.type) for field in batch.schema)
    return [_decoded(row) for row in batch.to_pylist()] if has_bytes else batch.to_pylist()


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _decoded(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(_decoded, value))
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value


def _batches(file: File, content: Any, part: int | None) -> Iterator[pyarrow.RecordBatch]:
    if file.suffix == ".parquet":
        yield from parquet.ParquetFile(content).iter_batches(1000, row_groups=None if part is None else [part])
        return
    try:
        yield from pyarrow.ipc.open_stream(content)
    except pyarrow.ArrowInvalid:
        content.seek(0)
        reader = pyarrow.ipc.open_file(content)
        yield from map(reader.get_batch, range(reader.num_record_batches))


def parts_of(file: File) -> list[int | None]:
    """List the parts of a file that can be read independently: the row groups of a parquet file, otherwise [None]."""
    if file.suffix != ".parquet":
        return [None]
    try:
        with file.open() as content:
            return list(range(parquet.ParquetFile(content).num_row_groups)) or [None]
    except (Unreadable, *DAMAGED_ROWS):
        return [None]


def read_texts(
    file: File, columns: TableColumns, problems: Problems, part: int | None = None
) -> Iterator[tuple[int, JsonObject, str]]:
    """Read number, row and text of the rows of a data file, or of a part of it.

    Raises:
        Unreadable: as `read_rows`, and without rows or texts.
        ValueError: if there is no such id column.
    """
    rows = read_rows(file, problems, columns.encoding, part)
    # The first rows show which columns there are; a row need not have all.
    head: list[Row] = []
    names: dict[str, None] = {}
    for number, row in rows:
        head.append((number, row))
        names |= dict.fromkeys(row)
        has_text = columns.text in names or "sections" in names
        others = {*columns.more, *([columns.id] if columns.id else [])}
        if (has_text and others <= names.keys()) or len(head) == 1000:
            break
    if not head and part:  # it may be empty: the file has rows in other parts
        return
    if not head:
        skipped = problems.warnings()
        raise Unreadable("without a row that can be read", ". ".join([f"{file.path} has no rows to read", *skipped]))
    try:
        check_text_column(list(names), columns.text)
        refuse_missing_columns("--text_column", columns.more, list(names))
    except ValueError as error:
        wanted = " or ".join(map(repr, (columns.text, *columns.more)))
        raise Unreadable(f"without a column {wanted}", f"{file.path}: {error}") from error
    if columns.id:
        refuse_missing_columns("--id_column", [columns.id], list(names), str(file.path))
    for number, row in itertools.chain(head, rows):
        place = f"{file.name}, row {number + 1}"
        if isinstance(row.get(columns.text), bytes):
            problems.skip_row("whose text is no utf-8", place)
            continue
        yield number, row, without_data(text_of_row(row, columns.text, columns.more) or "", problems, place)


# --- Rows of text files ---


def _is_text(text: str, place: str, problems: Problems) -> bool:
    """Whether a row is text; if not, it is counted. A table keeps all rows, whatever they are.

    A row is so short that one odd character says nothing, unless it stands for bytes that cannot be decoded.
    """
    most = MOST_UNREADABLE if place in problems.undecoded else 0.5
    flaw = None if problems.refuses_rows else flaw_of(text, most)
    if flaw:
        problems.skip_row(f"that are {flaw}", place)
    return flaw is None


def _text_rows(file: File, lines: Iterator[Line], problems: Problems) -> Iterator[Row]:
    read = 0
    for number, line in lines:
        if "\x00" in line and read < HEAD:  # other lines of a binary file might pass for text
            raise Unreadable("that are binary", f"{file.path} is binary, from line {number} on.")
        read += len(line)
        if _is_text(line, f"{file.name}, line {number}", problems):
            yield number - 1, {"text": line.removesuffix("\n")}


def _json_rows(file: File, lines: Iterator[Line], problems: Problems) -> Iterator[Row]:
    """Read JSON lines, or one array or object over many lines, whichever the first line shows it to be."""
    start, first = next((line for line in lines if line[1].strip()), (1, ""))
    # json raises RecursionError for deep nesting, and ValueError for numbers of thousands of digits.
    if first.strip() == "{" or first.lstrip().startswith("["):
        try:
            values = json.loads("".join([first, *(line for _, line in lines)]))
        except (ValueError, RecursionError) as error:
            raise Unreadable("that are no JSON", f"{file.path} is no JSON: {error}") from error
        _refuse_columns(values, file)
        for number, value in enumerate(values if isinstance(values, list) else [values]):
            if _is_object(value, f"{file.name}, row {number}", problems):
                yield number, value
        return
    filled = (line for line in itertools.chain([(start, first)], lines) if line[1].strip())
    begin = list(itertools.islice(filled, 2))
    for number, (line_number, line) in enumerate(itertools.chain(begin, filled)):
        place = f"{file.name}, line {line_number}"
        if not _is_text(line, place, problems):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.skip_row("that are no JSON", place, str(error))
            continue
        if len(begin) == 1:
            _refuse_columns(value, file)
        if _is_object(value, place, problems):
            yield number, value


def _refuse_columns(value: Any, file: File) -> None:
    """Refuse the one value of a file if it is a table by its columns, or by the names of its rows.

    pandas writes {"text": {"0": "a"}}, {"text": ["a"]}, {"0": {"text": "a"}}, and columns or a schema beside the data.

    Raises:
        Unreadable: naming how rows are written.
    """
    if not isinstance(value, dict) or "sections" in value or not value:
        return
    cells = list(value.values())
    are_lists = all(isinstance(cell, list) for cell in cells) and len(set(map(len, cells))) == 1
    has_data = "data" in value and not value.keys().isdisjoint(("columns", "schema"))
    if are_lists or has_data or all(isinstance(cell, dict) for cell in cells):
        reason = 'that hold columns, or rows by name: write a list of rows, in pandas to_json(..., orient="records")'
        raise Unreadable(reason, f"{file.path} is one of the files {reason}")


def _is_object(value: Any, place: str, problems: Problems) -> bool:
    if not isinstance(value, dict):
        problems.skip_row("that are no JSON objects", place, f"found {type(value).__name__}")
    return isinstance(value, dict)


class _Lines:
    """Lines for a `csv.reader`, with those that it took for a row; what is put into `returned` it gets again."""

    def __init__(self, lines: Iterator[Line]):
        self.lines = lines
        self.taken: list[Line] = []
        self.returned: deque[Line] = deque()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.taken.append(self.returned.popleft() if self.returned else next(self.lines))
        return self.taken[-1][1]


def _table_rows(file: File, lines: Iterator[Line], problems: Problems) -> Iterator[Row]:
    """Read a table with a header. Rows that are too short have no value in their last columns.

    A quote that begins a field and whose match does not end one is read as it stands, if each line up to there is a
    row of its own: rows between two such quotes stay rows.
    """
    delimiter, lines = _delimiter(file, lines)
    source = _Lines(lines)
    table = csv.reader(source, delimiter=delimiter, skipinitialspace=True, strict=True)
    header: list[str] | None = None
    number = -1
    while True:
        source.taken = []
        fields, flaw = [], ""
        try:
            fields = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            flaw = str(error)
        taken = source.taken
        place = f"{file.name}, line {taken[0][0]}"
        are_rows = (flaw or len(taken) > 1) and _are_rows(taken, delimiter, len(header or ()))
        if flaw:
            if are_rows:
                fields = _split(taken[0], delimiter)
                source.returned.extendleft(reversed(taken[1:]))
            elif "unexpected end" in flaw:
                problems.skip_row("with a quote that is never closed, and all after it", place)
                return
            elif len(taken) == 1 and "expected after" in flaw:
                fields = next(csv.reader([taken[0][1].rstrip("\r\n")], delimiter=delimiter, skipinitialspace=True))
            else:
                problems.skip_row("that are no rows of a table", place, f"{flaw}, to line {taken[-1][0]}")
                number += header is not None
                continue
            problems.add("text", "with a stray quote, read as it stands", place)
        if not any(fields):
            continue
        if header is None:
            header = _header(fields)
            continue
        number += 1
        row = _row(header, fields, place, problems)
        if row is not None and _is_text("\n".join(fields), place, problems):
            if are_rows and not flaw:
                kind = "of lines that are rows each: if a quote made one row of many, write the file as jsonl"
                if len(taken) > 2 and problems.refuses_rows:  # two lines may be a text by chance
                    problems.skip_row(kind, place)
                problems.add("text", kind, place)
            yield number, row


def _row(header: list[str], cells: Sequence[str | None], place: str, problems: Problems) -> JsonObject | None:
    """Name the cells of a row; a row with a cell that has no column is counted, and None."""
    if any(cells[len(header) :]):
        cause = f"{len(cells)} fields, expected {len(header)}"
        problems.skip_row("with more fields than the header", place, cause)
        return None
    return _named(header, cells)


def _named(header: list[str], cells: Sequence[str | None]) -> JsonObject:
    """Name the cells of a row; of columns of one name the first counts, and those without a cell have None."""
    return dict.fromkeys(header) | dict(reversed(list(zip(header, cells))))


def _delimiter(file: File, lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """Find what separates the cells of a table in its first line; return the lines, without `sep=;` of Excel."""
    usual = "\t" if file.suffix == ".tsv" else ","
    first = next((line for line in lines if line[1].strip()), None)
    if first is None:
        return usual, lines
    if (stated := re.fullmatch(r"sep=(.)\s*", first[1])) is not None:
        return stated[1], lines
    unquoted = re.sub('"[^"]*"', "", first[1])
    # The usual one, unless the header has more of another: its names may have a comma
    return max(usual, *";\t,|", key=unquoted.count), itertools.chain([first], lines)


def _header(cells: Sequence[str | None]) -> list[str]:
    """Write names of columns as one types them: in NFC, without white space at the ends."""
    return [normalized(name or "").strip() for name in cells]


def _split(line: Line, delimiter: str) -> list[str]:
    """Split a line at each delimiter, whatever stands between quotes."""
    return line[1].rstrip("\r\n").split(delimiter)


def _are_rows(lines: list[Line], delimiter: str, count: int) -> bool:
    """Whether each line is a row of its own: `count` cells, two or more, with something in each.

    A cell of a row does not begin with a space, as the words after a comma of prose do.
    """
    rows = [_split(line, delimiter) for line in lines]
    return count > 1 and all(len(row) == count and all(cell and not cell[0].isspace() for cell in row) for row in rows)


# --- Rows of spreadsheets ---


def _sheet_rows(file: File, problems: Problems) -> Iterator[Row]:
    """Read the first visible sheet of a workbook, whose first row is the header; cells are texts, as in a .csv of it.

    Raises:
        Unreadable: if it is damaged, or none.
    """
    from openpyxl import load_workbook
    from openpyxl.utils.escape import unescape

    warnings.filterwarnings("ignore", category=UserWarning, module="openpyxl")  # of styles that it does not know
    content = io.BytesIO(file.read())
    try:
        book = load_workbook(content, read_only=True, data_only=True)  # the values of formulas
        sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
        sheet = sheets[0]
        sheet.reset_dimensions()  # some programs write wrong ones
        cells = ([_text_of_value(value) for value in row] for row in sheet.iter_rows(values_only=True))
        # Of what Excel writes as `_x000D_`, the end of a line, openpyxl leaves the code
        lines = ((line, [cell and unescape(cell) for cell in row]) for line, row in enumerate(cells, 1) if any(row))
        # Lines with one cell above a table of several columns are its title, unless that is the name of a column
        first = list(itertools.islice(lines, 20))
        widths = [sum(map(bool, row)) for _, row in first]
        is_wide = 2 * widths.count(1) < len(widths) and USUAL.text not in _header(first[0][1])
        above = next(number for number, width in enumerate(widths) if width > 1) if is_wide else 0
        if above:
            problems.add("text", "that are lines above the header, left out", f"{file.name}, row {first[0][0]}", above)
        header = _header(first[above][1] if first else [])
        for number, (line, row) in enumerate(itertools.chain(first[above + 1 :], lines)):
            if any(row[len(header) :]):
                problems.add(
                    "text", "with cells beside the columns of the header, left out", f"{file.name}, row {line}"
                )
            yield number, _named(header, row)
    except Exception as error:  # of any library below: a damaged file must not end a build of thousands
        raise file.unreadable(error) from error
    if len(sheets) > 1:
        problems.add("text", f"of several sheets: the first, {sheet.title}, is read", file.name)


def _text_of_value(value: Any) -> str | None:
    """Write a cell's value as a text: a day without a time by its date."""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return None if value is None else text_of_scalar(value)


def text_of_scalar(value: Any) -> str:
    """Write a value as a text: a whole number without a point, as it was before its column had gaps."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


# --- Ids and texts of rows ---


def ids_of_rows(file: File, id_column: str | None, in_folder: bool, problems: Problems) -> Callable[[int, Any], str]:
    """Return the function that names the rows of a file, by their numbers and contents, all differently.

    The id of a row is that of the id column, by default the first of id, _id and doc_id. In a folder the file's name
    stands before it, `file#id`, so that two files may have the same ids. A row without an id, or with one that an
    earlier row of the file has, gets `file#number`; repeated ids are counted.
    """
    columns = (id_column,) if id_column else ID_COLUMNS
    given: set[str] = set()

    def id_of(number: int, row: JsonObject) -> str:
        names = filter(None, (_id(row.get(column)) for column in columns))
        numbered = f"{file.name}#{number}"
        name = next(names, None)
        document_id = numbered if name is None else f"{file.name}#{name}" if in_folder else name
        if document_id in given:
            problems.add("text", "with an id that another row has: their ids are file#row", f"{name} of row {number}")
            document_id = numbered
            while document_id in given:  # an earlier row is called like the number of this one
                document_id += "+"
        given.add(document_id)
        return document_id

    return id_of


def _id(value: Any) -> str:
    """Write an id as text; "" for what is none: nothing, white space, no number, lists."""
    if value is None or isinstance(value, list | dict | bytes) or (isinstance(value, float) and math.isnan(value)):
        return ""
    name = printable(text_of_scalar(value))
    return name if name.strip() else ""


def check_text_column(columns: list[str], text_column: str) -> None:
    """Check that rows with these columns have a text, or sections in place of it.

    Raises:
        ValueError: naming the columns.
    """
    if "sections" not in columns:
        refuse_missing_columns("--text_column", [text_column], columns)


def refuse_missing_columns(option: str, wanted: Sequence[str], columns: list[str], source: str = "") -> None:
    """Refuse columns that a table does not have.

    Raises:
        ValueError: naming those that it has.
    """
    if missing := [name for name in wanted if name not in columns]:
        of_source = f" of {source}" * bool(source)
        is_undivided = len(columns) == 1 and not columns[0].isidentifier()
        ends = " The first row names the columns; cells end at a comma, a semicolon, a tab or |." * is_undivided
        if any(len(name.split()) > 2 or count_words(name) > 8 or _NO_NAME.search(name) for name in columns):
            ends += " The first row looks like data: if it is, write the names of the columns in a row above it."
        columns = [name if len(name) <= 40 else f"{name[:39]}…" for name in columns]
        raise ValueError(
            f"{option} is {', '.join(map(repr, missing))}, but the columns{of_source} are {columns}: name one.{ends}"
        )


def text_of_row(row: JsonObject, text_column: str, more: Sequence[str] = ()) -> str | None:
    """Return the text of a row, joined from paragraphs or sections where it is not a string; None without one.

    Args:
        more: columns whose texts follow.
    """
    text = row[text_column] if text_column in row else join_sections(row)
    return join_columns([text, *map(row.get, more)]) if more else join_paragraphs(text)


def join_paragraphs(value: Any) -> str | None:
    """Join a list of paragraphs by newlines; a string stays, but for `normalized`; anything else is None."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    return normalized(value) if isinstance(value, str) else None


def join_columns(values: Sequence[Any]) -> str | None:
    """Join the texts of a row's columns by empty lines, without those that are empty; None if one is no text."""
    pieces = [join_paragraphs(value) for value in values if value is not None]
    return None if None in pieces else "\n\n".join(piece for piece in pieces if piece and piece.strip())


def text_of_cell(value: Any, place: str) -> str:
    """Return a text, paragraphs of one, or a number, such as the title 1984, as a text; nothing is an empty text.

    Raises:
        ValueError: for anything else, naming the place.
    """
    if isinstance(value, int | float) and value == value:
        return text_of_scalar(value)
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


def join_sections(row: JsonObject) -> str:
    """Join the `sections` of a row to one text. They are dicts, a dict of lists (older `datasets`) or strings.

    A `SECTION_BREAK` stands between sections; it is white space for all but the maker of passages. A heading without a
    text goes with the section after it. What is none of this is no text.
    """
    text, ends = "", False  # whether the last section is complete
    for heading, body in _sections_of(row):
        if content := "\n\n".join(part for part in (heading, body) if part):
            text += ("\n\n" if text else "") + (SECTION_BREAK if ends else "") + content
            ends = bool(body)
    return text


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
