"""Read data files with a document in each row: json, jsonl, parquet, arrow, or .txt by lines.

`datasets` reads all files of one format together, with all their columns, and caches what it has read.
"""

import contextlib
import glob
import logging
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow
from datasets import Dataset

from docsplit.data.passages import clean_text
from docsplit.data.readers.base import Problems, Unreadable
from docsplit.data.readers.files import COMPRESSIONS, DAMAGED, UNPACK, File
from docsplit.data.readers.lines import read_line_rows
from docsplit.runtime.files import JsonObject

logger = logging.getLogger(__name__)

LOADERS = {
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
ROW_SUFFIXES = tuple(suffix for suffix in LOADERS if suffix != ".txt")
TEXT_LOADERS = ("json", "text")  # of files that have an encoding
CANNOT_READ = (datasets.exceptions.DatasetGenerationError, pyarrow.ArrowException, ValueError, *DAMAGED)
ZIP_START = b"PK\x03\x04"
LoaderOptions = dict[str, Any]  # of `datasets.load_dataset`, beside the files; each loader has its own
# Spelled "utf-8", it makes the JSON loader decode nothing: bytes that are no UTF-8 would fail when a text is used.
DECODED = "UTF-8"


@dataclass(frozen=True)
class DataFiles:
    """Files of one format, as `datasets` reads them together.

    Attributes:
        loader: the name of the format in `datasets`.
    """

    loader: str
    names: list[str]
    options: LoaderOptions


def as_data_files(files: Sequence[File], sample_by: str = "line") -> DataFiles | None:
    """Say how `datasets` reads these files together; None if they are no data files, or of several formats.

    Args:
        sample_by: what a document of a .txt file is: a "line", or the whole file ("document").
    """
    suffixes = {file.suffix for file in files}
    loaders = {LOADERS.get(suffix) for suffix in suffixes}
    if len(loaders) != 1 or None in loaders:
        return None
    loader = str(*loaders)
    options: LoaderOptions = {}
    if loader == "text":
        options = {"sample_by": sample_by}
    elif loader == "json":
        options = {"encoding": DECODED}
    return DataFiles(loader, [str(file.path) for file in files], options)


def load_data_files(files: DataFiles) -> Dataset:
    """Load files of one format with all their columns and rows.

    Raises:
        ValueError: naming the files, and the line of a broken .jsonl file.
    """
    if files.loader != "json":
        return load_sound_files(files)
    try:
        dataset = load_sound_files(files)
    except ValueError:
        return _read_json(files.names)
    kinds = dataset.data.schema.types  # Arrow takes 2024-01-01 for a time
    return _read_json(files.names) if any(map(pyarrow.types.is_temporal, kinds)) else dataset


def load_sound_files(files: DataFiles) -> Dataset:
    """Load files of one format that any reader can read.

    Raises:
        ValueError: naming the files; its cause is the error of the reader.
    """
    names = [glob.escape(name) for name in files.names]  # a[1].csv would be looked for, and a1.csv read
    try:
        for name in files.names:
            if files.loader in TEXT_LOADERS:
                check_no_archive(File(Path(name), name))
            if name.lower().endswith(".zst"):
                _read_to_the_end(File(Path(name), name))
        with _quiet():
            dataset = datasets.load_dataset(files.loader, data_files=names, split="train", **files.options)
            if files.loader in ("parquet", "arrow"):
                dataset.data.table.validate(full=True)  # also that strings are UTF-8; gigabytes a second
    except StopIteration:  # `datasets` raises it for an empty file
        return Dataset.from_list([])
    except CANNOT_READ as error:
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split())
        raise ValueError(f"Cannot read {', '.join(files.names[:5])} as {files.loader}: {reason}") from cause
    return dataset


def load_saved(folder: Path) -> Dataset:
    """Load a data set that `Dataset.save_to_disk` wrote, where it is.

    Raises:
        ValueError: if it is damaged.
    """
    try:
        dataset = datasets.load_from_disk(str(folder)).with_format(None)
        dataset.data.table.validate(full=True)
    except CANNOT_READ as error:
        raise ValueError(f"Cannot read {folder} as a saved data set: {' '.join(str(error).split())}") from error
    return dataset


def check_no_archive(file: File) -> None:
    """Check that a file is no archive, although its name says nothing of it: `datasets` would unpack it and read on.

    Raises:
        Unreadable: if it is one.
    """
    if file.path.suffix.lower() in COMPRESSIONS:
        return
    begins_as_zip = file.head(len(ZIP_START)) == ZIP_START  # `datasets` goes by it, also if the end is missing
    if begins_as_zip or zipfile.is_zipfile(file.path) or tarfile.is_tarfile(file.path):
        raise Unreadable("that is an archive", f"{file.path} is an archive: {UNPACK}", UNPACK)


def _read_to_the_end(file: File) -> None:
    """Raise if the end of a file is missing, which zstandard, and so `datasets`, takes for its end."""
    with file.open() as content:
        while content.read(2**20):
            pass


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep `datasets` from logging what is raised as well."""
    verbosity = datasets.utils.logging.get_verbosity()
    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.utils.logging.set_verbosity(verbosity)


def _read_json(names: list[str]) -> Dataset:
    """Read JSON by Python, which unlike Arrow takes lone surrogates and knows the line at which a file is broken."""
    versions = [File(Path(name), name).version() for name in names]
    try:
        with _quiet():
            dataset = Dataset.from_generator(_json_rows, gen_kwargs={"versions": versions})
    except datasets.exceptions.DatasetGenerationError as error:
        cause = error.__cause__
        if isinstance(cause, Unreadable):
            raise cause from error
        reason = " ".join(str(cause).split())
        raise ValueError(f"Cannot read {', '.join(names[:5])} as JSON lines: {reason}") from error
    warn_of_other_encodings(names)
    return dataset


def warn_of_other_encodings(names: Sequence[str | Path]) -> None:
    """Warn of lines that are no UTF-8: how many there are, and where the first is. Readers replace their bytes."""
    count, first = undecodable_lines(names)
    if count:
        logger.warning(
            f"{count:,} lines are not UTF-8, the first is {first}: the characters that cannot be read there become "
            "\N{REPLACEMENT CHARACTER}. If the file has another encoding, convert it: iconv -f LATIN1 -t UTF-8."
        )


def undecodable_lines(names: Sequence[str | Path]) -> tuple[int, str | None]:
    """Count the lines of text files that are no UTF-8, and name the first as `file, line n`."""
    count, first = 0, None
    for name in names:
        with File(Path(name), str(name)).open() as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError:
                    count, first = count + 1, first or f"{name}, line {number}"
    return count, first


def _json_rows(versions: list[tuple[str, int, int] | None]) -> Iterator[JsonObject]:
    """Read cleaned rows of JSON files.

    Args:
        versions: name, size and time of each file; `datasets` keys its cache by them.
    """
    columns: dict[str, None] = {}  # of all rows, in order: the writer takes no new ones after its first batch
    names = [version[0] for version in versions if version is not None]
    for row in _rows_of(names):
        columns |= dict.fromkeys(row)
    for row in _rows_of(names):
        yield {column: clean_text(value) if isinstance(value := row.get(column), str) else value for column in columns}


def _rows_of(names: Sequence[str]) -> Iterator[JsonObject]:
    for name in names:
        for _, row in read_line_rows(File(Path(name), name), Problems(refuses_rows=True)):
            yield row
