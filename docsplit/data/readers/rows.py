"""Read data files with a document in each row."""

from collections.abc import Iterator
from typing import Any

from docsplit.data.readers.base import Document, Unreadable
from docsplit.data.readers.columns import check_text_column, text_of_row
from docsplit.data.readers.data_files import as_data_files, load_data_files
from docsplit.data.readers.files import File
from docsplit.data.readers.text import first_line

ID_COLUMNS = ("id", "_id", "doc_id")


def read_rows(file: File, text_column: str, id_column: str | None, in_folder: bool) -> Iterator[Document]:
    """Read the rows of a data file.

    The id of a row is that of `id_column`, by default the first of id, _id and doc_id. In a folder the file's name
    stands before it, `file#id`, so that two files may have the same ids. Without such a column it is `file#number`.

    Raises:
        Unreadable: if the file is broken, or has no rows or no texts.
        ValueError: if there is no `id_column`.
    """
    file.check_compression()
    files = as_data_files([file])
    assert files is not None
    try:
        dataset = load_data_files(files, file.path)
    except ValueError as error:
        raise Unreadable(f"that cannot be read as {files.loader}", str(error)) from error
    columns = dataset.column_names
    if len(dataset) == 0:
        raise Unreadable("without rows", f"{file.path} has no rows.")
    try:
        check_text_column(columns, text_column)
    except ValueError as error:
        raise Unreadable(f"without a column {text_column!r}", f"{file.path}: {error}") from error
    if id_column and id_column not in columns:
        raise ValueError(f"--id_column is {id_column!r}, but the columns of {file.path} are {columns}.")
    id_column = id_column or next((column for column in ID_COLUMNS if column in columns), None)
    row: Any
    for number, row in enumerate(dataset):
        text = text_of_row(row, text_column) or ""
        document_id = str(row[id_column]) if id_column else str(number)
        if in_folder or not id_column:
            document_id = f"{file.name}#{document_id}"
        yield Document(document_id, text, str(row.get("title") or first_line(text)))
