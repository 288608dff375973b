"""Read files and Hub splits as the parts of a labelled data set, before texts are read and classes numbered."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import ClassLabel, Dataset
from sklearn.datasets._twenty_newsgroups import strip_newsgroup_footer, strip_newsgroup_header, strip_newsgroup_quoting

from docsplit.data.corpora import PYTHON_DOCS, add_text, load_corpus
from docsplit.data.readers.files import saved_files, saved_splits
from docsplit.data.readers.rows import join_paragraphs
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.runtime.files import refuse_missing_path

logger = logging.getLogger(__name__)

DEFAULT_SPLITS = {"validation": "validation", "test": "test"}  # used where a Hub data set has them
NOT_OF_PYTHON_DOCS = ("validation_file", "test_file", "validation_split", "test_split", "strip_newsgroup_headers")
Source = tuple[str, Dataset]  # what messages call it, and its rows
NAMED = 10  # things of a long list that an error names


@dataclass
class Part:
    """The train, validation or test part before its texts are read."""

    source: str  # for messages
    dataset: Dataset
    labels: list[Any]  # a text each, or a tuple of texts

    def select(self, rows: np.ndarray) -> "Part":
        """Take these rows, (n,)."""
        return Part(self.source, self.dataset.select(rows), [self.labels[row] for row in rows])

    @property
    def strata(self) -> np.ndarray:
        """The class number of each row, (N,), whose proportions samples keep; all 0 with several labels a document."""
        if isinstance(self.labels[0], tuple):
            return np.zeros(len(self.labels), dtype=np.int64)
        return np.unique(self.labels, return_inverse=True)[1]


def check_sources(options: LabelledArguments) -> None:
    """Refuse options that name two sources, or the parts of one that is not there.

    Raises:
        ValueError: naming the options and the remedy.
    """
    if options.train_file is not None:
        if options.validation_split or options.test_split:
            raise ValueError(
                "--validation_split and --test_split are of a Hub data set: name files, or a --dataset_name."
            )
        if options.dataset_name not in (None, PYTHON_DOCS):
            raise ValueError(f"Both --dataset_name {options.dataset_name} and --train_file are given: leave out one.")
    elif options.dataset_name not in (None, PYTHON_DOCS) and (options.validation_file or options.test_file):
        raise ValueError("--validation_file and --test_file go with a --train_file, not with a --dataset_name.")


def check_built_in(options: LabelledArguments) -> None:
    """Refuse options that the built-in corpus does not have.

    Raises:
        ValueError: naming them and the remedy.
    """
    if options.text_column != ["text"] or options.label_column != "label":
        raise ValueError(
            f"{PYTHON_DOCS!r}, the default data, has the columns text and label: name a --train_file or a "
            "--dataset_name to go with --text_column and --label_column."
        )
    if given := [name for name in NOT_OF_PYTHON_DOCS if getattr(options, name)]:
        raise ValueError(
            f"{', '.join(f'--{name}' for name in given)} cannot go with {PYTHON_DOCS!r}, the default "
            "data: name a --train_file or a --dataset_name."
        )


def load_files(options: LabelledArguments) -> dict[str, Source]:
    """Read the local files, by the names of their parts; of a saved data set with splits its own parts are read too.

    Raises:
        ValueError: if there is no such file, naming those beside it.
    """
    files = {"train": options.train_file, "validation": options.validation_file, "test": options.test_file}
    for part in ("validation", "test"):
        if files[part] is None and part in saved_splits(Path(str(options.train_file))):
            files[part] = options.train_file
    splits = {"train": options.train_split, "validation": "validation", "test": "test"}  # of saved data sets
    for part, file in files.items():
        if file is not None and not Path(file).exists():
            parent = Path(file).parent
            names = sorted(path.name for path in parent.iterdir()) if parent.is_dir() else []
            raise ValueError(f"There is no --{part}_file {file!r}; in {str(parent)!r} there is {some(names)}.")
    return {
        part: (f"the {part} file {file}", load_corpus(file, splits[part], encoding=options.encoding))
        for part, file in files.items()
        if file is not None
    }


def load_splits(options: LabelledArguments) -> dict[str, Source]:
    """Read the splits of a Hub data set, or a saved one, by the names of their parts; usual ones need not be named.

    Raises:
        ValueError: if there is no such split, or it is unknown which there are.
    """
    dataset_name = str(options.dataset_name)
    saved = saved_splits(Path(dataset_name)) or (["train"] if saved_files(Path(dataset_name)) is not None else [])
    if Path(dataset_name).exists() and not saved:
        raise ValueError(f"--dataset_name {dataset_name!r} is a file or folder here: name it with --train_file.")
    refuse_missing_path(dataset_name, "a data set of the Hub (USER/NAME); files go with --train_file")
    chosen = {"train": options.train_split, "validation": options.validation_split, "test": options.test_split}
    name, _, configuration = dataset_name.partition(":")
    try:
        available = saved or datasets.get_dataset_split_names(name, configuration or None)
    except (OSError, ValueError) as error:  # offline, or something that load_corpus says more about
        if chosen["test"] is None:  # it may have one, which must not be replaced by a part of train
            raise ValueError(
                f"Which splits {dataset_name} has is unknown: name them with --validation_split and --test_split, or "
                f"try again. The cause: {error}"
            ) from error
        logger.warning(f"Which splits {dataset_name} has is unknown, only those named are used: {error}")
        available = [split for split in chosen.values() if split]
    for part, split in DEFAULT_SPLITS.items():
        if chosen[part] is None and split in available and split not in chosen.values():
            chosen[part] = split
    if missing := [split for split in chosen.values() if split and split not in available]:
        raise ValueError(f"{dataset_name} has no split {some(missing)}; it has {some(available)}.")
    logger.info(f"Splits of {dataset_name}: {chosen}")
    return {
        part: (f"the {split} split of {dataset_name}", load_corpus(dataset_name, split))
        for part, split in chosen.items()
        if split
    }


def read_labels(sources: dict[str, Source], column: str) -> dict[str, list[Any]]:
    """Read the labels of the documents of each part: texts, as they are written, or the names that classes have.

    Where a document may have several, they are a sorted tuple. Lists in the file are sets of labels, or vectors, whose
    positions are the classes: all parts decide together (`are_vectors`).

    Raises:
        ValueError: naming the column or the row.
    """
    values: dict[str, list[Any]] = {}
    names: dict[str, list[str] | None] = {}
    for part, (source, dataset) in sources.items():
        if column not in dataset.column_names:
            raise ValueError(f"--label_column is {column!r}, but {source} has the columns {dataset.column_names}.")
        feature = dataset.features[column]
        feature = getattr(feature, "feature", feature)  # of a list
        names[part] = feature.names if isinstance(feature, ClassLabel) else None
        values[part] = dataset[column][:]
    if are_vectors([value for of_part in values.values() for value in of_part]):
        width = len(next(iter(values.values()))[0])
        named = next((known for known in names.values() if known and len(known) == width), None)
        names = dict.fromkeys(names, named)
        values = {part: [np.flatnonzero(row).tolist() for row in of_part] for part, of_part in values.items()}
    return {
        part: _labels_of(of_part, names[part], f"{column!r} of row {{}} (from 0) of {sources[part][0]}")
        for part, of_part in values.items()
    }


def are_vectors(values: Sequence[Any]) -> bool:
    """Whether the labels of documents are vectors: lists of one length, two or more, of 0 and 1 alone.

    One of them has to repeat a value: [1, 0] and [0, 1] alone might be sets.
    """
    width = len(values[0]) if isinstance(values[0], list) else 0
    return (
        width > 1
        and all(isinstance(value, list) and len(value) == width for value in values)
        and all(isinstance(number, int | float) and number in (0, 1) for value in values for number in value)
        and any(len(set(value)) < width for value in values)
    )


def _labels_of(values: list[Any], names: list[str] | None, place: str) -> list[Any]:
    """Check the labels of a part, and name them.

    Args:
        names: of the classes, where labels are their numbers.
        place: of a row, whose number is missing, for messages.
    """
    several = any(isinstance(value, list) for value in values)
    names_of = dict(enumerate(names)) if names else None
    labels: list[Any] = []
    for row, value in enumerate(values):
        if not several and (value is None or value != value or not str(value).strip()):
            raise ValueError(f"{place.format(row)} is empty. Mend or drop that row.")
        if isinstance(value, list) != several:
            raise ValueError(
                f"{place.format(row)} is {value!r}, while other rows have a list: give every row a list of labels, an "
                "empty one where there is none."
            )
        found = [names_of.get(label) if names_of else label for label in (value if several else [value])]
        if not all(isinstance(label, str | int) and str(label).strip() for label in found):
            raise ValueError(
                f"{place.format(row)} is {value!r}: labels should be strings, integers or bools. Mend or drop that "
                "row."
            )
        texts = sorted(map(str, found))
        if len(set(texts)) < len(texts):
            raise ValueError(
                f"{place.format(row)} is {value!r}: it has a label twice. Give each once; vectors have 0 and 1 alone, "
                "and one length in all rows."
            )
        labels.append(tuple(texts) if several else texts[0])
    return labels


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


def sample_for_draws(indices: np.ndarray, labels: np.ndarray, size: int, shots: int, seed: int) -> np.ndarray:
    """Draw about `size` of the indices; each class has its proportion of them, and `shots` at least."""
    shuffled = np.random.default_rng(seed).permutation(len(indices))
    kept = []
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        kept.append(members[: max(round(len(members) * min(size / len(indices), 1)), shots)])
    return indices[np.concatenate(kept)]


def hold_out_test(train: Part, share: float, with_validation: bool, seed: int) -> dict[str, Part]:
    """Divide a train part into train, test and, `with_validation`, validation."""
    size = round(share * len(train.labels))
    if size < 1 + with_validation:
        raise ValueError(
            f"{len(train.labels)} documents in {train.source} are too few to hold out {100 * share:.0f} %: "
            "name a --test_file or a --test_split."
        )
    strata, several = train.strata, isinstance(train.labels[0], tuple)
    if several:
        logger.info(f"Test documents are drawn at random from {train.source}, each having several labels.")
    elif rare := [label for label, count in Counter(train.labels).items() if count < 2]:
        raise ValueError(
            f"{train.source} has a single document of each of these classes, too few to hold out for testing: "
            f"{some(sorted(rare))}. Drop them, or name a --test_file or a --test_split."
        )
    held_out = stratified_sample(strata, size, seed)
    if several:  # a document that alone has a label stays in training
        left = np.setdiff1d(np.arange(len(train.labels)), held_out)
        known = {label for row in left for label in train.labels[row]}
        held_out = held_out[[known.issuperset(train.labels[row]) for row in held_out]]
        if len(held_out) < 1 + with_validation:
            raise ValueError(
                f"Too many documents of {train.source} alone have one of their labels to hold out "
                f"{100 * share:.0f} %: drop rare labels, or name a --test_file or a --test_split."
            )
    parts = {"train": train.select(np.setdiff1d(np.arange(len(train.labels)), held_out))}
    test = held_out
    if with_validation:
        chosen = stratified_sample(strata[held_out], (len(held_out) + 1) // 2, seed)
        test, validation = held_out[chosen], np.delete(held_out, chosen)
        parts["validation"] = train.select(validation)
    parts["test"] = train.select(test)
    sizes = {name: len(part.labels) for name, part in parts.items()}
    logger.info(f"{train.source} is split with seed {seed}, no test part being given: {sizes}")
    return parts


def read_texts(dataset: Dataset, columns: list[str], strip: bool, source: str) -> list[str | None]:
    """Read the text of each row: "" where it is empty, None where a column has something else than text."""
    if "text" in columns and "text" not in dataset.column_names and "sections" in dataset.column_names:
        dataset = add_text(dataset, "text")
    if missing := [column for column in columns if column not in dataset.column_names]:
        raise ValueError(f"--text_column names {some(missing)}, but {source} has the columns {dataset.column_names}.")
    texts: list[str | None] = []
    for values in zip(*(dataset[column][:] for column in columns)):
        pieces = [join_paragraphs(value) for value in values if value is not None]
        if None in pieces:
            texts.append(None)
            continue
        text = "\n\n".join(piece for piece in pieces if piece and piece.strip())
        text = strip_newsgroup_headers(text) if strip else text
        texts.append(text if text.strip() else "")
    return texts


def strip_newsgroup_headers(text: str) -> str:
    """Strip headers, footer and quotes of a newsgroup posting, which give its group away.

    The same as `sklearn.datasets.fetch_20newsgroups(remove=("headers", "footers", "quotes"))`.
    """
    return strip_newsgroup_quoting(strip_newsgroup_footer(strip_newsgroup_header(text)))


def some(names: Sequence[str]) -> str:
    """Join the first `NAMED` of many names, and say how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (", ".join(names[:NAMED]) or "nothing") + more
