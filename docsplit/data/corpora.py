"""Load documents from anywhere: the Hub, local files or the built-in corpus.

    load_corpus          -> datasets.Dataset with a text, or the sections of one
    stream_corpus        the same as a datasets.IterableDataset, for `docsplit.data.streaming`
    for_pretraining      leaves out what python_docs seals
    add_text             makes the text where there are sections or paragraphs
    documents_to_search  the documents of search.py, with ids and titles

`datasets` caches what it read: a second run starts within seconds. The trade-off: a copy of the corpus on the disk.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher

from docsplit.data.python_docs.corpus import python_docs_fingerprint, read_python_docs
from docsplit.data.python_docs.parts import PART, TEST, TRAIN, VALIDATION, divide
from docsplit.data.readers.base import Document
from docsplit.data.readers.columns import check_text_column, join_paragraphs, join_sections
from docsplit.data.readers.corpus import load_local
from docsplit.data.readers.documents import read_documents
from docsplit.data.readers.files import saved_split
from docsplit.data.readers.stream import stream_local
from docsplit.runtime.files import build_once, cache_directory, hash_of_code, map_once, refuse_missing_path

logger = logging.getLogger(__name__)

PYTHON_DOCS = "python_docs"
NUM_SHARDS = 64  # of a stream of documents that lie in one file
EXPECTED = "a file or folder that is there, a data set of the Hub (USER/NAME), or python_docs"
DIVIDED_BY = tuple(f"docsplit/data/{name}.py" for name in ("python_docs/parts", "preparation"))


def load_corpus(corpus: str, split: str = "train", text_column: str | None = None) -> Dataset:
    """Load documents.

    Args:
        corpus: "python_docs" (docstrings of the installed packages; its column `part` says which are sealed, see
            `for_pretraining`), a local file or folder, read as `docsplit.data.readers.corpus.load_local` says, or a
            Hub data set `name` or `name:configuration`.
        split: the split of a Hub data set, or of a folder that `DatasetDict.save_to_disk` wrote; other local files are
            one split.
        text_column: for documents alone: of a local folder all files are read, of whatever kinds. Without it, data
            files of one format are preferred, since they have labels and other columns.

    Raises:
        ValueError: if nothing can be read there, naming the files or the cause.
    """
    if corpus == PYTHON_DOCS:
        dataset = _load_python_docs()
    elif Path(corpus).exists():
        dataset = load_local(saved_split(Path(corpus), split), text_column)
    else:
        refuse_missing_path(corpus, EXPECTED)
        dataset = _load_hub(corpus, split)
    if len(dataset) == 0:
        raise ValueError(f"The corpus {corpus!r} has no documents.")
    return dataset


def for_pretraining(corpus: str, dataset: Dataset) -> Dataset:
    """Keep the documents that a pretraining may read: all of them, but only the train part of python_docs.

    Copies of python_docs in other files are not recognised.
    """
    if corpus != PYTHON_DOCS:
        return dataset
    parts = np.asarray(dataset[PART][:])
    kept = np.flatnonzero(parts == TRAIN)
    logger.info(
        f"Of the {len(parts):,} documents of {corpus} a pretraining reads {len(kept):,}: {(parts == TEST).sum():,} "
        f"are the sealed test part of all evaluations, {(parts == VALIDATION).sum():,} are for selection."
    )
    return dataset.select(kept)


@dataclass
class CorpusStream:
    """Documents that are read again, from where they are, in each epoch.

    Attributes:
        rows: in as many shards as can be read independently (files, or row groups of parquet files).
        fingerprint: a key of what is read.
    """

    rows: datasets.IterableDataset
    fingerprint: str


def stream_corpus(corpus: str, split: str = "train", text_column: str | None = None) -> CorpusStream:
    """Open the documents of `load_corpus` without a copy on this disk; those of python_docs as `for_pretraining`.

    A local stream has the texts alone, as `docsplit.data.readers.stream` reads them.

    A folder of several kinds of files is the exception: its documents are copied into one file of the cache.

    Raises:
        ValueError: as `load_corpus`.
    """
    if corpus == PYTHON_DOCS:
        dataset = for_pretraining(corpus, _load_python_docs())
        return CorpusStream(dataset.to_iterable_dataset(num_shards=NUM_SHARDS), dataset._fingerprint)
    if Path(corpus).exists():
        path = saved_split(Path(corpus), split)
        if (streamed := stream_local(path, text_column)) is not None:
            return CorpusStream(*streamed)
        dataset = load_corpus(str(path), text_column=text_column)
        shards = min(NUM_SHARDS, len(dataset))
        return CorpusStream(dataset.to_iterable_dataset(num_shards=shards), dataset._fingerprint)
    refuse_missing_path(corpus, EXPECTED)
    name, _, configuration = corpus.partition(":")
    try:
        builder = datasets.load_dataset_builder(name, configuration or None)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise _not_found(corpus, split, error) from error
    try:
        stream = builder.as_streaming_dataset(split=split).reshard()
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise ValueError(f"{corpus!r} cannot be streamed (split {split!r}): {error}") from error
    return CorpusStream(stream, Hasher.hash((str(builder.cache_dir), split)))


def _load_python_docs() -> Dataset:
    def build(directory: Path) -> None:
        logger.info("Building the python_docs corpus from the docstrings of the installed packages (once, a minute)")
        rows = list(read_python_docs())
        Dataset.from_list([row | {PART: part} for row, part in zip(rows, divide(rows))]).save_to_disk(directory)

    name = f"{PYTHON_DOCS}-{python_docs_fingerprint()}-{hash_of_code(*DIVIDED_BY)}"
    return datasets.load_from_disk(build_once(cache_directory() / name, build))


def documents_to_search(
    documents: Path, text_column: str = "text", id_column: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a folder or a file, or of the built-in corpus: `python_docs`, `python_docs:test`.

    Args:
        text_column: of data files.
        id_column: of data files.

    Raises:
        ValueError: as `docsplit.data.readers.documents.read_documents`, or for an unknown part of python_docs.
    """
    name, _, part = str(documents).partition(":")
    if name != PYTHON_DOCS or documents.exists():
        yield from read_documents(documents, text_column, id_column)
        return
    if part not in ("", TRAIN, VALIDATION, TEST):
        raise ValueError(f"{PYTHON_DOCS} has no part {part!r}: choose among {TRAIN}, {VALIDATION} and {TEST}.")
    for row in _load_python_docs():
        if part in ("", row[PART]):
            yield Document(row["id"], row["text"], row["title"])


def _load_hub(corpus: str, split: str) -> Dataset:
    name, _, configuration = corpus.partition(":")
    try:
        return datasets.load_dataset(name, configuration or None, split=split)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise _not_found(corpus, split, error) from error


def _not_found(corpus: str, split: str, error: Exception) -> ValueError:
    return ValueError(
        f"{corpus!r} is neither {PYTHON_DOCS!r}, nor a file or folder here, nor a data set that the Hub gave "
        f"(split {split!r}): {error}"
    )


def add_text(dataset: Dataset, text_column: str) -> Dataset:
    """Make sure that there is a column of texts: join lists of paragraphs, or `sections` [{heading, text}].

    Raises:
        ValueError: naming the columns found.
    """
    key = Hasher.hash((dataset._fingerprint, text_column, hash_of_code("docsplit/data/readers")))
    if text_column in dataset.column_names:
        if not isinstance(dataset.features[text_column], datasets.List | datasets.LargeList):
            return dataset
        features = datasets.Features(dataset.features | {text_column: datasets.Value("string")})
        return map_once(
            dataset,
            lambda row: {text_column: join_paragraphs(row[text_column])},
            key,
            features=features,
            desc="Joining paragraphs",
        )
    check_text_column(dataset.column_names, text_column)
    return map_once(dataset, join_sections, key, fn_kwargs={"text_column": text_column}, desc="Joining sections")
