"""The manifest of an index: its segments, the encoder that its vectors are of, and the files that must be there.

The manifest is sealed (`docsplit.runtime.files`). It records the size and digest of each file that it names.
Segments and words are folders: the manifest records the `files.json` in them, which records their other files.
"""

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from docsplit.runtime.command import command_name
from docsplit.runtime.files import (
    CHECKSUM,
    SEAL,
    Damaged,
    FileRecord,
    JsonObject,
    read_json,
    read_sealed,
    records_in,
    why_damaged,
    write_sealed,
)

if TYPE_CHECKING:  # it needs torch, as a search by words does not
    from docsplit.embedding.encoder import Description

FILE = "manifest.json"
VERSION = 4  # before: 3 had no checksums; a run of Chinese or Japanese was one word, 1 of passages, 2 of BM25
UNSEALED = 3  # still read, never changed
REMEDY = "Restore the index from a copy, or build it again in a new folder."
DELETED = r"deleted-[0-9a-f]{8}\.npy"
NAMES = re.compile(  # of what changes write beside the manifest; nothing else in the folder is ever removed
    rf"segments/[0-9a-f]{{32}}(/{DELETED})?|words-[0-9a-f]{{8}}|approximate-[0-9a-f]{{8}}\.faiss"
)


@dataclass(frozen=True)
class SegmentEntry:
    """What a manifest says of a segment."""

    name: str  # of its folder
    deleted: str | None  # the file in it that lists the rows that are no longer in the index
    documents: int  # that are in the index


@dataclass(frozen=True)
class InvertedFile:
    """The inverted file beside the segments, which covers the passages of those that were there when it was made."""

    file: str
    segments: list[str]  # names, in the order of their passages
    sizes: list[int]  # their passages
    probes: int  # cells that a query reads
    recall: float  # measured with so many cells


@dataclass(frozen=True)
class WordsEntry:
    """The words of documents that an index adds to the encoder's vectors."""

    folder: str | None  # in the index, fitted on its documents; None: the words that the encoder brings
    documents: int  # of the index when these words came into use

    def sentence(self) -> str:
        """Say where the words come from."""
        if self.folder is None:
            when = f"the index had {self.documents:,} documents when they came into use"
            return f"Documents carry the words that the encoder brings; {when}."
        return f"Documents carry words that were fitted on {self.documents:,} documents of this index."


@dataclass(frozen=True)
class TokensEntry:
    """How many tokens of the documents in an index the encoder's vectors read; segments have the counts of each."""

    total: int
    in_passages: int
    in_documents: int  # read by the vectors of whole documents

    def sentence(self, max_seq_length: int, has_words: bool) -> str | None:
        """Say what share of the tokens is read, and what would read more; None if all are."""
        if self.in_documents == self.total:
            return None
        words = ", and the words of all" if has_words else ""
        of_passages = words if self.in_passages < self.total else ""
        fewer = "fewer --passage_words, or " if self.in_passages < self.total else ""
        return (
            f"The encoder reads {max_seq_length:,} tokens at a time. Queries search "
            f"{_share(self.in_passages, self.total)} of your documents' tokens, in passages{of_passages}. Clusters, "
            f"duplicates and maps see {_share(self.in_documents, self.total)}, the beginnings{words}. To read more, "
            f"build with {fewer}an encoder that reads longer texts."
        )


def _share(part: int, total: int) -> str:
    percent = 100 * part / total
    return "all" if part == total else f"{percent:.0f} %" if percent < 99 else f"{min(percent, 99.9):.1f} %"


@dataclass(frozen=True)
class Manifest:
    """What an index says of itself.

    Attributes:
        files: the records of the files that the manifest names, by their names in the folder of the index.
        is_built: whether the first build has come to its end.
    """

    version: int
    encoder: "Description"  # `name`, `hash`, and settings
    passage_words: int
    approximate: InvertedFile | None  # None: all passages are compared
    segments: list[SegmentEntry]
    words: WordsEntry | None = None  # None: the encoder adds none
    tokens: TokensEntry | None = None  # None: they were not counted
    files: dict[str, FileRecord] = field(default_factory=dict)
    is_built: bool = True

    def reading(self) -> str | None:
        """Say what share of the documents' tokens the vectors read; None if it is all of them, or not known."""
        if self.tokens is None:
            return None
        return self.tokens.sentence(self.encoder["max_seq_length"], self.words is not None)

    def names(self) -> list[str]:
        """List the folders and files that belong to the index, by their names in its folder."""
        names = [self.words.folder] if self.words and self.words.folder else []
        names += [self.approximate.file] if self.approximate else []
        for entry in self.segments:
            folder = f"segments/{entry.name}"
            names += [folder, f"{folder}/{entry.deleted}"] if entry.deleted else [folder]
        return names

    def recorded(self, directory: Path) -> dict[str, FileRecord]:
        """Return the records of the files that the manifest names; files that have none yet are read."""
        files = [name if name.endswith((".npy", ".faiss")) else f"{name}/{SEAL}" for name in self.names()]
        return {name: self.files.get(name) or FileRecord.of(directory / name) for name in files}

    def write(self, directory: Path) -> None:
        """Replace the manifest of a folder, whole or not at all; words and tokens stand in it where there are any."""
        content = asdict(self)
        for name in ("words", "tokens"):
            if content[name] is None:
                del content[name]
        write_sealed(directory / FILE, content)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of an index.

    Raises:
        ValueError: if there is none, one that is damaged, or one of another version.
    """
    path = directory / FILE
    try:
        content = read_json(path)
        version = content.get("version")
        if version in range(UNSEALED) or (CHECKSUM in content and version != VERSION and read_sealed(path)):
            raise ValueError(
                f"{directory} is an index of version {version}, this is version {VERSION}: build it again."
            )
        if version != UNSEALED or CHECKSUM in content:
            content = read_sealed(path)
        return _parsed(content, path)
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no index in {directory}: make one with `{command_name('search.py')} build`."
        ) from error
    except Damaged as error:
        raise Damaged(f"{error} {REMEDY}") from error


def _parsed(content: JsonObject, path: Path) -> Manifest:
    """Turn the content of a manifest into objects.

    Raises:
        Damaged: if something in it is not what a change writes.
    """
    approximate, words, tokens = (content.get(name) for name in ("approximate", "words", "tokens"))
    try:
        manifest = Manifest(
            content["version"],
            content["encoder"],
            content["passage_words"],
            approximate and InvertedFile(**approximate),
            [SegmentEntry(**entry) for entry in content["segments"]],
            words and WordsEntry(**words),
            tokens and TokensEntry(**tokens),
            records_in(content, path) if content.get("files") else {},
            content.get("is_built", True),
        )
        other = [name for name in manifest.names() if not NAMES.fullmatch(name)]
    except (KeyError, TypeError) as error:
        raise Damaged(f"{path} is damaged: it is no manifest of an index ({error}).") from error
    if other:
        raise Damaged(f"{path} is damaged: it names {other[0]!r}, which no change of an index writes.")
    counts = [manifest.passage_words, *(entry.documents for entry in manifest.segments)]
    if any(type(count) is not int or count < 1 for count in counts) or not isinstance(manifest.encoder, dict):
        raise Damaged(f"{path} is damaged: its counts or its encoder are none.")
    return manifest


def check_files(directory: Path, manifest: Manifest, most_bytes: float) -> None:
    """Check the files of an index against their records: what the manifest records in full, for all the size.

    Args:
        most_bytes: contents are read, too, if all files together have no more bytes.

    Raises:
        Damaged: naming a file that is missing or has changed, and the remedy.
    """
    small = {name: record for name, record in manifest.files.items() if not name.endswith(".faiss")}
    reason = why_damaged(directory, small) or why_damaged(directory, all_files(directory, manifest), most_bytes)
    if reason:
        raise Damaged(f"{directory}/{reason}. {REMEDY}")


def all_files(directory: Path, manifest: Manifest) -> dict[str, FileRecord]:
    """Collect the records of all files of an index but its manifest, by their names in its folder.

    Raises:
        Damaged: if a record of files is damaged.
        FileNotFoundError: if one is missing.
    """
    records = dict(manifest.files)
    for name in manifest.files:
        records |= files_beside(directory, name) if name.endswith(f"/{SEAL}") else {}
    return records


def files_beside(directory: Path, seal: str) -> dict[str, FileRecord]:
    """Return what a `files.json` records; all names are those in the folder of the index.

    Raises:
        Damaged: if it is damaged.
        FileNotFoundError: if it is missing.
    """
    folder, path = seal.removesuffix(SEAL), directory / seal
    return {f"{folder}{name}": record for name, record in records_in(read_sealed(path), path).items()}


def refuse_unfinished(directory: Path, manifest: Manifest) -> None:
    """Refuse an index whose first build has not come to its end.

    Raises:
        ValueError: naming the remedy.
    """
    if not manifest.is_built:
        raise ValueError(
            f"The index in {directory} is not built to its end: run `{command_name('search.py')} build` again."
        )


def check_encoder(manifest: Manifest, encoder: "Description") -> None:
    """Refuse an encoder that is not that of the index.

    Raises:
        ValueError: naming both.
    """
    expected = manifest.encoder
    if expected["hash"] != encoder["hash"]:
        changed = [name for name in expected if expected[name] != encoder.get(name) and name not in ("hash", "name")]
        raise ValueError(
            f"The index was built with {expected['name']} ({expected['hash'][:8]}), not with {encoder['name']} "
            f"({encoder['hash'][:8]}){': other ' + ', '.join(changed) if changed else ''}. Vectors of two encoders "
            "cannot be compared: build the index again."
        )
