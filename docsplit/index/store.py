"""The files of an index: one data file that only grows, and a manifest that says what of it is the index.

    D/manifest.json          segments and encoder, with a checksum of itself; replaced whole at each change
    D/data-K.bin             the segments, one behind the other
    D/approximate-K.faiss    an inverted file, if there are millions of passages (`docsplit.index.approximate`)
    D/cache/                 embeddings of a run that was stopped; removed once it is finished
    D/lock                   held by the one writer

A segment is some documents, as arrays: strings, vectors of passages and documents, and how often each document has
each word. It never changes once the manifest names it; the manifest has its digest, and lists its deleted rows. What
lies behind the `length` of the manifest is a change that was stopped. So a reader maps one file, whatever the size of
the index, and keeps what it has mapped, whatever writers do.
"""

import itertools
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from docsplit.data.readers.base import Document
from docsplit.runtime.command import command_name
from docsplit.runtime.files import Damaged, FileRecord, JsonObject, checked, read_sealed, why_damaged, write_sealed

FILE = "manifest.json"
REMEDY = "Restore the index from a copy, or build it again in a new folder."
SEGMENT_DOCUMENTS, SEGMENT_CHARACTERS = 50_000, 2**28  # at most: what is in memory while a segment is written
SEGMENT_BYTES = 2**30  # with its vectors, at most, where others are merged
ALIGNED = 64  # bytes, at a multiple of which each array begins


@dataclass(frozen=True)
class SegmentEntry:
    """What the manifest says of a segment."""

    name: str  # which no other segment ever has
    start: int  # byte of the data file
    size: int  # bytes
    xxh3: str  # of these bytes
    arrays: dict[str, list[Any]]  # type and shape of each, in their order
    deleted: list[int] = field(default_factory=list)  # rows that are no longer in the index, sorted

    @property
    def documents(self) -> int:
        """Count the documents that are in the index."""
        return self.arrays["lengths"][1][0] - len(self.deleted)

    @property
    def is_small(self) -> bool:
        """Whether it may be merged with others."""
        return self.documents < SEGMENT_DOCUMENTS / 2 and self.size < SEGMENT_BYTES / 2

    def is_sound(self, data: np.ndarray) -> bool:
        """Whether its bytes are as they were written."""
        return xxhash.xxh3_128_hexdigest(data[self.start : self.start + self.size].data) == self.xxh3


@dataclass(frozen=True)
class InvertedFile:
    """The inverted file beside the data file, which covers the passages of some segments."""

    file: str
    size: int
    xxh3: str
    segments: list[str]  # names, in the order of their passages
    probes: int  # cells that a query reads
    recall: float  # measured with so many cells


@dataclass(frozen=True)
class Manifest:
    """What an index says of itself.

    Attributes:
        file: the data file, and `length`, its bytes that count.
        sources: the folders and files that documents were read from; "" where they came from Python.
        has_words: whether the encoder adds words of documents to their vectors.
        stems: the language whose stems are counted in place of words.
        is_built: whether the first build has come to its end.
    """

    encoder: JsonObject  # `name`, `hash`, and settings: the `description` of an `Encoder`
    passage_words: int
    has_words: bool
    file: str
    length: int = 0
    segments: list[SegmentEntry] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    approximate: InvertedFile | None = None  # None: all passages are compared
    stems: str = "none"
    is_built: bool = False

    def write(self, directory: Path) -> None:
        """Replace the manifest of a folder, whole or not at all."""
        write_sealed(directory / FILE, asdict(self))


def read_manifest(directory: Path, is_built: bool = False) -> Manifest:
    """Read the manifest of an index.

    Args:
        is_built: refuse an index that is not built to its end.

    Raises:
        ValueError: if there is none, or one that is damaged.
        OSError: if it cannot be opened, for want of file descriptors for example.
    """
    path = directory / FILE
    try:
        manifest: Manifest = checked(read_sealed(path), Manifest, str(path))
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no index in {directory}: make one with `{command_name('search.py')} build`."
        ) from error
    except ValueError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise Damaged(f"{error} {REMEDY}") from error
    if is_built and not manifest.is_built:
        again = f"run `{command_name('search.py')} build` again."
        raise ValueError(f"The index in {directory} is not built to its end: {again}")
    return manifest


def map_data(directory: Path, manifest: Manifest) -> np.ndarray:
    """Map the data file, as long as the manifest says.

    Raises:
        Damaged: if it is missing, or shorter.
    """
    if not manifest.length:
        return np.empty(0, np.uint8)
    path = directory / manifest.file
    try:
        if (size := path.stat().st_size) < manifest.length:
            raise Damaged(f"{path} has {size:,} bytes, not {manifest.length:,}. {REMEDY}")
        return np.memmap(path, mode="r", shape=manifest.length)
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing. {REMEDY}") from error


def faults_in(directory: Path, manifest: Manifest, data: np.ndarray) -> list[str]:
    """Read all files, and say where one has changed, and what to do.

    Args:
        data: from `map_data`.
    """
    faults = [
        f"{directory / manifest.file} has changed since it was written, among the {entry.size:,} bytes from "
        f"{entry.start:,} on. {REMEDY}"
        for entry in manifest.segments
        if not entry.is_sound(data)
    ]
    known = manifest.approximate
    if known and (reason := why_damaged(directory, {known.file: FileRecord(known.size, known.xxh3)})):
        faults.append(f"{directory}/{reason}. {REMEDY}")
    return faults


class Strings(Sequence[str]):
    """Strings as their UTF-8 end to end, and where each ends. Ids may have bytes of file names that are no UTF-8."""

    def __init__(self, content: np.ndarray, ends: np.ndarray):
        self.content, self.ends = content, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: Any) -> Any:
        return self.encoded(row).decode(errors="surrogatepass")

    def encoded(self, row: int) -> bytes:
        """Return the bytes of a string."""
        return bytes(self.content[self.ends[row - 1] if row else 0 : self.ends[row]])

    def find(self, string: str, order: Sequence[int] | np.ndarray) -> int | None:
        """Look up the row of a string by bisection of the rows in their order (N,)."""
        key = string.encode(errors="surrogatepass")
        place = bisect_left(order, key, key=self.encoded)
        return int(order[place]) if place < len(order) and self.encoded(order[place]) == key else None


class Row(NamedTuple):
    """A document as a segment takes it."""

    document: Document
    passages: np.ndarray  # vectors of its P' passages, (P', H)
    whole: np.ndarray  # its vector, (H,); of one passage, that passage's
    tokens: np.ndarray  # (3,) as in `Segment`
    source: int


class Segment:
    """N documents of an index, with P passages in their order.

    Attributes:
        vectors: of all passages (P, H) float32, and then of the M documents that have several, whole.
        starts: the first passage of each document, and P, (N + 1,).
        digests: of title and text, (N, 16) uint8.
        sources: of each document, a number in the manifest's list, (N,).
        tokens: of the documents, those read in their passages, and those read of them whole, (N, 3); -1: not counted.
        words: of all documents, sorted; `postings` says which documents have each.
        lengths: how many words each document has, (N,).
        alive: which documents are in the index, (N,) bool.
    """

    def __init__(self, data: np.ndarray, entry: SegmentEntry):
        self.entry, place, arrays = entry, entry.start, {}
        for name, (kind, shape) in entry.arrays.items():
            arrays[name] = np.ndarray(shape, kind, buffer=data, offset=place)
            place += _padded(arrays[name].nbytes)
        self.ids, self.titles, self.texts, self.words = (
            Strings(arrays[name], arrays[f"{name}.ends"]) for name in ("ids", "titles", "texts", "words")
        )
        self.order, self.starts, self.vectors = arrays["order"], arrays["starts"], arrays["vectors"]
        self.digests, self.sources, self.tokens = arrays["digests"], arrays["sources"], arrays["tokens"]
        self.word_starts, self.word_rows = arrays["words.starts"], arrays["words.rows"]
        self.word_counts, self.lengths = arrays["words.counts"], arrays["lengths"]
        self.alive = np.ones(len(self.ids), dtype=bool)
        self.alive[entry.deleted] = False

    def rows(self) -> Iterator[Row]:
        """Iterate over the documents that are in the index."""
        whole = self.document_rows
        for row in np.flatnonzero(self.alive).tolist():
            document = Document(self.ids[row], self.texts[row], self.titles[row])
            passages = self.vectors[self.passages_of(row)]
            yield Row(document, passages, self.vectors[whole[row]], self.tokens[row], int(self.sources[row]))

    @property
    def passage_vectors(self) -> np.ndarray:
        """Vectors of the passages, (P, H) float32."""
        return self.vectors[: self.starts[-1]]

    @property
    def document_rows(self) -> np.ndarray:
        """The rows of `vectors` that are the documents', (N,); a document of one passage is that passage."""
        has_several = np.diff(self.starts) > 1
        return np.where(has_several, self.starts[-1] + np.cumsum(has_several) - 1, self.starts[:-1])

    def passages_of(self, row: int) -> slice:
        """Return the rows of a document's passages."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def find(self, document_id: str) -> int | None:
        """Look up the row of a document; None if it is not in the index."""
        row = self.ids.find(document_id, self.order)
        return row if row is not None and self.alive[row] else None

    def postings(self, word: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (D,) of the documents that have a word, and how often they have it (D,)."""
        number = self.words.find(word, range(len(self.words)))
        part = slice(0) if number is None else slice(self.word_starts[number], self.word_starts[number + 1])
        return self.word_rows[part], self.word_counts[part]

    def has(self, word: str, row: int) -> bool:
        """Whether a document has a word; the rows of each word are sorted."""
        rows, _ = self.postings(word)
        place = int(np.searchsorted(rows, row))
        return place < len(rows) and rows[place] == row


def _padded(size: int) -> int:
    return size + -size % ALIGNED


def digest_of(document: Document) -> np.ndarray:
    """Hash title and text of a document, (16,) uint8."""
    title, text = document.title.encode(errors="replace"), document.text.encode(errors="replace")
    return np.frombuffer(xxhash.xxh3_128_digest(b"%d;%b%b" % (len(title), title, text)), np.uint8)


def arrays_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Make the arrays of a segment; what UTF-8 cannot hold becomes a question mark in titles and texts."""
    from scipy.sparse import coo_array

    from docsplit.data.words import tokenize

    documents = [row.document for row in rows]
    ids = [document.id.encode(errors="surrogatepass") for document in documents]
    cut = tokenize([document.text for document in documents])
    words = sorted(cut.vocab)
    # The words that each document has, by bm25s's numbers, become columns in the order of the words
    columns = np.empty(len(words), dtype=np.int32)
    columns[[cut.vocab[word] for word in words]] = np.arange(len(words), dtype=np.int32)
    lengths = np.fromiter(map(len, cut.ids), np.int32, len(documents))
    numbers = np.fromiter(itertools.chain.from_iterable(cut.ids), np.int32, lengths.sum())
    places = np.repeat(np.arange(len(documents), dtype=np.int32), lengths), columns[numbers]
    counts = coo_array((np.ones(len(numbers), np.int32), places), shape=(len(documents), len(words))).tocsc()
    return {
        "vectors": np.concatenate(
            [*(row.passages for row in rows), *(row.whole[None] for row in rows if len(row.passages) > 1)]
        ),
        "starts": np.cumsum([0, *(len(row.passages) for row in rows)]),
        **_strings("ids", ids),
        "order": np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64),
        **_strings("titles", [document.title.encode(errors="replace") for document in documents]),
        **_strings("texts", [document.text.encode(errors="replace") for document in documents]),
        "digests": np.stack([digest_of(document) for document in documents]),
        "sources": np.array([row.source for row in rows]),
        "tokens": np.stack([row.tokens for row in rows]),
        **_strings("words", [word.encode() for word in words]),
        "words.starts": counts.indptr.astype(np.int64),
        "words.rows": counts.indices.astype(np.int32),
        "words.counts": counts.data,
        "lengths": lengths,
    }


def _strings(name: str, encoded: Sequence[bytes]) -> dict[str, np.ndarray]:
    ends = np.cumsum(list(map(len, encoded)), dtype=np.int64)
    return {name: np.frombuffer(b"".join(encoded), np.uint8), f"{name}.ends": ends}


def append_segment(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> SegmentEntry:
    """Write the arrays of a segment behind what a file has."""
    start, digest, described = file.tell(), xxhash.xxh3_128(), {}
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for part in (content.data, bytes(_padded(len(content)) - len(content))):
            file.write(part)
            digest.update(part)
        described[name] = [array.dtype.str, list(array.shape)]
    return SegmentEntry(uuid.uuid4().hex, start, file.tell() - start, digest.hexdigest(), described)
