"""Damage a file of an index, and hold what is promised: the same answers, or one line that names the file.

    wanted = answers(directory)
    for seed in range(1000):
        trial(directory, seed, answers, wanted)

A trial flips a bit, or cuts, lengthens or removes a file, and puts it back afterwards. It holds for opening
and querying, for `check`, and for a change, which has to leave every file as it is.
"""

import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docsplit.index.changes import LOCK, delete
from docsplit.index.index import MANIFEST_FILE
from docsplit.index.results import Checked
from tests.mutations import CHANGES, append

NO_INDEX = "There is no index in"  # where the manifest is gone
MOST_MEMORY = 2**26  # of a trial with a small index


def files_of(directory: Path) -> list[Path]:
    """List all files in a folder and the folders in it."""
    return [Path(place) / name for place, _, names in sorted(os.walk(directory)) for name in sorted(names)]


def contents(directory: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files_of(directory)}


def trial(directory: Path, seed: int, answers: Callable[[Path], Any], wanted: Any) -> str:
    """Damage one file of an index, use the index, and put the file back.

    Args:
        directory: of a small index, sound.
        answers: opens an index and returns what it finds, comparable by `==`.
        wanted: what it finds in the sound index.

    Returns: `same` or `named`.

    Raises:
        AssertionError: if the damage changes an answer, is not named, or makes a change lose or alter a file.
    """
    rng = random.Random(seed)
    path = rng.choice(files_of(directory))
    name, mutation = path.relative_to(directory).as_posix(), rng.choice([*CHANGES, None])  # None: the file goes
    content = original = path.read_bytes()
    if mutation is None:
        path.unlink()
    elif content or mutation is append:
        content = mutation(original, rng)
        path.write_bytes(content)
    # What lies behind the segments is a change that was killed
    is_longer = path.suffix == ".bin" and content.startswith(original)
    is_harmless = name == LOCK or (mutation is not None and (content == original or is_longer))
    try:
        outcome = _outcome(directory, name, wanted, answers)
        assert not is_harmless or outcome == "same", "refused, though nothing has changed"
        assert is_harmless or outcome == "named" or name == MANIFEST_FILE, (
            "not noticed"
        )  # spaces in the manifest do not count
    except Exception as error:  # a traceback, too
        raise AssertionError(f"seed {seed}, {getattr(mutation, '__name__', 'remove')} {name}: {error!r}") from error
    finally:
        path.write_bytes(original)
    return outcome


def _outcome(directory: Path, name: str, wanted: Any, answers: Callable[[Path], Any]) -> str:
    tracemalloc.start()
    try:
        error = None
        found = answers(directory)
    except ValueError as refused:
        error = refused
    faults = _faults(directory)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_MEMORY, f"{peak:,} bytes of memory"
    if error is None:
        assert found == wanted, "other answers"
        assert not faults, f"`check` alone refuses it: {faults}"
        return "same"
    for lines in ([str(error)], faults):
        assert not any("\n" in line for line in lines), lines
        assert any(str(directory / name) in line or NO_INDEX in line for line in lines), lines
    before = contents(directory)
    try:
        delete(directory, [])
    except ValueError:
        assert contents(directory) == before, "a change has altered files"
    else:
        raise AssertionError("a change did not refuse the index")
    return "named"


def _faults(directory: Path) -> list[str]:
    try:
        return Checked.of(directory).faults
    except ValueError as error:
        return [str(error)]
