"""Flipped, cut, longer and missing files: what was written is used, or one line names the file."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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
from tests.soak.kept import KINDS, warnings_of


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


def damaged_caches(count: int) -> Iterator[Case]:
    """Damage one file of a kind of `tests.soak.kept` a case, one kind after another."""
    with ExitStack() as stack:
        folders = (stack.enter_context(tempfile.TemporaryDirectory(prefix="docsplit-soak-")) for _ in KINDS)
        places, wanted = dict(zip(KINDS, map(Path, folders))), {}
        for kind, keep in KINDS.items():
            for _ in ("made", "read"):
                wanted[kind], _ = warnings_of(lambda kind=kind, keep=keep: keep(places[kind], places[kind] / "whole"))
        for seed in range(count):
            kind = list(KINDS)[seed % len(KINDS)]
            yield Case(
                f"{kind} {seed}",
                lambda scratch, kind=kind, seed=seed: _attack_kept(kind, places[kind], wanted[kind], seed, scratch),
            )


def _attack_kept(kind: str, place: Path, wanted: Any, seed: int, scratch: Path) -> str:
    copy = scratch / "copy"
    how = mutated_copy(place / "whole", copy, seed)
    try:
        got, said = warnings_of(lambda: KINDS[kind](place, copy))
    except (ValueError, OSError) as error:
        if "\n" in str(error) or str(copy) not in str(error):
            raise BrokenPromise(f"{how}: not one line that names the file: {error}") from error
        return "one line names the file"
    if got != wanted:
        raise BrokenPromise(f"{how}: other values, {'with a warning' if said else 'and nothing is said'}")
    again, said_again = warnings_of(lambda: KINDS[kind](place, copy))
    if again != wanted or said_again:
        raise BrokenPromise(f"{how}: the next run finds it damaged again: {said_again}")
    return "made again with a warning" if said else "the same values"
