"""Documents from anywhere: a Hub name, local files or the built-in corpus.

    load_corpus      -> datasets.Dataset with a text, or the sections of one
    stream_corpus    the same as a datasets.IterableDataset, for `docsplit.data.streaming`
    for_pretraining  leaves out what python_docs seals
    add_text         makes the text where there are sections or paragraphs

`datasets` caches what it read: a second run starts within seconds. The trade-off: a copy of the corpus on the disk.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow
from datasets import Dataset
from datasets.fingerprint import Hasher
from pyarrow import compute

from docsplit.data.passages import SECTION_BREAK, clean_text
from docsplit.data.python_docs.corpus import python_docs_fingerprint, read_python_docs
from docsplit.data.python_docs.parts import PART, TEST, TRAIN, VALIDATION, divide
from docsplit.runtime.files import JsonObject, build_once, cache_directory, hash_of_code, refuse_missing_path

logger = logging.getLogger(__name__)

PYTHON_DOCS = "python_docs"
EXPECTED = "a file or folder that is there, a data set of the Hub (USER/NAME), or python_docs"
DIVIDED_BY = tuple(f"docsplit/data/{name}.py" for name in ("python_docs/parts", "sets/citation_splits", "preparation"))
LOADERS = {
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
LoaderOptions = dict[str, Any]  # of `datasets.load_dataset`, beside the files; each loader has its own
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
# Spelled "utf-8", it makes the JSON loader decode nothing: bytes that are no UTF-8 would fail when a text is used.
DECODED = "UTF-8"


def load_corpus(corpus: str, split: str = "train") -> Dataset:
    """Load documents.

    Args:
        corpus: "python_docs" (docstrings of the installed packages; its column `part` says which are sealed, see
            `for_pretraining`), a local file or folder (json, jsonl, csv, tsv, parquet, arrow or txt, also
            compressed), or a Hub data set `name` or `name:configuration`. A .txt file has one document a line, a
            folder of .txt files one document a file.
        split: the split of a Hub data set; local files are one split.

    Raises:
        ValueError: if nothing can be read there, naming the files or the cause.
    """
    if corpus == PYTHON_DOCS:
        dataset = _load_python_docs()
    elif Path(corpus).exists():
        dataset = _load_local(Path(corpus))
    else:
        refuse_missing_path(corpus, EXPECTED)
        dataset = _load_hub(corpus, split)
    if len(dataset) == 0:
        raise ValueError(f"The corpus {corpus!r} has no documents.")
    return dataset


def for_pretraining(corpus: str, dataset: Dataset) -> Dataset:
    """Keep the documents that a pretraining may read: all, but the train part alone of python_docs.

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


def stream_corpus(corpus: str, split: str = "train") -> CorpusStream:
    """Open the documents of `load_corpus` without a copy on this disk; those of python_docs as `for_pretraining`.

    Raises:
        ValueError: as `load_corpus`.
    """
    if corpus == PYTHON_DOCS:
        dataset = for_pretraining(corpus, _load_python_docs())
        return CorpusStream(dataset.to_iterable_dataset(num_shards=64), dataset._fingerprint)
    if Path(corpus).exists():
        loader, names, options = _local_files(Path(corpus))
        options |= {"encoding_errors": "replace"} if loader == "text" else {}  # in a stream too late to refuse it
        builder = datasets.load_dataset_builder(loader, data_files=names, **options)
    else:
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


def _local_files(path: Path) -> tuple[str, list[str], LoaderOptions]:
    """Choose the loader of `datasets` for a file or folder: its name, the files, and its options."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    loader_of = {file: LOADERS.get(_suffix(file)) for file in files if not _is_hidden(file, path)}
    known = {loader for loader in loader_of.values() if loader}
    if len(known) != 1:
        shown = ", ".join(file.name for file in files[:10]) or "no file"
        raise ValueError(
            f"{path} should hold files of one format of {sorted(set(LOADERS.values()))}, found {shown}. "
            "Name one file, or a folder with one format in it."
        )
    loader = known.pop()
    names = [str(file) for file in loader_of if loader_of[file] == loader]
    skipped = Counter(_suffix(file) or "no suffix" for file in loader_of if loader_of[file] != loader)
    if hidden := len(files) - len(loader_of):
        skipped["hidden (. or _ before a file or folder)"] = hidden
    if skipped:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in skipped.most_common())
        logger.warning(f"Of {path} {len(names):,} files are read as {loader}, {skipped.total():,} are not: {counts}.")
    options: LoaderOptions = {}
    if loader == "text":
        options = {"sample_by": "document" if path.is_dir() else "line"}
    elif loader == "json":
        options = {"encoding": DECODED}
    elif _suffix(Path(names[0])) == ".tsv":
        options = {"sep": "\t"}
    return loader, names, options


def _is_hidden(file: Path, folder: Path) -> bool:
    """Whether the file, or a folder between, has a name like `.git`, `.ipynb_checkpoints` or `_SUCCESS`."""
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _load_local(path: Path) -> Dataset:
    loader, names, options = _local_files(path)
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
        warn_of_swallowed_rows(dataset, path)
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
    """Warn of lines that are no UTF-8, which readers replace: how many there are, and where the first is."""
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


def _suffix(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


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
    if text_column in dataset.column_names:
        if not isinstance(dataset.features[text_column], datasets.List | datasets.LargeList):
            return dataset
        features = datasets.Features(dataset.features | {text_column: datasets.Value("string")})
        return dataset.map(
            lambda row: {text_column: join_paragraphs(row[text_column])}, features=features, desc="Joining paragraphs"
        )
    if "sections" not in dataset.column_names:
        raise ValueError(
            f"--text_column is {text_column!r}, but the columns are {dataset.column_names}: name one of them."
        )
    return dataset.map(join_sections, fn_kwargs={"text_column": text_column}, desc="Joining sections")


def join_paragraphs(value: Any) -> str | None:
    """Join a list of paragraphs by newlines; a string stays, and anything else is None."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def join_sections(row: JsonObject, text_column: str) -> dict[str, str]:
    """Join sections to one text. They are dicts, a dict of lists (older `datasets`) or strings.

    A `SECTION_BREAK` stands between sections; it is white space for all but the maker of passages. A heading without a
    text goes with the section after it.
    """
    sections = row["sections"] or []
    if isinstance(sections, dict):
        sections = [dict(zip(sections, values)) for values in zip(*sections.values())]
    text, ends = "", False  # whether the last section is complete
    for section in sections:
        heading, body = (None, section) if isinstance(section, str) else (section.get("heading"), section.get("text"))
        if content := "\n\n".join(part for part in (heading, body) if part):
            text += ("\n\n" if text else "") + (SECTION_BREAK if ends else "") + content
            ends = bool(body)
    return {text_column: text}
