"""What readers share: a document, the error of a file that cannot be read, and an account of what was not read."""

import json
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from docsplit.runtime.command import shown

T = TypeVar("T")
logger = logging.getLogger(__name__)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def normalized(text: str) -> str:
    """Write a text in NFC, so that copies of it are equal, and lone surrogates, which UTF-8 cannot hold, as spaces."""
    return text if text.isascii() else unicodedata.normalize("NFC", _SURROGATE.sub(" ", text))


@dataclass(frozen=True)
class Document:
    """A text with its id and title, as `normalized` writes them, whoever makes it."""

    id: str
    text: str
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", normalized(self.text))
        object.__setattr__(self, "title", normalized(self.title))


def grouped(items: Iterable[T], text_of: Callable[[T], str], most: int, most_characters: int) -> Iterator[list[T]]:
    """Group items that have texts. A group ends at `most` items, or once its texts have `most_characters`."""
    group: list[T] = []
    characters = 0
    for item in items:
        group.append(item)
        characters += len(text_of(item))
        if len(group) == most or characters >= most_characters:
            yield group
            group, characters = [], 0
    if group:
        yield group


@dataclass(frozen=True)
class TableColumns:
    """How data files are read.

    Attributes:
        text: the column of the text.
        id: the column of the ids; None for the first of id, _id and doc_id that a row has.
        encoding: of text files of all kinds; None: UTF-8, or what is detected.
        more: columns whose texts follow that of the first.
    """

    text: str = "text"
    id: str | None = None
    encoding: str | None = None
    more: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", tuple(self.more))  # a list, where JSON had it
        try:
            bytes(4).decode(self.encoding or "utf-8", errors="ignore")
        except LookupError as error:
            raise ValueError(f"--encoding {self.encoding!r} is none that Python knows, such as cp1252.") from error


USUAL = TableColumns()


class Unreadable(ValueError):
    """The error of a file, or of the rest of one, that cannot be read.

    Attributes:
        reason: what the files that are skipped for the same reason have in common, such as "that are binary".
    """

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


@dataclass
class Problems:
    """What is wrong with files and their rows: what was skipped, and what was read although something is wrong.

    Attributes:
        counts: how many "file"s and "row"s were skipped, and "text"s read, of each kind, and the name of the first.
        refuses_rows: whether a row that cannot be read is an error, as in tables of labels, which have to be whole.
        undecoded: the lines with bytes that cannot be decoded.
    """

    counts: dict[str, dict[str, tuple[int, str]]] = field(default_factory=dict)
    refuses_rows: bool = False
    undecoded: set[str] = field(default_factory=set)

    def add(self, thing: str, kind: str, name: str, count: int = 1) -> None:
        """Count files, rows or texts with something wrong.

        Args:
            kind: goes on from their number: "12 .png", "3 that are no JSON".
            name: of the file, and its line.
        """
        before, first = self.counts.setdefault(thing, {}).get(kind, (0, name))
        self.counts[thing][kind] = before + count, first

    def skip_row(self, reason: str, place: str, cause: str = "") -> None:
        """Count a row that cannot be read.

        Raises:
            Unreadable: if rows are refused, naming the place.
        """
        if self.refuses_rows:
            raise Unreadable(
                reason, f"{place} cannot be read, as one of the rows {reason}{f': {cause}' * bool(cause)}"
            )
        self.add("row", reason, place)

    def number_of(self, *things: str) -> int:
        """Count the files, rows or texts of all kinds."""
        return sum(count for thing in things for count, _ in self.counts.get(thing, {}).values())

    def merge(self, other: "Problems") -> None:
        """Count the problems of another pass as well."""
        for thing, kinds in other.counts.items():
            for kind, (count, name) in kinds.items():
                self.add(thing, kind, name, count)

    def warnings(self) -> list[str]:
        """Return a line for files, rows and texts: `Skipped 14 files: 12 .png (a.png ...), 2 hidden (.git ...)`."""
        lines = []
        for thing, kinds in self.counts.items():
            listed = ", ".join(
                f"{count:,} {kind} ({shown(name)}{' ...' if count > 1 else ''})"
                for kind, (count, name) in sorted(kinds.items(), key=lambda item: -item[1][0])
            )
            total = self.number_of(thing)
            begin = "Something is wrong with" if thing == "text" else "Skipped"
            lines.append(f"{begin} {total:,} {thing}{'s' * (total != 1)}: {listed}")
        return lines

    def log(self) -> None:
        """Warn of them."""
        for warning in self.warnings():
            logger.warning(warning)

    def to_json(self) -> str:
        """Write them as JSON."""
        return json.dumps(self.counts)

    @classmethod
    def from_json(cls, text: str) -> "Problems":
        """Read what `to_json` wrote."""
        return cls(
            {thing: {kind: tuple(pair) for kind, pair in kinds.items()} for thing, kinds in json.loads(text).items()}
        )
