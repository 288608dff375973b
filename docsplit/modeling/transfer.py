"""Copy small tensors between the host and the device without waiting for what the device still has to compute.

A copy that blocks makes the host wait until all that was launched before has been computed. From pinned memory a copy
joins the queue of the device in its turn.
"""

from typing import Any

import torch
from torch import Tensor

WITHOUT_QUEUE = ("cpu", "meta", "mps")  # a CPU computes at once; on MPS nothing tells when a copy has arrived


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Begin to copy a tensor of the host to a device: what is launched next finds it there."""
    if device.type in WITHOUT_QUEUE:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(tensor: Tensor) -> tuple[Tensor, Any]:
    """Begin to copy a tensor to the host: return the copy, and an event to `synchronize` before it is read.

    The event is None where the copy is there already.
    """
    if tensor.device.type in WITHOUT_QUEUE:
        return tensor.cpu(), None
    copy = tensor.to("cpu", non_blocking=True)
    arrival = torch.get_device_module(tensor.device).Event()
    arrival.record()
    return copy, arrival
