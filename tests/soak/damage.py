"""Flipped, cut, longer and missing files: what was written is used, or one line names the file."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docsplit.index.changes import build
from docsplit.release.records import MANIFEST, seal, why_incomplete
from docsplit.runtime.files import read_json
from docsplit.training import checkpoints
from tests.conftest import write_checkpoint
from tests.index import mutations
from tests.index.conftest import ENCODER, WORDS, answers
from tests.mutations import mutated_copy
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
        return mutations.trial(directory, seed, _all_answers, wanted)
    except AssertionError as error:
        raise BrokenPromise(str(error)) from error


def damaged_checkpoints(count: int) -> Iterator[Case]:
    """Damage one file of the newest of two checkpoints a case."""
    with tempfile.TemporaryDirectory(prefix="docsplit-soak-") as folder:
        whole = Path(folder) / "checkpoint-2"
        write_checkpoint(whole)
        seal(whole)
        for seed in range(count):
            yield Case(f"checkpoint {seed}", lambda scratch, seed=seed: _attack_checkpoint(whole, scratch, seed))


def _attack_checkpoint(whole: Path, scratch: Path, seed: int) -> str:
    write_checkpoint(scratch / "checkpoint-1")
    seal(scratch / "checkpoint-1")
    how = mutated_copy(whole, scratch / "checkpoint-2", seed, MANIFEST if seed % 3 == 0 else None)
    reason = why_incomplete(scratch / "checkpoint-2")
    if reason is None:
        if read_json(scratch / "checkpoint-2" / MANIFEST) != read_json(whole / MANIFEST):
            raise BrokenPromise(f"{how}: it counts as whole")
        return "nothing of it changed"
    if "\n" in reason:
        raise BrokenPromise(f"{how}: not one line: {reason}")
    if checkpoints.newest_complete(scratch) != scratch / "checkpoint-1":
        raise BrokenPromise(f"{how}: the older one is not taken")
    try:
        checkpoints.to_resume_from(scratch, str(scratch / "checkpoint-2"), overwrite=False)
    except ValueError as error:
        if "\n" in str(error):
            raise BrokenPromise(f"{how}: not one line: {error}") from error
        return "passed over, and refused in one line"
    raise BrokenPromise(f"{how}: it is resumed from")
