"""Write files whole or not at all, and hash what keys a cache.

Only the standard library is imported at the top, since the modeling files use this module too.
"""

import atexit
import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
import socket
import subprocess
import tempfile
import types
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from platform import python_version
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import psutil
from filelock import FileLock, Timeout

from docsplit.runtime.sharing import from_first, on_all

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
logger = logging.getLogger(__name__)

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


SEAL = "files.json"  # of a folder, unless it is named otherwise
CHECKSUM = "checksum"
READ_WHEN_OPENED = 512 * 2**20  # bytes whose digests are computed whenever they are opened: some 0.1 s


class Damaged(ValueError):
    """A file on disk is not what was written. The message is one line, which names the file."""


@dataclass(frozen=True)
class FileRecord:
    """What is known of a file: its size in bytes, and its digest by XXH3 (128 bits, hexadecimal)."""

    size: int
    xxh3: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """Read a file once and record it."""
        digest, size = cls._new_digest(), 0
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
                size += len(block)
        return cls(size, digest.hexdigest())

    @staticmethod
    def _new_digest() -> Any:
        import xxhash

        return xxhash.xxh3_128()


def read_json(path: Path, finite: bool = False) -> JsonObject:
    """Read a JSON object that may be damaged.

    Args:
        finite: refuse NaN, infinity and numbers that become it, as 1e400 does; a name that is given twice, too.

    Raises:
        FileNotFoundError: if there is no such file.
        Damaged: if it cannot be read or holds no JSON object.
    """
    content = read_any_json(path, finite)
    if not isinstance(content, dict):
        raise Damaged(f"{path} is damaged: it holds no JSON object.")
    return content


def read_any_json(path: Path, finite: bool = False) -> Any:
    """Read a JSON file that may be damaged, whatever it holds; for the rest as `read_json`."""
    strict: dict[str, Any] = {
        "parse_constant": _refuse_constant,
        "parse_float": _finite,
        "object_pairs_hook": _without_duplicates,
    }
    try:
        return json.loads(path.read_text(encoding="utf-8"), **(strict if finite else {}))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: it holds no JSON ({_first_line(error)}).") from error


def write_sealed(path: Path, content: JsonObject) -> None:
    """Write a JSON object whole or not at all, with a checksum of itself.

    Raises:
        ValueError: if a number is not finite.
    """
    write_text(path, json.dumps(content | {CHECKSUM: checksum(content)}, indent=1, allow_nan=False) + "\n")


def read_sealed(path: Path) -> JsonObject:
    """Read what `write_sealed` wrote, without its checksum.

    Raises:
        FileNotFoundError: if there is no such file.
        Damaged: if a value in it has changed.
    """
    content = read_json(path, finite=True)
    if CHECKSUM not in content:
        raise Damaged(f"{path} has no {CHECKSUM}: it was damaged, or written by an earlier version.")
    if content.pop(CHECKSUM) != checksum(content):
        raise Damaged(f"{path} is damaged: it does not fit its {CHECKSUM}.")
    return content


def checksum(content: JsonObject) -> str:
    """Hash the values of a JSON object: neither spaces nor the order of names count."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, allow_nan=False).encode())


def seal_folder(directory: Path, name: str = SEAL, **about: Any) -> str:
    """Record all files in a folder, in a sealed file of this name in it. Files half-written at a kill go.

    Args:
        about: more values to write beside `files`.

    Returns: the checksum, which a manifest may name.
    """
    for file in directory.rglob(f".*{PARTIAL}"):
        file.unlink()
    files = (file for file in sorted(directory.rglob("*")) if file.is_file() and file != directory / name)
    content = about | {"files": records_to_json(directory, files)}
    write_sealed(directory / name, content)
    return checksum(content)


def records_to_json(directory: Path, files: Iterable[Path]) -> JsonObject:
    """Record files, by their names relative to a folder."""
    return {file.relative_to(directory).as_posix(): vars(FileRecord.of(file)) for file in files}


def records_in(content: JsonObject, path: Path) -> dict[str, FileRecord]:
    """Read the records under `files` in the content of a sealed file.

    Args:
        path: of that file, for errors.

    Raises:
        Damaged: if there is none, if one is not as written, or if one leads out of the folder.
    """
    files = content.get("files")
    if not isinstance(files, dict) or not files:
        raise Damaged(f"{path} is damaged: it names no files.")
    records = {}
    for name, record in files.items():
        try:
            size, digest = record["size"], record["xxh3"]
        except (TypeError, KeyError, IndexError) as error:
            raise Damaged(f"{path} is damaged: it does not say size and xxh3 of {name!r}.") from error
        if type(size) is not int or size < 0 or not isinstance(digest, str):
            raise Damaged(f"{path} is damaged: it gives no size and xxh3 of {name!r}.")
        if not name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise Damaged(f"{path} is damaged: it names {name!r}, which is not in its folder.")
        records[name] = FileRecord(size, digest)
    return records


def why_damaged(directory: Path, records: dict[str, FileRecord], most_bytes: float = math.inf) -> str | None:
    """Say which recorded file is missing or has changed; None if all are as they were written.

    Sizes are always compared. Contents are read if all files together have at most `most_bytes`.
    """
    read = sum(record.size for record in records.values()) <= most_bytes
    for name, record in records.items():
        try:
            size = (directory / name).stat().st_size
            if size != record.size:
                return f"{name} has {size:,} bytes, not {record.size:,}"
            if read and type(record).of(directory / name) != record:
                return f"{name} has changed since it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
        except ValueError:  # a lone surrogate, or a NUL
            return f"{name!r} is no name of a file"
    return None


def why_folder_damaged(directory: Path, name: str = SEAL, most_bytes: float = math.inf) -> str | None:
    """Say how a folder differs from what `seal_folder` recorded; None if it does not. More files do not count."""
    try:
        return why_damaged(directory, records_in(read_sealed(directory / name), directory / name), most_bytes)
    except FileNotFoundError:
        return f"{name} is missing"
    except Damaged as error:
        return str(error).removesuffix(".")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(f"{text} is too large")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> JsonObject:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name is given twice")
    return values


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


Record = TypeVar("Record")

SHORT = 60  # letters of a value in an error
EXPECTED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def record_of(kind: type[Record], values: object, where: str) -> Record:
    """Make a dataclass of a JSON object; names that it does not have are left out.

    Args:
        where: the file, for errors.

    Raises:
        ValueError: naming file and key, for a value that is missing or of another type.
    """
    content = checked(values, dict, where)
    hints, given = get_type_hints(kind), {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in content:
            given[each.name] = checked(content[each.name], hints[each.name], f"{where}: {each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{where} has no {each.name}.")
    return kind(**given)


def checked(value: Any, kind: Any, where: str) -> Any:
    """Return a JSON value if it is of this type; an object becomes the dataclass that `kind` is.

    Args:
        where: the file and the key, for errors.

    Raises:
        ValueError: naming them, if it is of another type.
    """
    origin, args = get_origin(kind) or kind, get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return value
    if origin in (Union, types.UnionType):
        for choice in args:
            if _fits(value, choice):
                return checked(value, choice, where)
        raise _wrong(value, kind, where)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{where} is {_shown(value)}, expected one of {args}.")
        return value
    if not _fits(value, kind):
        raise _wrong(value, kind, where)
    if is_dataclass(kind) and isinstance(kind, type) and not isinstance(value, kind):
        return record_of(kind, value, where)
    if isinstance(value, list) and args:
        return [checked(item, args[0], f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, dict) and len(args) == 2:
        return {name: checked(item, args[1], f"{where}: {name}") for name, item in value.items()}
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of this type at its outside."""
    origin = get_origin(kind) or kind
    if origin is Any:
        return True
    if origin is Literal:
        return value in get_args(kind)
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin in (int, bool, str, type(None)):
        return type(value) is origin
    if is_dataclass(origin):
        return isinstance(value, (dict, origin))  # type: ignore[arg-type]
    if issubclass(origin, Mapping):
        return isinstance(value, dict)
    return isinstance(value, list | tuple) if issubclass(origin, Sequence) else isinstance(value, origin)


def _wrong(value: Any, kind: Any, where: str) -> ValueError:
    origin, args = get_origin(kind) or kind, get_args(kind)
    kinds = args if origin in (Union, types.UnionType) else (kind,)
    names = []
    for one in kinds:
        outside = get_origin(one) or one
        is_list = isinstance(outside, type) and issubclass(outside, Sequence) and outside is not str
        names.append(EXPECTED.get(list if is_list else outside, "an object"))
    return ValueError(f"{where} is {_shown(value)}, expected {' or '.join(dict.fromkeys(names))}.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]} ..."


if TYPE_CHECKING:
    from datasets import Dataset


def cache_directory() -> Path:
    """Name the folder of this project beside the caches of `datasets` (HF_HOME, HF_DATASETS_CACHE)."""
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "docsplit"


def is_cached(directory: Path) -> bool:
    """Whether `build_once` has filled a folder that is still sound. One that is damaged is removed, with a warning."""
    if not directory.exists():
        return False
    reason = why_folder_damaged(directory, most_bytes=READ_WHEN_OPENED)
    if reason is None:
        return True
    logger.warning(f"The cache {directory} is damaged ({reason}): it is made again.")
    damaged = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    try:
        directory.rename(damaged / "damaged")  # another process may have done it
    except FileNotFoundError:
        pass
    finally:
        shutil.rmtree(damaged, ignore_errors=True)
    return False


def map_once(dataset: "Dataset", function: Callable[..., Any], key: str, **options: Any) -> "Dataset":
    """Map the rows of a data set into a folder of the cache, once, or in memory if that is where they are.

    Args:
        key: a hash of all that the new rows depend on, and their fingerprint.
        options: of `datasets.Dataset.map`, whose own cache nobody verifies.
    """
    from datasets import Dataset, concatenate_datasets

    if not dataset.cache_files:
        return dataset.map(function, new_fingerprint=key, **options)

    def build(directory: Path) -> None:
        file = str(directory / "rows.arrow")
        dataset.map(function, new_fingerprint=key, cache_file_name=file, load_from_cache_file=False, **options)

    directory = build_once(cache_directory() / f"rows-{key}", build)
    rows = concatenate_datasets([Dataset.from_file(str(file)) for file in sorted(directory.glob("rows*.arrow"))])
    rows._fingerprint = key
    return rows


def build_once(directory: Path, build: Callable[[Path], object]) -> Path:
    """Fill a folder unless it is there: a kill leaves nothing half-written, and one of two builders wins.

    Its files are recorded (`docsplit.runtime.files`). A folder that no longer fits its record is built again.

    Raises:
        NotWritten: naming the folder, if its disk is full or fails.
    """
    if not is_cached(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
        try:
            with name_failed_writes(directory):
                build(temporary)
                seal_folder(temporary)
                temporary.rename(directory)
        except OSError:
            if not directory.exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return directory


RECORD, LOCK = ".docsplit-files.json", ".docsplit-lock"
NUMBER = "<N>"  # in the first part of a pattern: digits
CLOCKS_DIFFER = 2.0  # seconds between that of processes and that of files, at most
ALL = "**/*"  # ends a pattern: all files in a folder and in the folders within
_TAKEN: dict[Path, "OutputFolder"] = {}  # by this process


@dataclass(frozen=True)
class Writer:
    """A command that writes into a folder which its user names.

    Attributes:
        name: of the command, which replaces and removes its own files alone.
        option: names the folder on the command line.
        writes: all that it may write or remove, as patterns of `Path.glob`, in which `NUMBER` is digits.
        writes_first: those that it may write before it calls `OutputFolder.intend`; None: all.
        unrecorded: lists the files of a folder that are the command's though no record names them.
    """

    name: str
    option: str
    writes: Sequence[str]
    writes_first: Sequence[str] | None = None
    unrecorded: Callable[[Path], Iterable[Path]] = lambda folder: ()


@dataclass
class Record:
    """What `.docsplit-files.json` holds.

    Attributes:
        files: names, relative to the folder, by the command that wrote them.
        intended: patterns of runs that did not end, by their command.
        running: process, host and a name of its own of the run that has the folder; after a kill, of the last one.
    """

    files: dict[str, list[str]] = field(default_factory=dict)
    intended: dict[str, list[str]] = field(default_factory=dict)
    running: JsonObject | None = None

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """Read the record of a folder; without one it is empty.

        Raises:
            ValueError: if it is damaged.
        """
        try:
            return cls(**read_sealed(folder / RECORD))
        except FileNotFoundError:
            return cls()
        except (Damaged, TypeError) as error:
            raise ValueError(f"{error} It says what runs wrote into {folder}: choose another folder.") from error

    def write(self, folder: Path) -> None:
        """Write the record, or remove it where there is nothing to remember."""
        if any(self.files.values()) or self.intended or self.running:
            write_sealed(folder / RECORD, vars(self))
        else:
            (folder / RECORD).unlink(missing_ok=True)

    def add(self, folder: Path, command: str, paths: Iterable[Path]) -> None:
        """Add files of a command, and forget files that are not there."""
        self.files[command] = [*self.files.get(command, ()), *(path.relative_to(folder).as_posix() for path in paths)]
        for each, names in self.files.items():
            self.files[each] = sorted({name for name in names if os.path.lexists(folder / name)})


def record_beside(folder: Path, name: str, paths: Iterable[Path]) -> None:
    """Record files for the command that wrote a file of this name, if the record of the folder names that."""
    record = Record.read(folder)
    for command in [command for command, names in record.files.items() if name in names]:
        record.add(folder, command, paths)
        record.write(folder)


def matches(folder: Path, pattern: str) -> Iterator[Path]:
    """Find what fits a pattern, with links that lead nowhere; for one that ends with `ALL`, without folders."""
    top, last = pattern.split("/")[0], pattern.split("/")[-1]
    numbered = re.compile(re.escape(top).replace(re.escape(NUMBER), r"\d+")) if NUMBER in top else None
    if not re.search(r"[*?[<]", last):  # glob asks whether a plain name exists, which follows a link
        pattern = f"{pattern.removesuffix(last)}[{last[0]}]{last[1:]}"
    for path in sorted(folder.glob(pattern.replace(NUMBER, "[0-9]*"))):
        if (numbered and not numbered.fullmatch(path.relative_to(folder).parts[0])) or path.name in (RECORD, LOCK):
            continue
        if not pattern.endswith(ALL) or path.is_symlink() or not path.is_dir():
            yield path


def _may_be_writing(pid: int, path: Path) -> bool:
    """Tell whether a process lives that had begun when a file was last written: its number may be another's by now."""
    try:
        return psutil.Process(pid).create_time() <= path.stat().st_mtime + CLOCKS_DIFFER
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, OverflowError):  # no process has such a number
        return False


class OutputFolder:
    """The folder that a run writes into. The first process takes it, before any work.

    Attributes:
        seen_by: whether each process of the run sees it, by rank (`take_for_all`).
    """

    def __init__(self, path: Path, writer: Writer):
        self.seen_by = [True]
        self.path, self.writer, self.record = path, writer, Record()
        self.place, self.process, self.created = path.resolve(), os.getpid(), list[Path]()
        self.lock = FileLock(path / LOCK, timeout=0)

    def take(self) -> "OutputFolder":
        """Lock the folder until `close`, or the end of the process, and note what is written first.

        Raises:
            ValueError: if another run has it, or files are in the way. Nothing has changed then.
            OSError: if nothing can be written there.
        """
        if (earlier := _TAKEN.get(self.place)) is not None:  # by a call of this process that failed
            earlier.close()
        another = f"choose another {self.writer.option}"
        try:
            self.created = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
        except Timeout as error:
            running = Record.read(self.path).running or {"pid": "of unknown number", "host": "an unknown host"}
            who = f"process {running['pid']} on {running['host']}"
            raise ValueError(f"{self.path} is in use by {who}: wait until it has ended, or {another}.") from error
        except OSError as error:
            self._remove_created()
            raise OSError(f"{self.path} cannot be written: {another}. The cause: {error}") from error
        _TAKEN[self.place] = self
        atexit.register(self.close)
        try:
            self.record = Record.read(self.path)
            self.record.running = None  # it has ended
            self._note_files()
            if problems := self._in_the_way(self.writer.writes):
                path, reason = next(iter(problems.items()))
                more = f" ({len(problems) - 1} more are in the way)" if len(problems) > 1 else ""
                remedy = f"{another}, or move it away{more}"
                raise ValueError(f"{path} {reason}, and this run would write over it or remove it: {remedy}.")
            self.record.intended = {}
            self.record.running = {"pid": self.process, "host": socket.gethostname(), "run": uuid.uuid4().hex}
            self.intend(self.writer.writes if self.writer.writes_first is None else self.writer.writes_first)
            self._remove_half_written()
        except BaseException:
            self.close()
            raise
        return self

    def take_for_all(self) -> "OutputFolder":
        """Let the first process take the folder, and note which others see it; all processes must call it.

        Raises:
            ValueError: on all processes, for what `take` refuses on the first.
        """
        running = from_first(lambda: self.take().record.running)
        self.seen_by = on_all(lambda: Record.read(self.path).running == running)
        return self

    def __enter__(self) -> "OutputFolder":
        return self.take()

    def __exit__(self, *_: object) -> None:
        self.close()

    def intend(self, patterns: Collection[str]) -> None:
        """Note what is written next; a file that is in the way, and was not when the folder was taken, is moved."""
        self._note_files()
        for path, reason in self._in_the_way(patterns).items():
            aside = move_aside(path)
            logger.warning(f"{path} {reason}, and this run writes it: what was there is kept as {aside.name}.")
        name = self.writer.name
        self.record.intended[name] = sorted({*self.record.intended.get(name, ()), *patterns})
        self.record.write(self.path)

    def remove(self, patterns: Collection[str]) -> None:
        """Remove the files that fit patterns and that this command wrote, and folders that are empty then."""
        self._note_files()
        others = self._in_the_way(patterns).keys()
        for path in sorted({path for pattern in patterns for path in matches(self.path, pattern)}):
            if others & {path, *path.parents}:
                logger.warning(f"{path} stays: no run of {self.writer.name} wrote it.")
            else:
                path.unlink()
                remove_empty(path.parent, self.path)

    def close(self) -> None:
        """Note the files that were written and let other runs in. What `take` made goes if nothing was written."""
        if _TAKEN.get(self.place) is not self or self.process != os.getpid():  # a fork ends
            return
        del _TAKEN[self.place]
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):  # of a folder that was removed, a full disk: the record is as after a kill
            if self.record.running is not None:
                self._note_files()
                self.record.intended, self.record.running = {}, None
                self.record.write(self.path)
            (self.path / LOCK).unlink()
        self.lock.release()
        self._remove_created()

    def _remove_half_written(self) -> None:
        """Remove what a kill left of the record, and of files that this command writes (`write_whole`)."""
        for pattern in (RECORD, *self.writer.writes):
            parent, slash, name = pattern.rpartition("/")
            for path in matches(self.path, f"{parent}{slash}.{name}.[0-9]*{PARTIAL}"):
                is_here = path.resolve().is_relative_to(self.place) and not path.is_symlink()
                writer = re.fullmatch(rf"\..+\.(\d+){re.escape(PARTIAL)}", path.name)
                if is_here and path.is_file() and writer and not _may_be_writing(int(writer[1]), path):
                    path.unlink()

    def _note_files(self) -> None:
        """Add what was written since to the record."""
        for command, patterns in self.record.intended.items():
            self.record.add(self.path, command, [path for each in patterns for path in matches(self.path, each)])
        self.record.add(self.path, self.writer.name, self.writer.unrecorded(self.path))

    def _in_the_way(self, patterns: Iterable[str]) -> dict[Path, str]:
        """Find what fits patterns and is no file of this command, and say what it is."""
        writers = {name: command for command, names in self.record.files.items() for name in names}
        problems: dict[Path, str] = {}
        for pattern in patterns:
            top = pattern.split("/")[0]
            if top != pattern and not re.search(r"[*?[]", top):  # the name of a folder
                for path in matches(self.path, top):
                    if path.is_symlink() or not path.is_dir():
                        problems[path] = "is a symbolic link" if path.is_symlink() else "is no folder"
            for path in matches(self.path, pattern):
                command = writers.get(path.relative_to(self.path).as_posix())
                if links := [
                    each for each in (path, *path.parents) if each.is_symlink() and self.path in each.parents
                ]:
                    problems[links[-1]] = "is a symbolic link"
                elif path.is_dir():
                    problems[path] = "is a folder"
                elif command != self.writer.name:
                    problems[path] = f"is of {command}" if command else "is of no run of this project"
        return problems

    def _remove_created(self) -> None:
        with contextlib.suppress(OSError):  # the first that is not empty ends it
            for path in self.created:
                path.rmdir()
