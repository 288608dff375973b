"""Processes of one run, on one machine or several: which of them see the same folder, and what all agree on.

Machines may share a file system or have their own. Nobody asks the user: processes look whether they see each other's
files. Names that no process has looked up before are used, since a network file system remembers what was not there.
"""

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


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
    answers: list[tuple[T, str | None, str]] = [(None, None, "")] * size  # type: ignore[list-item]
    dist.all_gather_object(answers, (result, failure, socket.gethostname()))
    for number, (_, message, host) in enumerate(answers):
        if message is not None:
            raise ValueError(message if number == 0 else f"rank {number} on {host}: {message}")
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


def first_that_sees(folder: Path) -> int:
    """Return the lowest rank that sees the same folder at this path as this process; all processes must call it.

    The path may be another on each process. The folder is made where it is missing.
    """
    rank, size = rank_and_size()
    if size == 1:
        return 0
    start = f".seen-{from_first(lambda: uuid.uuid4().hex)}-"

    def leave_a_mark() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{start}{rank}").touch()

    try:
        on_all(leave_a_mark)
        first = next(number for number in range(size) if os.path.exists(folder / f"{start}{number}"))
        on_all(lambda: None)  # all have looked
    finally:
        (folder / f"{start}{rank}").unlink(missing_ok=True)
    return first


@contextlib.contextmanager
def first_in(folder: Path) -> Iterator[None]:
    """Let one of the processes that see the same folder go first; the others then find what it wrote there.

    So machines that share a cache fill it once, and machines with caches of their own once each. All processes must
    call it, and wait as long as --ddp_timeout says.
    """
    rank, size = rank_and_size()
    if size == 1:
        yield
        return
    import torch.distributed as dist

    goes_first = first_that_sees(folder) == rank
    if not goes_first:
        dist.barrier()
    try:
        yield
    finally:
        if goes_first:  # after an error too: the others may not wait for ever
            dist.barrier()
