"""Candidates of adapting: which there are, the vectors that each is measured on, and which one is the best."""

from types import SimpleNamespace

import numpy as np
import pytest

from docsplit.data.sets.labelled import LabelledSplit
from docsplit.embedding.lexical_ridge import RidgeSettings, fit
from docsplit.release.records import Candidate
from docsplit.runtime.vectors import unit
from docsplit.training.adaptation import candidates
from docsplit.training.adaptation.candidates import Side, Variant, best, measure, variants_of, words_of_texts
from tests.conftest import make_corpus
from tests.embedding.test_lexical_ridge import TEXTS, Encoder, vectors_of

LABELLED = [row["text"] for row in make_corpus(24, seed=3)]
SPLIT = LabelledSplit(  # the second half of the training documents are documents, too
    train_texts=[*LABELLED[:6], *TEXTS[10:16]], train_labels=np.arange(12) % 2, class_names=["a", "b"],
    validation_texts=LABELLED[6:14], validation_labels=np.arange(8) % 2,
    test_texts=[*LABELLED[14:22], ""], test_labels=np.arange(9) % 2,
)  # fmt: skip


@pytest.fixture(scope="module")
def side(wordpiece):
    """Return an encoder of TEXTS, with vectors of any length, and words of both kinds."""
    vectors = 2 * vectors_of(TEXTS)
    ridges = {
        kind: fit(Encoder(wordpiece), TEXTS, vectors, RidgeSettings(0.5, 3, sublinear=kind == "words"))
        for kind in ("words", "static")
    }
    probe = {part: 2 * vectors_of(texts) for part, texts in SPLIT.texts.items()}
    return Side("start", "place", None, vectors, probe, ridges=ridges)


def without(side, *kinds):
    ridges = {kind: ridge for kind, ridge in side.ridges.items() if kind not in kinds}
    return Side("trained", side.place, None, side.vectors, side.probe, ridges=ridges)


def slow_words(ridge, part):
    """Return r of a part: for each document of TEXTS by a solution without it, for others by that of all."""
    dense, width = ridge.features.toarray().astype(np.float64), ridge.features.shape[1]
    rows = []
    for text in SPLIT.texts[part]:
        if text in TEXTS:
            row = TEXTS.index(text)
            others, targets = np.delete(dense, row, axis=0), np.delete(ridge.targets, row, axis=0)
            solution = np.linalg.solve(others.T @ others + 0.5 * np.eye(width), others.T @ targets)
            rows.append(unit(dense[row : row + 1] @ solution)[0])
        else:
            rows.append(ridge.words(**ridge.words.preprocess([text])).numpy()[0])
    return np.array(rows)


def test_all_that_could_be_written_is_a_candidate(side):
    labels = [variant.label for variant in variants_of([side, without(side)])]
    words = ["words", "words, weight 0.5", "words, weight 2"]
    assert labels[:5] == ["start", *words, "static"]
    assert labels[5:] == ["trained", *(f"trained + {name}" for name in words), "static of trained"]
    assert [variant.name for variant in variants_of([without(side, "words")])] == ["trained", "static of trained"]
    assert {variant.kind for variant in variants_of([without(side, "static")])} == {"plain", "words"}
    assert [variant.name for variant in variants_of([without(side, "words", "static")])] == ["trained"]
    kinds = {variant.kind: variant.ridge for variant in variants_of([side])}
    assert kinds == {"plain": None, "words": side.ridges["words"], "static": side.ridges["static"]}


def test_candidates_are_measured_with_words_that_have_not_seen_the_document(side, monkeypatch, caplog):
    caplog.set_level("INFO")
    seen = []

    def probe_accuracy(split, features):
        seen.append(features)
        return {part: {"accuracy": float(len(seen)), "5shot_accuracy": 0.0} for part in ("validation", "test")}

    monkeypatch.setattr(candidates, "probe_accuracy", probe_accuracy)
    variants = variants_of([side])
    measured = measure(variants, SPLIT, TEXTS)
    assert caplog.text.count("6 labelled training documents are among the documents: their words are leave-one-o") == 1
    assert [(one.label, one.validation["accuracy"]) for one in measured] == [
        (variant.label, number + 1.0) for number, variant in enumerate(variants)
    ]
    for part in SPLIT.texts:
        words, static = (slow_words(side.ridges[kind], part) for kind in ("words", "static"))
        plain = side.probe[part]
        expected = [plain, *(unit(unit(plain) + weight * words) * 2 for weight in (1, 0.5, 2)), static]
        assert len(seen) == len(expected)
        for features, vectors in zip(seen, expected, strict=True):
            np.testing.assert_allclose(features[part], vectors, atol=1e-5)
    # It matters which words are left out, and how tokens are counted
    ridge, documents = side.ridges["static"], SPLIT.train_texts[6:]
    assert np.abs(seen[-1]["train"][6:] - words_of_texts(ridge.words, documents)).max() > 1e-2
    assert np.abs(slow_words(side.ridges["words"], "test") - slow_words(ridge, "test")).max() > 1e-2
    assert not seen[-1]["test"][-1].any()  # of a text without words


def test_words_of_texts_are_those_of_each_alone(side, monkeypatch):
    monkeypatch.setattr(candidates, "CHUNK_TEXTS", 7)
    words = side.ridges["words"].words
    texts = [*LABELLED, "", "\ud800 ship"]
    alone = np.concatenate([words(**words.preprocess([text])).numpy() for text in texts])
    np.testing.assert_allclose(words_of_texts(words, texts), alone, atol=1e-6)


def test_the_best_is_chosen_with_few_labels_then_with_all_then_the_first():
    def candidate(few, every, test):
        scores = ({"5shot_accuracy": a, "accuracy": b} for a, b in ((few, every), (test, test)))
        return Candidate("one", None, *scores)

    variants = [Variant(SimpleNamespace(name=name), "plain") for name in "abcd"]
    scores = [candidate(0.5, 0.9, 0.9), candidate(0.6, 0.7, 0.1), candidate(0.6, 0.8, 0.2), candidate(0.6, 0.8, 0.9)]
    assert best(variants, scores) is variants[2]
    assert best(variants[:2], scores[:2]) is variants[1]
