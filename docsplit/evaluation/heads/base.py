"""What every head on frozen embeddings gets and gives, and the runs that it is trained on.

A head is trained once for each `Run`: on each few-shot draw, or with each seed on the whole training part. Runs depend
on the labels and a seed alone, so every encoder, and TF-IDF, is measured on the same ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import issparse

from docsplit.data.sets.labelled import LabelledSplit


@dataclass
class Run:
    """One training of a head: on which training documents, and with which seed."""

    indices: np.ndarray  # (n,)
    seed: int


def few_shot_runs(split: LabelledSplit, shots: int, num_draws: int, seed: int = 0) -> list[Run]:
    """Return one run per few-shot draw; they depend on the labels, the shots and the seed alone."""
    draws = split.draws(shots, num_draws, seed)
    return [Run(indices, seed + number) for number, indices in enumerate(draws)]


def full_runs(split: LabelledSplit, num_seeds: int, seed: int = 0) -> list[Run]:
    """Return `num_seeds` runs on all training documents."""
    return [Run(np.arange(len(split.train_texts)), seed + number) for number in range(num_seeds)]


def runs_of(split: LabelledSplit, shots: int | None, num_draws: int, num_seeds: int, seed: int = 0) -> list[Run]:
    """Return `few_shot_runs` with that many labels a class, or for None `full_runs`."""
    if shots is None:
        return full_runs(split, num_seeds, seed)
    return few_shot_runs(split, shots, num_draws, seed)


@dataclass(frozen=True)
class HeadInput:
    """What a head is trained and tested on: features and labels of documents, and the runs.

    Raises:
        ValueError: naming what does not agree, a class that a run lacks, or features that are not finite.
    """

    train: Any  # (N, H) features, dense or sparse
    labels: np.ndarray  # (N,) class indices, or (N, C) multi-hot
    runs: list[Run]
    test: Any  # (M, H) features
    num_classes: int
    few_shot: bool  # the runs are draws of few documents a class
    validation: tuple[Any, np.ndarray] | None = None  # (V, H) features and their labels

    def __post_init__(self) -> None:
        self._check_features("training", self.train)
        self._check_labels("training", self.labels, self.train)
        self._check_features("test", self.test)
        if self.validation is not None:
            features, labels = self.validation
            self._check_features("validation", features)
            self._check_labels("validation", labels, features)
        if not self.runs:
            raise ValueError("A head needs at least one run: ask for one or more draws or seeds.")
        for number, run in enumerate(self.runs):
            self._check_run(number, run)

    @property
    def multi_label(self) -> bool:
        """Whether a document may have several labels, or none."""
        return self.labels.ndim == 2

    def _check_features(self, part: str, features: Any) -> None:
        if features.ndim != 2 or features.shape[1] != self.train.shape[1] or features.shape[0] == 0:
            raise ValueError(
                f"The {part} features are {features.shape}, expected (documents, {self.train.shape[-1]})."
            )
        finite = np.isfinite(features.data if issparse(features) else features)
        if not finite.all():
            count = int((~finite).sum()) if issparse(features) else int((~finite.all(axis=1)).sum())
            raise ValueError(
                f"{count} of {features.shape[0]} {part} documents have features that are not finite: the encoder "
                "gave NaN or infinity for them. Embed in float32, or leave it out."
            )

    def _check_labels(self, part: str, labels: np.ndarray, features: Any) -> None:
        if len(labels) != features.shape[0] or labels.ndim != self.labels.ndim:
            raise ValueError(f"The {part} labels are {labels.shape}, but there are {features.shape[0]} documents.")
        if self.multi_label and labels.shape[1] != self.num_classes:
            raise ValueError(f"The {part} labels are {labels.shape}, expected {self.num_classes} columns.")
        if labels.min() < 0 or labels.max() >= (2 if self.multi_label else self.num_classes):
            expected = "0 or 1" if self.multi_label else f"0 to {self.num_classes - 1}"
            raise ValueError(f"The {part} labels go from {labels.min()} to {labels.max()}, expected {expected}.")

    def _check_run(self, number: int, run: Run) -> None:
        if len(run.indices) == 0:
            raise ValueError(f"Run {number} has no documents: give it some rows of the training part.")
        if run.indices.min() < 0 or run.indices.max() >= len(self.labels):
            raise ValueError(f"Run {number} has rows outside 0 to {len(self.labels) - 1}: it belongs to other data.")
        if self.multi_label:
            return
        missing = np.setdiff1d(np.arange(self.num_classes), self.labels[run.indices])
        if len(missing):
            raise ValueError(
                f"Run {number} has no training document of classes {missing.tolist()}: draw from each class, or "
                "drop those classes."
            )


@dataclass
class HeadOutput:
    """What a head predicts for the test documents in each run, and what it cost."""

    scores: np.ndarray  # (R, M, C) float32: class probabilities, or with several labels a probability each
    seconds: float  # of training and prediction, the mean over runs
    trainable_parameters: int
    curves: list[list[dict[str, float]]] = field(default_factory=list)  # of each run: epochs on the validation part


Head = Callable[[HeadInput], HeadOutput]
