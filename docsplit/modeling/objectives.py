"""Losses on the embeddings of a batch."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Literal["info_nce", "contrastive_tension"]
Similarity = Literal["cosine", "dot"]
CT_NEGATIVES = 7  # to one positive (Contrastive Tension, section 3)


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    temperature: float,
    targets: Tensor,
    excluded: Tensor | None = None,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Sum over anchors of -log softmax of similarity / temperature at the positive (SimCSE, equation 1).

    Args:
        anchors: (A, H).
        candidates: (C, H), the positives and negatives of all anchors.
        temperature: tau of the paper, 0.05 there.
        targets: (A,), the index of each anchor's positive among the candidates.
        excluded: (A, C), True where a candidate must not count as a negative. The positive itself never may be.

    Computed in fp32 (float64 for float64 inputs), whatever autocast says.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        anchors, candidates = anchors.to(dtype), candidates.to(dtype)
        if similarity == "cosine":
            anchors, candidates = F.normalize(anchors, dim=-1), F.normalize(candidates, dim=-1)
        logits = anchors @ candidates.T / temperature  # (A, C)
        if excluded is not None:
            logits = logits.masked_fill(excluded, float("-inf"))
        return F.cross_entropy(logits, targets, reduction="sum")


def contrastive_tension(anchors: Tensor, candidates: Tensor, targets: Tensor, excluded: Tensor) -> Tensor:
    """Sum over anchors of the binary cross-entropy of dot products with the positive and 7 drawn negatives.

    Contrastive Tension, section 3. Its negatives are pairs of other sentences; here each anchor meets other documents
    of the batch, drawn anew in each step from PyTorch's generator, which Trainer saves and restores.

    Args: as those of `info_nce`. Of an anchor with fewer than 7 candidates beside the excluded ones, all are used.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        logits = anchors.to(dtype) @ candidates.to(dtype).T  # (A, C)
        is_positive = torch.zeros_like(excluded).scatter_(1, targets[:, None], True)
        order = torch.rand(logits.shape, device=logits.device).masked_fill_(excluded | is_positive, -1)
        values, drawn = order.topk(CT_NEGATIVES, dim=1)
        chosen = torch.zeros_like(excluded).scatter_(1, drawn, values >= 0) | is_positive
        losses = F.binary_cross_entropy_with_logits(logits, is_positive.to(dtype), reduction="none")
        return (losses * chosen).sum()
