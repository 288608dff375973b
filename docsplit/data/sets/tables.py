"""Read files with a fixed number of fields in each line, as judgments and pairs of papers are published."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

from docsplit.data.readers.files import DAMAGED, File

logger = logging.getLogger(__name__)


def read_fields(file: Path, count: int, separator: str | None) -> Iterator[list[str]]:
    """Split each line of a file, which may be compressed, that is not empty into its fields; there is no quoting.

    A carriage return within a field ends no line. Bytes that are no UTF-8 are replaced, with a warning.

    Args:
        separator: None for white space.

    Raises:
        ValueError: for a line with another number of fields, or a damaged file.
    """
    number = replaced = 0
    try:
        with File(file, str(file)).open() as content:
            lines = io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace", newline="\n")
            for number, line in enumerate(lines, start=1):
                replaced += "\N{REPLACEMENT CHARACTER}" in line
                fields = line.rstrip("\r\n").split(separator)
                if not line.strip():
                    continue
                if len(fields) != count:
                    raise ValueError(
                        f"{file}, line {number} has {len(fields)} fields, expected {count}: {line[:80].rstrip()!r}."
                    )
                yield fields
    except DAMAGED as error:
        raise ValueError(f"{file} is damaged after line {number}: {' '.join(str(error).split())}") from error
    if replaced:
        logger.warning(f"{replaced:,} lines of {file} are no UTF-8: \N{REPLACEMENT CHARACTER} stands for their bytes.")
