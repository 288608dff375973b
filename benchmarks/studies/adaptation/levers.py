"""The pretraining script with what `benchmarks.studies.adaptation.report` tries and the product has no option for.

    python -m benchmarks.studies.adaptation.levers LEVER=VALUE [LEVER=VALUE ...] \\
        [recipe] [options of run_docsplit_pretraining.py]

    frozen_layers=3      the embeddings and the first 3 transformer layers are not trained
    refreshed_every=10   the targets are made again every 10 steps, by the moving average of the student's weights
                         (Mean Teacher, Tarvainen and Valpola 2017); each step keeps moving_average=0.9 of it
    soft_contrast=1      adds 1 x the KL divergence of a view's similarities to the other documents of the batch from
                         those of the targets: SEED (Fang et al. 2021), relational distillation (Park et al. 2019)
    masked_contrast=1    adds 1 x InfoNCE between the halves, without the negatives of which each is among the 5
                         nearest of the other in the batch, by the targets
    replay=wiki.parquet  replay_count=500 documents of this file or folder join the corpus: their targets are averaged
                         with neighbours among all, as those of the others

For --objective neighbour_distillation and one process.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import json
import logging
import runpy
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, trainer

from docsplit.data import corpora
from docsplit.embedding.encode import embed_documents
from docsplit.embedding.loading import load_encoder
from docsplit.modeling.objectives.base import ObjectiveOutput
from docsplit.modeling.objectives.info_nce import info_nce
from docsplit.modeling.objectives.neighbour_distillation import NeighbourDistillation, Targets
from docsplit.runtime.files import ROOT, write_text
from docsplit.runtime.options import given_options
from docsplit.training import teacher
from docsplit.training.run import Run

SCRIPT = ROOT / "run_docsplit_pretraining.py"
REFRESHED_TARGETS_FILE = "refreshed_targets.safetensors"  # in the output folder, of the last refresh
TEMPERATURE = 0.05  # of both contrasts: DocSplit's
NEAREST = 5  # documents of the batch that a masked contrast looks at
HIDDEN = -1e9  # a similarity whose softmax is 0; with -inf, 0 x log 0 would be no number

logger = logging.getLogger("docsplit")


@dataclass
class Levers:
    """Levers that lead the command line; 0 and "" pull nothing.

    Raises:
        ValueError: for a value out of range, or one that nothing would use.
    """

    frozen_layers: int = 0
    refreshed_every: int = 0
    moving_average: float | None = None
    soft_contrast: float = 0.0
    masked_contrast: float = 0.0
    replay: str = ""
    replay_count: int | None = None

    def __post_init__(self) -> None:
        if not any((self.frozen_layers, self.refreshed_every, self.soft_contrast, self.masked_contrast, self.replay)):
            raise ValueError(f"No lever is pulled: begin with one, such as frozen_layers=3 (there are {NAMES}).")
        for name in ("frozen_layers", "refreshed_every", "soft_contrast", "masked_contrast"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 (off) or more.")
        for name, needed in (("moving_average", "refreshed_every"), ("replay_count", "replay")):
            if getattr(self, name) is not None and not getattr(self, needed):
                raise ValueError(f"{name} does nothing without {needed}: give both.")
        self.moving_average = 0.9 if self.moving_average is None else self.moving_average
        self.replay_count = 500 if self.replay_count is None else self.replay_count
        if not 0 <= self.moving_average < 1:
            raise ValueError(f"moving_average is {self.moving_average}, expected 0 (the student) or more, below 1.")
        if self.replay_count < 1:
            raise ValueError(f"replay_count is {self.replay_count}, expected 1 or more.")


TYPES = {"replay": str} | dict.fromkeys(("frozen_layers", "refreshed_every", "replay_count"), int)  # others: float
NAMES = ", ".join(field.name for field in fields(Levers))


def read(words: list[str]) -> tuple[Levers, list[str]]:
    """Return the levers that lead the words, and the words of the script."""
    given: dict[str, Any] = {}
    while words and "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words[0].partition("=")
        if name not in {field.name for field in fields(Levers)}:
            raise ValueError(f"There is no lever {name!r}: choose among {NAMES}.")
        try:
            given[name] = TYPES.get(name, float)(value)
        except ValueError as error:
            raise ValueError(f"{name} is {value!r}, expected a number: {error}.") from error
        words = words[1:]
    return Levers(**given), words


def freeze(encoder: nn.Module, count: int) -> int:
    """Take the embeddings and the first `count` layers of a base model out of the training.

    Returns: how many parameters these have that were trained.

    Raises:
        ValueError: if the encoder has fewer layers, or none that are found.
    """
    depth = getattr(encoder.config, "num_hidden_layers", None)
    stacks = [module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == depth]
    if not stacks or not hasattr(encoder, "embeddings"):
        raise ValueError(f"{type(encoder).__name__} has no layers that frozen_layers knows: leave it out.")
    if count > len(stacks[0]):
        raise ValueError(f"frozen_layers is {count}, but the encoder has {len(stacks[0])} layers: give fewer.")
    parts = (encoder.embeddings, *stacks[0][:count])
    frozen = [parameter for part in parts for parameter in part.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in frozen)


def soft_contrast(embeddings: Tensor, targets: Tensor, same: Tensor) -> Tensor:
    """KL(targets' || student's) softmax over the other documents, the mean over documents and views.

    The student's similarities are those of a view with the other views of the other documents.

    Args:
        embeddings: (B, 2, H).
        targets: (B, H).
        same: (B, B), True where both are the same document, the diagonal too: these are no others.
    """
    views, starts = F.normalize(embeddings, dim=-1), F.normalize(targets, dim=-1)
    wanted = (starts @ starts.T / TEMPERATURE).masked_fill(same, HIDDEN).softmax(dim=1)  # (B, B)
    logits = views[:, 0] @ views[:, 1].T / TEMPERATURE  # (B, B)
    log_probabilities = [direction.masked_fill(same, HIDDEN).log_softmax(dim=1) for direction in (logits, logits.T)]
    return sum(F.kl_div(direction, wanted, reduction="batchmean") for direction in log_probabilities) / 2


def masked_negatives(targets: Tensor, same: Tensor) -> Tensor:
    """Return (B, B), True for the same documents and for those that are among each other's nearest.

    Not all that are among the nearest of one: of a batch of 16 that would be up to 10 of 15 negatives, whether they
    are alike or not. A threshold of the cosine would be another one for each encoder and set.
    """
    similarities = F.normalize(targets, dim=-1) @ F.normalize(targets, dim=-1).T
    nearest = similarities.masked_fill(same, -torch.inf).topk(min(NEAREST, len(targets)), dim=1).indices
    near = torch.zeros_like(same).scatter(1, nearest, True)
    return ((near & near.T) | same) & ~torch.eye(len(targets), dtype=torch.bool, device=targets.device)


class WithContrast(NeighbourDistillation):
    """Neighbour distillation, and contrasts that know of the targets."""

    def __init__(self, objective: NeighbourDistillation, base_model: nn.Module, levers: Levers):
        super().__init__(objective.options, base_model)
        self.targets, self.levers = objective.targets, levers

    def forward(self, embeddings: Tensor, document_ids: Tensor | None, counts: list[int]) -> ObjectiveOutput:
        """Return the loss of `NeighbourDistillation.forward` with weighted contrasts; their logged parts have no
        weight.
        """
        output = super().forward(embeddings, document_ids, counts)
        assert self.targets is not None
        assert document_ids is not None
        same = document_ids[:, None] == document_ids
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            targets = self.targets.of(document_ids).to(embeddings.dtype)
            if self.levers.soft_contrast:
                output.parts["soft_contrast"] = soft_contrast(embeddings, targets, same)
            if self.levers.masked_contrast:
                excluded, rows = masked_negatives(targets, same), torch.arange(len(same), device=same.device)
                total = info_nce(embeddings[:, 0], embeddings[:, 1], TEMPERATURE, rows, excluded)
                output.parts["masked_contrast"] = total / len(same)
                output.num_masked_negatives = excluded.sum()
        output.loss = output.loss + sum(getattr(self.levers, name) * part for name, part in output.parts.items())
        return output


class RefreshedTargets(TrainerCallback):
    """Make the targets again every so many steps, by an encoder whose weights follow the student's.

    That encoder is the start, loaded once more: length, pooling and prompt stay those of the first targets. What is
    not trained stays as it is in both.

    Raises:
        ValueError: if the student trains weights that the start does not have, as with LoRA.
    """

    def __init__(self, model: Any, model_args: Any, data_args: Any, args: Any, levers: Levers):
        self.objective, self.levers = model.objective, levers
        self.path = Path(args.output_dir) / REFRESHED_TARGETS_FILE
        self.texts = teacher.texts_of(self.objective.targets.document_ids.numpy(), data_args)
        self.average: Any = load_encoder(
            model_args.model_name_or_path, model.config.docsplit["pooling"], device=str(args.device)
        )
        averaged = dict(self.average[0].model.named_parameters())
        trained = {
            name: parameter
            for name, parameter in model.encoder.base_model.named_parameters()
            if parameter.requires_grad
        }
        if missing := trained.keys() - averaged.keys():
            raise ValueError(
                f"refreshed_every averages the start's weights, which lack {len(missing)} that are trained, such as "
                f"{min(missing)}: leave out --lora_r."
            )
        self.pairs = [(averaged[name], parameter) for name, parameter in trained.items()]

    @torch.no_grad()
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """Follow the student; at some steps, but not after the last one, embed the corpus."""
        for average, weight in self.pairs:
            average.lerp_(weight, 1 - self.levers.moving_average)
        if state.global_step % self.levers.refreshed_every or state.global_step >= state.max_steps:
            return
        embeddings, _ = embed_documents(self.average, self.texts)
        before = self.objective.targets
        vectors = torch.from_numpy(teacher.smoothed(embeddings, self.texts, self.objective.options))
        Targets.write(self.path, before.document_ids, vectors, {"step": str(state.global_step)})
        moved = 1 - F.cosine_similarity(vectors, before.vectors.float()).mean()
        self.objective.targets = Targets(self.path)
        logger.info(f"Step {state.global_step}: targets made again, 1 - cosine with those before is {moved:.1e}.")


def with_replay(corpus: Path, text_column: str, general: str, count: int) -> Path:
    """Write the corpus with `count` general documents after it, drawn with a fixed seed, beside it as JSON lines.

    Raises:
        ValueError: if the corpus is no file, or there are fewer general documents.
    """
    if not corpus.is_file():
        raise ValueError(f"replay adds to a --corpus that is a file, but {corpus} is none.")
    texts = [corpora.add_text(corpora.load_corpus(str(corpus)), text_column)[text_column][:]]
    documents = corpora.load_corpus(general)
    if count > len(documents):
        raise ValueError(f"replay_count is {count}, but {general} has {len(documents)} documents: give fewer.")
    drawn = documents.select(np.sort(np.random.default_rng(0).choice(len(documents), count, replace=False)))
    texts.append(corpora.add_text(drawn, text_column)[text_column][:])
    path = corpus.with_name(f"{corpus.stem}_with_replay.jsonl")
    write_text(path, "".join(json.dumps({text_column: text}) + "\n" for part in texts for text in part))
    print(f"replay: {count} documents of {len(documents)} join the {len(texts[0])} of {corpus.name}: {path.name}")
    return path


def prepare_objective(levers: Levers, callbacks: list[Any], original: Any, run: Run) -> None:
    """Do what `docsplit.training.run.Run.prepare_objective` does, the `original`, then pull the levers on the model.

    Raises:
        ValueError: where a lever cannot act.
    """
    model, options = run.model, run.options
    is_new = options.training.world_size == 1 and run.checkpoint is None
    if not isinstance(model.objective, NeighbourDistillation) or not is_new:
        raise ValueError(
            "Levers are for --objective neighbour_distillation, one process and a new run: give these, and no "
            "--resume_from_checkpoint."
        )
    original(run)
    if levers.frozen_layers:
        frozen = freeze(model.encoder.base_model, levers.frozen_layers)
        run.results["frozen_parameters"] = frozen
        left = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        logger.info(
            f"Frozen: embeddings and the first {levers.frozen_layers} layers, {frozen:,} parameters; {left:,} train."
        )
    if levers.soft_contrast or levers.masked_contrast:
        model.objective = WithContrast(model.objective, model.encoder.base_model, levers)
    if levers.refreshed_every:
        callbacks.append(RefreshedTargets(model, options.model, options.data, options.training, levers))


def main() -> None:
    """Run the script with levers."""
    if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    levers, words = read(sys.argv[1:])
    if levers.replay:
        _, options = given_options(words)
        corpus, column = Path(options.get("corpus", "")), options.get("text_column", "text")
        words += ["--corpus", str(with_replay(corpus, column, levers.replay, levers.replay_count or 0))]
    # The script calls Run.prepare_objective once, between the model and Trainer: one place for all levers.
    callbacks = list(trainer.DEFAULT_CALLBACKS)
    original = Run.prepare_objective
    with (
        patch.object(Run, "prepare_objective", lambda run: prepare_objective(levers, callbacks, original, run)),
        patch.object(trainer, "DEFAULT_CALLBACKS", callbacks),
        patch.object(sys, "argv", [str(SCRIPT), *words]),
    ):
        runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    as_command(main)()
