"""Move tensors between host and device, and documents between processes, in a step.

A copy that blocks makes the host wait until all that was launched before has been computed. From pinned memory a copy
joins the queue of the device in its turn. With the documents of all processes, loss and gradient are those of all.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
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


class GatherRows(torch.autograd.Function):
    """Concatenate rows of all processes; the gradient of a row is the sum of what all processes ask of it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        """Gather rows (B, ...) of each process, of which there are `counts`: (N, ...) on all."""
        ctx.counts = counts
        padded = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, max(counts) - rows.shape[0]))
        buffers = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(buffers, padded.contiguous())
        return torch.cat([buffer[:count] for buffer, count in zip(buffers, counts)])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        """Sum gradients (N, ...) over processes, and return this process's (B, ...)."""
        gradient = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        start = sum(ctx.counts[: dist.get_rank()])
        return gradient[start : start + ctx.counts[dist.get_rank()]], None


def gather_counts(num_documents: int, num_targets: int, device: torch.device) -> list[tuple[int, int]]:
    """Gather the number of documents and of masked tokens of each process, in one collective.

    With several processes the host waits for the device once, to read them.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return [(num_documents, num_targets)]
    local = send(torch.tensor([num_documents, num_targets]), device)
    buffers = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(buffers, local)
    return [(rows, targets) for rows, targets in torch.stack(buffers).tolist()]


@dataclass
class GlobalBatch:
    """The documents of all processes, beside those of this one."""

    embeddings: Tensor  # (N, V, H), with gradient to the process that each row is from
    targets: Tensor  # (B,), which of the N are this process's
    document_ids: Tensor | None  # (N,)
    excluded: Tensor | None  # (B, (V - 1) N), True where a candidate is no negative; False for the positive
    num_excluded: Tensor  # (), of this process's pairs
    scale: float  # of a sum over the B, for its mean over processes to be the mean over the N
    excluded_queries: Tensor | None = None  # (B, N), where it is not the same: of documents as anchors


def gather_documents(embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> GlobalBatch:
    """Put the documents of all processes together.

    Args:
        embeddings: (B, 2, H), both views of this process's documents.
        document_ids: (B,), equal for equal documents; None: all documents differ.
        counts: B of each process.
    """
    everything = embeddings if len(counts) == 1 else GatherRows.apply(embeddings, counts)  # (N, 2, H)
    start = sum(counts[: dist.get_rank()]) if len(counts) > 1 else 0
    targets = torch.arange(start, start + embeddings.shape[0], device=embeddings.device)
    excluded, num_excluded, all_ids = None, targets.new_zeros(()), None
    if document_ids is not None:
        all_ids = document_ids if len(counts) == 1 else GatherRows.apply(document_ids, counts)
        excluded = document_ids[:, None] == all_ids[None, :]  # (B, N)
        excluded.scatter_(1, targets[:, None], False)
        num_excluded = excluded.sum()
    return GlobalBatch(everything, targets, all_ids, excluded, num_excluded, len(counts) / sum(counts))


def gather_queries(embeddings: Tensor, document_ids: Tensor, relevant_ids: Tensor, counts: list[int]) -> GlobalBatch:
    """Put the queries of all processes together, with their documents; relevant documents are no negatives.

    Args:
        embeddings: (B, V, H), each query, a document that is relevant to it, and V - 2 that are not.
        document_ids: (B, V - 1), of these documents, equal for equal texts.
        relevant_ids: (B, R), of all documents that are judged relevant to each query, padded with what is no id; as
            wide on all processes.
        counts: B of each process.

    Returns: the batch, whose candidates are the relevant documents of all queries, then the others, view by view.
    """
    batch = gather_documents(embeddings, None, counts)
    all_ids, all_relevant = document_ids, relevant_ids
    if len(counts) > 1:
        all_ids, all_relevant = (GatherRows.apply(ids, counts) for ids in (document_ids, relevant_ids))
    batch.document_ids = all_ids[:, 0]
    batch.excluded = _are_among(all_ids.T.flatten(), relevant_ids)
    batch.excluded_queries = _are_among(document_ids[:, 0], all_relevant).T.contiguous()
    for excluded in (batch.excluded, batch.excluded_queries):
        excluded.scatter_(1, batch.targets[:, None], False)
    batch.num_excluded = batch.excluded.sum()
    return batch


def _are_among(values: Tensor, sets: Tensor) -> Tensor:
    """Tell which values (M,) are in each of the sets (B, R): (B, M)."""
    ordered = sets.sort(dim=1).values
    wanted = values.expand(len(sets), -1).contiguous()
    places = torch.searchsorted(ordered, wanted).clamp(max=ordered.shape[1] - 1)
    return ordered.gather(1, places) == wanted
