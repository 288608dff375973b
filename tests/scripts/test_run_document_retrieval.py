"""The ranking script, as a user runs it: its files, the order of rows, what a hybrid may look at, bad input."""

import csv
import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from docsplit.data.sets.rankings import load_collection
from docsplit.data.sets.set_arguments import RankingArguments
from run_document_retrieval import main
from tests.conftest import make_corpus
from tests.processes import run

COUNT, QUERIES = 60, 24


def write_collection(folder, split="test", first=0):
    rows = make_corpus(COUNT, seed=5)
    documents = [{"_id": f"d{number}", "title": "", "text": row["text"]} for number, row in enumerate(rows)]
    queries = [{"_id": f"q{q}", "text": " ".join(rows[q]["text"].split()[:4])} for q in range(first, first + QUERIES)]
    lines = [f"q{q}\td{d}\t{1 + (d == q)}" for q in range(first, first + QUERIES) for d in (q, (q + 3) % COUNT)]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    with (folder / "queries.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in queries)
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = write_collection(tmp_path_factory.mktemp("collections") / "ships")
    return write_collection(folder, "dev", first=QUERIES)


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(encoder, collection, tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieval")
    options = ("--model_name_or_path", encoder, "--collection", collection, "--dtype", "float32", "--choose_weight")
    run("run_document_retrieval.py", *options, "--fusion", "sum", "rrf", "--output_dir", folder)
    return folder


def test_rows_have_the_names_and_order_that_others_rely_on(finished, encoder, collection):
    results = results_of(finished)
    rows = results["rows"]
    kinds = [(row["encoder"], row["method"], row.get("bm25_k1")) for row in rows]
    name = str(encoder)
    assert kinds == [
        *((name, "dense", None), ("bm25", "bm25", 1.5), ("bm25", "bm25", 0.9)),
        *((name, "hybrid", None), (name, "rrf", None)),
    ]
    for row in rows:
        assert row["collection"] == collection.name
        assert row["test_queries"] == QUERIES
        assert row["test_documents"] == COUNT
        for measure in ("ndcg_at_10", "mrr_at_10", "recall_at_100"):
            assert 0 <= row[measure] == row[f"{measure}_mean"] <= 1
        assert row["ndcg_at_10_low"] <= row["ndcg_at_10"] <= row["ndcg_at_10_high"]
    assert rows[0]["similarity"] == "cosine"
    assert results["settings"]["counts"]["documents_empty"] == 0


def test_dense_is_what_sentence_transformers_finds(finished, encoder, collection):
    """Its evaluator, which has measures of its own."""
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    ranking = load_collection(RankingArguments(str(collection)))
    relevant = {
        query: {name for name, grade in grades.items() if grade} for query, grades in ranking.judgments.items()
    }
    evaluator = InformationRetrievalEvaluator(
        dict(zip(ranking.query_ids, ranking.queries)), dict(zip(ranking.document_ids, ranking.documents)), relevant,
        precision_recall_at_k=[10, 100], write_csv=False,
    )  # fmt: skip
    theirs, row = evaluator(SentenceTransformer(str(encoder), device="cpu")), results_of(finished)["rows"][0]
    assert row["mrr_at_10"] == pytest.approx(theirs["cosine_mrr@10"], abs=0.02)
    assert row["precision_at_10"] == pytest.approx(theirs["cosine_precision@10"], abs=0.01)
    assert row["recall_at_100"] == pytest.approx(theirs["cosine_recall@100"], abs=1e-6)


def test_files_have_every_query_and_depth(finished):
    lines = list(csv.DictReader((finished / "queries.csv").open()))
    rows = results_of(finished)["rows"]
    assert len(lines) == QUERIES * len(rows)
    for row in rows:
        of_row = [line for line in lines if (line["encoder"], line["method"]) == (row["encoder"], row["head"])]
        assert np.mean([float(line["ndcg_at_10"]) for line in of_row]) == pytest.approx(row["ndcg_at_10"], abs=1e-5)
    weights = {(line["fold"], float(line["hybrid_weight"])) for line in lines if line["method"] == "hybrid"}
    assert len({fold for fold, _ in weights}) == len(weights) == 5  # one a fold
    assert {weight for _, weight in weights} == {*rows[3]["hybrid_weights"]}
    curve = list(csv.DictReader((finished / "curves.csv").open()))
    at_ten = next(line for line in curve if (line["method"], line["depth"]) == ("dense", "10"))
    assert float(at_ten["ndcg"]) == pytest.approx(rows[0]["ndcg_at_10"], abs=1e-5)
    assert (finished / "curves.png").stat().st_size > 10_000


def test_groups_of_seeds_bm25_alone_and_the_weight_of_another_split(run_here, encoder, collection, tmp_path):
    shutil.copytree(encoder, tmp_path / "again")
    group = f"ours={encoder},{tmp_path / 'again'}"
    options = ["--collection", collection, "--output_dir", tmp_path / "out", "--selection_split", "dev"]
    run_here(main, "--model_name_or_path", "bm25", group, "--methods", "dense", "hybrid", *options)
    rows = results_of(tmp_path / "out")["rows"]
    assert [row["head"] for row in rows] == ["bm25", "bm25 k1=0.9 b=0.4", "dense", "hybrid"]  # as typed, then joined
    assert [row["pretraining_seeds"] for row in rows] == [None, None, 2, 2]
    assert rows[2]["ndcg_at_10_std"] == 0
    lines = list(csv.DictReader((tmp_path / "out" / "queries.csv").open()))
    assert {line["fold"] for line in lines} == {""}
    assert len({line["hybrid_weight"] for line in lines if line["method"] == "hybrid"}) == 1
    run_here(main, "--model_name_or_path", "bm25", *options[:2], "--output_dir", tmp_path / "bm25")
    assert [row["ndcg_at_10"] for row in results_of(tmp_path / "bm25")["rows"]] == [r["ndcg_at_10"] for r in rows[:2]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--folds", "99", "--choose_weight"], "--folds is 99: expected 2 to 24"),
        (["--split", "train"], "--split train, found dev, test"),
        (["--selection_split", "test"], "--selection_split test has 24 of the queries that are reported"),
    ],
)
def test_bad_input_ends_with_a_message_before_any_long_work(failure_of, encoder, collection, tmp_path, words, message):
    options = ["--model_name_or_path", encoder, "--collection", collection, "--output_dir", tmp_path / "out"]
    assert message in failure_of(main, *options, *words).splitlines()[-1]
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_collection_without_words_leaves_encoders_measured(run_here, encoder, collection, tmp_path):
    """Of one letter for a word: BM25 indexes none of them, and joins nothing."""
    folder = shutil.copytree(collection, tmp_path / "letters")
    for file in (folder / "corpus.jsonl", folder / "queries.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [row | {"text": " ".join(word[0] for word in row["text"].split())} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--model_name_or_path", encoder, "--collection", folder, "--dtype", "float32", "--split", "test")
    run_here(main, *options, "--output_dir", tmp_path / "out")
    values = {row["method"]: row["ndcg_at_10"] for row in results_of(tmp_path / "out")["rows"]}
    assert values["bm25"] == 0 < values["dense"] == values["hybrid"]
