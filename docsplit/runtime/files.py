"""Files that are whole or not there, where this project keeps what it built once, and the hashes that name it.

Only the standard library is imported at the top: the modeling files, which stand lowest, use this too.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Protocol

PACKAGES = (
    *("torch", "transformers", "sentence-transformers", "datasets", "evaluate", "scikit-learn", "numpy", "scipy"),
    *("accelerate", "setfit", "bm25s", "spacy"),
)
PARTIAL = ".partial"  # the end of the name of a file that a kill may have left
ROOT = Path(__file__).parents[2]  # of a clone; site-packages where the package is installed


class Digest(Protocol):
    """What `hashlib` gives."""

    def update(self, data: bytes, /) -> None:
        """Go on with these bytes."""


def cache_directory() -> Path:
    """Beside the caches of `datasets` (HF_HOME, HF_DATASETS_CACHE)."""
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "docsplit"


def build_once(directory: Path, build: Callable[[Path], object]) -> Path:
    """Fill a directory if it does not exist; a kill leaves nothing half-written, and of two builders one wins."""
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
        try:
            build(temporary)
            temporary.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill another name first, so that a reader, a kill or a full disk never leaves half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; what UTF-8 cannot hold (a lone surrogate) becomes a question mark."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="replace"))


def add_texts(digest: Digest, texts: Iterable[str]) -> None:
    """Add texts to a hash, each with its length, so that no two lists of texts add the same bytes."""
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(f"{len(encoded)};".encode() + encoded)


def hash_of_code(*names: str) -> str:
    """A hash of all Python files of these folders and files of the project, `docsplit/modeling` for example.

    The key of a cache holds it: whatever changes in what makes an entry, a stale entry is not found. Whole folders
    count, for a move of code from one file to another must not serve what an older state of it made.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name in names:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(ROOT).as_posix()} {file.stat().st_size};".encode() + file.read_bytes())
    return digest.hexdigest()


def commit_of_code() -> str | None:
    """Of the code, marked if it has changed since; None where it is no git checkout.

    An installation may lie within a checkout, but of another project: only one that starts at `ROOT` counts.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str | None]:
    """Python and the libraries that numbers can depend on; None for those that are not installed."""
    found: dict[str, str | None] = {"python": python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
