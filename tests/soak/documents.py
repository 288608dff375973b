"""Documents that others wrote, damaged at random."""

import logging
from collections.abc import Iterator
from pathlib import Path

from tests.data.readers.fuzzed_documents import READERS, failure_of, fuzzed_documents
from tests.soak.engine import BrokenPromise, Case


def fuzzed_files(count: int) -> Iterator[Case]:
    """Read each fuzzed document in each way in which documents are read."""
    logging.disable(logging.ERROR)
    for name, content in fuzzed_documents(count, seed=11):
        yield Case(name, lambda folder, name=name, content=content: _read(folder / name, content))


def _read(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    for reader in READERS:
        if failure := failure_of(reader, path):
            raise BrokenPromise(f"as {reader}: {failure}")
    return "read, counted or one line"
