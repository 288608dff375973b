"""Damage to files on disk, drawn from a seed: what a disk, a kill, a copy or an editor may do."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

ODD_JSON = (
    *("", "[]", "null", "{}", '"text"', "nonsense", '{"files": {}}', '{"files": 1}', '{"written": 1.0, "files": []}'),
    *('{"written": 1e400, "files": {}}', '{"written": 1.0, "files": {"a": {"size": 1e400, "sha256": ""}}}'),
    *('{"written": 1.0, "files": {"a\\u0000": {"size": 1, "sha256": ""}}}', "[" * 100_000, '{"a": ' * 100_000),
    *('{"written": 1.0, "files": {"\\ud800": {"size": 1, "sha256": ""}}}', '{"a": ' + "9" * 5000 + "}"),
)


def flip(content: bytes, rng: random.Random) -> bytes:
    """Change one bit."""
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, rng: random.Random) -> bytes:
    """Leave out the end."""
    return content[: rng.randrange(len(content))]


def overwrite(content: bytes, rng: random.Random) -> bytes:
    """Put other bytes in the place of some: a block of zeros or of noise, as a file system leaves it."""
    start = rng.randrange(len(content))
    block = rng.choice([bytes, rng.randbytes])(min(rng.randint(1, 4096), len(content) - start))
    return content[:start] + block + content[start + len(block) :]


def append(content: bytes, rng: random.Random) -> bytes:
    """Add bytes after the end."""
    return content + rng.randbytes(rng.randint(1, 100))


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flip, flip, flip, cut, overwrite, append)


def mutate(file: Path, seed: int) -> str:
    """Damage a file, and say how: its bytes change, it vanishes, a folder is in its place, or it holds odd JSON."""
    rng, before = random.Random(seed), file.read_bytes()
    kind = rng.random()
    if kind < 0.05:
        file.unlink()
        return f"{file.name} removed"
    if kind < 0.1:
        file.unlink()
        file.mkdir()
        return f"{file.name} is a folder"
    if kind < 0.4 and file.suffix == ".json":
        text = rng.choice(ODD_JSON)
        file.write_text(text)
        return f"{file.name} holds {text[:60]}"
    after = before
    while after == before:
        change = append if not before else rng.choice(CHANGES)
        after = change(before, rng)
    file.write_bytes(after)
    return f"{file.name}: {change.__name__}"


def mutated_copy(folder: Path, copy: Path, seed: int, name: str | None = None) -> str:
    """Copy a folder and damage one file of the copy: the one of this name, else any."""
    shutil.copytree(folder, copy)
    files = sorted(path for path in copy.rglob(name or "*") if path.is_file())
    return mutate(random.Random(seed).choice(files), seed)
