"""What processes share: a folder that one run at a time writes into, and what the processes of one run agree on.

Machines may share a file system or have their own. Nobody asks the user: processes look whether they see the same
folder.
"""

import atexit
import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock, Timeout

from docsplit.runtime.files import PARTIAL, JsonObject, read_json, remove_empty, write_text

T = TypeVar("T")
RECORD, LOCK = ".docsplit-run.json", ".docsplit-lock"  # in an output folder


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process, and of all: (0, 1) where none have met."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def on_all(work: Callable[[], T]) -> list[T]:
    """Do something on each process, and return what all returned, by rank; all processes must call it.

    Raises:
        ValueError: on all processes and in the same words, if `work` raises a ValueError or an OSError on one. It
            names the rank and its host, unless that is the first process.
    """
    size = rank_and_size()[1]
    if size == 1:
        return [work()]
    import torch.distributed as dist

    result, failure = None, None
    try:
        result = work()
    except (ValueError, OSError) as error:
        failure = str(error)
    answers: list[Any] = [None] * size
    dist.all_gather_object(answers, (result, failure, socket.gethostname()))
    for rank, (_, message, host) in enumerate(answers):
        if message is not None:
            raise ValueError(f"rank {rank} on {host}: {message}" if rank else message)
    return [answer for answer, _, _ in answers]


def from_first(work: Callable[[], T]) -> T:
    """Do something on the first process alone, and return on all what it returned; raises as `on_all` does."""
    return on_all(lambda: work() if rank_and_size()[0] == 0 else None)[0]  # type: ignore[return-value]


def refuse_differences(describe: Callable[[], Mapping[str, str]]) -> None:
    """Stop all processes if one has other data, models or options than the first; all processes must call it.

    Args:
        describe: returns what must be the same, or its hash, by what a message calls it; called where there are
            several processes.

    Raises:
        ValueError: on all processes: it names the first that differs, its host, what differs, and the remedy.
    """
    if rank_and_size()[1] == 1:
        return
    (first, wanted), *others = on_all(lambda: (socket.gethostname(), dict(describe())))
    for rank, (host, found) in enumerate(others, start=1):
        if different := [name for name in wanted | found if wanted.get(name) != found.get(name)]:
            raise ValueError(
                f"rank {rank} on {host} differs from rank 0 on {first} in {', '.join(different)}: give all machines "
                "the same files, packages and options."
            )


@contextlib.contextmanager
def first_on_machine() -> Iterator[None]:
    """Let the first process of each machine go first: the others find in the cache what it wrote there.

    Machines that share a cache do the work once each, at the same time: `build_once` keeps what one of them wrote. All
    processes must enter it, and wait as long as --ddp_timeout says.
    """
    if rank_and_size()[1] == 1:
        yield
        return
    from accelerate import PartialState

    state = PartialState()
    if not state.is_local_main_process:
        state.wait_for_everyone()
    try:
        yield
    finally:
        if state.is_local_main_process:  # after an error too: the others may not wait for ever
            state.wait_for_everyone()


class Begun(NamedTuple):
    """A training that the processes of a launch began."""

    time: float  # in seconds since 1970
    checkpoint: str | None  # that it began from; None for a new run
    launch: str | None = None  # which launch: another one has no part in it


def launch() -> str | None:
    """Name the launch of this process, alike at each of its restarts; None without a launcher."""
    port = os.environ.get("MASTER_PORT")
    return port and f"{socket.gethostname()} {os.getppid()} {port}"


def restart_count() -> int:
    """Return how often the launcher has started its processes again (`torchrun --max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) if "RANK" in os.environ else 0


def begun_before(folder: Path) -> Begun | None:
    """Return what an earlier start of this launch's processes began in an output folder; None where there was none."""
    begun = read_json(folder / RECORD).get("begun") if (folder / RECORD).exists() else None
    return None if begun is None or begun[2] != launch() else Begun(*begun)


class OutputFolder:
    """The folder that a command writes into: an empty one, or one that the same command wrote into before.

    A run locks it, so that there is one at a time, and leaves `.docsplit-run.json` in it, which names the command.

    Args:
        command: in words that an error may use.
        option: names the folder on the command line.
        results: patterns of `Path.glob` for what the run writes after `begin_results` alone: until a run came so far,
            a file that fits is its user's.
        is_ours: tells of a file or folder whether only this command writes such: it may lie in a folder that the
            command never wrote into (a checkpoint that was copied, say).

    Attributes:
        seen_by: whether each process of the run sees the folder, by rank (`take_for_all`).
    """

    def __init__(
        self,
        path: Path,
        command: str,
        option: str,
        results: Sequence[str] = (),
        is_ours: Callable[[Path], bool] = lambda path: False,
    ):
        self.path, self.command, self.results, self.is_ours = path, command, results, is_ours
        self.another, self.seen_by, self.is_new = f"choose another {option}", [True], False
        # One lock for the whole process: a call of it that failed does not keep the next one out.
        self.lock = FileLock(path / LOCK, timeout=0, is_singleton=True)

    def take(self) -> "OutputFolder":
        """Lock the folder until `close`, or the end of the process.

        Raises:
            ValueError: if another run has it, or it holds what no run of the command wrote. Nothing has changed then.
            OSError: if nothing can be written there.
        """
        try:
            self.is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
        except Timeout as error:
            who = self._record().get("process", "another run")
            raise ValueError(f"{self.path} is in use by {who}: wait until it has ended, or {self.another}.") from error
        except OSError as error:
            raise OSError(f"{self.path} cannot be written: {self.another}. The cause: {error}") from error
        try:
            self._refuse_others()
            begun = begun_before(self.path) if restart_count() else None
            process = f"process {os.getpid()} on {socket.gethostname()}"
            self._note(process=process, run=uuid.uuid4().hex, begun=begun)
            remove(self.path, [f".*.[0-9]*{PARTIAL}"])  # which a kill left
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)
        return self

    def take_for_all(self) -> "OutputFolder":
        """Let the first process take the folder, and note which others see it; all processes must call it.

        Raises:
            ValueError: on all processes, for what `take` refuses on the first.
        """
        record = from_first(lambda: self.take()._record())
        self.seen_by = on_all(lambda: self._record() == record)
        return self

    def __enter__(self) -> "OutputFolder":
        return self.take()

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin_results(self) -> None:
        """Note that what fits `results` is the command's from now on."""
        self._note(has_results=True)

    def note_begin(self, checkpoint: Path | None) -> None:
        """Note that a training begins, from a checkpoint or as a new run, unless one of an earlier start has."""
        if begun_before(self.path) is None:
            begun = Begun(time.time(), None if checkpoint is None else str(checkpoint), launch())
            self._note(begun=begun, ended=None)

    def note_end(self, files: Sequence[Path], run: str, last: str) -> None:
        """Note that a run has ended, its last checkpoint, and the files that it leaves."""
        names = [path.relative_to(self.path).as_posix() for path in files]
        self._note(ended={"run": run, "last": last, "files": names})

    def has_ended(self, run: str, last: str) -> bool:
        """Whether this run was the last to begin, ended with this checkpoint if one is left, and left its files."""
        ended = self._record().get("ended")
        return (
            ended is not None
            and ended["run"] == run
            and last in ("", ended["last"])
            and all((self.path / name).exists() for name in ended["files"])
        )

    def close(self) -> None:
        """Let other runs in. Of a run that wrote nothing, nothing is left."""
        if self.lock.is_locked:  # it is not in a fork
            with contextlib.suppress(OSError):  # the folder is gone, say
                if {path.name for path in self.path.iterdir()} <= {LOCK, RECORD}:
                    (self.path / RECORD).unlink(missing_ok=True)
                (self.path / LOCK).unlink()
            self.lock.release(force=True)
            with contextlib.suppress(OSError):  # it is not empty
                if self.is_new:
                    self.path.rmdir()

    def _record(self) -> JsonObject:
        return read_json(self.path / RECORD) if (self.path / RECORD).exists() else {}

    def _note(self, **values: object) -> None:
        write_text(self.path / RECORD, json.dumps({"command": self.command} | self._record() | values) + "\n")

    def _refuse_others(self) -> None:
        """Refuse a folder with files that a run of this command did not write, or through a link."""
        record = self._record()
        paths = [path for path in self.path.iterdir() if not path.name.startswith((".docsplit-", "..docsplit-"))]
        others = [] if record else [path for path in paths if not self.is_ours(path)]
        if not record.get("has_results"):
            others += [path for pattern in self.results for path in self.path.glob(pattern)]
        if paths and record.get("command", self.command) != self.command:
            reason = f"{self.path} is of {record['command']}"
        elif links := [path for path in paths if path.is_symlink()]:
            reason = f"{links[0]} is a symbolic link"
        elif others:
            reason = f"{others[0]} is of no run of {self.command}"
        else:
            return
        raise ValueError(f"{reason}, and a run might write over it: {self.another}, or move it away.")


def refuse_used(folder: Path, remedy: str, is_ours: Callable[[Path], object] = lambda path: False) -> None:
    """Refuse a place where something is that a command might write over, before any long work.

    Args:
        remedy: that the error names.
        is_ours: tells of a file or folder in it whether the command may write over it.

    Raises:
        ValueError: naming the first of the others.
    """
    inside = sorted(folder.iterdir()) if folder.is_dir() else [folder] if folder.exists() else []
    if others := [path for path in inside if not is_ours(path)]:
        raise ValueError(f"{others[0]} is there already: {remedy}, or move it away.")


def remove(folder: Path, patterns: Iterable[str]) -> None:
    """Remove files that fit patterns of `Path.glob`, not through links, and the folders that are empty then."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        is_here = path.parent.resolve().is_relative_to(folder.resolve())
        if is_here and (path.is_file() or path.is_symlink()):
            path.unlink()
            remove_empty(path.parent, folder)
