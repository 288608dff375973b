"""Processes that were stopped or killed are named in one line and end the run; work on its own never does."""

import json
import signal
import socket
import subprocess
import sys
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist

from docsplit.runtime import watchdog
from docsplit.runtime.watchdog import ENDED, Watchdog, explain
from tests.ranks import MATRIX, Case, attack, wait_until

FAST = (Case(2, 0, "SIGSTOP"), Case(2, 1, "SIGKILL"))  # the first hosts the store
IDLE, BUSY = "input()", "while True: pass"
LIMIT = 100.0  # seconds


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in FAST else pytest.mark.slow) for case in MATRIX], ids=str
)
def test_a_lost_process_is_named_in_one_line_and_all_end(case):
    assert attack(case).fault(case) is None


@pytest.fixture
def child():
    """Start a process that does something; it is killed at the end, stopped or not."""
    started = []

    def start(code):
        started.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE))
        return psutil.Process(started[-1].pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def watch(monkeypatch):
    """Make the watchdog of process 0 of two, whose threads do not run, of which the other is this process."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)

    def make(process):
        store = dist.PrefixStore("watchdog", dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        created = 0 if process is None else process.create_time()
        host = "elsewhere" if process is None else socket.gethostname()
        store.set("process/1", json.dumps([host, process.pid if process else 1, created]))
        return Watchdog(store, 0, 2, LIMIT)

    return make


def verdict_after(watcher, seconds, times=3):
    """Let signs of life be read so often, always the same, and return what is said of it."""
    said = ""
    for _ in range(times):
        watcher.unanswered = seconds / times + 1
        said = said or watcher._silent(is_new=True)
    return said


def test_a_silent_process_is_lost_unless_it_computes(watch, child):
    """One that holds the interpreter's lock uses the processor."""
    idle = child(IDLE)
    watcher = watch(idle)
    watcher.peers[1].computes()  # from now on it does not
    assert wait_until(lambda: not watcher.peers[1].computes())
    assert f"rank 1 (process {idle.pid} on" in (said := verdict_after(watcher, LIMIT))
    assert "gave no sign of life for 103 s" in said
    idle.suspend()
    assert wait_until(lambda: ": it is stopped" in verdict_after(watcher, LIMIT))

    busy = watch(child(BUSY))
    for _ in range(3):
        assert wait_until(lambda: not verdict_after(busy, 2 * LIMIT, times=1))


def test_signs_of_life_and_an_orderly_end_are_heard(watch):
    watcher = watch(None)
    for beat in ("1", "2", "3"):
        watcher._read({1: beat})
        assert not verdict_after(watcher, LIMIT / 2, times=1)
    assert "rank 1 (process 1 on elsewhere) gave no sign of life" in verdict_after(watcher, LIMIT)
    watcher._read({1: ENDED})
    assert not verdict_after(watcher, 10 * LIMIT)


@pytest.mark.parametrize(
    ("number", "is_lost"), [(signal.SIGKILL, True), (signal.SIGSEGV, True), (signal.SIGTERM, False)]
)
def test_a_killed_process_is_lost_at_once(watch, child, number, is_lost):
    """The launcher itself ends processes with SIGTERM."""
    process = child(IDLE)
    watcher = watch(process)
    assert watcher._killed() == ""
    process.send_signal(number)
    assert wait_until(watcher.peers[1].is_gone)
    line = f"rank 1 (process {process.pid} on {socket.gethostname()}) ended with signal {number:d} ({number.name})"
    assert watcher._killed().startswith(line if is_lost else "")
    assert bool(watcher._killed()) == is_lost
    assert bool(verdict_after(watcher, watchdog.GONE)) or is_lost  # nobody waits the whole limit for it


def test_a_stopped_launcher_is_no_lost_process(watch, child, monkeypatch):
    """Ctrl-Z stops torchrun alone, which hosts the store; one that is gone ends the run."""
    watcher, launcher = watch(None), child(IDLE)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setattr(watchdog.os, "getppid", lambda: launcher.pid)
    launcher.suspend()
    assert wait_until(lambda: launcher.status() == psutil.STATUS_STOPPED)
    watcher.unanswered = LIMIT + 1
    assert watcher._silent(is_new=False) == ""
    assert watcher.unanswered == 0
    launcher.resume()
    assert wait_until(lambda: launcher.status() != psutil.STATUS_STOPPED)
    watcher.unanswered = LIMIT + 1
    assert "the launcher at node1 gave no sign of life" in watcher._silent(is_new=False)


def test_an_error_of_a_common_step_names_who_is_lost(watch, monkeypatch):
    closed = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    assert explain(closed) is None  # one process
    watcher = watch(None)
    monkeypatch.setattr(watchdog, "_watchdog", watcher)
    assert explain(ValueError("gloo")) is None
    assert explain(RuntimeError("shapes differ")) is None
    monkeypatch.setattr(watcher, "explain", lambda error: Watchdog.explain(watcher, error, patience=0))
    assert "all 2 processes live. If one worked alone" in explain(closed)
    watcher.peers[1].silent = 4
    assert "rank 1 (process 1 on elsewhere) gave no sign of life for 4 s" in explain(dist.DistBackendError("NCCL"))
    watcher.peers[1].has_ended = True
    assert "rank 1 (process 1 on elsewhere) has ended before the others" in explain(closed)


def test_a_process_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(watchdog, "MEETING", 0.05)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(ConnectionError, match="Of 2 processes, 1 did not come"):
        Watchdog(dist.PrefixStore("watchdog", store), 0, 2, LIMIT)


def test_an_error_that_ends_one_process_ends_all(watch, monkeypatch):
    """NCCL waits for a process that has ended, and launchers of other machines do not always say so."""
    watcher = watch(None)
    watcher._read({1: "4"})
    assert watcher._failed(10 * LIMIT) == ""
    watcher._read({1: f"{ENDED}the disk is full"})
    assert watcher._failed(watchdog.GONE) == ""  # most end by themselves, with the error of their own
    assert watcher._failed(1) == "rank 1 (process 1 on elsewhere) ended with an error: the disk is full"
    said = Watchdog.explain(watcher, "closed", patience=0)
    assert said.endswith("has ended before the others; its last lines say why: the disk is full")
    monkeypatch.setattr(watchdog, "_watchdog", watcher)
    watchdog.tell_others(OSError("no\nroom"))
    assert watcher.failure == "no room"


HOURS = 30000.0  # seconds that a common step may take


def test_a_process_may_prepare_for_hours_before_the_first_common_step(monkeypatch):
    """NCCL makes its connection in that step: the others wait in the launcher's store, not in a collective."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=600))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(store, 0, 1)]))
    monkeypatch.setattr(watchdog, "_watchdog", None)
    arguments = watchdog.meet(HOURS)
    watchdog._watchdog.stop()
    assert arguments["store"].underlying_store.timeout == timedelta(seconds=HOURS + watchdog.LATE)
