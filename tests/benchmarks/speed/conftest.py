"""A tiny job of the benchmark of training."""

import pytest

from benchmarks.speed import jobs
from benchmarks.speed.jobs import Job


@pytest.fixture(scope="session")
def job(tmp_path_factory) -> Job:
    folder = tmp_path_factory.mktemp("tiny")
    jobs.write_model("tiny", folder)
    return Job(folder, "cpu", "fp32", batch_size=6, steps=2, rounds=2, micro_batch_tokens=None)
