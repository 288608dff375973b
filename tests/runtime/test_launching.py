"""The launcher refuses some settings, and a message explains when memory runs out."""

import contextlib
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import BertConfig

from docsplit.modeling.loading import load_encoder
from docsplit.runtime import launching
from docsplit.runtime.gpus import refuse_unusable_gpu
from docsplit.runtime.launching import (
    check_precision,
    check_processes,
    connect,
    default_dtype,
    describe_computing,
    explain_out_of_memory,
    join_processes,
    refuse_one_process,
    refuse_sharded_parameters,
    use_all_cores,
    warn_of_emulation,
)
from docsplit.training.run_arguments import PretrainingArguments

CUDNN_LAST = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
CPU, GPU = torch.device("cpu"), torch.device("cuda")
ROOT = Path(__file__).parents[2]


def test_out_of_memory_names_the_options_and_a_value_and_other_errors_are_left_alone():
    cases = [
        (torch.OutOfMemoryError("CUDA\nfull"), None, True, "16,384 tokens: try --micro_batch_tokens 8192"),
        (RuntimeError("can't allocate memory"), 2048, True, "2,048 tokens: try --micro_batch_tokens 1024;"),
        (RuntimeError("can't allocate memory"), 1, False, "--cache_gradients, .* --micro_batch_tokens 1;"),
    ]
    for error, tokens, cached, message in cases:
        with pytest.raises(MemoryError, match=message), explain_out_of_memory(tokens, cached):
            raise error
    with pytest.raises(RuntimeError, match="another"), explain_out_of_memory(None, True):
        raise RuntimeError("another error")


FP16, BF16 = {"ACCELERATE_MIXED_PRECISION": "fp16"}, {"ACCELERATE_MIXED_PRECISION": "bf16"}
SEVERAL = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}  # accelerate names it just for several


@pytest.mark.parametrize(
    ("environment", "check", "message"),
    [
        ({"ACCELERATE_USE_FSDP": "true"}, refuse_sharded_parameters, "FSDP.*DDP"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, refuse_sharded_parameters, "DEEPSPEED.*DDP"),
        ({"ACCELERATE_USE_FSDP": "false", "ACCELERATE_USE_DEEPSPEED": "0"}, refuse_sharded_parameters, None),
        ({}, lambda: check_precision(True, None, CPU), "needs a GPU"),
        (FP16, lambda: check_precision(False, None, CPU), "needs a GPU"),
        ({}, lambda: check_precision(True, False, GPU), None),
        (FP16, lambda: check_precision(False, True, CPU), None),  # --bf16 goes first
        (BF16, lambda: check_precision(False, None, CPU), None),
        (SEVERAL, lambda: refuse_one_process(1), r"started one process.*--multi_gpu.*unset MASTER_ADDR"),
        (SEVERAL, lambda: refuse_one_process(2), None),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, lambda: refuse_one_process(1), None),
    ],
)
def test_what_a_launcher_asks_for_is_refused_where_it_cannot_be(environment, check, message, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        check()


@pytest.mark.parametrize(
    ("device", "world_size", "threads", "expected"),
    [("cpu", 1, "1", True), ("cpu", 2, "1", False), ("cuda", 1, "1", False), ("cpu", 1, "3", False)],
)
def test_a_run_of_one_process_takes_its_cores_back(monkeypatch, device, world_size, threads, expected):
    chosen = []
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    use_all_cores(torch.device(device), world_size)
    assert bool(chosen) == expected
    assert all(count >= 1 for count in chosen)


def test_a_line_says_where_and_how_an_encoder_computes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    line = describe_computing(torch.device("cuda", 0), torch.bfloat16, BertConfig(attn_implementation="sdpa"))
    assert line == "device: cuda:0 (NVIDIA H100), bfloat16, sdpa attention"
    for device, chip in (("cpu", ""), ("mps", "MPS of ")):
        line = describe_computing(torch.device(device), torch.float32)
        assert re.fullmatch(rf"device: {device} \({chip}.+, \d+ cores, \d+ GB\), float32", line)


@pytest.mark.parametrize(("name", "value"), [(CUDNN_LAST, "1"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false")])
def test_a_gpu_is_prepared_for_before_torch_is_there(name, value):
    """PyTorch looks at the first attention on a GPU, JAX when bm25s starts it; `import docsplit` imports no torch."""
    code = f"import sys, docsplit, os; print(os.environ[{name!r}], 'torch' in sys.modules)"
    environment = {known: text for known, text in os.environ.items() if known != name}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True, capture_output=True)
    assert result.stdout.strip() == f"{value} False", result.stderr


@pytest.mark.parametrize(("capable", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bfloat16_is_the_default_just_where_the_processor_multiplies_it(monkeypatch, capable, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "amx_bf16": capable})
    assert default_dtype(torch.device("cpu")) == dtype


@pytest.mark.parametrize(
    ("started", "gpus", "on_cpu", "refused"),
    [
        (2, 0, False, "2 processes, .*sees 0 GPUs.*: start 1 .*add --use_cpu to train with 2 on the CPU"),
        (4, 2, False, "4 processes, .*sees 2 GPUs.*: start 2"),
        (8, 8, True, "8 processes, one for each GPU, and --use_cpu.*Start one with `.*--use_cpu false"),
        (4, 2, True, None),
        (1, 1, True, None),
        (2, 2, False, None),
        (1, 0, False, None),
        (None, 4, False, None),
    ],
)
def test_a_process_has_a_gpu_or_all_are_on_the_cpu(started, gpus, on_cpu, refused, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if started is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(started))
    with pytest.raises(ValueError, match=refused) if refused else contextlib.nullcontext():
        check_processes(on_cpu)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Return a function that puts a fake `nvidia-smi` on the PATH, which prints GPUs, or fails if it gets none."""

    def put(*gpus):
        program = tmp_path / "nvidia-smi"
        lines = "".join(f"echo '{gpu}'\n" for gpu in gpus)
        program.write_text(f"#!/bin/sh\n{lines or 'echo NVIDIA-SMI has failed, 9.1; exit 9'}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    return put


H200 = "NVIDIA H200, 550.54.15"


def test_a_gpu_that_pytorch_cannot_use_stops_with_its_reason(driver, monkeypatch):
    def fail():
        raise RuntimeError("The NVIDIA driver\nis too old.")

    driver(H200, H200)
    for init, visible, reason in (
        (fail, "0", r"cannot use any: The NVIDIA driver is too old\. "),
        (lambda: None, "8", "CUDA_VISIBLE_DEVICES is '8', which.*CUDA_VISIBLE_DEVICES= before the command"),
    ):
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(ValueError, match=rf"shows 2 GPUs \(NVIDIA H200, 550.*{reason}"):
            refuse_unusable_gpu()


def test_who_hides_the_gpus_and_machines_without_one_or_with_one_that_works_are_left_alone(driver, monkeypatch):
    driver(H200)
    for visible in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        refuse_unusable_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with monkeypatch.context() as patch:
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        refuse_unusable_gpu()
    driver()
    refuse_unusable_gpu()
    monkeypatch.setenv("PATH", "")
    refuse_unusable_gpu()


def test_every_way_to_a_device_stops_at_a_gpu_that_cannot_be_used(driver, encoder, tmp_path):
    """A training, the scripts that compare and adapt, and whatever loads an encoder, as `search.py` and `embed` do."""
    driver(H200)
    for way in (lambda: PretrainingArguments(str(tmp_path)), join_processes, lambda: load_encoder(str(encoder))):
        with pytest.raises(ValueError, match="nvidia-smi shows 1 GPUs"):
            way()
    assert PretrainingArguments(str(tmp_path), use_cpu=True).device == CPU
    assert load_encoder(str(encoder), device="cpu").device == CPU


def test_several_gpus_without_a_launcher_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(PretrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(ValueError, match="accelerate launch"):
        PretrainingArguments(output_dir=str(tmp_path), use_cpu=True)


def test_the_timeout_of_a_training_is_that_of_its_connection_on_a_cpu_too(tmp_path, monkeypatch):
    """Trainer passes it on for GPUs only."""
    given = []
    monkeypatch.setattr("docsplit.training.run_arguments.connect", lambda *values: given.append(values))
    PretrainingArguments(output_dir=str(tmp_path), use_cpu=True, ddp_timeout=77, report_to="none")
    assert given[0][:2] == (True, 77)


@pytest.mark.parametrize("size", [2, 1])
def test_processes_wait_as_long_as_they_are_told_on_a_cpu_too(size, monkeypatch):
    """Trainer passes --ddp_timeout on for GPUs only. After a restart the store has the addresses of dead processes."""
    made, launched = [], dist.HashStore()
    for name, value in (("RANK", 0), ("WORLD_SIZE", size), ("TORCHELASTIC_RESTART_COUNT", 2)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(dist, "rendezvous", lambda *args, **options: iter([(launched, 0, 2)]))
    monkeypatch.setattr(launching, "PartialState", lambda cpu, **values: made.append(values))
    connect(on_cpu=True, timeout=30)
    assert len(made) == (size > 1)
    for values in made:
        assert values["timeout"] == launched.timeout == timedelta(seconds=30)
        assert (values["rank"], values["world_size"]) == (0, 2)
        values["store"].set("address", "here")
        assert launched.check(["start-2/address"])


def test_emulated_bfloat16_is_warned_of(monkeypatch, caplog):
    half, whole = torch.bfloat16, torch.float32
    cases = [(whole, True, CPU, True), (whole, True, GPU, True), (whole, False, CPU, False), (half, True, CPU, False)]
    for native, bf16, device, warned in cases:
        monkeypatch.setattr(launching, "default_dtype", lambda device, native=native: native)
        caplog.clear()
        warn_of_emulation(bf16, device)
        assert ("only emulates bfloat16" in caplog.text) == warned
