"""Train on a corpus larger than the disk: read, segment and tokenise documents while the model trains.

A process has one or more workers. Each worker is a *reader*, which reads its part of the corpus over and over: all
readers together give each document once a pass. The documents of a reader, and their order, are a pure function of
(seed, pass, reader), so that a checkpoint keeps nothing but the number of batches:

    shards of the reader   in an order drawn for the pass
    their documents        in blocks of `buffer_size`, shuffled within the block
    a batch                the next `batch_size` documents

To resume, a reader skips as many documents as it has given. It skips whole shards where it knows how many documents
they have, which it notes (in the cache of `datasets`) at the end of each. It reads the remainder as raw text, without
segmenting or tokenising it.
"""

import contextlib
import itertools
import json
import logging
import multiprocessing
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from torch.utils.data import get_worker_info
from transformers import PreTrainedTokenizerBase

from docsplit.data.collators import Feature
from docsplit.data.copies import document_id
from docsplit.data.corpora import CorpusStream, take_problems
from docsplit.data.passages import clean_text, segment
from docsplit.data.preparation import Segmentation, tokenize_batch
from docsplit.data.readers.base import Problems
from docsplit.data.readers.rows import DAMAGED_ROWS, check_text_column, text_of_row
from docsplit.data.segmentation import load_sentence_splitter
from docsplit.runtime.files import (
    Damaged,
    cache_directory,
    make_shared,
    read_json,
    read_sealed,
    write_sealed,
    write_text,
)

logger = logging.getLogger(__name__)

LAYOUT_FILE = "stream.json"  # in a checkpoint: how documents were dealt out, and the number of batches
ROWS_READ_AT_ONCE = 1000
TEXTS_TOKENISED_AT_ONCE = 100
UNREADABLE = (datasets.exceptions.DatasetGenerationError, *DAMAGED_ROWS)
SHARDS_PER_READER = 8  # with fewer, several readers share shards
MANY_READERS = 8  # of a shard: to decode JSON Lines so often takes a tenth of the time of tokenising what is kept


@dataclass(frozen=True)
class StreamLayout:
    """How documents are dealt out to processes and batches.

    Attributes:
        batch_size: documents per batch of each process.
        rank, world_size: the number of this process, and of all.
        seed: seed of the orders of shards and documents.
        buffer_size: documents that each reader shuffles together in memory.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    seed: int = 42
    buffer_size: int = 10_000


class DocumentStream(torch.utils.data.IterableDataset):
    """An endless stream of features as `docsplit.data.preparation.tokenize` makes them, for `DocSplitCollator`.

    Each feature carries its pass as `epoch`, so that the collator draws other views in each pass. Give the Trainer
    `max_steps`, `ignore_data_skip=True` and `accelerator_config={"dispatch_batches": False}`.

    Args:
        corpus: of `docsplit.data.corpora.stream_corpus`.
        segmentation: of its texts; those with fewer than two units, or two passages, are passed over.
        excluded: `document_id`s to leave out (held-out documents, test documents of a probe).
    """

    def __init__(
        self,
        corpus: CorpusStream,
        tokenizer: PreTrainedTokenizerBase,
        segmentation: Segmentation,
        layout: StreamLayout,
        excluded: Set[int] = frozenset(),
    ):
        self.rows = corpus.rows.with_format("arrow")
        self.tokenizer, self.segmentation, self.layout, self.excluded = tokenizer, segmentation, layout, excluded
        self.first_batch = 0  # of this process, counted from the beginning of training
        self.num_dropped = multiprocessing.Value("q", 0)  # texts passed over, by all workers of this process
        self.problems = Problems()  # of files and rows, as far as this process or worker has read them
        self.state = {  # what a checkpoint must have in common with the run that goes on from it
            "corpus": corpus.fingerprint,
            "text_column": segmentation.text_column,
            "excluded": Hasher.hash(sorted(excluded)),
            "num_processes": layout.world_size,
            "batch_size": layout.batch_size,
            "buffer_size": layout.buffer_size,
            "seed": layout.seed,
            "passage_words": segmentation.passage_words,
        }
        # The rule of `_is_usable`: another has other sizes
        counted = ["two words of clean text", *(self.state[name] for name in ("corpus", "text_column", "excluded"))]
        if segmentation.passage_words is not None:
            counted += [segmentation.passage_words, segmentation.sentence_splitter]
        self.sizes = cache_directory() / f"shard-sizes-{Hasher.hash(counted)}"

    # --- Batches ---

    def __iter__(self) -> Iterator[Feature | None]:
        layout, worker = self.layout, get_worker_info()
        num_workers = worker.num_workers if worker else 1
        if worker:
            fsspec.asyn.reset_lock()  # a lock that was held when this process was forked would never be free
        # The loader takes batches from its workers in turn, always from the first to begin with.
        number = ((worker.id if worker else 0) + self.first_batch) % num_workers
        num_given = len(range(number, self.first_batch, num_workers)) * layout.batch_size
        readers = layout.world_size * num_workers
        documents = self.documents(layout.rank * num_workers + number, readers, skip=num_given)
        while True:
            # accelerate lets each process run through the batches of all and keep its part: the others are not made.
            yield from [None] * (layout.rank * layout.batch_size)
            yield from itertools.islice(documents, layout.batch_size)
            yield from [None] * ((layout.world_size - layout.rank - 1) * layout.batch_size)

    def save(self, checkpoint: Path, num_batches: int, num_workers: int) -> None:
        """Note in a checkpoint how many batches each process had had."""
        state = self.state | {"num_workers": num_workers, "num_batches": num_batches}
        write_text(checkpoint / LAYOUT_FILE, json.dumps(state, indent=2) + "\n")

    def resume(self, checkpoint: Path, num_workers: int) -> int:
        """Go on with the batch after those before the checkpoint, and return their number.

        Raises:
            ValueError: if the checkpoint is of no stream, or documents would now be dealt out in another way.
        """
        try:
            state = read_json(checkpoint / LAYOUT_FILE)
        except FileNotFoundError as error:
            raise ValueError(f"{checkpoint} was made without --streaming: resume it without, too.") from error
        num_batches = state.pop("num_batches")
        now = self.state | {"num_workers": num_workers}
        if changed := [f"{name} {state.get(name)!r} -> {now[name]!r}" for name in now if state.get(name) != now[name]]:
            raise ValueError(
                f"{checkpoint} was made when the stream was dealt out in another way, so that documents would be lost "
                f"and repeated ({', '.join(changed)}). Use the same, or start a new run from these weights with "
                f"--model_name_or_path {checkpoint}."
            )
        self.first_batch = num_batches
        return num_batches

    # --- Documents of one reader ---

    def documents(self, reader: int, readers: int, skip: int = 0) -> Iterator[Feature]:
        """Yield the features of one reader, pass after pass, without the first `skip`.

        Raises:
            ValueError: if there is no document for this reader.
        """
        for epoch in itertools.count():
            size = 0  # documents of this pass so far
            for start, block in self._blocks(epoch, reader, readers, skip):
                order = np.random.default_rng((self.layout.seed, epoch, reader, start)).permutation(len(block))
                left = [block[index] for index in order[max(skip - start, 0) :]]
                size = start + len(block)
                for first in range(0, len(left), TEXTS_TOKENISED_AT_ONCE):
                    for feature in self._tokenize(left[first : first + TEXTS_TOKENISED_AT_ONCE]):
                        yield feature | {"epoch": epoch}
            if size == 0:
                raise ValueError(
                    f"Reader {reader + 1} of {readers} finds no document in {self.rows.num_shards} shards of the "
                    f"stream ({self.num_dropped.value} texts passed over): is --text_column "
                    f"{self.segmentation.text_column!r} right, --passage_words low enough for two passages, and are "
                    "processes and --dataloader_num_workers few enough?"
                )
            if epoch == 0:
                self._say_problems()
            skip = max(skip - size, 0)

    def _blocks(self, epoch: int, reader: int, readers: int, skip: int) -> Iterator[tuple[int, list[str]]]:
        """Yield blocks of `buffer_size` texts of one pass, each with the number of texts before it.

        Blocks that lie within the first `skip` texts may be left out.
        """
        buffer_size, num_shards = self.layout.buffer_size, self.rows.num_shards
        wanted = skip // buffer_size * buffer_size
        sharing = readers_of_a_shard(num_shards, readers)
        group, member = reader % (readers // sharing), reader // (readers // sharing)
        shards = np.random.default_rng((self.layout.seed, epoch)).permutation(num_shards)
        position, start = 0, 0  # of the next text, of the first text in the block
        block: list[str] = []
        for shard in shards[group :: readers // sharing]:
            size_file = self.sizes / (f"{shard}-{member}-of-{sharing}.json" if sharing > 1 else f"{shard}.json")
            size = _size_in(size_file)
            if size is not None and position + size <= wanted:
                position += size
                continue
            before = position
            for text in self._texts(int(shard), (member - int(shard)) % sharing, sharing):
                if position >= wanted:
                    start = start if block else position
                    block.append(text)
                position += 1
                if len(block) == buffer_size:
                    yield start, block
                    block = []
            if size is None:
                make_shared(size_file.parent)
                write_sealed(size_file, {"documents": position - before})
        yield (start if block else position), block

    def _texts(self, shard: int, first: int, step: int) -> Iterator[str]:
        """Yield the usable texts of a shard: those of every `step`-th row from `first` on."""
        rows = self.rows.shard(self.rows.num_shards, shard)
        num_rows = 0
        try:
            for table in rows.iter(batch_size=ROWS_READ_AT_ONCE):
                chosen = self._without_problems(table.take(np.arange((first - num_rows) % step, len(table), step)))
                num_rows += len(table)
                for text in _column(chosen, self.segmentation.text_column):
                    if self._is_usable(text) and not (self.excluded and document_id(text) in self.excluded):
                        yield text
                    else:
                        self.num_dropped.value += 1
        except UNREADABLE as error:
            raise _unreadable(f"Shard {shard} of the stream", error) from error

    def _without_problems(self, table: pyarrow.Table) -> pyarrow.Table:
        """Count what could not be read, and say what is the first; all is said at the end of the first pass."""
        is_first, before = not self.problems.counts, self.problems.number_of("file", "row")
        rows = take_problems(table, self.problems)
        self.num_dropped.value += self.problems.number_of("file", "row") - before
        if is_first:
            self._say_problems()
        return rows

    def _say_problems(self) -> None:
        for warning in self.problems.warnings():
            logger.error(f"In the first pass over the corpus: {warning}")  # other processes than the first log errors

    def _is_usable(self, text: Any) -> bool:
        """Whether a text has two words, or two passages: as much as can be known without tokenising it."""
        if not isinstance(text, str) or len(clean_text(text).split(None, 2)) < 2:
            return False
        if self.segmentation.passage_words is None:
            return True
        split = load_sentence_splitter(self.segmentation.sentence_splitter)
        return sum(map(len, segment(text, self.segmentation.passage_words, split))) > 1

    def _tokenize(self, texts: list[str]) -> Iterator[Feature]:
        """Yield a feature for each text; without units after all, it is counted and the collator drops it."""
        columns = tokenize_batch({self.segmentation.text_column: texts}, self.tokenizer, self.segmentation)
        del columns["drop_reason"]
        for values in zip(*columns.values()):
            feature = {
                name: np.asarray(value) if isinstance(value, list) else value for name, value in zip(columns, values)
            }
            self.num_dropped.value += len(feature["unit_lengths"]) == 0
            yield feature


def readers_of_a_shard(num_shards: int, readers: int) -> int:
    """Return how many readers share a shard; each of them decodes it whole.

    It is the smallest number that leaves each group of readers `SHARDS_PER_READER` shards: uneven parts would be seen
    unevenly often.
    """
    numbers = (number for number in range(1, readers) if readers % number == 0)
    return next((number for number in numbers if num_shards * number >= SHARDS_PER_READER * readers), readers)


def warn_of_few_shards(num_shards: int, readers: int) -> None:
    """Say where the same text is decoded many times, and how many shards would do."""
    if (sharing := readers_of_a_shard(num_shards, readers)) >= MANY_READERS:
        logger.warning(
            f"The corpus has {num_shards:,} part{'s' * (num_shards > 1)} for {readers:,} readers (processes x "
            f"--dataloader_num_workers): {sharing:,} of them decode each part, and keep one of {sharing:,} rows. "
            f"Write it in {SHARDS_PER_READER * readers:,} parts or more, as files or as row groups of parquet files."
        )


def _size_in(size_file: Path) -> int | None:
    """Read how many documents a shard has; None where nobody has counted them, or the note is damaged."""
    with contextlib.suppress(FileNotFoundError, Damaged):
        return read_sealed(size_file)["documents"]
    return None


def take(corpus: CorpusStream, num_documents: int, text_column: str) -> Dataset:
    """Read the first documents of a stream as a data set, to hold them out or to train a tokenizer on them.

    Raises:
        ValueError: if there is neither such a column nor `sections`, or the stream cannot be read.
    """
    texts: list[Any] = []
    try:
        for table in corpus.rows.with_format("arrow").iter(batch_size=min(num_documents, ROWS_READ_AT_ONCE)):
            texts += _column(take_problems(table, Problems()), text_column)  # counted when they are trained on
            if len(texts) >= num_documents:
                break
    except UNREADABLE as error:
        raise _unreadable("The beginning of the stream", error) from error
    return Dataset.from_dict({text_column: texts[:num_documents]})


def _unreadable(source: str, error: Exception) -> ValueError:
    return ValueError(f"{source} cannot be read: {' '.join(str(error.__cause__ or error).split())}")


def _column(table: pyarrow.Table, text_column: str) -> list[Any]:
    check_text_column(table.column_names, text_column)
    names = [text_column if text_column in table.column_names else "sections"]
    return [text_of_row(row, text_column) for row in table.select(names).to_pylist()]
