"""Search among millions of passages of an index: by an inverted file beside its segments.

Up to `PASSAGES` exact search takes milliseconds and nothing beside the vectors.
"""

import logging
import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.embedding import inverted_file
from docsplit.index.first_stage import Key
from docsplit.index.segments import Segment

logger = logging.getLogger(__name__)

PASSAGES = 1_000_000  # up to which all are compared
CANDIDATES = 10  # passages whose exact scores are computed, for each document that is wanted
RENEWED = 0.1  # once so large a share of the passages is in no cell yet, cells are made anew


def is_needed(segments: Sequence[tuple[str, Segment]], known: dict[str, Any] | None) -> bool:
    """Whether there are so many passages, and too many of them are not in `known`, that a new file is to be made."""
    sizes = {name: len(segment.passage_vectors) for name, segment in segments}
    outside = sum(size for name, size in sizes.items() if known is None or name not in known["segments"])
    return sum(sizes.values()) > PASSAGES and outside > RENEWED * sum(sizes.values())


def make(directory: Path, segments: Sequence[tuple[str, Segment]]) -> dict[str, Any] | None:
    """Write the inverted file of all passages: what the manifest says of it, None without faiss."""
    try:
        import faiss
    except ImportError:
        logger.warning("Without faiss (pip install faiss-cpu) each query is compared with all passages: that is slow.")
        return None
    parts = [segment.passage_vectors for _, segment in segments]
    index, recall = inverted_file.make(parts)
    name = f"approximate-{uuid.uuid4().hex[:8]}.faiss"
    faiss.write_index(index, str(directory / name))
    return {
        "file": name,
        "segments": [own for own, _ in segments],
        "sizes": [len(part) for part in parts],
        "probes": index.nprobe,
        "recall": recall,
    }


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
    depth = max(CANDIDATES * count, inverted_file.FEWEST_CANDIDATES)
    for query, own in zip(vectors, index.search(np.ascontiguousarray(vectors), depth)[1]):
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
