"""Record which documents an encoder was trained on, and measure how much of a test set is among them.

The record holds no text. It has, for each document, the 8 bytes of `docsplit.data.preparation.document_id` and, up to
a million documents, a sketch: the 8 smallest hashes of its runs of five words (Broder 1997, "On the resemblance and
containment of documents"). Take the 8 smallest of two sketches' union: the share that both have estimates the Jaccard
similarity of the two documents' runs, with a standard deviation of 0.18 at 0.5. Above some millions of documents their
hashes go into Bloom filters: 4 bytes a document, a known rate of false alarms, and no document is missed.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from docsplit.runtime.files import add_arrays, write_whole

TRAINING_DOCUMENTS_FILE = "training_documents.safetensors"
SHARES = ("seen_in_pretraining_share", "near_duplicate_share")  # of the test documents, in rows of results
SHINGLE_WORDS = 5  # near-duplicates share most of their runs of five words
SKETCH_SIZE = 8
NO_HASH = 2**32 - 1  # fills up the sketch of a document with fewer runs
NEAR_DUPLICATE = 0.5  # estimated resemblance
MOST_SKETCHES = 1_000_000  # documents; with more, near-duplicates are unknown
DOCUMENTS_OF_A_FILTER = 2**22  # kept as they are, 32 MiB; further ones fill Bloom filters
BITS_OF_A_DOCUMENT, HASHES_OF_A_DOCUMENT = 32, 22  # of a filter: 2.1e-7 false alarms
_WORD = re.compile(r"(?u)\w+")
_MOST_WORDS = 2**20  # hashes that are remembered


# --- Hashes ---


class _WordHashes(dict[str, int]):
    def __missing__(self, word: str) -> int:
        if len(self) >= _MOST_WORDS:
            self.clear()
        self[word] = zlib.crc32(word.encode())
        return self[word]


_hash_of_word = _WordHashes().__getitem__


def _mix(values: np.ndarray) -> np.ndarray:
    """Spread uint64 over all 64 bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def sketch(texts: Sequence[str]) -> np.ndarray:
    """Sketch texts by the smallest hashes of their runs of five words, (len(texts), SKETCH_SIZE) uint32.

    Words are `\\w+` in lower case, as in `docsplit.data.preparation.near_duplicates`; no character that `clean_text`
    removes is in one. Each row is ascending and distinct, and filled up with NO_HASH.
    """
    sketches = np.full((len(texts), SKETCH_SIZE), NO_HASH, dtype=np.uint32)
    words = [_WORD.findall(text.lower()) for text in texts]
    lengths = np.array(list(map(len, words)), dtype=np.int64)
    codes = np.fromiter(map(_hash_of_word, chain.from_iterable(words)), np.uint64, lengths.sum())
    num_runs = len(codes) - SHINGLE_WORDS + 1
    if num_runs < 1:
        return sketches
    # Hash each run of five words, of all texts at once, without those that reach from one text into the next.
    runs = np.zeros(num_runs, dtype=np.uint64)
    for shift in range(SHINGLE_WORDS):
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + codes[shift : shift + num_runs]
    document = np.repeat(np.arange(len(texts), dtype=np.uint64), lengths)
    inside = document[:num_runs] == document[SHINGLE_WORDS - 1 :]
    hashes = np.minimum(_mix(runs[inside]) >> np.uint64(32), np.uint64(NO_HASH - 1))
    # Sort by text and hash, drop repeated hashes, and keep the first ones of each text.
    keys = np.sort(document[:num_runs][inside] << np.uint64(32) | hashes)
    keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
    rows = (keys >> np.uint64(32)).astype(np.int64)
    ranks = np.arange(len(rows)) - np.searchsorted(rows, np.arange(len(texts)))[rows]
    chosen = ranks < SKETCH_SIZE
    sketches[rows[chosen], ranks[chosen]] = keys[chosen].astype(np.uint32)
    return sketches


def resemblance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Estimate the Jaccard similarity of P pairs of documents, (P,), from their sketches, (P, SKETCH_SIZE) each.

    0 where a document has no run of five words.
    """
    both = np.sort(np.concatenate([first, second], axis=1), axis=1)
    is_shared = np.zeros(both.shape, dtype=bool)
    is_shared[:, 1:] = both[:, 1:] == both[:, :-1]  # no row has a value twice, so both have it
    ranks = np.cumsum(~is_shared, axis=1)
    of_union = (ranks <= SKETCH_SIZE) & (both != NO_HASH)
    return (is_shared & of_union).sum(axis=1) / np.maximum((~is_shared & of_union).sum(axis=1), 1)


# --- Sets of documents ---


@dataclass
class DocumentSet:
    """Distinct documents by their hashes: 8 bytes of memory a document (40 with a sketch), and 4 in filters.

    Attributes:
        ids: (N,) int64 of `document_id`, ascending.
        sketches: (N, SKETCH_SIZE) uint32 of these; None: unknown.
        filters: full Bloom filters of DOCUMENTS_OF_A_FILTER further documents each, uint8 of their bits.
    """

    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sketches: np.ndarray | None = field(default_factory=lambda: np.zeros((0, SKETCH_SIZE), dtype=np.uint32))
    filters: list[np.ndarray] = field(default_factory=list)

    def __len__(self) -> int:
        """Count the documents. Filters do not count those that they took for known ones."""
        return len(self.ids) + sum(8 * len(bits) // BITS_OF_A_DOCUMENT for bits in self.filters)

    def add(self, ids: np.ndarray, sketches: np.ndarray | None) -> None:
        """Add documents; known and repeated ones count once.

        Args:
            ids: (M,) int64, in any order.
            sketches: (M, SKETCH_SIZE) uint32; None if unknown, which makes those of the whole set unknown.
        """
        ids, first = np.unique(ids, return_index=True)
        is_new = ~self.contains(ids)
        places = np.searchsorted(self.ids, ids[is_new])
        self.ids = np.insert(self.ids, places, ids[is_new])
        if self.sketches is not None and (sketches is not None or not len(ids)) and len(self.ids) <= MOST_SKETCHES:
            if sketches is not None:
                self.sketches = np.insert(self.sketches, places, sketches[first[is_new]], axis=0)
        else:
            self.sketches = None
        while len(self.ids) > DOCUMENTS_OF_A_FILTER:
            self.filters.append(_bloom_filter(self.ids[:DOCUMENTS_OF_A_FILTER]))
            self.ids, self.sketches = self.ids[DOCUMENTS_OF_A_FILTER:], None

    def add_all(self, other: "DocumentSet") -> None:
        """Add the documents of another set."""
        self.filters += other.filters
        self.add(other.ids, other.sketches)
        self.sketches = None if self.filters else self.sketches

    def contains(self, ids: np.ndarray) -> np.ndarray:
        """Whether each of these is in the set, (M,). No member is missed; others pass at `false_alarm_rate`."""
        is_known = _are_among(ids, self.ids)
        first, step = _two_hashes(ids)
        for bits in self.filters:
            left = np.flatnonzero(~is_known)
            for number in range(HASHES_OF_A_DOCUMENT):  # half of the unknown ones go with each
                position = _positions(first[left], step[left], number, 8 * len(bits))
                left = left[(bits[position >> 3] >> (position & 7) & 1).astype(bool)]
            is_known[left] = True
        return is_known

    def near_duplicates(self, sketches: np.ndarray) -> np.ndarray:
        """Whether each of M documents resembles one of the set by NEAR_DUPLICATE or more, (M,).

        Raises:
            ValueError: if the sketches of the set are unknown.
        """
        if self.sketches is None:
            raise ValueError("The sketches of this set are unknown: it has too many documents, or its start had none.")
        # An inverted index: hashes that a test document has, and the documents of the set that have them.
        hashes, documents = self.sketches.ravel(), np.repeat(np.arange(len(self.ids)), SKETCH_SIZE)
        wanted = _are_among(hashes, np.unique(sketches)) & (hashes != NO_HASH)
        hashes, documents = hashes[wanted], documents[wanted]
        order = np.argsort(hashes, kind="stable")
        hashes, documents = hashes[order], documents[order]
        starts, ends = np.searchsorted(hashes, sketches), np.searchsorted(hashes, sketches, side="right")
        starts[sketches == NO_HASH] = ends[sketches == NO_HASH] = 0
        is_duplicate = np.zeros(len(sketches), dtype=bool)
        # Compare each test document with those that share enough hashes to be near.
        for row in np.flatnonzero((ends > starts).any(axis=1)):
            candidates = np.concatenate([documents[a:b] for a, b in zip(starts[row], ends[row])])
            candidates, num_shared = np.unique(candidates, return_counts=True)
            candidates = candidates[num_shared >= NEAR_DUPLICATE * (sketches[row] != NO_HASH).sum()]
            repeated = np.broadcast_to(sketches[row], (len(candidates), SKETCH_SIZE))
            is_duplicate[row] = (resemblance(repeated, self.sketches[candidates]) >= NEAR_DUPLICATE).any()
        return is_duplicate

    @property
    def false_alarm_rate(self) -> float:
        """The share of documents that are not in the set and that `contains` takes for known."""
        full = -np.expm1(-HASHES_OF_A_DOCUMENT / BITS_OF_A_DOCUMENT)  # share of a filter's bits that are set
        return float(min(len(self.filters) * full**HASHES_OF_A_DOCUMENT, 1))


def _are_among(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Do what `np.isin` does, for values that are sorted already."""
    if not len(ascending):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[places] == values


def _bloom_filter(ids: np.ndarray) -> np.ndarray:
    bits = np.zeros(len(ids) * BITS_OF_A_DOCUMENT, dtype=bool)
    first, step = _two_hashes(ids)
    for number in range(HASHES_OF_A_DOCUMENT):
        bits[_positions(first, step, number, len(bits))] = True
    return np.packbits(bits, bitorder="little")


def _two_hashes(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute two hashes; all hash functions of a filter are made of them (Kirsch and Mitzenmacher 2006)."""
    first = _mix(ids.astype(np.uint64))
    return first, _mix(first) | np.uint64(1)


def _positions(first: np.ndarray, step: np.ndarray, number: int, num_bits: int) -> np.ndarray:
    return ((first + np.uint64(number) * step) % np.uint64(num_bits)).astype(np.int64)


# --- The record of an encoder ---


@dataclass
class SeenShares:
    """The shares of a test set that an encoder was trained on.

    Attributes:
        seen: share of the distinct test documents that are in the record.
        near_duplicates: share of those that are in it, or resemble one by NEAR_DUPLICATE or more; None: unknown.
    """

    seen: float
    near_duplicates: float | None


@dataclass
class TrainingDocuments:
    """The documents that the weights of an encoder were trained on.

    Attributes:
        run: those of its pretraining, in all sessions of a resumed run.
        before: those that the weights had seen at the start of that run.
        is_complete: whether `before` is all; False where the start had no record.
    """

    run: DocumentSet = field(default_factory=DocumentSet)
    before: DocumentSet = field(default_factory=DocumentSet)
    is_complete: bool = True

    def for_next_run(self) -> "TrainingDocuments":
        """Begin the record of a run that starts from these weights."""
        before = DocumentSet()
        before.add_all(self.before)
        before.add_all(self.run)
        return TrainingDocuments(before=before, is_complete=self.is_complete)

    def shares(self, texts: Sequence[str], ids: np.ndarray) -> SeenShares:
        """Measure how much of a test set is in the record.

        Args:
            texts: of the test documents, M.
            ids: (M,) int64, of `document_id`.
        """
        ids, first = np.unique(ids, return_index=True)
        sketches = sketch([texts[index] for index in first])
        parts = (self.run, self.before)
        seen = np.logical_or(*(part.contains(ids) for part in parts))
        if any(part.sketches is None for part in parts):
            return SeenShares(float(seen.mean()), None)
        alike = np.logical_or(*(part.near_duplicates(sketches) for part in parts))
        return SeenShares(float(seen.mean()), float((seen | alike).mean()))

    def save(self, directory: Path) -> None:
        """Write TRAINING_DOCUMENTS_FILE, whole or not at all."""
        from safetensors.numpy import save_file  # --help reads this module

        tensors = {}
        for name, part in {"run": self.run, "before": self.before}.items():
            tensors[f"{name}.ids"] = part.ids
            if part.sketches is not None:
                tensors[f"{name}.sketches"] = part.sketches
            tensors |= {f"{name}.filter.{number}": bits for number, bits in enumerate(part.filters)}
        metadata = {"is_complete": json.dumps(self.is_complete)}
        metadata["false_alarm_rate"] = f"{self.run.false_alarm_rate + self.before.false_alarm_rate:.1e}"
        metadata["digest"] = _digest(tensors, metadata)
        path = directory / TRAINING_DOCUMENTS_FILE
        write_whole(path, lambda path: save_file(tensors, path, metadata=metadata))

    @classmethod
    def load(cls, path: Path) -> "TrainingDocuments":
        """Read a record of `save`.

        Raises:
            ValueError: if the file cannot be read, or has changed since.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                names, metadata = file.keys(), file.metadata()
                tensors = {name: file.get_tensor(name) for name in names}
            if metadata.pop("digest") != _digest(tensors, metadata):
                raise ValueError("it has changed since it was written")
            parts = {}
            for name in ("run", "before"):
                prefix = f"{name}.filter."
                numbers = sorted(int(key.removeprefix(prefix)) for key in tensors if key.startswith(prefix))
                filters = [tensors[f"{prefix}{number}"] for number in numbers]
                parts[name] = DocumentSet(tensors[f"{name}.ids"], tensors.get(f"{name}.sketches"), filters)
            return cls(is_complete=json.loads(metadata["is_complete"]), **parts)
        except (SafetensorError, OSError, AttributeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _digest(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    add_arrays(digest, tensors, metadata)
    return digest.hexdigest()
