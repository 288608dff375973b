"""How results look to people: the width of lines, marks on a terminal, names of documents, nothing that acts on it.

Documents, ids, titles and names of files are others' work. `shown` and `shown_lines` write them for a terminal or a
log, `as_json` for other programs; `as_command` lets all logs and errors pass through here.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

NARROWEST, SHORTEST_TITLE = 40, 40  # characters
# Control characters, separators of lines, what turns the direction of text around, and what UTF-8 cannot hold.
_ACTING = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ACTING_OR_BREAK, _ACTS = re.compile(f"[{_ACTING}\t\n]"), re.compile(f"[{_ACTING}]")
BOLD, DIM, RESET = "\033[1m", "\033[2m", "\033[0m"


def shown(text: str) -> str:
    """Write a text in one line, in which control characters are codes such as `\\x1b`."""
    return _ACTING_OR_BREAK.sub(_code, text)


def shown_lines(text: str) -> str:
    """Write a text as `shown` does, but keep its lines and tabs."""
    return _ACTS.sub(_code, text)


def as_json(value: Any) -> str:
    """Write a value as JSON, readable, but with codes for all control characters."""
    return _ACTS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _code(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def protect_logs() -> None:
    """Let all messages that are logged from now on pass through `shown_lines`."""
    if not isinstance(logging.getLogRecordFactory(), _ProtectedRecords):
        logging.setLogRecordFactory(_ProtectedRecords(logging.getLogRecordFactory()))


@dataclass(frozen=True)
class _ProtectedRecords:
    make: Callable[..., logging.LogRecord]

    def __call__(self, *given: Any, **named: Any) -> logging.LogRecord:
        record = self.make(*given, **named)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the message: logging says where
            return record
        if _ACTS.search(message):
            record.msg, record.args = shown_lines(message), ()
        return record


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
        document_id, title = shown(document_id), shown(" ".join(title.split()))
        if title in ("", document_id):
            return before + self.bold(document_id)
        room = max(self.width - len(before) - len(document_id) - len("  []"), SHORTEST_TITLE)
        short = title if len(title) <= room else f"{title[: room - 1]}…"
        return f"{before}{self.bold(short)}  {self.dim(f'[{document_id}]')}"
