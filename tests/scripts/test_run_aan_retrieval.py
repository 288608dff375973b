"""The retrieval script, as a user runs it: pairs in each form, baselines beside the heads, bad input."""

import json

import numpy as np
import pytest

from run_aan_retrieval import main
from tests.conftest import make_corpus
from tests.processes import run

SCRIPT = ("run_aan_retrieval.py", "--dtype", "float32")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Papers on three topics that cite papers on their own: a table of papers, citations, pairs, and LRA's files."""
    folder = tmp_path_factory.mktemp("papers")
    rows = make_corpus(240, seed=3)
    papers = [{"id": f"P{i}", "title": f"Paper {i}", "text": row["text"]} for i, row in enumerate(rows)]
    (folder / "papers.jsonl").write_text("\n".join(map(json.dumps, papers)) + "\n")
    rng = np.random.default_rng(0)
    links = [(i, 3 * int(rng.integers(80)) + i % 3) for i in range(240) for _ in range(4)]
    lines = ["citing\tcited", *(f"P{a}\tP{b}" for a, b in links if a != b)]
    (folder / "citations.tsv").write_text("\n".join(lines) + "\n")
    sizes = {"train": range(0, 150), "validation": range(150, 195), "test": range(195, 240)}
    for name, members in sizes.items():
        pairs = []
        for a in members:
            same = [b for b in members if b % 3 == a % 3 and b != a]
            other = [b for b in members if b % 3 != a % 3]
            pairs += [(1, a, int(rng.choice(same))), (0, a, int(rng.choice(other)))]
        lines = ["label\tid1\tid2", *(f"{label}\tP{a}\tP{b}" for label, a, b in pairs)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def pair_options(data):
    names = ("train", "validation", "test")
    files = [word for name in names for word in (f"--{name}_pairs_file", str(data / f"{name}.tsv"))]
    return ["--papers_file", str(data / "papers.jsonl"), *files]


def rows_of(output_dir):
    return {
        (row["encoder"], row["head"], *([] if row["features"] == "raw" else [row["features"]])): row
        for row in json.loads((output_dir / "results.json").read_text())["rows"]
    }


@pytest.fixture(scope="module")
def finished(encoder, data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("retrieval")
    output = run(*SCRIPT, "--model_name_or_path", encoder, *pair_options(data), "--output_dir", output_dir)
    return output_dir, output


def test_heads_and_baselines_stand_side_by_side(finished, encoder):
    rows = rows_of(finished[0])
    name = str(encoder)
    encoder_rows = {(name, "mlp"), (name, "mlp", "standardized"), (name, "cosine")}
    assert set(rows) == encoder_rows | {("bm25", "bm25"), ("popularity", "popularity")}
    assert [key for key in rows if key[1] == "mlp"] == [(name, "mlp"), (name, "mlp", "standardized")]  # raw first
    for row in rows.values():
        assert row["shots"] is None
        for measure in ("accuracy", "f1", "roc_auc", "macro_f1", "micro_f1"):
            assert 0 <= row[f"{measure}_mean"] <= 1
    assert rows[name, "mlp"]["runs"] == 3
    assert rows[name, "mlp"]["accuracy_mean"] != rows[name, "mlp", "standardized"]["accuracy_mean"]
    for key, row in rows.items():
        assert (row["test_pairs"], row["preset"]) == (90, "docsplit" if key[1] == "mlp" else None)
        assert row["test_documents"] == 45  # each citing paper of the test part, and some of them cited
        assert row["pretraining_seeds"] == (None if key[0] in ("bm25", "popularity") else 1)
        assert row["accuracy_low"] <= row["accuracy_mean"] <= row["accuracy_high"]
    assert (rows[name, "mlp"]["pooling"], rows[name, "mlp"]["max_seq_length"]) == ("mean", 64)
    assert rows["bm25", "bm25"]["roc_auc_mean"] > 0.9  # topics are words
    assert rows[name, "cosine"]["roc_auc_mean"] > 0.7  # a random encoder knows words, too
    results = json.loads((finished[0] / "results.json").read_text())
    assert results["settings"]["pairs"] == {"train": 300, "validation": 90, "test": 90}
    assert results["settings"]["counts"]["test_papers_seen_in_training"] == 0
    assert {(row["a"], row["b"]) for row in results["comparisons"]} == {(name, "bm25"), (name, "popularity")}
    assert "popularity" in finished[1].stdout
    assert "ROC-AUC" in (finished[0] / "results.md").read_text()


def test_splits_made_here_share_no_paper_and_popularity_is_at_chance(run_here, encoder, data, tmp_path):
    files = ["--papers_file", data / "papers.jsonl", "--citations_file", data / "citations.tsv"]
    words = ["--model_name_or_path", encoder, "--heads", "cosine", "popularity", "--output_dir", tmp_path]
    run_here(main, *words, *files, "--long_documents", "chunk_mean", "--max_seq_length", "24")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["settings"]["splits_made_here"]
    assert results["settings"]["counts"]["test_papers_seen_in_training"] == 0
    rows = rows_of(tmp_path)
    popularity = rows["popularity", "popularity"]
    assert popularity["accuracy_low"] <= 0.5 <= popularity["accuracy_high"]
    assert (rows[str(encoder), "cosine"]["long_documents"], results["notes"]) == ("chunk_mean", [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--citations_file", "CITATIONS"], "do not name one source"),
        (["--papers_file", "UNKNOWN"], "does not have"),
        (["--test_pairs_file", "missing.tsv"], "missing.tsv"),
    ],
)
def test_bad_input_ends_with_a_message_before_any_long_work(failure_of, encoder, data, tmp_path, words, message):
    (tmp_path / "few.jsonl").write_text(json.dumps({"id": "P0", "text": "A ship."}) + "\n")
    special = {"CITATIONS": data / "citations.tsv", "UNKNOWN": tmp_path / "few.jsonl", "EMPTY": tmp_path}
    words = [str(special.get(word, word)) for word in words]
    options = ["--model_name_or_path", encoder, *pair_options(data), "--output_dir", tmp_path / "out"]
    assert message in failure_of(main, *options, *words).splitlines()[-1]
    assert not (tmp_path / "out" / "results.json").exists()
