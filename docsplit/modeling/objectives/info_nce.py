"""What an objective is, and the one that most papers have: InfoNCE on the two views of each document.

An objective owns what it trains besides the encoder (a second encoder, a queue, a head): all of it is training state,
kept in a checkpoint beside the released weights. To add one, write a class as `InfoNCE` and name it in
`docsplit.modeling.objectives.table.OBJECTIVES`.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docsplit.modeling.distributed import GlobalBatch, gather_documents, gather_queries

Similarity = Literal["cosine", "dot"]


class Encode(Protocol):
    """Encodes the batch with an encoder."""

    def __call__(self, base_model: nn.Module, view: int | None = None) -> Tensor:
        """Both views of each document, (B, 2, H), or the one with this number, (B, H)."""


@dataclass
class ObjectiveOutput:
    """A loss, scaled so that its mean over processes is its value over the documents of all, and what to log."""

    loss: Tensor  # ()
    num_masked_negatives: Tensor  # (), pairs left out because both are the same document
    parts: dict[str, Tensor] = field(default_factory=dict)  # of the loss, () each
    histograms: dict[str, Tensor] = field(default_factory=dict)  # counts (K,), to be summed over steps


class Objective(nn.Module):
    """A loss on the embeddings of a batch, with whatever is trained for it.

    Attributes:
        Options: a dataclass of its options, with a help text in the metadata of each; its `__post_init__` raises
            ValueErrors. The script parses them and the checkpoint's config keeps them.
        has_dropout: False: the encoders are trained without theirs.
        takes_queries: True: `forward` takes queries with their documents too.
        alike: names of buffers that all processes compute alike and that are too large to be sent: DDP leaves them
            out. All others it takes from the first process at each forward pass.
    """

    Options: ClassVar[type]
    has_dropout: ClassVar[bool] = True
    takes_queries: ClassVar[bool] = False
    alike: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: Any, base_model: nn.Module):
        """Make what is trained besides `base_model`, the encoder; only a copy of that may be kept."""
        super().__init__()
        self.options = options

    @classmethod
    def check(cls, settings: dict[str, Any]) -> None:
        """Refuse settings of the checkpoint that this objective does not go with.

        Raises:
            ValueError: with a masked-LM loss, if the objective decides which encoder embeds which view.
        """
        if cls.encode is not Objective.encode and (settings["mlm_weight"] or not settings["contrastive_weight"]):
            raise ValueError(
                f"{settings['objective']} has an encoder of its own, and the loss is contrastive alone: set "
                "mlm_weight=0 and contrastive_weight=1; or, if it is the checkpoint's objective and not yours, "
                "objective='info_nce'."
            )

    def further_encoders(self) -> tuple[nn.Module, ...]:
        """Encoders beside the one that is released."""
        return ()

    def encode(self, encode: Encode, base_model: nn.Module) -> Tensor:
        """Decide which encoder embeds which view: (B, 2, H). Who overrides this goes without masked LM."""
        return encode(base_model)

    def forward(self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> ObjectiveOutput:
        """Compare the documents of this process with those of all.

        Args:
            embeddings: (B, 2, H), of both views of this process's documents, not normalised.
            document_ids: (B,), equal for equal documents, which never are each other's negatives; or None.
            counts: the number of documents of each process.
        """
        raise NotImplementedError


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    temperature: float,
    targets: Tensor,
    excluded: Tensor | None = None,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Sum over anchors of -log softmax of similarity / temperature at the positive (SimCSE, equation 1).

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


@dataclass
class SoftmaxOptions:
    """What all objectives with a softmax over similarities have."""

    contrastive_temperature: float = field(
        default=0.05, metadata={"help": "Divides similarities. Default: the checkpoint's, else 0.05 (SimCSE)."}
    )
    similarity: Similarity = field(
        default="cosine", metadata={"help": "Of embeddings. Default: the checkpoint's, else cosine."}
    )

    def __post_init__(self) -> None:
        if self.contrastive_temperature <= 0:
            raise ValueError(f"contrastive_temperature is {self.contrastive_temperature}, expected more than 0.")
        if self.similarity not in get_args(Similarity):
            raise ValueError(f"similarity is {self.similarity!r}, expected one of {get_args(Similarity)}.")


class InfoNCE(Objective):
    """Each first view against the second views of all documents of the batch (DocSplit, section 2.1; SimCSE).

    A query is a first view, a relevant document its second one; further views are documents that are not relevant.
    """

    takes_queries = True

    @dataclass
    class Options(SoftmaxOptions):
        """Of InfoNCE with the other documents of the batch as negatives."""

        symmetric_loss: bool = field(
            default=False,
            metadata={"help": "Compare view 2 with all views 1 too. Default: the checkpoint's, else False."},
        )
        reverse_loss: bool = field(
            default=False,
            metadata={"help": "Compare view 2 with all views 1 instead. Default: the checkpoint's, else False."},
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.symmetric_loss and self.reverse_loss:
                raise ValueError("symmetric_loss has both directions, reverse_loss the second alone: choose one.")

    def forward(
        self,
        embeddings: Tensor,
        document_ids: Tensor | None,
        counts: list[int],
        relevant_ids: Tensor | None = None,
    ) -> ObjectiveOutput:
        """The mean over documents; as `Objective.forward`. Of dot products, which have no bound, their spread too.

        Args:
            relevant_ids: (B, R) of queries, as `gather_queries` takes them; embeddings are (B, V, H) then.
        """
        if relevant_ids is None or document_ids is None:
            batch = gather_documents(embeddings, document_ids, counts)
        else:
            batch = gather_queries(embeddings, document_ids, relevant_ids, counts)
        parts = {}
        if self.options.similarity == "dot":
            with torch.no_grad():
                logits = embeddings[:, 0].float() @ batch.embeddings[:, 1].float().T
                parts["logits_std"] = (logits / self.options.contrastive_temperature).std()
        return ObjectiveOutput(self.compare(embeddings, batch), batch.num_excluded, parts)

    def compare(self, embeddings: Tensor, batch: GlobalBatch) -> Tensor:
        """The loss () of this process's documents (B, V, H) among those of all, scaled as `ObjectiveOutput` says."""
        first, second, *others = batch.embeddings.unbind(1)  # (N, H) each
        candidates = torch.cat([second, *others]) if others else second  # (C, H), the positives first
        excluded = batch.excluded if batch.excluded_queries is None else batch.excluded_queries
        directions = [(embeddings[:, 0], candidates, batch.excluded), (embeddings[:, 1], first, excluded)]
        if not self.options.symmetric_loss:
            directions = directions[1:] if self.options.reverse_loss else directions[:1]
        temperature, similarity = self.options.contrastive_temperature, self.options.similarity
        losses = [info_nce(own, theirs, temperature, batch.targets, no, similarity) for own, theirs, no in directions]
        total = torch.stack(losses).mean()
        return total * batch.scale
