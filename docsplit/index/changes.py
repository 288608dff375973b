"""Changes of an index: build it, add documents, delete documents.

Every change writes new files beside the old ones and then replaces the manifest, whole or not at all. Killed at any
moment, on a full disk or after a power cut, the index is the old one or the new one. A folder is an index by its
manifest alone, so `build` writes one before all else. A change verifies whatever the manifest names, and then removes
what it does not name, if a change has written it.
"""

import dataclasses
import logging
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from docsplit.data.passages import to_passages
from docsplit.data.readers.base import Document, grouped
from docsplit.index import approximate
from docsplit.index.arguments import Refit
from docsplit.index.index import Index
from docsplit.index.manifest import (
    DELETED,
    FILE,
    NAMES,
    VERSION,
    Manifest,
    SegmentEntry,
    WordsEntry,
    check_encoder,
    read_manifest,
)
from docsplit.index.refitting import refit_if_due
from docsplit.index.results import Added, Built
from docsplit.index.segments import (
    TOKENS,
    Segment,
    merge_segments,
    open_segment,
    seal_segment,
    segment_folder,
    tokens_of,
    write_array,
    write_segment,
)
from docsplit.index.vectors import IndexEncoder, Vectors, texts_to_embed
from docsplit.runtime.command import command_name
from docsplit.runtime.files import flush, name_failed_writes

logger = logging.getLogger(__name__)

LOCK = "lock"
PARTIALS = re.compile(rf"\.manifest\.json\.\d+\.partial|segments/[0-9a-f]{{32}}/\.{DELETED}\.\d+\.partial")
CACHES = re.compile(r"(embeddings|ray)-[0-9a-f]+")  # in cache/
SEGMENT_DOCUMENTS = 50_000  # at most: what is in memory while a segment is written
SEGMENT_CHARACTERS = 2**28
MOST_SMALL_SEGMENTS = 16  # of fewer documents and characters than half of that; more are merged


@contextmanager
def writing(directory: Path) -> Iterator[Index]:
    """Lock an index for one writer, open it, and remove what an earlier one left unfinished, but for its embeddings.

    Raises:
        ValueError: if there is no index that can be changed, if a file of it is missing or damaged, or if another
            process writes. Nothing is removed then.
    """
    read_manifest(directory)  # no folder is made where none is
    with _locked(directory):
        index = Index(directory)
        if index.manifest.version != VERSION:
            raise ValueError(f"{directory} is an index of an earlier version, which is only read: build it again.")
        _remove_unnamed(directory, index.manifest)
        yield index


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        with FileLock(directory / LOCK, timeout=0), name_failed_writes(directory):
            yield
    except Timeout as error:
        raise ValueError(f"Another process changes the index in {directory}: wait until it is done.") from error


def _remove_unnamed(directory: Path, manifest: Manifest) -> None:
    """Remove what changes have written and the manifest does not name."""
    paths = [*directory.iterdir(), *directory.glob("segments/*"), *directory.glob("segments/*/*")]
    named, left = set(manifest.names()), {path.relative_to(directory).as_posix() for path in paths}
    for name in sorted(left - named):
        path = directory / name
        is_ours = (NAMES.fullmatch(name) or PARTIALS.fullmatch(name)) and not path.is_symlink()
        if is_ours and path.is_dir() == (not path.suffix):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or folder; where a reader keeps it from that, as it does on Windows, a later change will."""
    try:
        if path.is_dir():
            shutil.rmtree(path)
            logger.info(f"Removed {path.name}, which an earlier run left unfinished or unused.")
        else:
            path.unlink(missing_ok=True)  # it may have gone with its folder
    except PermissionError as error:
        logger.info(f"{path.name}, which is no longer used, cannot be removed yet: {error}")


def _remove_cache(directory: Path) -> None:
    """Remove the embeddings of a run that has come to its end."""
    for folder in directory.glob("cache/*"):
        if CACHES.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # there is none, or it holds something else
        (directory / "cache").rmdir()


def build(
    directory: Path,
    documents: Iterable[Document],
    encoder: IndexEncoder,
    passage_words: int = 100,
) -> Built:
    """Make an index of documents.

    Args:
        encoder: embeds a document whole, as far as it reads, and by passage; a document of one passage is embedded
            once.

    Raises:
        ValueError: if there is an index already or a folder of somebody else's, if ids repeat, or if no document has
            text.
    """
    with _beginning(directory, encoder, passage_words) as manifest:
        writer = _Writer(directory, encoder, passage_words)
        writer.write(documents)
        if not writer.entries:
            raise ValueError(f"None of the documents has text ({writer.built.empty} are empty): nothing was built.")
        words = None if encoder.with_words is None else WordsEntry(None, writer.built.documents)
        manifest = dataclasses.replace(manifest, segments=writer.entries, words=words, is_built=True)
        writer.built.reading = _commit(directory, manifest).reading()
        _remove_cache(directory)
    return writer.built


@contextmanager
def _beginning(directory: Path, encoder: IndexEncoder, passage_words: int) -> Iterator[Manifest]:
    """Lock a folder for a build that begins or goes on, and write the manifest that marks the folder as an index.

    Raises:
        ValueError: if the folder has an index, or something else that a user may want to keep.
    """
    if not (directory / FILE).exists() and directory.exists():
        names = sorted(path.name for path in directory.iterdir())
        if others := [name for name in names if name != LOCK and not PARTIALS.fullmatch(name)]:
            raise ValueError(
                f"{directory} has no index but other files, {others[0]} for one: name a new folder for the index."
            )
    directory.mkdir(parents=True, exist_ok=True)
    flush(directory.parent)
    with _locked(directory):
        if (directory / FILE).exists() and read_manifest(directory).is_built:
            raise ValueError(
                f"There is an index in {directory} already: `{command_name('search.py')} add` adds to it."
            )
        manifest = Manifest(VERSION, encoder.description, passage_words, None, [], is_built=False)
        manifest.write(directory)
        _remove_unnamed(directory, manifest)
        yield manifest


def add(
    directory: Path,
    documents: Iterable[Document],
    encoder: IndexEncoder,
    replace: bool = False,
    refit: Refit = "auto",
) -> Added:
    """Add documents to an index, or put them in place of those of the same id; the rest is not touched.

    Documents that are in the index with the same text and title stay as they are. So do those whose new text is empty:
    they are counted as empty.

    Args:
        refit: whether words of documents are fitted anew, where the encoder adds them (`docsplit.index.refitting`).

    Raises:
        ValueError: if an id is in the index with another text and `replace` is False, if ids repeat, for another
            encoder, or if words cannot be fitted that `refit` asks for.
    """
    with writing(directory) as index:
        check_encoder(index.manifest, encoder.description)
        if refit == "always" and index.manifest.words is None:
            raise ValueError(f"--refit always: {encoder.description['name']} adds no words of documents.")
        encoder = encoder.in_index(directory, index.manifest)
        changed: set[str] = set()
        unchanged = 0

        def new_documents() -> Iterator[Document]:
            nonlocal unchanged
            for document in documents:
                if (place := index.find(document.id)) is not None:
                    segment, row = place
                    if (segment.texts[row], segment.titles[row]) == (document.text, document.title):
                        unchanged += 1
                        continue
                    if not replace:
                        raise ValueError(
                            f"{document.id!r} is in the index with another text: --replace puts the new one there."
                        )
                    changed.add(document.id)
                yield document

        writer = _Writer(directory, encoder, index.manifest.passage_words)
        writer.write(new_documents())
        replaced = changed - writer.empty_ids
        entries = _merged(directory, [*_without(index, replaced), *writer.entries])
        manifest = dataclasses.replace(index.manifest, segments=entries)
        manifest = _commit(directory, refit_if_due(directory, manifest, encoder.with_words, refit))
        writer.built.reading = manifest.reading()
        _remove_cache(directory)
    return Added(**vars(writer.built), replaced=len(replaced), unchanged=unchanged)


def delete(directory: Path, ids: Iterable[str]) -> int:
    """Take documents out of an index, and return how many.

    Raises:
        ValueError: naming ids that are not in it, before anything changes.
    """
    ids = set(ids)
    with writing(directory) as index:
        if missing := sorted(document_id for document_id in ids if index.find(document_id) is None):
            raise ValueError(
                f"{len(missing)} of the ids are not in the index, {missing[0]!r} for one: nothing was deleted. "
                "An id is what a query prints in [brackets]."
            )
        _commit(directory, dataclasses.replace(index.manifest, segments=_without(index, ids)))
    return len(ids)


def _commit(directory: Path, manifest: Manifest) -> Manifest:
    """Write and return the manifest, from which on the index is the new one, with the tokens of its documents.

    Before, an inverted file is written where one is needed, and all that the manifest names is on the disk.
    """
    segments = {entry.name: open_segment(directory, entry) for entry in manifest.segments}
    if approximate.is_needed(segments, manifest.approximate):
        manifest = dataclasses.replace(manifest, approximate=approximate.make(directory, segments))
    tokens, files = tokens_of(list(segments.values())), manifest.recorded(directory)
    manifest = dataclasses.replace(manifest, tokens=tokens, files=files)
    flush(directory / "segments")
    flush(directory)
    manifest.write(directory)
    return manifest


def _without(index: Index, ids: set[str]) -> list[SegmentEntry]:
    """Mark documents as deleted, and return the entries of the segments that hold any other."""
    entries = []
    for entry, segment in zip(index.manifest.segments, index.segments):
        rows = [row for document_id in ids if (row := segment.find(document_id)) is not None]
        if rows:
            deleted = np.sort(np.concatenate([segment.deleted, rows])).astype(np.int64)
            name = f"deleted-{uuid.uuid4().hex[:8]}.npy"
            write_array(segment.folder / name, deleted)
            entry = SegmentEntry(entry.name, name, len(segment.ids) - len(deleted))
        entries += [entry] if entry.documents else []
    return entries


@dataclass
class _Writer:
    """Writes documents as segments that no manifest names yet.

    Attributes:
        entries: of the segments that are written.
        empty_ids: of documents without text.
    """

    directory: Path
    encoder: IndexEncoder
    passage_words: int
    entries: list[SegmentEntry] = field(default_factory=list)
    built: Built = field(default_factory=Built)
    empty_ids: set[str] = field(default_factory=set)

    def write(self, documents: Iterable[Document]) -> None:
        """Embed and write all documents, a segment after another."""
        pairs = self._with_passages(documents)
        for batch in grouped(pairs, lambda pair: pair[0].text, SEGMENT_DOCUMENTS, SEGMENT_CHARACTERS):
            self._write_segment(batch)

    def _with_passages(self, documents: Iterable[Document]) -> Iterator[tuple[Document, list[str]]]:
        seen: set[str] = set()
        for document in documents:
            if document.id in seen:
                raise ValueError(f"The id {document.id!r} is given twice: nothing was written.")
            seen.add(document.id)
            if passages := [passage.text for passage in to_passages(document.text, self.passage_words)]:
                yield document, passages
            else:
                self.built.empty += 1
                self.empty_ids.add(document.id)

    def _write_segment(self, batch: Sequence[tuple[Document, list[str]]]) -> None:
        documents, passages = [document for document, _ in batch], [passages for _, passages in batch]
        counts = list(map(len, passages))
        texts = texts_to_embed([document.text for document in documents], passages)
        embedded = self.encoder.embed(texts)
        vectors, plain = Vectors.of(embedded, counts), None
        if self.encoder.with_words is not None:
            vectors, plain = Vectors.of(self.encoder.with_words.add_words(texts, embedded), counts), vectors
        folder = segment_folder(self.directory, uuid.uuid4().hex)
        folder.mkdir(parents=True)
        write_segment(folder, documents, counts, vectors, plain)
        if (tokens := self._count_tokens(texts[: sum(counts)], counts)) is not None:
            np.save(folder / TOKENS, tokens)
        seal_segment(folder)
        self.entries.append(SegmentEntry(folder.name, None, len(batch)))
        self.built.documents += len(batch)
        self.built.passages += sum(counts)

    def _count_tokens(self, passages: Sequence[str], counts: Sequence[int]) -> np.ndarray | None:
        """Count the tokens of each document, those read in its passages, and those read of it whole, (N, 3)."""
        counted = None if self.encoder.count_tokens is None else self.encoder.count_tokens(passages)
        if counted is None:
            return None
        lengths, room = counted
        starts = np.cumsum([0, *counts])[:-1]
        totals, in_passages = (np.add.reduceat(values, starts) for values in (lengths, np.minimum(lengths, room)))
        return np.stack([totals, in_passages, np.minimum(totals, room)], axis=1)


def _merged(directory: Path, entries: list[SegmentEntry]) -> list[SegmentEntry]:
    """Merge many small segments into few: what was deleted is gone from them, and nothing is embedded again."""
    kept, small = [], []
    for entry in entries:
        segment = open_segment(directory, entry)
        # The shares of what a segment may hold.
        size = entry.documents / SEGMENT_DOCUMENTS, segment.num_bytes / SEGMENT_CHARACTERS
        if max(size) < 0.5:
            small.append((entry, segment, size))
        else:
            kept.append(entry)
    if len(small) <= MOST_SMALL_SEGMENTS:
        return entries
    group, filled = list[Segment](), (0.0, 0.0)
    for _, segment, size in small:
        both = filled[0] + size[0], filled[1] + size[1]
        if max(both) > 1:
            kept.append(_merge(directory, group))
            group, both = [], size
        group, filled = [*group, segment], both
    return [*kept, _merge(directory, group) if len(group) > 1 else small[-1][0]]


def _merge(directory: Path, segments: Sequence[Segment]) -> SegmentEntry:
    """Write the documents of some segments as a new one."""
    folder = segment_folder(directory, uuid.uuid4().hex)
    folder.mkdir()
    for segment in segments:
        segment.verify()
    documents = merge_segments(folder, segments)
    seal_segment(folder)
    return SegmentEntry(folder.name, None, documents)
