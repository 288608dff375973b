"""Processes, threads and logs, however a script was started: `python`, `accelerate launch` or `torchrun`."""

import logging
import os
from datetime import timedelta

import torch
from accelerate import PartialState

TIMEOUT = timedelta(hours=12)  # the others wait for the first process while it fits what needs no encoder


def join_processes() -> PartialState:
    """Join the processes that the launcher started, or be the only one, with all cores; the first of them logs."""
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=TIMEOUT)
    level = logging.INFO if state.is_main_process else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s %(message)s")
    for chatty in ("sentence_transformers", "bm25s"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    use_all_cores(state.device, state.num_processes)
    return state


def use_all_cores(device: torch.device, world_size: int) -> None:
    """`accelerate launch` sets one thread a process, which leaves the other cores of a one-process CPU run idle."""
    if device.type == "cpu" and world_size == 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
