"""The record and the card of an adapted encoder: what is in the folder, what it was made of, and code that runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer

from docsplit import AdaptOptions, adapt
from docsplit.embedding.lexical_ridge import RidgeFacts
from docsplit.embedding.loading import load_encoder
from docsplit.release.adapted_card import (
    ADAPTATION_FILE,
    KINDS,
    MEASURES,
    PRIVACY,
    Adaptation,
    Candidate,
    candidates_table,
    write_adapted_card,
)
from docsplit.release.hub import RELEASE
from docsplit.release.model_card import write_card
from docsplit.release.run_record import Licence, Start
from tests.conftest import make_corpus
from tests.release.hub_rules import front_matter, problems

TEXTS = [row["text"] for row in make_corpus(120, seed=5)]
FACTS = RidgeFacts(
    documents=1234, empty=3, duplicates=0, without_pieces=2, pieces=5678, penalty=0.3, neighbours=20, sublinear=True,
    shares_explained={0.1: 0.4, 0.3: 0.456},
)  # fmt: skip
TESTED = {"5shot_accuracy": 0.4321, "accuracy": 0.8765}
CANDIDATES = [
    Candidate(name, weight, {"5shot_accuracy": 0.5, "accuracy": 0.25, "c": 1.0}, TESTED)
    for name, weight in (("start", None), ("words", 1.0), ("words", 0.5), ("static", None))
]
RECORD = Adaptation(
    kind="words", kept="words", weight=1.0, encoder="user/encoder", start=Start("user/encoder", Licence("mit")),
    language=["en", "de"], documents="notes.jsonl", documents_are_local=True, facts=FACTS, seconds={"embed": 12.34},
    hardware="a CPU", versions={"torch": "2", "spacy": None}, commit="abc", candidates=[],
)  # fmt: skip
STATIC = replace(RECORD, kind="static", kept="static", weight=None, facts=replace(FACTS, sublinear=False))
START = replace(RECORD, kind="plain", kept="start", weight=None)
PROBED = {"probe": "labelled.jsonl", "candidates": CANDIDATES}


def card(record, folder, **given):
    record.write(folder)
    return write_adapted_card(folder, "user/mine", **given)


@pytest.fixture(scope="module")
def folders(reads_little, tmp_path_factory):
    """Return folders of each kind that adapting wrote."""
    place = tmp_path_factory.mktemp("adapted")
    documents = place / "documents.txt"
    documents.write_text("\n".join(TEXTS))
    for kind in ("words", "static"):
        adapt(str(reads_little), documents, place / kind, AdaptOptions(static=kind == "static", dtype="float32"))
    return {kind: place / kind for kind in ("words", "static")}


# --- The record ---


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        STATIC,
        replace(START, facts=None, language=None, start=Start(None, Licence("other", "odd", "https://a.b"))),
        replace(RECORD, weight=0.5, recipe="adapt", hub_model_id="user/mine", **PROBED),
    ],
)
def test_a_record_is_read_as_it_was_written(record, tmp_path):
    record.write(tmp_path)
    assert Adaptation.read(tmp_path) == record


def test_a_folder_without_a_record_has_none(tmp_path):
    assert Adaptation.read(tmp_path) is None
    with pytest.raises(ValueError, match=f"has no {ADAPTATION_FILE}: it is no folder that `python adapt.py` wrote"):
        write_adapted_card(tmp_path)


def test_the_table_of_candidates_marks_what_was_written():
    table = candidates_table(CANDIDATES, "words, weight 0.5").splitlines()
    assert [len(row.split("|")) for row in table] == [7] * 6
    assert [row.split("|")[1].strip() for row in table[2:]] == ["start", "words", "**words, weight 0.5**", "static"]
    assert [cell.strip() for cell in table[2].split("|")[2:-1]] == ["50.0", "25.0", "43.2", "87.6"]


# --- The card ---


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            RECORD,
            "`user/encoder` and, added to its vectors, the words of whole documents: a vector for each",
        ),
        (replace(RECORD, weight=0.5, kept="words, weight 0.5"), "added to its vectors, with weight 0.5, the words of"),
        (
            replace(RECORD, recipe="adapt", kept="trained + words"),
            "`user/encoder`, trained on `notes.jsonl` by the recipe `adapt`, and, added to its vectors, the words",
        ),
        (STATIC, "A static encoder: a vector for each token, fitted to what `user/encoder` says of `notes.jsonl`."),
        (START, "`user/encoder`, unchanged: words of `notes.jsonl` were tried, and did not make it better."),
        (
            replace(START, kept="trained", recipe="adapt"),
            "`user/encoder`, trained on `notes.jsonl` by the recipe `adapt`, without words: they were tried",
        ),
    ],
)
def test_the_card_says_what_the_parts_are(record, says, tmp_path):
    assert says in card(record, tmp_path)


@pytest.mark.parametrize(
    ("record", "counts"), [(RECORD, "1 + ln c times"), (STATIC, "c times"), (START, "1 + ln c times")]
)
def test_the_card_says_what_words_were_fitted_on(record, counts, tmp_path):
    text = card(record, tmp_path)
    rows = dict(re.findall(r"^\| (.+?) +\| +(.+?) \|$", text, re.MULTILINE))
    assert rows["fitted on"] == "`notes.jsonl`"
    assert rows["documents"] == "1,234"
    assert rows["documents empty, left out"] == "3"
    assert "documents copies, left out" not in rows  # there were none
    assert rows["documents that share no token with another"] == "2"
    assert rows["tokens with a vector"] == "5,678"
    assert rows["a token that a document has c times counts"] == counts
    assert rows["ridge penalty"] == "0.3"
    assert rows["variance of the encoder's vectors explained, leave-one-out"] == "45.6 %"
    assert rows["seconds: embed"] == "12.3"
    assert ("These words were tried, and are not in the files." in text) == (record.kind == "plain")


def test_the_card_says_where_no_words_were_fitted(tmp_path):
    text = card(replace(START, facts=None), tmp_path)
    assert "There are none: words explain nothing of the encoder's vectors of documents left out." in text


def test_the_card_says_that_token_vectors_carry_the_vocabulary(tmp_path):
    texts = {record.kind: card(record, tmp_path) for record in (RECORD, STATIC, START)}
    assert texts.keys() == set(KINDS)
    assert PRIVACY in texts["words"]
    assert PRIVACY in texts["static"]
    assert "Token vectors carry the vocabulary of the documents" in PRIVACY
    assert PRIVACY not in texts["plain"]
    assert "has hashes of the documents" not in texts["words"]
    (tmp_path / "training_documents.safetensors").write_bytes(b"")
    assert "has hashes of the documents" in card(RECORD, tmp_path)


def test_the_card_shows_what_was_tried_and_what_the_hub_indexes(tmp_path):
    text = card(replace(RECORD, weight=0.5, kept="words, weight 0.5", **PROBED), tmp_path)
    assert candidates_table(CANDIDATES, "words, weight 0.5") in text
    assert "logistic regression on labelled documents (`labelled.jsonl`)" in text
    data = ModelCard(text).data
    assert {result.metric_value for result in data.eval_results} == {TESTED[measure] for measure in MEASURES}
    assert "## What was tried" not in card(RECORD, tmp_path)


@pytest.mark.parametrize("kind", ["words", "static"])
def test_the_hub_takes_the_card_of_a_folder(kind, folders):
    card = (folders[kind] / "README.md").read_text(encoding="utf-8")
    assert problems(card) == []
    assert ("widget" in front_matter(card)) == (kind == "static")  # words are code, which the Hub does not run


def test_the_front_matter_names_start_licence_and_data(tmp_path):
    data = ModelCard(card(RECORD, tmp_path)).data
    assert (data.base_model, data.license, data.language) == ("user/encoder", "mit", ["en", "de"])
    assert data.library_name == "sentence-transformers"
    assert data.datasets is None  # a file of this machine
    assert "model2vec" not in data.tags
    of_the_hub = ModelCard(card(replace(STATIC, documents="user/data", documents_are_local=False), tmp_path)).data
    assert of_the_hub.datasets == ["user/data"]
    assert {"static-embeddings", "model2vec"} <= set(of_the_hub.tags)


def test_a_licence_that_is_given_stays(tmp_path):
    assert ModelCard(card(RECORD, tmp_path, licence="apache-2.0")).data.license == "apache-2.0"
    text = write_card(tmp_path)  # as `python -m docsplit.release.model_card` does
    assert ModelCard(text).data.license == "apache-2.0"
    assert text == (tmp_path / "README.md").read_text()


# --- The card of a folder ---


@pytest.mark.parametrize("kind", ["words", "static"])
def test_the_card_of_a_folder_tells_no_path_of_the_machine(kind, folders, reads_little):
    for name in ("README.md", ADAPTATION_FILE):
        text = (folders[kind] / name).read_text()
        assert {reads_little.name, "documents.txt"} <= set(re.findall(r"[\w.]+", text))
        for path in (reads_little.parent, folders[kind].parent, folders[kind].parent.parent, Path.home()):
            assert f"{path}/" not in text


@pytest.mark.parametrize("kind", ["words", "static"])
def test_the_code_of_the_card_runs(kind, folders, monkeypatch):
    monkeypatch.chdir(folders[kind].parent)
    blocks = re.findall(r"```python\n(.*?)```", (folders[kind] / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == (2 if kind == "static" else 1)
    names = {}
    exec(blocks[0], names)
    assert names["similarities"].shape == (1, 2)
    loaded = load_encoder(str(folders[kind]), device="cpu")
    texts = ["A long document ...", "Another one ..."]
    np.testing.assert_allclose(names["documents"], loaded.encode_document(texts), atol=1e-6)
    if kind == "static":
        pytest.importorskip("model2vec")
        exec(blocks[1], names)
        np.testing.assert_allclose(names["embeddings"], loaded.encode(texts[:1]), atol=1e-6)


@pytest.mark.parametrize("kind", ["words", "static"])
def test_all_files_of_a_folder_are_released(kind, folders):
    folder = folders[kind]
    written = {path for path in folder.rglob("*") if path.is_file()}
    assert written == {path for pattern in RELEASE for path in folder.glob(pattern)}


def test_a_repository_of_a_hub_is_what_the_code_of_the_card_loads(tmp_path):
    text = card(replace(RECORD, hub_model_id="user/first"), tmp_path)
    assert 'SentenceTransformer("user/mine")' in text
    assert 'SentenceTransformer("user/first")' in write_adapted_card(tmp_path)
    (tmp_path / "encoder_with_words.py").write_text("")
    assert 'SentenceTransformer("user/first", trust_remote_code=True)' in write_adapted_card(tmp_path)
    assert json.loads((tmp_path / ADAPTATION_FILE).read_text())["hub_model_id"] == "user/first"


def test_files_that_are_released_are_enough_to_load(folders, tmp_path):
    for kind, folder in folders.items():
        for pattern in RELEASE:
            for path in folder.glob(pattern):
                copy = tmp_path / kind / path.relative_to(folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
        ours, released = (
            SentenceTransformer(str(place), device="cpu", trust_remote_code=True).encode(TEXTS[:4])
            for place in (folder, tmp_path / kind)
        )
        np.testing.assert_array_equal(ours, released)
