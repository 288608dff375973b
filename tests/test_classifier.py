"""The classifier to keep: what it is worth by a slow loop, what comes back from its folder, and wrong input."""

import json
import logging
import math
import os
import shutil
import unicodedata
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pandas
import pyarrow
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from threadpoolctl import threadpool_limits

from docsplit import Classifier
from docsplit.classifier import (
    Damaged,
    calibration,
    encode_labels,
    lines_of_classes,
    probabilities_of,
)
from docsplit.data.readers.documents import documents_of
from docsplit.data.words import tfidf_counter
from docsplit.embedding import lexical_ridge
from docsplit.evaluation.heads.logistic import C, RowSpace, fit_head, fit_self_trained
from docsplit.modeling.loading import load_encoder
from docsplit.runtime.files import ROOT
from tests.conftest import make_corpus

ENCODER = str(ROOT / "tests" / "data" / "encoder")
ROWS = make_corpus(60)
TEXTS, LABELS = [row["text"] for row in ROWS], [row["label"] for row in ROWS]
NEW = [row["text"] for row in make_corpus(24, seed=1)]


@pytest.fixture(scope="module")
def fitted():
    return Classifier(ENCODER).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def several():
    labels = [[row["label"], "long"] if len(row["text"]) > 250 else [row["label"]] for row in ROWS[:30]]
    return Classifier(ENCODER, "words_and_tfidf").fit(TEXTS[:30], labels)


def test_new_documents_get_their_topic(fitted):
    probabilities = fitted.predict_proba(NEW)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    topics = [row["label"] for row in make_corpus(24, seed=1)]
    assert fitted.score(NEW, topics) > 0.9
    assert fitted.predict(NEW).tolist() == fitted.classes_[probabilities.argmax(axis=1)].tolist()
    least = float(np.median(probabilities.max(axis=1)))
    sure = fitted.predict(NEW, unsure=least)
    assert [label is None for label in sure] == (probabilities.max(axis=1) < least).tolist()
    assert any(sure == None) and any(sure != None)  # noqa: E711, PT018
    for row, of in zip(probabilities, fitted.predictions(NEW, unsure=1, top=2)):
        assert of == ([], sorted(zip(fitted.classes_.tolist(), row.tolist()), key=lambda pair: -pair[1])[:2])
    with pytest.raises(ValueError, match="unsure is its least probability"):
        fitted.predict(NEW, threshold=0.8)
    assert fitted.predict_proba([]).shape == (0, 3)
    assert set(fitted.score_.choice) == {"words_and_tfidf", "encoder_and_tfidf", "encoder", "tfidf"}


def test_many_documents_are_predicted_in_blocks(fitted, monkeypatch):
    """So that not all their vectors are in memory."""
    expected, embedded = fitted.predict_proba(NEW), []
    monkeypatch.setattr("docsplit.classifier.BLOCK", 7)
    embed = fitted._embed
    monkeypatch.setattr(fitted, "_embed", lambda texts, *more: embedded.append(len(texts)) or embed(texts, *more))
    np.testing.assert_allclose(fitted.predict_proba(NEW), expected, atol=1e-6)
    assert embedded == [7, 7, 7, 3]


def test_several_labels_are_those_of_a_half(several):
    probabilities = several.predict_proba(NEW)
    for labels, row in zip(several.predict(NEW), probabilities):
        assert labels == several.classes_[row >= 0.5].tolist()
    for labels, row in zip(several.predict(NEW, threshold=0.2), probabilities):
        assert labels == several.classes_[row >= 0.2].tolist()
    with pytest.raises(ValueError, match="threshold is the least probability of each"):
        several.predict(NEW, unsure=0.8)
    assert (several.score_.metric, several.score_.sure, several.score_.sure_accuracy) == ("micro-F1", None, None)
    assert sum("long" in labels for labels in several.predict(NEW)) > 2


def test_a_text_has_one_label_however_its_letters_are_written():
    texts = [
        f"{text} {word} {number}"
        for number, (text, word) in enumerate(zip(TEXTS, ["환불 요청은", "배송이 늦어요"] * 30))
    ]
    apart = [unicodedata.normalize("NFD", text) for text in texts]
    probabilities = [
        Classifier(ENCODER, "words_and_tfidf").fit(given, LABELS).predict_proba(new)
        for given in (texts, apart)
        for new in (texts, apart)
    ]
    of_piles = [
        Classifier(ENCODER, "words_and_tfidf").fit(texts[:30], LABELS[:30], pile[30:]).predict_proba(texts)
        for pile in (texts, apart)
    ]
    for others, expected in [*((others, probabilities[0]) for others in probabilities[1:]), of_piles]:
        np.testing.assert_array_equal(others, expected)


def test_a_classifier_of_words_that_were_cut_in_another_way_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("docsplit.classifier.CUT", 1)
    Classifier(features="tfidf").fit(TEXTS, LABELS).save(tmp_path / "old")
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=r"old is of a version that cut words in another way: fit the classifier again\.$"
    ):
        Classifier.load(tmp_path / "old")


@pytest.mark.parametrize("kind", ["fitted", "several", "tfidf", "none"])
def test_what_is_saved_comes_back(kind, request, tmp_path):
    made = {"tfidf": Classifier(features="tfidf"), "none": Classifier("none", "encoder_and_tfidf")}
    classifier = made[kind].fit(TEXTS, LABELS) if kind in made else request.getfixturevalue(kind)
    expected = classifier.predict_proba(NEW)
    for is_included in (False, True):
        folder = tmp_path / str(is_included)
        classifier.save(folder, include_encoder=is_included)
        again = Classifier.load(folder)
        np.testing.assert_array_equal(again.predict_proba(NEW), expected)
        assert (again.score_, again.several_) == (classifier.score_, classifier.several_)
        assert again.classes_.tolist() == classifier.classes_.tolist()
        assert (folder / "encoder").exists() == (kind == "none" or (is_included and kind != "tfidf"))
        assert again.encoder == "none" or kind != "none"
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".json", ".safetensors", ".py", ".md"}
    with pytest.raises(ValueError, match="is there already"):
        classifier.save(folder)


@threadpool_limits.wrap(limits=1, user_api="blas")
def test_the_score_is_that_of_a_slow_nested_loop():
    """Four features that are equally good: folds choose differently."""
    generator = np.random.default_rng(0)
    targets = generator.integers(3, size=75)
    names = ("words_and_tfidf", "encoder_and_tfidf", "encoder", "tfidf")
    features = {name: generator.normal(size=(75, 6)) + 0.7 * np.eye(6)[targets] for name in names}

    def accuracy(rows, labels, train, held):
        head = LogisticRegression(C=C, max_iter=1000).fit(rows[train], labels[train])
        return (head.predict(rows[held]) == labels[held]).astype(float)

    def choose(train):
        values = {}
        for name, rows in features.items():
            right = np.empty(len(train))
            for inner, held in StratifiedKFold(3, shuffle=True, random_state=0).split(train, targets[train]):
                right[held] = accuracy(rows[train], targets[train], inner, held)
            values[name] = right.mean()
        return max(names, key=values.get), values

    right, chosen = np.empty(75), []
    for train, held in StratifiedKFold(5, shuffle=True, random_state=0).split(targets, targets):
        chosen.append(choose(train)[0])
        right[held] = accuracy(features[chosen[-1]], targets, train, held)
    assert len(set(chosen)) > 1
    classifier = Classifier()
    classifier.several_, classifier.classes_ = False, np.arange(3)
    classifier.fit_heads({name: csr_matrix(rows) for name, rows in features.items()}, targets)
    assert classifier.score_.value == pytest.approx(right.mean())
    assert classifier.score_.low < right.mean() < classifier.score_.high
    assert classifier.score_.choice == pytest.approx(choose(np.arange(75))[1])
    assert classifier.features_ == choose(np.arange(75))[0]
    classifier.fit_heads({name: csr_matrix(rows[:45]) for name, rows in features.items()}, targets[:45])  # 15 a class
    assert (classifier.features_, classifier.score_.choice) == (names[0], {})


def test_near_copies_of_documents_with_random_labels_are_found_by_chance():
    """Without groups a head finds the copy of each document: 99 %."""
    generator = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(300)])
    texts = [" ".join(generator.choice(words, 20)) for _ in range(60)]
    labels = generator.choice(["x", "y"], 60).tolist()
    copies = [f"{text} Ticket {number}" for number in range(4) for text in texts]
    classifier = Classifier(features="tfidf").fit(copies, labels * 4)
    assert classifier.counts_["near copies of labelled rows"] == 180
    assert 0.2 < classifier.score_.low < 0.5 < classifier.score_.high < 0.8  # of 60, not of 240
    assert classifier.score_.high - classifier.score_.low > 0.2
    assert classifier.score_.documents == 240
    # A class of copies alone is named, and the others are measured
    alone = [f"{texts[0]} Note {number}" for number in range(10)]
    more = Classifier(features="tfidf").fit([*texts[1:], *alone], labels[1:] + ["alone"] * 10)
    assert more.score_.copies_alone == ["alone"]
    assert (more.score_.documents, [one.label for one in more.score_.classes]) == (59, ["x", "y"])
    # Nothing else than copies: there is no score
    none = Classifier(features="tfidf").fit(alone + copies[1::60], ["x"] * 10 + ["y"] * 4)
    assert (none.score_.value, none.score_.copies_alone, none.scale_) == (None, ["x", "y"], 1)
    assert none.predict([texts[0], texts[1]]).tolist() == ["x", "y"]


def test_rare_classes_do_not_drag_the_probabilities_down():
    """More documents than are measured, in four classes and 100 of two: as sure of the four as without the 100."""
    generator = np.random.default_rng(0)
    targets = np.arange(1600) % 4
    centres = generator.normal(size=(104, 20)) / 2
    rare = np.repeat(np.arange(4, 104), 2)

    def points(of):
        return csr_matrix(centres[of] + generator.normal(size=(len(of), 20)))

    features, new = points(np.concatenate([targets, rare])), points(targets)
    for rows in (1600, 1800):
        classifier = Classifier("", "encoder")
        given = np.concatenate([targets, rare])[:rows]
        classifier.several_, classifier.classes_ = False, np.arange(given.max() + 1)
        classifier.fit_heads({"encoder": features[:rows]}, given)
        scores = new @ classifier.coefficients_ + classifier.intercepts_
        probabilities = probabilities_of(scores, classifier.scale_, 0, False)
        right = probabilities.argmax(axis=1) == targets
        assert probabilities.max(axis=1).mean() == pytest.approx(right.mean(), abs=0.05)


def test_each_class_has_its_recall_and_many_classes_choose():
    generator = np.random.default_rng(0)
    targets = np.repeat(np.arange(51), 60)
    centres = generator.normal(size=(51, 8))
    noise = csr_matrix(generator.normal(size=(len(targets), 8)))
    good = csr_matrix(centres[targets] + 0.3 * generator.normal(size=(len(targets), 8)))
    classifier = Classifier()
    classifier.several_, classifier.classes_ = False, np.arange(51)
    classifier.fit_heads({"words_and_tfidf": noise, "encoder": good}, targets)
    score = classifier.score_
    assert classifier.features_ == "encoder"
    assert set(score.choice) == {"words_and_tfidf", "encoder"}
    found = sum(one.found for one in score.classes)
    assert (sum(one.documents for one in score.classes), found / score.documents) == (
        score.documents, pytest.approx(score.value))  # fmt: skip
    assert score.baseline == pytest.approx(1 / 51, abs=0.005)
    # A class that looks like another is not found
    rows = csr_matrix(np.eye(2)[[0] * 90 + [1] * 10 + [0] * 10])
    classifier.classes_ = np.array(["a", "b", "rare"])
    classifier.fit_heads({"encoder": rows}, np.array([0] * 90 + [1] * 10 + [2] * 10))
    assert [(one.label, one.found, one.documents) for one in classifier.score_.classes] == [
        ("a", 90, 90), ("b", 10, 10), ("rare", 0, 10)]  # fmt: skip
    assert (classifier.score_.commonest, classifier.score_.baseline) == ("a", pytest.approx(90 / 110))


def test_an_encoder_that_cuts_its_vectors_classifies(tmp_path):
    encoder = shutil.copytree(ENCODER, tmp_path / "encoder")
    file = encoder / "config_sentence_transformers.json"
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | {"truncate_dim": 8}))
    for features in ("words_and_tfidf", "encoder"):
        classifier = Classifier(str(encoder), features).fit(TEXTS, LABELS)
        assert classifier.model_.truncate_dim == 8
        classifier.save(tmp_path / f"of {features}", include_encoder=True)
        again = Classifier.load(tmp_path / f"of {features}")
        np.testing.assert_allclose(again.predict_proba(NEW), classifier.predict_proba(NEW), atol=1e-6)


COLUMNS = {
    "tuple": tuple,
    "array": np.array,
    "generator": iter,
    "series": lambda cells: pandas.Series(cells, index=range(100, 100 + len(cells))),
    "filtered": lambda cells: pandas.Series(["left out", *cells])[1:],
    "text labels": lambda cells: pandas.Series(cells, index=[f"row {number}" for number in range(len(cells))]),
    "index": pandas.Index,
    "categorical": lambda cells: pandas.Series(cells, dtype="category"),
    "arrow": lambda cells: pyarrow.table({"cells": cells})["cells"],
    "arrow cells": lambda cells: list(pyarrow.array(cells)),
    "data set": lambda cells: datasets.Dataset.from_dict({"cells": cells})["cells"],
}


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_of_any_library_are_read_as_lists(column):
    texts, labels = zip(*((row["text"], row["label"]) for row in make_corpus(30)))
    pile, new = [row["text"] for row in make_corpus(10, seed=1)], [row["text"] for row in make_corpus(12, seed=2)]
    of, wanted = COLUMNS[column], Classifier("", features="tfidf").fit([*texts], [*labels], pile)
    classifier = Classifier("", features="tfidf").fit(of([*texts]), of([*labels]), of(pile))
    np.testing.assert_array_equal(classifier.predict_proba(of(new)), wanted.predict_proba(new))
    assert classifier.counts_ == wanted.counts_
    assert classifier.classes_.tolist() == wanted.classes_.tolist()


def test_the_order_of_the_documents_does_not_matter(fitted):
    order = np.random.default_rng(0).permutation(60)
    again = clone(fitted).fit([TEXTS[row] for row in order], [LABELS[row] for row in order])
    np.testing.assert_allclose(again.predict_proba(NEW), fitted.predict_proba(NEW), atol=1e-4)
    assert again.score_ == fitted.score_
    without_two = np.delete(fitted.predict_proba(NEW), [3, 4], axis=0)
    np.testing.assert_allclose(fitted.predict_proba(NEW[:3] + NEW[5:]), without_two, atol=1e-5)


def test_unlabelled_documents_teach_words_and_heads_read_words_as_of_new_documents(tmp_path):
    """Rows without a label count as documents; copies, and rows without text, count once or not."""
    texts, labels = [*TEXTS[:30], TEXTS[0], "", TEXTS[40]], [*LABELS[:30], LABELS[0], "kitchen", None]
    (tmp_path / "note.txt").write_text(TEXTS[50])
    (tmp_path / "again.txt").write_text(TEXTS[1])
    classifier = Classifier(ENCODER)
    everything = [*sorted(TEXTS[:30]), TEXTS[40], TEXTS[50]]
    classifier.seconds_ = {}
    features = classifier.fit_features(everything)
    model = load_encoder(ENCODER)
    vectors = model.encode(everything, normalize_embeddings=True)
    ridge = lexical_ridge.fit(model, everything, vectors)
    rows = vectors + ridge.facts.weight * ridge.leave_one_out()
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    width = rows.shape[1]
    np.testing.assert_allclose(features["words_and_tfidf"][:, :width].toarray(), rows, atol=1e-4)
    np.testing.assert_allclose(features["encoder"].toarray(), vectors, atol=1e-4)
    words = tfidf_counter().fit_transform(everything).toarray()
    np.testing.assert_allclose(features["encoder_and_tfidf"][:, width:].toarray(), words / 2, atol=1e-6)
    np.testing.assert_allclose(features["tfidf"].toarray(), words, atol=1e-6)
    np.testing.assert_allclose(
        classifier.features_of(NEW, "encoder").toarray(), model.encode(NEW, normalize_embeddings=True), atol=1e-4
    )
    directions = ridge.words(**ridge.words.preprocess(NEW)).numpy()
    both = model.encode(NEW, normalize_embeddings=True) + ridge.facts.weight * directions
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    np.testing.assert_allclose(classifier.features_of(NEW, "words_and_tfidf")[:, :width].toarray(), both, atol=1e-4)
    classifier.fit(texts, labels, documents=tmp_path)
    assert list(classifier.counts_.values()) == [30, 2, 0, 1, 1, 1, 0, 0, 0]
    assert classifier.self_trained_
    expected = fit_self_trained(
        features["words_and_tfidf"],
        encode_labels([(label,) for label in LABELS[:30]], False, 30)[1][np.argsort(TEXTS[:30])],
        3,
    )
    np.testing.assert_allclose(classifier.coefficients_, expected[0], atol=1e-3)


def test_of_a_large_pile_some_documents_are_drawn_whatever_their_order(monkeypatch):
    monkeypatch.setattr("docsplit.classifier.MOST_UNLABELLED", 20)
    pile = [row["text"] for row in make_corpus(60, seed=3)]
    fitted = [Classifier(ENCODER, "encoder").fit(TEXTS[:12], LABELS[:12], of) for of in (pile, pile[::-1])]
    assert [fitted[0].counts_[name] for name in ("unlabelled", "unlabelled that were not drawn")] == [20, 40]
    np.testing.assert_allclose(*(one.predict_proba(NEW) for one in fitted), atol=1e-4)


TWO = ["a", "b"] * 15


@pytest.mark.parametrize(
    ("texts", "labels", "features", "message"),
    [
        (TEXTS, ["a"] * 30, "auto", "There is one class in the labelled rows, a"),
        (TEXTS, ["a", "b"] * 14 + ["c", "a"], "auto", "These classes have one document: c"),
        (TEXTS, [None] * 30, "auto", "None of the 30 rows has a text and a label"),
        (TEXTS, [0.5 + row for row in range(30)], "auto", r"row 0 \(from 0\) of the labels is 0.5: labels are texts"),
        (TEXTS, [f"{row / 4}" for row in range(1, 31)], "auto", "numbers, such as 0.25"),
        (TEXTS, [["a"], "b"] * 15, "auto", "row 1 .* all documents have one label, or all have a list"),
        (TEXTS, [["a", "b"]] * 30, "auto", "has every class"),
        (TEXTS, [[1, 0], [0, 1]] * 15, "auto", r"\[1, 0\] and \[0, 1\] alone"),  # whose score was 100 %
        (TEXTS, ["a", "b"], "auto", "30 texts came with 2 labels"),
        ([" "] * 30, TWO, "auto", "None of the 30 rows has a text"),
        (TEXTS, TWO, "bert", "--features has no bert"),
        (["a", "b"] * 15, TWO, "tfidf", "These classes have one document: a, b"),  # which is there fifteen times
        (list("abcdefghij"), TWO[:10], "tfidf", "cannot be made"),
        (TEXTS[:6], TWO[:6], "words_and_tfidf", "cannot be made"),  # too few to learn words from
    ],
)
def test_what_cannot_be_learnt_from_is_one_line(texts, labels, features, message):
    with pytest.raises(ValueError, match=message) as failure:
        Classifier(ENCODER, features).fit(texts[:30], labels)
    assert "\n" not in str(failure.value)


def test_a_classifier_keeps_its_prompt_whatever_its_encoder_says_later(tmp_path):
    place = Path(shutil.copytree(ENCODER, tmp_path / "encoder"))
    fitted = Classifier(str(place), "encoder", prompt="sugar flour ").fit(TEXTS, LABELS)
    expected = fitted.predict_proba(NEW)
    assert np.abs(expected - Classifier(str(place), "encoder").fit(TEXTS, LABELS).predict_proba(NEW)).max() > 0.01
    fitted.save(tmp_path / "c")
    file = place / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": {"document": "harbour "}}))
    np.testing.assert_array_equal(Classifier.load(tmp_path / "c").predict_proba(NEW), expected)
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layer_norm_eps": 0.1}))
    with pytest.raises(ValueError, match="is another encoder"):
        Classifier.load(tmp_path / "c")


def test_damage_and_another_encoder_are_found(fitted, encoder, tmp_path):
    fitted.save(tmp_path / "c")
    names = [path for path in sorted((tmp_path / "c").rglob("*")) if path.is_file()]
    assert len(names) == 5
    for path in names:
        content = path.read_bytes()
        for damaged in (content[:-9], content[:60] + bytes([content[60] ^ 1]) + content[61:]):
            path.write_bytes(damaged)
            with pytest.raises(Damaged):
                Classifier.load(tmp_path / "c")
        path.write_bytes(content)
    with pytest.raises(ValueError, match="is another encoder"):
        Classifier.load(tmp_path / "c", encoder=str(encoder))
    with pytest.raises(ValueError, match="is no classifier"):
        Classifier.load(tmp_path)


def test_heads_are_those_of_scikit_learn():
    """With several labels: `tests.evaluation.heads.test_frozen`."""
    rows = np.random.default_rng(0).normal(size=(40, 5))
    for count in (2, 3):
        targets = np.arange(40) % count
        head = LogisticRegression(C=C, max_iter=1000).fit(rows, targets)
        coefficients, intercepts = fit_head(rows, targets, count)
        probabilities = probabilities_of(rows @ coefficients + intercepts, 1, 0, False)
        np.testing.assert_allclose(probabilities, head.predict_proba(rows), atol=1e-3)
    for present in ([0, 0, 0], [0, 1, 1]):  # of three classes, in a fold
        coefficients, intercepts = fit_head(rows[:3], np.array(present), 3)
        assert set((rows[:3] @ coefficients + intercepts).argmax(axis=1)) <= set(present)


def blobs(number, spread=1.0, seed=0):
    """Documents of three classes in eight dimensions, and their classes."""
    generator = np.random.default_rng(seed)
    targets = np.arange(number) % 3
    return (2 * np.eye(8)[targets] + spread * generator.normal(size=(number, 8))).astype(np.float32), targets


@pytest.mark.parametrize("number", [9, 150])  # documents without labels: as many as the weight 3 allows, and more
def test_self_training_equals_a_loop(number):
    rows, targets = blobs(9 + number)
    targets = np.where(targets[:9] == 2, 0, targets[:9])  # no document of the third class
    head = LogisticRegression(C=C, max_iter=1000).fit(rows[:9], targets)
    for _ in range(3):
        logits = np.outer(head.decision_function(rows[9:]), [0, 1])
        probabilities = probabilities_of(logits, 2, 0, False)
        weights = [max(row) for row in probabilities]
        weights = [min(weight, weight * 27 / sum(weights)) for weight in weights]
        given, guesses = np.vstack([rows[:9], rows[9:]]), [*targets, *(row.argmax() for row in probabilities)]
        head = LogisticRegression(C=C, max_iter=1000).fit(given, guesses, [1.0] * 9 + weights)
    coefficients, intercepts = fit_self_trained(rows, targets, 3)
    found = probabilities_of(rows @ coefficients + intercepts, 1, 0, False)
    np.testing.assert_allclose(found[:, :2], head.predict_proba(rows), atol=2e-3)
    np.testing.assert_allclose(found[:, 2], 0, atol=1e-6)
    others = csr_matrix(np.hstack([rows, np.eye(len(rows))]))
    space, weights = RowSpace.of(others), np.random.default_rng(0).normal(size=(len(rows), 3))
    np.testing.assert_allclose(others @ space.weights(weights), space.coordinates @ weights, atol=1e-3)


def test_cross_validation_leaves_out_a_pile_that_misleads():
    """What has no label lies apart from what has one, and is of one class wherever the head puts it."""
    rows, targets = blobs(66)
    pile, of_pile = blobs(150, seed=1)
    misleading = pile + 4 * np.roll(np.eye(8), 1, axis=0)[of_pile]
    for others, expected in ((pile, None), (misleading, False)):
        classifier = Classifier("", "encoder")
        classifier.several_, classifier.classes_ = False, np.arange(3)
        classifier.fit_heads({"encoder": csr_matrix(np.vstack([rows, others]))}, targets)
        values = classifier.score_.choice
        assert classifier.self_trained_ == (values["self-trained"] > values["encoder"])
        assert expected is None or classifier.self_trained_ == expected
        learnt_from = np.vstack([rows, others[: 150 * classifier.self_trained_]])
        np.testing.assert_allclose(
            rows @ classifier.coefficients_, rows @ fit_self_trained(learnt_from, targets, 3)[0], atol=0.05
        )
    classifier.fit_heads({"encoder": csr_matrix(np.vstack([rows[:30], misleading]))}, targets[:30])  # 10 a class
    assert (classifier.self_trained_, classifier.score_.choice) == (True, {})
    classifier.fit_heads({"tfidf": csr_matrix(np.vstack([rows[:30], pile]))}, targets[:30])  # does not group documents
    assert not classifier.self_trained_


def test_few_labels_leave_out_a_pile_that_the_encoder_cannot_read():
    """All of it lies at one place, as texts of another language do."""
    rows, targets = blobs(30, 0.3)
    pile = np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32) / 3
    classifier = Classifier("", "encoder")
    classifier.several_, classifier.classes_ = False, np.arange(3)
    classifier.fit_heads({"encoder": csr_matrix(np.vstack([rows, pile]) / 13)}, targets)
    assert not classifier.self_trained_
    assert classifier.score_.value == classifier.score_.choice["encoder"] == 1
    assert classifier.score_.choice["self-trained"] < 0.6
    expected = fit_head(rows / 13, targets, 3)[0]
    np.testing.assert_allclose(classifier.coefficients_, expected, atol=0.01)


def test_labels_that_were_exchanged_are_doubtful():
    rows, targets = blobs(600, 0.5)
    exchanged = np.random.default_rng(2).choice(600, 30, replace=False)
    labels = targets.copy()
    labels[exchanged] = (targets[exchanged] + 1) % 3
    classifier = Classifier("", "encoder")
    classifier.several_, classifier.classes_ = False, np.array(["a", "b", "c"])
    classifier.fit_heads({"encoder": csr_matrix(rows)}, labels)
    held = classifier.held_out_
    assert sorted(one.row for one in held) == list(range(600))
    assert all(one.label == "abc"[labels[one.row]] for one in held)
    assert np.mean([one.label == one.guess for one in held]) == classifier.score_.value
    doubtful = {one.row for one in held if one.is_doubtful}
    assert doubtful == {one.row for one in held if one.probability > 10 * one.of_label}
    assert len(doubtful & set(exchanged)) > 0.7 * len(exchanged)
    assert len(doubtful - set(exchanged)) < 0.1 * len(exchanged)


NAMES = [
    "harbour: a ship with a sail, a wharf and a captain in the storm",
    "kitchen: flour and dough in the oven, bread with butter and salt",
    "orchard: apple and pear on a branch, blossom, a ladder and cider",
]


def test_names_of_classes_label_what_nobody_labelled(tmp_path):
    classifier = Classifier(ENCODER).fit(documents=TEXTS, classes=NAMES)
    topics = [row["label"] for row in make_corpus(24, seed=1)]
    assert classifier.score(NEW, topics) > 0.9
    assert (classifier.score_.value, classifier.score_.commonest, classifier.held_out_) == (None, None, [])
    for of in classifier.examples_:
        given = dict(zip(TEXTS, classifier.predict_proba(TEXTS)))
        column = classifier.classes_.tolist().index(of.label)
        of_class = sorted((row[column], text) for text, row in given.items() if row.argmax() == column)
        assert of.documents == len(of_class)
        assert [text for _, text in of_class[:3]] == [text for text, _ in of.doubtful]
        assert [text for _, text in of_class[::-1][:3]] == of.typical
        for text, second in of.doubtful:
            assert classifier.classes_[given[text].argsort()[-2]] == second
    classifier.save(tmp_path / "c")
    np.testing.assert_array_equal(Classifier.load(tmp_path / "c").predict_proba(NEW), classifier.predict_proba(NEW))
    both = Classifier(ENCODER).fit(TEXTS[:12], LABELS[:12], TEXTS[12:], [*NAMES, "sky: stars"])
    assert both.classes_.tolist() == ["harbour", "kitchen", "orchard", "sky"]
    assert both.score_.documents == 12
    assert both.score_.copies_alone == []
    lines = [" kitchen : of\u00a0flour", "10:30", "\u200fpot: a", "https://x.org: b", "厨房：c", "", "z:"]
    assert [*lines_of_classes(lines)] == ["kitchen", "10:30", "pot", "https://x.org", "厨房", "z"]
    assert lines_of_classes(lines)["kitchen"] == "kitchen : of flour"
    one = Classifier(ENCODER).fit(TEXTS[:1], LABELS[:1], TEXTS[1:], NAMES)  # no second of any class
    assert (one.score_.value, one.score_.copies_alone, one.score_.commonest) == (None, [], LABELS[0])


@pytest.mark.parametrize(
    ("classes", "labels", "features", "message"),
    [
        (
            ["C01", "C02", "C03"],
            [],
            "auto",
            r"do not tell the documents apart .*: C01, C02, C03\. Say what each is about",
        ),
        (NAMES[:1], [], "auto", "names of 1 classes: give at least two"),
        ({"kitchen": "flour", "harbour": "a ship"}, [], "auto", "are a list of texts"),  # whose texts were left out
        ([*NAMES, ": sky"], [], "auto", "do not have one: : sky"),
        ([*NAMES, "kitchen"], [], "auto", "do not have one: kitchen: flour"),
        (NAMES, ["cellar"], "auto", r"no names of classes: cellar\. The names are harbour, kitchen, orchard"),
        (NAMES, [["kitchen"]], "auto", "for documents with one label each"),
        (NAMES, [], "tfidf", "read by an encoder"),
    ],
)
def test_names_that_say_nothing_are_refused(classes, labels, features, message):
    with pytest.raises(ValueError, match=message):
        Classifier(ENCODER, features).fit(TEXTS[: len(labels)], labels, TEXTS, classes)


def test_names_that_mean_something_else_than_the_labels_are_said(caplog):
    said = "The names alone find 0 of 30 labelled documents"
    others = [f"{one.split(':')[0]}:{two.split(':')[1]}" for one, two in zip(NAMES, NAMES[1:] + NAMES[:1])]
    for names in (NAMES, others):
        Classifier(ENCODER).fit(TEXTS[:30], LABELS[:30], TEXTS, names)
        assert (said in caplog.text) == (names is others)


def test_names_need_documents_beside_them():
    """Without any, whose mean is the centre, all weights were NaN."""
    with pytest.raises(ValueError, match="and there are 9: give 10 or more"):
        Classifier(ENCODER).fit(TEXTS[:2], LABELS[:2], TEXTS[2:9], NAMES)


def test_what_to_label_next_is_typical_then_doubtful(monkeypatch, caplog):
    """Documents of five themes; two have labels. Then a document of two themes, which no label has settled."""
    themes = ["boat sail harbour", "flour oven bread", "goal match league", "tax law court", "star moon orbit"]
    generator = np.random.default_rng(0)
    pile = [
        " ".join([*generator.permutation(theme.split() * 3), f"n{number}{copy}"])
        for number, theme in enumerate(themes)
        for copy in range(12)
    ]
    labelled, labels = [pile[row] for row in (0, 1, 12, 13)], ["sea", "sea", "kitchen", "kitchen"]
    classifier = Classifier(features="tfidf").fit(labelled, labels, pile)
    found = classifier.to_label([*pile, " ", pile[20]], 3)
    assert sorted(row // 12 for row, _, _ in found) == [2, 3, 4]  # a cluster without a label each
    for row, label, probability in found:
        given = classifier.predict_proba([pile[row]])[0]
        assert (label, probability) == (classifier.classes_[given.argmax()], pytest.approx(given.max()))
    rows = [row for row, _, _ in classifier.to_label(pile, 100)]
    assert sorted(rows) == sorted(set(range(60)) - {0, 1, 12, 13})  # each once, and none that has a label
    # Of many documents some are drawn, and all that have a label stay known
    monkeypatch.setattr("docsplit.classifier.MOST_UNLABELLED", 40)
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr("docsplit.classifier.next_to_label", lambda features, of, labelled, *_: np.flatnonzero(labelled))
        assert sorted(row for row, _, _ in classifier.to_label(pile, 3)) == [0, 1, 12, 13]
    assert "16 documents without a label were not looked at: 40 are drawn by chance." in caplog.text
    monkeypatch.setattr("docsplit.classifier.TYPICAL", 1)
    between = [f"boat sail oven flour m{number}" for number in range(3)]
    ((doubtful, _, _),) = classifier.to_label([*pile[:24], *between], 1)
    assert doubtful >= 24
    for known in (labelled, [], ["", " "]):
        assert classifier.to_label(known, 3) == []
    assert [row for row, _, _ in classifier.to_label([*labelled, pile[20]], 3)] == [4]


def test_scores_become_probabilities():
    """A head that is three times as sure as it may be is put right; folds of several labels are plain ones."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4000, 3)) * 2
    targets = np.array([generator.choice(3, p=row) for row in probabilities_of(logits, 1, 0, False)])
    assert calibration(3 * logits, targets)[0] == pytest.approx(1 / 3, rel=0.1)
    both = (generator.random((4000, 3)) < probabilities_of(logits, 1, -1, True)).astype(int)
    scale, shift = calibration(3 * logits, both)
    assert (3 * scale, shift) == pytest.approx((1, -1), rel=0.1)
    assert 1 < calibration(np.eye(3), np.arange(3))[0] < 5  # three documents make nothing sure


def test_micro_f1_of_folds_is_that_of_a_loop():
    generator = np.random.default_rng(1)
    targets = (generator.random((50, 3)) < 0.4).astype(int)
    rows = np.concatenate([targets, targets[:, :2]], axis=1) + generator.normal(size=(50, 5))
    classifier = Classifier("", "encoder")
    classifier.several_, classifier.classes_ = True, np.arange(3)
    classifier.fit_heads({"encoder": csr_matrix(rows)}, targets)
    scores, given = np.empty((50, 3)), np.empty((50, 3), dtype=bool)
    folds = list(KFold(5, shuffle=True, random_state=0).split(rows))
    for train, held in folds:
        for label in range(3):
            head = LogisticRegression(C=C, max_iter=1000).fit(rows[train], targets[train, label])
            scores[held, label] = head.decision_function(rows[held])
    for train, held in folds:
        scale = LogisticRegression().fit(scores[train].reshape(-1, 1), targets[train].ravel())
        given[held] = scale.predict(scores[held].reshape(-1, 1)).reshape(-1, 3)
    assert classifier.score_.value == pytest.approx(2 * (given & targets).sum() / (given.sum() + targets.sum()))


def test_a_table_of_0_and_1_is_several_labels_and_copies_with_other_labels_are_said(caplog):
    texts = [f"milk {number} cow" for number in range(6)] + [f"fuel {number} car" for number in range(6)]
    table = np.array([[1, 0]] * 6 + [[0, 1]] * 6)
    classifier = Classifier(features="tfidf").fit(texts, table)
    assert classifier.predict(["milk cow", "fuel car", " "]) == [[0], [1], []]
    assert classifier.predict({"milk cow": 1, "fuel car": 2}.keys()) == [[0], [1]]
    for wrong in ("milk cow", {"milk cow"}, {"milk cow": "a"}):
        with pytest.raises(ValueError, match="give a list"):
            classifier.predict(wrong)
    copies = [texts[0]] * 2 + [f" {texts[1]}"]
    classifier = Classifier(features="tfidf").fit([*texts, *copies], ["a"] * 6 + ["b"] * 6 + ["b", "a", "b"])
    assert classifier.predict(["milk cow", "", None]).tolist() == ["a", None, None]
    assert list(classifier.counts_.values())[:8] == [11, 0, 0, 0, 0, 3, 1, 1]
    with pytest.raises(ValueError, match="unsure is nan: give a probability"):
        classifier.predict(texts, unsure=math.nan)
    assert "2 texts had several labels: 1 took the majority's, 1 left out as ties." in caplog.text


@pytest.mark.parametrize("labels", [[True, False], [2**63 + 1, 2**63 + 3], ["cafe\u0301", "th\u00e9"]])
def test_classes_are_exact_and_come_back_as_they_are(tmp_path, labels):
    texts = [f"milk {number} cow" for number in range(6)] + [f"fuel {number} car" for number in range(6)]
    classifier = Classifier(features="tfidf").fit(texts, [label for label in labels for _ in range(6)])
    classifier.save(tmp_path / "c")
    for one in (classifier, Classifier.load(tmp_path / "c")):
        assert one.predict(["milk cow", "fuel car"]).tolist() == [unicodedata.normalize("NFC", label) if isinstance(
            label, str) else label for label in labels]  # fmt: skip
        composed = one.predict_proba(["lait du caf\u00e9 cow"])
        np.testing.assert_array_equal(one.predict_proba(["lait du cafe\u0301 cow"]), composed)


def test_paths_are_no_texts(fitted, tmp_path):
    (tmp_path / "a.txt").write_text(TEXTS[0])
    paths = [str(tmp_path / "a.txt")] * 2
    for given in (tmp_path, paths, [tmp_path], {"a": paths[0]}.values()):
        with pytest.raises(ValueError, match=r"The documents are paths, such as .*: give their texts"):
            fitted.predict(given)
    with pytest.raises(ValueError, match="The documents are paths"):
        Classifier(features="tfidf").fit(paths, ["a", "b"])
    with pytest.raises(ValueError, match="The documents are paths"):
        list(documents_of(paths))
    for texts in ([*paths, TEXTS[0]], ["."], ["/", ".."], []):
        assert len(fitted.predict(texts)) == len(texts)


def test_predictions_leave_nothing_on_disk_and_whoever_may_read_the_folder_may_read_it(
    fitted, tmp_path, monkeypatch, request
):
    """A tempfile and safetensors write for the user alone."""
    request.addfinalizer(partial(os.umask, os.umask(0o027)))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", "/dev/null/nowhere")
    fitted.save(tmp_path / "c")
    Classifier.load(tmp_path / "c").predict(NEW)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "c").rglob("*")}
    assert modes == {name: 0o750 if name in ("words", "encoder") else 0o640 for name in modes}
