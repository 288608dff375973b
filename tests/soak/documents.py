"""Documents that others wrote, damaged at random."""

import logging
from collections.abc import Iterator
from pathlib import Path

from tests.data.readers.fuzzed_documents import READERS, failure_of, fuzzed_documents
from tests.soak.engine import BrokenPromise, Case


def fuzzed_files(count: int) -> Iterator[Case]:
    """Read each fuzzed document in each way in which documents are read."""
    logging.disable(logging.ERROR)
    for number, fuzzed in enumerate(fuzzed_documents(count, seed=11)):
        yield Case(f"{number} {' '.join(fuzzed.how)}", lambda folder, fuzzed=fuzzed: _read(fuzzed, folder))


def _read(fuzzed: object, folder: Path) -> str:
    path = folder / fuzzed.name  # type: ignore[attr-defined]
    path.write_bytes(fuzzed.content)  # type: ignore[attr-defined]
    for reader in READERS:
        if failure := failure_of(reader, path):
            raise BrokenPromise(f"as {reader}: {failure}")
    return "read, counted or one line"
