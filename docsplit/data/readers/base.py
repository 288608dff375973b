"""What readers share: a document, the error of a file that cannot be read, and an account of what was not read."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from docsplit.runtime.command import shown

T = TypeVar("T")
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
        if not (self.text.isascii() and self.title.isascii()):
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


class Unreadable(ValueError):
    """The error of a file, or of a row, that has nothing that can be read.

    Attributes:
        reason: what the files that are skipped for the same reason have in common, such as "that cannot be converted".
        remedy: a command after which it can be read, or nothing.
        place: where in a file the reason is, or nothing.
    """

    def __init__(self, reason: str, message: str, remedy: str = "", place: str = ""):
        super().__init__(message)
        self.reason, self.remedy, self.place = reason, remedy, place


NOTES = {  # what is said of texts and rows that were read although something is wrong with them
    "mended": "Texts with bytes that cannot be read: {count:,}, the first is {names}. Their characters become "
    "\N{REPLACEMENT CHARACTER}. If a file has another encoding than UTF-8, name it: --encoding.",
    "detected": "Files that are no UTF-8: {count:,}, {names}. Their encodings were detected; if they are wrong, name "
    "one: --encoding.",
    "without_id": "Rows without an id, while others of their file have one: {count:,}, the first is {names}. Their "
    "ids are file#row.",
    "repeated_id": "Rows that repeat an id of their file: {count:,}, the first is {names}. Their ids are file#row.",
    "swallowed": "Fields with tabs and line breaks in them: {count:,}, the first is {names}. If the file has no "
    "quoting, quotes at the beginning of fields have made one row of many, and those documents are lost: write it as "
    "jsonl.",
}


@dataclass
class Problems:
    """What is wrong with files and their rows: what was skipped, and what was read although something is wrong.

    Attributes:
        counts: how many there are, and the first two names, of skipped "file"s and "row"s by suffix and reason, and of
            each of `NOTES`.
        remedies: of files and rows.
        refuses_rows: whether a row that cannot be read is an error, as in tables of labels, which have to be whole.
    """

    counts: dict[str, dict[str, tuple[int, list[str]]]] = field(default_factory=dict)
    remedies: dict[str, list[str]] = field(default_factory=dict)
    refuses_rows: bool = False

    def add(self, thing: str, kind: str, names: list[str], remedies: Iterable[str] = (), count: int = 1) -> None:
        """Count files or rows, whose kind is a suffix and the reason if the suffix is not the reason, or notes."""
        before, first = self.counts.setdefault(thing, {}).get(kind, (0, []))
        self.counts[thing][kind] = before + count, [*first, *names][:2]
        known = self.remedies.setdefault(thing, [])
        known += [remedy for remedy in remedies if remedy and remedy not in known]

    def skip_file(self, kind: str, name: str, remedy: str = "") -> None:
        """Count a file that is not read."""
        self.add("file", kind, [name], [remedy])

    def skip_row(self, kind: str, place: str, cause: str = "", remedy: str = "") -> None:
        """Count a row that cannot be read.

        Args:
            kind: the suffix of its file and the reason, such as ".jsonl that are no JSON".
            place: its file and line.

        Raises:
            Unreadable: if rows are refused, naming the place.
        """
        if self.refuses_rows:
            reason = kind.partition(" ")[2]
            problem = re.sub("^that are ", "is ", reason) if reason.startswith("that are ") else f"{reason}: not read"
            raise Unreadable(reason, f"{place} {problem}{f': {cause}' if cause else ''}")
        self.add("row", kind, [place], [remedy])

    def note(self, kind: str, place: str, count: int = 1) -> None:
        """Count a problem of `NOTES`, and where it is first."""
        self.add("note", kind, [place], count=count)

    def number_of(self, *things: str) -> int:
        """Count the files, rows or notes of all kinds."""
        return sum(count for thing in things for count, _ in self.counts.get(thing, {}).values())

    def merge(self, other: "Problems") -> None:
        """Count the problems of another pass as well."""
        for thing, kinds in other.counts.items():
            for kind, (count, names) in kinds.items():
                self.add(thing, kind, names, other.remedies[thing], count)

    def skipped(self, thing: str) -> str:
        """Return a line such as `Skipped 14 files: 12 .png (a.png, b/c.png ...), 2 without suffix (LICENSE, x)`."""
        kinds = []
        for kind, (count, names) in sorted(self.counts.get(thing, {}).items(), key=lambda item: -item[1][0]):
            listed = ("; " if thing == "row" else ", ").join(map(shown, names))  # places of rows have commas
            kinds.append(f"{count:,} {kind} ({listed}{' ...' if count > 2 else ''})")
        if not kinds:
            return ""
        total = self.number_of(thing)
        more_with = f". To read more: {', '.join(self.remedies[thing])}" if self.remedies[thing] else ""
        return f"Skipped {total:,} {thing}{'s' * (total != 1)}: {', '.join(kinds)}{more_with}"

    def warnings(self) -> list[str]:
        """Return a line for each kind of problem."""
        notes = self.counts.get("note", {}).items()
        said = [NOTES[kind].format(count=count, names=shown(names[0])) for kind, (count, names) in notes]
        return [line for line in (self.skipped("file"), self.skipped("row"), *said) if line]

    def to_json(self) -> str:
        """Write them as JSON."""
        return json.dumps([self.counts, self.remedies])

    @classmethod
    def from_json(cls, text: str) -> "Problems":
        """Read what `to_json` wrote."""
        counts, remedies = json.loads(text)
        pairs = {thing: {kind: tuple(pair) for kind, pair in kinds.items()} for thing, kinds in counts.items()}
        return cls(pairs, remedies)
