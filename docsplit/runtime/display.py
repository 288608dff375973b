"""How results look to people: the width of lines, marks on a terminal, names of documents."""

import os
import shutil
from dataclasses import dataclass
from typing import TextIO

NARROWEST, SHORTEST_TITLE = 40, 40  # characters
BOLD, DIM, RESET = "\033[1m", "\033[2m", "\033[0m"


@dataclass(frozen=True)
class Style:
    """The width of lines, and whether parts of them are marked."""

    width: int = 100
    has_marks: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Style":
        """Return the style of a stream: marks on a terminal that shows them, unless NO_COLOR is set."""
        shows_marks = os.name != "nt" or "WT_SESSION" in os.environ
        wants_marks = shows_marks and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = max(shutil.get_terminal_size((cls.width, 24)).columns, NARROWEST)
        return cls(width, stream.isatty() and wants_marks)

    def bold(self, text: str) -> str:
        """Make a text stand out."""
        return f"{BOLD}{text}{RESET}" if self.has_marks else text

    def dim(self, text: str) -> str:
        """Make a text less bright."""
        return f"{DIM}{text}{RESET}" if self.has_marks else text

    def document(self, document_id: str, title: str, before: str = "") -> str:
        """Name a document in a line: its title, shortened to fit, and its id, which stays whole."""
        if title in ("", document_id):
            return before + self.bold(document_id)
        room = max(self.width - len(before) - len(document_id) - len("  []"), SHORTEST_TITLE)
        short = title if len(title) <= room else f"{title[: room - 1]}…"
        return f"{before}{self.bold(short)}  {self.dim(f'[{document_id}]')}"
