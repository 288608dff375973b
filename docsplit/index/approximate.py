"""Search among millions of passages of an index: by an inverted file beside its large segments.

Up to `PASSAGES` an exact search takes milliseconds, and needs nothing beside the vectors.
"""

import logging
import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.embedding.neighbours import make_inverted_file, search_inverted_file
from docsplit.index.store import REMEDY, InvertedFile, Segment
from docsplit.runtime.files import Damaged, FileRecord, flush

logger = logging.getLogger(__name__)

PASSAGES = 1_000_000  # up to which all are compared
CANDIDATES = 10  # passages whose exact scores are computed, for each document that is wanted


def is_needed(segments: Sequence[Segment], known: InvertedFile | None) -> bool:
    """Whether an inverted file has to be made: there are so many passages, and `known` lacks too many of them."""
    sizes = {segment.entry.name: len(segment.passage_vectors) for segment in segments}
    outside = sum(size for name, size in sizes.items() if known is None or name not in known.segments)
    is_stale = known is not None and not sizes.keys() >= set(known.segments)
    total = sum(sizes.values())
    return is_stale or (total > PASSAGES and outside > total / 10)


def make(directory: Path, segments: Sequence[Segment]) -> InvertedFile | None:
    """Write the inverted file of all passages; None without faiss, or if they are too few."""
    parts = [segment.passage_vectors for segment in segments]
    if sum(map(len, parts)) <= PASSAGES:
        return None
    try:
        import faiss
    except ImportError:
        logger.warning("Without faiss (pip install faiss-cpu) each query is compared with all passages: that is slow.")
        return None
    index, recall = make_inverted_file(parts)
    name = f"approximate-{uuid.uuid4().hex[:8]}.faiss"
    faiss.write_index(index, str(directory / name))
    flush(directory / name)
    record = FileRecord.of(directory / name)
    names = [segment.entry.name for segment in segments]
    return InvertedFile(name, record.size, record.xxh3, names, index.nprobe, recall)


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
    segments: Sequence[Segment],
    ends: np.ndarray,
    vectors: np.ndarray,
    count: int,
) -> list[dict[int, float]]:
    """Find documents with passages that are probably the nearest to each query (Q, H), unordered.

    Args:
        known: what `make` gave.

    Returns: for each query, the exact scores of documents, by their numbers.

    Raises:
        ValueError: without faiss.
    """
    try:
        cells = _read(str(directory / known.file), known.probes)
    except ImportError as error:
        raise ValueError("This index needs faiss, which is not installed: pip install faiss-cpu.") from error
    by_name = {segment.entry.name: (segment, int(end)) for segment, end in zip(segments, ends)}
    covered = [by_name[name] for name in known.segments]
    parts = [segment.passage_vectors for segment, _ in covered]
    # The first passage of each document, and the document's number; -1: of one that is deleted
    ends = np.cumsum([0, *map(len, parts)])
    firsts = np.concatenate([start + segment.starts[:-1] for start, (segment, _) in zip(ends, covered)])
    ids = [np.where(segment.alive, np.arange(end - len(segment.ids), end), -1) for segment, end in covered]
    numbers, rankings = np.concatenate(ids), []
    for passages, scores in zip(*search_inverted_file(cells, parts, vectors, CANDIDATES * count)):
        best: dict[int, float] = {}
        documents = numbers[np.searchsorted(firsts, passages[passages >= 0], side="right") - 1]
        for number, score in zip(documents.tolist(), scores.tolist()):
            if number >= 0:
                best.setdefault(number, score)  # scores fall
        rankings.append(best)
    return rankings
