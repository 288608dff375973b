"""Search among millions of passages: candidates by an inverted file of 8-bit vectors, their scores exact.

Below `PASSAGES` exact search takes milliseconds and nothing beside the vectors. Above, faiss sorts the passages into
cells and keeps 8 bits of each number; a query looks into the nearest cells, and what it finds there is scored again
with the vectors of the index. How many cells are looked into is measured when they are made: on passages as queries
the ten best must be those of an exact search, but for 2 %.
"""

import logging
import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.embedding.first_stage import Key
from docsplit.embedding.segments import Segment

logger = logging.getLogger(__name__)

PASSAGES = 1_000_000  # up to which all are compared
CANDIDATES = 10  # times as many passages as documents are wanted, at least 100
RECALL, TRIED, DEEP = 0.98, 200, 10  # of the ten best of so many passages
TRAINED = 256  # passages a cell, from which the cells are learnt
CHUNK = 100_000  # vectors at a time
RENEWED = 0.1  # once so large a share of the passages is in no cell yet, cells are made anew


def is_needed(segments: Sequence[tuple[str, Segment]], known: dict[str, Any] | None) -> bool:
    """Whether there are so many passages, and too many of them are not in `known`, that a new file is to be made."""
    sizes = {name: len(segment.passage_vectors) for name, segment in segments}
    outside = sum(size for name, size in sizes.items() if known is None or name not in known["segments"])
    return sum(sizes.values()) > PASSAGES and outside > RENEWED * sum(sizes.values())


def make(directory: Path, segments: Sequence[tuple[str, Segment]]) -> dict[str, Any] | None:
    """Sort all passages into cells and write the file: what the manifest says of it, None without faiss.

    Memory: 256 vectors of each of 4 sqrt(P) cells while they are learnt, then a byte a number.
    """
    try:
        import faiss
    except ImportError:
        logger.warning("Without faiss (pip install faiss-cpu) each query is compared with all passages: that is slow.")
        return None
    total = sum(len(segment.passage_vectors) for _, segment in segments)
    width = segments[0][1].passage_vectors.shape[1]
    generator, cells = np.random.default_rng(0), max(int(4 * total**0.5), 1)
    parts = [segment.passage_vectors for _, segment in segments]

    def sample(count: int) -> np.ndarray:
        rows = [
            np.sort(generator.choice(len(part), max(count * len(part) // total, 1), replace=False)) for part in parts
        ]
        return np.concatenate([part[own] for part, own in zip(parts, rows)])

    index = faiss.index_factory(width, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(sample(min(TRAINED * cells, total)))
    for part in parts:
        for start in range(0, len(part), CHUNK):
            index.add(np.ascontiguousarray(part[start : start + CHUNK]))
    queries = sample(min(TRIED, total))
    exact = _exact(parts, queries)
    probes, recall = 1, 0.0
    while recall < RECALL and probes < cells:
        probes = min(2 * probes, cells)
        index.nprobe = probes
        found = _rescored(parts, queries, index.search(queries, CANDIDATES * DEEP)[1])
        recall = float(np.mean([len({*own} & {*best}) / len(best) for own, best in zip(found, exact)]))
    name = f"approximate-{uuid.uuid4().hex[:8]}.faiss"
    faiss.write_index(index, str(directory / name))
    logger.info(
        f"{total:,} passages are in {cells:,} cells, of which a query reads {probes}: {recall:.1%} of the best."
    )
    names = [own for own, _ in segments]
    return {
        "file": name,
        "segments": names,
        "sizes": [len(part) for part in parts],
        "probes": probes,
        "recall": recall,
    }


def _exact(parts: Sequence[np.ndarray], queries: np.ndarray) -> list[list[int]]:
    """The rows of the best passages to each query."""
    best = np.full((len(queries), DEEP), -np.inf, dtype=np.float32)
    rows, offset = np.zeros((len(queries), DEEP), dtype=np.int64), 0
    for part in parts:
        for start in range(0, len(part), CHUNK):
            scores = queries @ part[start : start + CHUNK].T
            both = np.concatenate([best, scores], axis=1)
            numbers = np.concatenate(
                [rows, np.broadcast_to(np.arange(scores.shape[1]) + offset, scores.shape)], axis=1
            )
            offset += scores.shape[1]
            kept = np.argpartition(-both, DEEP - 1, axis=1)[:, :DEEP]
            best, rows = np.take_along_axis(both, kept, axis=1), np.take_along_axis(numbers, kept, axis=1)
    return rows.tolist()


def _rescored(parts: Sequence[np.ndarray], queries: np.ndarray, candidates: np.ndarray) -> list[list[int]]:
    """Of the candidates (Q, K), -1 where there are fewer, the best by their exact scores."""
    found = []
    for query, own in zip(queries, candidates):
        rows = own[own >= 0]
        scores = _vectors_of(parts, rows) @ query
        found.append(rows[np.argsort(-scores, kind="stable")[:DEEP]].tolist())
    return found


def _vectors_of(parts: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """The vectors (K, H) of rows (K,) counted over all parts."""
    ends = np.cumsum([len(part) for part in parts])
    owner = np.searchsorted(ends, rows, side="right")
    vectors = np.empty((len(rows), parts[0].shape[1]), dtype=np.float32)
    for number in np.unique(owner):
        is_own = owner == number
        vectors[is_own] = parts[number][rows[is_own] - (ends[number - 1] if number else 0)]
    return vectors


@lru_cache(maxsize=2)
def _read(path: str, probes: int) -> Any:
    import faiss

    index = faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC)
    faiss.extract_index_ivf(index).nprobe = probes
    return index


def nearest(
    directory: Path,
    known: dict[str, Any],
    numbers: Sequence[int | None],
    segments: Sequence[Segment],
    vectors: np.ndarray,
    count: int,
) -> list[list[tuple[Key, float]]]:
    """Documents with passages that are probably the nearest to each query (Q, H): key and exact similarity, unordered.

    Args:
        known: what `make` gave.
        numbers: of `known["segments"]` among `segments`; None for those that are no longer in the index.

    Raises:
        ValueError: without faiss.
    """
    try:
        index = _read(str(directory / known["file"]), known["probes"])
    except ImportError as error:
        raise ValueError("This index needs faiss, which is not installed: pip install faiss-cpu.") from error
    ends = np.cumsum(known["sizes"])
    found = []
    for query, own in zip(vectors, index.search(np.ascontiguousarray(vectors), max(CANDIDATES * count, 100))[1]):
        best: dict[Key, float] = {}
        rows = own[own >= 0]
        owners = np.searchsorted(ends, rows, side="right")
        for owner in np.unique(owners):
            if (number := numbers[owner]) is None:
                continue
            segment, passages = segments[number], np.sort(rows[owners == owner]) - (ends[owner - 1] if owner else 0)
            documents = np.searchsorted(segment.passage_starts, passages, side="right") - 1
            for document, score in zip(documents.tolist(), (segment.passage_vectors[passages] @ query).tolist()):
                if segment.alive[document]:
                    best[number, document] = max(score, best.get((number, document), score))
        found.append(list(best.items()))
    return found
