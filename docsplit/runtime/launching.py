"""Processes, threads and logs, however a script was started: `python`, `accelerate launch` or `torchrun`."""

import contextlib
import logging
import os
import platform
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from accelerate import PartialState
from transformers.utils.logging import disable_progress_bar

TIMEOUT = timedelta(hours=12)  # the other processes wait while the first one fits heads and baselines


def join_processes() -> PartialState:
    """Join the processes that the launcher started, or be the only one, with all cores; the first one logs."""
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=TIMEOUT)
    start_logging(state.is_main_process)
    use_all_cores(state.device, state.num_processes)
    return state


def start_logging(is_first: bool) -> None:
    """Log one line a message: warnings of libraries, and only errors of other processes than the first."""
    logging.basicConfig(level=logging.INFO if is_first else logging.ERROR, format="%(levelname)s %(message)s")
    disable_progress_bar()  # of transformers, for weights that are read and written in seconds
    # accelerate warns at each evaluation that the data set has no length: it has, and drops an incomplete batch.
    for chatty in ("sentence_transformers", "bm25s", "accelerate.accelerator"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def use_all_cores(device: torch.device, world_size: int) -> None:
    """Take back the cores of a one-process CPU run: `accelerate launch` sets one thread a process."""
    if device.type == "cpu" and world_size == 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )


def refuse_sharded_parameters() -> None:
    """Refuse a launcher that asks for FSDP or DeepSpeed, before either is set up.

    Raises:
        ValueError: naming the remedy.
    """
    for name, variable in {"FSDP": "ACCELERATE_USE_FSDP", "DeepSpeed": "ACCELERATE_USE_DEEPSPEED"}.items():
        if os.environ.get(variable, "false").lower() in ("true", "1"):
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
        tried = "Out of memory with all views of the batch in one forward pass"
        if micro_batch_tokens is not None:
            tried = f"Out of memory with micro-batches of {micro_batch_tokens:,} tokens"
        smaller = f"--micro_batch_tokens {max((micro_batch_tokens or 16384) // 2, 1)}"
        remedy = f"try {smaller}; if one view alone is too long for that, --gradient_checkpointing"
        if not cache_gradients:
            remedy = f"try --cache_gradients, which keeps the activations of one micro-batch only, or {smaller}"
        raise MemoryError(
            f"{tried}, {'with' if cache_gradients else 'without'} cached gradients: {remedy}. Neither changes the "
            f"loss or the number of negatives. ({' '.join(str(error).split())[:300]})"
        ) from error


def hardware(device: str) -> str:
    """Describe the GPU (device "cuda"), or processor, cores and memory, for results and cards."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    memory = psutil.virtual_memory().total / 2**30
    return f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GB"


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


def default_training_tokens(device: torch.device) -> int:
    """Choose views x longest view of one forward pass in training, where activations take memory."""
    return 1024 if device.type == "cpu" else 4096
