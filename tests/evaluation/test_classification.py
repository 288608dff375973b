"""Classification: which rows there are, what a head is trained by, and what fails before any long work."""

import numpy as np
import pytest

from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.embedding import encoder as encoder_module
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.encoder_arguments import EncoderArguments
from docsplit.evaluation import classification
from docsplit.evaluation.classification import Classification, head_of
from docsplit.evaluation.heads.frozen import HeadOutput, knn, linear
from docsplit.evaluation.heads.presets import PRESETS
from docsplit.evaluation.task_arguments import ProbeArguments
from tests.evaluation.heads.examples import make_split


@pytest.fixture
def split():
    return make_split(train=60, test=30)


@pytest.fixture
def evaluation(split):
    """Make an evaluation of these documents, with options of `ProbeArguments`."""

    def make(**options):
        few = {"shots": [2], "num_draws": 3, "num_seeds": 2, "seed": 0}
        made = Classification(LabelledArguments(train_file="train.jsonl"), ProbeArguments(**(few | options)))
        made.split = split
        return made

    return make


@pytest.fixture
def trainings(monkeypatch, split):
    """Names of the heads that would have trained the encoder, with the number of their runs."""
    made = []

    def trained(head):
        def train(start, split, runs, *rest, **options):
            assert start.load() is not start.load()  # fresh ones each time, of the encoder that is loaded
            made.append((head, len(runs)))
            scores = np.tile(np.eye(len(split.class_names), dtype=np.float32)[split.test_labels], (len(runs), 1, 1))
            return HeadOutput(scores, 1.0, trainable_parameters=1)

        return train

    for head in ("finetune", "setfit"):
        monkeypatch.setattr(classification, head, trained(head))
    return made


def places(results):
    return [(result.head, result.info["features"], result.shots) for result in results]


def test_a_preset_says_how_mlp_and_linear_are_trained_and_nothing_of_others():
    for name in ("mlp", "linear"):
        function, preset = head_of(name, "bregman")
        assert (function.keywords["training"], preset) == (getattr(PRESETS["bregman"], name), "bregman")
    assert head_of("knn", "bregman") == (knn, None)
    assert head_of("linear", "docsplit") == (linear, "docsplit")
    assert head_of("linear", "bregman", is_sparse=True) == (linear, "docsplit")


@pytest.mark.parametrize(
    ("options", "names", "message"),
    [
        ({"shots": [2, 50]}, ["some"], "50"),
        ({"heads": ["mlp"]}, ["tfidf", "some"], "tfidf has the heads linear, knn: add one of them to --heads"),
        ({"heads": ["finetune"], "finetune_batch_size": 0}, ["some"], "batch"),
    ],
)
def test_what_cannot_work_fails_before_any_encoder_is_loaded(evaluation, options, names, message):
    with pytest.raises(ValueError, match=message):
        evaluation(**options).check(EncoderArguments(names))


def slow_knn(train, labels, test, num_classes):
    """The class of most of the ten nearest training documents by cosine, the first of several."""
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (train, test)]
    nearest = np.argsort(-(unit[1] @ unit[0].T), axis=1)[:, :10]
    return np.array([np.bincount(labels[rows], minlength=num_classes).argmax() for rows in nearest])


def test_accuracy_is_that_of_the_encoders_own_vectors_raw_and_standardised(evaluation, encoder, split):
    one = Encoder(str(encoder), EncoderArguments([str(encoder)], dtype="float32"))
    results = evaluation(heads=["knn"], shots=[]).measure("ours", one, is_main=True)
    train, test = (one.embed(texts) for texts in (split.train_texts, split.test_texts))
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    by_hand = [(train, test), ((train - mean) / deviation, (test - mean) / deviation)]
    for result, (of_train, of_test) in zip(results, by_hand, strict=True):
        chosen = slow_knn(of_train, split.train_labels, of_test, len(split.class_names))
        assert result.of_runs("accuracy") == pytest.approx([np.mean(chosen == split.test_labels)])


def test_heads_that_train_the_encoder_read_beginnings_and_cost_no_embedding(
    evaluation, encoder, trainings, monkeypatch
):
    options = EncoderArguments([str(encoder)], dtype="float32", long_documents="chunk_mean", smooth_neighbours=3)
    made, one = evaluation(heads=["finetune", "knn", "setfit"], shots=[2, 4]), Encoder(str(encoder), options)
    monkeypatch.setattr(encoder_module, "load_encoder", None)  # it is loaded once, whatever is done with it
    results = made.measure(str(encoder), one, is_main=True)
    tuned = [result for result in results if result.head != "knn"]
    assert places(tuned) == [("finetune", "raw", None), ("setfit", "raw", 2), ("setfit", "raw", 4)]
    assert trainings == [("finetune", 2), ("setfit", 3), ("setfit", 3)]
    kinds = ("long_documents", "embedding_seconds", "smooth_neighbours")
    assert {tuple(result.info[kind] for kind in kinds) for result in tuned} == {("truncate", None, 0)}
    assert {result.info["long_documents"] for result in results if result.head == "knn"} == {"chunk_mean"}


def test_the_probes_heads_have_as_many_epochs_as_are_given(evaluation, encoder, split, monkeypatch):
    trained = []

    def mlp(data, training):
        trained.append((training.hidden_layer, training.max_epochs))
        scores = np.tile(np.eye(data.num_classes, dtype=np.float32)[split.test_labels], (len(data.runs), 1, 1))
        return HeadOutput(scores, 1.0, trainable_parameters=1)

    monkeypatch.setattr(classification, "mlp", mlp)
    one = Encoder(str(encoder), EncoderArguments([str(encoder)], dtype="float32"))
    for epochs, expected in ((None, 30), (7, 7)):
        trained.clear()
        options = {"heads": ["mlp", "linear"], "probe_preset": "bregman", "probe_epochs": epochs}
        evaluation(**options).measure("ours", one, is_main=True)
        assert set(trained) == {(True, expected), (False, expected)}
