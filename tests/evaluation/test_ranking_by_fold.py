"""Encoders of several folds as one row: each query is measured once, as `--fold` measures it."""

import csv
import json

import numpy as np
import pytest
import torch
from transformers import BertModel

from docsplit.data.sets.rankings import FOLD_SEED, load_collection, make_folds
from docsplit.data.sets.set_arguments import RankingArguments
from run_document_retrieval import main
from tests.conftest import tiny_config
from tests.scripts.test_run_document_retrieval import QUERIES, write_collection

FOLDS = 3


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("by_fold") / "ships")


@pytest.fixture(scope="module")
def encoders(wordpiece, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds")
    for seed in range(FOLDS):
        torch.manual_seed(seed)
        BertModel(tiny_config(wordpiece)).save_pretrained(folder / str(seed))
        wordpiece.save_pretrained(folder / str(seed))
    return [str(folder / str(seed)) for seed in range(FOLDS)]


def of_queries(folder):
    """Each line of queries.csv by encoder, method and query."""
    lines = csv.DictReader((folder / "queries.csv").read_text().splitlines())
    return {(line["encoder"], line["method"], line["query_id"]): line for line in lines}


def test_a_row_is_of_all_queries_each_by_the_encoder_of_its_fold(run_here, encoders, collection, tmp_path):
    common = ["--collection", collection, "--folds", FOLDS, "--dtype", "float32", "--hybrid_measure", "mrr_at_10"]
    common += ["--methods", "dense", "hybrid"]
    by_fold, other = f"Ours={','.join(encoders)}@mean", f"{','.join(encoders)}"
    run_here(
        main, *common, "--model_name_or_path", by_fold, other, "--encoders_by_fold", "--output_dir", tmp_path / "all"
    )
    lines, expected, weights = of_queries(tmp_path / "all"), {}, set()
    for fold, encoder in enumerate(encoders):
        folder = tmp_path / str(fold)
        run_here(main, *common, "--model_name_or_path", f"{encoder}@mean", "--fold", fold, "--output_dir", folder)
        expected |= {(by_fold, method, query): line for (name, method, query), line in of_queries(folder).items()
                     if name == f"{encoder}@mean"}  # fmt: skip
        weights |= {float(line["hybrid_weight"]) for line in expected.values() if line["hybrid_weight"]}
    assert len(expected) == 2 * QUERIES
    for place, line in expected.items():
        assert {**lines[place], "encoder": "", "fold": ""} == {**line, "encoder": "", "fold": ""}
    results = json.loads((tmp_path / "all" / "results.json").read_text())
    rows = {(row["encoder"], row["method"]): row for row in results["rows"]}
    for method in ("dense", "hybrid"):
        row = rows[by_fold, method]
        values = [float(line["ndcg_at_10"]) for (_, one, _), line in expected.items() if one == method]
        assert row["ndcg_at_10"] == pytest.approx(np.mean(values), abs=1e-5)
        assert (row["test_queries"], row["pretraining_seeds"]) == (QUERIES, 1)
    assert rows[by_fold, "hybrid"]["hybrid_weights"] == sorted(weights)
    assert lines[by_fold, "dense", "q0"] != lines[other, "dense", "q0"] | {"encoder": by_fold}  # another pooling
    ranking = load_collection(RankingArguments(collection=str(collection)))
    folds = make_folds(ranking, str(FOLDS), FOLD_SEED)
    assert all(
        lines[by_fold, "dense", f"q{query}"]["fold"] == str(k) for k, fold in enumerate(folds) for query in fold
    )
    curves = {(line["encoder"], line["method"], line["depth"]): line for line in csv.DictReader(
        (tmp_path / "all" / "curves.csv").read_text().splitlines())}  # fmt: skip
    assert float(curves[by_fold, "dense", "10"]["ndcg"]) == pytest.approx(
        rows[by_fold, "dense"]["ndcg_at_10"], abs=1e-5
    )
    text = (tmp_path / "all" / "results.md").read_text()
    assert (
        "A row is of 3 encoders, each measured on the fold of queries that it was trained without (--folds 3)" in text
    )
    assert "| Ours " in text
    assert str(tmp_path) not in text.split("| Ours ")[0].split("|")[-1]
