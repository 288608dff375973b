"""The documents of a pretraining run: loaded and tokenised once, or read as a stream while the model trains."""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from pyarrow import compute

from docsplit.data import corpora, preparation, tokenization
from docsplit.data.query_documents import QueryDataset
from docsplit.data.sets.labelled import LabelledSplit, load_probe, probe_counts
from docsplit.data.streaming import DocumentStream, StreamLayout, take
from docsplit.embedding.encoder import no_sections
from docsplit.modeling.pretrained import lower_cases
from docsplit.runtime.files import JsonObject, cache_directory
from docsplit.runtime.sharing import first_on_machine, from_first
from docsplit.training.arguments import RunOptions

logger = logging.getLogger(__name__)

DOCUMENTS_FOR_A_TOKENIZER = 100_000  # of a stream, to train one on


@dataclass
class TrainingData:
    """The tokenised documents, or queries, of a run, with their counts for all_results.json.

    Attributes:
        held_out: documents, or queries, for eval_loss; None without evaluation.
        counts: entries of all_results.json.
        probe: labelled documents to measure the frozen encoder on.
    """

    train: Dataset | DocumentStream | QueryDataset
    held_out: Dataset | QueryDataset | None
    tokenizer: Any
    counts: JsonObject
    probe: LabelledSplit | None = None

    @property
    def stream(self) -> DocumentStream | None:
        """The training documents, where they are read while the model trains."""
        return self.train if isinstance(self.train, DocumentStream) else None

    @property
    def datasets(self) -> list[Any]:
        """Training and held-out documents, or queries, where there are any."""
        return [dataset for dataset in (self.train, self.held_out) if dataset is not None]

    def fingerprints(self) -> dict[str, str]:
        """Hash all that is read, which must be the same on each machine; the names are for messages."""
        found = {"the tokenizer": _hash_of_tokenizer(self.tokenizer)}
        if self.stream is not None:
            found["the shards of the stream"] = str(self.stream.rows.num_shards)
        else:
            found["the training documents"] = _hash_of_documents(self.train)
        if self.held_out is not None:
            found["the held-out documents"] = _hash_of_documents(self.held_out)
        return found | ({"the probe's documents": self.probe.fingerprint()} if self.probe is not None else {})

    def document_ids(self) -> np.ndarray:
        """Return the distinct ids of all documents, ascending: (N,) int64."""
        return np.unique(np.concatenate([np.asarray(dataset["document_id"][:]) for dataset in self.datasets]))


def _hash_of_documents(dataset: Any) -> str:
    if isinstance(dataset, QueryDataset):
        parts = [dataset.collection.document_ids, dataset.numbers, *dataset.relevant]
    else:
        parts = [np.asarray(dataset["document_id"][:])]
    return hashlib.blake2b(np.concatenate(parts).astype("<i8").tobytes(), digest_size=16).hexdigest()


def _hash_of_tokenizer(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return Hasher.hash(sorted(tokenizer.get_vocab().items()))
    return Hasher.hash(json.loads(backend.to_str()) | {"truncation": None, "padding": None})  # of the last call


def load_documents(options: RunOptions, checkpoint: Path | None) -> TrainingData:
    """Read the corpus, tokenise it once, keep the probe's documents out, and hold some out for evaluation."""
    data, training = options.data, options.training
    with first_on_machine():
        everything = corpora.load_corpus(data.corpus, text_column=data.text_column, encoding=data.encoding)
        corpus = corpora.for_pretraining(data.corpus, everything)
        num_sealed = len(everything) - len(corpus)
        corpus = corpora.add_text(corpus, data.text_column)
        if data.max_train_samples is not None:
            corpus = corpus.select(range(min(data.max_train_samples, len(corpus))))
        probe = load_probe(data.probe_corpus) if data.probe_corpus else None
    tokenizer = load_tokenizer(options, corpus, checkpoint)
    with first_on_machine():
        dataset, dropped = preparation.tokenize(
            corpus, tokenizer, segmentation_of(options), data.preprocessing_num_workers
        )
    counts = {"documents_in_corpus": dropped.pop("used"), "documents_dropped": sum(dropped.values())}
    counts["documents_kept_for_evaluations"] = num_sealed
    counts |= {f"documents_dropped_{reason}": count for reason, count in dropped.items()}
    if probe is not None:
        dataset, num_measured_on = preparation.without_documents(dataset, measured_on(probe))
        counts |= {"documents_kept_for_probe": num_measured_on} | probe_counts(probe)
    train, held_out = preparation.hold_out(dataset, _num_held_out(options), seed=training.seed)
    preparation.check_fills_a_batch(train, training.train_batch_size * training.world_size, "training")
    if held_out is not None:
        preparation.check_fills_a_batch(held_out, training.eval_batch_size * training.world_size, "evaluation")
    return TrainingData(train, held_out, tokenizer, counts, probe)


def stream_documents(options: RunOptions, checkpoint: Path | None) -> TrainingData:
    """Read a corpus while the model trains, as `load_documents` does at once; its first documents are held out."""
    data, training = options.data, options.training
    num_held_out = _num_held_out(options)
    with first_on_machine():
        corpus = corpora.stream_corpus(data.corpus, text_column=data.text_column, encoding=data.encoding)
        has_tokenizer = checkpoint or options.model.tokenizer_name or options.start
        num_read = num_held_out if has_tokenizer else max(num_held_out, DOCUMENTS_FOR_A_TOKENIZER)
        head = take(corpus, max(num_read, 1), data.text_column)  # names the columns if this one is missing
        probe = load_probe(data.probe_corpus) if data.probe_corpus else None
    tokenizer = load_tokenizer(options, head, checkpoint)
    held_out, excluded = None, set()
    if num_held_out:
        with first_on_machine():
            first_documents = head.select(range(min(num_held_out, len(head))))
            held_out, _ = preparation.tokenize(first_documents, tokenizer, segmentation_of(options))
        held_out = preparation.with_fixed_draws(held_out)
        preparation.check_fills_a_batch(held_out, training.eval_batch_size * training.world_size, "evaluation")
        excluded = set(held_out["document_id"][:].tolist())
    counts: JsonObject = {"shards": corpus.rows.num_shards, "documents_in_corpus": None}  # nobody has counted them
    if probe is not None:
        excluded |= measured_on(probe)
        counts |= probe_counts(probe)
    layout = StreamLayout(
        training.train_batch_size, training.process_index, training.world_size, training.seed, data.shuffle_buffer_size
    )
    stream = DocumentStream(corpus, tokenizer, segmentation_of(options), layout, excluded)
    return TrainingData(stream, held_out, tokenizer, counts, probe)


def _num_held_out(options: RunOptions) -> int:
    return 0 if options.training.eval_strategy == "no" else options.data.max_eval_samples


def segmentation_of(options: RunOptions) -> preparation.Segmentation:
    """Say how the options cut the texts."""
    data = options.data
    return preparation.Segmentation(data.text_column, data.sentence_splitter, data.words_of_passages)


def measured_on(split: LabelledSplit) -> set[int]:
    """Return the ids of a probe's validation and test documents, which are kept out of pretraining."""
    return {preparation.document_id(text) for name in ("validation", "test") for text in split.texts[name]}


def load_tokenizer(options: RunOptions, corpus: Dataset, checkpoint: Path | None) -> Any:
    """Load the checkpoint's tokenizer when resuming, else the one named, else the start's, else train one.

    All processes must call it: the first one trains for all, since training one twice gives other ids.
    """
    source = checkpoint or options.model.tokenizer_name or options.start
    if source is not None:
        tokenizer = tokenization.load_tokenizer(source)
        if lower_cases(source):
            tokenization.lower_case(tokenizer)
        return tokenizer
    text_column, size = options.data.text_column, options.model.vocab_size
    return from_first(lambda: tokenization.train_wordpiece(corpus, text_column, size, cache_directory()))


def note_sections(config: Any, train: Any) -> None:
    """Say in one line where a model joins passages by section, and the training documents have no sections.

    Args:
        train: the training data: documents, or queries of a collection; of a stream nothing is known beforehand.
    """
    kind = getattr(config, "graph_kind", "full")
    documents = getattr(getattr(train, "collection", None), "documents", train)
    if kind == "full" or not config.graph_layers or not isinstance(documents, Dataset):
        return
    sections = compute.max(compute.list_flatten(documents.data["passage_sections"])).as_py()
    if not sections:  # they count from 0
        logger.warning(no_sections("The model", kind, "the training documents"))
