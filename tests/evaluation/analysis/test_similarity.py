"""Similarity of sentences against loops over pairs, with the bootstrap over documents against one by hand."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import roc_auc_score

from docsplit.evaluation.analysis import similarity as module
from docsplit.evaluation.analysis.similarity import choose_sentences, similarity
from docsplit.evaluation.results.bootstrap import item_draws

GENERATOR = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch):
    monkeypatch.setattr(module, "NUM_PAIRS", 3000)


def make_sentences(counts, classes):
    texts = [[f"document {row} says {number}" for number in range(count)] for row, count in enumerate(counts)]
    return choose_sentences(texts, np.array(classes))


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def by_hand(vectors, sentences, times):
    """Weighted means and AUC, pair by pair, where document d counts times[d]."""
    inner, of_document = [], []
    for document in range(sentences.num_documents):
        rows = np.flatnonzero(sentences.documents == document)
        own = [cosine(vectors[a], vectors[b]) for a in rows for b in rows if a < b]
        inner += own
        of_document += [times[document] / max(len(own), 1)] * len(own)
    pairs = {"inter": sentences.inter, "same_class": sentences.same_class}
    values = {"inner": np.average(inner, weights=of_document)}
    for kind, rows in pairs.items():
        cosines = [cosine(vectors[a], vectors[b]) for a, b in rows]
        weights = [times[sentences.documents[a]] * times[sentences.documents[b]] for a, b in rows]
        values[kind] = np.average(cosines, weights=weights)
        values[f"inner_minus_{kind}"] = values["inner"] - values[kind]
        truth = [1] * len(inner) + [0] * len(cosines)
        values["auc" if kind == "inter" else "auc_same_class"] = roc_auc_score(
            truth, inner + cosines, sample_weight=of_document + weights
        )
    return values


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NUM_PAIRS", 3000)
        sentences = make_sentences([4, 1, 7, 2, 0, 5, 3, 6], [0, 0, 1, 1, 1, 0, 2, 1])
    centres = GENERATOR.normal(size=(8, 6))
    return centres[sentences.documents] + GENERATOR.normal(size=(len(sentences.texts), 6)), sentences


def test_values_against_loops(example):
    vectors, sentences = example
    expected = by_hand(vectors, sentences, np.ones(8))
    found = similarity(vectors, sentences, num_samples=10)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].scores == pytest.approx([value]), name


def test_samples_are_those_of_documents_drawn_again(example):
    vectors, sentences = example
    found = similarity(vectors, sentences, num_samples=20)
    (times,) = item_draws(8, 20)
    compared = 0
    for sample in range(20):
        of_class = times[sample][sentences.documents[sentences.same_class]].prod(axis=1)
        if not of_class.any():
            assert found["same_class"].samples[sample] == found["same_class"].scores  # no pair: that of all documents
            continue
        compared += 1
        for name, value in by_hand(vectors, sentences, times[sample]).items():
            tolerance = 5e-3 if "auc" in name else 1e-5  # the AUC's samples are those of cosines in bins
            assert found[name].samples[sample, 0] == pytest.approx(value, abs=tolerance), name
    assert compared > 15


def test_sparse_vectors_and_their_lengths_change_nothing(example):
    vectors, sentences = example
    dense = similarity(vectors, sentences, num_samples=5)
    for other in (csr_matrix(vectors), vectors * GENERATOR.uniform(1, 5, (len(vectors), 1))):
        found = similarity(other, sentences, num_samples=5)
        for name, value in dense.items():
            np.testing.assert_allclose(found[name].samples, value.samples, atol=1e-6)


def test_pairs_are_of_two_documents_and_of_one_class():
    classes = np.array([0, 0, 1, 1, 1, 0, 2, 1])
    sentences = make_sentences([4, 1, 7, 2, 0, 5, 3, 6], classes)
    inter, same_class = (sentences.documents[pairs] for pairs in (sentences.inter, sentences.same_class))
    assert len(inter) == len(same_class) == 3000
    assert (inter[:, 0] != inter[:, 1]).all()
    shares = np.bincount(inter.ravel(), minlength=8) / 6000
    np.testing.assert_allclose(shares, [1 / 7] * 4 + [0] + [1 / 7] * 3, atol=0.02)  # documents count alike
    own = [0, 1, 5], [2, 3, 7]  # the seventh is alone in its class
    assert set(map(tuple, same_class.tolist())) == {
        (a, b) for group in own for a in group for b in group if a != b
    }  # fmt: skip


def test_what_is_left_out_is_counted():
    texts = [["One two three.", "One  two\nthree.", "Too short."], ["One two three.", "Four five six."], []]
    texts.append([f"Sentence number {number}." for number in range(60)])
    sentences = choose_sentences(texts, np.zeros(4, dtype=int))
    assert sentences.texts[:2] == ["One two three.", "Four five six."]
    assert len(sentences.texts) == 52
    assert sentences.texts[2:] == sorted(sentences.texts[2:], key=texts[3].index)
    assert sentences.counts == {
        "sentences": 52, "short": 1, "duplicates": 2, "beyond_the_cap": 10, "documents_without_pair": 3,
    }  # fmt: skip
