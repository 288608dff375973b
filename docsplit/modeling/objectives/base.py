"""The base of objectives: a loss on the embeddings of a batch, with all that is trained for it.

An objective owns what it trains besides the encoder (a second encoder, a queue, a head): all of it is training state,
kept in a checkpoint beside the released weights. To add one, write a class as `InfoNCE` and give it a row in the
dictionary `docsplit.modeling.objectives.table.OBJECTIVES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

from torch import Tensor, nn

from docsplit.runtime.bounds import Positive, check_bounds, option

Similarity = Literal["cosine", "dot"]


class Encode(Protocol):
    """A function that encodes the batch with a SentenceTransformer."""

    def __call__(self, body: Any, view: int | None = None) -> Tensor:
        """Return both views of each document, (B, 2, H), or the one with this number, (B, H)."""


class Preparation(Protocol):
    """The part of `docsplit.training.run.Run` that `Objective.prepare` uses."""

    def neighbour_targets(self, options: Any) -> Path:
        """Return the file of a vector for each document, averaged with its neighbours' as the options say."""


@dataclass
class ObjectiveOutput:
    """A loss and its parts: what to log beside it."""

    loss: Tensor  # (), scaled so that its mean over processes is its value over the documents of all
    num_masked_negatives: Tensor | None = None  # (), pairs left out because both are the same document
    parts: dict[str, Tensor] = field(default_factory=dict)  # of the loss, () each
    histograms: dict[str, Tensor] = field(default_factory=dict)  # counts (K,), to be summed over steps


@dataclass
class SoftmaxOptions:
    """Options of all objectives with a softmax over similarities."""

    contrastive_temperature: Positive = option(
        0.05,
        "Divide similarities by this before the softmax: lower values stress the nearest negatives. Default: the "
        "checkpoint's, else 0.05 (SimCSE).",
    )
    similarity: Similarity = option(
        "cosine",
        "How two embeddings are compared: by cosine or by dot product. Default: the checkpoint's, else cosine.",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.similarity not in get_args(Similarity):
            raise ValueError(f"similarity is {self.similarity!r}, expected one of {get_args(Similarity)}.")


class Objective(nn.Module):
    """A loss on the embeddings of a batch, with whatever is trained for it.

    Attributes:
        Options: a dataclass of its options, with a help text in the metadata of each; its `__post_init__` raises
            ValueErrors. The script parses them and the checkpoint's config keeps them.
        has_dropout: False: the encoders are trained without theirs.
        takes_queries: True: `forward` takes queries with their documents too.
        alike: names of buffers that all processes compute alike and that are too large to be sent: DDP leaves them
            out. All others it takes from the first process at each forward pass.
        prepared_files: names of files that `prepare` writes into the output folder.
        loss_name: of its loss, on screens and in pictures; logs call it `contrastive_loss`, whatever it is.
        loss_parts: names of those parts of `ObjectiveOutput` that add up to the loss, by their keys in the log.
    """

    Options: ClassVar[type]
    has_dropout: ClassVar[bool] = True
    takes_queries: ClassVar[bool] = False
    alike: ClassVar[tuple[str, ...]] = ()
    prepared_files: ClassVar[tuple[str, ...]] = ()
    loss_name: ClassVar[str] = "contrastive"
    loss_parts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Any, body: Any):
        """Make what is trained besides `body`, the SentenceTransformer; only a copy of that may be kept."""
        super().__init__()
        self.options = options

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
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

    @classmethod
    def aim(cls, settings: Mapping[str, Any]) -> str:
        """Say what an encoder of these settings learns, for its card: it follows "learnt"."""
        return "to tell documents apart"

    @classmethod
    def details(cls, settings: Mapping[str, Any]) -> list[str]:
        """Return the settings that a card names beside the objective."""
        if "similarity" not in settings:
            return []
        return [f"{settings['similarity']} similarity", f"temperature {settings['contrastive_temperature']:g}"]

    def further_encoders(self) -> tuple[nn.Module, ...]:
        """Return the encoders beside the one that is released."""
        return ()

    def prepare(self, run: Preparation) -> None:
        """Prepare the data that the loss needs beside the batches, once before training, on all processes.

        Most objectives need none.
        """

    def encode(self, encode: Encode, body: Any) -> Tensor:
        """Choose which encoder embeds which view: (B, 2, H). An objective that overrides this has no masked LM."""
        return encode(body)

    def forward(self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> Tensor | ObjectiveOutput:
        """Compare the documents of this process with those of all.

        Args:
            embeddings: (B, 2, H), of both views of this process's documents, not normalised.
            document_ids: (B,), equal for equal documents, which never are each other's negatives; or None.
            counts: the number of documents of each process.

        Returns: the loss (), scaled so that its mean over processes is its value over the documents of all (a sum over
            the B times `len(counts) / sum(counts)`); or an `ObjectiveOutput` of it and of what to log.
        """
        raise NotImplementedError
