"""The training data of a pretraining run.

Documents are loaded and tokenised once, or read as a stream while the model trains; with `--view query_document` they
are the queries of a collection, and documents relevant to them.
"""

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
from docsplit.data.collators import DocSplitCollator, PassageCollator
from docsplit.data.query_documents import MOST_PASSAGES, Collection, QueryDataset, QueryDocumentCollator
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.labelled import LabelledSplit, load_probe, probe_counts
from docsplit.data.sets.rankings import Ranking, divide, load_collection
from docsplit.data.streaming import DocumentStream, StreamLayout, take
from docsplit.data.views import QUERY_DOCUMENT
from docsplit.embedding.encoder import no_sections
from docsplit.modeling.families.table import family_named, family_of
from docsplit.modeling.sentence_transformers_files import lower_cases, prompt_of, query_prompt_of
from docsplit.runtime.command import command_name
from docsplit.runtime.files import JsonObject, cache_directory
from docsplit.runtime.sharing import first_on_machine, from_first
from docsplit.training.arguments import RunOptions
from modeling_docsplit import DocSplitForContrastivePretraining

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
        backend: Any = getattr(self.tokenizer, "backend_tokenizer", None)
        content = sorted(self.tokenizer.get_vocab().items())
        if backend is not None:
            content = json.loads(backend.to_str()) | {
                "truncation": None,
                "padding": None,
            }  # these are of the last call
        found = {"the tokenizer": Hasher.hash(content)}
        for name, dataset in (("the training documents", self.train), ("the held-out documents", self.held_out)):
            if isinstance(dataset, DocumentStream):
                found["the shards of the stream"] = str(dataset.rows.num_shards)
            elif isinstance(dataset, QueryDataset):
                found[name] = _hash_of(dataset.collection.document_ids, dataset.numbers, *dataset.relevant)
            elif dataset is not None:
                found[name] = _hash_of(dataset["document_id"][:])
        return found | ({"the probe's documents": self.probe.fingerprint()} if self.probe is not None else {})

    def document_ids(self) -> np.ndarray:
        """Return the distinct ids of all documents, ascending: (N,) int64."""
        return np.unique(np.concatenate([np.asarray(dataset["document_id"][:]) for dataset in self.datasets]))


def _hash_of(*numbers: Any) -> str:
    values = np.concatenate([np.asarray(part) for part in numbers]).astype("<i8")
    return hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()


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


# --- Queries ---


def check_takes_queries(objective: Any) -> None:
    """Refuse an objective that compares two views of a document.

    Raises:
        ValueError: naming one that compares queries and documents.
    """
    if not objective.takes_queries:
        raise ValueError(f"--view {QUERY_DOCUMENT} goes with --objective info_nce, not {type(objective).__name__}.")


def load_queries(
    options: RunOptions, checkpoint: Path | None, start: DocSplitForContrastivePretraining | None
) -> TrainingData:
    """Read a collection, tokenise it once, and divide its queries into those to train on and those held out.

    Raises:
        ValueError: if the collection has no such queries, or too few to fill a batch; for an objective that compares
            no queries.
    """
    if start is not None:
        check_takes_queries(start.objective)
    data, training = options.data, options.training
    kind = options.model.model_type if start is None else start.config.model_type
    passage_words = data.passage_words if family_named(kind).rows == "passages" else None
    with first_on_machine():
        ranking = _load_collection(options)
    texts = Dataset.from_dict({"text": [*ranking.documents, *ranking.queries]})
    tokenizer = load_tokenizer(options, texts, checkpoint)
    with first_on_machine():
        segmentation = preparation.Segmentation(sentence_splitter=data.sentence_splitter, passage_words=passage_words)
        collection = Collection.make(ranking, tokenizer, segmentation, data.preprocessing_num_workers)
    train_rows, held_out_rows = _divide(ranking, options)
    train = QueryDataset(collection, train_rows)
    held_out = QueryDataset(collection, held_out_rows, is_evaluation=True)
    left_out = train.left_out + held_out.left_out
    if left_out:
        logger.warning(
            f"{left_out:,} of {len(train_rows) + len(held_out_rows):,} queries have no tokens, or no relevant "
            f"document in {data.corpus} that has any, and are left out."
        )
    counts = {"documents_in_corpus": len(ranking.documents), "queries_in_collection": len(ranking.queries)}
    counts |= {"queries_used": len(train), "queries_left_out": left_out} | ranking.counts
    evaluates = training.eval_strategy != "no"
    batches = [(train, "train", training.train_batch_size)]
    batches += [(held_out, "eval", training.eval_batch_size)] if evaluates else []
    for dataset, purpose, size in batches:
        if len(dataset) < size * training.world_size:
            raise ValueError(
                f"{data.corpus} has {len(dataset)} queries for this, which do not fill one batch of "
                f"{size * training.world_size}: lower --per_device_{purpose}_batch_size, or give more judged queries."
            )
    return TrainingData(train, held_out if evaluates else None, tokenizer, counts)


def _load_collection(options: RunOptions) -> Ranking:
    queries = options.queries
    split = queries.split or ("train" if queries.fold is None else None)
    try:
        return load_collection(RankingArguments(options.data.corpus, split, queries.queries))
    except ValueError as error:
        if queries.fold is None and queries.split is None and "--split train" in str(error):
            raise ValueError(
                f"{error} Without a part to train on, train on some of the queries and measure others: --fold 0, here "
                f"and with `{command_name('run_document_retrieval.py')}`."
            ) from error
        raise


def _divide(ranking: Ranking, options: RunOptions) -> tuple[np.ndarray, np.ndarray]:
    """Divide the queries: rows to train on, and rows held out for eval_loss."""
    queries, data, training = options.queries, options.data, options.training
    if queries.fold is not None:
        train, held_out, reported = divide(ranking, queries.folds, queries.fold)
        logger.info(
            f"Fold {queries.fold}: {len(train):,} queries to train on, {len(held_out):,} to choose by, and "
            f"{len(reported):,} that are not read, to be measured on: `{command_name('run_document_retrieval.py')} "
            f"--folds {queries.folds} --fold {queries.fold}`."
        )
    else:
        order = np.random.default_rng(training.seed).permutation(len(ranking.queries))
        size = 0 if training.eval_strategy == "no" else min(data.max_eval_samples, max(len(order) // 10, 1))
        train, held_out = np.sort(order[size:]), np.sort(order[:size])
    return train[: data.max_train_samples], held_out


def make_query_collator(
    model: DocSplitForContrastivePretraining, data: TrainingData, options: RunOptions, max_seq_length: int
) -> QueryDocumentCollator:
    """Make batches of queries and documents as the model's settings and the options want them."""
    check_takes_queries(model.objective)
    settings, seed = model.config.docsplit, options.training.seed
    mlm, prompt = settings["mlm_weight"] > 0, prompt_of(settings)
    if family_of(model.config).rows == "passages":
        of_documents: DocSplitCollator = PassageCollator(
            data.tokenizer, "passages", max_seq_length, mlm, seed, prompt, max_passages=MOST_PASSAGES
        )
    else:
        of_documents = DocSplitCollator(data.tokenizer, "simcse", max_seq_length, mlm, seed, prompt)
    return QueryDocumentCollator(
        of_documents, data.datasets, options.queries.number_of_negatives, query_prompt_of(settings)
    )
