"""Words in the study of adaptation: no tested document is fitted on, and rows say what was measured."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.studies.adaptation import words
from benchmarks.studies.adaptation.sets import SETS, DataSet, Measured
from docsplit.embedding.lexical_ridge import RidgeFacts
from docsplit.embedding.loading import load_encoder
from tests.benchmarks.studies.adaptation.vectors import vectors_of
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(60)]


def _first_column(features):
    column = np.asarray(features[:, [0]].todense() if hasattr(features, "todense") else features[:, [0]]).ravel()
    return Measured("first", lambda rows: float(column[rows].mean()), len(column))


def toy(num_queries=0):
    """Two thirds of the texts to fit on; the last ones are tested."""
    return DataSet("toy", TEXTS[:40], TEXTS, _first_column, num_queries=num_queries, beside_bm25=_first_column)


@pytest.fixture
def fitted(encoder):
    vectors = vectors_of(60)
    return words.Fitted(toy(), load_encoder(str(encoder), "mean"), vectors, vectors[:40])


def test_a_tested_text_changes_nothing_of_the_fit(encoder, fitted):
    other = replace(toy(), texts=[*TEXTS[:59], "A text of quite other words."])
    vectors = vectors_of(60)
    again = words.Fitted(other, load_encoder(str(encoder), "mean"), vectors, vectors[:40])
    np.testing.assert_array_equal(again.directions[:59], fitted.directions[:59])
    assert np.abs(again.directions[59] - fitted.directions[59]).max() > 0.01


def test_fitted_texts_may_be_left_out_of_their_own_fit(fitted):
    without = fitted.without_each()
    np.testing.assert_array_equal(without[40:], fitted.directions[40:])
    np.testing.assert_allclose(without[:40], fitted.ridge.leave_one_out(), atol=1e-6)
    assert np.abs(without[:40] - fitted.directions[:40]).max() > 0.01


def test_queries_get_no_words(encoder, monkeypatch):
    monkeypatch.setattr(RidgeFacts, "weight", 1.0)
    vectors = vectors_of(60)
    data = toy(num_queries=20)
    fitted = words.Fitted(data, load_encoder(str(encoder), "mean"), vectors, vectors[:40])
    np.testing.assert_array_equal(fitted.with_words()[40:], vectors[40:])
    assert np.abs(fitted.with_words()[:40] - vectors[:40]).max() > 0.01


def test_all_methods_are_measured_the_start_first(encoder, monkeypatch):
    monkeypatch.setattr(words, "FULL_TOKENS", 20)
    monkeypatch.setattr(words, "MORE_TOKENS", 30)
    methods = dict(words.of_start(toy(), words.Encoders(toy(), "mean"), str(encoder), 12))
    assert next(iter(methods)) == "start"
    assert {"words", "static", "words, leave-one-out", "words of what the start reads", "TF-IDF"} <= set(methods)
    assert len({measured.value for measured in methods.values()}) > 8
    searched = dict(words.of_start(toy(20), words.Encoders(toy(20), "mean"), str(encoder), 12))
    assert {"start + BM25", "words + BM25"} <= set(searched)
    assert "words, leave-one-out" not in searched
    lengths = dict(words.of_lengths(toy(), words.Encoders(toy(), "mean"), str(encoder), 12))
    assert list(lengths) == ["start", "start on 20 tokens", "words, start on 20 tokens",
                             "start on 30 tokens", "words, start on 30 tokens"]  # fmt: skip
    sizes = dict(words.of_words(toy(), words.Encoders(toy(), "mean"), str(encoder), 12))
    assert list(sizes) == ["start", "words", "static", "static, leave-one-out"]
    assert all(sizes[name].value == methods[name].value for name in sizes)


def test_few_documents_are_of_all_classes_or_of_the_first(monkeypatch):
    ordered = DataSet("toy", [str(number) for number in range(2000)], [], _first_column)
    monkeypatch.setitem(SETS, "20news", lambda data_dir, part, size: ordered)
    few = words.MORE_SETS["20news, 100 documents"](None, "test", 2000).corpus
    assert len({int(text) // 200 for text in few}) == 10
    first = words.MORE_SETS["20news, 100 documents of the first classes"](None, "test", 2000).corpus
    assert first == ordered.corpus[:100]


def test_rows_are_written_with_their_part_and_no_start_of_another_cell(encoder, tmp_path, run_here, monkeypatch):
    monkeypatch.setitem(SETS, "20news", lambda data_dir, part, size: toy())
    given = ["--data", "20news", "--data_dir", tmp_path, "--start", encoder, "--max_seq_length", 12]
    run_here(words.main, *given, "--rows", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["part"] for row in rows} == {"test"}
    assert {row["seed"] for row in rows} == {None}
    assert "start" not in {row["method"] for row in rows}
    monkeypatch.setitem(words.SEARCH_SETS, "wikipedia_titles", lambda data_dir, part, size: toy(20))
    run_here(words.main, "--data", "wikipedia_titles", *given[2:], "--rows", tmp_path / "rows.json")
    assert "start" in {row["method"] for row in json.loads((tmp_path / "rows.json").read_text())}
    run_here(words.main, *given, "--measure", "words", "--rows", tmp_path / "rows.json")
    assert {row["method"] for row in json.loads((tmp_path / "rows.json").read_text())} == {
        "words", "static", "static, leave-one-out"
    }  # fmt: skip
    run_here(words.main, *given, "--encoder", encoder, "--name", "adapt", "--rows", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {"adapt + words", "adapt + words, static"} <= {row["method"] for row in rows}
    assert all("seed" not in row for row in rows)  # the training's, which the cell knows
