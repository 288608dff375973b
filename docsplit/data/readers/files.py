"""Find the files of a folder, skip those that cannot be read, and read their bytes and lines.

Text is UTF-8, or what a byte order mark or an option says; otherwise the encoding is detected. Some bytes that cannot
be read become U+FFFD, and the caller counts them. A text that has more of them is no text to search or to train on,
and neither is a binary file.
"""

import codecs
import contextlib
import io
import json
import logging
import lzma
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from charset_normalizer import from_bytes
from fsspec.compression import compr
from fsspec.utils import compressions

from docsplit.data.readers.base import Problems, Unreadable
from docsplit.runtime.files import read_json

logger = logging.getLogger(__name__)

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
COMPRESSED_INSIDE = (".parquet", ".arrow")  # their readers take no file that is compressed as a whole
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what reading a file may raise
UNPACK = "unpack archives first (unzip, tar -xf)"
INDEX_FILE = "manifest.json"  # of an index of search.py, which is a folder
MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Western Europe's first: of its neighbours, such as cp1250, charset-normalizer cannot tell it.
DETECTED = (["cp1252"], ["cp1251", "koi8_r", "shift_jis", "euc_jp", "gb18030", "big5", "euc_kr"])
HEAD = 8000  # characters in which a NUL makes a file a binary one, as for git
MOST_UNREADABLE = 0.01  # share of a text's characters
_UNREAD = "\udcff"  # stands for bytes that cannot be decoded; no decoder gives it for good bytes
_CONTROL = re.compile(r"[\x00-\x07\x0e-\x1a\x7f-\x84\x86-\x9f]")  # of no use in a text; colours of terminals are


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
    def is_compressed(self) -> bool:
        """Whether its suffix is that of a compression."""
        return self.path.suffix.lower() in COMPRESSIONS

    @property
    def _uncompressed(self) -> Path:
        return self.path.with_suffix("") if self.is_compressed else self.path

    def open(self) -> IO[bytes]:
        """Open the file to read its bytes, decompressed. It never waits, as it would for the writer of a pipe.

        Raises:
            Unreadable: if the file is gone, is no file but a pipe or device, or may not be read; if its compression
                needs a package; for a parquet file that is compressed as a whole. Reading raises one of `DAMAGED` if
                it is damaged.
        """
        if self.is_compressed and self.suffix in COMPRESSED_INSIDE:
            raise Unreadable(
                f"in {self.path.suffix}",
                f"{self.path} is a {self.suffix} file within {self.path.suffix}, which is not read: decompress it "
                f"({self.suffix} files are compressed inside).",
            )
        if self.path.suffix.lower() == ".zst" and "zst" not in compressions:
            remedy = "pip install zstandard"
            raise Unreadable("for lack of zstandard", f"{self.path} needs zstandard: {remedy}", remedy)
        try:
            without_waiting = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(self.path, os.O_RDONLY | without_waiting)
        except OSError as error:
            raise self.cannot_be_opened(error) from error
        content = os.fdopen(descriptor, "rb")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            content.close()
            raise Unreadable("that is no file", f"{self.path} is no file, but a folder, pipe, socket or device.")
        if not self.is_compressed:
            return content
        compression = compressions[self.path.suffix.lower().removeprefix(".")]
        return io.BufferedReader(ZstandardFile(content)) if compression == "zstd" else compr[compression](content)

    def read(self, size: int = -1) -> bytes:
        """Read the bytes, or the first ones, decompressed.

        Raises:
            Unreadable: as `open`, and if the file is damaged.
        """
        try:
            with self.open() as content:
                return content.read(size)
        except DAMAGED as error:
            raise self.cannot_be_opened(error) from error

    def encoding(self, given: str | None = None) -> "Encoding":
        """Find the encoding of the file, as `encoding_of` does."""
        with self.open() as content:
            return encoding_of(content, given)

    def version(self) -> tuple[str, int, int] | None:
        """Return name, size and time of change, which a cache is keyed by; None for a file that is gone."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return self.name, status.st_size, status.st_mtime_ns

    def cannot_be_opened(self, error: BaseException) -> Unreadable:
        """Make the error of a file that is gone, may not be read, or is damaged."""
        reason = "that is gone" if isinstance(error, FileNotFoundError) else "that cannot be opened"
        cause = " ".join(str(getattr(error, "strerror", None) or error).split())
        return Unreadable(reason, f"{self.path} cannot be opened: {cause}")


# --- Text ---


@dataclass(frozen=True)
class Encoding:
    """How a file's text is written.

    Attributes:
        mark: the bytes before the text that say so.
        is_detected: whether it is a guess.
    """

    name: str = "utf-8"
    mark: bytes = b""
    is_detected: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a file with its number, from 1.

    Attributes:
        is_mended: whether bytes of it could not be read.
    """

    number: int
    text: str
    is_mended: bool


def encoding_of(content: IO[bytes], given: str | None = None) -> Encoding:
    """Find the encoding of an open file.

    Characters of UTF-8 that are more than the bytes which are none show that it is UTF-8, damaged; so does a text that
    no encoding fits.

    Args:
        given: the encoding of files without a byte order mark; None: UTF-8, or the one that is detected.
    """
    is_ascii, decoder = True, codecs.getincrementaldecoder("utf-8")()
    try:
        block = content.read(HEAD)
        for mark, name in MARKS:
            if block.startswith(mark):
                return Encoding(name, mark)
        if given:
            return Encoding(given)
        while block:
            following = content.read(2**20)
            decoder.decode(block, final=not following)
            is_ascii, block = is_ascii and block.isascii(), following
        return Encoding()
    except UnicodeDecodeError as error:
        place = max(error.start - len(decoder.getstate()[0]), 0)  # in the block; the state is of the block before
        start = max(block.rfind(b"\n", 0, place) + 1, place - 2**12)
    except DAMAGED:  # whoever reads on says so
        return Encoding()
    part = (block + following)[start:]
    sample, is_ascii = part[: 2**16], is_ascii and block[:place].isascii()
    if not is_ascii or b"\x00" in sample:
        return Encoding()
    # Of the rest of the file: what is no UTF-8, and what is no ASCII, those among it
    decoder, bad, others = codecs.getincrementaldecoder("utf-8")("replace"), 0, 0
    with contextlib.suppress(*DAMAGED):
        while part:
            following = content.read(2**20)
            text = decoder.decode(part, final=not following)
            bad += text.count("\N{REPLACEMENT CHARACTER}")
            others += len(text) - len(text.encode("ascii", errors="ignore"))
            part = following
    if others < 2 * bad:
        shown = sample.decode(errors="replace")
        fills = 10 * shown.count("\N{REPLACEMENT CHARACTER}") > len(shown)
        for names in DETECTED if fills else DETECTED[:1]:  # other alphabets fill the text
            if found := from_bytes(sample, cp_isolation=names).best():
                return Encoding(found.encoding, is_detected=True)
    return Encoding()


def decode(content: bytes, encoding: Encoding) -> tuple[str, int]:
    """Decode a file, and find its first byte that cannot be read, -1 if all can; these become U+FFFD."""
    content = content.removeprefix(encoding.mark)
    try:
        return content.decode(encoding.name), -1
    except UnicodeDecodeError as error:
        return content.decode(encoding.name, errors="replace"), len(encoding.mark) + error.start


def lines_of(content: IO[bytes], encoding: Encoding, newline: str | None) -> Iterator[Line]:
    r"""Decode a file line by line.

    Args:
        content: an open file, at its beginning.
        newline: as `open` takes it: None to end lines at "\r" and "\r\n" as well, and write "\n".
    """
    content.read(len(encoding.mark))
    lines = io.TextIOWrapper(content, encoding=encoding.name, errors="docsplit_unread", newline=newline)
    for number, line in enumerate(lines, start=1):
        is_mended = _UNREAD in line
        yield Line(number, line.replace(_UNREAD, "\N{REPLACEMENT CHARACTER}") if is_mended else line, is_mended)


def _unread(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _UNREAD, error.end


codecs.register_error("docsplit_unread", _unread)


def flaw_of(text: str) -> str | None:
    """Say why a decoded text is no text, "binary" or "of an unknown encoding"; None if it is one."""
    most = MOST_UNREADABLE * len(text)
    if "\x00" in text[:HEAD]:
        return "binary"
    if text.count("\N{REPLACEMENT CHARACTER}") > most:
        return "of an unknown encoding"
    return "binary" if sum(1 for _ in _CONTROL.finditer(text)) > most else None


def is_plain(head: bytes) -> bool:
    """Whether a file begins as UTF-8 without a mark, which other programs' readers take as it is."""
    return b"\x00" not in head and not any(head.startswith(mark) for mark, _ in MARKS)


# --- Folders ---


@dataclass
class FoundFiles:
    """The files of a folder, or the one that was named.

    Attributes:
        files: those with a known suffix, in the order of their names.
        problems: what was skipped.
    """

    path: Path
    files: list[File] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)

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
            found.problems.skip_file("hidden", file.name)
        elif file.suffix in suffixes:
            found.files.append(file)
        else:
            is_archive = file.suffix in (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar")
            found.problems.skip_file(file.suffix or "without suffix", file.name, UNPACK if is_archive else "")
    return found


def _walk(found: FoundFiles) -> list[Path]:
    """List the files below a folder; count hidden ones, links to folders, indexes, and what cannot be opened."""
    paths, skip = [], found.problems.skip_file
    closed: list[OSError] = []
    for folder, names, files in os.walk(found.path, onerror=closed.append):
        here = Path(folder).relative_to(found.path)
        names.sort()
        entered = []
        for name in sorted(names + files):
            place, shown = Path(folder, name), printable((here / name).as_posix())
            if name.startswith("."):
                skip("hidden", shown)
            elif name in files and place.is_file():
                paths.append(place)
            elif name in files:
                skip("pipes, sockets or devices" if place.exists() else "links to nothing", shown)
            elif place.is_symlink():
                skip("links to folders", shown)
            elif saved_splits(place):
                skip("data sets with splits", shown, "name the split")
            elif (rows := saved_files(place)) is not None:
                paths += rows
            elif is_index(place):
                skip("indexes of search.py", shown)
            else:
                entered.append(name)
        names[:] = entered
    for error in closed:
        skip("that cannot be opened", printable(str(error.filename)))
    return paths


def is_index(folder: Path) -> bool:
    """Whether a folder is an index of search.py: by its manifest, or by segments beside a damaged one or a lock."""
    manifest = folder / INDEX_FILE
    if (folder / "segments").is_dir() and (manifest.is_file() or (folder / "lock").is_file()):
        return True
    try:
        values = json.loads(File(manifest, INDEX_FILE).read(2**26))
    except (ValueError, RecursionError):  # no manifest, or one of something else
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
        while not self._rest:
            begins = self._frame is None or self._frame.eof
            compressed = (self._frame.unused_data if self._frame and begins else b"") or self._content.read(2**16)
            if not compressed and begins:
                return 0
            if not compressed:
                raise EOFError("Compressed file ended before the end of a frame")
            if begins:
                self._frame = self._package.ZstdDecompressor().decompressobj()
            try:
                self._rest = self._frame.decompress(compressed)
            except self._package.ZstdError as error:
                raise OSError(str(error)) from error
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        """Close the file."""
        self._content.close()
        super().close()
