"""Adapting: from texts, files and folders to a folder that loads anywhere and gives the vectors of the formula."""

import json
import os
import signal
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoModel

from docsplit import AdaptOptions, adapt
from docsplit.data.seen_documents import document_id
from docsplit.data.sets.labelled import load_probe
from docsplit.embedding import lexical_ridge
from docsplit.embedding.lexical_ridge import fit
from docsplit.embedding.loading import load_encoder, weight_of_words, words_of
from docsplit.evaluation.heads.quick_probe import probe_accuracy
from docsplit.release.model_card import candidates_table
from docsplit.release.records import ADAPTATION_FILE, Adaptation
from docsplit.runtime.vectors import unit
from docsplit.training import adapting
from docsplit.training.adaptation import folder
from docsplit.training.adapting import read_texts
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main as pretrain
from tests.conftest import make_corpus, weights_of
from tests.processes import Script, run

CORPUS = [row["text"] for row in make_corpus(120, seed=5)]
TEXTS = [*CORPUS, "", CORPUS[0] + " ", " \n"]  # a copy, and two without text
NEW = ["Bread and butter.", "", "☃", "ship " * 40 + "storm."]
RECIPE = {"max_steps": 2, "per_device_train_batch_size": 4, "objective": "neighbour_distillation", "view": "simcse"}
RECIPE |= {"mlm_weight": 0, "use_cpu": True, "disable_tqdm": True}


def options(**given):
    return AdaptOptions(**{"dtype": "float32"} | given)


def slow_words(encoder, sublinear, texts):
    """Return r of texts by words fitted to TEXTS, for each text its tokens one after another."""
    model = load_encoder(str(encoder), device="cpu")
    settings = adapting.RidgeSettings(sublinear=sublinear)
    ridge = fit(model, CORPUS, model.encode(CORPUS), settings)
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


@pytest.fixture
def labelled(tmp_path):
    """A file of labelled documents of the same topics."""
    path = tmp_path / "labelled.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in make_corpus(150)))
    return path


# --- Documents ---


@pytest.mark.parametrize("kind", ["list", "generator", "folder", "lines", "rows", "columns", "parquet"])
def test_texts_come_from_lists_files_and_folders(kind, tmp_path, caplog):
    caplog.set_level("INFO")
    texts, column = ["A ship.", "Bread\nand butter.", "", "A tree."], "text"
    if kind in ("list", "generator"):
        documents = texts if kind == "list" else (text for text in texts)
    elif kind == "folder":
        documents = tmp_path / "notes"
        (documents / "more").mkdir(parents=True)
        for name, text in zip(("a.txt", "b.md", "c.rst", "more/d.txt"), texts, strict=True):
            (documents / name).write_text(text)
    elif kind == "lines":
        texts[1] = "Bread and butter."
        documents = tmp_path / "notes.txt"
        documents.write_text("\n".join(texts))
    else:
        column = "text" if kind == "rows" else "body"
        rows = [{column: text, "number": number} for number, text in enumerate(texts)]
        documents = tmp_path / "notes.jsonl"
        documents.write_text("\n".join(map(json.dumps, rows)))
        if kind == "parquet":
            documents = tmp_path / "notes.parquet"
            adapting.load_corpus(str(tmp_path / "notes.jsonl")).to_parquet(documents)
    read = read_texts(documents, column)
    assert [text for text in read if text] == [text for text in texts if text]
    assert ("lines: each line is a document." in caplog.text) == (kind == "lines")


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        (CORPUS[:19] + TEXTS[-2:], "19 distinct documents with text, of 21, are too few to adapt to: give 20 or more"),
        ([], "0 distinct documents with text, of 0, are too few"),
        ([*CORPUS, None, 3], "is a NoneType: give texts"),
        ([CORPUS], "Document 0 is a list: give texts"),
        ("no/such/folder", "no/such/folder"),
    ],
)
def test_documents_that_cannot_be_adapted_to_are_refused(documents, problem, reads_little, tmp_path):
    with pytest.raises(ValueError, match=problem) as failure:
        adapt(str(reads_little), documents, tmp_path / "out")
    assert "\n" not in str(failure.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"max_seq_length": 1000}, "--max_seq_length is 1000, but .* has positions for 128 tokens"),
        (
            {"probe_corpus": "LABELLED", "probe_label_column": "topic"},
            r"column topic: .* needs columns \['topic'\]",
        ),
        ({"probe_corpus": "LABELLED", "probe_text_column": "body"}, r"_text_column body .* needs columns \['body'\]"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_work(given, problem, reads_little, labelled, tmp_path):
    given = {name: str(labelled) if value == "LABELLED" else value for name, value in given.items()}
    with pytest.raises(ValueError, match=problem):
        adapt(str(reads_little), TEXTS, tmp_path / "out", options(**given))
    assert [path.name for path in tmp_path.iterdir()] == [labelled.name]


def test_a_name_without_an_encoder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"There is no .*nothing: name a folder with an encoder"):
        adapt(str(tmp_path / "nothing"), TEXTS, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# --- What is written ---


def test_an_encoder_with_words_gives_the_formula_wherever_it_is_loaded(reads_little, tmp_path, caplog):
    caplog.set_level("INFO")
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", options())
    assert (adapted.output, adapted.kept, adapted.weight) == (tmp_path / "out", "words", 1.0)
    assert (adapted.facts.documents, adapted.facts.empty, adapted.facts.duplicates) == (120, 2, 1)
    assert "Words of 120 documents (without 2 empty and 1 copy): " in caplog.text
    assert caplog.text.count("dampened counts") == 1
    assert "plain counts" not in caplog.text
    start = SentenceTransformer(str(reads_little), device="cpu")
    for texts in (CORPUS, NEW):
        plain, words = start.encode(texts), slow_words(reads_little, True, texts)
        lengths = np.linalg.norm(plain, axis=1, keepdims=True)
        expected = np.where(words.any(axis=1, keepdims=True), unit(unit(plain) + words) * lengths, plain)
        for model in (
            SentenceTransformer(str(tmp_path / "out"), device="cpu", trust_remote_code=True),
            load_encoder(str(tmp_path / "out"), device="cpu"),
        ):
            np.testing.assert_allclose(model.encode_document(texts), expected, atol=2e-5)
            np.testing.assert_allclose(model.encode(texts), expected, atol=2e-5)
            np.testing.assert_allclose(model.encode_query(texts), plain, atol=1e-6)
    assert np.abs(expected - plain).max() > 0.1
    before, after = (AutoModel.from_pretrained(path).state_dict() for path in (reads_little, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before if "pooler" not in name)  # it is random


def test_words_that_explain_little_are_written_with_less_weight(reads_little, tmp_path, monkeypatch):
    monkeypatch.setattr(lexical_ridge.RidgeFacts, "share_explained", 0.1)
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", options())
    assert adapted.weight == adapted.facts.weight == 0.5
    assert weight_of_words(load_encoder(str(tmp_path / "out"), device="cpu")) == adapted.weight


def test_a_static_encoder_is_a_mean_of_token_vectors(reads_little, tmp_path, caplog):
    caplog.set_level("INFO")
    adapted = adapt(reads_little, TEXTS, tmp_path / "out", options(static=True))
    assert (adapted.kept, adapted.weight, adapted.facts.sublinear) == ("static", None, False)
    assert caplog.text.count("plain counts") == 1
    assert "dampened counts" not in caplog.text
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    table = load_file(tmp_path / "out" / "model.safetensors")["embeddings"].numpy()
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    texts = [*CORPUS, *NEW]
    means = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        means.append(np.mean([table[token] for token in ids], axis=0) if ids else np.zeros(32))
    vectors = model.encode_document(texts)
    np.testing.assert_allclose(vectors, unit(np.array(means)), atol=1e-5)
    np.testing.assert_allclose(vectors, slow_words(reads_little, False, texts), atol=2e-5)
    np.testing.assert_allclose(model.encode_query(texts), vectors, atol=1e-6)
    assert not vectors[len(CORPUS) + 1].any()
    assert np.abs(vectors - slow_words(reads_little, True, texts)).max() > 1e-3
    np.testing.assert_allclose(load_encoder(str(tmp_path / "out"), device="cpu").encode(texts), vectors, atol=1e-6)


def test_options_of_the_encoder_are_written_with_it(reads_little, tmp_path):
    adapt(str(reads_little), TEXTS, tmp_path / "out", options(prompt="ship: ", max_seq_length=20, penalty=2.0))
    model = load_encoder(str(tmp_path / "out"), device="cpu")
    assert (model.max_seq_length, model.prompts["document"]) == (20, "ship: ")
    record = Adaptation.read(tmp_path / "out")
    assert record.facts.penalty == 2.0
    assert tuple(record.facts.shares_explained) == (2.0,)


def test_words_of_the_start_are_fitted_anew(reads_little, tmp_path, caplog):
    caplog.set_level("INFO")
    adapt(str(reads_little), TEXTS, tmp_path / "first", options())
    adapt(str(tmp_path / "first"), TEXTS, tmp_path / "second", options())
    count = len(words_of(load_encoder(str(tmp_path / "first"), device="cpu")).pieces)
    assert f"{tmp_path / 'first'} has words, of {count} tokens: they are left out, and those of these" in caplog.text
    first, second = (load_encoder(str(tmp_path / name), device="cpu") for name in ("first", "second"))
    np.testing.assert_allclose(second.encode(NEW), first.encode(NEW), atol=1e-6)
    torch.testing.assert_close(words_of(second).vectors(), words_of(first).vectors())


def test_words_of_other_documents_are_replaced(reads_little, tmp_path):
    """What a folder learnt of its first documents is gone after the second."""
    others = [row["text"].replace("ship", "zebra") for row in make_corpus(60, seed=9)]
    adapt(str(reads_little), others, tmp_path / "first", options())
    adapt(str(tmp_path / "first"), TEXTS, tmp_path / "second", options())
    adapt(str(reads_little), TEXTS, tmp_path / "alone", options())
    first, second, alone = (
        load_encoder(str(tmp_path / name), device="cpu").encode(NEW) for name in ("first", "second", "alone")
    )
    np.testing.assert_allclose(second, alone, atol=1e-6)
    assert np.abs(first - second).max() > 1e-3


def test_a_static_folder_is_refused_with_the_encoder_that_it_is_made_of(reads_little, tmp_path):
    adapt(str(reads_little), TEXTS, tmp_path / "first", options(static=True))
    with pytest.raises(ValueError, match=r"first holds the words alone of reads_little.*: adapt that encoder"):
        adapt(str(tmp_path / "first"), TEXTS, tmp_path / "second", options())
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("objective", ["info_nce", "neighbour_distillation"])
def test_a_training_starts_from_the_encoder_inside(objective, reads_little, tmp_path, run_here, caplog):
    """As from the plain encoder: the same weights come out, and no words."""
    caplog.set_level("INFO")
    adapt(str(reads_little), TEXTS, tmp_path / "first", options())
    for name, start in (("inside", tmp_path / "first"), ("plain", reads_little)):
        run_here(
            pretrain, "--model_name_or_path", start, "--corpus", "tests/data/documents.jsonl", "--objective",
            objective, "--view", "simcse", "--mlm_weight", 0, "--output_dir", tmp_path / name, "--max_steps", 2,
            "--per_device_train_batch_size", 8, "--use_cpu", "--bf16", "false", "--learning_rate", 1e-2,
        )  # fmt: skip
    count = len(words_of(load_encoder(str(tmp_path / "first"), device="cpu")).pieces)
    message = f"first is an encoder with words of {count} tokens: the start is the encoder inside, and its words are"
    assert message in caplog.text
    inside, plain = (weights_of(tmp_path / name) for name in ("inside", "plain"))
    before = weights_of(tmp_path / "first")
    for key, value in inside.items():
        assert torch.equal(value, plain[key]), key
    assert any(not torch.equal(value, before[key]) for key, value in inside.items())
    assert words_of(load_encoder(str(tmp_path / "inside"), device="cpu")) is None


def test_a_static_encoder_is_no_start_of_a_training(reads_little, tmp_path):
    adapt(str(reads_little), TEXTS, tmp_path / "static", options(static=True))
    with pytest.raises(ValueError, match=r"is a static encoder, .*: start from the encoder that it was made of"):
        DocSplitForContrastivePretraining.from_pretrained(tmp_path / "static")


def test_where_words_explain_nothing_the_encoder_is_written_with_a_warning(
    reads_little, tmp_path, monkeypatch, caplog
):
    def random_vectors(model, texts, **_):
        return np.random.default_rng(0).normal(size=(len(texts), 32)).astype(np.float32), None

    monkeypatch.setattr(adapting, "embed_documents", random_vectors)
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", options())
    assert (adapted.kept, adapted.weight, adapted.facts) == ("start", None, None)
    assert f"Words explain nothing of the vectors of {reads_little}" in caplog.text
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    expected = SentenceTransformer(str(reads_little), device="cpu").encode(CORPUS[:5])
    np.testing.assert_allclose(model.encode_document(CORPUS[:5]), expected, atol=1e-6)
    files = [folder / "model-00001-of-00002.safetensors" for folder in (tmp_path / "out", reads_little)]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ValueError, match=r"Words explain nothing .* leave out --static, or give more documents"):
        adapt(str(reads_little), TEXTS, tmp_path / "static", options(static=True))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- Labelled documents ---


def test_what_is_best_on_validation_documents_is_written(reads_little, labelled, tmp_path, caplog, capsys):
    caplog.set_level("INFO")
    split = load_probe(str(labelled))
    known = split.train_texts[:7]
    documents = [*TEXTS, *known, *split.validation_texts[:4], *split.test_texts[:5]]
    adapted = adapt(str(reads_little), documents, tmp_path / "out", options(probe_corpus=str(labelled)))
    measured_on = len({document_id(text) for text in [*split.validation_texts, *split.test_texts]})
    left_out = f"9 of {len(documents)} documents are left out: they are among the {measured_on} validation and test"
    assert left_out in caplog.text
    assert "7 labelled training documents are among the documents: their words are leave-one-out." in caplog.text
    assert caplog.text.count("Words of 127 documents") == 2
    assert "vectors of the encoder, once to stand beside them and once to stand alone." in caplog.text
    few = f"{len(split.validation_texts)} validation documents of --probe_corpus choose what is written: so few say"
    assert few in caplog.text
    assert len(split.validation_texts) < adapting.FEW_VALIDATION
    assert caplog.text.count("dampened counts") == caplog.text.count("plain counts") == 1
    # Five candidates, of which the first with the best validation accuracy is written
    labels = [candidate.label for candidate in adapted.candidates]
    assert labels == ["start", "words", "words, weight 0.5", "words, weight 2", "static"]
    scores = [(one.validation["5shot_accuracy"], one.validation["accuracy"]) for one in adapted.candidates]
    chosen = adapted.candidates[scores.index(max(scores))]
    assert (adapted.kept, adapted.weight) == (chosen.name, chosen.weight)
    assert adapted.kept == "words"
    assert weight_of_words(load_encoder(str(tmp_path / "out"), device="cpu")) == adapted.weight
    assert adapted.facts.sublinear
    assert candidates_table(adapted.candidates, chosen.label) in capsys.readouterr().out
    assert f"**{chosen.label}**" in (tmp_path / "out" / "README.md").read_text()
    # The start, measured on its own vectors
    start = SentenceTransformer(str(reads_little), device="cpu")
    expected = probe_accuracy(split, {part: start.encode(texts) for part, texts in split.texts.items()})
    assert adapted.candidates[0].test["accuracy"] == pytest.approx(expected["test"]["accuracy"])
    assert adapted.candidates[0].validation["5shot_accuracy"] == pytest.approx(
        expected["validation"]["5shot_accuracy"]
    )


def test_words_alone_are_written_where_they_are_wanted_though_others_are_better(
    reads_little, labelled, tmp_path, monkeypatch, caplog
):
    accuracy = iter([0.9, 0.2, 0.2, 0.2, 0.1])

    def probe_accuracy(split, features):
        scores = {"5shot_accuracy": next(accuracy), "accuracy": 0.5}
        return {"validation": scores, "test": scores}

    monkeypatch.setattr(adapting.choice, "probe_accuracy", probe_accuracy)
    given = options(probe_corpus=str(labelled), static=True)
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", given)
    assert "--static writes static encoders alone, though start is better on validation" in caplog.text
    assert (adapted.kept, adapted.facts.sublinear) == ("static", False)
    assert not list((tmp_path / "out").glob("words*"))


def test_the_start_is_kept_where_nothing_beats_it(reads_little, labelled, tmp_path, monkeypatch, caplog):
    scores = {"5shot_accuracy": 0.5, "accuracy": 0.5}
    monkeypatch.setattr(adapting.choice, "probe_accuracy", lambda *_: {"validation": scores, "test": scores})
    given = options(probe_corpus=str(labelled), max_seq_length=8)
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", given)
    assert (adapted.kept, adapted.weight) == ("start", None)
    assert load_encoder(str(tmp_path / "out"), device="cpu").max_seq_length == 8
    assert adapted.facts.sublinear  # of the words that were tried
    assert "Keep what you had: nothing is better than the start on the validation documents." in caplog.text
    assert not list((tmp_path / "out").glob("words*"))


# --- Training, processes, the script ---


@pytest.fixture
def tiny_recipe(tmp_path):
    """A file with a recipe of two steps."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.yaml").write_text(json.dumps(RECIPE))
    return tmp_path / "recipes" / "tiny.yaml"


def check_trained(output):
    """The record tells what was tried, with an encoder trained before and without."""
    record = Adaptation.read(output)
    names = ["start", "words", "static", "trained", "trained + words", "static of trained"]
    assert list(dict.fromkeys(one.name for one in record.candidates)) == names
    is_trained = record.kept.startswith(("trained", "static of trained"))
    assert record.recipe == ("tiny.yaml" if is_trained else None)
    assert {"load", "embed", "train", "embed what was trained", "fit", "choose"} <= record.seconds.keys()
    assert load_encoder(str(output), device="cpu").encode("A ship.").shape == (32,)


def test_the_encoder_is_trained_in_a_process_of_its_own(
    reads_little, labelled, tiny_recipe, tmp_path, monkeypatch, caplog
):
    def run_forked(words, env):  # as subprocess.run, without the seconds that a new Python takes to start
        script = Script(*words[1:], env=env).wait()
        assert script.returncode == 0, script.stderr
        return script

    caplog.set_level("INFO")
    monkeypatch.setattr(folder, "subprocess", SimpleNamespace(run=run_forked))
    given = {"train": True, "recipe": str(tiny_recipe), "probe_corpus": str(labelled)}
    adapt(str(reads_little), TEXTS, tmp_path / "out", options(**given))
    assert f"Training by the recipe {tiny_recipe} on {len(TEXTS):,} documents" in caplog.text
    assert "/trained is for this run alone and goes at its end." in caplog.text
    check_trained(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [labelled.name, "out", "recipes"]


@pytest.mark.slow
def test_the_script_trains_as_its_call_does(reads_little, labelled, tiny_recipe, tmp_path):
    (tmp_path / "documents.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in TEXTS))
    result = run(
        "adapt.py", reads_little, tmp_path / "documents.jsonl", tmp_path / "out", "--text_column", "body", "--train",
        "--recipe", tiny_recipe, "--probe_corpus", labelled, "--dtype", "float32",
    )  # fmt: skip
    assert "| trained + words" in result.stdout
    check_trained(tmp_path / "out")


def test_a_trained_encoder_is_what_words_are_fitted_to(reads_little, tmp_path, monkeypatch):
    monkeypatch.setattr(adapting, "train", lambda *_: str(tmp_path / "trained"))
    start = load_encoder(str(reads_little), device="cpu")
    with torch.no_grad():
        start[0].model.embeddings.word_embeddings.weight.mul_(-1)
    start.save(str(tmp_path / "trained"))
    adapted = adapt(str(reads_little), TEXTS, tmp_path / "out", options(train=True))
    assert adapted.kept == "trained + words"
    model = load_encoder(str(tmp_path / "out"), device="cpu")
    expected = load_encoder(str(tmp_path / "trained"), device="cpu").encode(CORPUS)
    np.testing.assert_allclose(model.encode_query(CORPUS), expected, atol=1e-6)
    words = slow_words(tmp_path / "trained", True, CORPUS)
    np.testing.assert_allclose(unit(model.encode(CORPUS)), unit(unit(expected) + words), atol=2e-5)
    assert Adaptation.read(tmp_path / "out").recipe == "adapt"


def test_the_script_writes_what_its_call_does_and_says_what_is_next(reads_little, tmp_path):
    (tmp_path / "documents.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in TEXTS))
    result = run(
        "adapt.py", reads_little, tmp_path / "documents.jsonl", tmp_path / "out", "--text_column", "body",
        "--dtype", "float32", "--neighbours", 5,
    )  # fmt: skip
    *_, written, explained, loading, build, measure = result.stdout.splitlines()
    facts = Adaptation.read(tmp_path / "out").facts
    made = f"{reads_little.name} with the words of {facts.documents} documents"
    assert written.startswith(f"Wrote {tmp_path / 'out'}: {made}")
    share = facts.share_explained
    assert f" {100 * share:.0f} % of the variance" in explained
    assert loading == f"In Python, SentenceTransformer('{tmp_path / 'out'}', trust_remote_code=True) loads it. Next:"
    assert build.strip() == (
        f"python search.py build {tmp_path / 'documents.jsonl'} --model {tmp_path / 'out'} --index_dir "
        f"{tmp_path / 'out'}.index --text_column body"
    )
    assert measure.strip().startswith(f"python run_probe_classification.py --model_name_or_path {reads_little}")
    adapt(str(reads_little), TEXTS, tmp_path / "called", options(neighbours=5))
    ours, called = (load_encoder(str(tmp_path / name), device="cpu").encode(NEW) for name in ("out", "called"))
    np.testing.assert_allclose(ours, called, atol=1e-5)


def test_the_script_answers_a_mistake_in_one_line(reads_little, tmp_path):
    result = Script("adapt.py", reads_little, tmp_path / "nothing.jsonl", tmp_path / "out").wait()
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "nothing.jsonl" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_kill_leaves_a_partial_folder_that_the_next_run_removes(reads_little, tmp_path):
    code = """
import sys, time
from docsplit import adapt
from docsplit.training.adaptation import folder
folder.write_card = lambda *_: time.sleep(300)
adapt(sys.argv[1], sys.argv[2], sys.argv[3])
"""
    (tmp_path / "documents.txt").write_text("\n".join(CORPUS))
    out = tmp_path / "new" / "out"
    script = Script("-c", code, reads_little, tmp_path / "documents.txt", out)
    deadline = time.monotonic() + 60
    while not list(out.parent.glob(f".out.partial/output/{ADAPTATION_FILE}")):
        assert time.monotonic() < deadline
        assert script.returncode is None, script.stderr
        time.sleep(0.02)
    with pytest.raises(ValueError, match=rf"in use by process {script.pid} on .*: wait until it has ended, or choose"):
        adapt(str(reads_little), CORPUS, out, options())
    os.kill(script.pid, signal.SIGKILL)
    script.wait()
    assert [path.name for path in out.parent.iterdir()] == [".out.partial"]
    adapt(str(reads_little), CORPUS, out, options())
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert words_of(load_encoder(str(out), device="cpu")) is not None


def test_several_processes_write_what_one_does(reads_little, tmp_path):
    (tmp_path / "documents.txt").write_text("\n".join(CORPUS))
    given = (reads_little, tmp_path / "documents.txt")
    run("adapt.py", *given, tmp_path / "two", "--dtype", "float32", processes=2)
    adapt(str(reads_little), CORPUS, tmp_path / "one", options())
    one, two = (load_encoder(str(tmp_path / name), device="cpu").encode(NEW) for name in ("one", "two"))
    np.testing.assert_allclose(one, two, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.txt", "one", "two"]


def test_documents_by_id_are_adapted_to_by_their_texts():
    assert read_texts({"one": "A ship.", "two": ""}, "text") == ["A ship.", ""]
