"""The meters of `benchmarks.speed.training`: seconds, memory, and the most that a machine computes."""

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.jobs import Job

SIZES = {"cpu": (1024, 2048, 4096), "cuda": (8192,)}  # of matrices whose products are the peak


class Memory:
    """Peak memory of this process above what it had before the model; Linux only.

    The allocator is the system's, as a stock Trainer has it. On a CPU it maps large tensors anew for each use, and the
    kernel clears every page: for dense logits that can be half of a step. With `keep_freed_memory` timed steps get
    their memory before, and keep what they free, as a GPU's allocator does and a tuned one on a CPU can. That takes
    more memory than need be, so the peak is in any case that of some steps before, under the usual rules.
    """

    FRAGMENTED = 1.75  # the heap may grow to this multiple of the peak

    def __init__(self, device: str):
        self.device = device
        self.libc = ctypes.CDLL(None)
        self.release()
        self.before = 0 if device == "cuda" else kilobytes("/proc/self/status", "VmRSS") * 1024
        self.peak = 0

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

    def reserve(self) -> None:
        """Get as much memory as will be needed, and keep what is freed until `release`."""
        if self.device == "cpu":
            trim_threshold, mmap_max = -1, -4  # of mallopt(3)
            self.libc.mallopt(mmap_max, 0)
            self.libc.mallopt(trim_threshold, -1)
            available = kilobytes("/proc/meminfo", "MemAvailable") * 1024
            torch.ones(int(min(self.FRAGMENTED * self.peak, 0.7 * available)), dtype=torch.uint8)

    def release(self) -> None:
        """Give everything that is not in use to the other contenders."""
        gc.collect()
        self.libc.malloc_trim(0)
        if self.device == "cuda":
            torch.cuda.empty_cache()


class AllocatedMemory:
    """The peak of this process's private memory, above that at its beginning; mapped files do not count.

    The kernel remembers no such peak, so it is looked up every millisecond.
    """

    def __enter__(self) -> "AllocatedMemory":
        self.peak, self._before, self._done = 0, self._now(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self.peak = max(self.peak, self._now() - self._before)

    @staticmethod
    def _now() -> int:
        return kilobytes("/proc/self/status", "RssAnon") * 1024


def kilobytes(file: str, name: str) -> int:
    """Return a value of a status file of Linux: VmRSS (memory of this process), VmHWM (its peak), MemAvailable."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{file} says nothing about {name}.")


def fastest(choices: list[dict[str, Any]], seconds: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """Return the settings with which `seconds`, called once with each, is least."""
    return min(choices, key=seconds)


def seconds_of(function: Any, *args: Any) -> float:
    """Return the wall-clock seconds of one call; a GPU is not waited for."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


class MatrixProducts:
    """The most that this machine computes: the fastest square matrix product, of sizes that fill it."""

    def __init__(self, job: Job):
        self.device = job.device

    def measure(self, dtype: torch.dtype) -> float:
        """Return floating-point operations per second, after a second for each size."""
        return max(fastest_product(size, dtype, self.device) for size in SIZES[self.device])


def fastest_product(size: int, dtype: torch.dtype, device: str, seconds: float = 1.0) -> float:
    """Return the operations per second of the fastest product of square matrices in so many seconds.

    On a GPU events on its own clock are around ten products at a time: launches, and waiting for it, take no part.
    """
    left, right, product = square_matrices(size, dtype, device)
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


def square_matrices(size: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Return three random matrices (size, size)."""
    return [torch.randn(size, size, device=device).to(dtype) for _ in range(3)]
