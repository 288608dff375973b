"""Features and labels that heads are tested on."""

import numpy as np

from docsplit.evaluation.heads.base import Run

WIDTH, CLASSES = 12, 3


def clusters(size: int, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features around a centre per class, (size, WIDTH), and labels in turn, (size,)."""
    labels = np.arange(size) % CLASSES
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((CLASSES, WIDTH))
    return (centres[labels] + noise * rng.standard_normal((size, WIDTH))).astype(np.float32), labels


def several(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and multi-hot labels, (size, CLASSES), each of which a linear rule gives."""
    features = np.random.default_rng(seed).standard_normal((size, WIDTH)).astype(np.float32)
    return features, (features[:, :CLASSES] > 0.3).astype(np.int8)


def everything(labels: np.ndarray, num_seeds: int) -> list[Run]:
    return [Run(np.arange(len(labels)), seed) for seed in range(num_seeds)]
