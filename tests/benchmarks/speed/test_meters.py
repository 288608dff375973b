"""The meters see memory that is there and time that passes."""

import time
from types import SimpleNamespace

import pytest
import torch

from benchmarks.speed import meters
from benchmarks.speed.meters import AllocatedMemory, MatrixProducts, Memory, fastest, kilobytes, seconds_of

SIZE = 64 * 2**20


def use(size):
    """Take memory, write to it, and give it back."""
    block = torch.ones(size, dtype=torch.uint8)
    time.sleep(0.02)
    del block


def test_the_peak_is_that_of_what_was_used_in_between():
    memory = Memory("cpu")
    memory.start()
    use(SIZE)
    memory.stop()
    first = memory.peak
    memory.start()
    use(2 * SIZE)
    memory.stop()
    assert memory.peak - first == pytest.approx(SIZE, rel=0.3)


def test_allocated_memory_is_seen_while_it_is_there():
    with AllocatedMemory() as allocated:
        use(SIZE)
    assert allocated.peak == pytest.approx(SIZE, rel=0.3)
    with AllocatedMemory() as allocated:
        time.sleep(0.01)
    assert allocated.peak < SIZE / 4


def test_kilobytes_of_a_line(tmp_path):
    (tmp_path / "status").write_text("VmPeak:\t  12 kB\nVmRSS:\t  34 kB\n")
    assert kilobytes(str(tmp_path / "status"), "VmRSS") == 34
    with pytest.raises(OSError, match="says nothing about VmHWM"):
        kilobytes(str(tmp_path / "status"), "VmHWM")


def test_the_fastest_settings_are_tried_once_each():
    tried = []
    choices = [{"size": size} for size in (3, 1, 2)]
    assert fastest(choices, lambda choice: tried.append(choice) or choice["size"]) == {"size": 1}
    assert tried == choices
    assert seconds_of(time.sleep, 0.01) >= 0.01


def test_matrix_products_count_their_operations(job, monkeypatch):
    """Each product takes a quarter of a second by a made-up clock, so the largest is the peak."""
    ticks = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 4)
    monkeypatch.setattr(torch, "mm", lambda left, right, out: out)
    assert MatrixProducts(job).measure(torch.float32) == 4 * 2 * 4096**3


def test_products_of_a_gpu_are_timed_by_its_own_clock(monkeypatch):
    """Ten products of 8192 take 20 ms between two events, in a quarter of a second by the clock of the host."""
    ticks, done = iter(range(100)), []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.products = len(done)

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 2.0 * (end.products - self.products)  # milliseconds

    monkeypatch.setattr(meters, "square_matrices", lambda size, dtype, device: [size, dtype, device])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 4)
    monkeypatch.setattr(torch, "mm", lambda *matrices, out: done.append(matrices))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    job = SimpleNamespace(device="cuda")
    assert MatrixProducts(job).measure(torch.bfloat16) == pytest.approx(2 * 8192**3 / 0.002)
    assert len(done) % 10 == 0
    assert done[0] == (8192, torch.bfloat16)
