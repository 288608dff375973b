"""Attention to words against loops over pieces and words: sums, classes, lengths, thirds by frequency."""

import numpy as np
import pytest

from docsplit.evaluation.analysis.attention_by_word import (
    CLASSES,
    TERCILES,
    WordWeights,
    attention_estimates,
    document_words,
    word_weights,
)

GENERATOR = np.random.default_rng(0)


def test_words_get_the_sum_of_their_pieces():
    #         unaffordable ships
    spans = np.array([[0, 12], [13, 18], [19, 23]])
    offsets = np.array(
        [[0, 0], [0, 2], [2, 8], [8, 12], [12, 18], [12, 13], [0, 0]]
    )  # a byte-level piece has its space
    weights = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.1, 0.2])
    found = word_weights(weights, offsets, spans)
    np.testing.assert_allclose(found.weights, [0.2, 0.2, np.nan])  # the third was not read
    assert (found.special, found.outside) == (pytest.approx(0.5), pytest.approx(0.1))
    assert (found.mismatches, found.pieces) == (0, 5)
    np.testing.assert_allclose(word_weights(weights, offsets, spans, "mean").weights, [0.2 / 3, 0.2, np.nan])


def test_a_piece_of_two_words_counts_for_the_one_of_which_it_has_most_and_is_counted():
    found = word_weights(np.array([0.6, 0.4]), np.array([[0, 5], [5, 6]]), np.array([[0, 2], [2, 6]]))
    np.testing.assert_allclose(found.weights, [np.nan, 1.0])
    assert found.mismatches == 1


def test_thirds_are_by_the_number_of_documents_that_have_a_word():
    """Each of 30 documents has a word of all, one of ten, one of its own; punctuation is in no third."""
    documents = [
        (["all", f"ten{row % 3}", f"own{row}", "."], ["NOUN"] * 3 + ["PUNCT"], np.zeros((4, 2), int))
        for row in range(30)
    ]
    for words in document_words(documents):
        assert [TERCILES[number] for number in words.terciles[:3]] == ["frequent", "medium", "rare"]


def random_documents(num_documents=12):
    tagged, attention = [], []
    for _ in range(num_documents):
        size = int(GENERATOR.integers(3, 30))
        parts = list(GENERATOR.choice(["NOUN", "VERB", "ADJ", "ADP", "PUNCT"], size))
        tagged.append(
            ([f"w{number}" for number in GENERATOR.integers(40, size=size)], parts, np.zeros((size, 2), int))
        )
        weights = GENERATOR.random(size)
        weights = 0.4 * weights / weights.sum()
        weights[GENERATOR.random(size) < 0.2] = np.nan  # not read
        attention.append(WordWeights(weights, 0.5, 0.1, 1, size))
    return document_words(tagged), attention


def test_estimates_against_loops():
    documents, attention = random_documents()
    found, counts = attention_estimates(documents, attention)
    for number, name in enumerate(CLASSES):
        weights, renormalized, to_uniform, shares = [], [], [], []
        for words, own in zip(documents, attention):
            read = [row for row in range(len(words.classes)) if not np.isnan(own.weights[row])]
            mass = sum(own.weights[row] for row in read)
            of_class = [own.weights[row] for row in read if words.classes[row] == number]
            weights += of_class
            renormalized += [weight / mass for weight in of_class]
            to_uniform += [weight / mass * len(read) for weight in of_class]
            shares.append(sum(of_class) / mass)
        expected = {"weight": weights, "renormalized": renormalized, "to_uniform": to_uniform, "share": shares}
        for kind, values in expected.items():
            assert found[f"{name}_{kind}"].scores == pytest.approx([np.mean(values)]), (name, kind)
        assert counts[f"words_{name}"] == len(weights)
    assert sum(found[f"{name}_share"].scores[0] for name in CLASSES) == pytest.approx(1)
    assert found["special_share"].scores == pytest.approx([0.5])
    assert (counts["documents"], counts["mismatches"]) == (12, 12)


def test_uniform_attention_is_1_whatever_the_length_and_preference_is_found():
    documents, _ = random_documents(40)
    uniform = [WordWeights(np.full(len(one.classes), 0.4 / len(one.classes)), 0.6, 0, 0, 9) for one in documents]
    found, _ = attention_estimates(documents, uniform)
    assert all(found[f"{name}_to_uniform"].samples == pytest.approx(1) for name in CLASSES)
    to_nouns = [WordWeights(np.where(one.classes == 0, 3.0, 1.0), 0, 0, 0, 9) for one in documents]
    found, _ = attention_estimates(documents, to_nouns)
    ratio = found["noun_to_uniform"].samples / found["verb_to_uniform"].samples
    assert ratio.min() > 2
    assert found["noun_to_uniform"].scores[0] > 1.5


def test_a_document_without_a_word_that_was_read_is_left_out_and_counted():
    documents, attention = random_documents(5)
    empty = WordWeights(np.full(len(documents[0].classes), np.nan), 1.0, 0, 0, 0)
    found, counts = attention_estimates(documents, [empty, *attention[1:]])
    assert (counts["documents"], counts["documents_without_a_word"]) == (4, 1)
    assert found["special_share"].scores == pytest.approx([0.5])
