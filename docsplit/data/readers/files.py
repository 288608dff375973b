"""Find the files of a folder, skip those that cannot be read, and read their bytes."""

import lzma
import os
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
from fsspec.utils import compressions

from docsplit.data.readers.base import Skipped, Unreadable

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
COMPRESSED_INSIDE = (".parquet", ".arrow")  # their readers take no file that is compressed as a whole
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what reading a file may raise


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

    def read(self) -> bytes:
        """Read the bytes, decompressed.

        Raises:
            Unreadable: if the file is damaged or may not be read, or its compression needs a package.
        """
        self.check_compression()
        try:
            with fsspec.open(str(self.path), "rb", compression="infer") as content:
                return content.read()
        except DAMAGED as error:
            raise Unreadable("that cannot be opened", f"{self.path} cannot be opened: {error}") from error

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
    """

    path: Path
    files: list[File] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)

    @property
    def is_folder(self) -> bool:
        """Whether a folder was named, and not one file."""
        return self.path.is_dir()


def find_files(path: Path, suffixes: Collection[str], hidden_by_underscore: Collection[str] = ()) -> FoundFiles:
    """Find the files of a folder that can be read, and count the others.

    Names that start with a point (`.git`, `.notes.txt`) are hidden, and counted without looking into them. A file that
    is named itself is read whatever it is called.

    Args:
        suffixes: suffixes of the files that can be read.
        hidden_by_underscore: suffixes of files that are hidden by an underscore as well, also in the name of a folder.

    Raises:
        ValueError: if there is no such path.
    """
    if not path.exists():
        raise ValueError(f"There is no {path}: name a folder of documents, or a file.")
    found = FoundFiles(path)
    paths = _walk(found) if path.is_dir() else [path]
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
            found.skipped.add(file.suffix or "without suffix", file.name)
    return found


def _walk(found: FoundFiles) -> list[Path]:
    """List the files below a folder; count hidden ones, links to folders and folders that may not be read."""
    paths = []

    def is_closed(error: OSError) -> None:
        found.skipped.add("that cannot be opened", printable(str(error.filename)))

    for folder, names, files in os.walk(found.path, onerror=is_closed):
        here = Path(folder).relative_to(found.path)
        names.sort()
        for name in sorted(names + files):
            if name.startswith("."):
                found.skipped.add("hidden", printable((here / name).as_posix()))
            elif name in names and Path(folder, name).is_symlink():
                found.skipped.add("links to folders", printable((here / name).as_posix()))
        names[:] = [name for name in names if not name.startswith(".")]
        shown = [Path(folder, name) for name in files if not name.startswith(".")]
        paths += [path for path in shown if path.is_file()]  # no sockets, no links to nothing
    return paths


def printable(name: str) -> str:
    """Write a file's name in UTF-8, as an index needs it; bytes that are no UTF-8 become their codes."""
    return name.encode(errors="backslashreplace").decode()
