"""Copies between host and device; that none of them waits is in `tests.scripts.test_waiting`."""

import torch

from docsplit.modeling.distributed import fetch, send
from tests.processes import spawn
from tests.waits import OnDevice, Watch, register, watched


def test_the_cpu_needs_no_copy():
    values = torch.arange(3.0)
    assert send(values, values.device) is values
    assert fetch(values) == (values, None)


def test_values_arrive(tmp_path):
    spawn(_there_and_back, ())


def _there_and_back(index):
    values = torch.arange(12.0).view(3, 4)
    with watched(Watch()):
        there = send(values[:, ::2], register())
        assert isinstance(there, OnDevice)
        back, arrival = fetch(there + 1)
        arrival.synchronize()
        assert back.device.type == "cpu"
        assert torch.equal(back, values[:, ::2] + 1)
