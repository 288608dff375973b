"""The record of training documents: against sets, exact Jaccard similarities, files that rot, and test sets."""

import numpy as np
import pytest

from docsplit.data import seen_documents
from docsplit.data.copies import document_id, resemblance, sketch
from docsplit.data.seen_documents import DocumentSet, TrainingDocuments, contamination
from tests.data.test_copies import ODD, RNG, TEXTS, changed, random_text

FILE = seen_documents.TRAINING_DOCUMENTS_FILE


def ids_of(texts):
    return np.array([document_id(text) for text in texts])


def set_of(texts):
    documents = DocumentSet()
    documents.add(ids_of(texts), sketch(texts))
    return documents


def test_near_duplicates_are_those_of_all_pairs():
    trained = [random_text(4) for _ in range(60)] + ODD
    tested = [changed(trained[RNG.integers(60)], share) for share in np.linspace(0, 0.8, 80)] + ODD
    ours, theirs = sketch(tested), sketch(trained)
    slow = [any(resemblance(left[None], right[None]) >= 0.5 for right in theirs) for left in ours]
    assert set_of(trained).near_duplicates(ours).tolist() == slow
    assert 20 < sum(slow) < 70


def test_documents_count_once_however_they_come():
    documents, slow = DocumentSet(), {}
    for _ in range(20):
        chosen = [TEXTS[index] for index in RNG.integers(250, size=30)]
        slow |= dict(zip(ids_of(chosen).tolist(), sketch(chosen).tolist()))
        documents.add(ids_of(chosen), sketch(chosen))
    assert documents.ids.tolist() == sorted(slow)
    assert documents.sketches.tolist() == [slow[key] for key in sorted(slow)]
    assert documents.contains(ids_of(TEXTS)).tolist() == [key in slow for key in ids_of(TEXTS).tolist()]
    assert len(documents) == len(slow)


def test_sketches_are_unknown_beyond_some_number(monkeypatch, tmp_path):
    monkeypatch.setattr(seen_documents, "MOST_SKETCHES", 100)
    documents = set_of(TEXTS[:100])
    assert documents.sketches is not None
    for more in (TEXTS[100:101], TEXTS[:5]):
        documents.add(ids_of(more), sketch(more))
        assert documents.sketches is None
    with pytest.raises(ValueError, match="unknown"):
        documents.near_duplicates(sketch(TEXTS))
    TrainingDocuments(run=documents).save(tmp_path)
    path = tmp_path / FILE
    record = TrainingDocuments.load(path)
    assert path.stat().st_size < 8 * 101 + 600
    assert record.shares(TEXTS) == record.for_next_run().shares(TEXTS) == (101 / 300, None)  # not "none"


def test_the_next_run_has_the_union_before_it(tmp_path):
    TrainingDocuments(run=set_of(TEXTS[:50]), before=set_of(TEXTS[30:90]), is_complete=False).save(tmp_path)
    record = TrainingDocuments.load(tmp_path / FILE)
    after = record.for_next_run()
    assert (len(after.run), len(after.before), after.is_complete) == (0, 90, False)
    after.run.add(ids_of(TEXTS[80:100]), sketch(TEXTS[80:100]))
    assert len(after.run) == 20  # those that were seen before count too
    tested = [TEXTS[0], TEXTS[95], f"{TEXTS[0]}\n ", "nobody saw this sentence in any of all those documents"]
    assert after.shares(tested)[0] == 2 / 3  # of distinct documents
    assert len(record.before) == len(record.before.sketches) == 60  # a copy was changed, not the record


def test_a_file_that_rotted_is_not_believed(tmp_path):
    TrainingDocuments(run=set_of(TEXTS[:20])).save(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    assert len(TrainingDocuments.load(path).run) == 20
    broken = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 37)]
    for content in [*broken, *(whole[:length] for length in (0, 7, 100, len(whole) - 1))]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"training_documents\.safetensors cannot be read: "):
            TrainingDocuments.load(path)


# --- Encoders against test sets ---


@pytest.fixture
def record(tmp_path):
    record = TrainingDocuments(run=set_of(TEXTS[:10]))
    record.save(tmp_path)
    return record


def test_shares_of_distinct_documents_with_a_warning(record, tmp_path, caplog):
    one_more = " ".join([*TEXTS[1].split(), "and", "more"])
    shares = contamination(str(tmp_path), [*TEXTS[20:22], TEXTS[0], f" {TEXTS[0]}", one_more])
    assert shares == {"seen_in_pretraining_share": 0.25, "near_duplicate_share": 0.5}
    assert contamination(str(tmp_path), [one_more]) == {
        "seen_in_pretraining_share": 0,
        "near_duplicate_share": 1,
    }
    for told in ("25.0 % of the distinct test documents, 50.0 % with near-duplicates",
                 "saw 0.0 % of the distinct test documents, 100.0 % with near-duplicates"):  # fmt: skip
        assert told in caplog.text
    assert seen_documents.share_of_queries(str(tmp_path), TEXTS[8:12]) == 0.5


@pytest.mark.parametrize("damage", ["none there", "a flipped bit", "a folder"])
def test_without_a_whole_record_all_is_unknown_and_said(record, tmp_path, caplog, damage):
    caplog.set_level("INFO", logger="docsplit")
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "a flipped bit":
        path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    shares = contamination(str(tmp_path), TEXTS)
    assert shares == {"seen_in_pretraining_share": None, "near_duplicate_share": None}
    assert seen_documents.share_of_queries(str(tmp_path), TEXTS) is None
    said = {entry.getMessage() for entry in caplog.records}
    assert len(said) == (damage != "none there")  # beside most encoders there is none
    assert all(f"documents of {tmp_path} are unknown: " in one and FILE in one and "\n" not in one for one in said)
