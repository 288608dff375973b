"""Flipped, cut, longer and missing files: what was written is used, or one line names the file."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docsplit.index.changes import build
from tests.index import mutations
from tests.index.conftest import ENCODER, WORDS, answers
from tests.soak.engine import BrokenPromise, Case
from tests.soak.indexes import DOCUMENTS, QUERIES


def damaged_indexes(count: int) -> Iterator[Case]:
    """Damage one file of an index a case."""
    with tempfile.TemporaryDirectory(prefix="docsplit-soak-") as folder:
        build(Path(folder) / "index", DOCUMENTS[:40], ENCODER, WORDS)
        wanted = _all_answers(Path(folder) / "index")
        for seed in range(count):
            yield Case(f"index {seed}", lambda _, seed=seed: _attack(Path(folder) / "index", seed, wanted))


def _all_answers(directory: Path) -> str:
    return json.dumps([answers(directory, QUERIES, method) for method in ("dense", "bm25")])


def _attack(directory: Path, seed: int, wanted: str) -> str:
    try:
        return {"same": "the same answers", "named": "one line"}[
            mutations.trial(directory, seed, _all_answers, wanted)
        ]
    except AssertionError as error:
        raise BrokenPromise(str(error)) from error
