"""Load labelled documents from anywhere, with parts to train and test on, and draw few-shot sets.

    load_labelled    a Hub name, local files or the built-in corpus -> LabelledSplit
    LabelledSplit    the protocol: texts, labels and draws, and the fingerprint of the data
    load_probe       a corpus divided without near-duplicates, for probes while pretraining
    split_labelled   a data set divided in the same way

Only the data and a seed decide a split: every encoder, every head and TF-IDF are measured on the same
documents. The trade-off: the texts of the chosen documents are held in memory.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset
from sklearn.datasets._twenty_newsgroups import strip_newsgroup_footer, strip_newsgroup_header, strip_newsgroup_quoting
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from docsplit.data.copies import document_id, fingerprint_of, near_copy_groups, near_duplicates
from docsplit.data.corpora import PYTHON_DOCS, add_text, load_corpus
from docsplit.data.python_docs.parts import PART
from docsplit.data.readers.files import saved_files, saved_splits
from docsplit.data.readers.rows import join_columns, refuse_missing_columns
from docsplit.data.sets.labels import LabelColumn, classes_of, majority_labels, read_labels
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.runtime.files import refuse_missing_path

logger = logging.getLogger(__name__)

PARTS = ("train", "validation", "test")
SHOTS = 5
DRAWABLE = 20  # training documents that a class keeps for few-shot draws, if it has so many
NUM_DRAWS = 10
MAX_CLASSES = 40  # of a probe, the largest: python_docs has hundreds of labels with a handful of documents each
MAX_TRAIN, MAX_VALIDATION, MAX_TEST = 2000, 500, 1000  # documents of a probe; python_docs is tested on all it seals
TEST_SHARE = 0.2


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

    @classmethod
    def of_parts(
        cls, texts: dict[str, list[str]], labels: dict[str, np.ndarray], class_names: list[str], counts: dict[str, int]
    ) -> "LabelledSplit":
        """Make a split of the texts and labels of each part by its name."""
        columns: dict[str, Any] = {f"{name}_texts": values for name, values in texts.items()}
        columns |= {f"{name}_labels": values for name, values in labels.items()}
        return cls(class_names=class_names, counts=counts, **columns)

    @property
    def multi_label(self) -> bool:
        """Whether a document may have several labels, or none."""
        return self.train_labels.ndim == 2

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts of each part that there is, train first."""
        return {name: texts for name in PARTS if (texts := getattr(self, f"{name}_texts"))}

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """The labels of each part that there is, train first."""
        return {name: labels for name in PARTS if (labels := getattr(self, f"{name}_labels")) is not None}

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
        pieces: list[str | bytes] = [f"{len(self.class_names)};".encode(), *self.class_names]
        for name in PARTS:
            texts, labels = getattr(self, f"{name}_texts") or [], getattr(self, f"{name}_labels")
            pieces += [f"{len(texts)};".encode(), *texts]
            pieces += [] if labels is None else [f"{labels.shape};".encode(), labels.astype("<i8").tobytes()]
        return fingerprint_of(pieces)


@dataclass
class Part:
    """The train, validation or test part before its texts are read."""

    source: str  # for messages
    dataset: Dataset
    labels: list[tuple[str, ...]]  # of each document
    several: bool  # whether a document may have several labels, or none

    def select(self, rows: np.ndarray) -> "Part":
        """Take these rows, (n,)."""
        return Part(self.source, self.dataset.select(rows), [self.labels[row] for row in rows], self.several)

    @property
    def strata(self) -> np.ndarray:
        """The class number of each row, (N,), whose proportions samples keep; all 0 with several labels a document."""
        names = ["" if self.several else labels[0] for labels in self.labels]
        return np.unique(names, return_inverse=True)[1]


def load_labelled(options: LabelledArguments, seed: int = 0) -> LabelledSplit:
    """Load labelled documents and make them ready to be probed on.

    Labels are one a document, or several: a list of those that it has (an empty list: none), or a vector of 0 and 1
    with a place for each class; all as `docsplit.data.sets.labels.read_labels` reads them. Classes are those of the
    train part, sorted, by value where all are whole numbers. Documents keep their order. Columns of texts are joined
    by a blank line, without those that are empty in a row; a list of strings, as some data sets have paragraphs, is
    joined by newlines; a missing column `text` is built from `sections`. Of copies of a text with several labels those
    stay that have the majority's; of a tie none.

    A missing test part is held out of train: a fifth of the documents, all of it for testing if there is a validation
    part, else half of it for validation and half for testing. Each class gives its proportion; documents with several
    labels are drawn at random, and near copies stay in one part. Exact duplicates, equal up to white space, of a test
    or validation document are dropped from train, and those of a test document from validation; what is dropped is in
    `counts`, and logged.

    Args:
        options: the source, its columns and limits; without a data set and files python_docs, by its own parts.
        seed: seed of the choice of documents; that of python_docs is fixed (`docsplit.data.python_docs.parts`).

    Raises:
        ValueError: naming what is missing or wrong and the remedy: files, splits, columns, labels, classes.
    """
    # Refuse what does not go with the source that is named
    is_built_in = options.train_file is None and options.dataset_name in (None, PYTHON_DOCS)
    of_splits = {"validation_split", "test_split"}
    others = {"validation_file", "test_file"} if options.train_file is None else {"dataset_name", *of_splits}
    if is_built_in:
        others |= {"text_column", "label_column", "strip_newsgroups", *of_splits}
    others -= {"dataset_name"} if options.dataset_name == PYTHON_DOCS else set()
    if given := sorted(f"--{name}" for name in others if getattr(options, name) != getattr(LabelledArguments(), name)):
        source = "python_docs, the default data: name a --train_file or a --dataset_name"
        source = source if is_built_in else "--train_file" if options.train_file else "--dataset_name"
        raise ValueError(f"{' and '.join(given)} cannot go with {source}.")
    limits = dict(zip(PARTS, (options.max_train_samples, options.max_test_samples, options.max_test_samples)))
    if is_built_in:
        split = load_probe(PYTHON_DOCS)
        texts, encoded = split.texts, split.labels
        for name, limit in limits.items():
            rows = stratified_sample(encoded[name], limit or len(texts[name]), seed=0)
            texts[name], encoded[name] = [texts[name][row] for row in rows], encoded[name][rows]
        return LabelledSplit.of_parts(texts, encoded, split.class_names, split.counts)
    parts = _read_labels(_load_parts(options), options.label_column)
    if "test" not in parts:
        train = parts["train"]
        whole = read_labelled_texts(train.dataset, options.text_column, options.strip_newsgroups, train.source)
        groups = near_copy_groups([text or "" for text in whole])
        parts |= _hold_out_test(train, groups, "validation" not in parts, seed)
    for name, part in parts.items():
        if (limit := limits[name]) is not None and limit < len(part.labels):
            parts[name] = part.select(stratified_sample(part.strata, limit, seed))
    # Read the texts, and drop what cannot be used, and duplicates.
    read = {
        name: read_labelled_texts(part.dataset, options.text_column, options.strip_newsgroups, part.source)
        for name, part in parts.items()
    }
    rows_of = {
        name: [(document_id(text), text, of_row) for text, of_row in zip(read[name], part.labels) if text]
        for name, part in parts.items()
    }
    majority = {}
    for source in dict.fromkeys(part.source for part in parts.values()):  # which one file may have been divided from
        of_source = [row for name, part in parts.items() if part.source == source for row in rows_of[name]]
        majority[source] = majority_labels([row[0] for row in of_source], [row[2] for row in of_source])
    counts: dict[str, int] = {}
    texts, labels = {}, {}
    measured_on: set[int] = set()
    for name in ("test", "validation", "train"):
        if name not in parts:
            continue
        of_copies = majority[parts[name].source]
        agreed = [row for row in rows_of[name] if of_copies.get(row[0], row[2]) == row[2]]
        kept = [row for row in agreed if row[0] not in measured_on]
        counts[f"{name}_not_a_string_dropped"] = sum(text is None for text in read[name])
        counts[f"{name}_empty_dropped"] = sum(text == "" for text in read[name])
        counts[f"{name}_other_labels_dropped"] = len(rows_of[name]) - len(agreed)
        if name != "test":
            counts[f"{name}_duplicates_dropped"] = len(agreed) - len(kept)
        texts[name], labels[name] = [row[1] for row in kept], [row[2] for row in kept]
        measured_on |= {row[0] for row in kept}
    texts, labels = {name: texts[name] for name in parts}, {name: labels[name] for name in parts}
    if any(counts.values()):
        counted = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        logger.warning(f"Labelled documents, by part: {counted}.")
    if empty := [parts[name].source for name in parts if not texts[name]]:
        raise ValueError(
            f"No document is left of {some(empty)}: check --text_column, and that no part repeats another."
        )
    encoded, class_names = _encode(labels, parts)
    return LabelledSplit.of_parts(texts, encoded, class_names, counts)


# --- Sources ---


def _load_parts(options: LabelledArguments) -> dict[str, tuple[str, Dataset]]:
    """Load the file or split of each part, with a name for messages.

    Usual splits of a Hub data set, or a saved one, need not be named; a saved one may also be given as a file.
    """
    name = options.train_file or str(options.dataset_name)
    saved = saved_splits(Path(name)) or (["train"] if saved_files(Path(name)) is not None else [])
    splits = {part: getattr(options, f"{part}_split") for part in PARTS}
    if options.train_file is not None:
        files = {part: getattr(options, f"{part}_file") or (name if part in saved else None) for part in PARTS}
        return {
            part: (f"the {part} file {file}", load_corpus(file, splits[part] or part, encoding=options.encoding))
            for part, file in files.items()
            if file is not None
        }
    if Path(name).exists() and not saved:
        raise ValueError(f"--dataset_name {name!r} is a file or folder here: name it with --train_file.")
    refuse_missing_path(name, "a data set of the Hub (USER/NAME); files go with --train_file")
    path, _, configuration = name.partition(":")
    try:
        available = saved or datasets.get_dataset_split_names(path, configuration or None)
    except (OSError, ValueError) as error:  # offline, or something that load_corpus says more about
        if splits["test"] is None:  # it may have one, which must not be replaced by a part of train
            raise ValueError(
                f"Which splits {name} has is unknown: name them with --validation_split and --test_split, or "
                f"try again. The cause: {error}"
            ) from error
        available = []
    for part in ("validation", "test"):
        if part in available and part not in splits.values():
            splits[part] = splits[part] or part
    if available and (missing := [split for split in splits.values() if split and split not in available]):
        raise ValueError(f"{name} has no split {some(missing)}; it has {some(available)}.")
    logger.info(f"Splits of {name}: {splits}")
    return {
        part: (f"the {split} split of {name}", load_corpus(name, split)) for part, split in splits.items() if split
    }


# --- Labels and texts ---


def _read_labels(sources: dict[str, tuple[str, Dataset]], column: str) -> dict[str, Part]:
    """Read the labels of the documents of each part, as texts.

    Raises:
        ValueError: naming the column or the row.
    """
    columns = {part: LabelColumn.of(dataset, column, source) for part, (source, dataset) in sources.items()}
    read, several = read_labels(*columns.values())
    parts = {}
    for (part, (source, dataset)), labels in zip(sources.items(), read):
        if None in labels:
            row = labels.index(None)
            value = dataset[column][row]
            raise ValueError(
                f"The label of row {row} (from 0) of {source} is {value!r}: give each document a label, or leave it "
                "out."
            )
        parts[part] = Part(source, dataset, [tuple(map(str, of_row or ())) for of_row in labels], several)
    return parts


def read_labelled_texts(dataset: Dataset, columns: list[str], strip: Sequence[str], source: str) -> list[str | None]:
    """Read the text of each row: "" where it is empty, None where a column has something else than text."""
    if "text" in columns and "text" not in dataset.column_names and "sections" in dataset.column_names:
        dataset = add_text(dataset, "text")
    refuse_missing_columns("--text_column", columns, dataset.column_names, source)
    texts: list[str | None] = []
    for values in zip(*(dataset[column][:] for column in columns)):
        text = join_columns(values)
        if text is not None:
            text = strip_newsgroups(text, strip)
        texts.append(text and (text if text.strip() else ""))
    return texts


def strip_newsgroups(text: str, parts: Sequence[str] = ("headers", "footers", "quotes")) -> str:
    """Strip parts of a newsgroup posting, as `sklearn.datasets.fetch_20newsgroups(remove=parts)` does."""
    text = strip_newsgroup_header(text) if "headers" in parts else text
    text = strip_newsgroup_footer(text) if "footers" in parts else text
    return strip_newsgroup_quoting(text) if "quotes" in parts else text


def _encode(
    labels: dict[str, list[tuple[str, ...]]], parts: dict[str, Part]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Encode labels by the classes of the train part: (N,) int64, or multi-hot, (N, C) int8, of each part."""
    class_names = classes_of(labels["train"], parts["train"].source)
    index = {name: number for number, name in enumerate(class_names)}
    encoded: dict[str, np.ndarray] = {}
    for name, documents in labels.items():
        if unknown := Counter(label for document in documents for label in document if label not in index):
            raise ValueError(
                f"{parts[name].source} has labels that no training document has: "
                f"{some([f'{label} ({count})' for label, count in sorted(unknown.items())])}. Drop those documents, "
                "or add such documents to the train part (or raise --max_train_samples)."
            )
        rows = [[index[label] for label in document] for document in documents]
        if parts[name].several:
            encoded[name] = np.zeros((len(documents), len(class_names)), dtype=np.int8)
            for row, numbers in enumerate(rows):
                encoded[name][row, numbers] = 1
        else:
            encoded[name] = np.array(rows, dtype=np.int64)[:, 0]
    return encoded, class_names


# --- Samples ---


def stratified_sample(strata: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Draw `size` distinct rows, (size,), ascending; each stratum has its proportion of them, rounded up or down.

    Systematic sampling: the rows are shuffled and sorted by stratum, and every (N / size)-th is taken from a random
    start, so that each row has the same chance, small strata included.

    Args:
        strata: (N,) a number for each row.
    """
    if size >= len(strata):
        return np.arange(len(strata))
    generator = np.random.default_rng(seed)
    rows = generator.permutation(len(strata))
    rows = rows[np.argsort(strata[rows], kind="stable")]
    positions = (np.arange(size) + generator.random()) * len(strata) / size
    return np.sort(rows[positions.astype(np.int64)])


def folds_of(
    targets: np.ndarray, groups: np.ndarray, count: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Divide rows into folds that each have the proportion of every class, with near copies in one fold.

    Args:
        targets: (N,) classes, or (N, C) of several labels, whose proportions are left to chance.
        groups: (N,) of `docsplit.data.copies.near_copy_groups`; a group counts once, with the class of its first.
        count: of folds; there are no more than the largest class has groups.

    Returns: of each fold the rows to train on and those held out; nothing where that makes a single fold.
    """
    first, group_of = _firsts(groups)
    strata = targets[first]
    count = min(count, len(first) if targets.ndim == 2 else int(np.bincount(strata).max(initial=0)))
    if count < 2:
        return
    splitter = (KFold if targets.ndim == 2 else StratifiedKFold)(count, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with fewer documents than there are folds
        for _, held in splitter.split(first, strata):
            is_held = np.isin(group_of, held)
            yield np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _firsts(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each group, (G,) ascending, and the number of each row's group among them, (N,)."""
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[group_of]


def _hold_out_test(train: Part, groups: np.ndarray, with_validation: bool, seed: int) -> dict[str, Part]:
    """Divide a train part into train, test and, `with_validation`, validation; near copies stay in one part.

    Args:
        groups: (N,) of near copies.
    """
    first, group_of = _firsts(groups)
    held = stratified_sample(train.strata[first], round(TEST_SHARE * len(first)), seed)
    held_out = np.flatnonzero(np.isin(group_of, held))
    # Documents that alone have a label stay in training
    left = np.setdiff1d(np.arange(len(train.labels)), held_out)
    known = {label for row in left for label in train.labels[row]}
    alone = [group_of[row] for row in held_out if not known.issuperset(train.labels[row])]
    held = np.setdiff1d(held, alone)
    held_out = np.flatnonzero(np.isin(group_of, held))
    if len(held) < 1 + with_validation:
        raise ValueError(
            f"{len(train.labels)} documents in {train.source}, {len(first)} without near copies, are too few to hold "
            "out a fifth, or too many alone have one of their labels: name a --test_file or a --test_split."
        )
    rows = {"train": np.setdiff1d(np.arange(len(train.labels)), held_out), "test": held_out}
    if with_validation:
        chosen = held[stratified_sample(train.strata[first[held]], (len(held) + 1) // 2, seed)]
        is_test = np.isin(group_of[held_out], chosen)
        rows["validation"], rows["test"] = held_out[~is_test], held_out[is_test]
    sizes = {name: len(rows[name]) for name in PARTS if name in rows}
    copies = len(groups) - len(first)
    logger.info(
        f"{train.source} is split with seed {seed}, no test part being given: {sizes}"
        + (f"; {copies:,} near copies of others are in the part of these" if copies else "")
    )
    return {name: train.select(rows[name]) for name in sizes}


# --- Probes while pretraining ---


def load_probe(corpus: str, text_column: str = "text", label_column: str = "label") -> LabelledSplit:
    """Load a labelled corpus, divided for probes; python_docs by its own sealed parts.

    Raises:
        ValueError: as `split_labelled`.
    """
    part_column = PART if corpus == PYTHON_DOCS else None
    return split_labelled(load_corpus(corpus), text_column, label_column, part_column=part_column)


def split_labelled(
    dataset: Dataset, text_column: str = "text", label_column: str = "label", part_column: str | None = None
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
    refuse_missing_columns("--text_column", [text_column], dataset.column_names, "the data of the probe")
    (read,), several = read_labels(LabelColumn.of(dataset, label_column, "the data of the probe"))
    if several:
        raise ValueError(f"The probe needs one label a document: column {label_column!r} has lists.")
    parts = dataset[part_column][:] if part_column else [""] * len(dataset)
    rows = zip(dataset[text_column][:], read, parts)
    usable = [(text, label, part) for text, label, part in rows if isinstance(text, str) and label is not None]
    if left_out := len(read) - len(usable):
        logger.warning(f"The probe leaves out {left_out} documents without a text or a label.")
    ids = [document_id(text) for text, _, _ in usable]
    majority = majority_labels(ids, [label for _, label, _ in usable])
    usable = [row for row, identity in zip(usable, ids) if majority.get(identity, row[1]) == row[1]]
    texts = np.array([text for text, _, _ in usable], dtype=object)
    names, labels, counts = np.unique(
        [str(label[0]) for _, label, _ in usable], return_inverse=True, return_counts=True
    )
    largest = np.sort(np.argsort(-counts, kind="stable")[:MAX_CLASSES])
    scarce = [f"{names[label]} ({counts[label]})" for label in largest if counts[label] < 2 * SHOTS]
    if len(names) < 2 or scarce:
        raise ValueError(
            f"The probe needs two or more classes in column {label_column!r}, strings or integers, and {2 * SHOTS} "
            f"documents of each; it has {len(names)}, with fewer: {some(scarce)}."
        )
    kept = np.flatnonzero(np.isin(labels, largest))
    if part_column:
        part_of = np.array([row[2] for row in usable])[kept]
        train, validation, test = (kept[part_of == name] for name in PARTS)
        validation = validation[stratified_sample(labels[validation], MAX_VALIDATION, seed=0)]
        dropped = 0
    else:
        train, validation, test, dropped = _divide(texts, labels, kept)
    # Keep the proportion of each class in train, and DRAWABLE documents of it.
    shuffled = train[np.random.default_rng(0).permutation(len(train))]
    share = min(MAX_TRAIN / len(train), 1)
    of_class = [shuffled[labels[shuffled] == label] for label in np.unique(labels[train])]
    train = np.concatenate([members[: max(round(len(members) * share), DRAWABLE)] for members in of_class])
    rows_of = dict(zip(PARTS, (train, validation, test)))
    return LabelledSplit.of_parts(
        {name: texts[rows].tolist() for name, rows in rows_of.items()},
        {name: np.searchsorted(largest, labels[rows]) for name, rows in rows_of.items()},
        names[largest].tolist(),
        {"near_duplicates_dropped": dropped},
    )


def _divide(texts: np.ndarray, labels: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Divide the rows `kept`: to train on, to select by, to test on; and the number of near-duplicates dropped."""
    train, held = train_test_split(kept, test_size=TEST_SHARE, stratify=labels[kept], random_state=0)
    if len(held) > MAX_TEST + MAX_VALIDATION:
        size = MAX_TEST + MAX_VALIDATION
        held, surplus = train_test_split(held, train_size=size, stratify=labels[held], random_state=0)
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


def some(names: Sequence[str]) -> str:
    """Join the first ten of many names, and say how many more there are."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "nothing") + more
