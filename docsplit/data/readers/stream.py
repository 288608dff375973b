"""Stream the documents of local files: read again in each epoch as search reads them, without a copy on the disk.

A row of such a stream is a text, or what was wrong with a file, which comes after the file's texts: who reads the
stream counts it, in whatever process that is.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import pyarrow
from datasets.fingerprint import Hasher
from datasets.iterable_dataset import ArrowExamplesIterable
from pyarrow import compute

from docsplit.data.readers.base import Problems, Unreadable, grouped
from docsplit.data.readers.corpus import find_corpus
from docsplit.data.readers.files import File
from docsplit.data.readers.rows import Columns, parts_of, read_texts
from docsplit.data.readers.text import read_text_file

logger = logging.getLogger(__name__)

PROBLEMS = "problems_of_a_file"  # the column of what was wrong
TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 1000, 2**24


@dataclass(frozen=True)
class Shard:
    """A file, or a row group of a parquet file.

    Attributes:
        part: the number of the row group; None for the whole file.
    """

    file: File
    part: int | None


@dataclass(frozen=True)
class ShardReader:
    """How the shards of a corpus are read.

    Attributes:
        in_folder: whether a file that cannot be read is counted; a file that is named itself is refused.
        is_text: whether a file is one document.
    """

    text_column: str
    in_folder: bool
    is_text: bool

    def tables(self, shard: Shard) -> Iterator[pyarrow.Table]:
        """Read the texts of a shard, and what was wrong with it."""
        problems = Problems()
        try:
            texts = self._texts(shard, problems)
            for group in grouped(texts, lambda text: text, TEXTS_AT_ONCE, CHARACTERS_AT_ONCE):
                yield self._table(group, [""] * len(group))
        except Unreadable as error:
            if not self.in_folder:
                raise
            problems.skip_file(shard.file.suffix, shard.file.name, error)
        if problems.is_any:
            yield self._table([""], [problems.to_json()])

    def _texts(self, shard: Shard, problems: Problems) -> Iterator[str]:
        if self.is_text:
            return iter([read_text_file(shard.file, problems).text])
        return read_texts(shard.file, Columns(self.text_column), shard.part, problems)

    def _table(self, texts: list[str], problems: list[str]) -> pyarrow.Table:
        columns = {self.text_column: texts, PROBLEMS: problems}
        return pyarrow.table({name: pyarrow.array(values, pyarrow.string()) for name, values in columns.items()})


def stream_local(path: Path, text_column: str | None) -> tuple[datasets.IterableDataset, str] | None:
    """Open a folder of data files of one format or of .txt files, or one such file, as a stream with a fingerprint.

    Args:
        text_column: as `docsplit.data.readers.corpus.load_local` takes it.

    Returns:
        None for other files, such as those that have to be converted.

    Raises:
        ValueError: if there is no such path, or it is no file.
    """
    found, files = find_corpus(path, text_column)
    if files is None:
        return None
    is_text = files.loader == "text" and found.is_folder
    if found.skipped.counts:
        logger.warning(found.skipped.sentence())
    if found.by_line:
        logger.info(f"{path} is 1 file: each of its lines is a document.")
    reader = ShardReader(text_column or "text", found.is_folder, is_text)
    shards = [Shard(file, part) for file in found.files for part in ([None] if is_text else parts_of(file))]
    tables = ArrowExamplesIterable(_tables, {"shards": shards, "reader": reader})
    stream = datasets.IterableDataset(tables)
    versions = [file.version() for file in found.files]
    return stream, Hasher.hash((str(path.resolve()), versions, reader, len(shards)))


def _tables(shards: list[Shard], reader: ShardReader) -> Iterator[tuple[tuple[int, int], pyarrow.Table]]:
    for index, shard in enumerate(shards):
        for number, table in enumerate(reader.tables(shard)):
            yield (index, number), table


def take_problems(table: pyarrow.Table, problems: Problems) -> pyarrow.Table:
    """Count the problems among the rows of a stream, and return its other rows; other streams have none."""
    if PROBLEMS not in table.column_names:
        return table
    is_text = compute.equal(table[PROBLEMS], "")
    for told in table.filter(compute.invert(is_text))[PROBLEMS].to_pylist():
        problems.merge(Problems.from_json(told))
    return table.filter(is_text)
