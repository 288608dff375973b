"""The training data of a pretraining run.

Documents are loaded and tokenised once, or read as a stream while the model trains; with `--view query_document` they
are the queries of a collection, and documents relevant to them.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from pyarrow import compute

from docsplit.data import corpora, preparation, tokenization
from docsplit.data.collators import DocSplitCollator, PassageCollator
from docsplit.data.query_documents import PASSAGES_READ, Collection, QueryDataset, QueryDocumentCollator
from docsplit.data.sets.labelled import LabelledSplit, load_probe, probe_counts
from docsplit.data.sets.rankings import divide_queries, load_collection
from docsplit.data.sets.set_arguments import RankingArguments
from docsplit.data.streaming import DocumentStream, StreamLayout, take, warn_of_few_shards
from docsplit.data.views import PASSAGE_VIEWS, QUERY_DOCUMENT
from docsplit.embedding import lexical_start
from docsplit.embedding.encoder import no_sections
from docsplit.modeling.checked_files import load_tokenizer as tokenizer_named
from docsplit.modeling.families.table import family_named, family_of
from docsplit.modeling.loading import prompts_of
from docsplit.modeling.objectives.table import OBJECTIVES
from docsplit.runtime.files import JsonObject, cache_directory, fingerprint
from docsplit.runtime.sharing import first_on_machine, from_first
from docsplit.training.run_arguments import RunOptions
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)


@dataclass
class TrainingData:
    """The tokenised documents, or queries, of a run, with their counts for all_results.json.

    Attributes:
        held_out: documents, or queries, for eval_loss; None without evaluation.
        counts: entries of all_results.json.
        probe: labelled documents to measure the frozen encoder on.
        head: the first documents of a stream, tokenised; for --lexical_start.
        lexical: what token embeddings were made of; None without --lexical_start.
    """

    train: Dataset | DocumentStream | QueryDataset
    held_out: Dataset | QueryDataset | None
    tokenizer: Any
    counts: JsonObject
    probe: LabelledSplit | None = None
    head: Dataset | None = None
    lexical: lexical_start.LexicalFacts | None = None

    @property
    def stream(self) -> DocumentStream | None:
        """The training documents, where they are read while the model trains."""
        return self.train if isinstance(self.train, DocumentStream) else None

    @property
    def documents(self) -> Dataset | None:
        """The documents to train on, or to search; of a stream the first, if they were read before training."""
        if isinstance(self.train, Dataset):
            return self.train
        return self.head if isinstance(self.train, DocumentStream) else self.train.collection.documents

    @property
    def datasets(self) -> list[Any]:
        """Training and held-out documents, or queries, where there are any."""
        return [dataset for dataset in (self.train, self.held_out) if dataset is not None]

    def fingerprints(self) -> dict[str, str]:
        """Hash all that is read, which must be the same on each machine; the names are for messages."""
        found = {"the tokenizer (--tokenizer_name)": fingerprint(preparation.state_of_tokenizer(self.tokenizer))}
        for name, dataset in (("training documents", self.train), ("held-out documents", self.held_out)):
            name = f"the {name} (--corpus)"
            if isinstance(dataset, DocumentStream):
                found["the shards of the stream (--corpus)"] = str(dataset.rows.num_shards)
            elif isinstance(dataset, QueryDataset):
                content = fingerprint(dataset.collection.ranking.fingerprint(), dataset.numbers.tolist())
                found[name] = f"{len(dataset):,} queries ({content})"
            elif dataset is not None:
                found[name] = f"{len(dataset):,} ({preparation.fingerprint_of_documents(dataset)})"
        if self.probe is not None:
            found["the probe's documents (--probe_corpus)"] = self.probe.fingerprint()
        return found

    def document_ids(self) -> np.ndarray:
        """Return the distinct ids of all documents, ascending: (N,) int64."""
        return np.unique(np.concatenate([np.asarray(dataset["document_id"][:]) for dataset in self.datasets]))


def load_documents(options: RunOptions, checkpoint: Path | None, start: Any = None) -> TrainingData:
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
    tokenizer = tokenizer_of_run(options, corpus, checkpoint, start)
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
    preparation.check_fills_a_batch(train, training.train_batch_size, "training", training.world_size)
    if held_out is not None:
        preparation.check_fills_a_batch(held_out, training.eval_batch_size, "evaluation", training.world_size)
    return TrainingData(train, held_out, tokenizer, counts, probe)


def stream_documents(options: RunOptions, checkpoint: Path | None, start: Any = None) -> TrainingData:
    """Read a corpus while the model trains, as `load_documents` does at once; its first documents are held out."""
    data, training = options.data, options.training
    num_held_out = _num_held_out(options)
    with first_on_machine():
        corpus = corpora.stream_corpus(data.corpus, text_column=data.text_column, encoding=data.encoding)
        has_tokenizer = checkpoint or options.model.tokenizer_name or options.start
        num_for_words = lexical_start.MOST_DOCUMENTS if options.model.lexical_start else 0
        num_for_a_tokenizer = 0 if has_tokenizer else 100_000
        num_read = max(num_held_out, num_for_words, num_for_a_tokenizer)
        head = take(corpus, max(num_read, 1), data.text_column)  # names the columns if this one is missing
        probe = load_probe(data.probe_corpus) if data.probe_corpus else None
    warn_of_few_shards(corpus.rows.num_shards, training.world_size * (training.dataloader_num_workers or 1))
    tokenizer = tokenizer_of_run(options, head, checkpoint, start)
    held_out, excluded = None, set()
    if num_held_out:
        with first_on_machine():
            first_documents = head.select(range(min(num_held_out, len(head))))
            held_out, _ = preparation.tokenize(first_documents, tokenizer, segmentation_of(options))
        held_out = preparation.with_fixed_draws(held_out)
        preparation.check_fills_a_batch(held_out, training.eval_batch_size, "evaluation", training.world_size)
        excluded = set(held_out["document_id"][:].tolist())
    counts: JsonObject = {"shards": corpus.rows.num_shards, "documents_in_corpus": None}  # nobody has counted them
    if probe is not None:
        excluded |= measured_on(probe)
        counts |= probe_counts(probe)
    layout = StreamLayout(
        training.train_batch_size, training.process_index, training.world_size, training.seed, data.shuffle_buffer_size
    )
    stream = DocumentStream(corpus, tokenizer, segmentation_of(options), layout, excluded)
    first = None
    if num_for_words:
        with first_on_machine():
            first, _ = preparation.tokenize(
                head.select(range(min(num_for_words, len(head)))), tokenizer, segmentation_of(options)
            )
        first, _ = preparation.without_documents(first, excluded)
    return TrainingData(stream, held_out, tokenizer, counts, probe, first)


def _num_held_out(options: RunOptions) -> int:
    return 0 if options.training.eval_strategy == "no" else options.data.max_eval_samples


def segmentation_of(options: RunOptions) -> preparation.Segmentation:
    """Say how the options cut the texts."""
    data = options.data
    passage_words = data.passage_words if data.view in PASSAGE_VIEWS else None
    return preparation.Segmentation(data.text_column, data.sentence_splitter, passage_words)


def measured_on(split: LabelledSplit) -> set[int]:
    """Return the ids of a probe's validation and test documents, which are kept out of pretraining."""
    return {preparation.document_id(text) for name in ("validation", "test") for text in split.texts[name]}


def tokenizer_of_run(options: RunOptions, corpus: Dataset, checkpoint: Path | None, start: Any = None) -> Any:
    """Load the tokenizer that is named, else the start's, else that of the checkpoint to resume from, else train one.

    All processes must call it: the first one trains for all, since training one twice gives other ids.
    """
    if options.model.tokenizer_name is not None:
        return tokenizer_named(options.model.tokenizer_name)
    if start is not None:
        return start.body.tokenizer
    if checkpoint is not None:
        return tokenizer_named(checkpoint)
    text_column, size = options.data.text_column, options.model.vocab_size
    return from_first(lambda: tokenization.train_wordpiece(corpus, text_column, size, cache_directory()))


def note_sections(config: Any, documents: Dataset | None) -> None:
    """Say in one line where a model joins passages by section, and the documents have no sections."""
    kind = getattr(config, "graph_kind", "full")
    if kind == "full" or not config.graph_layers or documents is None:
        return
    sections = compute.max(compute.list_flatten(documents.data["passage_sections"])).as_py()
    if not sections:  # they count from 0
        logger.warning(no_sections("The model", kind, "the training documents"))


# --- Queries ---


def load_queries(
    options: RunOptions, checkpoint: Path | None, start: DocSplitForContrastivePretraining | None
) -> TrainingData:
    """Read a collection, tokenise it once, and divide its queries into those to train on and those held out.

    Raises:
        ValueError: if the collection has no such queries, or too few to fill a batch; for an objective that compares
            no queries.
    """
    data, training = options.data, options.training
    evaluates = training.eval_strategy != "no"
    objective = start.config.docsplit["objective"] if start is not None else training.objective or "info_nce"
    if not OBJECTIVES[objective].takes_queries:
        raise ValueError(f"--view {QUERY_DOCUMENT} goes with --objective info_nce, not {objective}.")
    kind = options.model.model_type if start is None else start.config.model_type
    passage_words = data.passage_words if family_named(kind).rows == "passages" else None
    split = options.queries.split or ("train" if options.queries.fold is None else None)
    with first_on_machine():
        ranking = load_collection(RankingArguments(data.corpus, split, options.queries.queries))
    texts = Dataset.from_dict({"text": [*ranking.documents, *ranking.queries]})
    tokenizer = tokenizer_of_run(options, texts, checkpoint, start)
    with first_on_machine():
        segmentation = preparation.Segmentation(sentence_splitter=data.sentence_splitter, passage_words=passage_words)
        collection = Collection.make(ranking, tokenizer, segmentation, data.preprocessing_num_workers)
    if options.queries.fold is not None:
        train_rows, held_out_rows, _ = divide_queries(ranking, options.queries.folds, options.queries.fold)
    else:
        order = np.random.default_rng(training.seed).permutation(len(ranking.queries))
        size = min(data.max_eval_samples, max(len(order) // 10, 1)) if evaluates else 0
        train_rows, held_out_rows = np.sort(order[size:]), np.sort(order[:size])
    train_rows = train_rows[: data.max_train_samples]
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
    batches = [(train, "train", training.train_batch_size)]
    batches += [(held_out, "eval", training.eval_batch_size)] if evaluates else []
    for dataset, purpose, size in batches:
        if len(dataset) < size * training.world_size:
            raise ValueError(
                f"{data.corpus} has {len(dataset)} queries for this, which do not fill one batch of "
                f"{size * training.world_size}: lower --per_device_{purpose}_batch_size, or give more judged queries."
            )
    return TrainingData(train, held_out if evaluates else None, tokenizer, counts)


def make_query_collator(
    model: DocSplitForContrastivePretraining, data: TrainingData, options: RunOptions, max_seq_length: int
) -> QueryDocumentCollator:
    """Make batches of queries and documents as the model's settings and the options want them."""
    settings, of_passages = model.config.docsplit, family_of(model.config).rows == "passages"
    kind, view = (PassageCollator, "passages") if of_passages else (DocSplitCollator, "simcse")
    limit: dict[str, Any] = {"max_passages": PASSAGES_READ} if of_passages else {}
    mlm, seed, prompt = settings["mlm_weight"] > 0, options.training.seed, prompts_of(model.body)[0]
    of_documents = kind(data.tokenizer, view, max_seq_length, mlm, seed, prompt, **limit)
    negatives, query_prompt = options.queries.number_of_negatives, prompts_of(model.body)[1]
    return QueryDocumentCollator(of_documents, data.datasets, negatives, query_prompt)
