"""Search among millions of passages of an index: by an inverted file beside its segments.

Up to `PASSAGES` an exact search takes milliseconds, and needs nothing beside the vectors.
"""

import logging
import uuid
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.embedding import inverted_file
from docsplit.index.first_stage import Key, Scored
from docsplit.index.manifest import REMEDY, InvertedFile
from docsplit.index.segments import Segment
from docsplit.runtime.files import Damaged, flush

logger = logging.getLogger(__name__)

PASSAGES = 1_000_000  # up to which all are compared
CANDIDATES = 10  # passages whose exact scores are computed, for each document that is wanted
RENEWED = 0.1  # once so large a share of the passages is in no cell yet, cells are made anew


def is_needed(segments: Mapping[str, Segment], known: InvertedFile | None) -> bool:
    """Whether an inverted file has to be made: there are so many passages, and `known` lacks too many of them."""
    sizes = {name: len(segment.passage_vectors) for name, segment in segments.items()}
    outside = sum(size for name, size in sizes.items() if known is None or name not in known.segments)
    return sum(sizes.values()) > PASSAGES and outside > RENEWED * sum(sizes.values())


def make(directory: Path, segments: Mapping[str, Segment]) -> InvertedFile | None:
    """Write the inverted file of all passages; None without faiss."""
    try:
        import faiss
    except ImportError:
        logger.warning("Without faiss (pip install faiss-cpu) each query is compared with all passages: that is slow.")
        return None
    parts = [segment.passage_vectors for segment in segments.values()]
    index, recall = inverted_file.make(parts)
    name = f"approximate-{uuid.uuid4().hex[:8]}.faiss"
    faiss.write_index(index, str(directory / name))
    flush(directory / name)
    return InvertedFile(name, list(segments), list(map(len, parts)), index.nprobe, recall)


@lru_cache(maxsize=2)
def _read(path: str, probes: int) -> Any:
    import faiss

    try:
        index = faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise Damaged(f"{path} is damaged: it is no inverted file of faiss. {REMEDY}") from error
    faiss.extract_index_ivf(index).nprobe = probes
    return index


def nearest(
    directory: Path,
    known: InvertedFile,
    segments: Mapping[str, tuple[int, Segment]],
    vectors: np.ndarray,
    count: int,
) -> list[Scored]:
    """Find documents with passages that are probably the nearest to each query (Q, H), with exact scores, unordered.

    Args:
        known: what `make` gave.
        segments: all of the index by name, each with its number; `known` may have others, which are passed over.

    Raises:
        ValueError: without faiss.
    """
    try:
        index = _read(str(directory / known.file), known.probes)
    except ImportError as error:
        raise ValueError("This index needs faiss, which is not installed: pip install faiss-cpu.") from error
    depth = inverted_file.num_candidates(count, CANDIDATES)
    rankings = []
    for query, rows in zip(vectors, index.search(np.ascontiguousarray(vectors), depth)[1]):
        best: dict[Key, float] = {}
        for name, passages in _by_segment(known, rows[rows >= 0]):
            if name not in segments:
                continue
            number, segment = segments[name]
            documents = np.searchsorted(segment.passage_starts, passages, side="right") - 1
            for document, score in zip(documents.tolist(), (segment.passage_vectors[passages] @ query).tolist()):
                if segment.alive[document]:
                    best[number, document] = max(score, best.get((number, document), score))
        rankings.append(list(best.items()))
    return rankings


def _by_segment(known: InvertedFile, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Split rows that are counted through all segments: the name of each segment, and its own rows in order."""
    ends = np.cumsum(known.sizes)
    owners = np.searchsorted(ends, rows, side="right")
    return [
        (known.segments[owner], np.sort(rows[owners == owner]) - (ends[owner] - known.sizes[owner]))
        for owner in np.unique(owners)
    ]
