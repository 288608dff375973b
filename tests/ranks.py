"""One of several processes is stopped, killed or busy: what the others say, and how all end.

python -m tests.ranks           # every case, one line each; exit code 1 if one is not as it should be
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.processes import ROOT, Script, free_port, start

# Each adds numbers with the others for ever, or STEPS times; HOLD: it computes with the interpreter's lock held.
WORKER = """
from docsplit.runtime.command import as_command
import sys, time
import torch
import torch.distributed as dist
from docsplit.runtime.launching import connect

def main():
    limit, steps, hold = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    connect(True, limit)
    for step in range(steps):
        dist.all_reduce(torch.ones(3))
        if step == 9:
            print("met", flush=True)
            if dist.get_rank() == hold:
                start = time.monotonic()
                3 ** 4_000_000
                3 ** int(4_000_000 * (1.5 * limit / (time.monotonic() - start)) ** 0.63)  # Karatsuba: n^1.58
        time.sleep(0.01)
    print("done", flush=True)

as_command(main)()
"""
LIMIT = 5  # seconds of silence, the least there is


@dataclass(frozen=True)
class Case:
    """What happens to one process of several; `end` is a signal, or "hold" or "pause" (all of them), which pass."""

    processes: int
    rank: int
    end: str

    def __str__(self) -> str:
        return f"{self.end} of {self.rank} of {self.processes}"

    @property
    def passes(self) -> bool:
        return self.end in ("hold", "pause")


MATRIX = [
    *(Case(size, rank, end) for size in (2, 3) for rank in range(size) for end in ("SIGKILL", "SIGSTOP")),
    *(Case(2, rank, "hold") for rank in range(2)),
    Case(2, 0, "pause"),
]


@dataclass
class Outcome:
    """The exit codes of the processes, and what all of them wrote on stderr, by rank."""

    codes: list[int | None]
    errors: list[str]

    def fault(self, case: Case) -> str | None:
        """Tell what is not as it should be; None: all is."""
        lines = [line for error in self.errors for line in error.splitlines() if line.startswith("error")]
        if case.passes:
            return None if self.codes == [0] * case.processes and not lines else f"{self}"
        text = r"(ended with signal 9 \(SIGKILL\)|ended without a word)"  # its parent may already have asked for it
        if case.end == "SIGSTOP":
            text = r"gave no sign of life for \d+ s: it is stopped"
        line = rf"error.*: rank {case.rank} \(process \d+ on .*\) {text}"
        if len(lines) != 1 or not re.match(line, lines[0]):
            return f"no single line that names the process: {self}"
        if any("Traceback" in error for error in self.errors) or any(code in (0, None) for code in self.codes):
            return f"a traceback, or a process that goes on: {self}"
        return None


@contextmanager
def killed_at_the_end(scripts: list[Script]) -> Iterator[list[Script]]:
    """Leave no process behind, stopped or not."""
    try:
        yield scripts
    finally:
        for script in scripts:
            script.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return fulfilled


def attack(case: Case) -> Outcome:
    """Start the processes, do to one what the case says, and wait until all have ended."""
    steps = 200 if case.passes else 10**9
    hold = case.rank if case.end == "hold" else -1
    with TemporaryDirectory() as folder:
        # As torchrun: one says what several would say
        errors = {"TORCHELASTIC_ERROR_FILE": str(Path(folder, "attempt", "error.json"))}
        started = start("-c", WORKER, LIMIT, steps, hold, processes=case.processes, env=os.environ | errors)
        with killed_at_the_end(started) as scripts:
            wait_until(lambda: all("met" in script.stdout or script.returncode is not None for script in scripts))
            assert all("met" in script.stdout for script in scripts), [script.stderr for script in scripts]
            if case.end == "pause":
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for script in scripts:
                        os.kill(script.pid, number)
                    time.sleep(1.5 * LIMIT if number == signal.SIGSTOP else 0)
            elif case.end != "hold":
                os.kill(scripts[case.rank].pid, signal.Signals[case.end])
            wait_until(lambda: all(script.returncode is not None for script in scripts))
            return Outcome([script.returncode for script in scripts], [script.stderr for script in scripts])


@contextmanager
def launched(processes: int, *words: object, restarts: int = 0, log: Path) -> Iterator[subprocess.Popen]:
    """Start a script with torchrun; all of its processes are killed at the end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    command += ["--max-restarts", str(restarts), "--master_port", str(free_port()), *map(str, words)]
    with log.open("w") as output:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            if process.poll() is None:  # else it has ended its children
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
                process.wait()


def process_of_rank(launcher: int, rank: int) -> psutil.Process:
    """Find the process of a rank among the children of torchrun."""
    children = psutil.Process(launcher).children()
    return next(child for child in children if child.environ().get("RANK") == str(rank))


def main() -> None:
    """Try all cases."""
    import tests.conftest  # noqa: F401 (sets the environment of the tests)

    faults = 0
    for case in MATRIX:
        fault = attack(case).fault(case)
        faults += fault is not None
        print(f"{case}: {fault or 'as it should be'}", flush=True)
    sys.exit(min(faults, 1))


if __name__ == "__main__":
    main()
