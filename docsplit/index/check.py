"""Check an index as a whole: every file is read, and what the files say must fit together.

Opening an index compares sizes, and reads the contents of a small one only. This reads everything. It goes on after a
fault, and lists all faults, each with what to do.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from docsplit.data.passages import to_passages
from docsplit.index.manifest import (
    REMEDY,
    UNSEALED,
    Manifest,
    SegmentEntry,
    files_beside,
    read_manifest,
    refuse_unfinished,
)
from docsplit.index.results import Checked
from docsplit.index.segments import Segment, WordCounts, open_segment, tokens_of
from docsplit.runtime.files import SEAL, Damaged, why_damaged


def check(directory: Path) -> Checked:
    """Check an index: its manifest, the size and digest of every file, and that the files fit together.

    Only a segment whose files are all as they were written is looked into.

    Raises:
        ValueError: if there is no index, or one that is not built to its end.
    """
    checked = Checked()
    try:
        manifest = read_manifest(directory)
    except Damaged as error:
        checked.faults.append(str(error))
        return checked
    refuse_unfinished(directory, manifest)
    if manifest.version == UNSEALED:
        checked.faults.append(
            f"{directory} is an index of version {UNSEALED}, without checksums: bytes that have changed go unnoticed. "
            "Build it again."
        )
    damaged = _read_all(directory, manifest, checked)
    segments = _read_segments(directory, manifest, damaged, checked)
    if not damaged and len(segments) == len(manifest.segments):
        checked.faults += [f"{directory}: {reason}. {REMEDY}" for reason in _reasons_of_all(segments, manifest)]
    if checked.faults and read_manifest(directory) != manifest:  # another process has changed the index meanwhile
        return check(directory)
    return checked


def _read_all(directory: Path, manifest: Manifest, checked: Checked) -> list[str]:
    """Read all files, count them and what is wrong with them, and return the names of those that are damaged."""
    records, damaged = dict(manifest.files), []
    for name in manifest.files:
        if name.endswith(f"/{SEAL}") and not why_damaged(directory, {name: manifest.files[name]}):
            records |= files_beside(directory, name)
    total = sum(record.size for record in records.values())
    with tqdm(total=total, desc="Reading files", unit="B", unit_scale=True, delay=1) as progress:
        for name, record in records.items():
            if reason := why_damaged(directory, {name: record}):
                damaged.append(name)
                checked.faults.append(f"{directory}/{reason}. {REMEDY}")
            progress.update(record.size)
    checked.files, checked.bytes = len(records), total
    return damaged


def _read_segments(directory: Path, manifest: Manifest, damaged: list[str], checked: Checked) -> list[Segment]:
    """Look into the segments without a damaged file, note what does not fit in them, and return those that open."""
    segments = []
    total = sum(entry.documents for entry in manifest.segments)
    with tqdm(total=total, desc="Checking documents", unit="document", delay=1) as progress:
        for entry in manifest.segments:
            folder = f"segments/{entry.name}"
            if any(name.startswith(f"{folder}/") for name in damaged):
                continue
            try:
                segment = open_segment(directory, entry)
            except Damaged as error:
                checked.faults.append(str(error))
                continue
            reasons = _reasons(segment, entry, manifest.passage_words)
            checked.faults += [f"{directory / folder}: {reason}. {REMEDY}" for reason in reasons]
            checked.documents += segment.num_documents
            segments.append(segment)
            progress.update(entry.documents)
    return segments


def _reasons(segment: Segment, entry: SegmentEntry, passage_words: int) -> Iterator[str]:
    """Say what does not fit in a segment, whose shapes do."""
    size = len(segment.ids)
    strings = {"ids": segment.ids, "titles": segment.titles, "texts": segment.texts, "words": segment.words.words}
    for name, some in strings.items():
        if (np.diff(some.ends, prepend=0) < 0).any():
            yield f"{name}.ends.npy falls, where it should rise"
            return
    try:
        ids, words = list(segment.ids), list(segment.words.words)
        all(segment.titles)
        counts = [len(to_passages(text, passage_words)) for text in segment.texts]
    except UnicodeDecodeError as error:
        yield f"its strings are no UTF-8 ({error})"
        return
    order = segment.order.tolist()
    if sorted(order) != list(range(size)):
        yield "order.npy does not have each row once"
    elif not _rises([ids[row] for row in order]):
        yield "order.npy does not sort the ids, or two documents have the same id"
    starts = np.cumsum([0, *counts])
    if not np.array_equal(starts[:-1], segment.passage_starts) or starts[-1] != len(segment.passage_vectors):
        yield f"its passages are not those of its texts, cut every {passage_words} words"
    vectors = [segment.document_vectors, segment.passage_vectors]
    if segment.has_plain_vectors:
        plain = segment.plain_vectors()
        if [plain.documents.shape, plain.passages.shape] != [array.shape for array in vectors]:
            yield "its vectors without words have another shape than those with words"
        vectors += [plain.documents, plain.passages]
    if not all(np.isfinite(np.sum(array, axis=1, dtype=np.float64)).all() for array in vectors):
        yield "its vectors are not all finite"
    if not _rises(words) or not _are_counts(segment.words, size):
        yield "its counts of words contradict each other"
    if (np.diff(segment.deleted) <= 0).any():
        yield f"{entry.deleted} does not have rows once each, in order"
    if entry.documents != segment.num_documents:
        yield f"it has {segment.num_documents:,} documents, and the manifest says {entry.documents:,}"


def _rises(strings: Sequence[str]) -> bool:
    return all(first < second for first, second in pairwise(strings))


def _are_counts(words: WordCounts, size: int) -> bool:
    """Whether each word has rows of its documents in order, and each of `size` documents as many words as it says."""
    starts, rows, counts = words.starts, words.rows, words.counts
    if starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] != len(rows):
        return False
    if len(rows) and not (0 <= rows.min() <= rows.max() < size and counts.min() > 0):
        return False
    keys = np.repeat(np.arange(len(starts) - 1) * size, np.diff(starts)) + rows
    return bool((np.diff(keys) > 0).all()) and np.array_equal(np.bincount(rows, counts, size), words.lengths)


def _reasons_of_all(segments: Sequence[Segment], manifest: Manifest) -> Iterator[str]:
    """Say what does not fit between sound segments, and in the manifest."""
    ids = [segment.ids[row] for segment in segments for row in np.flatnonzero(segment.alive)]
    if len(set(ids)) < len(ids):
        yield "a document is in two segments"
    if len({segment.document_vectors.shape[1] for segment in segments}) > 1:
        yield "its segments have vectors of several lengths"
    if (tokens := tokens_of(segments)) != manifest.tokens:
        yield f"its documents have other tokens ({tokens}) than the manifest says ({manifest.tokens})"
    if manifest.approximate is not None:
        sizes = dict(zip(manifest.approximate.segments, manifest.approximate.sizes))
        for entry, segment in zip(manifest.segments, segments, strict=True):
            if sizes.get(entry.name, len(segment.passage_vectors)) != len(segment.passage_vectors):
                yield f"{manifest.approximate.file} is of other passages"
