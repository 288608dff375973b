"""One escape for what others wrote, used where Markdown is written.

Names of folders, labels, licences and options are text. `inline` shows text as it is and `code` in the letters of a
program; what is `Markdown` already stays. Tables escape every cell that is not.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from urllib.parse import quote

_SIGNS = re.compile(
    r"""(?P<sign>[\\`*|\#~])             # code, emphasis, cells, headings
      | (?P<edge>(?<![^\W_])_|_(?![^\W_]))  # emphasis; not within a word, as in max_seq_length
      | (?P<bracket>\[(?=[\^\]!])|\](?=[(\[:]))  # links, images, footnotes and definitions
    """,
    re.VERBOSE,
)
_START = re.compile(r"(?P<sign>[-+=>])|(?P<digits>\d{1,9})(?=[.)](?:\s|$))")  # of lists, rules and quotations
_ENTITY = re.compile(r"&(?=#?\w+;)")
_HIDDEN = {"Cc", "Cf", "Cs"}  # kinds of letters: control, format (right to left), half of a pair
_JOINERS = {"\u00ad", "\u200c", "\u200d"}  # which words of some languages need


class Markdown(str):
    """Text that is Markdown already: `inline` leaves it as it is."""

    __slots__ = ()


def one_line(text: object) -> str:
    """Return text as one line; letters that no one sees, such as escape codes of a terminal, become a visible one."""
    words = " ".join(str(text).split())
    if words.isascii() and words.isprintable():
        return words
    return "".join(
        "\ufffd" if unicodedata.category(letter) in _HIDDEN and letter not in _JOINERS else letter for letter in words
    )


def inline(text: object) -> Markdown:
    """Return text that Markdown and HTML show as it is, in one line."""
    if isinstance(text, Markdown):
        return text
    escaped = _escaped(text)
    if start := _START.match(escaped):
        escaped = f"{start['digits'] or ''}\\{escaped[len(start['digits'] or '') :]}"
    return Markdown(escaped)


def _escaped(text: object) -> str:
    """Escape text that begins no line."""
    return _ENTITY.sub("&amp;", _SIGNS.sub(r"\\\g<0>", one_line(text))).replace("<", "&lt;")


def code(text: object) -> Markdown:
    """Return text in the letters of a program, in one line."""
    shown = one_line(text)
    if not shown or "\\|" in shown:  # a table would take the backslash for its own
        return inline(shown)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return Markdown(f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}")


def python_literal(text: str) -> str:
    """Return text between quotes, as Python reads it; neither a line nor a span of code ends in it."""
    return json.dumps(one_line(text)).replace("`", "\\u0060")


def bold(text: object) -> Markdown:
    """Return text in bold."""
    return Markdown(f"**{text if isinstance(text, Markdown) else _escaped(text)}**")


def image(caption: object, address: str) -> Markdown:
    """Return a picture, by its address relative to the page."""
    alternative = re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", inline(caption))  # which must be balanced, else it ends
    return Markdown(f"![{alternative}]({quote(address)})")


def bullets(lines: Iterable[object]) -> str:
    """Return a list of lines."""
    return "\n".join(f"- {inline(line)}" for line in lines)


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table whose columns also line up on screen; numbers, after the first column, to the right."""
    lines = [[_cell(cell) for cell in line] for line in (header, *rows)]
    widths = [max(2 if index else 1, *map(len, column)) for index, column in enumerate(zip(*lines))]  # `-:` at least
    rule = ["-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    padded = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in (padded[0], rule, *padded[1:]))


def _cell(content: object) -> str:
    if not isinstance(content, Markdown):
        return _escaped(content)
    return re.sub(r"(?<!\\)\|", r"\\|", content)  # in spans of code
