"""Adapting: from texts and files to a folder that loads anywhere, gives the formula, and is whole or absent."""

import json
import os
import resource
import shutil
import signal
import subprocess
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from tokenizers import Tokenizer

from docsplit import AdaptOptions, adapt
from docsplit.data.copies import document_id, sketch
from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE, TrainingDocuments, training_documents_of
from docsplit.data.sets.labelled import LabelledSplit, load_probe
from docsplit.embedding import closed_form, lexical_ridge
from docsplit.embedding.lexical_ridge import RidgeSettings, fit
from docsplit.evaluation.heads.frozen import PROBE_C, probe_accuracy
from docsplit.modeling.loading import load_encoder, words_of
from docsplit.release.records import ADAPTATION_FILE, Adaptation, Candidate, StartRecord
from docsplit.runtime.vectors import unit
from docsplit.training import adapting
from docsplit.training.adapting import (
    ADAPT_FOLDS,
    Side,
    Variant,
    best,
    measure,
    save_variant,
    train,
    working_folder,
    write,
)
from modeling_docsplit import DocSplitForContrastivePretraining
from tests.conftest import make_corpus, weights_of
from tests.modeling.test_checked_files import assert_equal
from tests.processes import Script, run, wait_until

CORPUS = [row["text"] for row in make_corpus(120, seed=5)]
TEXTS = [*CORPUS, "", CORPUS[0] + " ", " \n"]  # a copy, and two without text
NEW = ["Bread and butter.", "", "☃", "ship " * 40 + "storm."]
RECIPE = {"max_steps": 2, "per_device_train_batch_size": 4, "objective": "neighbour_distillation", "view": "simcse"}
RECIPE |= {"mlm_weight": 0, "use_cpu": True, "disable_tqdm": True}


def options(**given):
    return AdaptOptions(**{"dtype": "float32"} | given)


def load(folder):
    return load_encoder(str(folder), device="cpu")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def slow_words(encoder, sublinear, texts):
    """Return r of texts by words fitted to TEXTS, for each text its tokens one after another."""
    model = load(encoder)
    ridge = fit(model, CORPUS, model.encode(CORPUS), RidgeSettings(sublinear=sublinear))
    dense = ridge.features.toarray()
    idf = np.log((1 + len(CORPUS)) / (1 + (dense > 0).sum(axis=0))) + 1
    table = dict(zip(ridge.words.pieces.tolist(), ridge.coefficients * idf[:, None]))
    rows = []
    for text in texts:
        counts = Counter(model.tokenizer(text.strip(), add_special_tokens=False)["input_ids"])
        vectors = [
            (1 + np.log(count) if sublinear else count) * table[token]
            for token, count in counts.items()
            if token in table
        ]
        rows.append(unit(np.sum(vectors, axis=0)[None])[0] if vectors else np.zeros(32))
    return np.array(rows)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of documents, in a file of texts and one of rows, labelled ones, and a recipe of two steps."""
    place = tmp_path_factory.mktemp("place")
    (place / "documents.txt").write_text("\n".join(CORPUS))
    (place / "documents.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in TEXTS))
    (place / "labelled.jsonl").write_text("\n".join(json.dumps(row) for row in make_corpus(150)))
    (place / "tiny.yaml").write_text(json.dumps(RECIPE))
    return place


@pytest.fixture(scope="module")
def worded(reads_little, tmp_path_factory):
    """What came out of adapting by default, which several tests look at."""
    return adapt(str(reads_little), TEXTS, tmp_path_factory.mktemp("worded") / "out", options())


@pytest.fixture(scope="module")
def static(reads_little, tmp_path_factory):
    return adapt(reads_little, TEXTS, tmp_path_factory.mktemp("static") / "out", options(static=True))


# --- Documents and options ---


@pytest.mark.parametrize(
    ("documents", "given", "problem"),
    [
        (CORPUS[:19] + TEXTS[-2:], {}, "19 distinct documents with text, of 21, are too few to adapt to: give 20"),
        ([*CORPUS, None, 3], {}, "is a NoneType: give texts"),
        ("no/such/folder", {}, "no/such/folder"),
        (TEXTS, {"max_seq_length": 1000}, "--max_seq_length is 1000, but .* has positions for 128 tokens"),
        (
            TEXTS,
            {"probe_corpus": "labelled.jsonl", "probe_label_column": "topic"},
            "--label_column is 'topic', but the columns",
        ),
        (TEXTS, {"penalty": float("nan")}, "--penalty nan: give a number above 0"),
        (TEXTS, {"neighbours": -1}, "--neighbours -1: give a number of at least 0"),
        (TEXTS, {"recipe": "docsplit"}, "--recipe docsplit is for --train: add it"),
        (TEXTS, {"train": True, "recipe": "no_such"}, "no_such.*adapt"),  # the recipes that there are
        (TEXTS, {"hub_model_id": "a/b"}, "--hub_model_id names where --push_to_hub uploads to: add that"),
    ],
)
def test_what_cannot_be_adapted_to_is_refused_in_a_line(
    documents, given, problem, reads_little, place, tmp_path, monkeypatch
):
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match=problem) as failure:
        adapt(str(reads_little), documents, tmp_path / "out", options(**given))
    assert "\n" not in str(failure.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("documents", "given", "problem"),
    [
        (CORPUS[:19] + TEXTS[-2:], {}, "19 distinct documents with text, of 21, are too few to adapt to: give 20"),
        (
            [chr(0x4E00 + number) for number in range(30)],
            {},
            "No token is in two of the 30 documents: there are no words to learn from",
        ),
        (TEXTS, {"static": True, "neighbours": 3}, "no encoder that --neighbours, --static could change: leave that"),
    ],
)
def test_what_nothing_cannot_be_made_of_is_refused_in_a_line(documents, given, problem, tmp_path):
    with pytest.raises(ValueError, match=problem) as failure:
        adapt("none", documents, tmp_path / "out", AdaptOptions(**given))
    assert "\n" not in str(failure.value)
    assert names(tmp_path) == []


# --- What is made ---


def test_an_encoder_from_nothing_is_the_closed_form_and_tells_topics_apart(tmp_path):
    rows = make_corpus(90)
    adapted = adapt("none", [*(row["text"] for row in rows), "", rows[0]["text"]], tmp_path / "out")
    new = make_corpus(30, seed=1)
    vectors = SentenceTransformer(str(adapted.output), device="cpu").encode([row["text"] for row in new] + ["", "zzz"])
    words, facts = closed_form.fit_to_texts([row["text"] for row in rows])
    np.testing.assert_allclose(vectors[:30], words(**words.preprocess([row["text"] for row in new])), atol=1e-5)
    assert not vectors[30:].any()
    labels = np.array([row["label"] for row in new])
    near, same = vectors[:30] @ vectors[:30].T, labels[:, None] == labels
    assert near[same].mean() > near[~same].mean() + 0.5
    record = Adaptation.read(adapted.output)
    assert (record.kind, record.of_halves) == ("closed form", replace(facts, empty=1, duplicates=1))
    seen = training_documents_of(str(adapted.output))
    assert (len(seen.run), seen.is_complete) == (90, True)
    with pytest.raises(ValueError, match="out holds the words alone of none: adapt that encoder"):
        adapt(adapted.output, TEXTS, tmp_path / "again")


def test_an_encoder_with_words_gives_the_formula_wherever_it_is_loaded(worded, reads_little):
    assert (worded.kept, worded.weight) == ("words", 1.0)
    assert (worded.facts.documents, worded.facts.empty, worded.facts.duplicates) == (120, 2, 1)
    start = SentenceTransformer(str(reads_little), device="cpu")
    texts = [*CORPUS, *NEW]
    plain, words = start.encode(texts), slow_words(reads_little, True, texts)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    expected = np.where(words.any(axis=1, keepdims=True), unit(unit(plain) + words) * lengths, plain)
    for model in (SentenceTransformer(str(worded.output), device="cpu", trust_remote_code=True), load(worded.output)):
        np.testing.assert_allclose(model.encode_document(texts), expected, atol=2e-5)
        np.testing.assert_allclose(model.encode(texts), expected, atol=2e-5)
        np.testing.assert_allclose(model.encode_query(texts), plain, atol=1e-6)
    assert np.abs(expected - plain).max() > 0.1
    assert_equal(weights_of(reads_little), weights_of(worded.output))


def test_a_static_encoder_is_a_mean_of_token_vectors(static, reads_little):
    assert (static.kept, static.weight, static.facts.sublinear) == ("static", None, False)
    model = SentenceTransformer(str(static.output), device="cpu")
    table = load_file(static.output / "model.safetensors")["embeddings"].numpy()
    tokenizer = Tokenizer.from_file(str(static.output / "tokenizer.json"))
    texts, means = [*CORPUS, *NEW], []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        means.append(np.mean([table[token] for token in ids], axis=0) if ids else np.zeros(32))
    vectors = model.encode_document(texts)
    np.testing.assert_allclose(vectors, unit(np.array(means)), atol=1e-5)
    np.testing.assert_allclose(vectors, slow_words(reads_little, False, texts), atol=2e-5)
    np.testing.assert_allclose(model.encode_query(texts), vectors, atol=1e-6)
    assert not vectors[len(CORPUS) + 1].any()
    assert np.abs(vectors - slow_words(reads_little, True, texts)).max() > 1e-3


def test_a_static_folder_is_no_start(static, tmp_path):
    with pytest.raises(ValueError, match=r"holds the words alone of reads_little.*: adapt that encoder"):
        adapt(str(static.output), TEXTS, tmp_path / "second", options())
    with pytest.raises(ValueError, match=r"is a static encoder, .*: start from the encoder that it was made of"):
        DocSplitForContrastivePretraining.from_pretrained(static.output)


def test_options_of_the_encoder_are_written_with_it_and_words_weigh_what_they_explain(
    reads_little, tmp_path, monkeypatch
):
    monkeypatch.setattr(lexical_ridge.RidgeFacts, "share_explained", 0.1)
    given = options(prompt="ship: ", query_prompt="sail: ", max_seq_length=20, penalty=2.0)
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", given)
    model, record = load(tmp_path / "out"), Adaptation.read(tmp_path / "out")
    assert (model.max_seq_length, model.prompts) == (20, {"document": "ship: ", "query": "sail: "})
    assert (record.facts.penalty, tuple(record.facts.shares_explained)) == (2.0, (2.0,))
    assert model[-1].weight == adapted.weight == adapted.facts.weight == 0.5


def test_words_of_other_documents_are_replaced(worded, reads_little, tmp_path):
    """What a folder learnt of its first documents is gone after the second."""
    others = [row["text"].replace("ship", "zebra") for row in make_corpus(60, seed=9)]
    adapt(str(reads_little), others, tmp_path / "first", options())
    adapt(str(tmp_path / "first"), TEXTS, tmp_path / "second", options())
    first, second, alone = (
        load(path).encode(NEW) for path in (tmp_path / "first", tmp_path / "second", worded.output)
    )
    np.testing.assert_allclose(second, alone, atol=1e-6)
    assert np.abs(first - second).max() > 1e-3


def test_where_words_explain_nothing_the_encoder_is_written_with_a_warning(
    reads_little, tmp_path, monkeypatch, caplog
):
    def random_vectors(model, texts, **_):
        return np.random.default_rng(0).normal(size=(len(texts), 32)).astype(np.float32), None

    monkeypatch.setattr(adapting, "embed_documents", random_vectors)
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", options())
    assert (adapted.kept, adapted.weight, adapted.facts) == ("start", None, None)
    assert f"Words explain nothing of the vectors of {reads_little}" in caplog.text
    files = [folder / "model.safetensors" for folder in (tmp_path / "out", reads_little)]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ValueError, match=r"Words explain nothing .* leave out --static, or give more documents"):
        adapt(str(reads_little), TEXTS, tmp_path / "static", options(static=True))
    assert names(tmp_path) == ["out"]


# --- Labelled documents ---


def test_what_is_best_on_labelled_documents_is_written(reads_little, place, tmp_path, caplog):
    caplog.set_level("INFO")
    split = load_probe(str(place / "labelled.jsonl"))
    documents = [*TEXTS, *split.train_texts[:7], *split.validation_texts[:4], *split.test_texts[:5]]
    given = options(probe_corpus=str(place / "labelled.jsonl"))
    adapted = adapt(str(reads_little), documents, tmp_path / "out", given)
    measured_on = len({document_id(text) for text in [*split.validation_texts, *split.test_texts]})
    left_out = f"9 of {len(documents)} documents are left out: they are among the {measured_on} validation and test"
    assert left_out in caplog.text
    assert caplog.text.count("Words of 127 documents") == 2
    assert f"{len(split.train_texts) + len(split.validation_texts)} documents of --probe_corpus choose" in caplog.text
    # Five candidates, of which the best is written
    labels = [candidate.label for candidate in adapted.candidates]
    assert labels == ["start", "words", "words, weight 0.5", "words, weight 2", "static"]
    scores = [one.validation["5shot_accuracy"] + one.validation["accuracy"] for one in adapted.candidates]
    chosen = adapted.candidates[scores.index(max(scores))]
    assert (adapted.kept, adapted.weight) == (chosen.name, chosen.weight)
    assert (adapted.kept, adapted.facts.sublinear) == ("static", False)
    # The start, measured on its own vectors
    start = SentenceTransformer(str(reads_little), device="cpu")
    vectors = {part: start.encode(texts) for part, texts in split.texts.items()}
    expected = probe_accuracy(split, vectors)["test"]
    assert adapted.candidates[0].test["5shot_accuracy"] == pytest.approx(expected["5shot_accuracy"])
    # By each third of the other documents once, as scikit-learn does it
    points = np.concatenate([vectors["train"], vectors["validation"]])
    labels = np.concatenate([split.train_labels, split.validation_labels])
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    by_c = [cross_val_score(LogisticRegression(C=c, max_iter=1000), points, labels, cv=folds) for c in PROBE_C]
    assert adapted.candidates[0].validation["accuracy"] == pytest.approx(np.max(by_c, axis=0).mean(), abs=0.01)


@pytest.mark.parametrize(
    ("given", "accuracies", "kept", "warning"),
    [
        ({"static": True}, [0.9, 0.2, 0.2, 0.2, 0.1], "static", "--static writes static encoders alone, though start"),
        ({"max_seq_length": 8}, [0.5] * 5, "start", "Keep what you had: nothing is better than the start"),
    ],
)
def test_words_alone_or_the_start_are_written_with_a_warning(
    given, accuracies, kept, warning, reads_little, place, tmp_path, monkeypatch, caplog
):
    left = iter(np.repeat(accuracies, ADAPT_FOLDS + 1))  # and on the test part

    def probe_accuracy(split, features):
        accuracies = {"5shot_accuracy": next(left), "accuracy": 0.5}
        return {"validation": accuracies, "test": accuracies}

    monkeypatch.setattr(adapting, "probe_accuracy", probe_accuracy)
    given = options(probe_corpus=str(place / "labelled.jsonl"), **given)
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", given)
    assert warning in caplog.text
    assert (adapted.kept, adapted.weight, adapted.facts.sublinear) == (kept, None, kept == "start")  # tried, or kept
    assert not list((tmp_path / "out").glob("words*"))
    assert load(tmp_path / "out").max_seq_length == (8 if kept == "start" else np.inf)


def split_of(labelled):
    """Labelled documents; the second half of the training documents are documents, too."""
    return LabelledSplit(
        train_texts=[*labelled[:6], *CORPUS[10:16]], train_labels=np.arange(12) % 2, class_names=["a", "b"],
        validation_texts=labelled[6:14], validation_labels=np.arange(8) % 2,
        test_texts=[*labelled[14:22], ""], test_labels=np.arange(9) % 2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def side(reads_little):
    """The start with vectors of any length, words of both kinds, and labelled documents."""
    model = load(reads_little)
    vectors = 2 * model.encode(CORPUS[:40])
    ridges = {
        kind: fit(model, CORPUS[:40], vectors, RidgeSettings(0.5, 3, sublinear=kind == "words"))
        for kind in ("words", "static")
    }
    split = split_of([row["text"] for row in make_corpus(24, seed=3)])
    probe = {part: 2 * model.encode(texts) for part, texts in split.texts.items()}
    return Side("start", str(reads_little), model, vectors, probe, ridges=ridges), split


def test_candidates_are_measured_with_words_that_have_not_seen_the_document(side, monkeypatch):
    start, split = side
    seen, documents = [], CORPUS[:40]

    def slow(kind, text):
        """For a document that words were fitted on by a solution without it, for others by that of all."""
        ridge = start.ridges[kind]
        if text not in documents:
            return ridge.words(**ridge.words.preprocess([text])).numpy()[0]
        dense, row = ridge.features.toarray().astype(np.float64), documents.index(text)
        others, targets = np.delete(dense, row, axis=0), np.delete(ridge.targets, row, axis=0)
        solution = np.linalg.solve(others.T @ others + 0.5 * np.eye(dense.shape[1]), others.T @ targets)
        return unit(dense[row : row + 1] @ solution)[0]

    def probe_accuracy(split, features):
        if "test" in features:
            seen.append(features)
        return {part: {"accuracy": float(len(seen)), "5shot_accuracy": 0.0} for part in ("validation", "test")}

    monkeypatch.setattr(adapting, "probe_accuracy", probe_accuracy)
    monkeypatch.setattr(adapting, "TEXTS_PER_CHUNK", 7)
    variants = [Variant(start, "plain"), Variant(start, "words", 0.5), Variant(start, "static")]
    measured = measure(variants, split, documents)
    assert [(one.name, one.weight, one.validation["accuracy"]) for one in measured] == [
        ("start", None, 0.0), ("words", 0.5, 1.0), ("static", None, 2.0)
    ]  # fmt: skip
    for part, texts in split.texts.items():
        plain, (words, static) = (
            start.probe[part],
            [np.array([slow(kind, text) for text in texts]) for kind in ("words", "static")],
        )
        lengths = np.linalg.norm(plain, axis=1, keepdims=True)
        worded = np.where(words.any(axis=1, keepdims=True), unit(unit(plain) + 0.5 * words) * lengths, plain)
        for features, vectors in zip(seen, [plain, worded, static], strict=True):
            np.testing.assert_allclose(features[part], vectors, atol=1e-5)
    assert not seen[-1]["test"][-1].any()  # of a text without words


def test_the_best_is_chosen_by_both_accuracies_and_the_first_of_equals():
    def candidate(few, every, test):
        scores = ({"5shot_accuracy": a, "accuracy": b} for a, b in ((few, every), (test, test)))
        return Candidate("one", None, *scores)

    variants = [Variant(SimpleNamespace(name=name), "plain") for name in "abcd"]
    scores = [candidate(0.5, 0.8, 0.9), candidate(0.7, 0.5, 0.1), candidate(0.5, 0.9, 0.2), candidate(0.5, 0.9, 0.9)]
    assert best(variants, scores) is variants[2]
    assert best(variants[:2], scores[:2]) is variants[0]


# --- The folder ---


def write_folder(output, variant, **given):
    facts = variant.ridge.facts if variant.ridge else None
    record = Adaptation(variant.kind, variant.name, variant.weight, "e", StartRecord(None), "d", True, facts)
    with working_folder(output, True) as work:
        write(output, work, record, lambda new: save_variant(variant, new, CORPUS[:40], options(**given)))


@contextmanager
def files_of_at_most(size):
    """No file grows beyond this number of bytes: as on a full disk, writing ends with an error in the middle."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_exists_is_refused_unless_it_is_an_empty_folder(side, tmp_path):
    full, file, empty, work = (tmp_path / name for name in ("full", "file", "empty", ".out.partial"))
    for folder in (full, work):
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    file.write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt is of no run of adapt\.py"):
        write_folder(tmp_path / "out", Variant(side[0], "static"))
    assert names(work) == ["notes.txt"]
    shutil.rmtree(work)
    for path in (full, file):
        with pytest.raises(ValueError, match="is there already: name another OUTPUT"):
            write_folder(path, Variant(side[0], "static"))
    with pytest.raises(OSError, match=r"out\.partial cannot be written: choose another OUTPUT\. The cause: .*file"):
        write_folder(file / "out", Variant(side[0], "static"))
    empty.mkdir()
    write_folder(empty, Variant(side[0], "static"))
    assert (empty / "model.safetensors").exists()
    assert names(tmp_path) == ["empty", "file", "full"]
    assert (full / "notes.txt").read_text() == file.read_text() == "mine"
    with working_folder(tmp_path / "out", False):
        assert names(tmp_path) == ["empty", "file", "full"]  # another process writes


def test_a_full_disk_leaves_nothing(side, tmp_path):
    variant, output = Variant(side[0], "words", 1.0), tmp_path / "a" / "out"
    with (
        files_of_at_most(2000),
        pytest.raises(OSError, match=r"out cannot be written, and nothing is left of it: .*File too large"),
    ):
        write_folder(output, variant)
    assert names(tmp_path / "a") == []
    write_folder(output, variant)  # there is room now
    assert names(tmp_path / "a") == ["out"]
    assert (output / ADAPTATION_FILE).exists()


def test_nothing_is_left_after_a_bug_and_what_appears_meanwhile_stays(side, tmp_path, monkeypatch):
    notes = tmp_path / "out" / "notes"
    for error, end in ((KeyError, lambda *_: {}["a bug"]), (OSError, lambda *_: notes.mkdir(parents=True))):
        monkeypatch.setattr(adapting, "write_card", end)
        with pytest.raises(error):
            write_folder(notes.parent, Variant(side[0], "words", 1.0))
        assert [path.name for path in tmp_path.rglob("*")] == ["out", "notes"] * (error is OSError)


def test_an_encoder_that_is_kept_has_the_files_of_the_start_unless_options_change_it(
    side, worded, reads_little, tmp_path
):
    def contents(folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    write_folder(tmp_path / "out", Variant(side[0], "plain"))
    start, ours = contents(reads_little), contents(tmp_path / "out")
    changed = {name for name in start if ours.get(name) != start[name]}
    assert not changed - {Path("README.md"), Path("checkpoint_manifest.json")}
    assert {str(name) for name in ours.keys() - start.keys()} == {"README.md", ADAPTATION_FILE}
    # Without the words of the start; with another length
    write_folder(tmp_path / "plain", Variant(replace(side[0], place=str(worded.output)), "plain"))
    assert not list((tmp_path / "plain").glob("words*"))
    np.testing.assert_allclose(2 * load(tmp_path / "plain").encode(CORPUS[:5]), side[0].vectors[:5], atol=1e-5)
    side[0].model.max_seq_length = 6
    write_folder(tmp_path / "short", Variant(side[0], "plain"), max_seq_length=6)
    side[0].model.max_seq_length = 10
    assert load(tmp_path / "short").max_seq_length == 6


def test_documents_that_words_were_fitted_on_are_recorded(side, tmp_path):
    write_folder(tmp_path / "first", Variant(side[0], "words", 1.0))
    record = training_documents_of(str(tmp_path / "first"))
    assert len(record.run) == 40
    assert sorted(record.run.sketches.tolist()) == sorted(sketch(CORPUS[:40]).tolist())
    assert not record.is_complete  # of the start nothing is known
    write_folder(tmp_path / "second", Variant(replace(side[0], place=str(tmp_path / "first")), "static"))
    record = TrainingDocuments.load(tmp_path / "second" / TRAINING_DOCUMENTS_FILE)
    assert (len(record.before), len(record.run)) == (40, 40)
    third = Variant(replace(side[0], place=str(tmp_path / "second")), "plain")
    write_folder(tmp_path / "third", third, max_seq_length=6)
    kept = training_documents_of(str(tmp_path / "third"))  # saved anew, and not without what its start has seen
    assert (len(kept.before), len(kept.run)) == (40, 40)


# --- Training, processes, the script ---


def test_a_training_gets_the_options_the_prompt_and_the_distinct_documents(side, tmp_path, monkeypatch):
    calls = []

    def run(words, env):
        calls.append((words[2], dict(zip(words[3::2], words[4::2], strict=True)), env))
        Path(calls[-1][1]["--output_dir"]).mkdir(exist_ok=True)
        return subprocess.CompletedProcess(words, 3 if len(calls) > 1 else 0)

    monkeypatch.setattr(adapting, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setenv("RANK", "0")
    model = load(side[0].place)
    model.prompts["document"] = "text: "
    given = AdaptOptions(train=True, prompt="text: ", max_seq_length=9, pooling="mean", dtype="bfloat16")
    output = train(side[0].place, model, [*CORPUS, "", CORPUS[0] + " "], given, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "documents.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == CORPUS
    recipe, words, environment = calls[0]
    assert SentenceTransformer(words.pop("--model_name_or_path"), device="cpu").prompts["document"] == "text: "
    assert (recipe, words) == ("adapt", {
        "--corpus": str(tmp_path / "documents.jsonl"), "--output_dir": output,
        "--pooling": "mean", "--max_seq_length": "9", "--bf16": "True",
    })  # fmt: skip
    assert "RANK" not in environment
    assert environment["PATH"] == os.environ["PATH"]
    with pytest.raises(ValueError, match="ended with exit code 3: its last lines, above, say why"):
        train(side[0].place, model, CORPUS, AdaptOptions(train=True), tmp_path)
    assert calls[1][1]["--model_name_or_path"] == side[0].place


def test_the_encoder_is_trained_in_a_process_of_its_own(worded, place, tmp_path, monkeypatch):
    """From the encoder inside an encoder with words; words are fitted to what comes out."""
    trained = []

    def run_forked(words, env):  # as subprocess.run, without the seconds that a new Python takes to start
        script = Script(*words[1:], env=env).wait()
        assert script.returncode == 0, script.stderr
        trained.append(load(words[words.index("--output_dir") + 1]))
        return script

    monkeypatch.setattr(adapting, "subprocess", SimpleNamespace(run=run_forked))
    adapted = adapt(str(worded.output), TEXTS, tmp_path / "out", options(train=True, recipe=str(place / "tiny.yaml")))
    assert adapted.kept == "trained + words"
    assert Adaptation.read(tmp_path / "out").recipe == "tiny.yaml"
    model, expected = load(tmp_path / "out"), trained[0].encode(CORPUS)
    np.testing.assert_allclose(model.encode_query(CORPUS), expected, atol=1e-6)
    trained[0].save(str(tmp_path / "trained"))
    words = slow_words(tmp_path / "trained", True, CORPUS)
    np.testing.assert_allclose(unit(model.encode(CORPUS)), unit(unit(expected) + words), atol=2e-5)
    assert {"load", "embed", "train", "embed what was trained", "fit", "choose"} <= adapted.seconds.keys()
    assert names(tmp_path) == ["out", "trained"]


def test_two_processes_of_the_script_write_what_the_call_does_and_say_so(worded, reads_little, place, tmp_path):
    words = (reads_little, place / "documents.jsonl", tmp_path / "two", "--text_column", "body", "--dtype", "float32")
    lines = run("adapt.py", *words, processes=2).stdout.splitlines()
    assert names(tmp_path) == ["two"]
    np.testing.assert_allclose(load(tmp_path / "two").encode(NEW), load(worded.output).encode(NEW), atol=1e-5)
    assert lines[-4].startswith(f"Wrote {tmp_path / 'two'}: words, of {reads_little.name}.")
    assert f" {100 * worded.facts.share_explained:.0f} % of the variance" in lines[-3]
    assert lines[-2].endswith("It is for classes, groups and maps; search hardly gains by it. A map:")
    assert lines[-1].endswith(f"explore.py {tmp_path / 'two'} --corpus YOUR_DOCUMENTS")


def test_a_kill_leaves_a_partial_folder_that_the_next_run_removes(reads_little, place, tmp_path):
    code = """
import sys, time
from docsplit import adapt
from docsplit.training import adapting
adapting.write_card = lambda *_: time.sleep(300)
adapt(*sys.argv[1:])
"""
    out = tmp_path / "new" / "out"
    script = Script("-c", code, reads_little, place / "documents.txt", out)
    assert wait_until(lambda: script.returncode or list(out.parent.glob(f".out.partial/output/{ADAPTATION_FILE}")))
    assert script.returncode is None, script.stderr
    with pytest.raises(ValueError, match=rf"in use by process {script.pid} on .*: wait until it has ended, or choose"):
        adapt(str(reads_little), CORPUS, out, options())
    os.kill(script.pid, signal.SIGKILL)
    script.wait()
    assert names(out.parent) == [".out.partial"]
    adapt(str(reads_little), CORPUS, out, options())
    assert names(out.parent) == ["out"]
    assert words_of(load(out)) is not None
