"""Load labelled documents from anywhere, with parts to train and test on, and draw few-shot sets.

    load_labelled    a Hub name, local files or the built-in corpus -> LabelledSplit
    LabelledSplit    the protocol: texts, labels and draws, and the fingerprint of the data
    load_probe       a corpus divided without near-duplicates, for probes while pretraining
    split_labelled   a data set divided in the same way

Only the data and a seed decide a split: every encoder, every head and TF-IDF are measured on the same
documents. The trade-off: the texts of the chosen documents are held in memory.
"""

import dataclasses
import hashlib
import logging
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.model_selection import train_test_split

from docsplit.data.corpora import PYTHON_DOCS, load_corpus
from docsplit.data.preparation import document_id, near_duplicates
from docsplit.data.python_docs.parts import PART
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled_files import (
    Part,
    check_built_in,
    check_sources,
    hold_out_test,
    load_files,
    load_splits,
    read_labels,
    read_texts,
    sample_for_draws,
    some,
    stratified_sample,
)
from docsplit.runtime.files import add_texts

logger = logging.getLogger(__name__)

SHOTS = 5
DRAWABLE = 20  # training documents that a class keeps for few-shot draws, if it has so many
NUM_DRAWS = 10
MAX_CLASSES = 40  # of a probe, the largest: python_docs has hundreds of labels with a handful of documents each
MAX_TRAIN, MAX_VALIDATION, MAX_TEST = 2000, 500, 1000  # documents of a probe; python_docs is tested on all it seals
TEST_SHARE = 0.2
WHOLE_NUMBER = re.compile("-?[0-9]+")
FEW_TEST = 100  # test documents; with fewer a warning says how coarse accuracies are


@dataclass
class LabelledSplit:
    """Texts and labels of a train, a test and perhaps a validation part that share no document.

    Labels are class indices, (N,) int64, or, where a document may have several, multi-hot, (N, C) int8.
    """

    train_texts: list[str]
    train_labels: np.ndarray  # (N,) or (N, C)
    test_texts: list[str]
    test_labels: np.ndarray  # (M,) or (M, C)
    class_names: list[str]  # C
    validation_texts: list[str] | None = None
    validation_labels: np.ndarray | None = None
    counts: dict[str, int] = field(default_factory=dict)  # what was dropped and why

    @property
    def multi_label(self) -> bool:
        """Whether a document may have several labels, or none."""
        return self.train_labels.ndim == 2

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts of each part that there is, train first."""
        parts = {"train": self.train_texts, "validation": self.validation_texts, "test": self.test_texts}
        return {name: texts for name, texts in parts.items() if texts}

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """The labels of each part that there is, train first."""
        parts = {"train": self.train_labels, "validation": self.validation_labels, "test": self.test_labels}
        return {name: labels for name, labels in parts.items() if labels is not None}

    def draws(self, shots: int = SHOTS, num_draws: int = NUM_DRAWS, seed: int = 0) -> list[np.ndarray]:
        """Draw few-shot training sets: indices into the train part, one array a draw.

        The labels, the shots and the seed fix them. With one label a document, a draw has `shots` documents of each
        class, (shots x C,). With several labels, `shots` documents are drawn for each label, and a document drawn for
        two labels counts once: draws differ a little in size, and frequent labels have more than `shots` documents.

        Raises:
            ValueError: if a class has fewer than `shots` training documents, naming those that have.
        """
        members = [
            np.flatnonzero(self.train_labels[:, label] if self.multi_label else self.train_labels == label)
            for label in range(len(self.class_names))
        ]
        if scarce := [f"{name} ({len(rows)})" for name, rows in zip(self.class_names, members) if len(rows) < shots]:
            raise ValueError(
                f"{shots} shots need {shots} training documents of each class, these have fewer: {some(scarce)}. "
                "Lower --shots, or drop those classes from the data."
            )
        generator = np.random.default_rng((seed, shots))
        draws = []
        for _ in range(num_draws):
            draw = np.concatenate([generator.choice(rows, shots, replace=False) for rows in members])
            draws.append(np.unique(draw) if self.multi_label else draw)
        return draws

    def fingerprint(self) -> str:
        """Hash all texts, labels and class names, in order: 16 hexadecimal digits, equal for equal data."""
        digest = hashlib.blake2b(digest_size=8)
        parts: list[tuple[list[str], np.ndarray | None]] = [
            (self.class_names, None),
            (self.train_texts, self.train_labels),
            (self.validation_texts or [], self.validation_labels),
            (self.test_texts, self.test_labels),
        ]
        for texts, labels in parts:
            digest.update(f"{len(texts)};".encode())
            add_texts(digest, texts)
            if labels is not None:
                digest.update(f"{labels.shape};".encode() + labels.astype("<i8").tobytes())
        return digest.hexdigest()


def load_labelled(options: LabelledArguments, seed: int = 0) -> LabelledSplit:
    """Load labelled documents and make them ready to be probed on.

    Labels are strings, integers or bools, one a document, or several: a list of those that it has (an empty list:
    none), or a vector of 0 and 1 with a place for each class (`docsplit.data.sets.labelled_files.are_vectors`). Labels
    are texts as they are written, so that 1 and "1" are one class. Classes are those of the train part, sorted, by
    value where all are whole numbers. Documents keep their order. Columns of texts are
    joined by a blank line, without those that are empty in a row; a list of strings, as some data sets have
    paragraphs, is joined by newlines; a missing column `text` is built from `sections`.

    A missing test part is held out of train: a fifth of the documents, all of it for testing if there is a validation
    part, else half of it for validation and half for testing. Each class gives its proportion; documents with several
    labels are drawn at random. Exact duplicates, equal up to white space, of a test or validation document are dropped
    from train, and those of a test document from validation; what is dropped is in `counts`, and logged.

    Args:
        options: the source, its columns and limits; without a data set and files python_docs, by its own parts.
        seed: seed of the choice of documents; that of python_docs is fixed (`docsplit.data.python_docs.parts`).

    Raises:
        ValueError: naming what is missing or wrong and the remedy: files, splits, columns, labels, classes.
    """
    check_sources(options)
    if options.train_file is None and options.dataset_name in (None, PYTHON_DOCS):
        check_built_in(options)
        return _limited(load_probe(PYTHON_DOCS), options)
    sources = load_files(options) if options.train_file is not None else load_splits(options)
    parts = _labelled_parts(sources, options.label_column)
    if "test" not in parts:
        parts |= hold_out_test(parts["train"], TEST_SHARE, "validation" not in parts, seed)
    for name, limit in _limits(options).items():
        if name in parts and limit is not None and limit < len(parts[name].labels):
            parts[name] = parts[name].select(stratified_sample(parts[name].strata, limit, seed))
    return _assemble(parts, options.text_column, options.strip_newsgroup_headers)


def _limits(options: LabelledArguments) -> dict[str, int | None]:
    """Name the most documents of each part."""
    return {
        "train": options.max_train_samples,
        "validation": options.max_test_samples,
        "test": options.max_test_samples,
    }


def _labelled_parts(sources: dict[str, tuple[str, Dataset]], label_column: str) -> dict[str, Part]:
    """Read the labels of each part: one a document in all parts, or lists in all.

    Raises:
        ValueError: naming the part and row.
    """
    labels = read_labels(sources, label_column)
    parts = {name: Part(source, dataset, labels[name]) for name, (source, dataset) in sources.items()}
    multi_label = isinstance(parts["train"].labels[0], tuple)
    for part in parts.values():
        if isinstance(part.labels[0], tuple) != multi_label:
            raise ValueError(
                f"The labels of {part.source} and of the train part differ: make them lists in both, or in none."
            )
    return parts


def _assemble(parts: dict[str, Part], text_columns: list[str], strip: bool) -> LabelledSplit:
    """Read the texts, drop what cannot be used and duplicates, and number the classes."""
    counts: dict[str, int] = {}
    texts: dict[str, list[str]] = {}
    labels: dict[str, list[Any]] = {}
    for name, part in parts.items():
        read = read_texts(part.dataset, text_columns, strip, part.source)
        counts[f"{name}_not_a_string_dropped"] = sum(text is None for text in read)
        counts[f"{name}_empty_dropped"] = sum(text == "" for text in read)
        texts[name] = [text for text in read if text]
        labels[name] = [label for text, label in zip(read, part.labels) if text]
    counts |= _drop_duplicates(texts, labels)
    if dropped := {name: count for name, count in counts.items() if count}:
        counted = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in dropped.items())
        logger.warning(f"Labelled documents, by part: {counted}.")
    if empty := [parts[name].source for name in parts if not texts[name]]:
        raise ValueError(
            f"No document is left of {some(empty)}: {counts}. Check --text_column, and that the parts are not the "
            "same documents."
        )
    encoded, class_names = _encode(labels, parts)
    return LabelledSplit(
        train_texts=texts["train"],
        train_labels=encoded["train"],
        test_texts=texts["test"],
        test_labels=encoded["test"],
        class_names=class_names,
        validation_texts=texts.get("validation"),
        validation_labels=encoded.get("validation"),
        counts=counts,
    )


def _drop_duplicates(texts: dict[str, list[str]], labels: dict[str, list[Any]]) -> dict[str, int]:
    """Drop documents that a part with precedence has too: test, then validation, then train. In place; counted."""
    ids = {name: [document_id(text) for text in texts[name]] for name in texts}
    labels_of: dict[int, set[Any]] = {}
    for document, label in zip(ids["train"], labels["train"]):
        labels_of.setdefault(document, set()).add(label)
    contradicted = sum(
        document in labels_of and labels_of[document] != {label}
        for document, label in zip(ids["test"], labels["test"])
    )
    counts = {}
    measured_on = set(ids["test"])
    for name in ("validation", "train"):
        if name in texts:
            kept = [row for row, document in enumerate(ids[name]) if document not in measured_on]
            counts[f"{name}_duplicates_dropped"] = len(texts[name]) - len(kept)
            texts[name] = [texts[name][row] for row in kept]
            labels[name] = [labels[name][row] for row in kept]
            measured_on |= set(ids[name])
    return counts | {"test_duplicates_with_another_label": contradicted}


def _encode(labels: dict[str, list[Any]], parts: dict[str, Part]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Encode labels by the classes of the train part: (N,) int64, or multi-hot, (N, C) int8, of each part."""
    multi_label = isinstance(labels["train"][0], tuple)
    label_sets = {name: values if multi_label else [(label,) for label in values] for name, values in labels.items()}
    known = {label for document in label_sets["train"] for label in document}
    are_numbers = all(WHOLE_NUMBER.fullmatch(label) for label in known)
    class_names = sorted(known, key=lambda label: (int(label) if are_numbers else 0, label))
    if len(class_names) < 2:
        raise ValueError(f"{parts['train'].source} has the classes {class_names}: two or more are needed.")
    index = {name: number for number, name in enumerate(class_names)}
    encoded = {}
    for name, documents in label_sets.items():
        unknown = Counter(label for document in documents for label in document if label not in index)
        if unknown:
            raise ValueError(
                f"{parts[name].source} has labels that no training document has: "
                f"{some([f'{label} ({count})' for label, count in sorted(unknown.items())])}. Drop those documents, "
                "or add such documents to the train part (or raise --max_train_samples)."
            )
        if multi_label:
            encoded[name] = np.zeros((len(documents), len(class_names)), dtype=np.int8)
            for row, document in enumerate(documents):
                encoded[name][row, [index[label] for label in document]] = 1
        else:
            encoded[name] = np.array([index[label] for (label,) in documents], dtype=np.int64)
    if multi_label and encoded["train"].all():
        raise ValueError(
            f"Every document of {parts['train'].source} has every class, {some(class_names)}: there is nothing to "
            "learn. If its lists are vectors of 0 and 1, give each document the list of its labels instead."
        )
    return encoded, class_names


def _limited(split: LabelledSplit, options: LabelledArguments) -> LabelledSplit:
    """Sample a split down to the limits, each class in its proportion."""
    texts, labels = split.texts, split.labels
    for name, limit in _limits(options).items():
        rows = stratified_sample(labels[name], limit or len(texts[name]), seed=0)
        texts[name], labels[name] = [texts[name][row] for row in rows], labels[name][rows]
    return dataclasses.replace(
        split,
        train_texts=texts["train"],
        train_labels=labels["train"],
        validation_texts=texts["validation"],
        validation_labels=labels["validation"],
        test_texts=texts["test"],
        test_labels=labels["test"],
    )


def load_probe(corpus: str, text_column: str = "text", label_column: str = "label") -> LabelledSplit:
    """Load a labelled corpus, divided for probes; python_docs by its own sealed parts.

    Raises:
        ValueError: as `split_labelled`.
    """
    part_column = PART if corpus == PYTHON_DOCS else None
    split = split_labelled(load_corpus(corpus), text_column, label_column, part_column=part_column)
    if len(split.test_texts) < FEW_TEST:
        logger.warning(
            f"The probe on {corpus} has {len(split.test_texts)} test documents, fewer than {FEW_TEST}: one document "
            "more or less moves its accuracies by a point or more."
        )
    return split


def split_labelled(
    dataset: Dataset,
    text_column: str = "text",
    label_column: str = "label",
    seed: int = 0,
    part_column: str | None = None,
) -> LabelledSplit:
    """Divide documents into train, validation and test, without near-duplicates between what is measured and the rest.

    Each class gives a fifth of its documents, and a third of these is for validation. The `MAX_CLASSES` largest
    classes are kept; documents of others still count as originals of near-duplicates.

    Args:
        part_column: the part of each document, where the data set is divided already, without near-duplicates in two
            parts.

    Raises:
        ValueError: if columns are missing or a class has too few documents for the few-shot draws.
    """
    columns = [text_column, label_column, *([part_column] if part_column else [])]
    if missing := set(columns) - set(dataset.column_names):
        raise ValueError(f"The probe needs columns {sorted(missing)}, found {dataset.column_names}.")
    rows = list(zip(*(dataset[column][:] for column in columns)))
    usable = [row for row in rows if isinstance(row[0], str) and isinstance(row[1], str | int) and str(row[1]).strip()]
    if len(usable) < len(rows):
        logger.warning(f"The probe leaves out {len(rows) - len(usable)} documents without a text or a single label.")
    if len({str(row[1]) for row in usable}) < 2:
        raise ValueError(f"The probe needs two or more classes in column {label_column!r}, strings or integers.")
    texts = np.array([row[0] for row in usable], dtype=object)
    names, labels, counts = np.unique([str(row[1]) for row in usable], return_inverse=True, return_counts=True)
    largest = np.sort(np.argsort(-counts, kind="stable")[:MAX_CLASSES])
    if counts[largest].min() < 2 * SHOTS:
        scarce = [f"{names[label]} ({counts[label]})" for label in largest if counts[label] < 2 * SHOTS]
        raise ValueError(f"The probe needs {2 * SHOTS} documents of each class, these have fewer: {scarce}.")
    kept = np.flatnonzero(np.isin(labels, largest))
    if part_column:
        part_of = np.array([row[2] for row in usable])[kept]
        train, validation, test = (kept[part_of == name] for name in ("train", "validation", "test"))
        validation = validation[stratified_sample(labels[validation], MAX_VALIDATION, seed)]
        dropped = 0
    else:
        train, validation, test, dropped = _divide(texts, labels, kept, seed)
    train = sample_for_draws(train, labels[train], MAX_TRAIN, DRAWABLE, seed)
    return LabelledSplit(
        train_texts=texts[train].tolist(),
        train_labels=np.searchsorted(largest, labels[train]),
        test_texts=texts[test].tolist(),
        test_labels=np.searchsorted(largest, labels[test]),
        class_names=names[largest].tolist(),
        validation_texts=texts[validation].tolist(),
        validation_labels=np.searchsorted(largest, labels[validation]),
        counts={"near_duplicates_dropped": dropped},
    )


def _divide(
    texts: np.ndarray, labels: np.ndarray, kept: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Divide the rows `kept`: to train on, to select by, to test on; and the number of near-duplicates dropped."""
    train, held = train_test_split(kept, test_size=TEST_SHARE, stratify=labels[kept], random_state=seed)
    if len(held) > MAX_TEST + MAX_VALIDATION:
        size = MAX_TEST + MAX_VALIDATION
        held, surplus = train_test_split(held, train_size=size, stratify=labels[held], random_state=seed)
        train = np.concatenate([train, surplus])
    held = held[np.argsort(labels[held], kind="stable")]  # in random order within a class
    is_validation = np.arange(len(held)) % 3 == 1
    parts = []
    for part in (held[is_validation], held[~is_validation]):
        others = np.setdiff1d(np.arange(len(texts)), part)
        parts.append(part[~near_duplicates(texts[part].tolist(), texts[others].tolist())])
    validation, test = parts
    if not len(validation) or not len(test):
        raise ValueError(
            f"The probe has {len(test)} test and {len(validation)} validation documents that are no near-duplicates "
            "of others: give it more documents."
        )
    return train, validation, test, len(held) - len(validation) - len(test)


def probe_counts(split: LabelledSplit) -> dict[str, int]:
    """Count the classes and documents of a probe, for the results."""
    return {
        "probe_classes": len(split.class_names),
        "probe_train_documents": len(split.train_texts),
        "probe_validation_documents": len(split.validation_texts or []),
        "probe_test_documents": len(split.test_texts),
        "probe_near_duplicates_dropped": split.counts.get("near_duplicates_dropped", 0),
    }
