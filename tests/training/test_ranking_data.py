"""Queries of a collection, divided into those to train on, to choose by, and to leave for a report."""

import numpy as np
import pytest

from docsplit.data.sets.arguments import RankingArguments
from docsplit.data.sets.rankings import divide, load_collection
from docsplit.modeling.objectives.second_encoder import ContrastiveTension
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments, QueryArguments, RunOptions
from docsplit.training.ranking_data import load_queries, make_query_collator
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import tiny_config
from tests.scripts.test_run_document_retrieval import write_collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("ranking") / "ships", "train")


@pytest.fixture
def options(collection, wordpiece, tmp_path):
    """A function of further options of queries and training."""
    wordpiece.save_pretrained(tmp_path / "tokenizer")

    def make(queries=(), **training):
        training = {"per_device_train_batch_size": 2} | training
        args = PretrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, **training)
        model_args = ModelArguments(tokenizer_name=str(tmp_path / "tokenizer"))
        data_args = DataArguments(corpus=str(collection), view="query_document")
        return RunOptions(model_args, data_args, QueryArguments(**dict(queries)), args)

    return make


def test_a_tenth_of_the_queries_is_held_out_where_there_is_an_evaluation(options):
    data = load_queries(options(eval_strategy="epoch"), None, None)
    assert (len(data.train), len(data.held_out)) == (22, 2)
    assert not set(data.train.numbers) & set(data.held_out.numbers)
    alone = load_queries(options(), None, None)
    assert (len(alone.train), alone.held_out) == (24, None)
    assert alone.counts["queries_used"] == alone.counts["queries_in_collection"] == 24


def test_the_queries_of_a_fold_are_not_read(options, collection):
    folds = {"fold": 1, "folds": "3", "split": "train"}
    data = load_queries(options(folds, eval_strategy="epoch"), None, None)
    train, held_out, reported = divide(load_collection(RankingArguments(str(collection), "train")), "3", 1)
    np.testing.assert_array_equal(data.train.numbers, train)
    np.testing.assert_array_equal(data.held_out.numbers, held_out)
    assert len(reported) == 8


def test_too_few_queries_are_refused(options):
    with pytest.raises(ValueError, match="has 24 queries for this, which do not fill one batch of 30"):
        load_queries(options(per_device_train_batch_size=30), None, None)


def test_the_collator_draws_as_many_negatives_as_the_options_say(options, wordpiece):
    run_options = options({"negatives": ["random"], "negatives_per_query": 3})
    data = load_queries(run_options, None, None)
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=64)
    batch = make_query_collator(model, data, run_options, 32)([data.train[0], data.train[1]])
    assert batch["input_ids"].shape[:2] == (2, 5)  # the query, a relevant document and three others
    assert batch["input_ids"].shape[2] <= 32
    assert "mlm_targets" in batch


def test_an_objective_that_compares_two_views_is_refused(options, wordpiece):
    model = DocSplitForContrastivePretraining(
        tiny_config(wordpiece), max_seq_length=64, objective="contrastive_tension", mlm_weight=0.0
    )
    with pytest.raises(ValueError, match=f"not {ContrastiveTension.__name__}"):
        load_queries(options(), None, model)
