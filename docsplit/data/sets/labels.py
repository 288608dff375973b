"""What a label is: one reader for tables and Python calls, and one answer for a text that has several labels.

read_labels        values of any kind -> the labels of each document
majority_labels    of copies of a text that have several labels: what most of them say
classes_of         labels -> the sorted classes
"""

import ast
import json
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
from datasets import ClassLabel, Dataset

from docsplit.data.readers.base import normalized
from docsplit.data.readers.documents import values_of
from docsplit.data.readers.rows import refuse_missing_columns

logger = logging.getLogger(__name__)

Label = str | int | bool
Labels = tuple[Label, ...]  # of a document, sorted, each once
_UNREAD = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")  # what a wrong encoding leaves
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_LIST = re.compile(r"""\s*\[\s*(?:\]|["'].*\]|[\d\s.,]+\])\s*""", re.DOTALL)  # as a text, in a cell of a table
# Sets and tuples as Python writes them
_SET = re.compile(r"""\s*(?:(?:frozen)?set\(.*\)|\{.*\}|\(.*\))\s*""", re.DOTALL)
_NOTHING = frozenset(("nan", "NaN", "<NA>", "#N/A"))  # what pandas and Excel write where nothing is
_MAY_BE_NOTHING = frozenset(("None", "null", "NULL", "NA", "N/A", "n/a"))


@dataclass(frozen=True)
class LabelColumn:
    """The labels of documents as they were given.

    Attributes:
        values: of each document its label; or a list of its labels, or a vector of 0 and 1, where it may have several.
        names: of the classes, if the values are their numbers.
        source: for messages.
    """

    values: Iterable[Any]
    names: Sequence[str] | None = None
    source: str = "the labels"

    @classmethod
    def of(cls, dataset: Dataset, column: str, source: str) -> "LabelColumn":
        """Take a column of a data set.

        Raises:
            ValueError: naming the columns, if there is no such column.
        """
        refuse_missing_columns("--label_column", [column], dataset.column_names, source)
        feature: Any = dataset.features[column]
        feature = getattr(feature, "feature", feature)  # of a list
        return cls(dataset[column][:], feature.names if isinstance(feature, ClassLabel) else None, source)


def read_labels(*columns: LabelColumn) -> tuple[list[list[Labels | None]], bool]:
    """Read the labels of each document, for each column; and whether a document may have several labels, or none.

    All columns decide together. Labels are bools if all are, integers if all are whole numbers, else texts: in NFC,
    without white space at the ends, with one space for others, without invisible characters; 1.0 is written as 1.
    Lists are sets, also those that a text holds as JSON or Python write them; where all are vectors (`are_vectors`),
    the positions of 1 are the labels. None, NaN, an empty text, what programs write for them, and -1 where classes
    have names, are no label: None.

    Raises:
        ValueError: naming the row, for what is no label; for numbers that are no classes; for lists that may be
            vectors or sets.
    """
    given = [list(values_of(column.values)) for column in columns]
    values = [[_plain(_list_in(value)) for value in of_column] for of_column in given]
    there = [value for of_column in values for value in of_column if value is not None]
    lists = [value for value in there if isinstance(value, list)]
    several = bool(there) and isinstance(there[0], list)
    is_table = any(isinstance(column.values, np.ndarray) and column.values.ndim == 2 for column in columns)
    names = [column.names for column in columns]
    if len(lists) == len(there) and are_vectors(lists, is_table):
        named = next((known for known in names if known and len(known) == len(lists[0])), None)
        names = [named] * len(columns)
        values = [[value and np.flatnonzero(value).tolist() for value in of_column] for of_column in values]
    elif [0, 1] in lists and [1, 0] in lists and all(value in ([], [0, 1], [1, 0]) for value in lists):
        raise ValueError(
            f"The lists of {columns[0].source} are [1, 0] and [0, 1] alone, which are vectors or name both classes: "
            "give each document its label instead."
        )
    labels: list[list[Labels | None]] = []
    for column, of_column, raw, names_of in zip(columns, values, given, names):
        labels.append([])
        for row, value in enumerate(of_column):
            try:
                labels[-1].append(_labels_of(value, several, names_of))
            except ValueError as error:
                place = f"The label of row {row} (from 0) of {column.source}"
                raise ValueError(f"{place} is {repr(raw[row])[:200]}: {error}.") from error
    everything = [label for of_column in labels for of_row in of_column for label in of_row or ()]
    if fraction := _fraction_in(everything):
        raise ValueError(f"Labels are numbers, such as {fraction}: give names of classes, or whole numbers.")
    if len(set(map(type, everything))) > 1:
        labels = [[of_row and tuple(map(str, of_row)) for of_row in of_column] for of_column in labels]
    return [[of_row and tuple(sorted(set(of_row))) for of_row in of_column] for of_column in labels], several


def _plain(value: Any) -> Any:
    """Write what stands for a list as a list, what NumPy has as Python has it, and what is no label as None."""
    if isinstance(value, tuple | set | frozenset | np.ndarray):
        value = list(value)
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, np.bool_ | np.number | np.str_):
        value = value.item()
    if isinstance(value, str):
        return value if _INVISIBLE.sub("", value).strip() not in ("", *_NOTHING) else None
    return None if pandas.api.types.is_scalar(value) and pandas.isna(value) else value


def _list_in(value: Any) -> Any:
    """Read a list, set or tuple that a text holds, as JSON or Python write it; return any other value as it is."""
    if not isinstance(value, str):
        return value
    is_list = _LIST.fullmatch(value)
    if is_list:
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    if not (is_list or _SET.fullmatch(value)) or re.search(r"""["']\s+["']""", value):  # one text, to Python
        return value
    literal = value.strip()
    literal = literal[len("frozenset(") : -1] or "set()" if literal.startswith("frozenset(") else literal
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        read = ast.literal_eval(literal)
        return read if isinstance(read, list | tuple | set) else value
    return value


def are_vectors(values: Sequence[list[Any]], is_table: bool = False) -> bool:
    """Whether the labels of documents are vectors: lists of one length of 0 and 1 alone.

    Two or more, and one of them has to repeat a value, since [1, 0] and [0, 1] alone might be sets; but not the rows
    of an array.
    """
    width = len(values[0]) if values else 0
    return (
        width > 0
        and all(len(value) == width for value in values)
        and all(isinstance(number, int | float) and number in (0, 1) for value in values for number in value)
        and (is_table or (width > 1 and any(len(set(value)) < width for value in values)))
    )


def _labels_of(value: Any, several: bool, names: Sequence[str] | None) -> Labels | None:
    """Read the labels of one document.

    Raises:
        ValueError: saying why they are none.
    """
    if value is None or (names and not several and value == -1):  # how data sets hide the labels of a test part
        return None
    if isinstance(value, list) != several:
        raise ValueError("all documents have one label, or all have a list of labels")
    labels = [_label(label, names) for label in (value if several else [value])]
    if len(set(labels)) < len(labels) and all(number in (0, 1) for number in value):
        raise ValueError("vectors of 0 and 1 have one length in all rows, and hold nothing else")
    return tuple(labels)


def _label(value: Any, names: Sequence[str] | None) -> Label:
    if isinstance(value, float) and value.is_integer():  # of a column with gaps
        if abs(value) >= 2**53:
            raise ValueError("above 2^53 a float is no exact number: give whole numbers as integers or texts")
        value = int(value)
    if names is not None:
        if not isinstance(value, int) or not 0 <= value < len(names):
            raise ValueError(f"the classes are 0 to {len(names) - 1}")
        value = names[value]
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        if _LIST.fullmatch(value):
            raise ValueError('it seems to be a list: write it as JSON does, ["a", "b"]')
        if _UNREAD.search(value):
            raise ValueError("it has characters that could not be read: name the encoding of the file (--encoding)")
        if label := " ".join(_INVISIBLE.sub("", normalized(value)).split()):
            return label
    raise ValueError("labels are texts, whole numbers or bools")


def _fraction_in(labels: Sequence[Label]) -> str | None:
    """Find a number that is not whole, if all labels are numbers, as texts too."""
    try:
        numbers = list(map(float, labels))
    except (ValueError, OverflowError):
        return None
    fractions = (str(label) for label, number in zip(labels, numbers) if not number.is_integer())
    return next(fractions, None) if all(map(math.isfinite, numbers)) else None


def majority_labels(ids: Sequence[int], labels: Sequence[Labels]) -> dict[int, Labels | None]:
    """Say which labels a text has whose copies have several: those that most of them have, or None for a tie.

    The log says how many there are.

    Args:
        ids: of texts (`docsplit.data.copies.document_id`): copies have one.
        labels: of each.

    Returns: by id, for the texts with several labels alone.
    """
    counts: dict[int, list[tuple[int, Labels]]] = defaultdict(list)
    for (identity, label), count in Counter(zip(ids, labels)).items():
        counts[identity].append((count, label))
    settled: dict[int, Labels | None] = {}
    for identity, of_text in counts.items():
        if len(of_text) > 1:
            of_text.sort(key=lambda item: -item[0])
            settled[identity] = of_text[0][1] if of_text[0][0] > of_text[1][0] else None
    if settled:
        ties = sum(label is None for label in settled.values())
        logger.warning(
            f"{len(settled):,} text{'s' * (len(settled) > 1)} had several labels: {len(settled) - ties:,} took the "
            f"majority's, {ties:,} left out as ties. For several labels give each text once, with a list of them."
        )
    return settled


def classes_of(labels: Sequence[Labels], source: str) -> list[Any]:
    """List the classes, sorted, by value where all are whole numbers.

    The log names those that differ by case alone, and those that may be none.

    Raises:
        ValueError: if there is nothing to learn: for fewer than two, or if each document has all of them.
    """
    known: set[Any] = {label for of_document in labels for label in of_document}
    are_numbers = all(isinstance(label, str) and re.fullmatch("-?[0-9]+", label) for label in known)
    classes = sorted(known, key=lambda label: (int(label), label) if are_numbers else label)
    if len(classes) < 2:
        raise ValueError(
            f"There is one class in {source}, {''.join(map(str, classes)) or 'of no label'}: label two or more."
        )
    if all(len(of_document) == len(classes) for of_document in labels):
        raise ValueError(f"Every document of {source} has every class, {classes[:10]}: there is nothing to learn.")
    spellings = Counter(str(label).casefold() for label in classes)
    if alike := [label for label in classes if spellings[str(label).casefold()] > 1]:
        logger.warning(f"Classes that differ by case alone: {', '.join(map(str, alike[:10]))}.")
    if nothing := [label for label in classes if label in _MAY_BE_NOTHING]:
        logger.warning(
            f"Classes, though they may mean that there is no label: {', '.join(nothing)}. Leave cells empty."
        )
    return classes
