"""The processes of a launch, and the devices that they compute on."""

import contextlib
import logging
import os
import platform
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from accelerate import PartialState
from transformers.utils.logging import disable_progress_bar

from docsplit.runtime.command import log_messages, running_command
from docsplit.runtime.gpus import refuse_unusable_gpu
from docsplit.runtime.sharing import restart_count

logger = logging.getLogger(__name__)

PRECISION = "ACCELERATE_MIXED_PRECISION"  # set by `accelerate launch`, to no, fp16 or bf16


def join_processes() -> PartialState:
    """Join the processes that the launcher started, or be the only one and use all cores; the first one logs.

    Raises:
        ValueError: if there are fewer GPUs than processes, a GPU that PyTorch cannot use, or one process where several
            were asked for. Without a GPU all processes share the CPU, which is logged.
    """
    refuse_unusable_gpu()
    on_cpu = not torch.accelerator.is_available()
    check_processes(on_cpu)
    connect(on_cpu, timeout=1800)  # seconds: the default of --ddp_timeout
    state = PartialState(cpu=on_cpu)
    start_logging(state.is_main_process)
    refuse_one_process(state.num_processes)
    if on_cpu and state.num_processes > 1:
        logger.info(f"There is no GPU: {state.num_processes} processes share the CPU.")
    use_all_cores(state.device, state.num_processes)
    return state


def connect(on_cpu: bool, timeout: float, backend: str | None = None) -> None:
    """Connect the processes that the launcher started; nothing for one process.

    Trainer passes its --ddp_timeout on for GPUs only. The launcher's store outlives a restart (`torchrun
    --max-restarts`), and the addresses in it would make new processes call dead ones: each start has a prefix.

    Args:
        timeout: seconds that a process waits for the others in a common step.
        backend: of `torch.distributed`; None: that of the device.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and "RANK" in os.environ and not dist.is_initialized():
        if on_cpu:  # not cpu:0, accelerate's choice, to which older versions of transformers load no optimizer
            os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
        limit = timedelta(seconds=timeout)
        launched, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[no-untyped-call]
        launched.set_timeout(limit)  # NCCL connects in the first common step, before which a process may work alone
        store = dist.PrefixStore(f"start-{restart_count()}", launched)
        PartialState(on_cpu, backend=backend, timeout=limit, store=store, rank=rank, world_size=size)


def check_processes(on_cpu: bool) -> None:
    """Refuse more processes than GPUs on this machine, and as many as GPUs on its processor.

    Raises:
        ValueError: naming the remedy.
    """
    started = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    gpus = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if on_cpu and started == gpus > 1:
        raise ValueError(
            f"The launcher started {started} processes, one for each GPU, and --use_cpu, of the recipe or the command "
            f"line, puts all on the processor. Start one with `{running_command()}`, add --use_cpu false for the "
            "GPUs, or hide them with CUDA_VISIBLE_DEVICES=."
        )
    if not on_cpu and started > max(gpus, 1):
        raise ValueError(
            f"The launcher started {started} processes, and PyTorch sees {gpus} GPUs on this machine: start "
            f"{max(gpus, 1)} (`accelerate launch --num_processes N`, `torchrun --nproc_per_node N`), or add --use_cpu "
            f"to train with {started} on the CPU."
        )


def refuse_one_process(world_size: int) -> None:
    """Refuse the one process that `accelerate launch` starts without --multi_gpu, where several were asked for.

    accelerate names the address of the first process just where several are asked for.

    Raises:
        ValueError: naming the remedy.
    """
    if world_size == 1 and PRECISION in os.environ and "MASTER_ADDR" in os.environ:
        raise ValueError(
            "`accelerate launch` started one process, whatever --num_processes says, and a training would have fewer "
            "negatives. For several: `accelerate launch --multi_gpu --num_processes N`; without GPUs, also --use_cpu "
            "after the name of the script. For one: --num_processes 1, and unset MASTER_ADDR."
        )


def warn_of_emulation(bf16: bool, device: torch.device) -> None:
    """Warn of bfloat16 that the hardware only emulates."""
    if bf16 and device.type in ("cpu", "cuda") and default_dtype(device) != torch.bfloat16:
        logger.warning("--bf16: this hardware only emulates bfloat16, a CPU some 20 times as slow. Try --bf16 false.")


def check_precision(fp16: bool, bf16: bool | None, device: torch.device) -> None:
    """Refuse fp16 on a CPU, where accelerate would train in float32 and say nothing.

    Raises:
        ValueError: naming the remedy.
    """
    if device.type == "cpu" and (fp16 or (not bf16 and os.environ.get(PRECISION) == "fp16")):
        raise ValueError(
            "--fp16, or `accelerate launch --mixed_precision fp16`, needs a GPU, and this run is on the CPU: leave it "
            "out. bfloat16 is used by itself where the CPU multiplies it natively."
        )


def start_logging(is_first: bool) -> None:
    """Log as `log_messages` does, and only errors of other processes than the first."""
    log_messages(logging.INFO if is_first else logging.ERROR)
    disable_progress_bar()  # of transformers, for weights that are read and written in seconds


def use_all_cores(device: torch.device, world_size: int) -> None:
    """Take back the cores of a one-process CPU run: `accelerate launch` sets one thread a process."""
    if device.type == "cpu" and world_size == 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        allowed = getattr(os, "sched_getaffinity", lambda pid: range(os.cpu_count() or 1))  # not on every system
        torch.set_num_threads(len(allowed(0)))


def refuse_sharded_parameters() -> None:
    """Refuse a launcher that asks for FSDP or DeepSpeed, before either is set up.

    Raises:
        ValueError: naming the remedy.
    """
    for name in ("FSDP", "DEEPSPEED"):
        if os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() in ("true", "1"):
            raise ValueError(
                f"accelerate is set up for {name}, which shards parameters: processes with different numbers of "
                "micro-batches would wait for each other for ever, and an encoder fits on each GPU whole. Use DDP: "
                "`accelerate launch --multi_gpu`; large batches fit into memory with --cache_gradients."
            )


@contextlib.contextmanager
def explain_out_of_memory(micro_batch_tokens: int | None, cache_gradients: bool) -> Iterator[None]:
    """Make an out-of-memory error name the option that helps; the contrastive batch stays as it is.

    Raises:
        MemoryError: in place of PyTorch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        budget = micro_batch_tokens or 16384
        remedy = f"try --micro_batch_tokens {max(budget // 2, 1)}; for a single view, --gradient_checkpointing"
        if not cache_gradients:
            remedy = f"try --cache_gradients, which keeps the activations of one micro-batch only, or {remedy[4:]}"
        raise MemoryError(
            f"Out of memory with micro-batches of {budget:,} tokens: {remedy}. None changes the loss or the number of "
            f"negatives. ({' '.join(str(error).split())[:300]})"
        ) from error


def accelerator() -> torch.device:
    """Return the GPU that is there, of CUDA, of Apple (MPS) or another kind; else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def describe_computing(device: torch.device, dtype: torch.dtype, config: Any = None) -> str:
    """Say where and how an encoder computes, as in "device: cpu (AMD EPYC, 2 cores, 16 GB), float32, sdpa attention".

    Args:
        config: of the encoder that reads tokens; None where there is none.
    """
    attention = getattr(config, "_attn_implementation", None)
    how = f"device: {device} ({hardware(device.type)}), {str(dtype).removeprefix('torch.')}"
    return f"{how}, {attention} attention" if attention else how


def hardware(device: str) -> str:
    """Describe the GPU (device "cuda"), or processor, cores and memory, for results and cards."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    others = "" if device == "cpu" else f"{device.upper()} of "  # mps: the GPU is on the chip, and shares its memory
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    memory = psutil.virtual_memory().total / 2**30
    return f"{others}{models[0] if models else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GB"


def default_dtype(device: torch.device) -> torch.dtype:
    """Choose bfloat16 where the hardware multiplies it natively, else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    capable = device.type == "cpu" and any(
        torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16")
    )
    return torch.bfloat16 if capable else torch.float32


def default_micro_batch_tokens(device: torch.device) -> int:
    """Choose texts x longest text of one forward pass: it keeps the device busy with a few per cent of padding."""
    return 2048 if device.type == "cpu" else 16384
