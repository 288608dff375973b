"""Load local files as a `datasets.Dataset`, for training, probes and maps.

Data files of one format keep all their columns, as `datasets` reads them. Everything else is read as
`docsplit.data.readers.documents` does, once, into one Arrow file of the cache. Once a file is changed, added or
removed, all files are read anew. The trade-off: a copy of the texts on the disk.
"""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import pyarrow
from datasets import Dataset
from datasets.fingerprint import Hasher

from docsplit.data.readers.base import Document, grouped
from docsplit.data.readers.converted import converter_version
from docsplit.data.readers.data_files import (
    ROW_SUFFIXES,
    TEXT_LOADERS,
    DataFiles,
    as_data_files,
    load_data_files,
    load_sound_files,
)
from docsplit.data.readers.decoding import HEAD, is_plain
from docsplit.data.readers.documents import Reading, find_documents
from docsplit.data.readers.files import FoundFiles
from docsplit.data.readers.rows import Columns
from docsplit.runtime.disk.caches import build_once, cache_directory
from docsplit.runtime.files import hash_of_code, write_text

logger = logging.getLogger(__name__)

BATCH_DOCUMENTS, BATCH_CHARACTERS = 1000, 2**26  # written at once: an array of strings holds 2 GB at most
DOCUMENTS_FILE, WARNINGS_FILE = "documents.arrow", "warnings.json"
READ_BY = ("docsplit/data/readers", "docsplit/data/passages.py")


def load_local(path: Path, text_column: str | None = None) -> Dataset:
    """Load the documents of a folder, or of one file.

    Data files of one format (json, jsonl, csv, tsv, parquet, arrow) keep all their columns. One .txt file has a
    document in each line. Other files, folders of several kinds, and data files in which something cannot be read have
    the columns id, title and `text_column`, with the documents of `docsplit.data.readers.documents.read_documents`.

    Args:
        text_column: None for a table: where a folder has data files of one format, they alone are read, and all of
            their rows have to be readable.

    Raises:
        ValueError: if nothing can be read, naming the files or the cause.
    """
    found, files = find_corpus(path, text_column)
    if files is None or (files.loader == "text" and found.is_folder):
        return _load_documents(found, text_column or "text")
    if text_column is None and files.loader != "text":
        for file in found.files:
            file.check_compression()
        dataset = load_data_files(files, path)
    elif (whole := _load_if_sound(found, files, path)) is not None:
        dataset = whole
    else:
        return _load_documents(found, text_column or "text")
    _say_what_lines_are(found, dataset)
    if found.skipped.counts:
        logger.warning(found.skipped.sentence())
    return dataset


def _load_if_sound(found: FoundFiles, files: DataFiles, path: Path) -> Dataset | None:
    """Load data files at once, as `datasets` does; None if one of them has to be read row by row."""
    try:
        if files.loader in TEXT_LOADERS and not all(is_plain(file.head(HEAD)) for file in found.files):
            return None
        for file in found.files:
            file.check_compression()
        return load_sound_files(files, path)
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

    def build(directory: Path) -> None:
        logger.info(f"Reading {found.path} ({len(found.files):,} files) into {cache_directory()}")
        write_documents(directory / DOCUMENTS_FILE, reading.documents(), text_column)
        write_text(directory / WARNINGS_FILE, json.dumps(reading.warnings()))

    directory = build_once(cache_directory() / f"documents-{key_of(found, text_column)}", build)
    for warning in json.loads((directory / WARNINGS_FILE).read_text(encoding="utf-8")):
        logger.warning(warning)
    dataset = Dataset.from_file(str(directory / DOCUMENTS_FILE))
    logger.info(f"{found.path} has {len(dataset):,} documents, with the columns {dataset.column_names}.")
    _say_what_lines_are(found, dataset)
    return dataset


def _say_what_lines_are(found: FoundFiles, dataset: Dataset) -> None:
    if found.by_line:
        logger.info(f"{found.path} is 1 file of {len(dataset):,} lines: each line is a document.")


def key_of(found: FoundFiles, text_column: str) -> str:
    """Hash what the documents depend on: the files' names, sizes and times, the options, and the readers."""
    versions = [(file.version(), found.by_line) for file in found.files]
    skipped = sorted(found.skipped.counts.items())
    return Hasher.hash(
        (str(found.path.resolve()), versions, skipped, text_column, converter_version(), hash_of_code(*READ_BY))
    )


def write_documents(path: Path, documents: Iterable[Document], text_column: str) -> None:
    """Write documents as an Arrow file with the columns id, title and `text_column`."""
    schema = pyarrow.schema({name: pyarrow.string() for name in ("id", "title", text_column)})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
        for batch in grouped(documents, lambda document: document.text, BATCH_DOCUMENTS, BATCH_CHARACTERS):
            rows = [{"id": document.id, "title": document.title, text_column: document.text} for document in batch]
            writer.write_batch(pyarrow.RecordBatch.from_pylist(rows, schema=schema))
