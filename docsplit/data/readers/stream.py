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
from pyarrow import compute

from docsplit.data.readers.base import Problems, Unreadable
from docsplit.data.readers.corpus import find_corpus
from docsplit.data.readers.files import File
from docsplit.data.readers.rows import Columns, parts_of, read_texts
from docsplit.data.readers.text import read_text_file
from docsplit.runtime.files import JsonObject

logger = logging.getLogger(__name__)

PROBLEMS = "problems_of_a_file"  # the column of what was wrong


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

    def rows(self, shard: Shard) -> Iterator[JsonObject]:
        """Read the texts of a shard, and what was wrong with it."""
        problems = Problems()
        try:
            if self.is_text:
                texts: Iterator[str] = iter([read_text_file(shard.file, problems).text])
            else:
                texts = read_texts(shard.file, Columns(self.text_column), shard.part, problems)
            for text in texts:
                yield {self.text_column: text, PROBLEMS: ""}
        except Unreadable as error:
            if not self.in_folder:
                raise
            problems.skip_file(shard.file.suffix, shard.file.name, error)
        if problems:
            yield {self.text_column: "", PROBLEMS: problems.to_json()}


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
    features = datasets.Features({name: datasets.Value("string") for name in (reader.text_column, PROBLEMS)})
    stream = datasets.IterableDataset.from_generator(
        _rows, features=features, gen_kwargs={"shards": shards, "reader": reader}
    )
    versions = [file.version() for file in found.files]
    return stream, Hasher.hash((str(path.resolve()), versions, reader, len(shards)))


def _rows(shards: list[Shard], reader: ShardReader) -> Iterator[JsonObject]:
    for shard in shards:
        yield from reader.rows(shard)


def take_problems(table: pyarrow.Table, problems: Problems) -> pyarrow.Table:
    """Count the problems among the rows of a stream, and return its other rows; other streams have none."""
    if PROBLEMS not in table.column_names:
        return table
    is_text = compute.equal(table[PROBLEMS], "")
    for told in table.filter(compute.invert(is_text))[PROBLEMS].to_pylist():
        problems.merge(Problems.from_json(told))
    return table.filter(is_text)
