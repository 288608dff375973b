"""Read files with a fixed number of fields in each line, as judgments and pairs of papers are published."""

import logging
from collections.abc import Iterator
from pathlib import Path

from docsplit.data.readers.files import DAMAGED, File, lines_of

logger = logging.getLogger(__name__)


def read_fields(file: Path, count: int, separator: str | None) -> Iterator[list[str]]:
    """Split each line of a file, which may be compressed, that is not empty into its fields; there is no quoting.

    A carriage return within a field ends no line. The encoding is detected; bytes that it does not have are replaced,
    with a warning.

    Args:
        separator: None for white space.

    Raises:
        ValueError: for a line with another number of fields, or a damaged file.
    """
    opened, number, mended = File(file, str(file)), 0, 0
    try:
        encoding = opened.encoding()
        if encoding.is_detected:
            logger.warning(f"{file} is no UTF-8: read as {encoding.name}.")
        with opened.open() as content:
            for line in lines_of(content, encoding, newline="\n"):
                number, mended = line.number, mended + line.is_mended
                fields = line.text.rstrip("\r\n").split(separator)
                if not line.text.strip():
                    continue
                if len(fields) != count:
                    raise ValueError(
                        f"{file}, line {number} has {len(fields)} fields, expected {count}: "
                        f"{line.text[:80].rstrip()!r}."
                    )
                yield fields
    except DAMAGED as error:
        raise ValueError(f"{file} is damaged after line {number}: {' '.join(str(error).split())}") from error
    if mended:
        mark = "\N{REPLACEMENT CHARACTER}"
        logger.warning(f"{mended:,} lines of {file} have bytes that are no {encoding.name}: {mark} stands for them.")
