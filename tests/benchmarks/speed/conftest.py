"""A tiny job of the benchmark of training, and processes that start fast."""

import multiprocessing
import types

import pytest

from benchmarks.speed import jobs, long_attention, training
from benchmarks.speed.jobs import Job
from tests.processes import start_server


@pytest.fixture(scope="session")
def job(tmp_path_factory) -> Job:
    folder = tmp_path_factory.mktemp("tiny")
    jobs.write_model("tiny", folder)
    return Job(folder, "cpu", "fp32", batch_size=6, steps=2, rounds=2, micro_batch_tokens=None)


@pytest.fixture
def forked(monkeypatch):
    """Processes of the benchmarks come from a server that has imported what they need."""
    start_server()
    context = types.SimpleNamespace(get_context=lambda _: multiprocessing.get_context("forkserver"))
    for module in (training, long_attention):
        monkeypatch.setattr(module, "multiprocessing", context)
