"""InfoNCE, the usual contrastive loss: on the two views of each document, or on queries and their documents."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from docsplit.modeling.distributed import GlobalBatch, gather_documents, gather_queries
from docsplit.modeling.objectives.base import Objective, ObjectiveOutput, Similarity, SoftmaxOptions
from docsplit.runtime.bounds import option


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    temperature: float,
    targets: Tensor,
    excluded: Tensor | None = None,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Return the sum over anchors of -log softmax of similarity / temperature at the positive (SimCSE, equation 1).

    Computed in fp32 (float64 for float64 inputs), whatever autocast says.

    Args:
        anchors: (A, H).
        candidates: (C, H), the positives and negatives of all anchors.
        temperature: tau of the paper, 0.05 there.
        targets: (A,), the index of each anchor's positive among the candidates.
        excluded: (A, C), True where a candidate must not count as a negative. The positive itself never may be.
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


class InfoNCE(Objective):
    """Cross-entropy of each first view against the second views of the batch (DocSplit, section 2.1; SimCSE).

    A query is a first view, a relevant document its second one; further views are documents that are not relevant.
    """

    takes_queries = True

    @dataclass
    class Options(SoftmaxOptions):
        """InfoNCE with the other documents of the batch as negatives."""

        symmetric_loss: bool = option(
            False,
            "Average two losses: first views against all second ones, and second views against all first "
            "ones. Default: the checkpoint's, else False.",
        )
        reverse_loss: bool = option(
            False,
            "Compare second views with all first ones, not first with second. Default: the checkpoint's, else False.",
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.symmetric_loss and self.reverse_loss:
                raise ValueError("symmetric_loss has both directions, reverse_loss only the second: choose one.")

    def forward(
        self,
        embeddings: Tensor,
        document_ids: Tensor | None,
        counts: list[int],
        relevant_ids: Tensor | None = None,
    ) -> ObjectiveOutput:
        """Return the mean over documents, as `Objective.forward`; for dot products, which have no bound, their spread.

        Args:
            relevant_ids: (B, R) of queries, as `gather_queries` takes them; embeddings are (B, V, H) then.
        """
        if relevant_ids is None or document_ids is None:
            batch = gather_documents(embeddings, document_ids, counts)
        else:
            batch = gather_queries(embeddings, document_ids, relevant_ids, counts)
        parts = {}
        if self.options.similarity == "dot" and len(batch.embeddings) > 1:
            with torch.no_grad():
                logits = embeddings[:, 0].float() @ batch.embeddings[:, 1].float().T
                parts["logits_std"] = (logits / self.options.contrastive_temperature).std()
        return ObjectiveOutput(self.compare(embeddings, batch), batch.num_excluded, parts)

    def compare(self, embeddings: Tensor, batch: GlobalBatch) -> Tensor:
        """Compare this process's documents (B, V, H) with all: a loss (), scaled as `ObjectiveOutput` says."""
        first, second, *others = batch.embeddings.unbind(1)  # (N, H) each
        candidates = torch.cat([second, *others]) if others else second  # (C, H), the positives first
        excluded = batch.excluded if batch.excluded_queries is None else batch.excluded_queries
        directions = [(embeddings[:, 0], candidates, batch.excluded), (embeddings[:, 1], first, excluded)]
        if not self.options.symmetric_loss:
            directions = directions[1:] if self.options.reverse_loss else directions[:1]
        temperature, similarity = self.options.contrastive_temperature, self.options.similarity
        losses = [
            info_nce(anchors, compared, temperature, batch.targets, hidden, similarity)
            for anchors, compared, hidden in directions
        ]
        total = torch.stack(losses).mean()
        return total * batch.scale
