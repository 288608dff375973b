"""Read the documents of a folder with files of any kinds, or of one file, each with an id and a title."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.converted import CONVERTED_SUFFIXES, read_converted
from docsplit.data.readers.data_files import ROW_SUFFIXES
from docsplit.data.readers.files import File, FoundFiles, find_files
from docsplit.data.readers.rows import Columns, read_rows
from docsplit.data.readers.text import HTML_SUFFIXES, TEXT_SUFFIXES, first_line, read_text_file

logger = logging.getLogger(__name__)

SUFFIXES = (*TEXT_SUFFIXES, *HTML_SUFFIXES, *CONVERTED_SUFFIXES, *ROW_SUFFIXES)
Documents = str | Path | Mapping[str, str] | Iterable[str | Document]  # what the Python API takes for documents


def find_documents(path: Path) -> FoundFiles:
    """Find the files that can be read; also `_temporary/part-0.parquet`, as other programs leave it, is hidden.

    Raises:
        ValueError: if there is no such path.
    """
    return find_files(path, SUFFIXES, hidden_by_underscore=ROW_SUFFIXES)


def read_documents(path: Path, text_column: str = "text", id_column: str | None = None) -> Iterator[Document]:
    """Read the documents of a folder, or of one file.

    A text file (.txt, .md, .rst, .tex, .html) and a converted one (.pdf, .docx, .pptx) is one document; its id is its
    path within the folder. A data file (.json, .jsonl, .csv, .tsv, .parquet, .arrow) has a document in each row, see
    `docsplit.data.readers.rows.read_rows`. All may be compressed. Hidden files are left out. In a folder, a file that
    cannot be read is skipped, and so is a row that cannot be read; the log counts both by suffix and reason.

    Args:
        text_column: the column of the text in data files.
        id_column: the column of the ids in data files.

    Raises:
        ValueError: if there is nothing to read, if the one file cannot be read, or without that `id_column`.
    """
    reading = Reading(find_documents(path), Columns(text_column, id_column))
    yield from reading.documents()
    for warning in reading.warnings():
        logger.warning(warning)


def documents_of(documents: Documents) -> Iterator[Document]:
    """Yield the documents that a Python call is given.

    Args:
        documents: a path, whose files `read_documents` reads; texts by id; or texts or `Document`s. The id of a text
            without one is its number, from 0; its title is its first line.

    Raises:
        ValueError: as `read_documents`, or for a table and whatever else is no text.
    """
    refuse_table(documents)
    if isinstance(documents, str | Path):
        yield from read_documents(Path(documents))
        return
    by_id = documents.items() if isinstance(documents, Mapping) else enumerate(documents)
    for number_or_id, item in by_id:
        if not isinstance(item, str | Document):
            raise ValueError(
                f"Document {number_or_id!r} is a {type(item).__name__}: give texts (strings), or a folder or file."
            )
        yield item if isinstance(item, Document) else Document(str(number_or_id), item, first_line(item))


def refuse_table(documents: object) -> None:
    """Refuse a table (pandas, polars, Arrow, datasets), of which a loop gives the names of columns, or rows.

    Raises:
        ValueError: naming a column.
    """
    for attribute in ("column_names", "columns"):
        names = getattr(documents, attribute, None)
        if names is not None and len(names):
            names = list(names)
            column = "text" if "text" in names else names[0]
            raise ValueError(
                f"The documents are a {type(documents).__name__} with the columns {names}: give one of them, such as "
                f"documents[{column!r}]."
            )


class Reading:
    """One pass over the documents of files, and what has to be said of the files afterwards.

    Attributes:
        num_files: number of files that were read.
        problems: of files and rows.
    """

    def __init__(self, found: FoundFiles, columns: Columns | None = None):
        self.found, self.columns = found, columns or Columns()
        self.num_files = 0
        self.problems = Problems(found.skipped)

    def documents(self) -> Iterator[Document]:
        """Read all documents, file after file.

        Raises:
            ValueError: as `read_documents`.
        """
        is_folder = self.found.is_folder
        if is_folder and any(file.suffix in ROW_SUFFIXES for file in self.found.files):
            logger.info("The ids of rows begin with the name of their file, such as `papers.csv#12`.")
        for file in self.found.files:
            try:
                yield from self._read(file)
                self.num_files += 1
            except Unreadable as error:
                if not is_folder:
                    raise
                self.problems.skip_file(file.suffix, file.name, error)
        if not self.num_files:
            skipped = self.problems.files
            there = f"{skipped.sentence()}. " if skipped.counts else "There is no file in it. "
            raise ValueError(f"{self.found.path} has no documents that can be read. {there}Expected {_EXPECTED}.")

    def warnings(self) -> list[str]:
        """Say what was skipped, and what was read although something is wrong with it."""
        return self.problems.warnings()

    def _read(self, file: File) -> Iterator[Document]:
        if file.suffix in ROW_SUFFIXES or self.found.by_line:
            yield from read_rows(file, self.columns, self.found.is_folder, self.problems)
        elif file.suffix in CONVERTED_SUFFIXES:
            yield read_converted(file)
        else:
            yield read_text_file(file, self.problems)


_EXPECTED = (
    f"{', '.join(TEXT_SUFFIXES + HTML_SUFFIXES + CONVERTED_SUFFIXES)}, or {', '.join(ROW_SUFFIXES)} with a text in "
    "each row"
)
