"""What every head on frozen embeddings gets and gives, and the runs that it is trained on.

A head is trained once for each `HeadRun`: on each few-shot draw, or with each seed on the whole training part. Runs
depend on the labels and a seed alone, so every encoder, and TF-IDF, is measured on the same ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import issparse

from docsplit.data.sets.labelled import LabelledSplit


@dataclass
class HeadRun:
    """One training of a head: on which training documents, and with which seed."""

    indices: np.ndarray  # (n,)
    seed: int


def head_runs(split: LabelledSplit, shots: int | None, num_draws: int, num_seeds: int, seed: int = 0) -> list[HeadRun]:
    """Return a run for each draw of that many labels a class, or for None `num_seeds` runs on all documents.

    They depend on the labels, the shots and the seed alone.
    """
    everything = np.arange(len(split.train_texts))
    chosen = [everything] * num_seeds if shots is None else split.draws(shots, num_draws, seed)
    return [HeadRun(indices, seed + number) for number, indices in enumerate(chosen)]


@dataclass(frozen=True)
class HeadInput:
    """What a head is trained and tested on: features and labels of documents, and the runs.

    Raises:
        ValueError: naming a class that a run lacks, or features that are not finite.
    """

    train: Any  # (N, H) features, dense or sparse
    labels: np.ndarray  # (N,) class indices, or (N, C) multi-hot
    runs: list[HeadRun]
    test: Any  # (M, H) features
    num_classes: int
    few_shot: bool  # the runs are draws of few documents a class
    validation: tuple[Any, np.ndarray] | None = None  # (V, H) features and their labels
    groups: np.ndarray | None = None  # (N,) of near copies (`docsplit.data.copies.near_copy_groups`); None: none

    def __post_init__(self) -> None:
        validation = {} if self.validation is None else {"validation": self.validation[0]}
        for part, features in ({"training": self.train, "test": self.test} | validation).items():
            finite = np.isfinite(features.data) if issparse(features) else np.isfinite(features).all(axis=1)
            if not finite.all():
                raise ValueError(
                    f"{(~finite).sum()} of {features.shape[0]} {part} documents have features that are not finite: "
                    "the encoder gave NaN or infinity for them. Embed in float32, or leave it out."
                )
        if not self.runs:
            raise ValueError("A head needs at least one run: ask for one or more draws or seeds.")
        for number, run in enumerate(self.runs):
            missing = np.setdiff1d(np.arange(self.num_classes), self.labels[run.indices])
            if len(missing) and not self.multi_label:
                raise ValueError(f"Run {number} has no training document of classes {missing.tolist()}: drop these.")

    @property
    def multi_label(self) -> bool:
        """Whether a document may have several labels, or none."""
        return self.labels.ndim == 2

    def groups_of(self, run: HeadRun) -> np.ndarray:
        """Return the groups of near copies of a run's documents, (n,): folds do not part them."""
        return run.indices if self.groups is None else self.groups[run.indices]


@dataclass
class HeadOutput:
    """What a head predicts for the test documents in each run, and what it cost."""

    scores: np.ndarray  # (R, M, C) float32: class probabilities, or with several labels a probability each
    seconds: float  # of training and prediction, the mean over runs
    trainable_parameters: int
    curves: list[list[dict[str, float]]] = field(default_factory=list)  # of each run: epochs on the validation part


Head = Callable[[HeadInput], HeadOutput]
