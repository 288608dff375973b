"""Find the files of a folder, skip those that cannot be read, and read their bytes, lines and fields.

Text is UTF-8, or what a byte order mark or an option says; otherwise the encoding is detected. Some bytes that cannot
be read become U+FFFD and are counted. A text that has more of them is no text to search or to train on, and neither is
a binary file.
"""

import bz2
import codecs
import gzip
import hashlib
import io
import json
import logging
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow
from charset_normalizer import from_bytes

from docsplit.data.readers.base import Problems, Unreadable, normalized
from docsplit.runtime.files import Damaged, JsonObject, checked, read_json

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Of data files; those of one format make one table
FORMATS = {".json": "json", ".jsonl": "json", **dict.fromkeys((".csv", ".tsv", ".xlsx"), "csv")}
FORMATS |= {".parquet": "parquet", ".arrow": "arrow"}
HTML_SUFFIXES = (".html", ".htm", ".xhtml")
CONVERTED_SUFFIXES = (".pdf", ".docx", ".pptx")
SUFFIXES = (".txt", ".md", ".markdown", ".rst", ".tex", *HTML_SUFFIXES, *CONVERTED_SUFFIXES, *FORMATS)
OPEN: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: pyarrow.CompressedInputStream(path.open("rb"), "zstd"),
}
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what reading a file may raise
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
Line = tuple[int, str]  # its number, from 1, and its text
ENDS = 2**20  # bytes of a file's beginning and end, by which its version is told
HEAD = 8000  # characters in which a NUL makes a file a binary one, as for git
MOST_UNREADABLE = 0.01  # share of a text's characters
_DECLARED = re.compile(rb"""(?i)<(?:meta\b[^<>]*?\bcharset|\?xml\b[^<>]*?\bencoding)\s*=\s*["']?\s*([\w.:-]+)""")
_COMMENT = re.compile(rb"(?s)<!--.*?(?:-->|\Z)")
_PREFIX = re.compile(r"^(x-|cs|cn-)+|-[ie]$")  # and the order of Hebrew letters, which says nothing of bytes
_WINDOWS = re.compile(r"^(windows|dos)-(?=\d)")
# Encodings that are declared, by Python's names, and those that contain them, which are meant.
AS_BROWSERS = {
    **{"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"},
    **{"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "cp31j": "cp932", "euc_kr": "cp949"},
    **{"big5": "big5hkscs"},
}
LEFT_BY_OTHERS = re.compile(r"_|cache-[0-9a-f]{16}\w*\.arrow$")  # names of data files and their folders
_UNREAD = "\udcff"  # stands for bytes that cannot be decoded; no decoder gives it for good bytes
_CONTROL = re.compile(r"[\x00-\x07\x0e-\x1a\x7f-\x84\x86-\x9f]")  # of no use in a text; colours of terminals are

codecs.register_error("docsplit_unread", lambda error: (_UNREAD, getattr(error, "end", 0)))


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
        return self.path.with_suffix("") if self.path.suffix.lower() in OPEN else self.path

    def open(self) -> Any:
        """Open the file to read its bytes, decompressed; reading raises one of `DAMAGED` if it is damaged.

        Raises:
            Unreadable: if the file is gone or may not be read.
        """
        suffix = self.path.suffix.lower()
        try:
            return OPEN[suffix](self.path) if suffix in OPEN else self.path.open("rb")
        except OSError as error:
            raise self.unreadable(error) from error

    def read(self, size: int | None = None) -> bytes:
        """Read the bytes, or the first ones, decompressed.

        Raises:
            Unreadable: as `open`, and if the file is damaged.
        """
        try:
            with self.open() as content:
                return content.read(size)
        except DAMAGED as error:
            raise self.unreadable(error) from error

    def text(self, problems: Problems, encoding: str | None = None, is_page: bool = False) -> str:
        """Read and decode the whole file.

        Args:
            is_page: whether it may declare its encoding, as web pages do.

        Raises:
            Unreadable: as `read`, and if it is binary or of an encoding that is unknown.
        """
        content = self.read()
        encoding = encoding or (encoding_of_page(content) if is_page else None)
        lines = self._decoded(io.BytesIO(content), io.BytesIO(content), problems, encoding)
        text = "".join(line for _, line in lines)
        if flaw := flaw_of(text):
            raise Unreadable(f"that are {flaw}", f"{self.path} is {flaw}")
        return text

    def lines(self, problems: Problems, encoding: str | None = None, newline: str | None = None) -> Iterator[Line]:
        r"""Read and decode the file line by line, with numbers, and count lines with bytes that cannot be read.

        Args:
            encoding: of a file without a byte order mark; None: UTF-8, or the one that is detected.
            newline: as `open` takes it: None to end lines at "\r" and "\r\n" as well, and write "\n".

        Raises:
            Unreadable: as `open`, and where the file is damaged.
        """
        with self.open() as first, self.open() as content:
            yield from self._decoded(first, content, problems, encoding, newline)

    def _decoded(
        self, first: IO[bytes], content: IO[bytes], problems: Problems, given: str | None, newline: str | None = ""
    ) -> Iterator[Line]:
        encoding = encoding_of(first, given)
        if encoding.is_detected:
            problems.add("text", f"of the encoding {encoding.name}, it seems; --encoding names another", self.name)
        number = 0
        try:
            content.read(len(encoding.mark))
            lines = io.TextIOWrapper(content, encoding=encoding.name, errors="docsplit_unread", newline=newline)
            for number, line in enumerate(lines, start=1):
                if _UNREAD in line:
                    line = line.replace(_UNREAD, "\N{REPLACEMENT CHARACTER}")
                    kind = f"with bytes that are no {encoding.name}, read as \N{REPLACEMENT CHARACTER}: see --encoding"
                    problems.add("text", kind, place := f"{self.name}, line {number}")
                    problems.undecoded.add(place)
                yield number, line
        except DAMAGED as error:
            raise self.unreadable(error, number) from error

    def unreadable(self, error: BaseException, number: int = 0) -> Unreadable:
        """Make the error of a file that is gone, may not be read, or is damaged after a line or row."""
        cause = " ".join(str(getattr(error, "strerror", None) or error).split())
        if number:
            return Unreadable(
                "that are damaged, from there on", f"{self.path} is damaged after line {number}: {cause}"
            )
        reason = "that are gone" if isinstance(error, FileNotFoundError) else "that cannot be opened"
        return Unreadable(reason, f"{self.path} cannot be opened: {cause}")

    def version(self) -> tuple[str, int, int, str, str | None] | None:
        """Return what a cache is keyed by; None if the file cannot be read.

        That is name, size, time of change, a hash of the first and the last MiB, and what converts it. To read all of
        a large corpus whenever it is opened would take too long.
        """
        try:
            status = self.path.stat()
            with self.path.open("rb") as content:
                digest = hashlib.blake2b(content.read(ENDS), digest_size=12)
                content.seek(max(ENDS, status.st_size - ENDS))
                digest.update(content.read(ENDS))
        except OSError:
            return None
        converter = converter_version() if self.suffix in CONVERTED_SUFFIXES else None
        return self.name, status.st_size, status.st_mtime_ns, digest.hexdigest(), converter


def converter_version() -> str | None:
    """Return the version of markitdown, or None. Files that another version converted are converted anew."""
    try:
        return version("markitdown")
    except PackageNotFoundError:
        return None


def read_fields(path: Path, count: int, separator: str | None) -> Iterator[list[str]]:
    """Split each line of a file, which may be compressed, that is not empty into its fields; there is no quoting.

    A carriage return within a field ends no line. What is wrong with its encoding is logged.

    Args:
        separator: None for white space.

    Raises:
        ValueError: for a line with another number of fields, or a damaged file.
    """
    problems = Problems()
    for number, line in File(path, str(path)).lines(problems, newline="\n"):
        fields = line.rstrip("\r\n").split(separator)
        if not line.strip():
            continue
        if len(fields) != count:
            start = repr(line[:80].rstrip())
            raise ValueError(f"{path}, line {number} has {len(fields)} fields, expected {count}: {start}.")
        yield fields
    problems.log()


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


def encoding_of(content: IO[bytes], given: str | None = None) -> Encoding:
    """Find the encoding of an open file.

    Characters of UTF-8 that are more than the bytes which are none show that it is UTF-8, damaged; so does a text that
    no encoding fits.

    Args:
        given: the encoding of files without a byte order mark; None: UTF-8, or the one that is detected.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("docsplit_unread")
    sample, bad, good = b"", 0, 0  # the bytes around the first that is no UTF-8; how many are, characters but ASCII
    try:
        block = content.read(HEAD)
        for mark, name in MARKS:
            if block.startswith(mark):
                return Encoding(name, mark)
        if given:
            return Encoding(given)
        if (utf_16 := _utf_16_in(block)) is not None:
            return Encoding(utf_16, is_detected=True)
        while block:
            following = content.read(2**20)
            text = decoder.decode(block, final=not following)
            if not text.isascii():
                unread = text.count(_UNREAD)
                bad, good = bad + unread, good + len(text) - len(text.encode("ascii", errors="ignore")) - unread
                if unread and not sample:
                    place = len(text[: text.index(_UNREAD)].encode())
                    start = max(block.rfind(b"\n", 0, place) + 1, place - 2**12)
                    sample = (block + following)[start : start + 2**16]
            block = following
    except DAMAGED:  # whoever reads on says so
        pass
    if good < bad and b"\x00" not in sample:
        readable = sample.decode(errors="replace")
        fills = 10 * readable.count("\N{REPLACEMENT CHARACTER}") > len(readable)
        for names in DETECTED if fills else DETECTED[:1]:  # other alphabets fill the text
            if found := from_bytes(sample, cp_isolation=names).best():
                return Encoding(found.encoding, is_detected=True)
    return Encoding()


def _utf_16_in(block: bytes) -> str | None:
    """Find the byte order of UTF-16 without a mark: its ASCII characters have zeros, all before or all after them."""
    odd, even = block[1::2].count(0), block[::2].count(0)
    name, zeros, others = ("utf-16-le", odd, even) if odd > even else ("utf-16-be", even, odd)
    if zeros < 10 * others or 50 * zeros <= len(block):
        return None
    if 4 * zeros < len(block) and flaw_of(block.decode(errors="replace").replace("\x00", "")) is None:
        return None  # some of the zeros of UTF-8 that is damaged
    try:
        text = codecs.getincrementaldecoder(name)().decode(block)
    except UnicodeDecodeError:
        return None
    return name if flaw_of(text) is None else None


def encoding_of_page(content: bytes) -> str | None:
    """Return the encoding that a page declares, read as browsers do.

    None if it fits badly, if it is one of Unicode, or if the page is UTF-8 whatever it declares.
    """
    with suppress(UnicodeDecodeError):
        if not content.decode("utf-8").isascii():
            return None
    for declared in _DECLARED.finditer(_COMMENT.sub(b"", content[:HEAD])):
        label = declared[1].decode()
        with suppress(LookupError, UnicodeError):
            name = codecs.lookup(_WINDOWS.sub("cp", _PREFIX.sub("", label.lower()))).name
            name = AS_BROWSERS.get(name, name)
            if name.startswith("utf") or declared[1].decode(name) != label:  # written in it, it could not be read here
                continue
            text = content.decode(name, errors="docsplit_unread")
            if text.count(_UNREAD) <= MOST_UNREADABLE * len(text):
                return name
    return None


def flaw_of(text: str, most: float = MOST_UNREADABLE) -> str | None:
    """Say why a decoded text is no text, "binary" or "of an unknown encoding"; None if it is one.

    Args:
        most: the share of its characters that may be none.
    """
    if "\x00" in text[:HEAD]:
        return "binary"
    if text.count("\N{REPLACEMENT CHARACTER}") > most * len(text):
        return "of an unknown encoding: --encoding names it"
    return "binary" if sum(1 for _ in _CONTROL.finditer(text)) > most * len(text) else None


def printable(name: str) -> str:
    """Write a file's name in UTF-8 and NFC, whatever disk it lies on; bytes that are no UTF-8 become their codes."""
    return normalized(name.encode(errors="backslashreplace").decode())


# --- Folders ---


@dataclass
class FoundFiles:
    """The files of a folder, or the one that was named.

    Attributes:
        files: those with a known suffix, in the order of their names.
        problems: what was skipped.
        unread: names of the folders that were not entered, and of the files that were not read whole.
    """

    path: Path
    files: list[File] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    unread: set[str] = field(default_factory=set)

    @property
    def is_folder(self) -> bool:
        """Whether a folder was named, and not one file, or a saved data set, which is like a file in several parts."""
        return self.path.is_dir() and saved_files(self.path) is None

    def read(self, read: Callable[[File, Problems], Iterator[T]]) -> Iterator[T]:
        """Read file after file, and count what cannot be read: rows, and in a folder files.

        Raises:
            Unreadable: if the one file, or its beginning, cannot be read; if rows are refused.
        """
        num_read = 0
        for file in self.files:
            problems, before = Problems(refuses_rows=self.problems.refuses_rows), num_read
            try:
                for item in read(file, problems):
                    yield item
                    num_read += 1
            except Unreadable as error:
                if problems.refuses_rows or not (self.is_folder or num_read):
                    raise
                self.problems.add("file", f"{file.suffix} {error.reason}", file.name)
                self.unread.add(file.name)
                if num_read == before:  # the error has what was wrong with its rows
                    continue
            self.problems.merge(problems)
            if problems.number_of("row"):
                self.unread.add(file.name)

    def in_unread(self, ids: set[str]) -> set[str]:
        """Return those ids whose documents may be in what was not read."""
        if not self.is_folder or "." in self.unread:  # all, or nothing of it, was read
            return ids if self.unread else set()
        beginnings = tuple(f"{name}{mark}" for name in self.unread for mark in "#/")
        return {name for name in ids if name in self.unread or name.startswith(beginnings)}


def find_files(path: Path) -> FoundFiles:
    """Find the files of a folder that can be read, and count the others.

    Names that start with a point (`.git`, `.notes.txt`) are hidden, and counted without looking into them, and so are
    indexes of search.py. A file that is named itself is read whatever it is called. Of a data set that `save_to_disk`
    wrote the split train is read; in a folder of other files one with splits is left out. Data files are hidden by an
    underscore as well, as other programs leave `_temporary/part-0.parquet`, and so is what `datasets` writes beside an
    Arrow file that is mapped or shuffled.

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
    root, paths = (path, saved_files(path)) if path.is_dir() else (path.parent, [path])
    names = set[str]()
    for place in sorted(_walk(found) if paths is None else paths):
        parts = place.relative_to(root).parts
        name = printable("/".join(parts))
        if name in names:
            found.problems.add(
                "text", "of a file called as another but for how accents are written: + ends its id", name
            )
        while name in names:
            name += "+"
        names.add(name)
        file = File(place, name)
        is_left_by_others = file.suffix in FORMATS and any(map(LEFT_BY_OTHERS.match, parts))
        if path.is_dir() and is_left_by_others:
            found.problems.add("file", "hidden", file.name)
        elif file.suffix in SUFFIXES:
            found.files.append(file)
        else:
            found.problems.add("file", file.suffix or "without suffix", file.name)
    return found


def _walk(found: FoundFiles) -> list[Path]:
    """List the files below a folder; count hidden ones, links to folders, indexes, and what cannot be opened."""

    def skip(kind: str, place: Path) -> None:
        name = printable(place.relative_to(found.path).as_posix())
        found.problems.add("file", kind, name)
        found.unread.add(name)

    paths: list[Path] = []
    for folder, names, files in os.walk(
        found.path, onerror=lambda error: skip("that cannot be opened", Path(error.filename))
    ):
        entered = []
        for name, is_folder in sorted([*((name, True) for name in names), *((name, False) for name in files)]):
            place = Path(folder, name)
            if name.startswith("."):
                skip("hidden", place)
            elif not is_folder and place.is_file():
                paths.append(place)
            elif not is_folder:
                skip("that are no files, but pipes, devices or links to nothing", place)
            elif place.is_symlink():
                skip("that are links to folders: name what they lead to", place)
            elif saved_splits(place):
                skip("that are data sets with splits: name one", place)
            elif (rows := saved_files(place)) is not None:
                paths += rows
            elif is_index(place):
                skip("that are indexes of search.py", place)
            else:
                entered.append(name)
        names[:] = entered
    return paths


def is_index(folder: Path) -> bool:
    """Whether a folder is an index of search.py, by its manifest."""
    try:
        values = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # no manifest, or one of something else
        return False
    return isinstance(values, dict) and {"segments", "encoder"} <= values.keys()


def saved_splits(folder: Path) -> list[str]:
    """List the splits of a data set that `DatasetDict.save_to_disk` wrote; none if a folder is no such data set.

    Raises:
        Damaged: if its file of splits is damaged: without it train and test would be read as one.
    """
    file = folder / "dataset_dict.json"
    return _names_in(file, read_json(file).get("splits")) if file.is_file() else []


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
    named = checked(read_json(state).get("_data_files") or [], list[JsonObject], f"{state}: _data_files")
    return [folder / name for name in _names_in(state, [file.get("filename") for file in named])] or None


def _names_in(file: Path, names: Any) -> list[str]:
    """Return the names that a file of a saved data set gives to what lies beside it, which may come from a stranger.

    Raises:
        Damaged: if one is no name, but a path to somewhere else, say.
    """
    for name in (listed := checked(names or [], list[str], str(file))):
        if name in ("", ".", "..") or re.search(r"[/\\:]", name):
            raise Damaged(f"{file} names {name!r}: a saved data set has its files in its own folder. Save it again.")
    return listed
