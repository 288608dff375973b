"""Text from anywhere to what training needs: token ids of sentences, segmented and tokenised once.

    load_corpus    a Hub name, local files or the built-in corpus -> datasets.Dataset with a text
    tokenize       -> datasets.Dataset with `document_id`, `input_ids` and `unit_lengths`, and what was dropped
    near_duplicates  for evaluation sets that must not repeat the training text

The first two are cached by `datasets`: a second run on the same text, tokenizer and splitter starts within seconds.
The trade-off: the ids of the whole corpus lie on disk (2 bytes a token); views are drawn from them in each epoch.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, Features, Value
from sklearn.feature_extraction.text import HashingVectorizer
from transformers import PreTrainedTokenizerBase

from docsplit.python_docs import python_docs_fingerprint, read_python_docs
from docsplit.segmentation import clean_text, load_sentence_splitter
from docsplit.tokenization import cut_in_two, has_initial_form, tokenize_units

logger = logging.getLogger(__name__)

PYTHON_DOCS = "python_docs"
LOADERS = {
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
DROP_REASONS = ("used", "not_a_string", "empty", "fewer_than_two_words")
SHINGLE_WORDS = 5  # near-duplicates share most of their runs of five words


def cache_directory() -> Path:
    """Where this project keeps what it built: beside the caches of `datasets` (HF_HOME, HF_DATASETS_CACHE)."""
    return Path(datasets.config.HF_DATASETS_CACHE) / "docsplit"


# --- Loading -------------------------------------------------------------------------------------------------------


def load_corpus(corpus: str, split: str = "train") -> Dataset:
    """Load documents.

    Args:
        corpus: "python_docs" (docstrings of the installed packages), a local file or folder (json, jsonl, csv, tsv,
            parquet, arrow or txt, also compressed), or a Hub data set `name` or `name:configuration`. A .txt file
            has one document a line, a folder of .txt files one document a file.
        split: the split of a Hub data set; local files are one split.

    Raises:
        ValueError: if nothing can be read there, naming the files or the cause.
    """
    if corpus == PYTHON_DOCS:
        dataset = _load_python_docs()
    elif Path(corpus).exists():
        dataset = _load_local(Path(corpus))
    else:
        dataset = _load_hub(corpus, split)
    if len(dataset) == 0:
        raise ValueError(f"The corpus {corpus!r} has no documents.")
    return dataset


def _load_python_docs() -> Dataset:
    directory = cache_directory() / f"{PYTHON_DOCS}-{python_docs_fingerprint()}"
    if not directory.exists():
        logger.info("Building the python_docs corpus from the docstrings of the installed packages (once)")
        built = Dataset.from_list(list(read_python_docs()))
        temporary = directory.with_name(f"{directory.name}.{hashlib.blake2b(str(id(built)).encode()).hexdigest()[:8]}")
        built.save_to_disk(temporary)
        temporary.rename(directory)
    return datasets.load_from_disk(directory)


def _load_local(path: Path) -> Dataset:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    loaders = {file: LOADERS.get(_suffix(file)) for file in files if not file.name.startswith((".", "_"))}
    known = {loader for loader in loaders.values() if loader}
    if len(known) != 1:
        found = ", ".join(file.name for file in files[:10]) or "no file"
        raise ValueError(
            f"{path} should hold files of one format of {sorted(set(LOADERS.values()))}, found {found}. "
            "Name one file, or a folder with one format in it."
        )
    loader = known.pop()
    names = [str(file) for file, its_loader in loaders.items() if its_loader == loader]
    options: dict[str, Any] = {}
    if loader == "text":
        options = {"encoding_errors": "replace", "sample_by": "document" if path.is_dir() else "line"}
    elif _suffix(Path(names[0])) == ".tsv":
        options = {"sep": "\t"}
    try:
        return datasets.load_dataset(loader, data_files=names, split="train", **options)
    except StopIteration:  # what `datasets` makes of an empty file
        return Dataset.from_list([])
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        cause = error.__cause__ or error
        if loader != "json":
            raise ValueError(f"Cannot read {', '.join(names[:5])} as {loader}: {cause}") from error
    # The Arrow reader refuses lone surrogates. Python's reads them, and knows the line at which a file is broken.
    logger.warning(f"Reading {len(names)} JSON files line by line, since the fast reader failed: {cause}")
    try:
        return Dataset.from_generator(_read_json_lines, gen_kwargs={"names": names})
    except datasets.exceptions.DatasetGenerationError as error:
        raise ValueError(f"Cannot read {', '.join(names[:5])} as JSON lines: {error.__cause__}") from error


def _suffix(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


def _read_json_lines(names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        with datasets.utils.file_utils.xopen(name, "r", encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{name}, line {number} is no JSON: {error}") from error
                yield {key: clean_text(value) if isinstance(value, str) else value for key, value in row.items()}


def _load_hub(corpus: str, split: str) -> Dataset:
    name, _, configuration = corpus.partition(":")
    try:
        return datasets.load_dataset(name, configuration or None, split=split)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"{corpus!r} is neither {PYTHON_DOCS!r}, nor a file or folder here, nor a data set that the Hub gave "
            f"(split {split!r}): {error}"
        ) from error


# --- Segmenting and tokenising -------------------------------------------------------------------------------------


def document_id(text: str) -> int:
    """A 63-bit hash of the text up to white space: equal for exact duplicates, and the key of a document's draws."""
    digest = hashlib.blake2b(" ".join(clean_text(text).split()).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def add_text(dataset: Dataset, text_column: str) -> Dataset:
    """Make sure that there is a text column: where it is missing, it is built from `sections` [{heading, text}].

    Raises:
        ValueError: naming the columns found.
    """
    if text_column in dataset.column_names:
        return dataset
    if "sections" not in dataset.column_names:
        raise ValueError(
            f"--text_column is {text_column!r}, but the columns are {dataset.column_names}: name one of them."
        )
    return dataset.map(_join_sections, fn_kwargs={"text_column": text_column}, desc="Joining sections")


def _join_sections(row: dict[str, Any], text_column: str) -> dict[str, str]:
    parts = [part for section in row["sections"] or [] for part in (section.get("heading"), section.get("text"))]
    return {text_column: "\n\n".join(part for part in parts if part)}


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

    Returns: a data set with `document_id` (int64), `input_ids` (the ids of all units, one after another, without
        special tokens), `unit_lengths` (how many each has) and, for byte-level BPE, `initial_input_ids` and
        `initial_unit_lengths` (each unit as it reads at the start of a text); every document has two or more units.
        And the number of documents used and of those dropped for each reason.

    Raises:
        ValueError: if no document is left.
    """
    load_sentence_splitter(sentence_splitter)  # fails here, with its own message, rather than in a worker
    ids_type = Value("uint16" if len(tokenizer) <= 2**16 else "int32")
    features = {"document_id": Value("int64"), "drop_reason": Value("uint8")}
    for prefix in ("", "initial_") if has_initial_form(tokenizer) else ("",):
        features |= {f"{prefix}input_ids": [ids_type], f"{prefix}unit_lengths": [Value("int32")]}
    tokenized = dataset.map(
        _tokenize_batch,
        batched=True,
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


def _tokenize_batch(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, text_column: str, sentence_splitter: str
) -> dict[str, list[Any]]:
    split = load_sentence_splitter(sentence_splitter)
    documents, reasons = [], []  # units of each document; why it is not used
    for text in batch[text_column]:
        units, reason = _units(text, split, tokenizer)
        documents.append(units)
        reasons.append(DROP_REASONS.index(reason))
    rows: dict[str, list[Any]] = {
        "document_id": [document_id(text) if isinstance(text, str) else 0 for text in batch[text_column]],
        "drop_reason": reasons,
    }
    ids = tokenize_units(tokenizer, [unit for units in documents for unit in units])
    for name, unit_ids in ids.items():
        lengths_name = name.replace("input_ids", "unit_lengths")
        rows[name], rows[lengths_name], start = [], [], 0
        for units in documents:
            # A unit of characters that the tokenizer removes has no ids; `_units` saw to it that two units have some.
            kept = [unit for unit in unit_ids[start : start + len(units)] if unit]
            rows[name].append([token for unit in kept for token in unit])
            rows[lengths_name].append([len(unit) for unit in kept])
            start += len(units)
    return rows


def _units(text: Any, split: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], str]:
    """The units of one document, two or more of them with a token, and "used"; or none, and why."""
    if not isinstance(text, str):
        return [], "not_a_string"
    text = clean_text(text)
    if not text.strip():
        return [], "empty"
    if len(text.split(maxsplit=2)) < 2:
        return [], "fewer_than_two_words"
    units = split(text)
    if len(units) < 3:  # only here can dropping units without tokens leave fewer than two
        units = [unit for unit, ids in zip(units, tokenize_units(tokenizer, units)["input_ids"]) if ids]
        if len(units) == 1:
            units = cut_in_two(tokenizer, units[0])
    return (units, "used") if len(units) >= 2 else ([], "fewer_than_two_words")


def hold_out(dataset: Dataset, size: int, seed: int) -> tuple[Dataset, Dataset | None]:
    """Training documents, and `size` others (at most a tenth) for the evaluation loss; None for a size of 0.

    The latter have a column `epoch`, so that the collator draws them the same way in each evaluation.
    """
    dataset = dataset.with_format("numpy")
    if size == 0:
        return dataset, None
    parts = dataset.train_test_split(test_size=min(size, max(len(dataset) // 10, 1)), seed=seed)
    return parts["train"], parts["test"].add_column("epoch", np.zeros(len(parts["test"]), dtype=np.int64))


def check_fills_a_batch(dataset: Dataset, batch_size: int) -> None:
    """Stop before a run of no steps.

    Raises:
        ValueError: if there are fewer documents than a batch has.
    """
    if len(dataset) < batch_size:
        raise ValueError(
            f"{len(dataset)} documents do not fill one batch of {batch_size}: lower --per_device_train_batch_size, or "
            "give more documents."
        )


# --- Evaluation sets -----------------------------------------------------------------------------------------------


def near_duplicates(texts: Sequence[str], references: Sequence[str], threshold: float = 0.5) -> np.ndarray:
    """Which texts have a reference with a Jaccard similarity of word 5-grams of `threshold` or more, (len(texts),)."""
    vectorizer = HashingVectorizer(
        n_features=2**22,
        ngram_range=(SHINGLE_WORDS, SHINGLE_WORDS),
        binary=True,
        norm=None,
        alternate_sign=False,
        token_pattern=r"(?u)\w+",
    )
    ours, theirs = vectorizer.transform(texts), vectorizer.transform(references)
    our_sizes, their_sizes = ours.sum(axis=1).A1, theirs.sum(axis=1).A1
    shared = (ours @ theirs.T).tocoo()  # only pairs that share a shingle are stored
    similarity = shared.data / (our_sizes[shared.row] + their_sizes[shared.col] - shared.data)
    found = np.zeros(len(texts), dtype=bool)
    found[shared.row[similarity >= threshold]] = True
    return found
