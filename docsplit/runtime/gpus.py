"""The GPU of this machine, if PyTorch can use it."""

import os
import subprocess

import torch


def refuse_unusable_gpu() -> None:
    """Refuse to compute on the CPU where `nvidia-smi` sees a GPU and PyTorch cannot use it: nobody asked for the CPU.

    Who does asks with CUDA_VISIBLE_DEVICES= (nothing), or with --use_cpu of a training, which does not come here.

    Raises:
        ValueError: naming GPU, driver and build, and PyTorch's own reason.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = visible is not None and visible.strip() in ("", "-1")
    if torch.accelerator.is_available() or is_hidden:
        return
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")[:-1]
    except (OSError, subprocess.SubprocessError):  # there is no driver
        return
    if not gpus:
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
