"""What the launcher may not ask for, and what is said when memory runs out."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from docsplit.runtime.launching import explain_out_of_memory, refuse_sharded_parameters

# A real failure of the allocator: address space for 400 MB more, and 4 GB wanted.
ALLOCATE = """
import resource, torch
from docsplit.runtime.launching import explain_out_of_memory
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 4 * 10**8, -1))
for cached in (False, True):
    try:
        with explain_out_of_memory(2048, cache_gradients=cached):
            torch.empty(10**9)
    except MemoryError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_out_of_memory_names_the_option_and_a_value():
    result = subprocess.run(
        [sys.executable, "-c", ALLOCATE], cwd=Path(__file__).parents[2], text=True, capture_output=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    messages = result.stdout.split("Out of memory with micro-batches of 2,048 tokens")[1:]
    for message, remedy in zip(messages, ("try --cache_gradients, ", "try --micro_batch_tokens 1024;"), strict=True):
        assert remedy in message
        assert "can't allocate memory" in message


def test_out_of_memory_on_a_gpu_is_explained_and_other_errors_are_left_alone():
    with pytest.raises(MemoryError, match="--micro_batch_tokens 8192"), explain_out_of_memory(None, True):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="another"), explain_out_of_memory(None, True):
        raise RuntimeError("another error")


@pytest.mark.parametrize(
    ("variable", "name"), [("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")]
)
def test_sharded_parameters_are_refused(monkeypatch, variable, name):
    monkeypatch.setenv(variable, "false")
    refuse_sharded_parameters()
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ValueError, match=f"{name}.*DDP"):
        refuse_sharded_parameters()
