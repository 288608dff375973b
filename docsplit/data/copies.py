"""Find near copies of texts by the Jaccard similarity of their runs of five words, or sketches of these.

near_duplicates    texts that resemble one of others
near_copy_groups   the group of each text
jaccard_of_pairs   the similarity of given pairs
sketch             the smallest hashes of a text, of which `resemblance` estimates the similarity
"""

import hashlib
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from tqdm.auto import tqdm

from docsplit.data.passages import clean_text
from docsplit.data.words import units_of
from docsplit.runtime.files import add_texts

SHINGLE_UNITS = 5  # near-duplicates share most of their runs of five words
SKETCH_SIZE = 8
NO_HASH = 2**32 - 1  # fills up the sketch of a document with fewer runs
CHUNK_RUNS = 2**23  # runs of words of pairs that are compared at a time


def document_id(text: str) -> int:
    """Hash a text up to white space to 63 bits: equal for exact duplicates, and the key of a document's draws."""
    digest = hashlib.blake2b(" ".join(clean_text(text).split()).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def fingerprint_of(pieces: Iterable[str | bytes]) -> str:
    """Hash texts, each with its length, and bytes, in order: 16 hexadecimal digits, equal for equal data."""
    digest = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        if isinstance(piece, str):
            add_texts(digest, [piece])
        else:
            digest.update(piece)
    return digest.hexdigest()


def hash_runs(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hash the runs of five units (`docsplit.data.words.units_of`) of each text; fewer units are one run.

    Returns: how many runs each text has, (N,) int64, and their hashes, text after text, (R,) uint64.
    """
    codes = [np.zeros(0, dtype=np.uint64)]
    for units in map(units_of, texts):
        filled = [*units, *[""] * (SHINGLE_UNITS - len(units))] if units else units
        codes.append(np.fromiter(map(zlib.crc32, map(str.encode, filled)), np.uint64))
    lengths, joined = np.array([*map(len, codes[1:])], dtype=np.int64), np.concatenate(codes)
    # Hash the runs of all texts at once, without those that reach from one text into the next.
    num_runs = max(len(joined) - SHINGLE_UNITS + 1, 0)
    runs = np.zeros(num_runs, dtype=np.uint64)
    for shift in range(SHINGLE_UNITS):
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + joined[shift : shift + num_runs]
    text = np.repeat(np.arange(len(lengths)), lengths)
    inside = text[:num_runs] == text[SHINGLE_UNITS - 1 :]
    counts = np.bincount(text[:num_runs][inside], minlength=len(lengths))
    # Spread the sums over all 64 bits (the finaliser of SplitMix64).
    runs = runs[inside]
    runs = (runs ^ (runs >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    runs = (runs ^ (runs >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return counts, runs ^ (runs >> np.uint64(31))


def sketch(texts: Sequence[str]) -> np.ndarray:
    """Sketch texts by the smallest hashes of their runs, (len(texts), SKETCH_SIZE) uint32.

    Each row is ascending and distinct, and filled up with NO_HASH.
    """
    sketches = np.full((len(texts), SKETCH_SIZE), NO_HASH, dtype=np.uint32)
    counts, runs = hash_runs(texts)
    hashes = np.minimum(runs >> np.uint64(32), np.uint64(NO_HASH - 1))
    # Sort by text and hash, drop repeated hashes, and keep the first ones of each text.
    keys = np.unique(np.repeat(np.arange(len(texts), dtype=np.uint64), counts) << np.uint64(32) | hashes)
    rows = (keys >> np.uint64(32)).astype(np.int64)
    ranks = np.arange(len(rows)) - np.searchsorted(rows, np.arange(len(texts)))[rows]
    chosen = ranks < SKETCH_SIZE
    sketches[rows[chosen], ranks[chosen]] = keys[chosen].astype(np.uint32)
    return sketches


def resemblance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Estimate the Jaccard similarity of P pairs of documents, (P,), from their sketches, (P, SKETCH_SIZE) each.

    0 where both are empty.
    """
    both = np.sort(np.concatenate([first, second], axis=1), axis=1)
    is_shared = np.zeros(both.shape, dtype=bool)
    is_shared[:, 1:] = both[:, 1:] == both[:, :-1]  # no row has a value twice, so both have it
    ranks = np.cumsum(~is_shared, axis=1)
    of_union = (ranks <= SKETCH_SIZE) & (both != NO_HASH)
    return (is_shared & of_union).sum(axis=1) / np.maximum((~is_shared & of_union).sum(axis=1), 1)


def near_duplicates(texts: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Whether each text has a reference with a Jaccard similarity of runs of 0.5 or more, (N,)."""
    shingles = _shingles([*texts, *references])
    sizes = np.diff(shingles.indptr)
    shared = (shingles[: len(texts)] @ shingles[len(texts) :].T).tocoo()  # only pairs that share a run are stored
    similar = shared.data / (sizes[shared.row] + sizes[len(texts) + shared.col] - shared.data) >= 0.5
    return np.isin(np.arange(len(texts)), shared.row[similar])


def near_copy_groups(texts: Sequence[str], threshold: float = 0.5) -> np.ndarray:
    """Find the group of near copies of each text, (N,): chains of Jaccard similarities of runs of `threshold` or more.

    Two such texts share one of the runs that are rarest in each, as many as leave fewer than the `threshold` (prefix
    filtering, Chaudhuri et al. 2006). Of the texts with a run, sorted by length, each is compared with the next
    ten: the time grows with the number of runs, however many copies a text has.

    Returns: numbers from 0 in the order of the first texts; a text without copies has its own.
    """
    shingles = _shingles(texts)
    rows, columns = shingles.nonzero()
    # The rarest runs of each text
    sizes, holders = np.diff(shingles.indptr), np.bincount(columns)
    order = np.lexsort((columns, holders[columns], rows))
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_rare = (rank <= sizes[rows] - np.ceil(threshold * sizes[rows])) & (holders[columns[order]] > 1)
    rows, columns = rows[is_rare], columns[order][is_rare]
    order = np.lexsort((rows, sizes[rows], columns))
    rows, columns = rows[order], columns[order]
    # Compare texts that share one, but for those that a chain joins already
    groups, joined = np.arange(len(texts)), np.empty((0, 2), dtype=np.int64)
    for shift in range(1, 11):
        pairs = np.stack([rows[:-shift], rows[shift:]], axis=1)[columns[:-shift] == columns[shift:]]
        pairs = np.unique(np.sort(pairs[groups[pairs[:, 0]] != groups[pairs[:, 1]]], axis=1), axis=0)
        joined = np.concatenate([joined, pairs[_jaccard(shingles, pairs) >= threshold]])
        links = csr_matrix((np.ones(len(joined)), tuple(joined.T)), (len(texts), len(texts)))
        groups = connected_components(links, directed=False)[1]
    return groups


def jaccard_of_pairs(texts: Sequence[str], pairs: np.ndarray) -> np.ndarray:
    """Compute the Jaccard similarity of two texts' runs, for many pairs.

    Each text is cut into runs once, and texts that are equal up to white space are compared once.

    Args:
        pairs: (K, 2), rows of `texts`.

    Returns: (K,).
    """
    if not len(pairs):
        return np.empty(0)
    numbers: dict[str, int] = {}
    number_of = np.array([numbers.setdefault(" ".join(text.split()), len(numbers)) for text in texts], dtype=np.int64)
    shingles = _shingles(tqdm(numbers, desc="Reading documents", unit="document", delay=1))
    distinct, of_pair = np.unique(np.sort(number_of[pairs], axis=1), axis=0, return_inverse=True)
    similarity = (distinct[:, 0] == distinct[:, 1]).astype(np.float64)
    similarity[similarity == 0] = _jaccard(shingles, distinct[similarity == 0])
    return similarity[of_pair.ravel()]


def _jaccard(shingles: csr_matrix, pairs: np.ndarray) -> np.ndarray:
    """Compute the Jaccard similarity (K,) of pairs (K, 2) of rows."""
    sizes = np.diff(shingles.indptr)
    similarity = np.empty(len(pairs))
    step = max(CHUNK_RUNS // max(int(sizes.max(initial=0)), 1), 1)
    for start in tqdm(range(0, len(pairs), step), desc="Comparing wording", delay=1):
        first, second = pairs[start : start + step].T
        shared = shingles[first].multiply(shingles[second]).sum(axis=1).A1
        similarity[start : start + step] = shared / np.maximum(sizes[first] + sizes[second] - shared, 1)
    return similarity


def _shingles(texts: Iterable[str]) -> csr_matrix:
    """Mark the distinct runs that each text has, (N, V)."""
    counts, hashes = hash_runs(texts)
    columns = np.unique(hashes, return_inverse=True)[1]
    starts = np.cumsum([0, *counts])
    shingles = csr_matrix((np.ones(len(columns)), columns, starts), (len(counts), columns.max(initial=0) + 1))
    shingles.sum_duplicates()
    shingles.data[:] = 1
    return shingles
