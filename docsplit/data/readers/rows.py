"""Read data files with a document in each row: text files line by line, parquet and arrow files batch by batch."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyarrow import parquet

from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.columns import check_text_column, text_of_row
from docsplit.data.readers.decoding import without_surrogates
from docsplit.data.readers.files import File, printable
from docsplit.data.readers.lines import CUT_OFF, LINE_SUFFIXES, Row, read_line_rows
from docsplit.data.readers.text import first_line

ID_COLUMNS = ("id", "_id", "doc_id")
ROWS_AT_ONCE = 1000
PEEKED_ROWS = 1000  # in which the text column has to be
DAMAGED_ROWS = (pyarrow.ArrowException, OSError, UnicodeDecodeError)  # what reading a parquet or arrow file may raise


@dataclass(frozen=True)
class Columns:
    """Which columns of data files are read.

    Attributes:
        id: None for the first of `ID_COLUMNS` that a row has.
    """

    text: str = "text"
    id: str | None = None


def read_rows(file: File, columns: Columns, in_folder: bool, problems: Problems) -> Iterator[Document]:
    """Read the rows of a data file; those that cannot be read are counted in `problems`.

    The id of a row is that of the id column, by default the first of id, _id and doc_id. In a folder the file's name
    stands before it, `file#id`, so that two files may have the same ids. A row without an id, or with one that an
    earlier row of the file has, gets `file#number`.

    Raises:
        Unreadable: if the file is broken, or has no rows or no texts.
        ValueError: if there is no such id column.
    """
    of_file = Problems(refuses_rows=problems.refuses_rows)
    ids = _Ids(file, columns.id, in_folder, of_file)
    for number, row in _checked(file, columns, _rows_of(file, of_file), of_file):
        text = without_surrogates(text_of_row(row, columns.text) or "")
        yield Document(ids.of(number, row), text, _title(row.get("title")) or first_line(text))
    problems.merge(of_file)  # those of a file without any row that can be read are in its error


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


def read_texts(file: File, columns: Columns, part: int | None, problems: Problems) -> Iterator[str]:
    """Read the texts of the rows of a data file, or of a part of it, as `read_rows` does."""
    rows = _rows_of(file, problems, part)
    if part:  # which may be empty: the file has rows in other parts
        first = next(rows, None)
        if first is None:
            return
        rows = itertools.chain([first], rows)
    for _, row in _checked(file, columns, rows, problems):
        yield without_surrogates(text_of_row(row, columns.text) or "")


def _rows_of(file: File, problems: Problems, part: int | None = None) -> Iterator[Row]:
    return read_line_rows(file, problems) if file.suffix in LINE_SUFFIXES else _read_arrow(file, problems, part)


def _checked(file: File, columns: Columns, rows: Iterator[Row], problems: Problems) -> Iterator[Row]:
    """Check the columns of the first rows, and yield all rows."""
    head: list[Row] = []
    names: dict[str, None] = {}
    for number, row in rows:
        head.append((number, row))
        names |= dict.fromkeys(row)
        has_text = columns.text in names or "sections" in names
        if (has_text and (columns.id is None or columns.id in names)) or len(head) == PEEKED_ROWS:
            break
    if not head:
        why = problems.rows.sentence() if problems.rows.counts else ""
        reason = f"that cannot be read as {file.suffix.removeprefix('.')}" if why else "without rows"
        raise Unreadable(reason, f"{file.path} has no rows{' that can be read. ' if why else ''}{why}.")
    try:
        check_text_column(list(names), columns.text)
    except ValueError as error:
        raise Unreadable(f"without a column {columns.text!r}", f"{file.path}: {error}") from error
    if columns.id and columns.id not in names:
        raise ValueError(f"--id_column is {columns.id!r}, but the columns of {file.path} are {list(names)}.")
    yield from itertools.chain(head, rows)


class _Ids:
    """The ids of the rows of a file, all different."""

    def __init__(self, file: File, id_column: str | None, in_folder: bool, problems: Problems):
        self.file, self.in_folder, self.problems = file, in_folder, problems
        self.columns = (id_column,) if id_column else ID_COLUMNS
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


def _title(value: Any) -> str:
    """Take a title that is a text or a number."""
    is_title = isinstance(value, str | int | float) and not isinstance(value, bool) and value == value
    return without_surrogates(str(value)).strip() if is_title else ""


def _read_arrow(file: File, problems: Problems, part: int | None) -> Iterator[Row]:
    """Read the rows of a parquet or arrow file up to where it is damaged; of a parquet file also a row group alone."""
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


def _batches(file: File, content: Any, part: int | None) -> Iterator[pyarrow.RecordBatch]:
    if file.suffix == ".parquet":
        groups = None if part is None else [part]
        yield from parquet.ParquetFile(content).iter_batches(ROWS_AT_ONCE, row_groups=groups)
        return
    try:
        yield from pyarrow.ipc.open_stream(content)
    except pyarrow.ArrowInvalid:
        content.seek(0)
        reader = pyarrow.ipc.open_file(content)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
