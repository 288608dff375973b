"""An index of documents on disk, searched by meaning and by words; documents are added and removed singly.

One data file only grows, and a manifest says what of it is the index; `docsplit.index.changes` writes both. Readers
take no lock.

    D/manifest.json          segments and encoder, with a checksum of itself; replaced whole at each change
    D/data-K.bin             the segments, one behind the other
    D/approximate-K.faiss    an inverted file (`docsplit.embedding.neighbours`), if there are millions of passages
    D/cache/                 embeddings of a run that was stopped; removed once it is finished
    D/lock                   held by the one writer

A segment is some documents, as arrays: strings, vectors of passages and documents, and how often each document has
each stem. It never changes once the manifest names it; the manifest has its digest, and lists its deleted rows. What
lies behind the `length` of the manifest is a change that was stopped. So a reader maps one file, whatever the size of
the index, and keeps what it has mapped, whatever writers do.

An index may come from a stranger, with digests that fit: its files are those that changes write, in the folder itself,
and arrays are those of `ARRAYS`. The format is not Arrow's, whose offsets would have to be read at each opening: a
wrong one leads out of the file, where NumPy looks.
"""

import copy
import itertools
import math
import re
import uuid
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import numpy as np
import xxhash

from docsplit.data.fusion import LOWEST, WEIGHT, reciprocal_ranks, sum_of_scores
from docsplit.data.passages import clean_text
from docsplit.data.readers.base import Document, TableColumns
from docsplit.data.words import CUT, Stems, stem_tokens
from docsplit.runtime.command import command_name
from docsplit.runtime.files import (
    READ_WHEN_OPENED,
    Damaged,
    FileRecord,
    JsonObject,
    checked,
    read_sealed,
    write_sealed,
)
from docsplit.runtime.vectors import best_of

if TYPE_CHECKING:  # it needs torch, as a search by words does not
    from docsplit.embedding.encoder import Encoder

MANIFEST_FILE = "manifest.json"
REMEDY = "Restore the index from a copy, or build it again in a new folder."
SEGMENT_DOCUMENTS, SEGMENT_CHARACTERS = 50_000, 2**28  # at most: what is in memory while a segment is written
SEGMENT_BYTES = 2**30  # with its vectors, at most, where others are merged
ALIGNED = 64  # bytes, at a multiple of which each array begins
STRINGS = ("ids", "titles", "texts", "passages", "words")  # arrays of a segment that are UTF-8, each with its `.ends`
ARRAYS = {  # of a segment: type, and a letter for each number of the shape, which is one number wherever it stands
    "vectors": ("<f4", "VH"),
    "starts": ("<i8", "S"),
    **{name: ("|u1", letter) for name, letter in zip(STRINGS, "itxpw")},  # bytes
    **{f"{name}.ends": ("<i8", letter) for name, letter in zip(STRINGS, "NNNPW")},
    "order": ("<i8", "N"),
    "digests": ("|u1", "ND"),
    "sources": ("<i8", "N"),
    "tokens": ("<i8", "NT"),
    "words.starts": ("<i8", "B"),
    "words.rows": ("<i4", "R"),
    "words.counts": ("<i4", "R"),
    "lengths": ("<i4", "N"),
}
DATA_FILE = re.compile(r"data-[0-9a-f]{8}\.bin")
INVERTED_FILE = re.compile(r"approximate-[0-9a-f]{8}\.faiss")
FUSED = 1000  # documents of each ranking whose ranks are fused, or that are candidates beside an inverted file
K1, B = 1.5, 0.75  # of BM25, bm25s's defaults
BEGINNING = 100  # characters of a text, among whose words one is long
CANDIDATES = 10  # passages that an inverted file finds, for each document that is wanted


# --- The files ---


@dataclass(frozen=True)
class SegmentEntry:
    """What the manifest says of a segment."""

    name: str  # which no other segment ever has
    start: int  # byte of the data file
    size: int  # bytes
    xxh3: str  # of these bytes
    arrays: dict[str, list[int]]  # the shape of each, in their order
    deleted: list[int] = field(default_factory=list)  # rows that are no longer in the index, sorted

    @property
    def documents(self) -> int:
        """Count the documents that are in the index."""
        return self.arrays["lengths"][0] - len(self.deleted)

    @property
    def is_small(self) -> bool:
        """Whether it may be merged with others."""
        return self.documents < SEGMENT_DOCUMENTS / 2 and self.size < SEGMENT_BYTES / 2

    def has_known_arrays(self, length: int, dimension: int) -> bool:
        """Whether the arrays have known names and shapes that fit each other, and lie within a file of this length."""
        sizes, place = {"D": 16, "T": 3, "H": dimension}, self.start
        for name, (kind, letters) in ARRAYS.items():
            shape = self.arrays.get(name, [])
            if len(shape) != len(letters) or any(sizes.setdefault(*pair) != pair[1] for pair in zip(letters, shape)):
                return False
            place += _padded(math.prod(shape) * np.dtype(kind).itemsize)
        return (
            self.arrays.keys() == ARRAYS.keys()
            and (sizes["S"], sizes["B"]) == (sizes["N"] + 1, sizes["W"] + 1)
            and min(self.start, *sizes.values()) >= 0
            and place == self.start + self.size <= length
            and all(0 <= row < sizes["N"] for row in self.deleted)
        )

    def is_sound(self, data: np.ndarray) -> bool:
        """Whether its bytes are as they were written."""
        return xxhash.xxh3_128_hexdigest(data[self.start : self.start + self.size].data) == self.xxh3


@dataclass(frozen=True)
class InvertedFile:
    """The inverted file beside the data file, which covers the passages of some segments."""

    file: str
    record: FileRecord
    segments: list[str]  # names, in the order of their passages
    probes: int  # cells that a query reads
    recall: float  # measured with so many cells


@dataclass(frozen=True)
class EncoderFacts:
    """What the `description` of an `Encoder` has at least."""

    name: str
    hash: str
    pooling: str | None
    max_seq_length: int | None
    dimension: int
    similarity: Literal["cosine", "dot"]
    prompt: str = ""
    query_prompt: str = ""
    given: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """What an index says of itself.

    Attributes:
        file: the data file, and `length`, its bytes that count.
        sources: how each folder or file is read that documents came from, by its path; "": they came from elsewhere.
        has_words: whether the encoder adds words of documents to their vectors.
        language: of the stems that BM25 counts (`docsplit.data.words.LANGUAGES`).
        is_built: whether the first build has come to its end.
        cut: how words were cut (`docsplit.data.words.CUT`).
    """

    encoder: JsonObject  # `name`, `hash`, and settings: the `description` of an `Encoder`
    passage_words: int
    has_words: bool
    language: str
    file: str
    length: int = 0
    segments: list[SegmentEntry] = field(default_factory=list)
    sources: dict[str, TableColumns] = field(default_factory=dict)
    approximate: InvertedFile | None = None  # None: all passages are compared
    is_built: bool = False
    cut: int = CUT

    def write(self, directory: Path) -> None:
        """Replace the manifest of a folder, whole or not at all."""
        write_sealed(directory / MANIFEST_FILE, asdict(self))


def read_manifest(directory: Path, is_built: bool = False) -> Manifest:
    """Read the manifest of an index.

    Args:
        is_built: refuse an index that is not built to its end.

    Raises:
        ValueError: if there is none, one that is damaged, or one whose words were cut in another way.
        OSError: if it cannot be opened, for want of file descriptors for example.
    """
    path = directory / MANIFEST_FILE
    try:
        content = read_sealed(path)
        manifest: Manifest = checked(content, Manifest, str(path))
        facts: EncoderFacts = checked(manifest.encoder, EncoderFacts, f"{path}: encoder")
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no index in {directory}: make one with `{command_name('search.py')} build`."
        ) from error
    except ValueError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise Damaged(f"{error} {REMEDY}") from error
    if content.get("cut") != CUT:
        raise ValueError(
            f"{path} is of a version that cut words in another way: build the index again, in a new folder."
        )
    more, names = manifest.approximate, {entry.name for entry in manifest.segments}
    if not (
        DATA_FILE.fullmatch(manifest.file)
        and not (directory / manifest.file).is_symlink()
        and all(entry.has_known_arrays(manifest.length, facts.dimension) for entry in manifest.segments)
        and (more is None or (INVERTED_FILE.fullmatch(more.file) and names.issuperset(more.segments)))
    ):
        raise Damaged(f"{path} names files or arrays that no change of an index writes. {REMEDY}")
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
        if not (entry.is_sound(data) and Segment(data, entry).is_consistent(len(manifest.sources)))
    ]
    known = manifest.approximate
    if known and (reason := known.record.why_damaged(directory, known.file)):
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


class DocumentRow(NamedTuple):
    """A document as a segment takes it."""

    document: Document
    texts: list[str]  # of its P' passages
    passages: np.ndarray  # their vectors, (P', H)
    whole: np.ndarray  # its vector, (H,); of one passage, that passage's
    tokens: np.ndarray  # (3,) as in `Segment`
    source: int


class Segment:
    """N documents of an index, with P passages in their order.

    Attributes:
        vectors: of all passages (P, H) float32, and then of the M documents that have several, whole.
        starts: the first passage of each document, and P, (N + 1,).
        passages: their texts: to cut a long document anew would take longer than the query.
        digests: of title and text, (N, 16) uint8.
        sources: of each document, the number of its source in the manifest, (N,).
        tokens: of the documents, those read in their passages, and those read of them whole, (N, 3); -1: not counted.
        words: stems of all documents, sorted; `postings` says which documents have each.
        lengths: how many stems each document has, (N,).
        alive: which documents are in the index, (N,) bool.
    """

    def __init__(self, data: np.ndarray, entry: SegmentEntry):
        self.entry, place, arrays = entry, entry.start, {}
        for name, shape in entry.arrays.items():
            arrays[name] = np.ndarray(shape, ARRAYS[name][0], buffer=data, offset=place)
            place += _padded(arrays[name].nbytes)
        self.ids, self.titles, self.texts, self.passages, self.words = (
            Strings(arrays[name], arrays[f"{name}.ends"]) for name in STRINGS
        )
        self.order, self.starts, self.vectors = arrays["order"], arrays["starts"], arrays["vectors"]
        self.digests, self.sources, self.tokens = arrays["digests"], arrays["sources"], arrays["tokens"]
        self.word_starts, self.word_rows = arrays["words.starts"], arrays["words.rows"]
        self.word_counts, self.lengths = arrays["words.counts"], arrays["lengths"]
        self.alive = np.ones(len(self.ids), dtype=bool)
        self.alive[entry.deleted] = False
        words = self.words
        self.number_of = lru_cache(1024)(lambda stem: words.find(stem, range(len(words))))  # a query asks repeatedly

    def is_consistent(self, sources: int) -> bool:
        """Whether each number in the arrays leads to something that is there."""
        count, strings = len(self.ids), (self.ids, self.titles, self.texts, self.passages, self.words)
        starts = (self.starts, len(self.passages)), (self.word_starts, len(self.word_rows))
        return (
            all(_leads_through(np.append(0, part.ends), len(part.content)) for part in strings)
            and all(_leads_through(places, end) and np.diff(places).all() for places, end in starts)
            and len(self.vectors) == self.document_rows.max(initial=-1) + 1
            and np.array_equal(np.sort(self.order), np.arange(count))
            and bool(np.isin(self.word_rows, np.arange(count)).all())
            and bool(np.isin(self.sources, np.arange(sources)).all())
        )

    def under(self, prefix: str) -> "Segment":
        """Return a view that has only the documents whose ids begin with a prefix."""
        view, key = copy.copy(self), prefix.encode(errors="surrogatepass")
        start, end = (
            place(self.order, key, key=lambda row: self.ids.encoded(row)[: len(key)])
            for place in (bisect_left, bisect_right)
        )
        rows, view.alive = self.order[start:end], np.zeros_like(self.alive)
        view.alive[rows] = self.alive[rows]
        return view

    def without(self, row: int) -> "Segment":
        """Return a view that lacks a document."""
        view = copy.copy(self)
        view.alive = self.alive.copy()
        view.alive[row] = False
        return view

    def document(self, row: int) -> Document:
        """Return a document as it was indexed."""
        return Document(self.ids[row], self.texts[row], self.titles[row])

    def rows(self) -> Iterator[DocumentRow]:
        """Iterate over the documents that are in the index."""
        whole = self.document_rows
        for row in np.flatnonzero(self.alive).tolist():
            part, own = self.passages_of(row), self.vectors[whole[row]]
            texts = [self.passages[number] for number in range(part.start, part.stop)]
            yield DocumentRow(
                self.document(row), texts, self.vectors[part], own, self.tokens[row], int(self.sources[row])
            )

    @property
    def passage_vectors(self) -> np.ndarray:
        """Vectors of the passages, (P, H) float32."""
        return self.vectors[: self.starts[-1]]

    @cached_property
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

    def postings(self, stem: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (D,) of the documents that have a stem, and how often they have it (D,)."""
        number = self.number_of(stem)
        part = slice(0) if number is None else slice(self.word_starts[number], self.word_starts[number + 1])
        return self.word_rows[part], self.word_counts[part]

    def has(self, stem: str, row: int) -> bool:
        """Whether a document has a stem; the rows of each are sorted."""
        rows, _ = self.postings(stem)
        place = int(np.searchsorted(rows, row))
        return place < len(rows) and rows[place] == row


def _padded(size: int) -> int:
    return size + -size % ALIGNED


def _leads_through(places: np.ndarray, end: int) -> bool:
    return places[0] == 0 and places[-1] == end and bool((np.diff(places) >= 0).all())


def digest_of(document: Document) -> np.ndarray:
    """Hash title and text of a document, (16,) uint8."""
    title, text = document.title.encode(errors="replace"), document.text.encode(errors="replace")
    return np.frombuffer(xxhash.xxh3_128_digest(b"%d;%b%b" % (len(title), title, text)), np.uint8)


def arrays_of(rows: Sequence[DocumentRow], language: str) -> dict[str, np.ndarray]:
    """Make the arrays of a segment; what UTF-8 cannot hold becomes a question mark in titles and texts."""
    from scipy.sparse import coo_array

    documents = [row.document for row in rows]
    ids = [document.id.encode(errors="surrogatepass") for document in documents]
    cut = stem_tokens([document.text for document in documents], language)
    words = sorted(cut.vocab)
    # The stems that each document has, by their numbers, become columns in the order of the stems
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
        "order": np.array(sorted(range(len(ids)), key=ids.__getitem__)),
        **_strings("titles", [document.title.encode(errors="replace") for document in documents]),
        **_strings("texts", [document.text.encode(errors="replace") for document in documents]),
        **_strings("passages", [text.encode(errors="replace") for row in rows for text in row.texts]),
        "digests": np.stack([digest_of(document) for document in documents]),
        "sources": np.array([row.source for row in rows]),
        "tokens": np.stack([row.tokens for row in rows]),
        **_strings("words", [word.encode() for word in words]),
        "words.starts": counts.indptr,
        "words.rows": counts.indices,
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
        content = np.ascontiguousarray(array, ARRAYS[name][0]).reshape(-1).view(np.uint8)
        for part in (content.data, bytes(_padded(len(content)) - len(content))):
            file.write(part)
            digest.update(part)
        described[name] = list(array.shape)
    return SegmentEntry(uuid.uuid4().hex, start, file.tell() - start, digest.hexdigest(), described)


# --- Reading ---


@dataclass(frozen=True)
class Hit:
    """A document that was found, and its best passage.

    Attributes:
        score: what documents are sorted by: a similarity, BM25, or both fused; it compares hits of one query alone.
        passage: the nearest to the query; where words alone count, the one with most of them.
        similarity: of that passage and the query; None where words alone count.
        words: of the query, whose stems the document has; without those that say little.
        document_similarity: of the whole document and the query; None unless it counts, as in a hybrid.
        bm25: of the document; None where meaning alone counts.
        copies: ids of other documents with the same text, where those are one hit.
    """

    id: str
    score: float
    title: str
    passage: str | None
    similarity: float | None = None
    words: list[str] = field(default_factory=list)
    document_similarity: float | None = None
    bm25: float | None = None
    copies: list[str] = field(default_factory=list)


class IndexReader:
    """The documents of a folder, as its manifest has them when it is opened.

    Opening compares sizes, and contents with their digests where all together are small (`READ_WHEN_OPENED`); `check`
    always reads all.

    Attributes:
        ends: the number of the last document of each segment, and one. Documents are counted through all segments.
        prefix: what the ids of all documents begin with.

    Args:
        is_built: refuse an index that is not built to its end.

    Raises:
        ValueError: if there is no index, one that is not built to its end, or if a file is missing or damaged.
        OSError: if a file cannot be opened.
    """

    def __init__(self, directory: str | Path, is_built: bool = True):
        self.directory, self.prefix = Path(directory), ""
        while True:
            self.manifest = read_manifest(self.directory, is_built)
            try:
                data = map_data(self.directory, self.manifest)
                if len(data) <= READ_WHEN_OPENED and (faults := faults_in(self.directory, self.manifest, data)):
                    raise Damaged(faults[0])
                break
            except Damaged:
                if read_manifest(self.directory) == self.manifest:  # else a writer was faster
                    raise
        self.segments = [Segment(data, entry) for entry in self.manifest.segments]
        self.ends = np.cumsum([len(segment.ids) for segment in self.segments], dtype=np.int64)

    def current(self) -> "IndexReader":
        """Return this index; if another process has changed it, the index as it is now."""
        is_current = read_manifest(self.directory) == self.manifest
        return self if is_current else IndexReader(self.directory).under(self.prefix)

    def under(self, prefix: str) -> "IndexReader":
        """Return a view that has only the documents whose ids begin with a prefix; their words alone count for BM25.

        Raises:
            ValueError: if there is none.
        """
        if not prefix:
            return self
        view = copy.copy(self)
        view.prefix, view.segments = prefix, [segment.under(prefix) for segment in self.segments]
        if not len(view):
            raise ValueError(f"No document of {self.directory} has an id that begins with {prefix!r}.")
        return view

    def without(self, document_id: str) -> "IndexReader":
        """Return a view that lacks a document, if it has it."""
        view, rows = copy.copy(self), [segment.find(document_id) for segment in self.segments]
        view.segments = [of if row is None else of.without(row) for of, row in zip(self.segments, rows)]
        return view

    def __len__(self) -> int:
        return sum(int(segment.alive.sum()) for segment in self.segments)

    def find(self, document_id: str) -> tuple[Segment, int] | None:
        """Look up a document's segment and row; None if it is not in the index."""
        places = ((segment, segment.find(document_id)) for segment in self.segments)
        return next(((segment, row) for segment, row in places if row is not None), None)

    def search(
        self, vector: np.ndarray | None, query: str, count: int = 10, method: str = "hybrid", fusion: str = "sum",
        weight: float = WEIGHT, joins_copies: bool = False,
    ) -> list[Hit]:  # fmt: skip
        """Find the best documents for a query, the best first.

        `dense`: a document's score is that of its nearest passage. `bm25`: by words. `hybrid`: by both, fused as
        `docsplit.data.fusion` says: the weighted sum, or the reciprocal ranks of the first `FUSED` of both; there the
        whole document counts beside its nearest passage.

        Args:
            vector: (H,), of the query; None for `bm25`.
            weight: of the similarity in the sum.
            joins_copies: documents whose texts are equal up to white space are one hit, the best of them.

        Returns: at most `count`; with `bm25` only documents that have one of the words.
        """
        stems, depth = Stems(self.manifest.language), max(FUSED, count) if method == "hybrid" else count
        by_words = similarities = np.empty(0)
        if method != "dense":
            by_words = bm25(self.segments, stems.of(query))
            by_words[by_words == 0] = -np.inf  # no word of the query: not found
        if vector is not None:
            similarities = self.similarities(vector, depth, by_words, method == "hybrid")
        if method == "hybrid" and fusion == "rrf":
            both = [best_of(scores, depth).tolist() for scores in (similarities, by_words)]
            fused = reciprocal_ranks(both)

            def best(count: int) -> list[tuple[int, float]]:
                return fused[:count]

        else:
            scores = by_words if method == "bm25" else similarities
            if method == "hybrid":
                lowest = LOWEST[self.manifest.encoder["similarity"]]
                scores = sum_of_scores(similarities, np.maximum(by_words, 0), weight, lowest)

            def best(count: int) -> list[tuple[int, float]]:
                return [(number, scores[number]) for number in best_of(scores, count).tolist()]

        ranked, copies = best(count), dict[int, list[int]]()
        if joins_copies:
            ranked, copies = self._without_copies(best, count, stems)
        hits, content = [], stems.content_words(query)
        for number, score in ranked:
            segment, row = self.place(number)
            part, similarity, whole = segment.passages_of(row), None, None
            matched = {word: stem for word, stem in content.items() if segment.has(stem, row)}
            if vector is None:
                passage, most, wanted = "", -1, {*matched.values()}
                for place in range(part.start, part.stop):
                    if (found := len(wanted.intersection(stems.of(segment.passages[place])))) > most:
                        passage, most = segment.passages[place], found
                        if found == len(wanted):  # a long document need not be read to its end
                            break
            else:
                nearest = segment.vectors[part] @ vector
                passage = segment.passages[part.start + nearest.argmax()]
                similarity = float(nearest.max())
                if method == "hybrid":
                    whole = float(segment.vectors[segment.document_rows[row]] @ vector)
            of_words = max(float(by_words[number]), 0.0) if len(by_words) else None
            places = map(self.place, copies.get(number, ()))
            names = [its_segment.ids[its_row] for its_segment, its_row in places]
            hits.append(
                Hit(
                    segment.ids[row], float(score), segment.titles[row], passage, similarity, [*matched], whole,
                    of_words, names,
                )
            )  # fmt: skip
        return hits

    def _without_copies(
        self, best: Callable[[int], list[tuple[int, float]]], count: int, stems: Stems
    ) -> tuple[list[tuple[int, float]], dict[int, list[int]]]:
        """Take the `count` best documents that have different texts, and the copies of each.

        Args:
            best: gives so many documents, and their scores, the best first.
        """
        ranked, copies, seen, depth = list[tuple[int, float]](), dict[int, list[int]](), set[int](), count
        while True:
            found = best(depth)
            for number, score in found:
                if number not in seen and len(ranked) < count:
                    copies[number] = self._copies_of(number, stems)
                    seen.update([number], copies[number])
                    ranked.append((number, score))
            if len(ranked) == count or len(found) < depth:
                return ranked, copies
            depth *= 2

    def _copies_of(self, number: int, stems: Stems) -> list[int]:
        """Return the other documents that have the text of one, whatever white space is in it.

        They have as many stems, and a long one of its beginning, which few others have.
        """
        segment, row = self.place(number)
        text, copies = segment.texts[row], list[int]()
        longest = max(stems.of(text[:BEGINNING].rsplit(None, 1)[0]), key=len, default="") if text.strip() else ""
        has_it, words = segment.has(longest, row), None
        for other, end in zip(self.segments, self.ends.tolist()):
            rows = other.postings(longest)[0] if has_it else np.arange(len(other.ids))
            rows = rows[other.alive[rows] & (other.lengths[rows] == segment.lengths[row])]
            for its_row in rows.tolist():
                its_number = its_row + end - len(other.ids)
                if its_number != number:
                    words = words or clean_text(text).split()
                    if clean_text(other.texts[its_row]).split() == words:
                        copies.append(its_number)
        return copies

    def rarity(self, words: Sequence[str]) -> dict[str, float]:
        """Return the share that each of some words has in what BM25 gives all of them."""
        stems, weights = Stems(self.manifest.language), dict[str, float]()
        for word in words:
            rows = (segment.alive[segment.postings(stems.stem(word))[0]] for segment in self.segments)
            weights[word] = rarity_of(sum(int(alive.sum()) for alive in rows), len(self))
        return {word: weight / sum(weights.values()) for word, weight in weights.items()}

    def place(self, number: int) -> tuple[Segment, int]:
        """Return the segment of a document, and its row there."""
        which = int(np.searchsorted(self.ends, number, side="right"))
        return self.segments[which], number - int(self.ends[which]) + len(self.segments[which].ids)

    def similarities(self, vector: np.ndarray, count: int, by_words: np.ndarray, is_hybrid: bool) -> np.ndarray:
        """Compute the similarity of the query (H,) and each document, (N,) float32, by `similarity_of`.

        It is -inf of deleted documents. Beside an inverted file it is -inf of all that are neither among the `count`
        documents that the file finds, nor among the first of `by_words` (N,), nor too new for it. The file finds too
        few of a part of the documents: a view compares all.
        """
        known = None if self.prefix else self.manifest.approximate
        parts = [
            np.full(len(segment.ids), -np.inf, np.float32)
            if known is not None and segment.entry.name in known.segments
            else np.where(segment.alive, similarity_of(segment, vector, is_hybrid), -np.inf)
            for segment in self.segments
        ]
        similarities = np.concatenate([np.empty(0, np.float32), *parts])
        if known is not None:
            found = self._nearest_in_cells(known.segments, vector, count)
            for number in {*found, *best_of(by_words, count).tolist()}:
                segment, row = self.place(number)
                similarities[number] = similarity_of(segment, vector, is_hybrid, row)
        return similarities

    @cached_property
    def cells(self) -> Any:
        """The inverted file, of faiss.

        Raises:
            ValueError: without faiss.
        """
        assert self.manifest.approximate is not None
        path = str(self.directory / self.manifest.approximate.file)
        try:
            import faiss

            index = faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC)
        except ImportError as error:
            raise ValueError("This index needs faiss, which is not installed: pip install faiss-cpu.") from error
        except RuntimeError as error:
            raise Damaged(f"{path} is damaged: it is no inverted file of faiss. {REMEDY}") from error
        faiss.extract_index_ivf(index).nprobe = self.manifest.approximate.probes
        return index

    def _nearest_in_cells(self, names: Sequence[str], vector: np.ndarray, count: int) -> set[int]:
        """Find documents of the segments that the inverted file covers, with probably the nearest passages."""
        from docsplit.embedding.neighbours import search_inverted_file

        by_name = {segment.entry.name: (segment, int(end)) for segment, end in zip(self.segments, self.ends)}
        covered = [by_name[name] for name in names]
        parts = [segment.passage_vectors for segment, _ in covered]
        # The first passage of each document, and the document's number; -1: of one that is deleted
        starts = np.cumsum([0, *map(len, parts)])
        firsts = np.concatenate([start + segment.starts[:-1] for start, (segment, _) in zip(starts, covered)])
        ids = [np.where(segment.alive, np.arange(end - len(segment.ids), end), -1) for segment, end in covered]
        (passages,), _ = search_inverted_file(self.cells, parts, vector[None], CANDIDATES * count)
        documents = np.concatenate(ids)[np.searchsorted(firsts, passages[passages >= 0], side="right") - 1]
        return {*documents.tolist()} - {-1}

    def documents(self) -> Iterator[tuple[Segment, int]]:
        """Iterate over all documents in order: segment and row."""
        for segment in self.segments:
            for row in np.flatnonzero(segment.alive):
                yield segment, int(row)

    def document_vectors(self) -> np.ndarray:
        """Copy the vectors of all documents, in their order, (N, H)."""
        return np.concatenate([segment.vectors[segment.document_rows[segment.alive]] for segment in self.segments])

    def num_passages(self) -> int:
        """Count the passages of all documents."""
        return sum(int(np.diff(segment.starts)[segment.alive].sum()) for segment in self.segments)

    def passages(self) -> Iterator[tuple[dict[str, str], np.ndarray]]:
        """Iterate over all passages of all documents, in order: id, document, title and text, and the vector (H,).

        The id is that of the document, and the passage's number in it.
        """
        for segment, row in self.documents():
            document, title = segment.ids[row], segment.titles[row]
            part = segment.passages_of(row)
            for number, passage in enumerate(range(part.start, part.stop)):
                about = {"id": f"{document}#{number}", "document": document, "title": title}
                yield about | {"text": segment.passages[passage]}, segment.vectors[passage]

    def reading(self) -> str | None:
        """Say what share of the documents' tokens the vectors read; None: all, or their tokens were not counted."""
        tokens = np.concatenate([np.empty((0, 3)), *(segment.tokens[segment.alive] for segment in self.segments)])
        total, in_passages, in_documents = tokens.sum(axis=0)
        if total < 0 or in_documents == total:
            return None
        of_passages, of_documents = (f"{np.floor(1000 * n / total) / 10:g} %" for n in (in_passages, in_documents))
        words = " and all words" if self.manifest.has_words else ""
        fewer = " Build with fewer --passage_words for more." if in_passages < total else ""
        return (
            f"Search covers {of_passages} of the text{words}; clusters, duplicates and maps cover {of_documents}, the "
            f"beginnings{words}.{fewer}"
        )


def similarity_of(segment: Segment, vector: np.ndarray, is_hybrid: bool, row: int | None = None) -> np.ndarray:
    """Compute the similarity of a query (H,) and each document of a segment, (N,), or the one of a row.

    It is that of the nearest passage; of a hybrid, its mean with that of the whole document, as far as the encoder
    reads: docs/searching.md has what either is worth.
    """
    if row is not None:
        nearest = (segment.vectors[segment.passages_of(row)] @ vector).max()
        return (nearest + segment.vectors[segment.document_rows[row]] @ vector) / 2 if is_hybrid else nearest
    products = segment.vectors @ vector  # of passages, and of whole documents
    nearest = np.maximum.reduceat(products[: segment.starts[-1]], segment.starts[:-1])
    return (nearest + products[segment.document_rows]) / 2 if is_hybrid else nearest


def rarity_of(documents: int, all_documents: int) -> float:
    """Return what BM25 gives a word that so many of all documents have: more if they are few."""
    return float(np.log(1 + (all_documents - documents + 0.5) / (documents + 0.5)))


def bm25(segments: Sequence[Segment], stems: Sequence[str]) -> np.ndarray:
    """Compute BM25 (Lucene's form, as bm25s has it) of all documents of some segments for the stems of a query.

    It is computed when a query comes, for its stems alone: the statistics of the collection (documents that have a
    stem, mean length) change with each document that comes or goes. bm25s, which the evaluations use, weighs all stems
    of all documents beforehand; the scores are the same. Only documents that are in the index count: after an addition
    or a deletion, the scores are those of an index that was built so.

    Returns: (N,) float32 of all documents, 0 for those without any of the stems and for deleted ones.
    """
    if not segments:
        return np.zeros(0, dtype=np.float32)
    alive = np.concatenate([segment.alive for segment in segments])
    lengths = np.concatenate([segment.lengths for segment in segments])
    starts = np.cumsum([0, *(len(segment.ids) for segment in segments)])
    num_documents, scores = int(alive.sum()), np.zeros(len(alive), dtype=np.float32)
    mean_length = max(int(lengths[alive].sum()) / max(num_documents, 1), 1e-9)
    for stem, times in Counter(stems).items():  # a stem that the query has twice counts twice
        postings = [segment.postings(stem) for segment in segments]
        rows = np.concatenate([start + rows for start, (rows, _) in zip(starts, postings)])
        counts = np.concatenate([counts for _, counts in postings])
        rows, counts = rows[alive[rows]], counts[alive[rows]]
        weight = times * rarity_of(len(rows), num_documents)
        scores[rows] += weight * counts / (counts + K1 * (1 - B + B * lengths[rows] / mean_length))
    return scores


def encoder_of_index(directory: Path, name: str | None = None, cache_dir: Path | None = None) -> "Encoder":
    """Load the encoder that an index was built with.

    Args:
        name: where it is now. Default: where it was.
        cache_dir: of its embeddings. Default: they are not kept.

    Raises:
        ValueError: if there is no index, or the encoder is not the same any more.
    """
    from docsplit.embedding.encoder import Encoder

    manifest = read_manifest(directory)
    encoder = Encoder.of(manifest.encoder, name, cache_dir)
    check_encoder(manifest, encoder.description)
    return encoder


def check_encoder(manifest: Manifest, encoder: JsonObject) -> None:
    """Refuse an encoder that is not that of the index.

    Raises:
        ValueError: naming both.
    """
    expected = manifest.encoder
    if changed := [name for name in expected if expected[name] != encoder.get(name) and name not in ("given", "name")]:
        others = [name for name in changed if name != "hash"]
        raise ValueError(
            f"The index was built with {expected['name']} ({expected['hash'][:8]}), not with {encoder['name']} "
            f"({encoder['hash'][:8]}){': other ' + ', '.join(others) if others else ''}. Vectors of two encoders "
            "cannot be compared: build the index again."
        )
