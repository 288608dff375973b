"""An encoder's record of training documents, against a test set: rows of results, and lines in the log."""

import logging

import numpy as np
import pytest

from docsplit.data.preparation import document_id
from docsplit.data.seen_documents import DocumentSet, TrainingDocuments, sketch
from docsplit.embedding import overlap as module
from docsplit.embedding.overlap import contamination, training_documents_of
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(40)]
FILE = "training_documents.safetensors"
UNKNOWN = {"seen_in_pretraining_share": None, "near_duplicate_share": None}


@pytest.fixture
def record():
    ids = np.array([document_id(text) for text in TEXTS[:10]])
    documents = DocumentSet()
    documents.add(ids, sketch(TEXTS[:10]))
    return TrainingDocuments(run=documents)


def messages(caplog, level=logging.WARNING):
    return [entry.getMessage() for entry in caplog.records if entry.levelno == level and "docsplit" in entry.name]


def test_shares_of_distinct_documents_with_a_warning(record, tmp_path, caplog):
    record.save(tmp_path)
    one_more = " ".join([*TEXTS[1].split(), "and", "more"])
    shares = contamination(str(tmp_path), [*TEXTS[20:22], TEXTS[0], f" {TEXTS[0]}", one_more])
    assert shares == {"seen_in_pretraining_share": 0.25, "near_duplicate_share": 0.5}
    (message,) = messages(caplog)
    assert "25.0 % of the 4 distinct test documents, 50.0 % with near-duplicates" in message


def test_near_duplicates_alone_are_warned_of_too(record, tmp_path, caplog):
    record.save(tmp_path)
    shares = contamination(str(tmp_path), [f"{TEXTS[1]} And more."])
    assert shares == {"seen_in_pretraining_share": 0, "near_duplicate_share": 1}
    assert "100.0 % with near-duplicates" in messages(caplog)[0]


def test_no_warning_where_nothing_was_seen(record, tmp_path, caplog):
    record.save(tmp_path)
    with caplog.at_level(logging.INFO):
        assert contamination(str(tmp_path), TEXTS[20:]) == dict.fromkeys(UNKNOWN, 0)
    assert not messages(caplog)
    assert len(messages(caplog, logging.INFO)) == 1


def test_too_many_documents_leave_near_duplicates_unknown(record, tmp_path, caplog):
    record.run.sketches = None
    record.save(tmp_path)
    shares = contamination(str(tmp_path), TEXTS[5:15])
    assert shares == {"seen_in_pretraining_share": 0.5, "near_duplicate_share": None}
    assert "near-duplicates unknown" in messages(caplog)[0]


def test_an_unknown_start_gives_null_and_a_lower_bound(record, tmp_path, caplog):
    record.is_complete = False
    record.save(tmp_path)
    assert contamination(str(tmp_path), TEXTS[5:15]) == UNKNOWN
    (message,) = messages(caplog)
    assert "at least 50.0 %" in message


@pytest.mark.parametrize("damage", ["none there", "a flipped bit", "truncated", "something else", "a folder"])
def test_without_a_whole_record_all_is_unknown_and_said(record, tmp_path, caplog, damage):
    path = tmp_path / FILE
    if damage == "a folder":
        path.mkdir()
    elif damage != "none there":
        record.save(tmp_path)
        whole = path.read_bytes()
        flipped = whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]
        path.write_bytes({"a flipped bit": flipped, "truncated": whole[:200]}.get(damage, b"{}"))
    caplog.set_level("INFO")
    assert contamination(str(tmp_path), TEXTS) == UNKNOWN
    (message,) = messages(caplog, logging.INFO if damage == "none there" else logging.WARNING)
    assert message.startswith(f"Nobody knows which documents {tmp_path} was trained on: ")
    assert FILE in message
    assert "\n" not in message


def test_the_record_of_an_encoder_on_the_hub_is_looked_up_there(record, tmp_path, monkeypatch, caplog):
    record.save(tmp_path)
    places = {("user/name", FILE): str(tmp_path / FILE)}
    monkeypatch.setattr(module, "load_file_path", lambda *place: places.get(place))
    assert len(training_documents_of("user/name").run) == 10
    caplog.set_level("INFO")
    assert training_documents_of("user/other") is None
    assert len(messages(caplog, logging.INFO)) == 1  # nobody can give a stranger's encoder a record

    def refuse(*place):
        raise OSError("You are trying to access a gated repo.\nAsk for access.")

    monkeypatch.setattr(module, "load_file_path", refuse)
    assert training_documents_of("user/name") is None
    assert "gated repo. Ask" in messages(caplog)[0]
