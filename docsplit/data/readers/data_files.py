"""Read data files with a document in each row: json, jsonl, csv, tsv, parquet, arrow, or .txt by lines.

`datasets` reads all files of one format together, with all their columns, and caches what it has read.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pyarrow
from datasets import Dataset
from pyarrow import compute

from docsplit.data.passages import clean_text
from docsplit.data.readers.files import File
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
    if len(loaders) != 1 or None in loaders or {".csv", ".tsv"} <= suffixes:
        return None
    loader = str(*loaders)
    options: LoaderOptions = {}
    if loader == "text":
        options = {"sample_by": sample_by}
    elif loader == "json":
        options = {"encoding": DECODED}
    elif suffixes == {".tsv"}:
        options = {"sep": "\t"}
    return DataFiles(loader, [str(file.path) for file in files], options)


def load_data_files(files: DataFiles, source: Path) -> Dataset:
    """Load files of one format with all their columns.

    Args:
        source: the folder, or the file, for a warning.

    Raises:
        ValueError: naming the files, and the line of a broken .jsonl file.
    """
    loader, names, options = files.loader, files.names, files.options
    try:
        dataset = _read(loader, names, options)
    except StopIteration:  # `datasets` raises it for an empty file
        return Dataset.from_list([])
    except (datasets.exceptions.DatasetGenerationError, pyarrow.ArrowInvalid, ValueError, OSError) as error:
        cause = error.__cause__ or error
        if loader == "json":
            return _read_json(names, cause)
        if not isinstance(cause, UnicodeDecodeError):
            raise ValueError(f"Cannot read {', '.join(names[:5])} as {loader}: {cause}") from error
        warn_of_other_encodings(names)
        dataset = _read(loader, names, options | {"encoding_errors": "replace"})
    if "sep" in options:
        warn_of_swallowed_rows(dataset, source)
    return dataset


def _read(loader: str, names: list[str], options: LoaderOptions) -> Dataset:
    dataset = datasets.load_dataset(loader, data_files=names, split="train", **options)
    if loader in ("parquet", "arrow"):
        dataset.data.table.validate(full=True)  # also that strings are UTF-8; gigabytes a second
    return dataset


def _read_json(names: list[str], cause: BaseException) -> Dataset:
    """Read JSON by Python, which unlike Arrow takes lone surrogates and knows the line at which a file is broken."""
    logger.warning(f"Reading {len(names)} JSON files line by line, since the fast reader failed: {cause}")
    warn_of_other_encodings(names)
    versions = [(name, Path(name).stat().st_size, Path(name).stat().st_mtime_ns) for name in names]
    try:
        return Dataset.from_generator(_read_json_lines, gen_kwargs={"versions": versions})
    except datasets.exceptions.DatasetGenerationError as error:
        raise ValueError(f"Cannot read {', '.join(names[:5])} as JSON lines: {error.__cause__}") from error


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
        with fsspec.open(str(name), "rb", compression="infer") as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError:
                    count, first = count + 1, first or f"{name}, line {number}"
    return count, first


def warn_of_swallowed_rows(table: Dataset, file: str | Path) -> None:
    """Warn of rows lost in tsv files without quoting: a field that begins with a quote takes lines to the next one."""
    swallowing = 0
    for column in table.data.columns:
        if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
            both = compute.and_(compute.match_substring(column, "\t"), compute.match_substring(column, "\n"))
            swallowing += compute.sum(both).as_py() or 0
    if swallowing:
        logger.warning(
            f"{swallowing} fields of {file} have tabs and line breaks in them. If the file has no quoting, quotes "
            "at the beginning of fields have made one row of many, and those documents are lost: write it as jsonl."
        )


def _read_json_lines(versions: list[tuple[str, int, int]]) -> Iterator[JsonObject]:
    """Read cleaned rows of JSON lines.

    Args:
        versions: name, size and time of each file; `datasets` keys its cache by them.
    """
    columns: dict[str, None] = {}  # of all rows, in order: the writer takes no new ones after its first batch
    for row in _parse_json_lines(versions):
        columns |= dict.fromkeys(row)
    for row in _parse_json_lines(versions):
        yield {column: clean_text(value) if isinstance(value := row.get(column), str) else value for column in columns}


def _parse_json_lines(versions: list[tuple[str, int, int]]) -> Iterator[JsonObject]:
    for name, _, _ in versions:
        with fsspec.open(name, "rt", encoding="utf-8", errors="replace", compression="infer") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{name}, line {number} is no JSON: {error}") from error
