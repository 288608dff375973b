"""Load documents from anywhere: the Hub, local files or the built-in corpus.

    load_corpus          -> datasets.Dataset with a text, or the sections of one
    stream_corpus        the same as a datasets.IterableDataset, for `docsplit.data.streaming`
    for_pretraining      leaves out what python_docs seals
    add_text             makes the text where there are sections or paragraphs
    documents_to_search  the documents of search.py, with ids and titles

What is read lies in the cache, as one Arrow file: a second run starts within seconds. Once a file is changed, added or
removed, all files are read anew. The trade-off: a copy of the corpus on the disk. A stream has none.
"""

import glob
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import datasets
import numpy as np
import pyarrow
from datasets import Dataset
from datasets.fingerprint import Hasher
from datasets.iterable_dataset import ArrowExamplesIterable
from pyarrow import compute

from docsplit.data.python_docs.corpus import python_docs_fingerprint, read_python_docs
from docsplit.data.python_docs.parts import PART, TEST, TRAIN, VALIDATION, divide_packages
from docsplit.data.readers.base import USUAL, Document, Problems, TableColumns, grouped, normalized
from docsplit.data.readers.documents import documents_in, read_document_file, read_documents
from docsplit.data.readers.files import (
    CONVERTED_SUFFIXES,
    DAMAGED,
    FORMATS,
    File,
    FoundFiles,
    find_files,
    saved_files,
    saved_split,
)
from docsplit.data.readers.rows import (
    check_text_column,
    parts_of,
    read_rows,
    read_texts,
    text_of_row,
    text_of_scalar,
)
from docsplit.runtime.files import (
    JsonObject,
    build_once,
    cache_directory,
    hash_of_code,
    map_once,
    refuse_missing_path,
    rows_in,
    write_text,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

PYTHON_DOCS = "python_docs"
EXPECTED_CORPUS = "a file or folder that is there, a data set of the Hub (USER/NAME), or python_docs"
READ_BY = ("docsplit/data/readers", "docsplit/data/passages.py", "docsplit/data/corpora.py")
ROWS_FILE, PROBLEMS_FILE = "documents.arrow", "problems.json"
ROWS_AT_ONCE, CHARACTERS_AT_ONCE = 1000, 2**26  # an array of strings holds 2 GB at most
PROBLEMS = "problems_of_a_file"  # the column of a stream


def load_corpus(
    corpus: str, split: str = "train", text_column: str | None = None, encoding: str | None = None
) -> Dataset:
    """Load documents.

    Args:
        corpus: "python_docs" (docstrings of the installed packages; its column `part` says which are sealed, see
            `for_pretraining`), a local file or folder, read as `load_local` says, or a Hub data set `name` or
            `name:configuration`.
        split: the split of a Hub data set, or of a folder that `DatasetDict.save_to_disk` wrote; other local files are
            one split.
        text_column: for documents alone: of a local folder all files are read, of whatever kinds. Without it, data
            files of one format are preferred, since they have labels and other columns.
        encoding: of local text files; None: UTF-8, or what is detected.

    Raises:
        ValueError: if nothing can be read there, naming the files or the cause.
    """
    if corpus == PYTHON_DOCS:
        dataset = _load_python_docs()
    elif Path(corpus).exists():
        dataset = load_local(saved_split(Path(corpus), split), text_column, encoding)
    else:
        dataset = of_hub(corpus, lambda *name: datasets.load_dataset(*name, split=split))
    if len(dataset) == 0:
        raise ValueError(f"The corpus {corpus!r} has no documents.")
    return dataset


def for_pretraining(corpus: str, dataset: Dataset) -> Dataset:
    """Keep the documents that a pretraining may read: all of them, but only the train part of python_docs.

    Copies of python_docs in other files are not recognised.
    """
    if corpus != PYTHON_DOCS:
        return dataset
    return dataset.select(np.flatnonzero(np.asarray(dataset[PART][:]) == TRAIN))


def _load_python_docs() -> Dataset:
    def build(directory: Path) -> None:
        logger.info("Building the python_docs corpus from the docstrings of the installed packages (once, a minute)")
        rows = list(read_python_docs())
        Dataset.from_list([row | {PART: part} for row, part in zip(rows, divide_packages(rows))]).save_to_disk(
            directory
        )

    divided_by = "docsplit/data/python_docs/parts.py", "docsplit/data/copies.py"
    name = f"{PYTHON_DOCS}-{python_docs_fingerprint()}-{hash_of_code(*divided_by)}"
    return datasets.load_from_disk(build_once(cache_directory() / name, build))


def documents_to_search(documents: Path, columns: TableColumns = USUAL) -> Iterator[Document]:
    """Yield the documents of a folder or a file, or of the built-in corpus: `python_docs`, `python_docs:test`.

    Raises:
        ValueError: as `docsplit.data.readers.documents.read_documents`, or for an unknown part of python_docs.
    """
    name, _, part = str(documents).partition(":")
    if name != PYTHON_DOCS or documents.exists():
        yield from read_documents(documents, columns)
        return
    if part not in ("", TRAIN, VALIDATION, TEST):
        raise ValueError(f"{PYTHON_DOCS} has no part {part!r}: choose among {TRAIN}, {VALIDATION} and {TEST}.")
    for row in _load_python_docs():
        if part in ("", row[PART]):
            yield Document(row["id"], row["text"], row["title"])


# --- Local files ---


def load_local(path: Path, text_column: str | None = None, encoding: str | None = None) -> Dataset:
    """Load the documents of a folder, or of one file.

    A data set that `save_to_disk` wrote is loaded as it is. Data files of one format keep all their columns; cells of
    csv, tsv and xlsx are texts, so that the code 007 stays one. One .txt file has a document in each line. Other
    files, folders of several kinds, and json files whose columns have no types have the columns id, title and
    `text_column`, with the documents of `read_documents`.

    Args:
        text_column: None for a table: where a folder has data files of one format, they alone are read, and all of
            their rows have to be readable.

    Raises:
        ValueError: if nothing can be read, naming the files or the cause.
    """
    if saved_files(path) is not None:
        return _refusing(f"{path} as a saved data set", lambda: datasets.load_from_disk(str(path)).with_format(None))
    found, loader = _find_corpus(path, text_column)
    key = key_of(found, text_column, encoding)
    if loader in ("parquet", "arrow"):
        names = [glob.escape(str(file.path)) for file in found.files]  # a[1].parquet would be looked for as a pattern

        def copy(directory: Path) -> None:  # the cache of `datasets` knows a file by its time alone
            datasets.load_dataset(loader, data_files=names, split="train", cache_dir=str(directory))

        place = cache_directory() / f"table-{key}"
        try:
            dataset = _refusing(
                f"{_names(found)} as {loader}", lambda: _as_texts(rows_in(build_once(place, copy), key))
            )
        except ValueError:
            if text_column is None:
                raise
            loader = None  # the documents before the damage
        else:
            found.problems.log()
            return dataset
    columns = TableColumns(text_column or "text", encoding=encoding)
    by_line = not found.is_folder and [file.suffix for file in found.files] == [".txt"]

    def write(directory: Path) -> None:
        logger.info(f"Reading {found.path}")
        file = directory / ROWS_FILE
        found.problems.refuses_rows = text_column is None and loader is not None
        try:
            if loader is not None or by_line:
                _write_table(file, found, columns, by_line)
        except (pyarrow.ArrowException, TypeError, OverflowError) as error:  # columns of several types
            if text_column is None:
                raise ValueError(f"Cannot read {_names(found)}: {' '.join(str(error).split())}") from error
            file.unlink(missing_ok=True)
        if not file.exists():
            names = ["id", "title", columns.text]
            documents = documents_in(found, columns)
            _write_rows(file, (dict(zip(names, (row.id, row.title, row.text))) for row in documents), _texts(names))
        write_text(directory / PROBLEMS_FILE, found.problems.to_json())

    directory = build_once(cache_directory() / f"documents-{key}", write)
    Problems.from_json((directory / PROBLEMS_FILE).read_text(encoding="utf-8")).log()
    dataset = Dataset.from_file(str(directory / ROWS_FILE))
    if by_line:
        logger.info(f"{path} is 1 file of {len(dataset):,} lines: each line is a document.")
    return dataset


def _find_corpus(path: Path, text_column: str | None) -> tuple[FoundFiles, str | None]:
    """Find the files of a corpus, and the format of data files if it is one."""
    found = find_files(path)
    rows = [file for file in found.files if file.suffix in FORMATS]
    loaders = {FORMATS[file.suffix] for file in rows}
    if len(loaders) != 1 or (text_column is not None and len(rows) < len(found.files)):
        return found, None
    for file in found.files:
        if file not in rows:
            found.problems.add("file", file.suffix, file.name)
    found.files = rows
    return found, loaders.pop()


def _names(found: FoundFiles) -> str:
    return ", ".join(str(file.path) for file in found.files[:5])


def _write_table(path: Path, found: FoundFiles, columns: TableColumns, by_line: bool) -> None:
    """Write the rows of json, csv, tsv or xlsx files with the columns of all, or the lines of a text file.

    Values of json keep their types where one type fits all rows. In a column of texts and numbers all become texts (1
    and "1" are one label), but in the text column numbers are left out. A text that looks like a date is a text.

    Raises:
        pyarrow.ArrowException: if values of a column have no common type, lists and texts, say.
    """

    def rows(found: FoundFiles, most: int | None = None) -> Iterator[JsonObject]:
        """Read all rows, or `most` of each file."""
        read = found.read(lambda file, problems: islice(read_rows(file, problems, columns.encoding), most))
        for _, row in read:
            if by_line:
                row = {columns.text: row["text"]}
            row = {name.replace("\0", ""): cell for name, cell in row.items()}  # which Arrow ends a name at
            yield {name: normalized(cell) if isinstance(cell, str) else cell for name, cell in row.items()}

    first_pass = replace(found, problems=Problems(refuses_rows=found.problems.refuses_rows))
    if by_line or FORMATS[found.files[0].suffix] != "json":
        names = dict.fromkeys(name for row in rows(first_pass, most=1) for name in row)
        _write_rows(path, rows(found), _texts(list(names)))
        return
    nested: set[str] = set()
    schemas: dict[str, pyarrow.Schema | None] = {}  # of each column; None: its values have no common type
    for batch in grouped(rows(first_pass), str, ROWS_AT_ONCE, CHARACTERS_AT_ONCE):
        for name in dict.fromkeys(name for row in batch for name in row):
            values = [row.get(name) for row in batch]
            if any(isinstance(value, list | dict) for value in values):
                nested.add(name)
            try:
                schema = pyarrow.table({name: values}).schema
                known = schemas.get(name, schema)
                schemas[name] = known and pyarrow.unify_schemas([known, schema], promote_options="permissive")
            except (pyarrow.ArrowException, OverflowError):
                schemas[name] = None

    def as_text(name: str, value: Any) -> str | None:
        if isinstance(value, str) or value is None:
            return value
        return None if name == columns.text or value != value else text_of_scalar(value)  # NaN is nothing

    mixed = [name for name, schema in schemas.items() if schema is None]
    if lists := nested & {*mixed}:
        raise pyarrow.ArrowInvalid(f"the column {min(lists)} has lists, and values that are none")
    table = (row | {name: as_text(name, row.get(name)) for name in mixed} for row in rows(found))
    _write_rows(path, table, pyarrow.unify_schemas([schema or _texts([name]) for name, schema in schemas.items()]))


def _refusing(what: str, load: Callable[[], Dataset]) -> Dataset:
    """Load a data set by `datasets`, which logs its errors as well; what it raises becomes one line."""
    verbosity = datasets.utils.logging.get_verbosity()
    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    try:
        dataset = load()
        dataset.data.table.validate(full=True)  # also that strings are UTF-8; gigabytes a second
    except (datasets.exceptions.DatasetGenerationError, pyarrow.ArrowException, ValueError, *DAMAGED) as error:
        cause = error.__cause__ or error
        raise ValueError(f"Cannot read {what}: {' '.join(str(cause).split())}") from cause
    finally:
        datasets.utils.logging.set_verbosity(verbosity)
    return dataset


def _as_texts(dataset: Dataset) -> Dataset:
    """Make texts of the bytes in columns where all are UTF-8: some programs do not say that of their strings."""

    def as_text(kind: pyarrow.DataType) -> pyarrow.DataType:
        if pyarrow.types.is_list(kind):
            return pyarrow.list_(as_text(kind.value_type))
        of_bytes = {pyarrow.binary(): pyarrow.string(), pyarrow.large_binary(): pyarrow.large_string()}
        return of_bytes.get(kind, kind)

    for column in dataset.data.schema:
        if (kind := as_text(column.type)) != column.type:
            with suppress(pyarrow.ArrowInvalid):  # bytes of something else
                dataset.data.column(column.name).cast(kind)
                feature = datasets.Features.from_arrow_schema(pyarrow.schema({column.name: kind}))[column.name]
                dataset = dataset.cast_column(column.name, feature)
    return dataset


def _texts(names: list[str]) -> pyarrow.Schema:
    return pyarrow.schema({name: pyarrow.string() for name in names})


def _write_rows(path: Path, rows: Iterable[JsonObject], schema: pyarrow.Schema) -> None:
    """Write rows as an Arrow file."""
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
        for batch in grouped(rows, lambda row: "".join(map(str, row.values())), ROWS_AT_ONCE, CHARACTERS_AT_ONCE):
            writer.write_batch(pyarrow.RecordBatch.from_pylist(batch, schema=schema))


def key_of(found: FoundFiles, text_column: str | None, encoding: str | None) -> str:
    """Hash what the documents depend on: the files' names, sizes and times, the options, and the readers."""
    versions = [file.version() for file in found.files]
    options = (found.problems.counts, text_column, encoding)
    return Hasher.hash((str(found.path.resolve()), versions, options, hash_of_code(*READ_BY)))


# --- Streams ---


@dataclass
class CorpusStream:
    """Documents that are read again, from where they are, in each epoch.

    Attributes:
        rows: in as many shards as can be read independently (files, or row groups of parquet files).
        fingerprint: a key of what is read.
    """

    rows: datasets.IterableDataset
    fingerprint: str


def stream_corpus(
    corpus: str, split: str = "train", text_column: str | None = None, encoding: str | None = None
) -> CorpusStream:
    """Open the documents of `load_corpus` without a copy on this disk; those of python_docs as `for_pretraining`.

    A local stream has the texts alone, and what was wrong with a file in a row of its own, after the file's texts: who
    reads the stream counts it (`take_problems`), in whatever process that is. A folder with files that have to be
    converted is the exception: its documents are copied into one file of the cache.

    Raises:
        ValueError: as `load_corpus`.
    """
    is_local = corpus != PYTHON_DOCS and Path(corpus).exists()
    if is_local and (stream := _stream_local(saved_split(Path(corpus), split), text_column, encoding)) is not None:
        return stream
    if is_local or corpus == PYTHON_DOCS:
        dataset = for_pretraining(corpus, load_corpus(corpus, split, text_column, encoding))
        shards = min(64, len(dataset))
        return CorpusStream(dataset.to_iterable_dataset(num_shards=shards), dataset._fingerprint)

    def open_stream(*name: str | None) -> CorpusStream:
        builder = datasets.load_dataset_builder(*name)
        rows = builder.as_streaming_dataset(split=split).reshard()
        return CorpusStream(rows, Hasher.hash((str(builder.cache_dir), split)))

    return of_hub(corpus, open_stream)


def of_hub(corpus: str, load: Callable[[str, str | None], T]) -> T:
    """Load what a data set of the Hub has, by its name and configuration.

    Raises:
        ValueError: in one line, if the Hub does not give it.
    """
    refuse_missing_path(corpus, EXPECTED_CORPUS)
    name, _, configuration = corpus.partition(":")
    try:
        return load(name, configuration or None)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"{corpus!r} is neither {PYTHON_DOCS!r}, nor a file or folder here, nor a data set that the Hub gave: "
            f"{' '.join(str(error).split())}"
        ) from error


def _stream_local(path: Path, text_column: str | None, encoding: str | None) -> CorpusStream | None:
    """Open a folder of files, or a file, as a stream; None if there are none, or such as have to be converted."""
    found, _ = _find_corpus(path, text_column)
    if not found.files or any(file.suffix in CONVERTED_SUFFIXES for file in found.files):
        return None
    found.problems.log()
    if not found.is_folder and found.files[0].suffix == ".txt":
        logger.info(f"{path} is 1 file: each of its lines is a document.")
    columns = TableColumns(text_column or "text", encoding=encoding)
    shards = [(file, part) for file in found.files for part in parts_of(file)]
    tables = ArrowExamplesIterable(_tables, {"shards": shards, "columns": columns, "folder": found.path})
    versions = [file.version() for file in found.files]
    key = (str(path.resolve()), versions, columns, found.is_folder, len(shards), hash_of_code(*READ_BY))
    return CorpusStream(datasets.IterableDataset(tables), Hasher.hash(key))


def _tables(
    shards: list[tuple[File, int | None]], columns: TableColumns, folder: Path
) -> Iterator[tuple[tuple[int, int], pyarrow.Table]]:
    """Read the texts of shards, files or parts of files, and what was wrong with each."""

    def table(texts: list[str], problems: list[str]) -> pyarrow.Table:
        schema = pyarrow.schema({columns.text: pyarrow.string(), PROBLEMS: pyarrow.string()})
        return pyarrow.table([texts, problems], schema=schema)

    in_folder = FoundFiles(folder).is_folder
    for index, (file, part) in enumerate(shards):
        found, number = FoundFiles(folder, [file]), -1

        def read(file: File, problems: Problems, part: int | None = part) -> Iterator[str]:
            if in_folder and file.suffix not in FORMATS:
                yield read_document_file(file, problems, columns.encoding).text
            else:
                yield from (text for _, _, text in read_texts(file, columns, problems, part))

        for number, group in enumerate(grouped(found.read(read), str, ROWS_AT_ONCE, CHARACTERS_AT_ONCE)):
            yield (index, number), table(group, [""] * len(group))
        if found.problems.counts:
            yield (index, number + 1), table([""], [found.problems.to_json()])


def take_problems(table: pyarrow.Table, problems: Problems) -> pyarrow.Table:
    """Count the problems among the rows of a stream, and return its other rows; other streams have none."""
    if PROBLEMS not in table.column_names:
        return table
    is_text = compute.equal(table[PROBLEMS], "")
    for told in table.filter(compute.invert(is_text))[PROBLEMS].to_pylist():
        problems.merge(Problems.from_json(told))
    return table.filter(is_text)


# --- The text of documents ---


def add_text(dataset: Dataset, text_column: str) -> Dataset:
    """Make sure that there is a column of texts: join lists of paragraphs, or `sections` [{heading, text}].

    Raises:
        ValueError: naming the columns found.
    """
    check_text_column(dataset.column_names, text_column)
    if isinstance(dataset.features.get(text_column), datasets.Value):
        return dataset
    return map_once(
        dataset,
        lambda row: {text_column: text_of_row(row, text_column)},
        Hasher.hash((dataset._fingerprint, text_column, hash_of_code(*READ_BY))),
        features=datasets.Features(dataset.features | {text_column: datasets.Value("string")}),
        desc="Joining texts",
    )
