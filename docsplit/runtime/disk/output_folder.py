"""Own an output folder: one run at a time writes there, and over nothing that runs of this project did not write.

`.docsplit-files.json` in the folder names the files that runs wrote, by command, and the process that writes now. What
a run is about to write is noted there as patterns, before it writes: after a kill, whatever fits them counts as its
own. What else would be written over or removed stops the run when it takes the folder, before any work. What appears
there later is moved aside. Nothing is written through a symbolic link.
"""

import atexit
import contextlib
import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from docsplit.runtime.disk.sealed import Damaged, read_sealed, write_sealed
from docsplit.runtime.disk.shared import from_first, on_all
from docsplit.runtime.files import PARTIAL, JsonObject, move_aside, remove_empty

logger = logging.getLogger(__name__)

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
