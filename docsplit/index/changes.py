"""Changes of an index: build it, add documents, delete documents.

A change writes new segments behind those in the data file, and then replaces the manifest, whole or not at all. Killed
at any moment, on a full disk or after a power cut, the index is the old one or the new one. A folder is an index by
its manifest alone, so `build` writes one before all else. A change first reads whatever the manifest names, and then
cuts off and removes what it does not name, if a change has written it.
"""

import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from errno import ENOSPC
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from docsplit.data.passages import clean_text, to_passages
from docsplit.data.readers.base import USUAL, Document, TableColumns, grouped
from docsplit.data.readers.documents import TITLE_IN, documents_in
from docsplit.data.readers.files import FoundFiles, find_files
from docsplit.data.words import ENGLISH, warn_of_other_language
from docsplit.index.index import (
    DATA_FILE,
    INVERTED_FILE,
    MANIFEST_FILE,
    REMEDY,
    SEGMENT_CHARACTERS,
    SEGMENT_DOCUMENTS,
    DocumentRow,
    IndexReader,
    InvertedFile,
    Manifest,
    Segment,
    append_segment,
    arrays_of,
    check_encoder,
    digest_of,
    map_data,
    read_manifest,
)
from docsplit.index.results import Added, Built
from docsplit.runtime.command import command_name
from docsplit.runtime.files import Damaged, FileRecord, flush, name_failed_writes
from docsplit.runtime.sharing import refuse_used

if TYPE_CHECKING:
    from docsplit.embedding.encoder import Encoder

logger = logging.getLogger(__name__)

Embed = Callable[[Sequence[str]], np.ndarray]
DocumentSource = tuple[
    str, TableColumns
]  # a folder or file that documents come from, and how it is read; "": from elsewhere
PYTHON: DocumentSource = ("", USUAL)
LOCK = "lock"
COMPARED_WITH_ALL = 1_000_000  # up to which a query is compared with all, in milliseconds
PARTIAL_MANIFEST = re.compile(r"\.manifest\.json\.\d+\.partial")
DATA_FILES = re.compile("|".join(kind.pattern for kind in (DATA_FILE, INVERTED_FILE, PARTIAL_MANIFEST)))  # of changes
CACHES = re.compile(r"(embeddings|ray)-[0-9a-f]+")  # in cache/
MOST_SMALL_SEGMENTS, COPIED = 16, 2**26  # small segments before a merge; one more for so many bytes that it copies


def build(
    directory: Path,
    documents: Iterable[Document],
    encoder: "Encoder",
    passage_words: int = 100,
    source: DocumentSource = PYTHON,
    embed: Embed | None = None,
    language: str = ENGLISH,
) -> Built:
    """Make an index of documents.

    Args:
        encoder: embeds a document whole, as far as it reads, and by passage; a document of one passage is embedded
            once.
        source: where the documents come from, for `sync`.
        embed: what `encoder.embed_for_index` gives, computed elsewhere. Default: here.
        language: of the stems that BM25 counts (`docsplit.data.words.LANGUAGES`).

    Raises:
        ValueError: if there is an index already or a folder of somebody else's, if ids repeat, or if no document has
            text.
    """
    refuse_taken(directory)
    directory.mkdir(parents=True, exist_ok=True)
    flush(directory.parent)
    new = Manifest(encoder.description, passage_words, encoder.has_words, language, _new_name())
    with writing(directory, new) as change:
        built = change.write(prepared(documents), encoder, source, embed)
        if not built.documents:
            raise ValueError(f"None of the documents has text ({built.empty} are empty): nothing was built.")
        built.reading = change.commit().reading()
    return built


def refuse_taken(directory: Path) -> None:
    """Refuse a folder in which no index can be built, or that has one which is built to its end.

    Raises:
        ValueError: naming the remedy.
    """
    if not (directory / MANIFEST_FILE).exists():
        refuse_used(
            directory,
            "name a new folder for the index",
            lambda path: path.name == LOCK or PARTIAL_MANIFEST.fullmatch(path.name),
        )
    elif read_manifest(directory).is_built:
        advice = f"`{command_name('search.py')} add` adds to it."
        raise ValueError(f"There is an index in {directory} already: {advice}")


def begun(documents: Iterable[Document]) -> Iterator[Document]:
    """Read the first document now: what cannot be read is refused before an encoder is loaded, which takes seconds."""
    rest = iter(documents)
    return chain([*islice(rest, 1)], rest)


def add(
    directory: Path,
    documents: Iterable[Document],
    encoder: "Encoder",
    replace: bool = False,
    source: DocumentSource = PYTHON,
    embed: Embed | None = None,
) -> Added:
    """Add documents to an index, or put them in place of those of the same id; the rest is not touched.

    Documents that are in the index with the same text and title stay as they are. So do those whose new text is empty:
    they are counted as empty.

    Raises:
        ValueError: if an id is in the index with another text and `replace` is False, if ids repeat, or for another
            encoder.
    """
    changed, unchanged = set[str](), 0

    def new_documents() -> Iterator[Document]:
        nonlocal unchanged
        for document in prepared(documents):
            if (place := change.index.find(document.id)) is not None:
                segment, row = place
                if np.array_equal(segment.digests[row], digest_of(document)):
                    unchanged += 1
                    continue
                if not replace:
                    raise ValueError(
                        f"{document.id!r} is in the index with another text: --replace puts the new one there."
                    )
                changed.add(document.id)
            yield document

    with writing(directory) as change:
        check_encoder(change.committed, encoder.description)
        built = change.write(new_documents(), encoder, source, embed)
        replaced = changed - change.empty
        change.delete(replaced)
        built.reading = change.commit().reading()
    return Added(**vars(built), replaced=len(replaced), unchanged=unchanged)


def sync(
    directory: Path,
    load_encoder: Callable[[], "Encoder"],
    folder: str | Path | None = None,
    yes: bool = False,
) -> Added:
    """Make the documents of an index those that its folders have now: add, replace and remove what has changed.

    A document stays if its file, or a row of that, cannot be read now; one without text is removed. Documents that
    come from elsewhere stay. Of an id that several folders have, the one that was added last gives the document.

    Args:
        load_encoder: is called if a document is to be embedded.
        folder: or file, that documents of the index were read from, or the new place of one that has moved. Default:
            all of them.
        yes: go on if a folder is gone, if more than half of its documents are to be removed, or if documents from
            elsewhere have the same ids and are to be replaced.

    Raises:
        ValueError: without `yes` in these cases; for a folder that the index has no documents of; for another encoder.
            The index is as it was.
    """
    with writing(directory) as change:
        paths = _folders_meant(change, folder)
        names, own = [*change.sources], {name: set[str]() for name in change.sources}
        for segment, row in change.index.documents():
            own[names[segment.sources[row]]].add(segment.ids[row])

        # What the folders have
        new: dict[str, tuple[Path, Document]] = {}  # to be written, by id
        seen, replaced, unread, read, counts = set[str](), set[str](), set[str](), set[str](), Added()
        of_others = {path: set[str]() for path in paths}
        for path in reversed(paths):
            read.add(str(path))
            found = find_files(path) if path.exists() else FoundFiles(path)
            for document in prepared(documents_in(found, change.sources[str(path)]) if found.files else ()):
                if not clean_text(document.text).strip():  # what is unchanged need not be cut into passages
                    counts.empty += 1
                    continue
                digest, place = digest_of(document), change.index.find(document.id)
                if document.id in seen:  # of a folder that was added later
                    if place is None and not np.array_equal(digest, digest_of(new[document.id][1])):
                        of_others[new[document.id][0]].add(document.id)
                    continue
                seen.add(document.id)
                if place is not None:
                    segment, row = place
                    is_equal, source = np.array_equal(segment.digests[row], digest), names[segment.sources[row]]
                    if is_equal and source == str(path):
                        counts.unchanged += 1
                        continue
                    replaced.add(document.id)
                    if not is_equal and source not in read:
                        of_others[path].add(document.id)
                new[document.id] = path, document
            found.problems.log()
            unread |= found.in_unread(own[str(path)] - seen)
            seen |= unread
        gone = {path: own[str(path)] - seen for path in paths}
        if not yes:
            for path in paths:
                _refuse_surprises(path, len(own[str(path)]), len(gone[path]), of_others[path])

        if new:
            encoder = load_encoder()
            check_encoder(change.committed, encoder.description)
        for path in paths if new else ():
            documents = [document for place, document in new.values() if place == path]
            built = change.write(documents, encoder, (str(path), change.sources[str(path)]))
            counts.documents += built.documents
            counts.passages += built.passages
        removed = set[str]().union(*gone.values())
        change.delete(replaced | removed)
        change.commit()
    return replace(counts, replaced=len(replaced), removed=len(removed), unread=len(unread))


def _refuse_surprises(path: Path, own: int, gone: int, of_others: set[str]) -> None:
    """Refuse to remove more than half of the documents of a folder, and to put its documents in place of others."""
    if gone > own / 2:
        raise ValueError(
            f"{gone:,} of {own:,} documents are no longer in {path}: --yes removes them from the index. If the folder "
            "has moved, name its new place."
        )
    if of_others:
        raise ValueError(
            f"{len(of_others):,} documents of {path} have ids of others that came from elsewhere, such as "
            f"{min(of_others)!r}: --yes replaces those."
        )


def _folders_meant(change: "Change", folder: str | Path | None) -> list[Path]:
    """Return the places that documents were read from, or the one that is named, after noting it if that is new."""
    known = [Path(path) for path in change.sources if path]
    path = None if folder is None else Path(folder).absolute()
    if not known:
        raise ValueError("The documents of the index were not read from a folder: `add` takes others.")
    if path is None:
        return known
    if path in known:
        return [path]
    if path.exists():
        for place in known:
            if place.exists() and place.samefile(path):  # by another name, such as a link
                return [place]
        lost = [place for place in known if not place.exists()]
        if len(lost) == 1:  # it has moved
            change.sources = {
                str(path) if name == str(lost[0]) else name: columns for name, columns in change.sources.items()
            }
            return [path]
    raise ValueError(
        f"Name a folder that the index has documents of ({', '.join(map(str, known))}), or the new place of one that "
        "has moved. `add` takes other documents."
    )


def prepared(documents: Iterable[Document]) -> Iterator[Document]:
    """Put titles before the texts that lack them, by `with_title`.

    Raises:
        ValueError: if two documents have the same id.
    """
    seen = set[str]()
    for document in documents:
        if document.id in seen:
            raise ValueError(f"The id {document.id!r} is given twice: nothing was written.")
        seen.add(document.id)
        yield with_title(document)


def with_title(document: Document) -> Document:
    """Put the title before a text whose beginning lacks it, as that of a row with a column for it: it is searched."""
    title = " ".join(document.title.split()).rstrip("…")
    beginning = " ".join(document.text[: TITLE_IN + 2 * len(title)].split())
    if not beginning or re.search(rf"(?<!\w){re.escape(title)}", beginning, re.IGNORECASE):
        return document
    return replace(document, text=f"{document.title}\n\n{document.text}")


def delete(directory: Path, ids: Iterable[str]) -> int:
    """Take documents out of an index, and return how many.

    Raises:
        ValueError: naming ids that are not in it, or are no texts, before anything changes.
    """
    ids = list(dict.fromkeys(ids))
    if wrong := [document_id for document_id in ids if not isinstance(document_id, str)]:
        raise ValueError(f"The id {wrong[0]!r} is a {type(wrong[0]).__name__}: ids are texts, such as '{wrong[0]}'.")
    with writing(directory) as change:
        if missing := sorted(document_id for document_id in ids if change.index.find(document_id) is None):
            raise ValueError(
                f"{len(missing)} of the ids are not in the index, {missing[0]!r} for one: nothing was deleted. "
                "An id is what a query prints in [brackets]."
            )
        change.delete(ids)
        change.commit()
    return len(ids)


@contextmanager
def writing(directory: Path, new: Manifest | None = None) -> Iterator["Change"]:
    """Lock an index for one writer, open it, and begin a change.

    Args:
        new: begins an index that is not built to its end yet; default: one that is.

    Raises:
        ValueError: if there is no index, or one already, if it is damaged, or if another process writes. Nothing is
            removed then.
    """
    if new is None:
        read_manifest(directory)  # no folder is made where none is
    try:
        with FileLock(directory / LOCK, timeout=0), name_failed_writes(directory):
            if new is not None:
                refuse_taken(directory)
                new.write(directory)
            with Change(IndexReader(directory, new is None)) as change:
                yield change
    except Timeout as error:
        raise ValueError(f"Another process changes the index in {directory}: wait until it is done.") from error


def _new_name() -> str:
    return f"data-{uuid.uuid4().hex[:8]}.bin"


class Change:
    """What an index will be: segments, and the data file, open behind all of them.

    What an earlier change has left unfinished goes first; what this one leaves unfinished goes with it.

    Attributes:
        index: as it is before.
        empty: ids of the documents without text that were to be written.
    """

    def __init__(self, index: IndexReader):
        self.index, self.directory, self.committed = index, index.directory, index.manifest
        self.segments, self.sources = self.committed.segments, self.committed.sources
        self.empty = set[str]()
        self._remove_unnamed()
        self.file: BinaryIO = (self.directory / self.committed.file).open("r+b" if self.committed.length else "w+b")
        self.file.seek(self.committed.length)

    def __enter__(self) -> "Change":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(OSError):  # what a full disk did not take
            self.file.close()
        self._remove_unnamed()
        # The embeddings of a build that was stopped stay for the next one; those of an addition leave a full disk
        if error is None or (self.committed.is_built and isinstance(error, OSError) and error.errno == ENOSPC):
            for folder in self.directory.glob("cache/*"):
                if CACHES.fullmatch(folder.name) and not folder.parent.is_symlink():
                    shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # there is none, or it holds something else
                (self.directory / "cache").rmdir()

    def _remove_unnamed(self) -> None:
        """Remove what changes have written and no manifest names; what a reader keeps, on Windows, goes later."""
        try:
            manifest = read_manifest(self.directory)  # newer than `committed` if the change was stopped just then
        except (ValueError, OSError):  # there is none yet, or it cannot be read: nothing is known
            manifest = self.committed
            if (self.directory / MANIFEST_FILE).exists():
                return
        named = {manifest.file, manifest.approximate.file if manifest.approximate else ""}
        for path in self.directory.iterdir():
            with suppress(PermissionError):
                if path.name == manifest.file and path.stat().st_size > manifest.length:
                    os.truncate(path, manifest.length)
                elif (
                    DATA_FILES.fullmatch(path.name)
                    and path.name not in named
                    and path.is_file()
                    and not path.is_symlink()
                ):
                    path.unlink()

    def write(
        self, documents: Iterable[Document], encoder: "Encoder", source: DocumentSource, embed: Embed | None = None
    ) -> Built:
        """Embed and write documents, a segment after another."""
        built, words, language = Built(), self.committed.passage_words, self.committed.language

        def with_passages() -> Iterator[tuple[Document, list[str]]]:
            for document in documents:
                if passages := [passage.text for passage in to_passages(document.text, words)]:
                    yield document, passages
                else:
                    self.empty.add(document.id)

        self.sources = {**self.sources, source[0]: source[1]}
        number = [*self.sources].index(source[0])
        for batch in grouped(with_passages(), lambda pair: pair[0].text, SEGMENT_DOCUMENTS, SEGMENT_CHARACTERS):
            if not built.documents:
                first = [document.text for document, _ in batch]
                warn_of_other_language(first, language)
                encoder.announce(first, can_change=not self.committed.is_built)
            passages = [passage for _, several in batch for passage in several]
            whole = [document.text for document, several in batch if len(several) > 1]
            vectors = np.asarray((embed or encoder.embed_for_index)([*passages, *whole]), np.float32)
            lengths, room = encoder.count_tokens(passages) or (np.full(len(passages), -1), -1)
            rows, start, next_whole = [], 0, len(passages)
            for document, several in batch:
                part = slice(start, start := start + len(several))
                total, read = lengths[part].sum(), np.minimum(lengths[part], room).sum()
                tokens = np.array([total, read, min(total, room)])
                own = part.start if len(several) == 1 else next_whole
                next_whole += len(several) > 1
                rows.append(DocumentRow(document, several, vectors[part], vectors[own], tokens, number))
            self._append(rows)
            built.documents += len(batch)
            built.passages += len(passages)
        built.empty = len(self.empty)
        return built

    def _append(self, rows: Sequence[DocumentRow]) -> None:
        self.segments = [*self.segments, append_segment(self.file, arrays_of(rows, self.committed.language))]

    def delete(self, ids: Iterable[str]) -> None:
        """Mark documents of the index as deleted, and leave out segments that have no other."""
        deleted = {entry.name: set(entry.deleted) for entry in self.segments}
        for segment, row in filter(None, map(self.index.find, ids)):
            deleted[segment.entry.name].add(row)
        entries = [replace(entry, deleted=sorted(deleted[entry.name])) for entry in self.segments]
        self.segments = [entry for entry in entries if entry.documents]

    def commit(self) -> IndexReader:
        """Replace the manifest, from which on the index is the new one, and open it.

        Before, small segments are merged where they are many, an inverted file is written where one is needed, and all
        that the manifest names is on the disk.
        """
        manifest = replace(self.committed, sources=self.sources, is_built=True)
        if file := self._merge():
            manifest = replace(manifest, file=file)
        self.file.flush()
        manifest = replace(manifest, segments=self.segments, length=self.file.tell())
        data = map_data(self.directory, manifest)
        segments = [Segment(data, entry) for entry in self.segments if not entry.is_small]
        manifest = replace(manifest, approximate=cells_of(self.directory, segments, manifest.approximate))
        flush(self.directory / manifest.file)
        flush(self.directory)
        manifest.write(self.directory)
        self.committed = manifest
        return IndexReader(self.directory)

    def _merge(self) -> str | None:
        """Write a new data file, with small segments merged and without what was deleted from them, if it is time.

        Nothing is embedded again. It is time once small segments are many, or most of the file is of no use.

        Returns: the name of the file, which `file` is now; None: it is as it was.

        Raises:
            Damaged: if a segment that would be merged is not as it was written.
        """
        entries, live = self.segments, sum(entry.size for entry in self.segments)
        small = [entry for entry in entries if entry.is_small]
        if len(small) <= MOST_SMALL_SEGMENTS + live // COPIED and self.file.tell() <= 2 * live:
            return None
        self.file.flush()
        data = map_data(self.directory, replace(self.committed, length=self.file.tell()))
        self.file.close()
        name = _new_name()
        self.segments, self.file = [], (self.directory / name).open("w+b")
        for entry in entries:
            if entry not in small:
                self.segments.append(replace(entry, start=self.file.tell()))
                self.file.write(data[entry.start : entry.start + entry.size].data)
        for entry in small:
            if not entry.is_sound(data):
                raise Damaged(f"{self.directory / self.committed.file} has changed since it was written. {REMEDY}")
        rows = (row for entry in small for row in Segment(data, entry).rows())
        for group in grouped(rows, lambda row: row.document.text, SEGMENT_DOCUMENTS, SEGMENT_CHARACTERS):
            self._append(group)
        return name


def cells_of(directory: Path, segments: Sequence[Segment], known: InvertedFile | None) -> InvertedFile | None:
    """Return the inverted file of all passages; None without faiss, or if they are too few.

    It is `known`, or written anew where that lacks a tenth of the passages, or has those of a segment that is gone.
    """
    sizes = {segment.entry.name: len(segment.passage_vectors) for segment in segments}
    total, names = sum(sizes.values()), [] if known is None else known.segments
    is_stale = not sizes.keys() >= set(names)
    outside = sum(size for name, size in sizes.items() if name not in names)
    if not is_stale and (total <= COMPARED_WITH_ALL or outside <= total / 10):
        return known
    if total <= COMPARED_WITH_ALL:
        return None
    try:
        import faiss

        from docsplit.embedding.neighbours import make_inverted_file
    except ImportError:
        logger.warning("Without faiss (pip install faiss-cpu) each query is compared with all passages: that is slow.")
        return None
    index, recall = make_inverted_file([segment.passage_vectors for segment in segments])
    path = directory / f"approximate-{uuid.uuid4().hex[:8]}.faiss"
    faiss.write_index(index, str(path))
    flush(path)
    return InvertedFile(path.name, FileRecord.of(path), [*sizes], index.nprobe, recall)
