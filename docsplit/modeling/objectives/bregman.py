"""Self-contrastive Bregman divergence: InfoNCE, and beside it a loss of an ensemble on top of the embeddings.

Each of K affine functionals gives an embedding s a number z_k(s); phi(s) is the largest of them. The divergence of two
embeddings is what the first one loses if the functional that is largest for the second takes the place of its own. Two
views of a document should have the same functional, other documents others: that is meant to keep the encoder from
using few directions. After pretraining the ensemble is left behind.

Source: "Efficient document embeddings via self-contrastive Bregman divergence learning" (section 3.2.1; equations 2 to
7), after Rezaei et al. (2021). What the paper leaves open, and where its published code does otherwise, stands in
docs/paper_map.md. Its phi is convex in what the last layer reads, not in s (there is a ReLU below), and not strictly.

Batch norm couples all rows. So the ensemble reads the embeddings of all micro-batches and all processes at once, which
is cheap beside the encoder, and each process computes the loss of all documents.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docsplit.modeling.distributed import gather_documents
from docsplit.modeling.encoding import embedding_width
from docsplit.modeling.objectives.base import ObjectiveOutput
from docsplit.modeling.objectives.info_nce import InfoNCE
from docsplit.runtime.bounds import Count, Positive, Weight, option

logger = logging.getLogger(__name__)

Trunk = Literal["separate", "shared"]


class Ensemble(nn.Module):
    """The functionals: g networks width -> width -> batch norm -> ReLU -> m -> batch norm, with one first layer or g.

    Args:
        width: of the embeddings, and of the hidden layer of each network.
        num_networks: g, "subnetworks" in the paper.
        outputs: m of each; K is g * m.
        trunk: "shared": all functionals read one hidden layer, as in the authors' code.
        batch_norm: False leaves both out.
    """

    def __init__(self, width: int, num_networks: int, outputs: int, trunk: Trunk, batch_norm: bool):
        super().__init__()
        num_trunks, num_outputs = (1 if trunk == "shared" else num_networks), num_networks * outputs
        self.num_trunks = num_trunks
        # Side by side: the layers of independent networks are one matrix, and blocks of another.
        self.hidden = nn.Linear(width, num_trunks * width)
        self.hidden_norm = nn.BatchNorm1d(num_trunks * width) if batch_norm else nn.Identity()
        bound = 1 / math.sqrt(width)  # as nn.Linear begins
        self.weight = nn.Parameter(torch.empty(num_trunks, num_outputs // num_trunks, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.output_norm = nn.BatchNorm1d(num_outputs) if batch_norm else nn.Identity()

    def features(self, embeddings: Tensor) -> Tensor:
        """Turn (R, width) into the functionals' input, (R, networks, width); with a shared trunk (R, 1, width)."""
        hidden = self.hidden_norm(self.hidden(embeddings)).relu()
        return hidden.unflatten(1, (self.num_trunks, -1))

    def functionals(self, features: Tensor) -> Tensor:
        """Return the values z (R, K); affine in the features, but for batch norm in training."""
        return self.output_norm(torch.einsum("rtd,tkd->rtk", features, self.weight).flatten(1) + self.bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Turn (R, width) into z (R, K), in the weights' dtype, whatever autocast says."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.functionals(self.features(embeddings.to(self.weight.dtype)))


def bregman_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Return G[i, j] = z_i[k(i)] - z_i[k(j)], k the index of the largest (equation 4); 0 or more, not symmetric.

    Both terms evaluate the first argument. So the gradient reaches that alone: the second gives only an index.

    Args:
        first: z (A, K).
        second: z (C, K).

    Returns: (A, C).
    """
    return first.gather(1, first.argmax(dim=1, keepdim=True)) - first[:, second.argmax(dim=1)]


def bregman_loss(
    first: Tensor,
    second: Tensor,
    sigma: float,
    temperature: float,
    excluded: Tensor | None = None,
    symmetric: bool = True,
) -> Tensor:
    """Return the mean over anchors of -log softmax of exp(-G / (2 sigma^2)) / temperature at the positive.

    Equations 5 and 6. Computed in fp32 (float64 for float64 inputs), whatever autocast says.

    Args:
        first: z (N, K) of view 1.
        second: z (N, K) of view 2.
        temperature: without it (1) the softmax is nearly flat: what it compares lies between 0 and 1.
        excluded: (N, N), True where two documents are the same; False on the diagonal.
        symmetric: True: each of the 2N embeddings is an anchor, all others but itself are candidates (the authors'
            code). False: views 1 are the anchors and views 2 the candidates (equation 6).
    """
    with torch.autocast(first.device.type, enabled=False):
        dtype = torch.promote_types(first.dtype, torch.float32)
        first, second = first.to(dtype), second.to(dtype)
        targets = torch.arange(len(first), device=first.device)
        if symmetric:
            left_out = torch.eye(2 * len(first), dtype=torch.bool, device=first.device)
            excluded = left_out if excluded is None else left_out | excluded.tile(2, 2)
            targets = torch.cat([targets + len(first), targets])
            first = second = torch.cat([first, second])  # (2N, K)
        kernel = torch.exp(-bregman_divergence(first, second) / (2 * sigma**2))
        logits = kernel / temperature
        if excluded is not None:
            logits = logits.masked_fill(excluded, float("-inf"))
        return F.cross_entropy(logits, targets)


class BregmanInfoNCE(InfoNCE):
    """InfoNCE plus the loss of an ensemble's Bregman divergences, against collapse (self-contrastive Bregman)."""

    takes_queries = False
    loss_name = "InfoNCE and Bregman"
    loss_parts: ClassVar[Mapping[str, str]] = {"info_nce_loss": "InfoNCE", "bregman_loss": "Bregman"}

    @dataclass
    class Options(InfoNCE.Options):
        """InfoNCE with an ensemble of Bregman divergences."""

        bregman_weight: Weight = option(
            2.0,
            "Weight of the Bregman loss beside InfoNCE (lambda). The paper says 2; its code weighs them "
            "as 0.5 would. 0: the ensemble is measured, not trained. Default: the checkpoint's, else 2.",
        )
        bregman_temperature: Positive = option(
            0.1,
            "Divides exp(-G / (2 sigma^2)), which is 1 at most: at a temperature of 1 the loss hardly "
            "moves. Default: the checkpoint's, else 0.1 (the authors' code).",
        )
        bregman_sigma: Positive = option(
            2.0,
            "Width of the kernel exp(-G / (2 sigma^2)): the larger it is, the more divergences count as "
            "near. Default: the checkpoint's, else 2 (as in the paper).",
        )
        bregman_subnetworks: Count = option(
            10,
            "Number of networks in the ensemble (g). Default: the checkpoint's, else 10 (as in the paper).",
        )
        bregman_width: Count | None = option(
            None,
            "Outputs of each network; the largest output of all networks counts. Default: the "
            "checkpoint's, else 1, and with a shared trunk the encoder's width (the authors' code).",
        )
        bregman_trunk: Trunk = option(
            "separate",
            "Whether networks share a hidden layer. separate: they share nothing (the paper's text). "
            "shared: one hidden layer for all (the authors' code). Default: the checkpoint's, else separate.",
        )
        bregman_batch_norm: bool = option(
            True,
            "Use batch norm in the ensemble, over both views of the documents of all processes in one "
            "accumulation step. Default: the checkpoint's, else True.",
        )
        bregman_symmetric: bool = option(
            True,
            "Take all 2N views as anchors and candidates (the authors' code). False: compare first views "
            "with second ones (equation 6). Default: the checkpoint's, else True.",
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.bregman_trunk not in get_args(Trunk):
                raise ValueError(f"bregman_trunk is {self.bregman_trunk!r}, expected one of {get_args(Trunk)}.")
            width = self.bregman_width or (1 if self.bregman_trunk == "separate" else None)
            if self.bregman_subnetworks == width == 1:
                raise ValueError(
                    "bregman_subnetworks is 1, of one output: a single functional is always the largest, and all "
                    "divergences are 0. Raise it, or bregman_width."
                )

    @classmethod
    def details(cls, settings: Mapping[str, Any]) -> list[str]:
        """Name the paper's numbers of the Bregman loss too, by its letters."""
        names = {"lambda": "weight", "sigma": "sigma", "g": "subnetworks", "temperature": "temperature"}
        said = ", ".join(f"{letter} {settings[f'bregman_{name}']:g}" for letter, name in names.items())
        return [*super().details(settings), f"Bregman loss ({said})"]

    def __init__(self, options: Any, body: Any):
        super().__init__(options, body)
        width = embedding_width(body)
        outputs = options.bregman_width or (width if options.bregman_trunk == "shared" else 1)
        self.projection = Ensemble(
            width, options.bregman_subnetworks, outputs, options.bregman_trunk, options.bregman_batch_norm
        )
        self.has_warned = False

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> None:
        """Refuse a loss without the contrastive part, of which the ensemble is one.

        Raises:
            ValueError: if nothing would train the ensemble.
        """
        super().check(settings)
        if not settings["contrastive_weight"]:
            raise ValueError(
                f"{settings['objective']} is a contrastive loss, which contrastive_weight 0 leaves out: raise it, or "
                "set objective='info_nce' for masked LM alone."
            )

    def forward(  # type: ignore[override]  # no queries
        self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]
    ) -> ObjectiveOutput:
        """Add InfoNCE of this process's documents and the Bregman loss of all documents, as `Objective.forward`.

        Its parts are both losses; its histogram counts how often each functional was the largest.
        """
        batch = gather_documents(embeddings, document_ids, counts)
        contrast = self.compare(embeddings, batch)

        # The whole ensemble loss on each process, unscaled: the mean over processes is that loss
        num_rows = 2 * sum(counts)
        if self.options.bregman_batch_norm and self.training and num_rows < 8 and not self.has_warned:
            self.has_warned = True
            logger.warning(
                f"The ensemble's batch norm has {num_rows} embeddings a step, and with 2 its outputs would be signs: "
                "raise the batch, or give --bregman_batch_norm false."
            )
        everything = batch.embeddings.transpose(0, 1).flatten(0, 1)  # (2N, H): views 1, then views 2
        z = self.projection(everything)  # (2N, K)
        excluded = None
        if (ids := batch.document_ids) is not None:  # documents that are the same, but for each itself
            excluded = (ids[:, None] == ids[None, :]).fill_diagonal_(False)
        first, second = z.chunk(2)
        options = self.options
        loss = bregman_loss(
            first, second, options.bregman_sigma, options.bregman_temperature, excluded, options.bregman_symmetric
        )
        parts = {"info_nce_loss": contrast.detach(), "bregman_loss": loss.detach()}
        largest = z.argmax(dim=1)
        histogram = largest.new_zeros(z.shape[1]).index_add_(0, largest, torch.ones_like(largest))
        total = contrast + options.bregman_weight * loss
        return ObjectiveOutput(total, batch.num_excluded, parts, {"subnetworks": histogram})
