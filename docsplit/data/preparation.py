"""Prepare documents: tokenise their sentences once, hold out parts.

The cache keeps what `tokenize` makes: a second run on the same text, tokenizer and splitter starts within seconds. The
trade-off: the ids of the whole corpus lie on disk (2 bytes a token); views are drawn from them in each epoch.
"""

import hashlib
import json
import logging
from collections.abc import Set
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from datasets.table import InMemoryTable
from transformers import PreTrainedTokenizerBase

from docsplit.data.copies import SKETCH_SIZE, document_id, sketch
from docsplit.data.passages import clean_text, segment
from docsplit.data.segmentation import DEFAULT_SPLITTER, SentenceSplitter, load_sentence_splitter
from docsplit.data.tokenization import cut_in_two, has_initial_form, tokenize_units
from docsplit.runtime.files import JsonObject, hash_of_code, map_once

logger = logging.getLogger(__name__)

DROP_REASONS = ("used", "not_a_string", "empty", "fewer_than_two_words", "fewer_than_two_passages")
PASSAGE_COLUMNS = ("passage_units", "passage_sections")


@dataclass(frozen=True)
class Segmentation:
    """How the texts of a corpus are cut.

    Attributes:
        text_column: the column of the texts in the corpus.
        sentence_splitter: a name that `docsplit.data.segmentation.load_sentence_splitter` takes.
        passage_words: approximate words per passage, for views of passages; None: no passages.
        keep_all: keep every text. A short one has one unit, or one passage, and an empty one none.
    """

    text_column: str = "text"
    sentence_splitter: str = DEFAULT_SPLITTER
    passage_words: int | None = None
    keep_all: bool = False


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    segmentation: Segmentation = Segmentation(),
    num_proc: int | None = None,
) -> tuple[Dataset, dict[str, int]]:
    """Cut each text into sentences and tokenise them, once.

    Args:
        dataset: rows with a text in the column of the segmentation.
        num_proc: number of processes, None for this one alone.

    Returns: the data set, and the number of documents used and of those dropped for each reason. Its columns are
        `document_id` (int64); `sketch` (uint32, of `docsplit.data.copies.sketch`); `input_ids`, the ids of all
        units, one after another, without special tokens; `unit_lengths`, how many each unit has; for byte-level BPE
        `initial_input_ids` and `initial_unit_lengths`, each unit as it reads at the start of a text. With passages
        also `passage_units`, how many units each has, and `passage_sections`, the section that each is in. Every
        document has two or more units, or passages.

    Raises:
        ValueError: if no document is left.
    """
    load_sentence_splitter(segmentation.sentence_splitter)  # fails here, with its own message, rather than in a worker
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer {tokenizer.name_or_path!r} has no fast version (tokenizer.json): choose another."
        )
    ids_type = Value("uint16" if len(tokenizer) <= 2**16 else "int32")
    features = {"document_id": Value("int64"), "drop_reason": Value("uint8")}
    features["sketch"] = List(Value("uint32"), length=SKETCH_SIZE)
    for prefix in ("", "initial_") if has_initial_form(tokenizer) else ("",):
        features |= {f"{prefix}input_ids": [ids_type], f"{prefix}unit_lengths": [Value("int32")]}
    passage_words = segmentation.passage_words
    if passage_words is not None:
        features |= {name: [Value("int32")] for name in PASSAGE_COLUMNS}
    tokenized = map_once(
        dataset,
        tokenize_batch,
        _fingerprint(dataset, tokenizer, segmentation),
        batched=True,
        batch_size=100,  # a batch of books must fit into memory
        remove_columns=dataset.column_names,
        features=Features(features),
        fn_kwargs={"tokenizer": tokenizer, "segmentation": segmentation},
        num_proc=num_proc,
        desc="Segmenting and tokenising",
    )
    reasons = np.asarray(tokenized.with_format("numpy")["drop_reason"][:])
    counts = {name: int((reasons == code).sum()) for code, name in enumerate(DROP_REASONS)}
    if passage_words is None:
        del counts["fewer_than_two_passages"]
    if counts["used"] == 0:
        remedy = "Check --text_column." if passage_words is None else "Check --text_column, lower --passage_words."
        raise ValueError(f"None of the {len(dataset):,} documents can be used: {counts}. {remedy}")
    if counts["used"] < len(dataset) and not segmentation.keep_all:
        dropped = {name.replace("_", " "): count for name, count in counts.items() if count and name != "used"}
        shown = ", ".join(f"{count:,} {name}" for name, count in dropped.items())
        logger.warning(f"{sum(dropped.values()):,} of {len(dataset):,} documents are left out: {shown}.")
        tokenized = tokenized.select(np.flatnonzero(reasons == 0))
    return tokenized.remove_columns("drop_reason"), counts


def _fingerprint(dataset: Dataset, tokenizer: Any, segmentation: Segmentation) -> str:
    """Key the cache by what the ids depend on, this code included, but not by the tokenizer's folder or length."""
    code = hash_of_code("docsplit/data")
    return Hasher.hash((dataset._fingerprint, state_of_tokenizer(tokenizer), asdict(segmentation), code))


def state_of_tokenizer(tokenizer: Any) -> JsonObject:
    """Return all that decides the ids of a text, but not what the last call left."""
    return json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}


def fingerprint_of_documents(dataset: Dataset) -> str:
    """Hash the documents of `tokenize`, in order, and how they are cut: 16 hexadecimal digits, equal for equal data.

    Token ids, by far the most of the data, are not read: words and tokenizer decide them.
    """
    names = [name for name in dataset.column_names if name.endswith(("document_id", "_lengths", *PASSAGE_COLUMNS))]
    digest = hashlib.blake2b(digest_size=8)
    for table in dataset.select_columns(names).with_format("arrow").iter(batch_size=10_000):
        for column in table.combine_chunks().columns:
            values = column.combine_chunks()
            if pyarrow.types.is_list(values.type):
                digest.update(values.value_lengths().to_numpy())
                values = values.flatten()
            digest.update(values.to_numpy())
    return digest.hexdigest()


def tokenize_batch(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, segmentation: Segmentation
) -> dict[str, list[Any]]:
    """Turn each text into a row of the features of `tokenize`; dropped texts have a reason and no units."""
    split, passage_words = load_sentence_splitter(segmentation.sentence_splitter), segmentation.passage_words
    texts = batch[segmentation.text_column]
    documents = [_segment(text, split, passage_words) for text in texts]
    ids = tokenize_units(tokenizer, [unit for units, _ in documents for unit in units])
    rows: dict[str, list[Any]] = {"document_id": [], "drop_reason": []}
    rows["sketch"] = list(sketch([clean_text(text) if isinstance(text, str) else "" for text in texts]))
    rows |= {name: [] for ids_name in ids for name in (ids_name, _lengths_name(ids_name))}
    rows |= {name: [] for name in (PASSAGE_COLUMNS if passage_words is not None else ())}
    start = 0
    for text, (units, passages) in zip(texts, documents):
        # The units of this text, without those that have no token; a single sentence is cut in two.
        unit_columns = {name: unit_ids[start : start + len(units)] for name, unit_ids in ids.items()}
        start += len(units)
        unit_columns, kept = _with_tokens(unit_columns)
        passage_columns = {} if passage_words is None else _passage_columns(passages, kept)
        if passage_words is None and len(kept) == 1:
            unit_columns, _ = _with_tokens(tokenize_units(tokenizer, cut_in_two(tokenizer, " ".join(units))))
        # What is dropped keeps its row, for the counts, and loses its units.
        num_parts = len(passage_columns["passage_units"] if passage_columns else unit_columns["input_ids"])
        if not isinstance(text, str):
            reason = "not_a_string"
        elif not unit_columns["input_ids"]:
            reason = "empty"
        else:
            reason = "used" if num_parts > 1 else f"fewer_than_two_{'passages' if passage_columns else 'words'}"
        if segmentation.keep_all and unit_columns["input_ids"]:
            reason = "used"
        if reason != "used":
            unit_columns = {name: [] for name in unit_columns}
            passage_columns = {name: [] for name in passage_columns}
        rows["document_id"].append(document_id(text) if isinstance(text, str) else 0)
        rows["drop_reason"].append(DROP_REASONS.index(reason))
        for name, unit_ids in unit_columns.items():
            rows[name].append([token for unit in unit_ids for token in unit])
            rows[_lengths_name(name)].append([len(unit) for unit in unit_ids])
        for name, values in passage_columns.items():
            rows[name].append(values)
    return rows


def _segment(text: Any, split: SentenceSplitter, passage_words: int | None) -> tuple[list[str], list[tuple[int, int]]]:
    """Cut a text into sentences; passages are (number of sentences, section)."""
    if not isinstance(text, str):
        return [], []
    if passage_words is None:
        return split(clean_text(text)), []
    sections = segment(text, passage_words, split)
    passages = [(len(units), number) for number, section in enumerate(sections) for units in section]
    return [unit for section in sections for units in section for unit in units], passages


def _passage_columns(passages: list[tuple[int, int]], kept: list[int]) -> dict[str, list[int]]:
    """Make the columns of passages, without the units that are dropped and the passages left empty by that."""
    num_units, sections = np.array(passages, dtype=np.int64).reshape(-1, 2).T
    passage_of_unit = np.repeat(np.arange(len(passages)), num_units)
    num_units = np.bincount(passage_of_unit[kept], minlength=len(passages))
    left = num_units > 0
    sections = np.unique(sections[left], return_inverse=True)[1]
    return dict(zip(PASSAGE_COLUMNS, (num_units[left].tolist(), sections.tolist())))


def _lengths_name(ids_name: str) -> str:
    return ids_name.replace("input_ids", "unit_lengths")


def _with_tokens(ids: dict[str, list[list[int]]]) -> tuple[dict[str, list[list[int]]], list[int]]:
    """Keep the units that have tokens, and their numbers: a tokenizer may remove zero-width characters."""
    kept = [index for index, unit_ids in enumerate(zip(*ids.values())) if all(unit_ids)]
    return {name: [unit_ids[index] for index in kept] for name, unit_ids in ids.items()}, kept


def hold_out(dataset: Dataset, size: int, seed: int) -> tuple[Dataset, Dataset | None]:
    """Divide into training documents and `size` others (at most a tenth) for the evaluation loss; None for size 0.

    As `Dataset.train_test_split`, whose cache nobody verifies.

    Raises:
        ValueError: if there are fewer than two documents to divide.
    """
    dataset = dataset.with_format("numpy")
    if size == 0:
        return dataset, None
    if len(dataset) < 2:
        raise ValueError("One document cannot be held out of one: give more documents, or --eval_strategy no.")
    size = min(size, max(len(dataset) // 10, 1))
    order = np.random.default_rng(seed).permutation(len(dataset))
    return dataset.select(order[size:]), with_fixed_draws(dataset.select(order[:size]))


def with_fixed_draws(dataset: Dataset) -> Dataset:
    """Add a column `epoch`, so that the collator draws the documents in the same way in each evaluation."""
    rows = Dataset(InMemoryTable(dataset.with_format("arrow")[:])).with_format("numpy")
    return rows.add_column("epoch", np.zeros(len(dataset), dtype=np.int64))


def refuse_fewer_than_a_batch(count: int, batch_size: int, purpose: str, processes: int = 1) -> None:
    """Refuse fewer documents than one batch: incomplete batches are dropped, so there would be no steps.

    Args:
        batch_size: documents of a process.

    Raises:
        ValueError: naming the option.
    """
    if count < batch_size * processes:
        option = f"per_device_{'train' if purpose == 'training' else 'eval'}_batch_size"
        size = f"{batch_size} x {processes} processes" if processes > 1 else f"{batch_size}"
        raise ValueError(
            f"{count} {purpose} documents do not fill one batch of {size}: lower {option}, or give more documents."
        )


def check_fills_a_batch(dataset: Dataset, batch_size: int, purpose: str, processes: int = 1) -> None:
    """Refuse fewer documents than one batch, and count copies in the log: they are no negatives of each other.

    Args:
        batch_size: documents of a process.

    Raises:
        ValueError: if there are fewer documents than a batch has, or all are copies of one.
    """
    refuse_fewer_than_a_batch(len(dataset), batch_size, purpose, processes)
    batch_size *= processes
    distinct = len(np.unique(np.asarray(dataset.with_format("numpy")["document_id"][:])))
    if distinct == 1 < len(dataset):
        raise ValueError(
            f"The {len(dataset):,} {purpose} documents are copies of one, which has no negatives: give others, too."
        )
    if distinct < len(dataset):
        logger.log(
            logging.WARNING if distinct < batch_size else logging.INFO,
            f"{len(dataset) - distinct:,} of {len(dataset):,} {purpose} documents are copies of others: they are no "
            f"negatives of each other. {distinct:,} are distinct, and a batch has {batch_size:,}.",
        )


def without_documents(dataset: Dataset, document_ids: Set[int]) -> tuple[Dataset, int]:
    """Leave out the documents that an evaluation will test on, and their exact duplicates.

    Args:
        dataset: of `tokenize`.
        document_ids: of `document_id`.

    Returns: the rest, and how many were left out.
    """
    excluded = np.isin(np.asarray(dataset.with_format("numpy")["document_id"][:]), list(document_ids))
    return dataset.select(np.flatnonzero(~excluded)), int(excluded.sum())
