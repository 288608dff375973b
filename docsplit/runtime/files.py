"""Files: written whole or not at all, recorded with size and checksum, found in a cache by what they depend on.

Only the standard library is imported at the top, since the modeling files use this module too.
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
import stat
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from datasets import Dataset

PARTIAL = ".partial"  # ends the name of a file that a kill may leave behind
# How safetensors and tokenizers, PyTorch and NumPy say that a disk is full or fails: not by an OSError with a number.
FAILED_WRITE = re.compile(
    r"os error (5|27|28|30|122)\)|PytorchStreamWriter|unexpected pos|iostream error|requested and \d+ written"
)
FILE_SUFFIXES = (  # of names that are files, never models or data sets of the Hub
    *(".json", ".jsonl", ".csv", ".tsv", ".xlsx", ".parquet", ".arrow", ".txt", ".md", ".html"),
    *(".gz", ".bz2", ".xz", ".zst", ".zip", ".bin", ".pt", ".safetensors", ".yaml", ".yml"),
)
SEAL = "files.json"  # records the files of a folder, unless it is named otherwise
CHECKSUM = "checksum"
READ_WHEN_OPENED = 512 * 2**20  # bytes whose checksums are computed whenever they are opened: some 0.1 s
ROOT = Path(__file__).parents[2]  # of a clone; site-packages where the package is installed

JsonObject = dict[str, Any]  # an object of a JSON file, whose names the file decides
logger = logging.getLogger(__name__)


# --- Writing ---


def why_not_written(error: BaseException) -> str | None:
    """Say why a write failed, and the remedy, if an error of any library means that a disk is full or fails."""
    found = FAILED_WRITE.search(str(error))
    number = (error.errno if isinstance(error, OSError) else None) or int((found and found[1]) or 0)
    if errno.errorcode.get(number) in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS"):
        reason = os.strerror(number)
    elif found:
        reason = "the disk took only a part of it"
    else:
        return None
    return f"{reason}. Make room there, or choose another disk, and give the command again"


@contextlib.contextmanager
def name_failed_writes(path: Path) -> Iterator[None]:
    """Make the error of a write that fails, whichever library's it is, an OSError of one line that names the file.

    Args:
        path: of the file, or of the folder that is written into, for errors that do not know their file.
    """
    try:
        yield
    except Exception as error:
        if (reason := why_not_written(error)) is None:  # another error, or one that names its file already
            raise
        name = getattr(error, "filename", None) or path
        place = path if str(name).endswith(PARTIAL) else name
        raise OSError(f"{place} could not be written: {reason}.") from error


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name first, so that a reader, a kill or a full disk never leaves half of it.

    It is on the disk when this returns: a power cut leaves the old file or the new one. Its mode is that of the umask,
    whichever `write` gives it: safetensors writes for the user alone.

    Raises:
        OSError: naming the file, if the disk is full or fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with name_failed_writes(path):
            temporary.unlink(missing_ok=True)  # a link to another file may lie in a folder of a stranger
            temporary.touch()
            mode = temporary.stat().st_mode
            write(temporary)
            temporary.chmod(mode)
            flush(temporary)
            os.replace(temporary, path)
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; a lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="replace"))


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
        for name in (*files, "."):
            flush(Path(place) / name)


def move_aside(path: Path) -> Path:
    """Rename what is at a path, so that something else can be written there, and return its new path."""
    names = (path.with_name(f"{path.name}.kept{number or ''}") for number in range(10**6))
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder, and those above it below `top`, as far as they are empty."""
    with contextlib.suppress(OSError):
        while folder != top:
            folder.rmdir()
            folder = folder.parent


# --- Names and hashes ---


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
    is_path = text.startswith((".", "~", "/", "outputs/")) or text.lower().endswith(("/", *FILE_SUFFIXES))
    if (is_path or "/" in rest or (slash and Path(first).is_dir())) and not Path(name).exists():
        raise ValueError(f"There is no {name}: name {expected}.")


def add_texts(digest: Any, texts: Iterable[str]) -> None:
    """Add texts to a hash, each with its length, so that no two lists of texts add the same bytes."""
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(f"{len(encoded)};".encode() + encoded)


def canonical_json(value: Any, **options: Any) -> bytes:
    """Write a value as JSON for a hash: its names are sorted, whatever order they were set in.

    Args:
        options: of `json.dumps`.
    """
    try:
        return json.dumps(value, sort_keys=True, **options).encode()
    except TypeError:  # names of several types, which JSON writes as texts
        return json.dumps(json.loads(json.dumps(value, **options)), sort_keys=True).encode()


def fingerprint(*facts: Any, texts: Iterable[str] = ()) -> str:
    """Hash values that JSON can hold, and texts: 96 bits, hexadecimal."""
    digest = hashlib.blake2b(canonical_json(facts), digest_size=12)
    add_texts(digest, texts)
    return digest.hexdigest()


def digest_of_arrays(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> str:
    """Hash numpy arrays with their names, types and shapes, and what a file of them says besides."""
    digest = hashlib.blake2b(canonical_json(metadata or {}), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape};".encode())
        digest.update(array.reshape(-1).view("uint8"))
    return digest.hexdigest()


def hash_of_code(*names: str) -> str:
    """Hash all Python files of these folders and files of the project, `docsplit/modeling` for example.

    It goes into the keys of caches: after a change of the code that makes an entry, stale entries are not found. Whole
    folders count, so that code may move between files.
    """
    digest = hashlib.blake2b(digest_size=12)
    for path in (ROOT / name for name in names):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(ROOT).as_posix()} {file.stat().st_size};".encode() + file.read_bytes())
    return digest.hexdigest()


def commit_of_code() -> str | None:
    """Find the commit of the code, marked if files have changed since; None outside a git checkout.

    An installation may lie within the checkout of another project: only a checkout that starts at `ROOT` counts.
    """
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if (ROOT / ".git").exists():
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def versions() -> dict[str, str | None]:
    """List the versions of Python and of the libraries that numbers can depend on; None where one is missing."""
    installed: dict[str, str | None] = {"python": python_version()}
    for package in (
        *("torch", "transformers", "sentence-transformers", "datasets", "evaluate", "scikit-learn", "numpy", "scipy"),
        *("accelerate", "setfit", "bm25s", "spacy"),
    ):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return installed


# --- Reading JSON, and files that may be damaged ---


class Damaged(ValueError):
    """A file on disk is not what was written. The message is one line, which names the file."""


@dataclass(frozen=True)
class FileRecord:
    """What is known of a file that was written: its size in bytes, and its digest by XXH3 (128 bits, hexadecimal)."""

    size: int
    xxh3: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """Read a file once and record it."""
        import xxhash

        digest, size = xxhash.xxh3_128(), 0
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
                size += len(block)
        return cls(size, digest.hexdigest())

    def why_damaged(self, directory: Path, name: str, is_read: bool = True) -> str | None:
        """Say how a file of a folder differs from this record, in size or also in content; None if it does not."""
        try:
            size = (directory / name).stat().st_size
            if size != self.size:
                return f"{name} has {size:,} bytes, not {self.size:,}"
            if is_read and FileRecord.of(directory / name) != self:
                return f"{name} has changed since it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
            return f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        return None


def read_json(path: Path) -> JsonObject:
    """Read a JSON object that may be damaged; raises as `read_any_json` does, and for other JSON."""
    content = read_any_json(path)
    if not isinstance(content, dict):
        raise Damaged(f"{path} is damaged: it holds no JSON object.")
    return content


def read_any_json(path: Path) -> Any:
    """Read a JSON file that may be damaged, whatever it holds.

    Raises:
        FileNotFoundError: if there is no such file.
        Damaged: if it cannot be read or holds no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: it holds no JSON ({str(error).partition(chr(10))[0]}).") from error


def write_sealed(path: Path, content: JsonObject) -> None:
    """Write a JSON object whole or not at all, with a checksum of itself; raises a ValueError for NaN and infinity."""
    write_text(path, json.dumps(content | {CHECKSUM: checksum(content)}, indent=1, allow_nan=False) + "\n")


def read_sealed(path: Path) -> JsonObject:
    """Read what `write_sealed` wrote, without its checksum.

    Raises:
        FileNotFoundError: if there is no such file.
        Damaged: if a value in it has changed.
    """
    content = read_json(path)
    stated = content.pop(CHECKSUM, None)
    with contextlib.suppress(ValueError):  # of NaN and infinity, which nobody seals
        if stated == checksum(content):
            return content
    raise Damaged(f"{path} is damaged: it does not fit its {CHECKSUM}.")


def checksum(content: JsonObject) -> str:
    """Hash the values of a JSON object: neither spaces nor the order of names count."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(canonical_json(content, allow_nan=False))


def seal_folder(directory: Path, name: str = SEAL, **about: Any) -> None:
    """Mark a folder as whole, once it is on the disk: record all its files, in a sealed file of this name in it.

    When this returns the mark is on the disk too. Files half-written at a kill go. Whoever may read what this process
    writes may read them all: safetensors, and `tempfile` where it makes the folder, write for the user alone.

    Args:
        about: more values to write beside `files`.
    """
    for file in directory.rglob(f".*{PARTIAL}"):
        file.unlink()
    flush_folder(directory)
    files = [file for file in sorted(directory.rglob("*")) if file.is_file() and file != directory / name]
    records = {file.relative_to(directory).as_posix(): vars(FileRecord.of(file)) for file in files}
    write_sealed(directory / name, about | {"files": records})
    mode = (directory / name).stat().st_mode & 0o666  # by the umask
    for file in files:
        file.chmod(mode)
    directory.chmod(directory.stat().st_mode | mode | (mode & 0o444) >> 2)


def why_folder_damaged(directory: Path, name: str = SEAL, most_bytes: float = math.inf) -> str | None:
    """Say how a folder differs from what `seal_folder` recorded; None if it does not. More files do not count.

    Sizes are always compared. Contents are read if all files together have at most `most_bytes`.
    """
    try:
        sealed = read_sealed(directory / name).get("files")
        records = checked(sealed, dict[str, FileRecord], f"{directory / name} is damaged: files")
    except FileNotFoundError:
        return f"{name} is missing"
    except ValueError as error:
        return str(error).removesuffix(".")
    is_read = sum(record.size for record in records.values()) <= most_bytes
    reasons = (record.why_damaged(directory, file, is_read) for file, record in records.items())
    return next(filter(None, reasons), None)


def checked(value: Any, kind: Any, where: str) -> Any:
    """Return a JSON value if it is of this type; an object becomes the dataclass that `kind` is.

    Names that a dataclass does not have are left out.

    Args:
        where: the file and the key, for errors.

    Raises:
        ValueError: naming them, if it is of another type, or a dataclass needs a name that it lacks.
    """
    origin, args = get_origin(kind) or kind, get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return value
    if origin in (Union, types.UnionType):
        for choice in args:
            with contextlib.suppress(ValueError):
                return checked(value, choice, where)
    elif origin is Literal:
        if value in args:
            return value
    elif isinstance(value, dict) and isinstance(kind, type) and is_dataclass(kind):
        types_of = get_type_hints(kind)
        known = [field for field in fields(kind) if field.init]
        needed = [field.name for field in known if field.default is field.default_factory is MISSING]
        names = [field.name for field in known if field.name in value]
        given = {name: checked(value[name], types_of[name], f"{where}: {name}") for name in names}
        if missing := [name for name in needed if name not in given]:
            raise ValueError(f"{where} lacks {', '.join(missing)}.")
        return kind(**given)
    elif isinstance(value, dict) and issubclass(origin, Mapping):
        key, item = args or (str, Any)  # JSON has text for a number
        return {key(name): checked(each, item, f"{where}: {name}") for name, each in value.items()}
    elif isinstance(value, list | tuple) and issubclass(origin, Sequence) and origin is not str:
        item = args[0] if args else Any
        return [checked(each, item, f"{where}[{number}]") for number, each in enumerate(value)]
    elif type(value) is origin or (origin is float and type(value) is int):
        return value
    raise ValueError(f"{where} is {repr(value)[:60]}, expected {kind if args else kind.__name__}.")


# --- The cache ---


def cache_directory() -> Path:
    """Name the folder of this project beside the caches of `datasets` (HF_HOME, HF_DATASETS_CACHE)."""
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "docsplit"


def make_shared(folder: Path) -> None:
    """Make a folder of the cache, and those above it, for all who may write where it is made: they share the cache."""
    if not folder.exists():
        make_shared(folder.parent)
        with contextlib.suppress(FileExistsError):  # another process has made it
            folder.mkdir()
            share_as_above(folder)


def share_as_above(folder: Path) -> None:
    """Let a group, or all, write into a folder if they may write into the one above, unless that is as /tmp is."""
    above = folder.parent.stat().st_mode
    if not above & stat.S_ISVTX:
        shared = sum(above & who for who in (stat.S_IRWXG, stat.S_IRWXO) if above & who & 0o022)
        folder.chmod(folder.stat().st_mode | shared)


def is_cached(directory: Path) -> bool:
    """Whether `build_once` has filled a folder that is still sound. One that is damaged is removed, with a warning."""
    if not directory.exists():
        return False
    if (reason := why_folder_damaged(directory, most_bytes=READ_WHEN_OPENED)) is None:
        return True
    logger.warning(f"The cache {directory} is damaged ({reason}): it is made again.")
    with (
        tempfile.TemporaryDirectory(prefix=f"{directory.name}.", dir=directory.parent) as damaged,
        contextlib.suppress(FileNotFoundError),  # another process has done it
    ):
        directory.rename(Path(damaged) / "damaged")
    return False


def build_once(directory: Path, build: Callable[[Path], object]) -> Path:
    """Fill a folder unless it is there: a kill leaves nothing half-written, and one of two builders wins.

    Its files are recorded, and a folder that no longer fits its record is built again.

    Raises:
        OSError: naming the folder, if its disk is full or fails.
    """
    if not is_cached(directory):
        make_shared(directory.parent)
        temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
        try:
            with name_failed_writes(directory):
                build(temporary)
                seal_folder(temporary)
                share_as_above(temporary)
                temporary.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory


def map_once(dataset: "Dataset", function: Callable[..., Any], key: str, **options: Any) -> "Dataset":
    """Map the rows of a data set into a folder of the cache, once, or in memory if that is where they are.

    Args:
        key: a hash of all that the new rows depend on, and their fingerprint.
        options: of `datasets.Dataset.map`, whose own cache is never verified.
    """
    if not dataset.cache_files:
        return dataset.map(function, new_fingerprint=key, **options)

    def build(directory: Path) -> None:
        file = str(directory / "rows.arrow")
        dataset.map(function, new_fingerprint=key, cache_file_name=file, load_from_cache_file=False, **options)

    return rows_in(build_once(cache_directory() / f"rows-{key}", build), key)


def rows_in(directory: Path, key: str) -> "Dataset":
    """Open the Arrow files of a folder of `build_once` as one data set, with a fingerprint.

    They are those that its seal records: `map`, `shuffle` and others of a Dataset write their results beside them.
    """
    from datasets import Dataset, concatenate_datasets

    names = sorted(name for name in read_sealed(directory / SEAL)["files"] if name.endswith(".arrow"))
    rows = concatenate_datasets([Dataset.from_file(str(directory / name)) for name in names])
    rows._fingerprint = key
    return rows
