"""The quick probe beside pretraining: how it chooses C, and that test labels choose nothing."""

import dataclasses

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from docsplit.evaluation.heads.frozen import PROBE_C, probe_accuracy, tfidf_accuracy


@pytest.fixture
def probed(split):
    """With validation documents: every third of those to test on."""
    third = np.arange(len(split.test_labels)) % 3 == 1
    texts = np.array(split.test_texts, dtype=object)
    return dataclasses.replace(
        split,
        validation_texts=texts[third].tolist(),
        validation_labels=split.test_labels[third],
        test_texts=texts[~third].tolist(),
        test_labels=split.test_labels[~third],
    )


def noisy(split, noise, scale=1.0):
    rng = np.random.default_rng(0)
    labels = {name: getattr(split, f"{name}_labels") for name in split.texts}
    return {
        name: scale * (np.eye(3)[own] + noise * rng.standard_normal((len(own), 3))) for name, own in labels.items()
    }


def test_accuracy_is_that_of_the_right_features(probed):
    perfect = probe_accuracy(probed, noisy(probed, 0.01))
    nothing = {name: np.random.default_rng(1).standard_normal((len(texts), 3)) for name, texts in probed.texts.items()}
    useless = probe_accuracy(probed, nothing)
    for part in ("validation", "test"):
        assert perfect[part]["accuracy"] == perfect[part]["5shot_accuracy"] == 1.0
        assert useless[part]["accuracy"] < 0.7
        assert useless[part]["5shot_accuracy"] < 0.6
        assert useless[part]["5shot_accuracy_std"] > 0


def test_c_is_that_of_the_validation_part_and_the_spread_that_of_a_sample(probed):
    features = noisy(probed, 0.5, scale=0.1)  # small features: C = 1 is too strong a penalty
    validation, test = probe_accuracy(probed, features).values()
    draws, accuracies = probed.draws(), {}
    for c in PROBE_C:
        classifiers = [
            LogisticRegression(C=c, max_iter=1000).fit(features["train"][draw], probed.train_labels[draw])
            for draw in draws
        ]
        accuracies[c] = [
            [classifier.score(features[part], getattr(probed, f"{part}_labels")) for classifier in classifiers]
            for part in ("validation", "test")
        ]
    best = max(PROBE_C, key=lambda c: (round(np.mean(accuracies[c][0]), 9), -c))
    assert validation["5shot_c"] == test["5shot_c"] == best
    for result, values in zip((validation, test), accuracies[best]):
        assert result["5shot_accuracy"] == pytest.approx(np.mean(values))
        assert result["5shot_accuracy_std"] == pytest.approx(np.std(values, ddof=1))
    assert len({tuple(values) for _, values in accuracies.values()}) == 3  # or any C would do


def test_test_labels_choose_nothing(probed):
    features = noisy(probed, 0.7, scale=0.3)
    first = probe_accuracy(probed, features)
    scrambled = dataclasses.replace(probed, test_labels=np.roll(probed.test_labels, 1))
    second = probe_accuracy(scrambled, features)
    assert first["validation"] == second["validation"]
    assert (first["test"]["c"], first["test"]["5shot_c"]) == (second["test"]["c"], second["test"]["5shot_c"])
    assert first["test"]["accuracy"] > second["test"]["accuracy"]
    assert (
        first["validation"]
        == probe_accuracy(probed, {name: features[name] for name in ("train", "validation")})["validation"]
    )


def test_tfidf_reads_the_topics(probed):
    assert tfidf_accuracy(probed)["test"]["accuracy"] > 0.9
