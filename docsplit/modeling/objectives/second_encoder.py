"""Two objectives with a second encoder, which starts as a copy of the first and embeds the second view of a document.

Contrastive Tension trains both encoders. In MoCo the second one follows the first as a moving average, and its last
embeddings are the negatives, in place of the other documents of the batch. Both need memory for the weights twice.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docsplit.modeling.distributed import gather_documents
from docsplit.modeling.encoding import embedding_width
from docsplit.modeling.objectives.base import Encode, Objective, ObjectiveOutput, SoftmaxOptions
from docsplit.modeling.objectives.info_nce import info_nce
from docsplit.runtime.bounds import Count, Share, option

CT_NEGATIVES = 7  # to one positive (Contrastive Tension, section 3)


class _SecondEncoder(Objective):
    """A copy of the encoder embeds the second view of each document."""

    def __init__(self, options: Any, body: Any):
        super().__init__(options, body)
        self.second_encoder = copy.deepcopy(body)

    def further_encoders(self) -> tuple[nn.Module, ...]:
        return (self.second_encoder,)

    def encode(self, encode: Encode, body: Any) -> Tensor:
        return torch.stack([encode(body, view=0), encode(self.second_encoder, view=1)], dim=1)


class ContrastiveTension(_SecondEncoder):
    """Binary cross-entropy of dot products with one positive and 7 negatives, without dropout (Carlsson et al. 2021).

    The original releases the copy that does better on a labelled validation set; here the first one is released.
    """

    has_dropout = False

    @dataclass
    class Options:
        """Contrastive Tension has no options: the paper leaves nothing open."""

    def train(self, mode: bool = True) -> "ContrastiveTension":
        """Leave dropout off, as `has_dropout` says."""
        super().train(mode)
        self.second_encoder.eval()
        return self

    def forward(self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> ObjectiveOutput:
        """Return the mean over documents and their 8 pairs, as `Objective.forward`.

        Raises:
            ValueError: if there are too few documents to draw negatives from.
        """
        num_documents = sum(counts)
        if num_documents <= CT_NEGATIVES:
            problem = (
                f"Contrastive Tension draws {CT_NEGATIVES} other documents of the batch, which has {num_documents}"
            )
            raise ValueError(f"{problem}: raise --per_device_train_batch_size, or that of evaluation.")
        batch = gather_documents(embeddings, document_ids, counts)
        excluded = batch.excluded
        if excluded is None:
            excluded = torch.zeros(len(batch.targets), num_documents, dtype=torch.bool, device=embeddings.device)
        total = contrastive_tension(embeddings[:, 0], batch.embeddings[:, 1], batch.targets, excluded)
        return ObjectiveOutput(total * (batch.scale / (1 + CT_NEGATIVES)), batch.num_excluded)


def contrastive_tension(anchors: Tensor, candidates: Tensor, targets: Tensor, excluded: Tensor) -> Tensor:
    """Return the sum over anchors of the binary cross-entropy of dot products, with 7 drawn negatives each.

    Contrastive Tension, section 3. Its negatives are pairs of other sentences; here each anchor meets other documents
    of the batch, drawn anew in each step from PyTorch's generator, which Trainer saves and restores.

    Args: as those of `info_nce`. An anchor with fewer than 7 candidates that are not excluded meets all of them.
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


class KeyQueue(nn.Module):
    """The last `size` keys of all processes, with the ids of their documents; it starts empty.

    All processes put the keys of all into theirs, so DDP has nothing to send.
    """

    def __init__(self, size: int, width: int, dtype: torch.dtype):
        super().__init__()
        self.size = size
        self.keys: Tensor
        self.document_ids: Tensor
        self.count: Tensor
        self.register_buffer("keys", torch.zeros(size, width, dtype=torch.promote_types(dtype, torch.float32)))
        self.register_buffer("document_ids", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))  # of all keys that were ever put in

    @torch.no_grad()
    def put(self, keys: Tensor, document_ids: Tensor | None) -> None:
        """Let keys (N, H) take the place of the oldest; without ids (N,) they count as of no document."""
        places = (self.count + torch.arange(len(keys), device=keys.device)) % self.size
        self.keys.index_copy_(0, places, keys.to(self.keys.dtype))
        self.document_ids.index_copy_(0, places, torch.zeros_like(places) if document_ids is None else document_ids)
        self.count += len(keys)


class MomentumContrast(_SecondEncoder):
    """InfoNCE with the last keys of a momentum encoder as negatives (He et al. 2020; Contriever, section 3.3)."""

    alike = ("queue.keys", "queue.document_ids", "queue.count")

    @dataclass
    class Options(SoftmaxOptions):
        """Momentum contrast (MoCo): InfoNCE with a queue of negatives."""

        momentum_queue_size: Count = option(
            131072,
            "Number of negatives: the queue keeps the last N embeddings of the momentum encoder. "
            "Default: the checkpoint's, else 131072.",
        )
        momentum: Share = option(
            0.9995,
            "Share of its weights that the momentum encoder keeps in each forward pass (EMA). Default: "
            "the checkpoint's, else 0.9995 (Contriever).",
        )

    @classmethod
    def details(cls, settings: Mapping[str, Any]) -> list[str]:
        """Name the queue too."""
        return [*super().details(settings), f"a queue of {settings['momentum_queue_size']:,} negatives"]

    def __init__(self, options: Any, body: Any):
        super().__init__(options, body)
        self.second_encoder.requires_grad_(False)
        width, weights = embedding_width(body), next(body.parameters())
        self.queue = KeyQueue(options.momentum_queue_size, width, weights.dtype)

    def encode(self, encode: Encode, body: Any) -> Tensor:
        """Let the second encoder follow the first, in training, and embed second views with it, without gradient."""
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                theirs: list[Any] = list(self.second_encoder.parameters())
                ours: list[Any] = list(body.parameters())
                torch._foreach_lerp_(theirs, ours, 1 - self.options.momentum)
        queries = encode(body, view=0)
        with torch.no_grad():
            keys = encode(self.second_encoder, view=1)
        return torch.stack([queries, keys], dim=1)

    def forward(self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> ObjectiveOutput:
        """Compare each first view with its key and the queue, no other key of the batch (MoCo, algorithm 1).

        In training the keys of all processes then enter the queue. As `Objective.forward`.

        Raises:
            ValueError: if the batch is larger than the queue.
        """
        batch = gather_documents(embeddings, document_ids, counts)
        keys, targets, queue = batch.embeddings[:, 1].detach(), batch.targets, self.queue
        if len(keys) > queue.size:
            raise ValueError(
                f"--momentum_queue_size is {queue.size}, but a batch has {len(keys)} documents: raise it."
            )
        positives = keys[targets]  # (B, H)
        is_empty = torch.arange(queue.size, device=keys.device) >= queue.count  # where no key was put yet
        excluded = is_empty.expand(len(positives), queue.size)
        num_excluded = targets.new_zeros(())
        if document_ids is not None:
            same = (document_ids[:, None] == queue.document_ids) & ~excluded
            excluded, num_excluded = excluded | same, same.sum()
        others = ~torch.eye(len(positives), dtype=torch.bool, device=positives.device)  # no negatives from the batch
        total = info_nce(
            embeddings[:, 0],
            torch.cat([positives, queue.keys]),
            self.options.contrastive_temperature,
            torch.arange(len(positives), device=positives.device),
            torch.cat([others, excluded], dim=1),
            self.options.similarity,
        )
        if self.training:
            queue.put(keys, batch.document_ids)
        return ObjectiveOutput(total * batch.scale, num_excluded)
