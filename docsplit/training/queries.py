"""What `--view query_document` trains on: a collection's queries, and documents that are relevant to them."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from docsplit.data.query_documents import Collection, QueryDataset, QueryDocumentCollator, tokenizer_of_texts
from docsplit.data.sets.rankings import Ranking, load_collection
from docsplit.data.views import QUERY_DOCUMENT
from docsplit.evaluation.ranking.folds import divide
from docsplit.modeling.families.table import family_named, family_of
from docsplit.modeling.sentence_transformers_files import prompt_of, query_prompt_of
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments
from docsplit.training.documents import load_documents, load_tokenizer, stream_documents
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)

TRAIN = "train"


def loader_of(
    data_args: DataArguments, query_args: QueryArguments, start: DocSplitForContrastivePretraining | None
) -> Callable[..., tuple[Any, ...]]:
    """What loads the documents, or the queries, of these options.

    Raises:
        ValueError: if an option does not go with the view.
    """
    if data_args.view != QUERY_DOCUMENT:
        if given := query_args.given():
            raise ValueError(f"{', '.join(given)} are for --view {QUERY_DOCUMENT}: leave them out, or name that view.")
        return stream_documents if data_args.streaming else load_documents
    for option, default in (("streaming", False), ("text_column", "text"), ("probe_corpus", None)):
        if getattr(data_args, option) != default:
            raise ValueError(
                f"--{option} does not go with --view {QUERY_DOCUMENT}: leave it out. Collections are read whole, and "
                "run_document_retrieval.py measures."
            )
    objective = start.objective if start is not None else None
    if objective is not None:
        check_takes_queries(objective)
    return functools.partial(load_queries, query_args=query_args, start=start)


def check_takes_queries(objective: Any) -> None:
    """Refuse an objective that compares two views of a document.

    Raises:
        ValueError: naming one that compares queries and documents.
    """
    if not objective.takes_queries:
        raise ValueError(f"--view {QUERY_DOCUMENT} goes with --objective info_nce, not {type(objective).__name__}.")


def load_queries(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: PretrainingArguments,
    checkpoint: Path | None,
    query_args: QueryArguments,
    start: DocSplitForContrastivePretraining | None,
) -> tuple[QueryDataset, QueryDataset | None, Any, None, dict[str, Any]]:
    """Queries to train on and held-out ones, with their tokenised collection; the tokenizer, no probe, and counts.

    Raises:
        ValueError: if the collection has no such queries, or too few to fill a batch.
    """
    kind = model_args.model_type if start is None else start.config.model_type
    passage_words = data_args.passage_words if family_named(kind).rows == "passages" else None
    with args.main_process_first(desc="reading the collection"):  # the others find it in the cache
        ranking = _load_collection(data_args.corpus, query_args)
        texts = Dataset.from_dict({"text": [*ranking.documents, *ranking.queries]})
        tokenizer = load_tokenizer(model_args, data_args, texts, checkpoint)
        num_proc = data_args.preprocessing_num_workers
        tokenize = tokenizer_of_texts(tokenizer, data_args.sentence_splitter, num_proc)
        collection = Collection.make(ranking, tokenize, passage_words)
    train, held_out = _parts(ranking, query_args, data_args, args)
    datasets = [QueryDataset(collection, train), QueryDataset(collection, held_out, is_evaluation=True)]
    left_out = sum(dataset.left_out for dataset in datasets)
    if left_out:
        logger.warning(
            f"{left_out:,} of {len(train) + len(held_out):,} queries have no tokens, or no relevant document in "
            f"{data_args.corpus} that has any, and are left out."
        )
    counts = {"documents_in_corpus": len(ranking.documents), "queries_in_collection": len(ranking.queries)}
    counts |= {"queries_used": len(datasets[0]), "queries_left_out": left_out} | ranking.counts
    _check(datasets[0], args.train_batch_size * args.world_size, "train", data_args.corpus)
    evaluation = datasets[1] if args.eval_strategy != "no" else None
    if evaluation is not None:
        _check(evaluation, args.eval_batch_size * args.world_size, "eval", data_args.corpus)
    return datasets[0], evaluation, tokenizer, None, counts


def _load_collection(corpus: str, query_args: QueryArguments) -> Ranking:
    split = query_args.split or (None if query_args.fold is not None else TRAIN)
    try:
        return load_collection(corpus, query_args.queries, split)
    except ValueError as error:
        if query_args.fold is None and query_args.split is None and f"--split {TRAIN}" in str(error):
            raise ValueError(
                f"{error} Without a part to train on, train on some of the queries and measure others: --fold 0, here "
                "and with run_document_retrieval.py."
            ) from error
        raise


def _parts(
    ranking: Ranking, query_args: QueryArguments, data_args: DataArguments, args: PretrainingArguments
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of queries to train on, and of those held out for eval_loss."""
    if query_args.fold is not None:
        train, held_out, reported = divide(ranking, query_args.folds, query_args.fold)
        logger.info(
            f"Fold {query_args.fold}: {len(train):,} queries to train on, {len(held_out):,} to choose by, and "
            f"{len(reported):,} that are not read, to be measured on: run_document_retrieval.py --folds "
            f"{query_args.folds} --fold {query_args.fold}."
        )
    else:
        order = np.random.default_rng(args.seed).permutation(len(ranking.queries))
        size = 0 if args.eval_strategy == "no" else min(data_args.max_eval_samples, max(len(order) // 10, 1))
        train, held_out = np.sort(order[size:]), np.sort(order[:size])
    return train[: data_args.max_train_samples], held_out


def _check(dataset: QueryDataset, batch_size: int, purpose: str, corpus: str) -> None:
    if len(dataset) < batch_size:
        raise ValueError(
            f"{corpus} has {len(dataset)} queries for this, which do not fill one batch of {batch_size}: lower "
            f"--per_device_{purpose}_batch_size, or give more judged queries."
        )


def collator_of(
    model: DocSplitForContrastivePretraining,
    tokenizer: Any,
    datasets: tuple[Any, ...],
    query_args: QueryArguments,
    max_seq_length: int,
    seed: int,
) -> QueryDocumentCollator:
    """Queries and documents as the model's settings and the options want them."""
    check_takes_queries(model.objective)
    settings = model.config.docsplit
    return QueryDocumentCollator(
        tokenizer,
        [dataset for dataset in datasets if dataset is not None],
        of_passages=family_of(model.config).rows == "passages",
        negatives_per_query=query_args.number_of_negatives,
        max_seq_length=max_seq_length,
        mlm=settings["mlm_weight"] > 0,
        seed=seed,
        prompt=prompt_of(settings),
        query_prompt=query_prompt_of(settings),
    )
