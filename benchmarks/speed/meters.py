"""What benchmarks measure with: seconds, memory, the most that a machine computes, processes of their own."""

import argparse
import ctypes
import gc
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from docsplit.runtime.files import write_text
from docsplit.runtime.launching import default_dtype

SIZES = {"cpu": (1024, 2048, 4096), "cuda": (8192,)}  # of matrices whose products are the peak
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def make_parser(doc: str | None, results: str) -> argparse.ArgumentParser:
    """Return a parser with the docstring as help, and `--output`, by default a file of benchmarks/results."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = Path("benchmarks/results") / results
    parser.add_argument("--output", type=Path, default=path, help=f"JSON file to write (default: {path})")
    return parser


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device` and `--precision`."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default)
    parser.add_argument("--precision", choices=list(DTYPES), help="default: bf16 where the hardware multiplies it")


def native_precision(device: str) -> str:
    """bf16 where the hardware multiplies it natively, else fp32."""
    return "bf16" if default_dtype(torch.device(device)) == torch.bfloat16 else "fp32"


def write_results(path: Path, contents: Any, text: str | None = None) -> None:
    """Write JSON, and its tables in Markdown beside it if there are any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(contents, indent=2) + "\n")
    if text is not None:
        write_text(path.with_suffix(".md"), text)


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function of a module in a new process, which is gone afterwards, and return what it returns.

    Raises:
        BrokenProcessPool: if the process was killed, for lack of memory for example.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


class Memory:
    """Peak memory of this process above what it had when this was made; Linux only.

    The allocator is the system's, as a stock Trainer has it.
    """

    def __init__(self, device: str):
        self.device, self.peak = device, 0
        self.release()
        self.before = 0 if device == "cuda" else kilobytes("/proc/self/status", "VmRSS") * 1024

    def start(self) -> None:
        """Count the peak anew, from what is in use now."""
        self.release()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew

    def stop(self) -> None:
        """Remember the peak, in bytes, since `start`."""
        if self.device == "cuda":
            self.peak = torch.cuda.max_memory_allocated()
        else:
            self.peak = kilobytes("/proc/self/status", "VmHWM") * 1024 - self.before
        self.release()

    def release(self) -> None:
        """Give everything that is not in use to other processes."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        if self.device == "cuda":
            torch.cuda.empty_cache()


class AllocatedMemory:
    """The peak of this process's private memory, above that at its beginning; mapped files do not count.

    The kernel remembers no such peak, so it is looked up every millisecond.
    """

    def __enter__(self) -> "AllocatedMemory":
        self.peak, self._before, self._done = 0, kilobytes("/proc/self/status", "RssAnon"), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self.peak = max(self.peak, (kilobytes("/proc/self/status", "RssAnon") - self._before) * 1024)


def kilobytes(file: str, name: str) -> int:
    """Return a value of a status file of Linux: VmRSS (memory of this process), VmHWM (its peak), RssAnon."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{file} says nothing about {name}.")


def seconds_of(function: Any, *args: Any) -> float:
    """Return the wall-clock seconds of one call; a GPU is not waited for."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def measure_peaks(device: str, precisions: Sequence[str]) -> Mapping[str, float]:
    """Return the operations a second of the fastest square matrix products, of sizes that fill the machine."""
    return {name: max(fastest_product(size, DTYPES[name], device) for size in SIZES[device]) for name in precisions}


def fastest_product(size: int, dtype: torch.dtype, device: str, seconds: float = 1.0) -> float:
    """Return the operations per second of the fastest product of square matrices in so many seconds.

    On a GPU events on its own clock are around ten products at a time: launches, and waiting for it, take no part.
    """
    left, right, product = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    count, fastest, until = (10 if device == "cuda" else 1), float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        for _ in range(count):
            torch.mm(left, right, out=product)
        if device == "cuda":
            end.record()
            end.synchronize()
            passed = begin.elapsed_time(end) / 1000  # of milliseconds
        else:
            passed = time.perf_counter() - start
        fastest = min(fastest, passed / count)
    return 2 * size**3 / fastest
