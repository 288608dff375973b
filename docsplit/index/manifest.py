"""The manifest of an index: its segments, and the encoder that its vectors are of."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from docsplit.runtime.files import write_text
from docsplit.runtime.names import command_name

if TYPE_CHECKING:  # it needs torch, as a search by words does not
    from docsplit.embedding.encoder import Description

FILE = "manifest.json"
VERSION = 3  # before, a run of Chinese or Japanese was one word: 1 of passages, 2 of BM25


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
    """What an index says of itself."""

    version: int
    encoder: "Description"  # `name`, `hash`, and settings
    passage_words: int
    approximate: InvertedFile | None  # None: all passages are compared
    segments: list[SegmentEntry]
    words: WordsEntry | None = None  # None: the encoder adds none
    tokens: TokensEntry | None = None  # None: they were not counted

    def reading(self) -> str | None:
        """Say what share of the documents' tokens the vectors read; None if it is all of them, or not known."""
        if self.tokens is None:
            return None
        return self.tokens.sentence(self.encoder["max_seq_length"], self.words is not None)

    def write(self, directory: Path) -> None:
        """Replace the manifest of a folder, whole or not at all; words and tokens stand in it where there are any."""
        content = asdict(self)
        for name in ("words", "tokens"):
            if content[name] is None:
                del content[name]
        write_text(directory / FILE, json.dumps(content, indent=1) + "\n")


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of an index.

    Raises:
        ValueError: if there is none, or one of another version.
    """
    path = directory / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["version"]
    except FileNotFoundError as error:
        raise ValueError(
            f"There is no index in {directory}: make one with `{command_name('search.py')} build`."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): build the index again.") from error
    if version != VERSION:
        raise ValueError(f"{directory} is an index of version {version}, this is version {VERSION}: build it again.")
    approximate, words, tokens = content["approximate"], content.get("words"), content.get("tokens")
    return Manifest(
        version,
        content["encoder"],
        content["passage_words"],
        approximate and InvertedFile(**approximate),
        [SegmentEntry(**entry) for entry in content["segments"]],
        words and WordsEntry(**words),
        tokens and TokensEntry(**tokens),
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
