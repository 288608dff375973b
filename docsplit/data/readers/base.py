"""What readers share: a document, the error of a file that cannot be read, and the count of skipped files."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
NAMES_SHOWN = 2  # of the files that were skipped for one reason


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
    """The error of a file that has nothing that can be read.

    Attributes:
        reason: what the files that are skipped for the same reason have in common, such as "that cannot be converted".
        remedy: a command after which it can be read, or nothing.
    """

    def __init__(self, reason: str, message: str, remedy: str = ""):
        super().__init__(message)
        self.reason, self.remedy = reason, remedy

    @classmethod
    def for_lack_of(cls, package: str, remedy: str, file: Path) -> "Unreadable":
        """Make the error of a file that needs a package."""
        return cls(f"for lack of {package}", f"{file} needs {package}: {remedy}", remedy)


@dataclass
class Skipped:
    """Counts of skipped files by suffix and reason, with the first names of each kind and what would help."""

    counts: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[str]] = field(default_factory=dict)
    remedies: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str, remedy: str = "") -> None:
        """Count a file.

        Args:
            kind: its suffix, and the reason if the suffix is not the reason.
        """
        self.counts[kind] += 1
        if len(names := self.names.setdefault(kind, [])) < NAMES_SHOWN:
            names.append(name)
        if remedy and remedy not in self.remedies:
            self.remedies.append(remedy)

    def sentence(self) -> str:
        """Return a line such as `Skipped 14 files: 12 .png (a.png, b/c.png ...), 2 without suffix (LICENSE, x)`."""
        kinds = []
        for kind, count in self.counts.most_common():
            more = " ..." if count > NAMES_SHOWN else ""
            kinds.append(f"{count:,} {kind} ({', '.join(self.names[kind])}{more})")
        total = self.counts.total()
        more_with = f". To read more: {', '.join(self.remedies)}" if self.remedies else ""
        return f"Skipped {total:,} file{'s' * (total != 1)}: {', '.join(kinds)}{more_with}"
