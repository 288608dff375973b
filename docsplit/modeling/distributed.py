"""What processes tell each other in a step."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


class GatherRows(torch.autograd.Function):
    """Concatenate rows of all processes; the gradient of a row is the sum of what all processes ask of it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, max(counts) - rows.shape[0]))
        buffers = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(buffers, padded.contiguous())
        return torch.cat([buffer[:count] for buffer, count in zip(buffers, counts)])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        gradient = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        start = sum(ctx.counts[: dist.get_rank()])
        return gradient[start : start + ctx.counts[dist.get_rank()]], None


def gather_counts(num_documents: int, num_targets: int, device: torch.device) -> list[tuple[int, int]]:
    """The number of documents and of masked tokens of each process, in one collective."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return [(num_documents, num_targets)]
    local = torch.tensor([num_documents, num_targets], device=device)
    buffers = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(buffers, local)
    return [(rows, targets) for rows, targets in torch.stack(buffers).tolist()]
