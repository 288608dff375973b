"""The benchmark of words fits and embeds what it says. No time is asserted."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.speed import words
from docsplit.embedding.loading import load_encoder


def test_documents_are_made_of_words_of_one_token(wordpiece):
    texts = words.make_texts(wordpiece, 30)
    assert len(set(texts)) == 30
    for text in texts:
        assert wordpiece.tokenize(text) == text.split()
        assert len(text.split()) == words.WORDS


def test_what_it_writes(run_here, encoder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(words, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))
    sizes = ["--sizes", 30, 40, "--texts", 25, "--rounds", 1]
    run_here(words.main, encoder, *sizes, "--output", tmp_path / "words.json")
    results = json.loads((tmp_path / "words.json").read_text())
    assert [(row["documents"], row["way"]) for row in results["fits"]] == [
        (size, way) for size in (30, 40) for way in words.FITS
    ]
    assert all(row["pieces"] > 10 for row in results["fits"])
    assert {words.START, words.STATIC} <= {*results["uses"]}
    static, start = results["uses"][words.STATIC], results["uses"][words.START]
    assert static["documents_ratio"] == pytest.approx(static["documents"] / start["documents"])
    assert start["documents_ratio"] == start["short_ratio"] == 1
    assert (tmp_path / "words.md").read_text() in capsys.readouterr().out


def test_all_ways_give_a_vector_a_text(encoder, tmp_path):
    texts = words.make_texts(load_encoder(str(encoder)).tokenizer, 25)
    ways = words.contenders(str(encoder), texts, tmp_path)
    widths = {name: embed(texts).shape for name, embed in ways.items()}
    assert {rows for rows, _ in widths.values()} == {25}
    assert {widths[name][1] for name in (words.START, words.STATIC)} == {32}
    assert widths[words.LSA][1] <= 24 < widths[words.TF_IDF][1]
