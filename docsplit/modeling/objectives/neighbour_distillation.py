"""The encoder learns to map a document to the average of its own and its neighbours' original vectors.

The targets are made once, before training, by `docsplit.training.teacher`: the start's own vectors of the whole
documents, each averaged with its nearest neighbours in the corpus. No second encoder is in memory, and nothing is
pushed apart. Related work: Mean Shift (Koohpayegani et al. 2021) and NNCLR (Dwibedi et al. 2021), whose neighbours
come from a queue that follows the training, and relational distillation (Park et al. 2019).

Dropout is off: the targets have none of its noise, and a student that has to see through it gives vectors of fewer
dimensions (`benchmarks/studies/adaptation/study.yaml`). With `--view simcse`, the whole document twice, it is encoded
once. Of other views both are students, so that masked LM and their cosine stay in the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from docsplit.modeling.distributed import send
from docsplit.modeling.objectives.base import Objective, Preparation
from docsplit.runtime.bounds import Positive, Share, Weight, Whole, check_bounds, option
from docsplit.runtime.files import digest_of_arrays, write_whole

TARGETS_FILE = "distillation_targets.safetensors"  # in the output folder
TARGETS_DIGEST = "digest"  # of tensors and description, in the file's metadata


class Targets:
    """A vector for each document, in a file that is mapped into memory: batches read only what they need.

    The whole file is read once when it is opened.

    Attributes:
        about: the description that `write` was given.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not what `write` wrote.
    """

    def __init__(self, path: Path):
        try:
            with safe_open(path, "pt") as file:  # maps the file: its tensors are views of that
                tensors = {name: file.get_tensor(name) for name in ("document_ids", "vectors")}
                arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
                self.about: dict[str, str] = dict(file.metadata() or {})
            digest = self.about.pop(TARGETS_DIGEST, None)
        except FileNotFoundError:
            raise
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {' '.join(str(error).split())}.") from error
        if digest != digest_of_arrays(arrays, self.about):
            raise ValueError(f"{path} is damaged: it does not fit its {TARGETS_DIGEST}.")
        self.document_ids = tensors["document_ids"]  # (N,) int64, ascending
        self.vectors = tensors["vectors"]  # (N, H) float16, of length one

    @staticmethod
    def write(path: Path, document_ids: Tensor, vectors: Tensor, about: dict[str, str]) -> None:
        """Write vectors (N, H) of documents (N,) int64, whose ids all differ, and a description of them."""
        ordered, order = document_ids.sort()
        tensors = {"document_ids": ordered, "vectors": vectors[order].half()}
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        metadata = about | {TARGETS_DIGEST: digest_of_arrays(arrays, about)}
        write_whole(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))

    def of(self, document_ids: Tensor) -> Tensor:
        """Return the vectors of documents (B,), on any device: (B, H) float32 there.

        The host waits for ids that are not its own: the vectors are in its memory, since there may be millions.

        Raises:
            ValueError: if a document has none.
        """
        wanted = document_ids.cpu()
        rows = torch.searchsorted(self.document_ids, wanted).clamp(max=len(self.document_ids) - 1)
        if missing := int((self.document_ids[rows] != wanted).sum()):
            raise ValueError(
                f"{missing} of {len(wanted)} documents of the batch have no target vector: the targets are those of "
                "other documents."
            )
        return send(self.vectors[rows], document_ids.device).float()


class NeighbourDistillation(Objective):
    """1 - cosine of each view with the start's vector of the document, averaged with those of its neighbours."""

    has_dropout = False
    prepared_files = (TARGETS_FILE,)
    loss_name = "distillation"

    @dataclass
    class Options:
        """Neighbour distillation: how the target vectors are averaged over neighbours."""

        num_neighbours: Whole = option(
            20,
            "Nearest documents that each target vector is averaged with; 0: the target is the start's vector.",
        )
        smoothing_rounds: Whole = option(
            2,
            "How often the target vectors are averaged, each time with those of the round before.",
        )
        smoothing_share: Share = option(
            0.5,
            "Weight of the neighbours' mean in each round; the vector itself has the rest.",
        )
        neighbour_temperature: Positive = option(
            0.1,
            "Neighbours weigh softmax(similarity / this): lower values favour the nearest.",
        )
        neighbour_words: Weight = option(
            1.0,
            "Weight of likeness in words (latent semantic analysis) beside the encoder's cosine when "
            "neighbours are chosen; 0: the encoder alone.",
        )

        def __post_init__(self) -> None:
            check_bounds(self)

    def __init__(self, options: Any, body: Any):
        super().__init__(options, body)
        self.targets: Targets | None = None  # of the corpus, not of the model: in no checkpoint

    @classmethod
    def aim(cls, settings: Mapping[str, Any]) -> str:
        """Say which vectors the encoder learns to give."""
        averages = settings["num_neighbours"] and settings["smoothing_rounds"] and settings["smoothing_share"]
        neighbours = f", averaged with those of its {settings['num_neighbours']} nearest neighbours in the corpus"
        return f"to map a document to the vector that its start gave it{neighbours if averages else ''}"

    def prepare(self, run: Preparation) -> None:
        """Let the run make the targets, or find those that it was started with."""
        self.targets = Targets(run.neighbour_targets(self.options))

    def forward(self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> Tensor:
        """Return the mean over documents and their two views, as `Objective.forward`.

        Raises:
            RuntimeError: if there are no targets.
            ValueError: if a document has none, or their width is another than the encoder's.
        """
        if self.targets is None or document_ids is None:
            raise RuntimeError(
                "neighbour_distillation needs document_ids and `model.objective.targets`: "
                "docsplit.training.teacher makes them, and `prepare` asks for them in pretraining."
            )
        targets = self.targets.of(document_ids)  # (B, H)
        if targets.shape[-1] != embeddings.shape[-1]:
            raise ValueError(f"Targets are {targets.shape[-1]} wide, the encoder's vectors {embeddings.shape[-1]}.")
        with torch.autocast(embeddings.device.type, enabled=False):
            dtype = torch.promote_types(embeddings.dtype, torch.float32)
            cosines = F.cosine_similarity(embeddings.to(dtype), targets.to(dtype)[:, None], dim=-1)  # (B, 2)
            return (1 - cosines).mean(dim=1).sum() * (len(counts) / sum(counts))
