"""Load local files as a `datasets.Dataset`, for training, probes and maps.

Data files of one format keep all their columns: json, parquet and arrow as `datasets` reads them, csv and tsv as
texts, so that the code 007 stays one. These, and everything else, which `docsplit.data.readers.documents` reads, are
read once into one Arrow file of the cache. Once a file is changed, added or removed, all files are read anew. The
trade-off: a copy of the texts on the disk.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow
from datasets import Dataset
from datasets.fingerprint import Hasher

from docsplit.data.readers.base import Document, Problems, Unreadable, grouped
from docsplit.data.readers.converted import converter_version
from docsplit.data.readers.data_files import (
    ROW_SUFFIXES,
    TEXT_LOADERS,
    DataFiles,
    as_data_files,
    check_no_archive,
    load_data_files,
    load_saved,
    load_sound_files,
)
from docsplit.data.readers.decoding import HEAD, is_plain
from docsplit.data.readers.documents import Reading, find_documents
from docsplit.data.readers.files import FoundFiles, saved_files
from docsplit.data.readers.lines import read_line_rows
from docsplit.data.readers.rows import Columns
from docsplit.runtime.files import JsonObject, build_once, cache_directory, hash_of_code, write_text

logger = logging.getLogger(__name__)

BATCH_DOCUMENTS, BATCH_CHARACTERS = 1000, 2**26  # written at once: an array of strings holds 2 GB at most
DOCUMENTS_FILE, WARNINGS_FILE = "documents.arrow", "warnings.json"
READ_BY = ("docsplit/data/readers", "docsplit/data/passages.py")


def load_local(path: Path, text_column: str | None = None) -> Dataset:
    """Load the documents of a folder, or of one file.

    A data set that `save_to_disk` wrote is loaded as it is. Data files of one format (json, jsonl, csv, tsv, parquet,
    arrow) keep all their columns. One .txt file has a document in each line. Other files, folders of several kinds,
    and data files other than tables in which something cannot be read have the columns id, title and `text_column`,
    with the documents of `docsplit.data.readers.documents.read_documents`.

    Args:
        text_column: None for a table: where a folder has data files of one format, they alone are read, and all of
            their rows have to be readable.

    Raises:
        ValueError: if nothing can be read, naming the files or the cause.
    """
    if saved_files(path) is not None:
        return load_saved(path)
    found, files = find_corpus(path, text_column)
    if files is None or (files.loader == "text" and found.is_folder):
        return _load_documents(found, text_column or "text")
    if files.loader == "csv":
        return _load_table(found, text_column)
    if text_column is None and files.loader != "text":
        for file in found.files:
            file.check_compression()
        dataset = load_data_files(files)
    elif (whole := _load_if_sound(found, files)) is not None:
        dataset = whole
    else:
        return _load_documents(found, text_column or "text")
    _say_what_lines_are(found, dataset)
    if found.skipped.counts:
        logger.warning(found.skipped.sentence())
    return dataset


def _load_if_sound(found: FoundFiles, files: DataFiles) -> Dataset | None:
    """Load data files at once, as `datasets` does; None if one of them has to be read row by row."""
    try:
        if files.loader in TEXT_LOADERS and not all(is_plain(file.head(HEAD)) for file in found.files):
            return None
        for file in found.files:
            file.check_compression()
        return load_sound_files(files)
    except ValueError:  # the reader of rows says where and why
        return None


def find_corpus(path: Path, text_column: str | None) -> tuple[FoundFiles, DataFiles | None]:
    """Find the files of a corpus, and say how `datasets` reads them if it can.

    Args:
        text_column: as `load_local` takes it.

    Raises:
        ValueError: as `docsplit.data.readers.files.find_files`.
    """
    found = find_documents(path)
    rows = [file for file in found.files if file.suffix in ROW_SUFFIXES]
    if text_column is None and as_data_files(rows) is not None:
        for file in found.files:
            if file.suffix not in ROW_SUFFIXES:
                found.skipped.add(file.suffix, file.name)
        found.files = rows
    files = as_data_files(found.files, "document" if found.is_folder else "line")
    found.by_line = files is not None and files.loader == "text" and not found.is_folder
    return found, files


def _load_documents(found: FoundFiles, text_column: str) -> Dataset:
    reading = Reading(found, Columns(text_column))

    def write(path: Path) -> list[str]:
        write_documents(path, reading.documents(), text_column)
        return reading.warnings()

    dataset = _load_once(found, f"documents-{key_of(found, text_column)}", write)
    _say_what_lines_are(found, dataset)
    return dataset


def _load_table(found: FoundFiles, text_column: str | None) -> Dataset:
    """Load csv and tsv files with the columns of all; cells are texts as they are written.

    Args:
        text_column: None if all files and rows have to be readable.
    """
    problems = Problems(found.skipped, refuses_rows=text_column is None)

    def rows() -> Iterator[JsonObject]:
        for file in found.files:
            try:
                check_no_archive(file)
                for _, row in read_line_rows(file, problems):
                    yield row
            except Unreadable as error:
                if problems.refuses_rows or not found.is_folder:
                    raise
                problems.skip_file(file.suffix, file.name, error)

    def write(path: Path) -> list[str]:
        names: dict[str, None] = {}
        for file in found.files:
            with contextlib.suppress(Unreadable):
                names |= dict.fromkeys(next(read_line_rows(file, Problems()), (0, {}))[1])
        write_rows(path, rows(), list(names))
        return problems.warnings()

    return _load_once(found, f"table-{key_of(found, text_column)}", write)


def _load_once(found: FoundFiles, name: str, write: Callable[[Path], list[str]]) -> Dataset:
    """Load the Arrow file that `write` writes, unless the cache has it, and repeat the warnings that it returns."""

    def build(directory: Path) -> None:
        logger.info(f"Reading {found.path} ({len(found.files):,} files) into {cache_directory()}")
        write_text(directory / WARNINGS_FILE, json.dumps(write(directory / DOCUMENTS_FILE)))

    directory = build_once(cache_directory() / name, build)
    for warning in json.loads((directory / WARNINGS_FILE).read_text(encoding="utf-8")):
        logger.warning(warning)
    dataset = Dataset.from_file(str(directory / DOCUMENTS_FILE))
    logger.info(f"{found.path} has {len(dataset):,} documents, with the columns {dataset.column_names}.")
    return dataset


def _say_what_lines_are(found: FoundFiles, dataset: Dataset) -> None:
    if found.by_line:
        logger.info(f"{found.path} is 1 file of {len(dataset):,} lines: each line is a document.")


def key_of(found: FoundFiles, text_column: str | None) -> str:
    """Hash what the documents depend on: the files' names, sizes and times, the options, and the readers."""
    versions = [(file.version(), found.by_line) for file in found.files]
    skipped = sorted(found.skipped.counts.items())
    return Hasher.hash(
        (str(found.path.resolve()), versions, skipped, text_column, converter_version(), hash_of_code(*READ_BY))
    )


def write_documents(path: Path, documents: Iterable[Document], text_column: str) -> None:
    """Write documents as an Arrow file with the columns id, title and `text_column`."""
    names = ["id", "title", text_column]
    write_rows(path, (dict(zip(names, (row.id, row.title, row.text))) for row in documents), names)


def write_rows(path: Path, rows: Iterable[JsonObject], names: list[str]) -> None:
    """Write rows as an Arrow file whose columns, with these names, are texts."""
    schema = pyarrow.schema({name: pyarrow.string() for name in names})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
        for batch in grouped(rows, lambda row: "".join(map(str, row.values())), BATCH_DOCUMENTS, BATCH_CHARACTERS):
            writer.write_batch(pyarrow.RecordBatch.from_pylist(batch, schema=schema))
