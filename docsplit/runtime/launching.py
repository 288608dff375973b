"""The processes of a launch, and the devices that they compute on.

What processes did before the launcher started them again (`torchrun --max-restarts`) is noted in the launcher's store,
which lives as long as the launcher: nothing is left of it in a folder, and no other launch takes it for its own.
"""

import contextlib
import functools
import json
import logging
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from accelerate import PartialState
from transformers.utils.logging import disable_progress_bar

from docsplit.runtime.command import running_command

logger = logging.getLogger(__name__)

PRECISION = "ACCELERATE_MIXED_PRECISION"  # set by `accelerate launch`, to no, fp16 or bf16
CUDNN_LAST = "TORCH_CUDNN_SDPA_DEPRIORITIZED"  # set to 1 by `docsplit/__init__.py`, which says why


@dataclass
class Begun:
    """A training that this launcher's processes began.

    Attributes:
        time: of its begin, in seconds since 1970.
        checkpoint: that it began from; None for a new run.
    """

    time: float
    checkpoint: str | None


def restart_count() -> int:
    """Return how often the launcher has started its processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def note_begin(output_dir: Path, checkpoint: Path | None) -> None:
    """Note that a training begins to write into a folder, unless one of an earlier start has; one process calls it."""
    store = _store_of_launcher()
    if store is not None and not store.check([_key(output_dir)]):
        begun = Begun(time.time(), None if checkpoint is None else str(checkpoint))
        store.set(_key(output_dir), json.dumps(asdict(begun)))


def begun_before(output_dir: Path) -> Begun | None:
    """Return what an earlier start of these processes began in a folder; None where there was none."""
    store = _store_of_launcher() if restart_count() else None
    if store is None or not store.check([_key(output_dir)]):
        return None
    return Begun(**json.loads(store.get(_key(output_dir))))


def _key(output_dir: Path) -> str:
    return f"docsplit/begun/{output_dir.resolve()}"


def _store_of_launcher() -> Any:
    """Return the store of a launcher that may start this process again; None without one."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if restarts == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or "RANK" not in os.environ:
        return None
    from torch.distributed import TCPStore

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))


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


def refuse_unusable_gpu() -> None:
    """Refuse to compute on the CPU where `nvidia-smi` sees a GPU and PyTorch cannot use it: nobody asked for the CPU.

    Who does asks with CUDA_VISIBLE_DEVICES= (nothing), or with --use_cpu of a training, which does not come here.

    Raises:
        ValueError: naming GPU, driver and build, and PyTorch's own reason.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = visible is not None and visible.strip() in ("", "-1")
    if torch.accelerator.is_available() or is_hidden or not (gpus := gpus_of_the_driver()):
        return
    try:
        torch.cuda.init()
        reason = f"CUDA_VISIBLE_DEVICES is {visible!r}, which names none of them"
    except (RuntimeError, AssertionError) as error:  # an old driver, a build without CUDA ...
        reason = " ".join(str(error).split()).rstrip(".")
    raise ValueError(
        f"nvidia-smi shows {len(gpus)} GPUs ({gpus[0]}), and this PyTorch ({torch.__version__}, CUDA "
        f"{torch.version.cuda}) cannot use any: {reason}. Install a newer driver, or a build for this one "
        "(https://pytorch.org/get-started/locally). To compute on the CPU instead, say so: CUDA_VISIBLE_DEVICES= "
        "before the command, or --use_cpu in a training."
    )


@functools.cache
def gpus_of_the_driver() -> list[str]:
    """Ask `nvidia-smi` for a line about each GPU, its name and driver; none where it is missing or fails."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


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
    slowness = {"cpu": "CPU only emulates bfloat16, some 20 times as slow", "cuda": "GPU only emulates bfloat16"}
    if bf16 and device.type in slowness and default_dtype(device) != torch.bfloat16:
        logger.warning(f"--bf16: this {slowness[device.type]}. Try --bf16 false.")


def check_precision(fp16: bool, bf16: bool | None, device: torch.device) -> None:
    """Refuse 16-bit precision that the device does not have.

    Raises:
        ValueError: for fp16 on a CPU, where accelerate would train in float32 and say nothing; for fp16 with bf16.
    """
    if fp16 and bf16:
        raise ValueError("--fp16 and --bf16 are two precisions: leave one out.")
    if device.type == "cpu" and (fp16 or (not bf16 and os.environ.get(PRECISION) == "fp16")):
        raise ValueError(
            "--fp16, or `accelerate launch --mixed_precision fp16`, needs a GPU, and this run is on the CPU: leave it "
            "out. bfloat16 is used by itself where the CPU multiplies it natively."
        )


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

    On a GPU of CUDA, `sdpa` is several kernels: then it says whether cuDNN's is tried first or last.

    Args:
        config: of the encoder that reads tokens; None where there is none.
    """
    parts = [f"device: {device} ({hardware(device.type)})", str(dtype).removeprefix("torch.")]
    attention = getattr(config, "_attn_implementation", None)
    if attention == "sdpa" and device.type == "cuda":
        attention = f"sdpa (cuDNN {'first' if prefers_cudnn_attention() else 'last'})"
    return ", ".join([*parts, *([f"{attention} attention"] if attention else [])])


def prefers_cudnn_attention() -> bool:
    """Return whether PyTorch tries cuDNN's attention before others, by the rule that its source has.

    `check_prefer_cudnn_attention`, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, PyTorch 2.13: cuDNN above
    9.15, a GPU of compute capability 9 or 10, and no `CUDNN_LAST` in the environment.
    """
    if os.environ.get(CUDNN_LAST) == "1" or not torch.backends.cuda.cudnn_sdp_enabled():
        return False
    version, (major, _) = torch.backends.cudnn.version(), torch.cuda.get_device_capability()
    return (version or 0) > 91500 and major in (9, 10)


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


def default_training_tokens(device: torch.device) -> int:
    """Choose the tokens of views in one forward pass in training, where activations take memory.

    A GPU takes its time for thousands of tokens before the host has launched the next pass.
    """
    if device.type != "cuda":
        return 1024 if device.type == "cpu" else 4096
    gigabytes = torch.cuda.get_device_properties(device).total_memory / 2**30
    return 32_768 if gigabytes >= 40 else 8192
