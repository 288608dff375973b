"""The study of search: its cells, what a step measures on a small collection, and what its tables say."""

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.engine.results import Record, Results
from benchmarks.engine.study import Study
from benchmarks.studies.search import cuts, report, sets, step
from docsplit.data.bm25 import BM25
from docsplit.data.sets.rankings import Ranking
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(30)]


def collection():
    """Documents, of some of which the first words ask."""
    names = [f"d{number}" for number in range(len(TEXTS))]
    queries = {f"q{row}": " ".join(TEXTS[row].split()[:4]) for row in range(0, 30, 3)}
    judgments = {query: {names[int(query[1:])]: 2, names[int(query[1:]) + 1]: 1} for query in queries}
    return Ranking(names, TEXTS, [*queries], [*queries.values()], judgments)


def test_the_cells_have_sets_that_there_are(tmp_path):
    folders = ("20newsgroups", "aan", "cacm", "cranfield", "dbpedia", "pubmedqa", "qmsum", "scifact", "wikipedia")
    for name in folders:
        (tmp_path / "files" / name).mkdir(parents=True)
        (tmp_path / "files" / name / "data.txt").write_text(name)
    cells = Study(report.STUDY, tmp_path, {"data_dir": str(tmp_path / "files"), "peers": ["txtai"]}).cells()
    assert {cell.fields["data"] for cell in cells.values()} == sets.SETS.keys()
    options = next(iter(cells.values())).steps[0]["options"]
    assert (options["encoder"], options["peers"]) == ("sentence-transformers/all-MiniLM-L6-v2", ["txtai"])


def test_a_step_measures_all_ways_and_a_table_shows_them(encoder, tmp_path, run_here, monkeypatch):
    monkeypatch.setitem(sets.SETS, "scifact", sets.Collection("small", lambda _: collection()))
    monkeypatch.setattr(step, "cache_directory", lambda: tmp_path)
    for name in ("txtai", "txtai, BB25"):  # what one package gives
        monkeypatch.setitem(step.PEERS, name, step.PEERS["semantic_search"])
    given = ["--data", "scifact", "--data_dir", tmp_path, "--encoder", encoder, "--rows", tmp_path / "rows.json"]
    given += ["--peers", "txtai"]
    run_here(step.main, *given)
    rows = json.loads((tmp_path / "rows.json").read_text())
    value = {row["method"]: row["value"] for row in rows if row["metric"] == "ndcg_at_10"}
    assert value.keys() >= {"dense", "BM25", "BM25, stems", "RRF", "RRF, stems", "sum", step.OURS, "bm25s"}
    for name in ("semantic_search", "txtai", "txtai, BB25"):
        assert value[name] == pytest.approx(value["dense"])
    assert "lancedb" not in value
    against = {row["against"]: row for row in rows if row["metric"] == "ndcg_at_10_difference"}
    for other in ("dense", "RRF", "sum"):
        assert against[other]["value"] == pytest.approx(value[step.OURS] - value[other], abs=1e-6)
        assert against[other]["low"] <= against[other]["value"] <= against[other]["high"]
    # The vectors are kept, and are made anew for other documents.
    first = np.load(tmp_path / "search_study" / f"{encoder.name}-scifact-documents.npy")
    monkeypatch.setattr(step.Encoder, "embed", lambda *_: pytest.fail("embedded twice"))
    run_here(step.main, *given)
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    monkeypatch.setattr(step.Encoder, "embed", lambda self, texts: np.ones((len(texts), first.shape[1]), np.float32))
    other = collection()
    other.documents = [*TEXTS[1:], TEXTS[0]]
    monkeypatch.setitem(sets.SETS, "scifact", sets.Collection("other", lambda _: other))
    run_here(step.main, *given, "--dense_alone")
    (again, _) = json.loads((tmp_path / "rows.json").read_text())
    assert again["method"] == "dense"
    assert again["value"] < value["dense"]

    fields = {"data": "scifact", "task": "search", "encoder": "all-MiniLM-L6-v2"}
    done = Record("x", "done", "x", "x", rows=[row | fields for row in rows])
    text = report.markdown(Results(not_run=["z"], cells={"x": done}))
    assert f"| other | 30 | 10 | {100 * value['dense']:.1f} |" in text.replace("*", "")
    assert f"({100 * against['dense']['low']:+.1f} to {100 * against['dense']['high']:+.1f})" in text
    assert text.count("| semantic_search | bm25s | txtai | txtai, BB25 |") == 2
    assert "Cells not run: z." in text


def test_lists_are_those_of_scores_added_one_by_one():
    ranking, generator = collection(), np.random.default_rng(0)
    documents, queries = (step.unit(generator.normal(size=(size, 5)).astype(np.float32)) for size in (30, 10))
    lists = dict(step.rank(ranking, documents, queries))
    words = BM25(ranking.documents, "english").scores(ranking.queries, np.tile(np.arange(30), (10, 1)))
    cosines = queries @ documents.T
    expected = 0.2 * words / np.maximum(words.max(axis=1, keepdims=True), 1e-9)  # a query may have no word
    expected += 0.8 * (cosines + 1) / (cosines.max(axis=1, keepdims=True) + 1)
    np.testing.assert_array_equal(lists[step.OURS].rows[:, :10], np.argsort(-expected, axis=1)[:, :10])
    np.testing.assert_array_equal(lists["dense"].rows[:, :10], np.argsort(-cosines, axis=1)[:, :10])


def test_what_asks_is_taken_out_of_documents_and_a_thread_is_relevant(tmp_path, monkeypatch):
    (tmp_path / "20newsgroups").mkdir()
    posts = [
        (f"From: a\nSubject: {'Re: ' * (n % 2)}Topic {n // 2}\nLines: 3\n\nThe body number {n}.", n) for n in range(6)
    ]
    frame = sets.pd.DataFrame({"id": [f"p{n}" for _, n in posts], "label": 0, "text": [text for text, _ in posts]})
    frame.to_parquet(tmp_path / "20newsgroups" / "test.parquet")
    monkeypatch.setattr(sets, "DRAWN", 6)
    ranking = sets.newsgroups(tmp_path)
    assert sorted(ranking.queries) == ["Topic 0", "Topic 1", "Topic 2"]
    assert all("Topic" not in text and "body" in text for text in ranking.documents)
    assert all(len(grades) == 2 for grades in ranking.judgments.values())


def test_the_interval_of_a_mean_is_that_of_independent_sets_and_each_part_has_its_own():
    ours = {"method": step.OURS, "against": "dense"}
    rows = [{"data": "cacm", "value": 0.01, "low": -0.01, "high": 0.02}]
    rows += [{"data": "scifact", "value": 0.03, "low": 0.01, "high": 0.05}]
    table = report.differences(report.pd.DataFrame([ours | row for row in rows]))
    assert [*table.index] == ["scifact", "cacm", "mean of 2"]
    assert [*table.dense] == ["**+3.0** (+1.0 to +5.0)", "+1.0 (-1.0 to +2.0)", "**+2.0** (+0.8 to +3.2)"]
    rows += [{"data": "qmsum", "value": 0.05, "low": 0.05, "high": 0.05}]
    rows += [{"data": "docstrings", "value": 0.11, "low": 0.11, "high": 0.11}]
    table = report.differences(report.pd.DataFrame([ours | row for row in rows])).dense
    assert table["mean of 3 judged by people"].startswith("**+3.0** (+2.2 to ")
    assert table["mean of 2 that did not choose the weight"] == "**+8.0** (+8.0 to +8.0)"
    assert table["mean of 4"].startswith("**+5.0** (+4.4 to ")
    assert len(table) == 7  # one set alone has its queries out of documents


def test_a_half_asks_and_the_other_half_has_none_of_its_sentences():
    sentences = [f"Sentence {number} has w{number}a and w{number}b and some more words." for number in range(7)]
    for seed in range(20):
        question, other = cuts.halves_of(" ".join(sentences), np.random.default_rng(seed))
        asked = {number for number in range(7) if f"w{number}a" in question or f"w{number}b" in question}
        kept = {number for number in range(7) if sentences[number] in other}
        assert 5 <= len(question.split()) <= 30
        assert len(kept) == 3
        assert not asked & kept
    assert cuts.halves_of(sentences[0], np.random.default_rng(0)) is None


def test_a_score_is_measured_by_its_pairs_and_a_probability_by_its_groups():
    rng = np.random.default_rng(0)
    answered, unanswered = rng.normal(1, 1, 90).round(1), rng.normal(0, 1, 60).round(1)
    rows = cuts.aucs({"one": (answered, unanswered), "other": (-answered, -unanswered)})
    labels = np.repeat([1, 0], (90, 60))
    expected = roc_auc_score(labels, np.concatenate([answered, unanswered]))
    found = {(row["system"], row["metric"]): row for row in rows}
    assert found["one", "auc"]["value"] == pytest.approx(expected)
    assert found["other", "ahead"]["value"] == pytest.approx(1 - 2 * expected)
    assert found["one", "auc"]["low"] < expected < found["one", "auc"]["high"]
    probabilities = rng.random(20_000)
    labels = rng.random(20_000) < probabilities
    assert cuts.calibration_error(probabilities, labels) < 0.02
    assert cuts.calibration_error(probabilities**2, labels) == pytest.approx(1 / 6, abs=0.01)
