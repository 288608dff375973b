"""How results look to people: marks on a terminal, names of documents, and the part of a passage that is shown."""

import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from typing import TextIO

from docsplit.data.passages import split_sentences

NARROWEST, SHORTEST_TITLE = 40, 40  # characters
_RULER = re.compile(r"(?<!\S)[-=~^*_]{3,}(?!\S)")
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

    def mark(self, text: str, words: Collection[str]) -> str:
        """Make these words of a text bold; they are in small letters."""
        if not self.has_marks or not words:
            return text
        from docsplit.data.words import TOKEN_PATTERN

        def marked(match: re.Match[str]) -> str:
            return self.bold(match[0]) if match[0].lower() in words else match[0]

        return re.sub(TOKEN_PATTERN, marked, text)

    def document(self, document_id: str, title: str, before: str = "") -> str:
        """Name a document in a line: its title, shortened to fit, and its id, which stays whole."""
        if title in ("", document_id):
            return before + self.bold(document_id)
        room = max(self.width - len(before) - len(document_id) - len("  []"), SHORTEST_TITLE)
        short = title if len(title) <= room else f"{title[: room - 1]}…"
        return f"{before}{self.bold(short)}  {self.dim(f'[{document_id}]')}"


def shown_part(passage: str, title: str, words: Collection[str], characters: int) -> str:
    """Return a passage from the sentence on that has most of these words within so many characters after it.

    A first sentence that is the title is left out, and so are lines drawn below headings.
    """
    from docsplit.data.words import words_in

    sentences = [" ".join(_RULER.sub("", sentence).split()) for sentence in split_sentences(passage)]
    starts = range(int(len(sentences) > 1 and sentences[0].lstrip("# ") == title), len(sentences))
    rests = {start: " ".join(sentences[start:]) for start in starts}
    best = max(starts, key=lambda start: len(words_in(rests[start][:characters]) & set(words)), default=0)
    return f"… {rests[best]}" if best > starts.start else rests.get(best, "")
