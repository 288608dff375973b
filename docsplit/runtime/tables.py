"""Tables that a script writes for spreadsheets: CSV, whole or not at all."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docsplit.runtime.files import write_whole


def prepare_table(path: Path) -> None:
    """Make the folder of a new table, before any long work.

    Raises:
        ValueError: if there is such a file already.
    """
    if path.exists():
        raise ValueError(f"{path} exists: name another --output_file, or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)


def cell_of(value: Any) -> str:
    """Write a value as a cell: nothing for None, and what a list has with `; ` between."""
    return "; ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with the same columns; of no rows the header is `id`. Lone surrogates become question marks.

    Raises:
        OSError: naming the file, if it cannot be written.
    """

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", errors="replace", newline="") as file:
            table = csv.writer(file)
            table.writerow(rows[0] if rows else ["id"])
            table.writerows(map(cell_of, row.values()) for row in rows)

    write_whole(path, write)
