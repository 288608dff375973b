"""The record of training documents: against sets, exact Jaccard similarities, and files that rot."""

import re
import zlib

import numpy as np
import pytest

from docsplit.data import seen_documents
from docsplit.data.preparation import document_id, tokenize
from docsplit.data.seen_documents import NO_HASH, DocumentSet, TrainingDocuments, resemblance, sketch
from tests.conftest import make_corpus

RNG = np.random.default_rng(0)
TEXTS = [row["text"] for row in make_corpus(300, seed=3)]
ODD = ["", "one two three four", "One two, three FOUR five", "Ünïcode, größer als ß und \ud800 mehr.", "word " * 40]


def runs_of(text):
    words = re.findall(r"(?u)\w+", text.replace("\ud800", " ").lower())
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def hash_of(run):
    value = 0
    for word in run:
        value = (value * 0x9E3779B97F4A7C15 + zlib.crc32(word.encode())) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return (value ^ value >> 31) >> 32


def jaccard(first, second):
    first, second = runs_of(first), runs_of(second)
    return len(first & second) / max(len(first | second), 1)


def ids_of(texts):
    return np.array([document_id(text) for text in texts])


def set_of(texts):
    documents = DocumentSet()
    documents.add(ids_of(texts), sketch(texts))
    return documents


def random_text(num_sentences, vocabulary=5_000):
    return ". ".join(" ".join(f"w{n}" for n in RNG.integers(vocabulary, size=12)) for _ in range(num_sentences))


def changed(text, share):
    """Return the text with that share of its words replaced, in one piece."""
    words = text.split()
    size = round(share * len(words))
    start = RNG.integers(len(words) - size + 1)
    return " ".join(words[:start] + [f"x{n}" for n in RNG.integers(10**6, size=size)] + words[start + size :])


def test_a_sketch_is_the_smallest_hashes_of_the_runs():
    texts = [*ODD, *TEXTS]
    for text, hashes in zip(texts, sketch(texts)):
        expected = sorted({hash_of(run) for run in runs_of(text)})[:8]
        assert hashes.tolist() == expected + [NO_HASH] * (8 - len(expected)), text
    assert sketch([]).shape == (0, 8)


def test_tokenised_documents_have_their_sketches(corpus, wordpiece):
    tokenised, _ = tokenize(corpus, wordpiece)
    sketches = np.stack(tokenised.with_format("numpy")["sketch"][:])
    np.testing.assert_array_equal(sketches, sketch(corpus["text"]))


def test_resemblance_estimates_the_jaccard_similarity():
    first = [random_text(10) for _ in range(400)]
    second = [changed(text, share) for text, share in zip(first, np.linspace(0, 0.9, 400))]
    exact = np.array([jaccard(*pair) for pair in zip(first, second)])
    error = resemblance(sketch(first), sketch(second)) - exact
    assert exact.min() < 0.1
    assert exact.max() > 0.9
    assert abs(error.mean()) < 0.02  # the standard error is about 0.007
    assert np.sqrt((error**2).mean()) < 0.18
    few = [" ".join(text.split()[:7]) for text in first]  # three runs: nothing is left out of their sketches
    ends = [" ".join(text.split()[1:8]) for text in first]
    assert resemblance(sketch(few), sketch(ends)).tolist() == [jaccard(*pair) for pair in zip(few, ends)]
    assert not resemblance(sketch(["one word"]), sketch(["one word"])).any()


def test_near_duplicates_are_those_of_all_pairs():
    trained = [random_text(4) for _ in range(60)] + ODD
    tested = [changed(trained[RNG.integers(60)], share) for share in np.linspace(0, 0.8, 80)] + ODD
    ours, theirs = sketch(tested), sketch(trained)
    slow = [any(resemblance(left[None], right[None]) >= 0.5 for right in theirs) for left in ours]
    seen = set_of(trained).near_duplicates(ours)
    assert seen.tolist() == slow
    assert 20 < sum(slow) < 70


def test_no_alarm_on_twenty_thousand_others_and_one_changed_sentence_is_found():
    trained = [random_text(3) for _ in range(20_000)]
    documents = set_of(trained)
    assert not documents.near_duplicates(sketch([random_text(3) for _ in range(2_000)])).any()
    sentences = [text.split(". ") for text in (random_text(30) for _ in range(100))]
    documents.add(*(part([". ".join(text) for text in sentences]) for part in (ids_of, sketch)))
    for text in sentences:
        text[RNG.integers(30)] = "here stands quite another sentence of the same length as before it was changed"
    assert documents.near_duplicates(sketch([". ".join(text) for text in sentences])).all()


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


def test_many_documents_go_into_filters(monkeypatch, tmp_path):
    monkeypatch.setattr(seen_documents, "DOCUMENTS_OF_A_FILTER", 1_000)
    ids = np.unique(RNG.integers(2**62, size=10_500))
    documents = DocumentSet()
    for part in np.array_split(RNG.permutation(ids), 7):
        documents.add(part, np.zeros((len(part), 8), np.uint32))
    documents.add(ids[:3_000], np.zeros((3_000, 8), np.uint32))  # a second pass
    assert len(documents.filters) == 10
    assert sum(bits.nbytes for bits in documents.filters) == 4 * 10_000  # bytes
    assert len(documents) == len(ids)
    assert documents.contains(ids).all()
    assert documents.contains(RNG.integers(2**62, 2**63, size=100_000)).mean() < 1e-4
    assert documents.false_alarm_rate == pytest.approx(10 * (1 - np.exp(-22 / 32)) ** 22)
    assert documents.sketches is None
    record = TrainingDocuments(run=documents).for_next_run()
    record.save(tmp_path)
    loaded = TrainingDocuments.load(tmp_path / "training_documents.safetensors")
    assert loaded.before.contains(ids).all()
    assert loaded.shares(TEXTS, ids_of(TEXTS)).near_duplicates is None  # not "none"


def test_a_filter_has_the_false_alarms_that_it_states(monkeypatch):
    """Three hash functions give enough false matches to count."""
    monkeypatch.setattr(seen_documents, "DOCUMENTS_OF_A_FILTER", 1_000)
    monkeypatch.setattr(seen_documents, "HASHES_OF_A_DOCUMENT", 3)
    monkeypatch.setattr(seen_documents, "BITS_OF_A_DOCUMENT", 8)
    documents = DocumentSet()
    documents.add(RNG.integers(2**62, size=4_000), None)
    documents.ids = documents.ids[:0]
    measured = documents.contains(RNG.integers(2**62, 2**63, size=200_000)).mean()
    assert measured == pytest.approx(documents.false_alarm_rate, rel=0.15)
    assert measured > 0.05


def test_sketches_are_unknown_beyond_some_number(monkeypatch):
    monkeypatch.setattr(seen_documents, "MOST_SKETCHES", 100)
    documents = set_of(TEXTS[:100])
    assert documents.sketches is not None
    documents.add(ids_of(TEXTS[100:101]), sketch(TEXTS[100:101]))
    assert documents.sketches is None
    with pytest.raises(ValueError, match="unknown"):
        documents.near_duplicates(sketch(TEXTS))
    documents.add(ids_of(TEXTS[:5]), sketch(TEXTS[:5]))
    assert documents.sketches is None
    record = TrainingDocuments(run=documents)
    assert record.shares(TEXTS, ids_of(TEXTS)) == seen_documents.SeenShares(101 / 300, None)


def test_the_next_run_has_the_union_before_it(tmp_path):
    record = TrainingDocuments(run=set_of(TEXTS[:50]), before=set_of(TEXTS[30:90]), is_complete=False)
    record.save(tmp_path)
    path = tmp_path / "training_documents.safetensors"
    after = TrainingDocuments.load(path).for_next_run()
    assert (len(after.run), len(after.before), after.is_complete) == (0, 90, False)
    after.run.add(ids_of(TEXTS[80:100]), sketch(TEXTS[80:100]))
    assert len(after.run) == 20  # those that were seen before count too
    tested = [TEXTS[0], TEXTS[95], f"{TEXTS[0]}\n ", "nobody saw this sentence in any of all those documents"]
    assert after.shares(tested, ids_of(tested)).seen == 2 / 3  # of distinct documents
    assert len(TrainingDocuments.load(path).before) == 60  # a copy was changed, not the record


def test_near_duplicate_share_counts_copies_too():
    long = random_text(30)
    record = TrainingDocuments(run=set_of(["a b", long]))
    tested = ["a b", long.replace("w1", "w2", 1), random_text(30), "c d"]
    shares = record.shares(tested, ids_of(tested))
    assert (shares.seen, shares.near_duplicates) == (0.25, 0.5)


def test_a_file_that_rotted_is_not_believed(tmp_path):
    TrainingDocuments(run=set_of(TEXTS[:20])).save(tmp_path)
    path = tmp_path / "training_documents.safetensors"
    whole = path.read_bytes()
    for position in [*range(0, 600, 7), *range(600, len(whole), 97)]:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ValueError, match=r"training_documents\.safetensors cannot be read: "):
            TrainingDocuments.load(path)
    for length in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="cannot be read"):
            TrainingDocuments.load(path)
    path.write_bytes(whole)
    assert len(TrainingDocuments.load(path).run) == 20
