"""Scripts in processes of their own that start at once, forked from a server that has imported what they import.

A new Python spends seven seconds on imports, most runs of the tests less than one on what is tested. These are real
processes, that can be killed and run side by side. What a new Python has and they have not: a hash seed of its own,
and variables of the environment read anew on import. Where a test is about these, it starts one with `subprocess`.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch.multiprocessing as mp

ROOT = Path(__file__).parent.parent
PRELOADED = [
    "run_docsplit_pretraining", "run_probe_classification", "run_aan_retrieval", "run_document_retrieval",
    "convert_to_longformer", "explore",
    "sentence_transformers", "sklearn.linear_model", "matplotlib.pyplot", "spacy.lang.en", "torch.utils.tensorboard",
    "tests.processes",
]  # fmt: skip


def start_server() -> None:
    """If it does not run yet, with the environment of now. One thread a process: the tests run on all cores."""
    forkserver.set_forkserver_preload(PRELOADED)
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def spawn(target: Callable[..., None], args: tuple[object, ...], nprocs: int = 1) -> None:
    """`mp.spawn`, from the server."""
    start_server()
    mp.start_processes(target, args=args, nprocs=nprocs, start_method="forkserver")


class Script:
    """`python words`, started; as `subprocess.Popen`, with output and errors in files that can be read at any time."""

    def __init__(self, *words: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None):
        self._folder = tempfile.TemporaryDirectory(prefix="docsplit-tests-")
        self._files = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        self.args = [*map(str, words)]
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(
            target=execute, args=(self.args, cwd, dict(os.environ if env is None else env), self._files)
        )
        start_server()
        self._process.start()
        self.kill = weakref.finalize(self, self._process.kill)  # of a test that fails, none goes on
        self.pid = self._process.pid

    @property
    def stdout(self) -> str:
        return self._files[0].read_text() if self._files[0].exists() else ""

    @property
    def stderr(self) -> str:
        return self._files[1].read_text() if self._files[1].exists() else ""

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`: None while it runs, and the negative number of the signal that ended it."""
        return self._process.exitcode

    def wait(self, timeout: float = 300) -> "Script":
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout, self.stdout, self.stderr)
        return self


def execute(words: list[str], cwd: Path, env: dict[str, str], files: list[Path]) -> None:
    """In the forked process: what `python words` does, as far as scripts and modules go."""
    gc.freeze()  # or each collection walks through all that was imported
    multiprocessing.set_start_method(None, force=True)  # of its own workers: the default, as in a new Python
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for descriptor, path in enumerate(files, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (as long as the process lives)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    _read_environment_again(env)
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = words[:1] + words[2:]
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def _read_environment_again(env: dict[str, str]) -> None:
    """The two variables that the tests change and libraries have read already."""
    import datasets
    import torch

    datasets.config.HF_DATASETS_CACHE = Path(env["HF_DATASETS_CACHE"])
    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))


def start(*words: object, processes: int = 1, **options: Any) -> list[Script]:
    """Start processes as `torchrun` does."""
    if processes == 1:
        return [Script(*words, **options)]
    env = {"OMP_NUM_THREADS": "1"} | dict(options.pop("env", os.environ)) | {"MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [Script(*words, env=env | {"RANK": str(i), "LOCAL_RANK": str(i)}, **options) for i in range(processes)]


def finish(scripts: list[Script], timeout: float = 300) -> Script:
    """Wait for all, or for the first that fails; the first process's output."""
    deadline = time.monotonic() + timeout
    while any(script.returncode is None for script in scripts):
        if time.monotonic() > deadline or any(script.returncode for script in scripts):
            for script in scripts:
                script.kill()
        time.sleep(0.005)
    for script in scripts:
        assert script.returncode == 0, (script.args, script.returncode, script.stdout, script.stderr)
    return scripts[0]


def run(*words: object, processes: int = 1, **options: Any) -> Script:
    """Start, wait, and expect that it succeeds."""
    return finish(start(*words, processes=processes, **options))


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
