"""Find the files of a folder, skip those that cannot be read, and read their bytes."""

import io
import json
import logging
import lzma
import os
import stat
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fsspec.compression import compr
from fsspec.utils import compressions

from docsplit.data.readers.base import Skipped, Unreadable
from docsplit.runtime.files import read_json

logger = logging.getLogger(__name__)

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
COMPRESSED_INSIDE = (".parquet", ".arrow")  # their readers take no file that is compressed as a whole
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what reading a file may raise
ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar")
UNPACK = "unpack archives first (unzip, tar -xf)"
INDEX_FILE = "manifest.json"  # of an index of search.py, which is a folder
LONGEST_MANIFEST = 2**26  # bytes
ZSTANDARD_READ = 2**16  # bytes at a time
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class File:
    """A file of a folder.

    Attributes:
        name: its path within the folder.
    """

    path: Path
    name: str

    @property
    def suffix(self) -> str:
        """The suffix before that of a compression, in small letters."""
        return self._uncompressed.suffix.lower()

    @property
    def stem(self) -> str:
        """The name without folder and suffixes."""
        return printable(self._uncompressed.stem)

    @property
    def _uncompressed(self) -> Path:
        return self.path.with_suffix("") if self.path.suffix.lower() in COMPRESSIONS else self.path

    def open(self) -> IO[bytes]:
        """Open the file to read its bytes, decompressed. It never waits, as it would for the writer of a pipe.

        Raises:
            Unreadable: if the file is gone, is no file but a pipe or device, or may not be read; if its compression
                needs a package. Reading raises one of `DAMAGED` if it is damaged.
        """
        self.check_compression()
        try:
            descriptor = os.open(self.path, os.O_RDONLY | _WITHOUT_WAITING)
        except OSError as error:
            raise self.cannot_be_opened(error) from error
        content = os.fdopen(descriptor, "rb")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            content.close()
            raise Unreadable("that is no file", f"{self.path} is no file, but a folder, pipe, socket or device.")
        compression = compressions.get(self.path.suffix.lower().removeprefix("."))
        if self.path.suffix.lower() not in COMPRESSIONS:
            return content
        if compression == "zstd":
            return io.BufferedReader(ZstandardFile(content))
        return compr[compression](content, mode="rb")

    def read(self) -> bytes:
        """Read the bytes, decompressed.

        Raises:
            Unreadable: as `open`, and if the file is damaged.
        """
        try:
            with self.open() as content:
                return content.read()
        except DAMAGED as error:
            raise self.cannot_be_opened(error) from error

    def head(self, size: int) -> bytes:
        """Read the first bytes, as `read` does."""
        try:
            with self.open() as content:
                return content.read(size)
        except DAMAGED as error:
            raise self.cannot_be_opened(error) from error

    def version(self) -> tuple[str, int, int] | None:
        """Return name, size and time of change, which a cache is keyed by; None for a file that is gone."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return self.name, status.st_size, status.st_mtime_ns

    def cannot_be_opened(self, error: BaseException) -> Unreadable:
        """Make the error of a file that is gone, may not be read, or is damaged."""
        gone = isinstance(error, FileNotFoundError)
        cause = " ".join(str(getattr(error, "strerror", None) or error).split())
        return Unreadable(
            "that is gone" if gone else "that cannot be opened", f"{self.path} cannot be opened: {cause}"
        )

    def check_compression(self) -> None:
        """Check that the compression can be read.

        Raises:
            Unreadable: naming the package that is missing, or for a parquet file that is compressed as a whole.
        """
        if self.suffix in COMPRESSED_INSIDE and self.path.suffix.lower() in COMPRESSIONS:
            raise Unreadable(
                f"in {self.path.suffix}",
                f"{self.path} is a {self.suffix} file within {self.path.suffix}, which is not read: decompress it "
                f"({self.suffix} files are compressed inside).",
            )
        if self.path.suffix.lower() == ".zst" and "zst" not in compressions:
            raise Unreadable.for_lack_of("zstandard", "pip install zstandard", self.path)


@dataclass
class FoundFiles:
    """The files of a folder, or the one that was named.

    Attributes:
        files: those with a known suffix, in the order of their names.
        by_line: whether .txt files have a document in each line.
    """

    path: Path
    files: list[File] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    by_line: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether a folder was named, and not one file, or a saved data set, which is like a file in several parts."""
        return self.path.is_dir() and saved_files(self.path) is None


def find_files(path: Path, suffixes: Collection[str], hidden_by_underscore: Collection[str] = ()) -> FoundFiles:
    """Find the files of a folder that can be read, and count the others.

    Names that start with a point (`.git`, `.notes.txt`) are hidden, and counted without looking into them, and so are
    indexes of search.py. A file that is named itself is read whatever it is called. Of a data set that `save_to_disk`
    wrote the split train is read; in a folder of other files one with splits is left out.

    Args:
        suffixes: suffixes of the files that can be read.
        hidden_by_underscore: suffixes of files that are hidden by an underscore as well, also in the name of a folder.

    Raises:
        ValueError: if there is no such path, if it is no file (a pipe, a device), or an index.
    """
    if not path.exists():
        raise ValueError(f"There is no {path}: name a folder of documents, or a file.")
    if not path.is_dir() and not path.is_file():
        raise ValueError(f"{path} is no file, but a pipe, socket or device: write what it gives into a file first.")
    if is_index(path):
        raise ValueError(f"{path} is an index of search.py: name the documents that it was built from.")
    found = FoundFiles(path := saved_split(path))
    paths = [path]
    if path.is_dir():
        saved = saved_files(path)
        paths = _walk(found) if saved is None else saved
    root = path if path.is_dir() else path.parent
    for place in sorted(paths):
        parts = place.relative_to(root).parts
        file = File(place, printable("/".join(parts)))
        by_underscore = file.suffix in hidden_by_underscore and any(part.startswith("_") for part in parts)
        if path.is_dir() and by_underscore:
            found.skipped.add("hidden", file.name)
        elif file.suffix in suffixes:
            found.files.append(file)
        else:
            remedy = UNPACK if file.suffix in ARCHIVES else ""
            found.skipped.add(file.suffix or "without suffix", file.name, remedy)
    return found


def is_index(folder: Path) -> bool:
    """Whether a folder is an index of search.py: by its manifest, or by segments beside a damaged one or a lock."""
    manifest = folder / INDEX_FILE
    if (folder / "segments").is_dir() and (manifest.is_file() or (folder / "lock").is_file()):
        return True
    try:
        with File(manifest, INDEX_FILE).open() as content:
            values = json.loads(content.read(LONGEST_MANIFEST))
    except (ValueError, OSError, RecursionError):  # no manifest, or one of something else
        return False
    return isinstance(values, dict) and {"segments", "encoder"} <= values.keys()


def saved_splits(folder: Path) -> list[str]:
    """List the splits of a data set that `DatasetDict.save_to_disk` wrote; none if a folder is no such data set.

    Raises:
        Damaged: if its file of splits is damaged: without it train and test would be read as one.
    """
    file = folder / "dataset_dict.json"
    return list(read_json(file).get("splits") or ()) if file.is_file() else []


def saved_split(path: Path, split: str = "train") -> Path:
    """Name the folder of a split of a saved data set with splits, the only one if there is no other; or return `path`.

    Raises:
        ValueError: if there is no such split.
    """
    if not (splits := saved_splits(path)):
        return path
    chosen = splits[0] if len(splits) == 1 else split
    if chosen not in splits:
        raise ValueError(
            f"{path} has no split {split!r}, but {', '.join(splits)}: name the folder of one, such as "
            f"{path / splits[0]}."
        )
    logger.info(f"{path} is a data set with the splits {', '.join(splits)}: {chosen} is read.")
    return path / chosen


def saved_files(folder: Path) -> list[Path] | None:
    """List the files with the rows of a data set that `Dataset.save_to_disk` wrote; None if a folder is none."""
    state = folder / "state.json"
    if not state.is_file() or not (folder / "dataset_info.json").is_file():
        return None
    files = read_json(state).get("_data_files")
    return [folder / str(file["filename"]) for file in files] if files else None


def _walk(found: FoundFiles) -> list[Path]:
    """List the files below a folder; count hidden ones, links to folders, indexes, and what cannot be opened."""
    paths = []

    def is_closed(error: OSError) -> None:
        found.skipped.add("that cannot be opened", printable(str(error.filename)))

    for folder, names, files in os.walk(found.path, onerror=is_closed):
        here = Path(folder).relative_to(found.path)
        names.sort()
        entered = []
        for name in sorted(names + files):
            place, shown = Path(folder, name), printable((here / name).as_posix())
            if name.startswith("."):
                found.skipped.add("hidden", shown)
            elif name in files:
                if place.is_file():
                    paths.append(place)
                else:
                    kind = "pipes, sockets or devices" if place.exists() else "links to nothing"
                    found.skipped.add(kind if place.exists() or place.is_symlink() else "that is gone", shown)
            elif place.is_symlink():
                found.skipped.add("links to folders", shown)
            elif saved_splits(place):
                found.skipped.add("data sets with splits", shown, "name the split")
            elif (rows := saved_files(place)) is not None:
                paths += rows
            elif is_index(place):
                found.skipped.add("indexes of search.py", shown)
            else:
                entered.append(name)
        names[:] = entered
    return paths


def printable(name: str) -> str:
    """Write a file's name in UTF-8, as an index needs it; bytes that are no UTF-8 become their codes."""
    return name.encode(errors="backslashreplace").decode()


class ZstandardFile(io.RawIOBase):
    """A zstandard file to read; unlike the package's own reader it notices that the end of the file is missing."""

    def __init__(self, content: IO[bytes]):
        import zstandard

        self._content, self._package, self._rest = content, zstandard, b""
        self._frame: Any = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes.

        Raises:
            EOFError: if the file ends within a frame.
            OSError: if it is damaged.
        """
        view = memoryview(buffer)
        while not self._rest:
            compressed = (self._frame.unused_data if self._frame and self._frame.eof else b"") or self._content.read(
                ZSTANDARD_READ
            )
            if not compressed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("Compressed file ended before the end of a frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._package.ZstdDecompressor().decompressobj()
            try:
                self._rest = self._frame.decompress(compressed)
            except self._package.ZstdError as error:
                raise OSError(str(error)) from error
        size = min(len(view), len(self._rest))
        view[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        """Close the file."""
        self._content.close()
        super().close()
