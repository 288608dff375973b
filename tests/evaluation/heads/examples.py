"""Features, labels and labelled texts that heads are tested on."""

import numpy as np

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.evaluation.heads.base import HeadRun
from tests.conftest import TOPICS, make_corpus

WIDTH, CLASSES = 12, 3
LEARNING_RATE = 1e-3  # high: tiny encoders from nothing


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


def everything(labels: np.ndarray, *seeds: int) -> list[HeadRun]:
    return [HeadRun(np.arange(len(labels)), seed) for seed in seeds]


def make_split(train=210, test=61, validation=0, multi_label=False):
    """Documents about three topics; with several labels, also joined pairs of them."""
    names = sorted(TOPICS)
    rows = make_corpus(2 * (train + test + validation), seed=1)
    texts, labels = [], []
    for first, second in zip(rows[::2], rows[1::2]):
        both = multi_label and len(texts) % 2 == 0
        texts.append(f"{first['text']} {second['text']}" if both else first["text"])
        topics = {first["label"], second["label"]} if both else {first["label"]}
        labels.append([int(name in topics) for name in names])
    multi_hot = np.array(labels, dtype=np.int8)
    array = multi_hot if multi_label else multi_hot.argmax(axis=1)
    end = train + test
    return LabelledSplit(
        train_texts=texts[:train],
        train_labels=array[:train],
        test_texts=texts[train:end],
        test_labels=array[train:end],
        class_names=names,
        validation_texts=texts[end:] if validation else None,
        validation_labels=array[end:] if validation else None,
    )


def few(split, shots=4, draws=1):
    return [HeadRun(draw, seed) for seed, draw in enumerate(split.draws(shots, draws))]


def accuracy(scores, split):
    return (scores.argmax(axis=-1) == split.test_labels).mean(axis=-1)  # (R,)
