"""Documents to token ids of their sentences, once; held-out documents, and duplicates of any kind."""

import hashlib
import json
import logging
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from sklearn.feature_extraction.text import HashingVectorizer
from transformers import PreTrainedTokenizerBase

from docsplit.data.seen_documents import SHINGLE_WORDS, SKETCH_SIZE, sketch
from docsplit.data.segmentation import clean_text, load_sentence_splitter
from docsplit.data.tokenization import cut_in_two, has_initial_form, tokenize_units
from docsplit.runtime.files import hash_of_code

logger = logging.getLogger(__name__)

DROP_REASONS = ("used", "not_a_string", "empty", "fewer_than_two_words")


def document_id(text: str) -> int:
    """A 63-bit hash of the text up to white space: equal for exact duplicates, and the key of a document's draws."""
    digest = hashlib.blake2b(" ".join(clean_text(text).split()).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def tokenize(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    text_column: str,
    sentence_splitter: str,
    num_proc: int | None = None,
) -> tuple[Dataset, dict[str, int]]:
    """Cut each text into sentences and tokenise them, once.

    Args:
        dataset: rows with a text in `text_column`.
        num_proc: number of processes, None for this one alone.

    Returns: a data set with `document_id` (int64), `sketch` (uint32, of `docsplit.data.seen_documents.sketch`),
        `input_ids` (the ids of all units, one after another, without special tokens), `unit_lengths` (how many each
        has) and, for byte-level BPE, `initial_input_ids` and `initial_unit_lengths` (each unit as it reads at the
        start of a text); every document has two or more units.
        And the number of documents used and of those dropped for each reason.

    Raises:
        ValueError: if no document is left.
    """
    load_sentence_splitter(sentence_splitter)  # fails here, with its own message, rather than in a worker
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer {tokenizer.name_or_path!r} has no fast version (tokenizer.json): choose another."
        )
    ids_type = Value("uint16" if len(tokenizer) <= 2**16 else "int32")
    features = {"document_id": Value("int64"), "drop_reason": Value("uint8")}
    features["sketch"] = List(Value("uint32"), length=SKETCH_SIZE)
    for prefix in ("", "initial_") if has_initial_form(tokenizer) else ("",):
        features |= {f"{prefix}input_ids": [ids_type], f"{prefix}unit_lengths": [Value("int32")]}
    tokenized = dataset.map(
        tokenize_batch,
        batched=True,
        batch_size=100,  # a batch of books must fit into memory
        new_fingerprint=_fingerprint(dataset, tokenizer, text_column, sentence_splitter),
        remove_columns=dataset.column_names,
        features=Features(features),
        fn_kwargs={"tokenizer": tokenizer, "text_column": text_column, "sentence_splitter": sentence_splitter},
        num_proc=num_proc,
        desc="Segmenting and tokenising",
    )
    reasons = np.asarray(tokenized.with_format("numpy")["drop_reason"][:])
    counts = {name: int((reasons == code).sum()) for code, name in enumerate(DROP_REASONS)}
    if counts["used"] == 0:
        raise ValueError(f"None of the {len(dataset):,} documents can be used: {counts}. Check --text_column.")
    if counts["used"] < len(dataset):
        logger.warning(f"Dropped {len(dataset) - counts['used']:,} of {len(dataset):,} documents: {counts}")
        tokenized = tokenized.select(np.flatnonzero(reasons == 0))
    return tokenized.remove_columns("drop_reason"), counts


def _fingerprint(dataset: Dataset, tokenizer: Any, text_column: str, sentence_splitter: str) -> str:
    """The key of the cache: what the ids depend on, this code included, and not the tokenizer's folder or length."""
    tokenizer_state = json.loads(tokenizer.backend_tokenizer.to_str())
    tokenizer_state |= {"truncation": None, "padding": None}  # of the last call
    code = hash_of_code("docsplit/data")
    return Hasher.hash((dataset._fingerprint, tokenizer_state, text_column, sentence_splitter, code))


def tokenize_batch(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, text_column: str, sentence_splitter: str
) -> dict[str, list[Any]]:
    """Rows of the features of `tokenize`, one a text; those that are dropped have a reason and no units."""
    split = load_sentence_splitter(sentence_splitter)
    texts = batch[text_column]
    documents = [split(clean_text(text)) if isinstance(text, str) else [] for text in texts]
    ids = tokenize_units(tokenizer, [unit for units in documents for unit in units])
    rows: dict[str, list[Any]] = {"document_id": [], "drop_reason": []}
    rows["sketch"] = list(sketch([text if isinstance(text, str) else "" for text in texts]))
    rows |= {name: [] for ids_name in ids for name in (ids_name, _lengths_name(ids_name))}
    start = 0
    for text, units in zip(texts, documents):
        own = _with_tokens({name: unit_ids[start : start + len(units)] for name, unit_ids in ids.items()})
        start += len(units)
        if len(own["input_ids"]) == 1:
            own = _with_tokens(tokenize_units(tokenizer, cut_in_two(tokenizer, " ".join(units))))
        reason = _drop_reason(text, len(own["input_ids"]))
        if reason != "used":
            own = {name: [] for name in own}
        rows["document_id"].append(document_id(text) if isinstance(text, str) else 0)
        rows["drop_reason"].append(DROP_REASONS.index(reason))
        for name, unit_ids in own.items():
            rows[name].append([token for unit in unit_ids for token in unit])
            rows[_lengths_name(name)].append([len(unit) for unit in unit_ids])
    return rows


def _drop_reason(text: Any, num_units: int) -> str:
    if not isinstance(text, str):
        return "not_a_string"
    return ("empty", "fewer_than_two_words")[num_units] if num_units < 2 else "used"


def _lengths_name(ids_name: str) -> str:
    return ids_name.replace("input_ids", "unit_lengths")


def _with_tokens(ids: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Without the units that have none: the tokenizer may remove all that is in one (zero-width characters, say)."""
    kept = [index for index, unit_ids in enumerate(zip(*ids.values())) if all(unit_ids)]
    return {name: [unit_ids[index] for index in kept] for name, unit_ids in ids.items()}


def hold_out(dataset: Dataset, size: int, seed: int) -> tuple[Dataset, Dataset | None]:
    """Training documents, and `size` others (at most a tenth) for the evaluation loss; None for a size of 0."""
    dataset = dataset.with_format("numpy")
    if size == 0:
        return dataset, None
    parts = dataset.train_test_split(test_size=min(size, max(len(dataset) // 10, 1)), seed=seed)
    return parts["train"], with_fixed_draws(parts["test"])


def with_fixed_draws(dataset: Dataset) -> Dataset:
    """With a column `epoch`, so that the collator draws the documents the same way in each evaluation."""
    return dataset.with_format("numpy").add_column("epoch", np.zeros(len(dataset), dtype=np.int64))


def check_fills_a_batch(dataset: Dataset, batch_size: int, purpose: str) -> None:
    """Stop before a run of no steps, or evaluations of none: an incomplete batch is dropped.

    Raises:
        ValueError: if there are fewer documents than a batch has.
    """
    if len(dataset) < batch_size:
        raise ValueError(
            f"{len(dataset)} {purpose} documents do not fill one batch of {batch_size}: lower "
            f"--per_device_{'train' if purpose == 'training' else 'eval'}_batch_size, or give more documents."
        )


def near_duplicates(texts: Sequence[str], references: Sequence[str], threshold: float = 0.5) -> np.ndarray:
    """Which texts have a reference with a Jaccard similarity of word 5-grams of `threshold` or more, (len(texts),)."""
    ours, theirs = _shingles(texts), _shingles(references)
    found = np.zeros(len(texts), dtype=bool)
    found[_similar(ours, theirs, threshold)[0]] = True
    return found


def near_duplicate_pairs(texts: Sequence[str], threshold: float = 0.5) -> np.ndarray:
    """The pairs of texts that `near_duplicates` compares as such, (K, 2), each once."""
    shingles = _shingles(texts)
    first, second = _similar(shingles, shingles, threshold)
    return np.stack([first, second], axis=1)[first < second]


def jaccard(text: str, other: str) -> float:
    """Of the runs of five words of two texts; texts of fewer words are the same or not."""
    ours, theirs = _shingles([text]), _shingles([other])
    shared, both = float((ours @ theirs.T).sum()), ours.sum() + theirs.sum()
    return shared / (both - shared) if both else float(text.split() == other.split())


def _shingles(texts: Sequence[str]) -> Any:
    """(N, V) sparse: which runs of five words each text has, by their hashes."""
    vectorizer = HashingVectorizer(
        n_features=2**22,
        ngram_range=(SHINGLE_WORDS, SHINGLE_WORDS),
        binary=True,
        norm=None,
        alternate_sign=False,
        token_pattern=r"(?u)\w+",
    )
    return vectorizer.transform(texts)


def _similar(ours: Any, theirs: Any, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `ours` and of `theirs`, pair by pair, with a Jaccard similarity of `threshold` or more."""
    our_sizes, their_sizes = ours.sum(axis=1).A1, theirs.sum(axis=1).A1
    shared = (ours @ theirs.T).tocoo()  # only pairs that share a shingle are stored
    similar = shared.data / (our_sizes[shared.row] + their_sizes[shared.col] - shared.data) >= threshold
    return shared.row[similar], shared.col[similar]


def without_documents(dataset: Dataset, document_ids: Set[int]) -> tuple[Dataset, int]:
    """Leave documents out, exact duplicates included: those that an evaluation will test on.

    Args:
        dataset: what `tokenize` gave.
        document_ids: of `document_id`.

    Returns: the rest, and how many were left out.
    """
    excluded = np.isin(np.asarray(dataset.with_format("numpy")["document_id"][:]), list(document_ids))
    return dataset.select(np.flatnonzero(~excluded)), int(excluded.sum())
