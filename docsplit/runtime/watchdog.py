"""Processes of one run watch each other, so that none waits in vain for one that was stopped or killed.

Each process writes a sign of life into the launcher's store every second, and reads those of all others. Where one
was killed, or is silent for `SILENCE` seconds (--ddp_timeout, if that is less), all print which one it was, in one
line, and end; the silent one is killed if it is on this machine. An error that ends one ends all, `GONE` seconds
later: NCCL would wait for it.

No false alarm: work on its own, however long, leaves the thread that gives signs of life running. Code that holds the
interpreter's lock stops that thread, so a silent process of this machine counts as alive while it uses the processor;
one of another machine may hold the lock for `SILENCE` seconds. Time in which the watching process did not run itself
(Ctrl-Z, a suspended machine) is not counted.

PyTorch's means name no process (the time limit of gloo and NCCL), need a collective of their own (monitored_barrier)
or an option of the launcher (the timers of torchelastic), and none sees a process that was stopped.
"""

import atexit
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

from docsplit.runtime.ending import say
from docsplit.runtime.restarts import restart_count

logger = logging.getLogger(__name__)

TIMEOUT = 12 * 3600  # seconds that a process waits for another's part of a common step: default of --ddp_timeout
SILENCE = 600.0  # seconds without a sign of life after which a process counts as lost
MEETING = 600.0  # seconds in which all processes have to come, each of which imports for a while
LEAST_SILENCE = 5.0  # seconds, whatever --ddp_timeout says
BEAT = 1.0  # seconds between two signs of life
LATE = 15  # seconds that a common step waits longer than the watchdog, which says more
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT)  # these processes end by themselves, or the launcher ends all
GONE = 10.0  # seconds in which all end after a process of this machine has, if all is well
LOST = "a lost process"  # in the store: what was said of it
ENDED = "ended"  # in place of a sign of life: the process ends by itself; behind it, the error that ends it


def meet(timeout: float) -> dict[str, Any]:
    """Wait for all processes of the launcher and start to watch them.

    Args:
        timeout: seconds that a process may be silent, up to `SILENCE`.

    Returns: the arguments `store`, `rank` and `world_size` of `torch.distributed.init_process_group`. The launcher's
        store outlives a restart, and the addresses that are left there would make the new processes call dead ones.

    Raises:
        ConnectionError: if a process does not come.
    """
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        launched, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=MEETING)))  # type: ignore[no-untyped-call]
    except dist.DistError as error:
        raise ConnectionError(f"Process {rank} does not reach {_host_of_store()}: {_first_line(error)}") from error
    store = dist.PrefixStore(f"docsplit/{restart_count()}", launched)
    global _watchdog
    _watchdog = Watchdog(dist.PrefixStore("watchdog", store), rank, size, min(max(timeout, LEAST_SILENCE), SILENCE))
    _watchdog.start()
    # NCCL connects in the first common step, through the store: another process may tokenise for hours before it
    launched.set_timeout(timedelta(seconds=timeout + LATE))
    return {"store": store, "rank": rank, "world_size": size}


def explain(error: BaseException) -> str | None:
    """Say which process was lost, if that is why a common step failed; None for any other error.

    The watchdog may end this process meanwhile, for it says the same.
    """
    if _watchdog is None or not _is_of_a_common_step(error):
        return None
    return _watchdog.explain(_first_line(error))


def tell_others(error: BaseException) -> None:
    """Let the other processes know which error ends this one: none of them goes on, or waits."""
    if _watchdog is not None:
        _watchdog.failure = " ".join(str(error).split())[:500] or type(error).__name__


def _is_of_a_common_step(error: BaseException) -> bool:
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_of_launcher() -> bool:
    """Tell whether the launcher hosts the store: else it is the first process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _host_of_store() -> str:
    return f"{'the launcher' if _is_of_launcher() else 'rank 0'} at {os.environ['MASTER_ADDR']}"


@dataclass
class Peer:
    """Another process, and its signs of life.

    Attributes:
        process: None on another machine.
        pidfd: is readable once the process has ended; None where the system has none.
        beat: its last sign of life.
        silent: seconds since then.
        failure: the error that ended it; "" without one.
        failed: seconds since that was read.
        cpu: seconds of processor time, where the process is on this machine.
    """

    rank: int
    host: str
    pid: int
    process: psutil.Process | None = None
    pidfd: int | None = None
    beat: str = ""
    silent: float = 0.0
    cpu: float = 0.0
    has_ended: bool = False
    failure: str = ""
    failed: float = 0.0

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    def is_gone(self) -> bool:
        """Tell whether the process has ended, as far as it is on this machine."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.process is not None and (
                not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE
            )
        return True

    def computes(self) -> bool:
        """Tell whether the process, on this machine, has used the processor since the last call."""
        before = self.cpu
        if self.process is not None:
            with contextlib.suppress(psutil.Error):
                self.cpu = sum(self.process.cpu_times()[:2])
        return self.cpu > before

    def is_stopped(self) -> bool:
        """Tell whether the process is stopped, as far as it is on this machine."""
        with contextlib.suppress(psutil.Error):
            return self.process is not None and self.process.status() in (
                psutil.STATUS_STOPPED,
                psutil.STATUS_TRACING_STOP,
            )
        return False

    def signal_that_killed(self) -> int:
        """Return the signal that ended the process; 0: none, or its parent has already asked for it."""
        with contextlib.suppress(OSError, ValueError):
            status = Path(f"/proc/{self.pid}/stat").read_text().rsplit(maxsplit=1)[-1]
            return int(status) & 0x7F  # as of os.wait
        return 0


class Watchdog:
    """Two threads: one gives signs of life and reads those of others, one judges and never waits for the store.

    Args:
        store: of this start of the processes; nothing else writes to it.
        limit: seconds of silence.

    Raises:
        ConnectionError: if a process does not come within `MEETING` seconds.
    """

    def __init__(self, store: Any, rank: int, size: int, limit: float):
        self.store, self.rank, self.size, self.limit = store.clone(), rank, size, limit
        self.message = ""
        self.failure = ""  # of this process
        self.rounds = 0  # in which all signs of life were read
        self.unanswered = 0.0  # seconds since the last round
        self.over = threading.Event()
        self.peers = {peer.rank: peer for peer in self._meet()}
        self._beating = threading.Thread(target=self._beat, daemon=True, name="signs of life")

    def start(self) -> None:
        """Give signs of life and watch the others, until this process ends."""
        self._beating.start()
        threading.Thread(target=self._judge, daemon=True, name="watchdog").start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Tell the others that this process ends by itself, and watch no longer."""
        self.over.set()
        if self.unanswered < 3 * BEAT:  # or the store is gone
            self._beating.join(2)

    def _meet(self) -> Iterator[Peer]:
        """Write who this process is, and read who the others are."""
        this = psutil.Process()
        host = socket.gethostname()
        if self.rank == 0:
            self.store.set(LOST, "")
        self.store.set(f"beat/{self.rank}", "0")
        self.store.set(f"process/{self.rank}", json.dumps([host, this.pid, this.create_time()]))
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self.store.wait([f"process/{rank}" for rank in others], timedelta(seconds=MEETING))
        except RuntimeError as error:
            missing = [str(rank) for rank in others if not self.store.check([f"process/{rank}"])]
            raise ConnectionError(
                f"Of {self.size} processes, {', '.join(missing) or 'one'} did not come within {MEETING:.0f} s: does "
                "the launcher start as many as it says?"
            ) from error
        for rank in others:
            their_host, pid, created = json.loads(self.store.get(f"process/{rank}"))
            peer = Peer(rank, their_host, pid)
            if their_host == host:
                with contextlib.suppress(OSError, psutil.Error, AttributeError):  # no pidfd: looked at each second
                    process = psutil.Process(pid)
                    if process.create_time() == created:  # or it is in another container
                        peer.process = process
                        peer.pidfd = os.pidfd_open(pid)
            yield peer

    def _beat(self) -> None:
        """Give signs of life and read those of others, until this process ends."""
        ranks = [*self.peers]
        keys = [LOST, *(f"beat/{rank}" for rank in ranks)]
        count = 0
        with contextlib.suppress(RuntimeError):  # the store is gone, which the judge sees by the rounds
            while not self.over.wait(BEAT):
                if self._store_is_gone():  # or PyTorch prints what it was doing
                    return
                count += 1
                self.store.set(f"beat/{self.rank}", str(count))
                lost, *beats = (value.decode() for value in self.store.multi_get(keys))
                self._read(dict(zip(ranks, beats)))
                self.rounds += 1
                self.message = self.message or lost
            if self._store_is_gone():
                return
            if self.message:
                self.store.set(LOST, self.message)
            else:
                self.store.set(f"beat/{self.rank}", ENDED + self.failure)

    def _store_is_gone(self) -> bool:
        first = self.peers.get(0)
        return not _is_of_launcher() and first is not None and first.is_gone()

    def _read(self, beats: dict[int, str]) -> None:
        """Note who gave a sign of life since the last time."""
        for rank, beat in beats.items():
            peer = self.peers[rank]
            peer.has_ended = beat.startswith(ENDED)
            peer.failure = beat.removeprefix(ENDED) if peer.has_ended else ""
            if beat != peer.beat:
                peer.beat, peer.silent = beat, 0.0

    def _judge(self) -> None:
        """Look at all processes each second, and at once where one of this machine ends."""
        rounds, last, known = 0, time.monotonic(), set[int]()
        while not self.over.is_set():
            ended = connection.wait(
                [peer.pidfd for peer in self._watched() if peer.pidfd is not None and peer.rank not in known], BEAT
            )
            known |= {peer.rank for peer in self._watched() if peer.pidfd in ended}
            now = time.monotonic()
            passed = min(now - last, 2 * BEAT)  # more: this process did not run itself
            self.unanswered += passed
            last = now
            message = self.message or self._killed() or self._silent(is_new=self.rounds > rounds)
            message = message or self._failed(passed)
            rounds = self.rounds
            if message and not self.over.is_set():
                self._end(message)

    def _watched(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if not peer.has_ended]

    def _killed(self) -> str:
        """Say which process of this machine was killed."""
        for peer in self._watched():
            if peer.is_gone() and (number := peer.signal_that_killed()) and number not in ASKED_TO_END:
                name = signal.Signals(number).name if number in list(signal.Signals) else "unknown"
                memory = ". The kernel does so where memory runs out" if number == signal.SIGKILL else ""
                return f"{peer} ended with signal {number} ({name}){memory}"
        return ""

    def _failed(self, passed: float) -> str:
        """Say which process an error ended, if this one has not ended since: it may wait where nobody comes.

        Args:
            passed: seconds since the last call.
        """
        failed = [peer for peer in self.peers.values() if peer.failure]
        for peer in failed:
            peer.failed += passed
        first = max(failed, key=lambda peer: peer.failed, default=None)  # others may have failed since, for its lack
        return "" if first is None or first.failed <= GONE else f"{first} ended with an error: {first.failure}"

    def _silent(self, is_new: bool) -> str:
        """Say which process gave no sign of life for too long.

        Args:
            is_new: whether signs of life were read since the last call.
        """
        for peer in self._watched():
            if is_new:
                peer.silent += self.unanswered
            if peer.silent > 0 and peer.computes():
                peer.silent = 0.0
            silent, limit = peer.silent, self.limit
            if peer.is_gone():
                silent, limit = silent + self.unanswered, min(limit, GONE)
            if silent > limit:
                return f"{peer} {self._state(peer)}"
        if is_new:
            self.unanswered = 0.0
        if self.unanswered > self.limit:
            return self._silent_store()
        return ""

    def _state(self, peer: Peer) -> str:
        if peer.is_gone():
            return "ended without a word: it was killed, or crashed"
        stopped = ": it is stopped" if peer.is_stopped() else ""
        return f"gave no sign of life for {peer.silent:.0f} s{stopped}"

    def _silent_store(self) -> str:
        """Say that the store is not answered; not where only the launcher is stopped, by Ctrl-Z: training goes on."""
        with contextlib.suppress(psutil.Error):
            if _is_of_launcher() and psutil.Process(os.getppid()).status() == psutil.STATUS_STOPPED:
                self.unanswered = 0.0
                return ""
        if not _is_of_launcher() and (first := self.peers.get(0)) is not None:
            first.silent = self.unanswered
            return f"{first} {self._state(first)}"
        return f"{_host_of_store()} gave no sign of life for {self.unanswered:.0f} s"

    def _end(self, message: str) -> NoReturn:
        """Say it here and to the others, end those that are silent on this machine, then this process."""
        self.message = message
        say(f"{message}. All processes end.", about=LOST)
        self.stop()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        for peer in self._watched():
            if peer.process is not None and peer.silent > self.limit:
                with contextlib.suppress(psutil.Error):
                    peer.process.kill()
        os._exit(1)

    def explain(self, error: str, patience: float = 5.0) -> str:
        """Say who is lost: those that have ended, or are silent for some seconds; none: the error."""
        end = time.monotonic() + patience
        while time.monotonic() < end and not any(peer.has_ended for peer in self.peers.values()):
            time.sleep(0.05)
        for peer in self.peers.values():
            if peer.has_ended:
                why = f": {peer.failure}" if peer.failure and peer.process is None else ""  # printed elsewhere
                return f"{peer} has ended before the others; its last lines say why{why}"
        for peer in self.peers.values():
            if peer.is_gone() or peer.silent > 3 * BEAT:
                return f"{peer} {self._state(peer)}"
        return (
            f"A common step failed, though all {self.size} processes live. If one worked alone for longer than "
            f"--ddp_timeout, raise it ({error})"
        )


_watchdog: Watchdog | None = None  # of this process, once it has met others
