"""Shorter codes of vectors: what a loop finds, found."""

import json

import numpy as np
import pytest

from benchmarks.studies.truncation.report import DEPTH, codes, markdown, recall, retrieve
from tests.processes import ROOT


@pytest.fixture(scope="module")
def vectors():
    drawn = np.random.default_rng(0).normal(size=(240, 256)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn[:12], drawn[12:]


def cosine(left, right):
    return left @ right / np.linalg.norm(left) / np.linalg.norm(right)


SLOW = {  # how a code compares two vectors
    "vectors": cosine,
    "first 128 dimensions": lambda left, right: cosine(left[:128], right[:128]),
    "first 64 dimensions": lambda left, right: cosine(left[:64], right[:64]),
    "signs": lambda left, right: sum((a > 0) == (b > 0) for a, b in zip(left, right)),
}


def best(scores, count):
    return sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:count]


def test_a_code_finds_what_a_loop_finds(vectors):
    queries, documents = vectors
    assert {code.name: code.num_bytes for code in codes(256)} == {
        "vectors": 1024,
        "first 128 dimensions": 512,
        "first 64 dimensions": 256,
        "signs": 32,
    }
    for code in codes(256):
        plain, rescored = retrieve(queries, documents, code), retrieve(queries, documents, code, 20)
        for number, query in enumerate(queries):
            scores = [SLOW[code.name](query, document) for document in documents]
            if code.name == "signs":  # many are equal
                assert [scores[row] for row in plain.rows[number]] == sorted(scores, reverse=True)[:DEPTH]
                continue
            assert plain.rows[number].tolist() == best(scores, DEPTH)
            candidates = best(scores, 20)
            order = best([cosine(query, documents[row]) for row in candidates], DEPTH)
            assert rescored.rows[number].tolist() == [candidates[row] for row in order]


def test_recall_counts_what_was_found():
    assert recall(np.array([[1, 2], [3, 4]]), np.array([[2, 9], [4, 3]])) == 0.75


def test_the_committed_table_shows_the_results_and_explains_its_columns():
    results = json.loads((ROOT / "benchmarks" / "results" / "truncation.json").read_text())
    text = markdown(results)
    assert (ROOT / "benchmarks" / "results" / "truncation.md").read_text() == text
    assert "    recall    of the ten best" in text
    assert text.count("\n| ") == len(results["rows"]) + 1
