"""Probes on frozen embeddings: how much a linear classifier can read out of them, with few labels and with all.

`LabelledSplit` is the protocol: which documents are trained and tested on, and the few-shot draws, fixed by a seed so
that every encoder, and TF-IDF, is measured on the same ones.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from docsplit.corpora import document_id, near_duplicates

logger = logging.getLogger(__name__)

SHOTS = 5
NUM_DRAWS = 10
MAX_CLASSES = 40  # the largest ones: a corpus like python_docs has hundreds of labels with a handful of documents
MAX_TRAIN, MAX_TEST = 2000, 1000
TEST_SHARE = 0.2


@dataclass
class LabelledSplit:
    """Texts and integer labels of a train and a test part that share no document, nor a near-duplicate."""

    train_texts: list[str]
    train_labels: np.ndarray  # (N,)
    test_texts: list[str]
    test_labels: np.ndarray  # (M,)
    class_names: list[str]
    num_near_duplicates: int  # dropped from the test part

    def draws(self, shots: int = SHOTS, num_draws: int = NUM_DRAWS, seed: int = 0) -> list[np.ndarray]:
        """Few-shot training sets, one a draw: indices of `shots` documents of each class, (shots x classes,)."""
        generator = np.random.default_rng((seed, shots))
        classes = [np.flatnonzero(self.train_labels == label) for label in range(len(self.class_names))]
        return [
            np.concatenate([generator.choice(members, shots, replace=False) for members in classes])
            for _ in range(num_draws)
        ]


def split_labelled(
    dataset: Dataset, text_column: str = "text", label_column: str = "label", seed: int = 0
) -> LabelledSplit:
    """Split documents into train and test, stratified, and drop near-duplicates from the test part.

    Kept are the `MAX_CLASSES` largest classes; documents of others still count as originals of near-duplicates.

    Raises:
        ValueError: if columns are missing or a class has too few documents for the few-shot draws.
    """
    if missing := {text_column, label_column} - set(dataset.column_names):
        raise ValueError(f"The probe needs columns {sorted(missing)}, found {dataset.column_names}.")
    rows = list(zip(dataset[text_column][:], dataset[label_column][:]))
    usable = [(text, str(label)) for text, label in rows if isinstance(text, str) and isinstance(label, str | int)]
    if len(usable) < len(rows):
        logger.warning(f"The probe leaves out {len(rows) - len(usable)} documents without a text or a single label.")
    if len({label for _, label in usable}) < 2:
        raise ValueError(f"The probe needs two or more classes in column {label_column!r}, strings or integers.")
    texts = np.array([text for text, _ in usable], dtype=object)
    names, labels, counts = np.unique([label for _, label in usable], return_inverse=True, return_counts=True)
    largest = np.sort(np.argsort(-counts, kind="stable")[:MAX_CLASSES])
    if counts[largest].min() < 2 * SHOTS:
        scarce = [f"{names[label]} ({counts[label]})" for label in largest if counts[label] < 2 * SHOTS]
        raise ValueError(f"The probe needs {2 * SHOTS} documents of each class, these have fewer: {scarce}.")
    kept = np.flatnonzero(np.isin(labels, largest))
    train, test = train_test_split(kept, test_size=TEST_SHARE, stratify=labels[kept], random_state=seed)
    if len(test) > MAX_TEST:
        test, surplus = train_test_split(test, train_size=MAX_TEST, stratify=labels[test], random_state=seed)
        train = np.concatenate([train, surplus])
    others = np.setdiff1d(np.arange(len(texts)), test)
    duplicated = near_duplicates(texts[test].tolist(), texts[others].tolist())
    test = test[~duplicated]
    train = _sample(train, labels[train], MAX_TRAIN, seed)
    return LabelledSplit(
        train_texts=texts[train].tolist(),
        train_labels=np.searchsorted(largest, labels[train]),
        test_texts=texts[test].tolist(),
        test_labels=np.searchsorted(largest, labels[test]),
        class_names=names[largest].tolist(),
        num_near_duplicates=int(duplicated.sum()),
    )


def _sample(indices: np.ndarray, labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """About `size` of the indices, each class in its proportion but with no fewer than the few-shot draws need."""
    shuffled = np.random.default_rng(seed).permutation(len(indices))
    kept = []
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        kept.append(members[: max(round(len(members) * min(size / len(indices), 1)), SHOTS)])
    return indices[np.concatenate(kept)]


def without_test_documents(dataset: Dataset, split: LabelledSplit) -> tuple[Dataset, dict[str, int]]:
    """Keep the documents that the probe tests on out of pretraining, exact duplicates included.

    Args:
        dataset: what `docsplit.corpora.tokenize` gave.

    Returns: the rest, and the counts for the results.
    """
    test_ids = np.array([document_id(text) for text in split.test_texts])
    excluded = np.isin(np.asarray(dataset.with_format("numpy")["document_id"][:]), test_ids)
    counts = {
        "documents_kept_for_probe": int(excluded.sum()),
        "probe_classes": len(split.class_names),
        "probe_train_documents": len(split.train_texts),
        "probe_test_documents": len(split.test_texts),
        "probe_near_duplicates_dropped": split.num_near_duplicates,
    }
    return dataset.select(np.flatnonzero(~excluded)), counts


def probe_accuracy(split: LabelledSplit, train: Any, test: Any) -> dict[str, float]:
    """Accuracy of logistic regression on given features: with 5 labels a class (mean over draws) and with all.

    Features are taken as they are: standardising them rescues encoders whose vectors all point the same way.

    Args:
        train: (N, H), dense or sparse, the features of `split.train_texts`.
        test: (M, H), the features of `split.test_texts`.
    """
    few = [_accuracy(split, train, test, draw) for draw in split.draws()]
    return {
        f"{SHOTS}shot_accuracy": float(np.mean(few)),
        f"{SHOTS}shot_accuracy_std": float(np.std(few)),
        "accuracy": _accuracy(split, train, test, np.arange(len(split.train_labels))),
    }


def _accuracy(split: LabelledSplit, train: Any, test: Any, chosen: np.ndarray) -> float:
    classifier = LogisticRegression(max_iter=1000)
    classifier.fit(train[chosen], split.train_labels[chosen])
    return float(classifier.score(test, split.test_labels))


def tfidf_accuracy(split: LabelledSplit) -> dict[str, float]:
    """The baseline everyone should have to beat; its vocabulary is fitted on the whole train part."""
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    train = vectorizer.fit_transform(split.train_texts)
    return probe_accuracy(split, train, vectorizer.transform(split.test_texts))
