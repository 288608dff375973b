"""Training for ranking, as a user runs it: kills, passages, folds, what is said of queries, bad input."""

import json
import shutil

import numpy as np
import pytest

from docsplit.data.copies import document_id
from docsplit.data.seen_documents import TrainingDocuments
from docsplit.data.sets.rankings import divide_queries, load_collection
from docsplit.data.sets.set_arguments import RankingArguments
from run_docsplit_pretraining import main
from run_document_retrieval import main as measure
from tests.scripts.test_run_docsplit_pretraining import TINY, assert_same_documents, assert_same_weights
from tests.scripts.test_run_document_retrieval import write_collection


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("ranking") / "ships", "train")


def words(output_dir, collection, *options):
    return [
        *("--view", "query_document", "--corpus", collection, "--output_dir", output_dir, "--use_cpu"),
        *("--config_overrides", TINY, "--vocab_size", "300", "--pooling", "mean", "--max_seq_length", "32"),
        *("--per_device_train_batch_size", "4", "--learning_rate", "1e-3", "--logging_steps", "1"),
        *("--disable_tqdm", "true", "--num_train_epochs", "2", "--save_steps", "3", *options),
    ]


def test_a_run_goes_on_to_the_same_parameters_with_negatives_of_weights_that_are_gone(
    tmp_path, collection, run_here, caplog
):
    """24 queries, 6 steps an epoch, other negatives from step 6 on: again from step 9, and from step 6."""
    caplog.set_level("INFO")
    options, whole = ("--negatives", "bm25", "self", "--negatives_per_query", "2"), tmp_path / "whole"
    run_here(main, *words(whole, collection, *options))
    assert "Negatives of bm25: " in caplog.text
    assert "Negatives of self: " in caplog.text
    notes = [json.loads((whole / f"checkpoint-{step}" / "negatives.json").read_text()) for step in (3, 6, 9)]
    assert [note["phase"] for note in notes] == [0, 0, 1]
    first, second = (np.load(path) for path in sorted((whole / "negatives").glob("*/*.npy")))  # and no encoder
    assert (first != second).any()  # or the comparison shows nothing
    for step in (9, 6):
        again = shutil.copytree(whole, tmp_path / f"from-{step}")
        caplog.clear()
        run_here(main, *words(again, collection, *options, "--resume_from_checkpoint", again / f"checkpoint-{step}"))
        assert "Negatives of" not in caplog.text  # the files are there, of the same weights
        assert_same_weights(whole, again)
        assert_same_documents(whole, again)

    # Longer: the negatives of the weights stay, though half of it is not over
    longer = ("--num_train_epochs", "3", "--resume_from_checkpoint", whole / "checkpoint-9")
    caplog.clear()
    run_here(main, *words(whole, collection, *options, *longer))
    assert "18 steps; before 12. So negatives change at another step, unless they have." in caplog.text
    for step in (12, 18):
        assert json.loads((whole / f"checkpoint-{step}" / "negatives.json").read_text()) == notes[-1]


def test_a_fold_is_left_out_and_measured_alone(tmp_path, collection, run_here):
    """Then both folds measured: that left out, and one that was trained on."""
    fold = ("--negatives", "random", "--fold", "1", "--folds", "3", "--split", "train", "--max_steps", "3")
    batches = ("--eval_strategy", "epoch", "--per_device_eval_batch_size", "4")
    run_here(main, *words(tmp_path / "out", collection, *fold, *batches))
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert results["queries_used"] == results["documents_held_out"] == 8
    ranking = load_collection(RankingArguments(str(collection), "train"))
    seen = TrainingDocuments.load(tmp_path / "out" / "training_documents.safetensors").run
    asked = [
        seen.contains(np.array([document_id(ranking.queries[row]) for row in rows]))
        for rows in divide_queries(ranking, "3", 1)  # to train, to choose by, to report
    ]
    assert [rows.any() for rows in asked] == [True, False, False]
    options = ["--collection", collection, "--split", "train", "--folds", "3", "--methods", "dense", "hybrid"]
    for number, shared in ((1, 0), (0, asked[0].mean())):
        folder = tmp_path / f"fold-{number}"
        run_here(measure, *options, "--model_name_or_path", tmp_path / "out", "--fold", number, "--output_dir", folder)
        results = json.loads((folder / "results.json").read_text())
        assert results["rows"][0]["test_queries"] == 8
        assert results["rows"][0]["queries_seen_in_training_share"] == pytest.approx(shared)
        text = (folder / "results.md").read_text()
        assert f"The queries of fold {number} (--folds 3) alone" in text
        assert ("its results on them are too good" in text) == bool(shared)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "dev"], "--split dev, found train"),
        (["--objective", "contrastive_tension", "--mlm_weight", "0"], "goes with --objective info_nce"),
        (["--per_device_train_batch_size", "30"], "has 24 queries for this, which do not fill one batch of 30"),
    ],
)
def test_bad_input_ends_with_a_message(failure_of, collection, tmp_path, options, message):
    assert message in failure_of(main, *words(tmp_path / "out", collection, *options))
