"""What readers share: a document, the error of a file that cannot be read, and an account of what was not read."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from docsplit.runtime.command import shown

T = TypeVar("T")
NAMES_SHOWN = 2  # of the files that were skipped for one reason
ICONV = "iconv -f LATIN1 -t UTF-8"  # what mends a file of another encoding, once its encoding is known


@dataclass(frozen=True)
class Document:
    """A text with its id and title."""

    id: str
    text: str
    title: str = ""


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

    @classmethod
    def for_lack_of(cls, package: str, remedy: str, file: Path) -> "Unreadable":
        """Make the error of a file that needs a package."""
        return cls(f"for lack of {package}", f"{file} needs {package}: {remedy}", remedy)


@dataclass
class Skipped:
    """Counts of skipped files or rows by suffix and reason, with the first names of each kind and what would help."""

    things: str = "file"
    counts: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[str]] = field(default_factory=dict)
    remedies: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str, remedy: str = "") -> None:
        """Count a file, or a row.

        Args:
            kind: its suffix, and the reason if the suffix is not the reason.
        """
        self._add(kind, 1, [name], [remedy] if remedy else [])

    def _add(self, kind: str, count: int, names: Iterable[str], remedies: Iterable[str]) -> None:
        self.counts[kind] += count
        self.names[kind] = [*self.names.get(kind, []), *names][:NAMES_SHOWN]
        self.remedies += [remedy for remedy in remedies if remedy not in self.remedies]

    def merge(self, other: "Skipped") -> None:
        """Count what another pass skipped as well."""
        for kind, count in other.counts.items():
            self._add(kind, count, other.names[kind], other.remedies)

    def sentence(self) -> str:
        """Return a line such as `Skipped 14 files: 12 .png (a.png, b/c.png ...), 2 without suffix (LICENSE, x)`."""
        kinds = []
        for kind, count in self.counts.most_common():
            more = " ..." if count > NAMES_SHOWN else ""
            names = ("; " if self.things == "row" else ", ").join(
                map(shown, self.names[kind])
            )  # rows have commas in places
            kinds.append(f"{count:,} {kind} ({names}{more})")
        total = self.counts.total()
        more_with = f". To read more: {', '.join(self.remedies)}" if self.remedies else ""
        return f"Skipped {total:,} {self.things}{'s' * (total != 1)}: {', '.join(kinds)}{more_with}"


NOTES = {  # what is said of texts and rows that were read although something is wrong with them
    "mended": "Texts with bytes that are no UTF-8: {count:,}, the first is {first}. The characters that cannot be "
    "read become \N{REPLACEMENT CHARACTER}. If a file has another encoding, convert it: " + ICONV + ".",
    "without_id": "Rows without an id, while others of their file have one: {count:,}, the first is {first}. Their "
    "ids are file#row.",
    "repeated_id": "Rows that repeat an id of their file: {count:,}, the first is {first}. Their ids are file#row.",
    "swallowed": "Fields with tabs and line breaks in them: {count:,}, the first is {first}. If the file has no "
    "quoting, quotes at the beginning of fields have made one row of many, and those documents are lost: write it as "
    "jsonl.",
}


@dataclass
class Problems:
    """What is wrong with files and their rows: what was skipped, and what was read although something is wrong.

    Attributes:
        notes: how many texts or rows have each problem of `NOTES`, and where the first is.
        refuses_rows: whether a row that cannot be read is an error, as in tables of labels, which have to be whole.
    """

    files: Skipped = field(default_factory=Skipped)
    rows: Skipped = field(default_factory=lambda: Skipped("row"))
    notes: dict[str, tuple[int, str]] = field(default_factory=dict)
    refuses_rows: bool = False

    def skip_file(self, suffix: str, name: str, error: Unreadable) -> None:
        """Count a file that cannot be read."""
        self.files.add(f"{suffix} {error.reason}", error.place or name, error.remedy)

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
            what = f"is{reason.removeprefix('that are')}" if reason.startswith("that are") else f"{reason}: not read"
            raise Unreadable(reason, f"{place} {what}{f': {cause}' if cause else ''}")
        self.rows.add(kind, place, remedy)

    def note(self, kind: str, place: str, count: int = 1) -> None:
        """Count a problem of `NOTES`, and where it is first."""
        before, first = self.notes.get(kind, (0, place))
        self.notes[kind] = before + count, first

    @property
    def is_any(self) -> bool:
        """Whether there are any."""
        return bool(self.files.counts or self.rows.counts or self.notes)

    @property
    def num_skipped(self) -> int:
        """The number of files and rows that were skipped."""
        return self.files.counts.total() + self.rows.counts.total()

    def merge(self, other: "Problems") -> None:
        """Count the problems of another pass as well."""
        self.files.merge(other.files)
        self.rows.merge(other.rows)
        for kind, (count, first) in other.notes.items():
            self.note(kind, first, count)

    def warnings(self) -> list[str]:
        """Return a line for each kind of problem."""
        skipped = [kind.sentence() for kind in (self.files, self.rows) if kind.counts]
        return skipped + [
            NOTES[kind].format(count=count, first=shown(first)) for kind, (count, first) in self.notes.items()
        ]

    def to_json(self) -> str:
        """Write them as JSON."""
        skipped = [[kind.counts, kind.names, kind.remedies] for kind in (self.files, self.rows)]
        return json.dumps([*skipped, self.notes])

    @classmethod
    def from_json(cls, text: str) -> "Problems":
        """Read what `to_json` wrote."""
        files, rows, notes = json.loads(text)
        problems = cls(notes={kind: (count, first) for kind, (count, first) in notes.items()})
        for skipped, (counts, names, remedies) in ((problems.files, files), (problems.rows, rows)):
            skipped.counts, skipped.names, skipped.remedies = Counter(counts), names, remedies
        return problems
