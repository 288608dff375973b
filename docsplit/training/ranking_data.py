"""The training data of `--view query_document`: a collection's queries, and documents relevant to them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from docsplit.data.collators import DocSplitCollator, PassageCollator
from docsplit.data.preparation import Segmentation
from docsplit.data.query_documents import MOST_PASSAGES, Collection, QueryDataset, QueryDocumentCollator
from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import Ranking, divide, load_collection
from docsplit.data.views import QUERY_DOCUMENT
from docsplit.modeling.families.table import family_named, family_of
from docsplit.modeling.pretrained import prompt_of, query_prompt_of
from docsplit.runtime.command import command_name
from docsplit.runtime.sharing import first_on_machine
from docsplit.training.arguments import QueryArguments, RunOptions
from docsplit.training.documents import TrainingData, load_tokenizer
from modeling_docsplit import DocSplitForContrastivePretraining

logger = logging.getLogger(__name__)

TRAIN = "train"


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
        ranking = _load_collection(data.corpus, options.queries)
    texts = Dataset.from_dict({"text": [*ranking.documents, *ranking.queries]})
    tokenizer = load_tokenizer(options, texts, checkpoint)
    with first_on_machine():
        segmentation = Segmentation(sentence_splitter=data.sentence_splitter, passage_words=passage_words)
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
    _check_fills_a_batch(train, training.train_batch_size * training.world_size, "train", data.corpus)
    if training.eval_strategy == "no":
        return TrainingData(train, None, tokenizer, counts)
    _check_fills_a_batch(held_out, training.eval_batch_size * training.world_size, "eval", data.corpus)
    return TrainingData(train, held_out, tokenizer, counts)


def _load_collection(corpus: str, query_args: QueryArguments) -> Ranking:
    split = query_args.split or (None if query_args.fold is not None else TRAIN)
    try:
        return load_collection(RankingArguments(corpus, split, query_args.queries))
    except ValueError as error:
        if query_args.fold is None and query_args.split is None and f"--split {TRAIN}" in str(error):
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


def _check_fills_a_batch(dataset: QueryDataset, batch_size: int, purpose: str, corpus: str) -> None:
    if len(dataset) < batch_size:
        raise ValueError(
            f"{corpus} has {len(dataset)} queries for this, which do not fill one batch of {batch_size}: lower "
            f"--per_device_{purpose}_batch_size, or give more judged queries."
        )


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
