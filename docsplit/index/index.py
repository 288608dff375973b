"""An index of one's own documents on disk: found by what they are about and by their words, one at a time changed.

    D/manifest.json          which segments there are, and of which encoder: what is not named in it does not count
    D/segments/NAME/         `docsplit.index.segments`; never changed once it is named
    D/segments/NAME/deleted-K.npy    rows that are no longer in the index
    D/cache/                 embeddings of a run that was stopped; gone once it is finished

Every change writes new files beside the old ones and then replaces the manifest, whole or not at all: killed at any
moment, or on a full disk, the index is the old one or the new one. Readers take no lock.
"""

import fcntl
import json
import logging
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.data.own_documents import Document
from docsplit.data.passages import to_passages
from docsplit.data.sets.rankings import fuse
from docsplit.index import approximate
from docsplit.index.first_stage import Key, best_by_words, nearest
from docsplit.index.segments import Segment, merge_segments, write_array, write_segment
from docsplit.runtime.files import write_text

logger = logging.getLogger(__name__)

VERSION = 3  # before, a run of Chinese or Japanese was one word: 1 of passages, 2 of BM25
SEGMENT_DOCUMENTS = 50_000  # at most: what is in memory while one is written
SEGMENT_CHARACTERS = 2**28
MOST_SMALL_SEGMENTS = 16  # of fewer documents and characters than half of that; more are merged
FUSED = 1000  # of each ranking, for a hybrid one
Embed = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Hit:
    """A document that was found, and the passage of it that is nearest to the query (None if only words counted)."""

    id: str
    score: float
    title: str
    passage: str | None


class Index:
    """The documents of a folder, as its manifest has them when it is opened.

    Opening memory-maps all files of its segments: what writers remove later can still be read.

    Raises:
        ValueError: if there is no index, one of another version, or one that lacks a file.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        while True:
            self.manifest = read_manifest(self.directory)
            try:
                self.segments = [_open(self.directory, entry) for entry in self.manifest["segments"]]
                break
            except FileNotFoundError as error:  # a writer was faster, or somebody has deleted it
                if read_manifest(self.directory) == self.manifest:
                    raise ValueError(f"{error.filename} is gone: build the index again.") from error

    def __len__(self) -> int:
        return sum(segment.num_documents for segment in self.segments)

    def find(self, document_id: str) -> tuple[Segment, int] | None:
        """A document's segment and row; None if it is not in the index."""
        for segment in self.segments:
            if (row := segment.find(document_id)) is not None:
                return segment, row
        return None

    def search(
        self, vector: np.ndarray | None, words: Sequence[str], count: int = 10, method: str = "hybrid"
    ) -> list[Hit]:
        """The best documents for a query, the best first.

        `dense`: a document's score is that of its nearest passage. `bm25`: by words. `hybrid`: reciprocal rank fusion
        of the first `FUSED` of both.

        Args:
            vector: (H,), of the query; None for `bm25`.
            words: of the query, `docsplit.index.segments.query_words`.

        Returns: at most `count`; by words those alone that have one of the words.
        """
        depth = max(FUSED, count) if method == "hybrid" else count
        rankings = []
        if method != "bm25":
            assert vector is not None
            rankings += self.nearest(vector[None], depth)
        if method != "dense":
            rankings.append(best_by_words(self.segments, words, depth))
        ranked = rankings[0] if len(rankings) == 1 else fuse([[key for key, _ in one] for one in rankings])
        return [self._hit(key, score, vector) for key, score in ranked[:count]]

    def nearest(self, vectors: np.ndarray, count: int) -> list[list[tuple[Key, float]]]:
        """The documents with the nearest passages to each query (Q, H): key and similarity, the best first.

        Exactly, but for what `docsplit.index.approximate` may miss where there are millions of passages.
        """
        known = self.manifest["approximate"]
        if known is None:
            return nearest(self.segments, vectors, count)
        numbers = {entry["name"]: number for number, entry in enumerate(self.manifest["segments"])}
        inside = [numbers.get(name) for name in known["segments"]]
        rest = [number for number in range(len(self.segments)) if number not in inside]
        found = approximate.nearest(self.directory, known, inside, self.segments, vectors, count)
        others = nearest([self.segments[number] for number in rest], vectors, count)
        for ranking, more in zip(found, others):
            ranking += [((rest[number], row), score) for (number, row), score in more]
        return [sorted(ranking, key=lambda one: (-one[1], one[0]))[:count] for ranking in found]

    def _hit(self, key: Key, score: float, vector: np.ndarray | None) -> Hit:
        segment, row = self.segments[key[0]], key[1]
        passage = None
        if vector is not None:
            best = int((segment.passage_vectors[segment.passages_of(row)] @ vector).argmax())
            passage = to_passages(segment.texts[row], self.manifest["passage_words"])[best].text
        return Hit(segment.ids[row], float(score), segment.titles[row], passage)

    def documents(self) -> Iterator[tuple[Segment, int]]:
        """All that are in the index, in order: segment and row."""
        for segment in self.segments:
            for row in np.flatnonzero(segment.alive):
                yield segment, int(row)

    def document_vectors(self) -> np.ndarray:
        """Of all documents in their order, (N, H): a copy."""
        return np.concatenate([segment.document_vectors[segment.alive] for segment in self.segments])


def _open(directory: Path, entry: dict[str, Any]) -> Segment:
    folder = directory / "segments" / entry["name"]
    segment = Segment(folder, np.load(folder / entry["deleted"])) if entry["deleted"] else Segment(folder)
    segment.open()
    return segment


def read_manifest(directory: Path) -> dict[str, Any]:
    """What an index says of itself.

    Raises:
        ValueError: if there is none, or one of another version.
    """
    path = directory / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["version"]
    except FileNotFoundError as error:
        raise ValueError(f"There is no index in {directory}: make one with `search.py build`.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): build the index again.") from error
    if version != VERSION:
        raise ValueError(f"{directory} is an index of version {version}, this is version {VERSION}: build it again.")
    return manifest


def check_encoder(manifest: dict[str, Any], encoder: dict[str, Any]) -> None:
    """Refuse an encoder that is not that of the index.

    Raises:
        ValueError: naming both.
    """
    own = manifest["encoder"]
    if own["hash"] != encoder["hash"]:
        changed = [name for name in own if own[name] != encoder.get(name) and name not in ("hash", "name")]
        raise ValueError(
            f"The index was built with {own['name']} ({own['hash'][:8]}), not with {encoder['name']} "
            f"({encoder['hash'][:8]}){': other ' + ', '.join(changed) if changed else ''}. Vectors of two encoders "
            "cannot be compared: build the index again."
        )


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """One writer at a time; what an earlier one left unfinished is removed, but for its embeddings.

    Raises:
        ValueError: if another process writes, or the folder is someone else's.
    """
    own = ("manifest.json", "lock")
    if directory.exists() and any(directory.iterdir()) and not any((directory / name).exists() for name in own):
        raise ValueError(
            f"{directory} has no index but other files, and its segments/ and cache/ would be lost: name a new folder."
        )
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"Another process changes the index in {directory}: wait until it is done.") from error
        named, known = {}, None
        if (directory / "manifest.json").exists():
            manifest = read_manifest(directory)
            named = {entry["name"]: entry["deleted"] for entry in manifest["segments"]}
            known = manifest["approximate"]
        for file in directory.glob("approximate-*.faiss"):
            if known is None or file.name != known["file"]:
                file.unlink()
        for folder in (directory / "segments").glob("*"):
            if folder.name not in named:
                shutil.rmtree(folder)
                logger.info(f"Removed {folder.name}, which an earlier run left unfinished or unused.")
                continue
            for file in folder.glob("deleted-*.npy"):
                if file.name != named[folder.name]:
                    file.unlink()
        yield


def build(
    directory: Path,
    documents: Iterable[Document],
    embed: Embed,
    encoder: dict[str, Any],
    passage_words: int = 100,
) -> dict[str, int]:
    """Make an index of documents.

    Args:
        embed: texts to vectors (N, H), of length one if the similarity is the cosine. Documents are embedded whole, as
            far as the encoder reads, and by passage; a document of one passage once.
        encoder: what the manifest says of it: `name`, `hash`, and settings.

    Returns: how many documents are in, and how many were left out for each reason.

    Raises:
        ValueError: if there is an index already, if ids repeat, or if no document has text.
    """
    with writing(directory):
        if (directory / "manifest.json").exists():
            raise ValueError(f"There is an index in {directory} already: `search.py add` adds to it.")
        manifest = {"version": VERSION, "encoder": encoder, "passage_words": passage_words, "approximate": None}
        entries, counts = _write_segments(directory, documents, embed, passage_words, set())
        if not entries:
            raise ValueError(f"None of the documents has text ({counts}): nothing was built.")
        _commit(directory, manifest | {"segments": entries})
        shutil.rmtree(directory / "cache", ignore_errors=True)
    return counts


def add(
    directory: Path, documents: Iterable[Document], embed: Embed, encoder: dict[str, Any], replace: bool = False
) -> dict[str, int]:
    """Add documents to an index, or put them in place of those of the same id; the rest is not touched.

    Documents that are in the index with the same text and title stay as they are. So do those whose new text is empty:
    they are counted as empty.

    Returns: as `build`, and how many were replaced and unchanged.

    Raises:
        ValueError: if an id is in the index with another text and `replace` is False, if ids repeat, or for another
            encoder.
    """
    with writing(directory):
        index = Index(directory)
        check_encoder(index.manifest, encoder)
        replaced: set[str] = set()
        unchanged = 0

        def changed() -> Iterator[Document]:
            nonlocal unchanged
            for document in documents:
                if (found := index.find(document.id)) is not None:
                    segment, row = found
                    if (segment.texts[row], segment.titles[row]) == (document.text, document.title):
                        unchanged += 1
                        continue
                    if not replace:
                        raise ValueError(
                            f"{document.id!r} is in the index with another text: --replace puts the new one there."
                        )
                    replaced.add(document.id)
                yield document

        entries, counts = _write_segments(directory, changed(), embed, index.manifest["passage_words"], replaced)
        kept = _without(index, replaced)
        _commit(directory, index.manifest | {"segments": _merged(directory, [*kept, *entries])})
        shutil.rmtree(directory / "cache", ignore_errors=True)
    return counts | {"replaced": len(replaced), "unchanged": unchanged}


def delete(directory: Path, ids: Iterable[str]) -> int:
    """Take documents out of an index.

    Returns: how many.

    Raises:
        ValueError: naming ids that are not in it, before anything changes.
    """
    read_manifest(directory)  # no folder is made where none is
    with writing(directory):
        index, ids = Index(directory), set(ids)
        if missing := sorted(document_id for document_id in ids if index.find(document_id) is None):
            raise ValueError(
                f"{len(missing)} ids are not in the index, {missing[0]!r} for one: nothing was deleted. "
                "An id is what a query prints first."
            )
        entries = _without(index, ids)
        _commit(directory, index.manifest | {"segments": entries})
    return len(ids)


def _commit(directory: Path, manifest: dict[str, Any]) -> None:
    """From here on the index is this one; what finds a passage among millions is made before, where it has to be."""
    segments = [(entry["name"], _open(directory, entry)) for entry in manifest["segments"]]
    if approximate.is_needed(segments, manifest["approximate"]):
        manifest = manifest | {"approximate": approximate.make(directory, segments)}
    write_text(directory / "manifest.json", json.dumps(manifest, indent=1) + "\n")


def _without(index: Index, ids: set[str]) -> list[dict[str, Any]]:
    """The entries of the segments, with these documents marked as deleted; segments without any other are left out."""
    entries = []
    for entry, segment in zip(index.manifest["segments"], index.segments):
        rows = [row for document_id in ids if (row := segment.find(document_id)) is not None]
        if rows:
            deleted = np.sort(np.concatenate([segment.deleted, rows])).astype(np.int64)
            name = f"deleted-{uuid.uuid4().hex[:8]}.npy"
            write_array(segment.folder / name, deleted)
            entry = entry | {"deleted": name, "documents": len(segment.ids) - len(deleted)}
        entries += [entry] if entry["documents"] else []
    return entries


def _write_segments(
    directory: Path, documents: Iterable[Document], embed: Embed, passage_words: int, replaced: set[str]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Write documents as segments that no manifest names yet: their entries, and the counts that `build` returns."""
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    counts = {"documents": 0, "passages": 0, "empty": 0}

    def with_passages() -> Iterator[tuple[Document, list[str]]]:
        for document in documents:
            if document.id in seen:
                raise ValueError(f"The id {document.id!r} is given twice: nothing was written.")
            seen.add(document.id)
            if passages := [passage.text for passage in to_passages(document.text, passage_words)]:
                yield document, passages
            else:
                counts["empty"] += 1
                replaced.discard(document.id)

    for batch in _batches(with_passages()):
        sizes = [len(own) for _, own in batch]
        several = [row for row, size in enumerate(sizes) if size > 1]
        passages = [text for _, own in batch for text in own]
        vectors = embed(passages + [batch[row][0].text for row in several])
        passage_vectors = vectors[: len(passages)]
        document_vectors = passage_vectors[np.cumsum([0, *sizes])[:-1]]
        document_vectors[several] = vectors[len(passages) :]
        folder = directory / "segments" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        ids, titles, texts = zip(*((document.id, document.title, document.text) for document, _ in batch))
        write_segment(folder, ids, titles, texts, document_vectors, passage_vectors, sizes)
        entries.append({"name": folder.name, "deleted": None, "documents": len(batch)})
        counts["documents"] += len(batch)
        counts["passages"] += len(passage_vectors)
    return entries, counts


def _batches(documents: Iterable[tuple[Document, list[str]]]) -> Iterator[list[tuple[Document, list[str]]]]:
    """At most `SEGMENT_DOCUMENTS`, and as many as `SEGMENT_CHARACTERS` hold."""
    batch: list[tuple[Document, list[str]]] = []
    characters = 0
    for document, passages in documents:
        batch.append((document, passages))
        characters += len(document.text)
        if len(batch) == SEGMENT_DOCUMENTS or characters >= SEGMENT_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _merged(directory: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries, many small segments in few: what was deleted is gone from them, and nothing is embedded again."""
    kept, small = [], []
    for entry in entries:
        segment = _open(directory, entry)
        size = entry["documents"] / SEGMENT_DOCUMENTS, segment.num_bytes / SEGMENT_CHARACTERS  # shares of what it may
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


def _merge(directory: Path, segments: Sequence[Segment]) -> dict[str, Any]:
    """The entry of a new segment that holds the documents of these."""
    folder = directory / "segments" / uuid.uuid4().hex
    folder.mkdir()
    return {"name": folder.name, "deleted": None, "documents": merge_segments(folder, segments)}
