"""Write files whole or not at all, and hash what keys a cache.

Only the standard library is imported at the top, since the modeling files use this module too.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any, Protocol

PACKAGES = (
    *("torch", "transformers", "sentence-transformers", "datasets", "evaluate", "scikit-learn", "numpy", "scipy"),
    *("accelerate", "setfit", "bm25s", "spacy"),
)
REMEDIES = {  # of errors of a disk, by their numbers
    **dict.fromkeys((errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)), "Make room there"),
    errno.EFBIG: "Choose a disk that takes larger files",
    errno.EIO: "See to that disk, or choose another",
    errno.EROFS: "Make that disk writable, or choose another",
}
RUST_ERROR = re.compile(r"\(os error (\d+)\)")  # of safetensors and tokenizers
PYTORCH_ERROR = re.compile(r"PytorchStreamWriter|unexpected pos \d+ vs \d+|iostream error")
NUMPY_ERROR = re.compile(r"\d+ requested and \d+ written")
PARTIAL = ".partial"  # ends the name of a file that a kill may leave behind
FILE_SUFFIXES = (  # of names that are files, never models or data sets of the Hub
    *(".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".md", ".html"),
    *(".gz", ".bz2", ".xz", ".zst", ".zip", ".bin", ".pt", ".safetensors", ".yaml", ".yml"),
)
ROOT = Path(__file__).parents[2]  # of a clone; site-packages where the package is installed
JsonObject = dict[str, Any]  # an object of a JSON file, whose names the file decides


class Digest(Protocol):
    """A hash of `hashlib`."""

    def update(self, data: Any, /) -> None:
        """Add these bytes."""


class NotWritten(OSError):
    """A file could not be written. The message is one line, which names the file or its folder, and the remedy."""


def why_not_written(error: BaseException) -> str | None:
    """Say in one line why a write failed, and what helps, if that is what an error means; None for any other.

    safetensors, tokenizers and PyTorch have errors of their own for it, which are no OSErrors.
    """
    number = error.errno if isinstance(error, OSError) else None
    if not isinstance(error, OSError) and (of_rust := RUST_ERROR.search(str(error))):
        number = int(of_rust[1])
    if number is not None and number in REMEDIES:
        return f"{os.strerror(number)}. {REMEDIES[number]}, and give the command again"
    of_pytorch = isinstance(error, RuntimeError) and PYTORCH_ERROR.search(str(error))
    if of_pytorch or (isinstance(error, OSError) and NUMPY_ERROR.search(str(error))):
        return "the disk took only a part of it. Make room there, if it is full, and give the command again"
    return None


@contextlib.contextmanager
def name_failed_writes(path: Path) -> Iterator[None]:
    """Make the error of a write that fails, whichever library's it is, name what was written.

    Args:
        path: of the file, or of the folder that is written into, for errors that do not know their file.

    Raises:
        NotWritten: in place of that error.
    """
    try:
        yield
    except NotWritten:  # of a part, which is named
        raise
    except Exception as error:
        if (reason := why_not_written(error)) is None:
            raise
        name = getattr(error, "filename", None)
        place = path if name is None or str(name).endswith(PARTIAL) else Path(os.fsdecode(name))
        raise NotWritten(f"{place} could not be written: {reason}{_free_space(place)}.") from error


def _free_space(path: Path) -> str:
    """Say how much room a disk has; a quota may leave less."""
    with contextlib.suppress(OSError):
        place = next(place for place in (path, *path.absolute().parents) if place.exists())
        return f" ({shutil.disk_usage(place).free / 1e6:,.1f} MB are free)"
    return ""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name first, so that a reader, a kill or a full disk never leaves half of it.

    It is on the disk when this returns: a power cut leaves the old file or the new one.

    Raises:
        NotWritten: if the disk is full or fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with name_failed_writes(path):
            write(temporary)
            flush(temporary)
            os.replace(temporary, path)
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk (fsync); Windows does so for files alone."""
    if os.name == "nt" and path.is_dir():
        return
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def flush_folder(directory: Path) -> None:
    """Wait until all files of a folder and of those in it, and then their names, are on the disk."""
    for place, _folders, files in os.walk(directory, topdown=False):
        for name in files:
            flush(Path(place) / name)
        flush(Path(place))


def move_aside(path: Path) -> Path:
    """Rename what is at a path, so that something else can be written there, and return its new path."""
    names = (path.with_name(f"{path.name}.kept{number or ''}") for number in range(10**6))
    aside = next(name for name in names if not os.path.lexists(name))
    path.rename(aside)
    return aside


def remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder, and those above it below `top`, as far as they are empty."""
    with contextlib.suppress(OSError):
        while folder != top:
            folder.rmdir()
            folder = folder.parent


def flush_files(files: Iterable[Path]) -> None:
    """Wait until files, and then their names, are on the disk."""
    folders = set()
    for file in files:
        flush(file)
        folders.add(file.parent)
    for folder in folders:
        flush(folder)


def refuse_missing_path(name: str | Path, expected: str) -> None:
    """Refuse a name that can only be a path and leads nowhere, so that the Hub is not asked for it.

    A name is a path if it starts with `.`, `~`, `/` or `outputs/`, ends with a slash or the suffix of a file, has more
    than one slash, or has a folder that exists here before its slash. `user/name` and `name:configuration` are not.

    Args:
        expected: what the name should be, for the error.

    Raises:
        ValueError: naming the path.
    """
    text = str(name).partition(":")[0]  # without the configuration of a data set
    first, slash, rest = text.partition("/")
    is_path = (
        text.startswith((".", "~", "/", "outputs/"))
        or text.endswith("/")
        or text.lower().endswith(FILE_SUFFIXES)
        or "/" in rest
        or (bool(slash) and Path(first).is_dir())
    )
    if is_path and not Path(name).exists():
        raise ValueError(f"There is no {name}: name {expected}.")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; a lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="replace"))


def add_texts(digest: Digest, texts: Iterable[str]) -> None:
    """Add texts to a hash, each with its length, so that no two lists of texts add the same bytes."""
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(f"{len(encoded)};".encode() + encoded)


def add_arrays(digest: Digest, arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Add numpy arrays with their names, types and shapes to a hash, and what a file of them says besides."""
    digest.update(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(array.reshape(-1).view("uint8"))


def hash_of_code(*names: str) -> str:
    """Hash all Python files of these folders and files of the project, `docsplit/modeling` for example.

    It goes into the keys of caches: after a change of the code that makes an entry, stale entries are not found. Whole
    folders count, so that code may move between files.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name in names:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(ROOT).as_posix()} {file.stat().st_size};".encode() + file.read_bytes())
    return digest.hexdigest()


def commit_of_code() -> str | None:
    """Find the commit of the code, marked if files have changed since; None outside a git checkout.

    An installation may lie within the checkout of another project: only a checkout that starts at `ROOT` counts.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str | None]:
    """List the versions of Python and of the libraries that numbers can depend on; None where one is missing."""
    installed: dict[str, str | None] = {"python": python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return installed
