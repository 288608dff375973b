"""Segments of an index: they never change once they are written, and are read by memory-mapping.

A segment holds the ids, texts and titles of some documents, a vector of each document and of each passage, and how
often each document has each word. Opening reads only the heads of the files; from then on the segment can be read even
if they are deleted. Where the encoder adds words of documents to its vectors, a segment has the vectors without words,
too, for writers.
"""

import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.data.readers.base import Document
from docsplit.index.manifest import REMEDY, SegmentEntry, TokensEntry
from docsplit.index.vectors import Vectors
from docsplit.runtime.files import (
    SEAL,
    Damaged,
    flush_folder,
    records_to_json,
    why_folder_damaged,
    write_sealed,
    write_whole,
)

DOCUMENTS, PASSAGES, PLAIN, TOKENS = "documents.npy", "passages.npy", "plain_", "tokens.npy"


def write_array(path: Path, values: np.ndarray) -> None:
    """Write an .npy file whole or not at all."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # to a name `np.save` would add .npy
            np.save(file, values)

    write_whole(path, write)


def open_array(path: Path, kind: str = "i", dimensions: int = 1) -> np.ndarray:
    """Map an .npy file of this kind of numbers: `i` or `f`.

    Raises:
        FileNotFoundError: if there is no such file.
        Damaged: if it holds no such array.
    """
    try:
        values = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise
    except Exception as error:  # numpy has no exception of its own
        raise Damaged(f"{path} is damaged: it holds no array. {REMEDY}") from error
    if not isinstance(values, np.ndarray) or (values.dtype.kind, values.ndim) != (kind, dimensions):
        raise Damaged(f"{path} is damaged: it holds another kind of array. {REMEDY}")
    return values


class Strings(Sequence[str]):
    """Strings in two files: their UTF-8 end to end, and where each ends."""

    def __init__(self, path: Path):
        self.ends = open_array(path.with_suffix(".ends.npy"))
        content = path.with_suffix(".utf8")
        self.bytes = np.memmap(content, mode="r") if content.stat().st_size else np.empty(0, dtype=np.uint8)

    @staticmethod
    def write(path: Path, strings: Sequence[str]) -> None:
        """Write `path`.utf8 and `path`.ends.npy; what UTF-8 cannot hold becomes a question mark."""
        encoded = [string.encode(errors="replace") for string in strings]
        path.with_suffix(".utf8").write_bytes(b"".join(encoded))
        ends = np.cumsum(list(map(len, encoded)), dtype=np.int64)
        np.save(path.with_suffix(".ends.npy"), ends if len(encoded) else np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: Any) -> Any:
        start = self.ends[row - 1] if row else 0
        return bytes(self.bytes[start : self.ends[row]]).decode()

    def find(self, string: str, order: np.ndarray | None = None) -> int | None:
        """Look up the row of a string by bisection: strings, or their rows in `order` (N,), are sorted."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            row = middle if order is None else int(order[middle])
            if (candidate := self[row]) == string:
                return row
            low, high = (middle + 1, high) if candidate < string else (low, middle)
        return None


class WordCounts:
    """Counts of each word in the documents of a segment: words are sorted, and each has the rows of its documents."""

    def __init__(self, folder: Path):
        self.words = Strings(folder / "words")
        self.starts, self.rows, self.counts, self.lengths = (
            open_array(folder / f"words.{name}.npy") for name in ("starts", "rows", "counts", "lengths")
        )

    @staticmethod
    def write(folder: Path, texts: Sequence[str]) -> None:
        """Count the words of texts, which `docsplit.data.words` cuts."""
        from scipy.sparse import coo_array

        from docsplit.data.words import tokenize

        tokens = tokenize(texts)
        words = sorted(tokens.vocab)
        columns = np.empty(len(words), dtype=np.int32)  # by bm25s's numbers
        columns[[tokens.vocab[word] for word in words]] = np.arange(len(words), dtype=np.int32)
        lengths = np.fromiter(map(len, tokens.ids), np.int32, len(texts))
        numbers = np.fromiter(itertools.chain.from_iterable(tokens.ids), np.int32, lengths.sum())
        places = np.repeat(np.arange(len(texts), dtype=np.int32), lengths), columns[numbers]
        counts = coo_array((np.ones(len(numbers), dtype=np.int32), places), shape=(len(texts), len(words))).tocsc()
        parts = {
            "starts": counts.indptr.astype(np.int64),
            "rows": counts.indices.astype(np.int32),
            "counts": counts.data,
            "lengths": lengths,
        }
        Strings.write(folder / "words", words)
        for name, values in parts.items():
            np.save(folder / f"words.{name}.npy", values)

    def postings(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (D,) of the documents that have a word, and how often they have it (D,)."""
        if (number := self.words.find(word)) is None:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32)
        part = slice(self.starts[number], self.starts[number + 1])
        return self.rows[part], self.counts[part]

    def has(self, word: str, row: int) -> bool:
        """Whether a document has a word; the rows of each word are sorted."""
        rows, _ = self.postings(word)
        place = int(np.searchsorted(rows, row))
        return place < len(rows) and rows[place] == row


@dataclass
class Segment:
    """N documents of an index, with P passages in their order.

    Attributes:
        deleted: rows (D,) that are no longer in the index.
    """

    folder: Path
    deleted: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @cached_property
    def ids(self) -> Strings:
        """Ids of the documents."""
        return Strings(self.folder / "ids")

    @cached_property
    def order(self) -> np.ndarray:
        """Rows by id, (N,)."""
        return open_array(self.folder / "order.npy")

    @cached_property
    def titles(self) -> Strings:
        """Titles of the documents, "" where there is none."""
        return Strings(self.folder / "titles")

    @cached_property
    def texts(self) -> Strings:
        """Texts of the documents."""
        return Strings(self.folder / "texts")

    @cached_property
    def document_vectors(self) -> np.ndarray:
        """Vectors of the documents, (N, H) float32."""
        return open_array(self.folder / DOCUMENTS, "f", 2)

    @cached_property
    def passage_vectors(self) -> np.ndarray:
        """Vectors of the passages, (P, H) float32."""
        return open_array(self.folder / PASSAGES, "f", 2)

    @property
    def has_plain_vectors(self) -> bool:
        """Whether the encoder adds words of documents to the vectors."""
        return (self.folder / f"{PLAIN}{DOCUMENTS}").exists()

    def plain_vectors(self) -> Vectors:
        """Return the encoder's vectors without words of documents, for writers: readers need no such file."""
        names = (f"{PLAIN}{DOCUMENTS}", f"{PLAIN}{PASSAGES}")
        return Vectors(*(open_array(self.folder / name, "f", 2) for name in names))

    @cached_property
    def passage_starts(self) -> np.ndarray:
        """The first passage of each document, (N,)."""
        return open_array(self.folder / "passage_starts.npy")

    @cached_property
    def words(self) -> WordCounts:
        """Counts of words, for BM25."""
        return WordCounts(self.folder)

    @cached_property
    def tokens(self) -> np.ndarray | None:
        """Tokens of the documents, and those that vectors read, (N, 3) as in `TokensEntry`; None: not counted."""
        file = self.folder / TOKENS
        return open_array(file, dimensions=2) if file.exists() else None

    @cached_property
    def alive(self) -> np.ndarray:
        """Which documents are in the index, (N,) bool."""
        alive = np.ones(len(self.ids), dtype=bool)
        alive[self.deleted] = False
        return alive

    @property
    def num_documents(self) -> int:
        """Number of documents that are in the index."""
        return len(self.ids) - len(self.deleted)

    @property
    def num_bytes(self) -> int:
        """Length, in UTF-8, of the texts of the documents that are in the index."""
        return int(np.diff(self.texts.ends, prepend=0)[self.alive].sum())

    def open(self) -> None:
        """Map all files now.

        Raises:
            FileNotFoundError: if one of them is gone.
            Damaged: if their shapes do not fit each other.
        """
        for name, member in vars(Segment).items():
            if isinstance(member, cached_property) and name != "alive":
                getattr(self, name)
        size, words = len(self.ids), len(self.words.words)
        lengths = {
            "order.npy": (len(self.order), size),
            "titles.ends.npy": (len(self.titles), size),
            "texts.ends.npy": (len(self.texts), size),
            DOCUMENTS: (len(self.document_vectors), size),
            PASSAGES: (self.passage_vectors.shape[1], self.document_vectors.shape[1]),
            "passage_starts.npy": (len(self.passage_starts), size),
            "words.starts.npy": (len(self.words.starts), words + 1),
            "words.counts.npy": (len(self.words.counts), len(self.words.rows)),
            "words.lengths.npy": (len(self.words.lengths), size),
            TOKENS: (size if self.tokens is None else len(self.tokens), size),
        }
        for name in ("ids", "titles", "texts", "words"):
            strings = self.words.words if name == "words" else getattr(self, name)
            lengths[f"{name}.utf8"] = len(strings.bytes), int(strings.ends[-1]) if len(strings) else 0
        for name, (length, expected) in lengths.items():
            if length != expected:
                raise Damaged(f"{self.folder / name} is damaged: it has {length:,} rows, not {expected:,}. {REMEDY}")
        if len(self.deleted) and not 0 <= self.deleted.min() <= self.deleted.max() < size:
            raise Damaged(f"{self.folder} is damaged: rows are deleted that it does not have. {REMEDY}")

    def verify(self) -> None:
        """Read all files, before they are copied into another segment.

        Raises:
            Damaged: if one is missing or has changed since it was written.
        """
        if reason := why_folder_damaged(self.folder):
            raise Damaged(f"{self.folder}: {reason}. {REMEDY}")

    def passages_of(self, row: int) -> slice:
        """Return the rows of a document's passages."""
        last = row + 1 == len(self.passage_starts)
        return slice(
            int(self.passage_starts[row]), len(self.passage_vectors) if last else int(self.passage_starts[row + 1])
        )

    def find(self, document_id: str) -> int | None:
        """Look up the row of a document; None if it is not in the index."""
        row = self.ids.find(document_id, self.order)
        return row if row is not None and self.alive[row] else None


def segment_folder(directory: Path, name: str) -> Path:
    """Name the folder of a segment of an index."""
    return directory / "segments" / name


def open_segment(directory: Path, entry: SegmentEntry) -> Segment:
    """Open a segment that a manifest names, and map its files.

    Raises:
        Damaged: if one is gone, or does not fit the others.
    """
    folder = segment_folder(directory, entry.name)
    try:
        segment = Segment(folder, np.array(open_array(folder / entry.deleted))) if entry.deleted else Segment(folder)
        segment.open()
    except FileNotFoundError as error:
        raise Damaged(f"{error.filename} is missing. {REMEDY}") from error
    return segment


def seal_segment(folder: Path) -> None:
    """Record the files of a segment that is written, in it, and wait until all are on the disk.

    The lists of deleted rows come later; the manifest records the one in use.
    """
    files = [file for file in sorted(folder.iterdir()) if file.name != SEAL and not file.name.startswith("deleted-")]
    write_sealed(folder / SEAL, {"files": records_to_json(folder, files)})
    flush_folder(folder)


def write_segment(
    folder: Path,
    documents: Sequence[Document],
    passage_counts: Sequence[int],
    vectors: Vectors,
    plain: Vectors | None = None,
) -> None:
    """Write a segment into an empty folder.

    Args:
        documents: N of them.
        passage_counts: how many passages each document has.
        plain: the vectors without words of documents; None: the encoder adds none.
    """
    ids, texts = [document.id for document in documents], [document.text for document in documents]
    titles = [document.title for document in documents]
    for name, strings in (("ids", ids), ("titles", titles), ("texts", texts)):
        Strings.write(folder / name, strings)
    np.save(folder / "order.npy", np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64))
    _write_vectors(folder, vectors)
    if plain is not None:
        _write_vectors(folder, plain, PLAIN)
    np.save(folder / "passage_starts.npy", np.cumsum([0, *passage_counts])[:-1])
    WordCounts.write(folder, texts)


def _write_vectors(folder: Path, vectors: Vectors, prefix: str = "") -> None:
    np.save(folder / f"{prefix}{DOCUMENTS}", vectors.documents)
    np.save(folder / f"{prefix}{PASSAGES}", vectors.passages)


def merge_segments(folder: Path, segments: Sequence[Segment]) -> int:
    """Write the documents of some segments that are in the index as one segment, and return how many they are."""
    kept = [(number, int(row)) for number, segment in enumerate(segments) for row in np.flatnonzero(segment.alive)]
    documents = [
        Document(segments[number].ids[row], segments[number].texts[row], segments[number].titles[row])
        for number, row in kept
    ]
    passages = [(number, segments[number].passages_of(row)) for number, row in kept]

    def gather(parts: Sequence[Vectors]) -> Vectors:
        return Vectors(
            np.stack([parts[number].documents[row] for number, row in kept]),
            np.concatenate([parts[number].passages[rows] for number, rows in passages]),
        )

    vectors = gather([Vectors(segment.document_vectors, segment.passage_vectors) for segment in segments])
    has_plain = any(segment.has_plain_vectors for segment in segments)
    plain = gather([segment.plain_vectors() for segment in segments]) if has_plain else None
    write_segment(folder, documents, [rows.stop - rows.start for _, rows in passages], vectors, plain)
    if (tokens := _tokens_alive(segments)) is not None:
        np.save(folder / TOKENS, tokens)
    return len(kept)


def tokens_of(segments: Sequence[Segment]) -> TokensEntry | None:
    """Add up the tokens of the documents that are in the index; None if those of a segment were not counted."""
    tokens = _tokens_alive(segments)
    return None if tokens is None else TokensEntry(*tokens.sum(axis=0).tolist())


def _tokens_alive(segments: Sequence[Segment]) -> np.ndarray | None:
    """Return the tokens of the documents that are in the index, (N, 3), in their order."""
    tokens = [segment.tokens[segment.alive] for segment in segments if segment.tokens is not None]
    return np.concatenate(tokens) if tokens and len(tokens) == len(segments) else None


def renew_segment(folder: Path, segment: Segment, deleted: str | None, vectors: Vectors) -> None:
    """Write a segment with other vectors into an empty folder; other files are shared, where hard links can be made.

    Args:
        deleted: the file that lists the rows that are no longer in the index.
    """
    for file in segment.folder.iterdir():
        if file.name in (DOCUMENTS, PASSAGES, SEAL) or (
            file.name.startswith((".", "deleted-")) and file.name != deleted
        ):
            continue
        try:
            os.link(file, folder / file.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, folder / file.name)
    _write_vectors(folder, vectors)


def query_words(text: str) -> list[str]:
    """Cut a query into words, as documents are cut."""
    from docsplit.data.words import tokenize

    return tokenize([text], return_ids=False)[0]
