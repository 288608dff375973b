"""Find damage on disk: JSON files with a checksum of themselves, which record the size and digest of other files.

    {"files": {"documents.npy": {"size": 3200, "xxh3": "c1e7..."}}, "checksum": "99aa06d3..."}

A disk, a copy or an editor can change a byte. Whatever this project reads back and would otherwise believe is recorded
so. The digests find accidents; they do not stop somebody who changes a file and its record.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from docsplit.runtime.files import PARTIAL, JsonObject, write_text

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
