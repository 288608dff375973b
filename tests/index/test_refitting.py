"""Words that are fitted anew: as if the index had been built with them, and whole or not at all."""

import logging
import os
import shutil
import textwrap
import time

import numpy as np
import pytest

from docsplit.data.readers.base import Document
from docsplit.embedding import lexical_ridge
from docsplit.embedding.encoder import Encoder
from docsplit.embedding.lexical_ridge import RidgeSettings, fit
from docsplit.index import approximate, changes, refitting, segments
from docsplit.index.changes import add, build, delete
from docsplit.index.index import Index
from docsplit.index.manifest import Manifest, WordsEntry
from docsplit.index.overview import clusters, duplicates
from docsplit.index.vectors import IndexEncoder, with_words_of
from docsplit.modeling.encoder_with_words import Words
from tests.index.conftest import WORDS
from tests.processes import Script


@pytest.fixture(scope="module")
def first(documents, worded_encoder, tmp_path_factory):
    """An index of 40 documents."""
    folder = tmp_path_factory.mktemp("first")
    build(folder, documents[:40], worded_encoder, WORDS)
    return folder


@pytest.fixture
def index(first, tmp_path):
    return shutil.copytree(first, tmp_path / "index")


def contents(directory):
    """All that an index has by id: text, vectors with words and without, of documents and of passages."""
    index = Index(directory)
    return {
        segment.ids[row]: (
            segment.texts[row],
            segment.document_vectors[row],
            segment.passage_vectors[segment.passages_of(row)],
            segment.plain_vectors().documents[row],
            segment.plain_vectors().passages[segment.passages_of(row)],
        )
        for segment, row in index.documents()
    }


def assert_same(directory, expected, tolerance=1e-5):
    found = contents(directory)
    assert found.keys() == expected.keys()
    for key, (text, *vectors) in found.items():
        assert text == expected[key][0]
        for ours, theirs in zip(vectors, expected[key][1:], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=tolerance)


def leftovers(directory):
    """What the manifest does not name."""
    manifest = Index(directory).manifest
    named = {entry.name for entry in manifest.segments} | {manifest.words.folder}
    paths = [*(directory / "segments").iterdir(), *directory.glob("words-*")]
    return {path.name for path in paths} - named


def fitted_slowly(worded_encoder, documents):
    """The encoder, its words fitted on these documents."""
    encoder = worded_encoder.with_words
    texts = [document.text for document in documents]
    return encoder.with_words(fit(encoder.model, texts, encoder.without_words().embed(texts)).words)


def assert_fitted_on_all(directory, worded_encoder):
    """Documents of several passages have the words that all documents of the index make together."""
    places = list(Index(directory).documents())
    texts = [segment.texts[row] for segment, row in places]
    plain = np.stack([segment.plain_vectors().documents[row] for segment, row in places])
    encoder = worded_encoder.with_words
    expected = encoder.with_words(fit(encoder.model, texts, plain).words).add_words(texts, plain)
    counts = [len(segment.passage_vectors[segment.passages_of(row)]) for segment, row in places]
    several = np.flatnonzero(np.array(counts) > 1)
    assert len(several) > 5
    np.testing.assert_allclose(Index(directory).document_vectors()[several], expected[several], atol=1e-5)


def test_a_tenth_more_documents_get_words_of_all(index, documents, worded_encoder, caplog, tmp_path):
    caplog.set_level(logging.INFO)
    before = contents(index)
    add(index, documents[40:43], worded_encoder)
    assert Index(index).manifest.words == WordsEntry(None, 40)
    assert "fitted anew" not in caplog.text
    add(index, documents[43:44], worded_encoder)
    entry = Index(index).manifest.words
    assert (entry.documents, entry.folder[:6]) == (44, "words-")
    assert caplog.text.count("anew on 44 documents: the index has grown from 40 to 44 documents.") == 1
    assert caplog.text.count("All 44 documents have vectors with the new words.") == 1
    assert "The words keep the encoder's weight, 0.8; by this fit it would be 0.3." in caplog.text
    assert caplog.text.index("fitted anew") < caplog.text.index("All 44 documents")
    # As if the index had been built with these words.
    encoder = fitted_slowly(worded_encoder, documents[:44])
    expected = encoder.embed_for_index([document.text for document in documents[:44]])
    now = contents(index)
    several = [number for number in range(44) if len(now[documents[number].id][2]) > 1]
    assert len(several) > 5
    for number in several:
        np.testing.assert_allclose(now[documents[number].id][1], expected[number], atol=1e-4)
    for key, (_, document, passages, plain, plain_passages) in before.items():
        np.testing.assert_array_equal(now[key][3], plain)
        np.testing.assert_array_equal(now[key][4], plain_passages)
        assert np.abs(now[key][1] - document).max() > 1e-3
        assert np.abs(now[key][2] - passages).max() > 1e-3
    # Later documents get the same words; the next fitting starts from plain vectors, not from these.
    add(index, documents[44:46], worded_encoder)
    assert Index(index).manifest.words == entry
    used = with_words_of(worded_encoder.with_words, index, Index(index).manifest)
    (segment, row) = Index(index).find(documents[45].id)
    text = documents[45].text
    added = used.add_words([text], used.without_words().embed_for_index([text]))[0]
    np.testing.assert_allclose(segment.document_vectors[row], added, atol=1e-5)
    add(index, documents[46:], worded_encoder)
    build(tmp_path / "fresh", documents, worded_encoder, WORDS)
    add(tmp_path / "fresh", [], worded_encoder, refit="always")
    assert Index(index).manifest.words.documents == len(documents)
    assert_same(index, contents(tmp_path / "fresh"), 1e-4)


@pytest.mark.parametrize("settings", [RidgeSettings(neighbours=0), RidgeSettings(neighbours=3, sublinear=False)])
def test_words_are_fitted_anew_as_the_encoders_were(tmp_path, documents, worded_encoder, settings, monkeypatch):
    encoder = worded_encoder.with_words
    texts = [document.text for document in documents[:40]]
    plain = encoder.without_words().embed(texts)
    other = encoder.with_words(fit(encoder.model, texts, plain, settings).words)
    used = []
    monkeypatch.setattr(lexical_ridge, "fit", lambda *given: used.append(given[3]) or fit(*given))
    build(tmp_path / "index", documents[:40], IndexEncoder.of(other), WORDS)
    add(tmp_path / "index", documents[40:50], IndexEncoder.of(other))
    assert used == [settings]


def test_an_index_goes_on_after_a_fitting(index, documents, worded, worded_encoder, monkeypatch):
    """Deletions, replacements, merges, copies, groups, and the encoder of the manifest."""
    monkeypatch.setattr(changes, "MOST_SMALL_SEGMENTS", 3)
    delete(index, [documents[3].id])
    old = Document(documents[5].id, "Quite another text about lighthouses.")
    add(index, [*documents[40:50], old], worded_encoder, replace=True)
    manifest = Index(index).manifest
    assert manifest.words.documents == 49 == len(Index(index))
    assert Index(index).find(documents[3].id) is None
    assert_fitted_on_all(index, worded_encoder)  # but for what is deleted
    for start in range(50, 54):
        add(index, documents[start : start + 1], worded_encoder, refit="never")
    assert len(Index(index).segments) <= 4  # merged, plain vectors too
    copy = Document("copy", documents[40].text)
    add(index, [copy], worded_encoder, refit="always")
    last = Index(index)
    assert last.manifest.words.documents == 54 == len(last)
    assert last.manifest.encoder == manifest.encoder == Encoder(str(worded)).description
    assert {("copy", documents[40].id)} == {tuple(sorted((pair.id, pair.other))) for pair in duplicates(last, 0.9999)}
    assert sum(group.size for group in clusters(last, 3)) == 54
    assert_fitted_on_all(index, worded_encoder)
    vector = Encoder(str(worded)).embed_query("a lighthouse in the storm")
    assert len(last.search(vector, ["lighthouses"], 5)) == 5


@pytest.mark.parametrize("refit", ["auto", "never", "always"])
def test_words_are_fitted_when_it_is_said(index, documents, worded_encoder, caplog, refit):
    caplog.set_level(logging.INFO)
    add(index, documents[40:41], worded_encoder, refit=refit)
    assert (Index(index).manifest.words.folder is not None) is (refit == "always")
    add(index, documents[41:50], worded_encoder, refit=refit)
    assert (Index(index).manifest.words.folder is not None) is (refit != "never")
    grown = "The words stay as they are, though the index has grown from 40 to 50 documents (--refit never)."
    assert (grown in caplog.text) is (refit == "never")
    assert ("on 41 documents: --refit always says so." in caplog.text) is (refit == "always")


def test_words_that_cannot_be_fitted_stay(documents, worded_encoder, tmp_path, caplog):
    build(tmp_path, documents[:5], worded_encoder, WORDS)
    add(tmp_path, documents[5:10], worded_encoder)
    assert "The words stay as they are: 10 distinct documents with text" in caplog.text
    assert (len(Index(tmp_path)), Index(tmp_path).manifest.words) == (10, WordsEntry(None, 5))
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="10 distinct documents with text"):
        add(tmp_path, [], worded_encoder, refit="always")
    assert (tmp_path / "manifest.json").read_bytes() == before
    delete(tmp_path, [document.id for document in documents[:10]])
    with pytest.raises(ValueError, match="The index has no documents"):
        add(tmp_path, [], worded_encoder, refit="always")


def test_folders_of_others_are_left_alone(index, documents, worded_encoder):
    for name in ("words-1", "words-backup"):
        (index / name).mkdir()
    add(index, [], worded_encoder, refit="always")
    add(index, [], worded_encoder, refit="always")
    delete(index, [documents[0].id])
    folders = {path.name for path in index.glob("words-*")}
    assert folders == {"words-1", "words-backup", Index(index).manifest.words.folder}


def test_an_encoder_without_words_has_none_to_fit(built, documents, tmp_path):
    from tests.index.conftest import ENCODER

    index = shutil.copytree(built, tmp_path / "index")
    with pytest.raises(ValueError, match="--refit always: test adds no words of documents"):
        add(index, [Document("new", "A text.")], ENCODER, refit="always")
    add(index, [Document(f"new {number}", "A text.") for number in range(30)], ENCODER)
    assert Index(index).manifest.words is None
    assert not list(index.glob("words-*"))


class Killed(BaseException):
    """Nothing after it runs, as after a kill."""


def before_or_after(function, number, after):
    """The function, which ends with `Killed` at its so-many-th call, before or after it does its work."""
    calls = []

    def killed(*arguments, **more):
        calls.append(arguments)
        result = function(*arguments, **more) if len(calls) < number or after else None
        if len(calls) == number:
            raise Killed
        return result

    return killed


STEPS = [
    (changes, "write_segment", 1, True),
    (lexical_ridge, "fit", 1, True),
    (Words, "save", 1, False),
    (Words, "save", 1, True),
    (refitting, "renew_segment", 1, False),
    (segments, "_write_vectors", 3, True),  # the added segment has two
    (refitting, "renew_segment", 2, True),
    (approximate, "is_needed", 1, False),
    (Manifest, "write", 1, False),
    (Manifest, "write", 1, True),
    (changes, "_remove_cache", 1, False),
]


@pytest.mark.parametrize(("where", "name", "number", "after"), STEPS)
def test_killed_at_any_step_it_is_the_old_or_the_new_index(
    index, documents, worded_encoder, monkeypatch, where, name, number, after
):
    before, folders = contents(index), leftovers(index)
    assert not folders
    with monkeypatch.context() as patch:
        patch.setattr(where, name, before_or_after(getattr(where, name), number, after))
        with pytest.raises(Killed):
            add(index, documents[40:], worded_encoder)
    is_new = (name, after) in [("write", True), ("_remove_cache", False)]
    assert len(Index(index)) == (len(documents) if is_new else 40)
    assert leftovers(index)
    if not is_new:
        assert_same(index, before, 0)
        add(index, documents[40:], worded_encoder)
    assert Index(index).manifest.words.documents == len(documents)
    delete(index, [])
    assert not leftovers(index)
    assert (index / Index(index).manifest.words.folder / "words.safetensors").exists()


def test_a_full_disk_leaves_the_index_as_it_was(index, documents, worded_encoder, monkeypatch):
    """Wherever it is full: libraries have errors of their own, which become one of the disk."""
    before = contents(index)

    def full(*arguments, **more):
        raise RuntimeError("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(Words, "save", full)
        with pytest.raises(OSError, match=r"The words cannot be written to .*: No space left on device"):
            add(index, documents[40:], worded_encoder)
    assert_same(index, before, 0)
    saved, save = [], np.save
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", lambda file, values, **more: saved.append(file) or save(file, values, **more))
        add(shutil.copytree(index, index.parent / "copy"), documents[40:], worded_encoder)
    for number in range(0, len(saved), 4):
        calls = []

        def full_at_last(file, values, calls=calls, number=number, **more):
            calls.append(file)
            if len(calls) > number:
                raise OSError(28, "No space left on device")
            save(file, values, **more)

        with monkeypatch.context() as patch:
            patch.setattr(np, "save", full_at_last)
            with pytest.raises(OSError, match="No space left"):
                add(index, documents[40:], worded_encoder)
    assert_same(index, before, 0)


KILLED = """
    import sys
    from pathlib import Path
    from docsplit.data.readers.base import Document
    from docsplit.embedding.encoder import Encoder
    from docsplit.index.changes import add
    from docsplit.index.vectors import IndexEncoder

    directory, encoder = Path(sys.argv[1]), IndexEncoder.of(Encoder(sys.argv[2]))
    print("ready", flush=True)
    while True:
        add(directory, [Document("more", "A ship in the harbour.")], encoder, replace=True, refit="always")
        print("fitted", flush=True)
"""


def test_killed_for_real_it_is_the_old_or_the_new_index(index, documents, worded, worded_encoder, tmp_path):
    before = contents(index)
    script = tmp_path / "again.py"
    script.write_text(textwrap.dedent(KILLED))
    process = Script(script, index, worded)
    while "fitted" not in process.stdout:
        assert process.returncode is None, process.stderr
        time.sleep(0.01)
    time.sleep(0.03)
    process.kill()
    process.wait()
    now = Index(index)
    assert len(now) == 41
    assert now.manifest.words == WordsEntry(now.manifest.words.folder, 41)
    # The vectors are those of the words that the manifest names.
    used = with_words_of(worded_encoder.with_words, index, now.manifest)
    texts = [segment.texts[row] for segment, row in now.documents()]
    plain = np.stack([segment.plain_vectors().documents[row] for segment, row in now.documents()])
    several = [row for row, (_, _, passages, *_) in enumerate(contents(index).values()) if len(passages) > 1]
    np.testing.assert_allclose(now.document_vectors()[several], used.add_words(texts, plain)[several], atol=1e-5)
    delete(index, ["more"])
    delete(index, [])
    assert not leftovers(index)
    assert contents(index).keys() == before.keys()


def test_the_inverted_file_is_renewed(index, documents, worded_encoder, monkeypatch):
    """Its cells are those of vectors that are gone; with few passages, none is needed."""
    made = []
    monkeypatch.setattr(approximate, "PASSAGES", 20)
    monkeypatch.setattr(
        approximate, "make", lambda directory, segments: made.append([*segments]) or approximate_of(segments)
    )

    def approximate_of(segments):
        name = f"approximate-{len(made):08}.faiss"
        (index / name).touch()
        return approximate.InvertedFile(name, [*segments], [len(s.passage_vectors) for s in segments.values()], 1, 1.0)

    add(index, documents[40:42], worded_encoder, refit="never")
    first = Index(index).manifest.approximate
    add(index, [Document("one", "One more.")], worded_encoder)
    assert (Index(index).manifest.approximate, len(made)) == (first, 1)
    add(index, documents[42:46], worded_encoder)
    manifest = Index(index).manifest
    assert manifest.approximate.segments == [entry.name for entry in manifest.segments] == made[1]
    assert not {*made[0]} & {*made[1]}
    monkeypatch.setattr(approximate, "PASSAGES", 10**6)
    add(index, [], worded_encoder, refit="always")
    assert Index(index).manifest.approximate is None


def test_what_stays_the_same_is_shared_or_copied(index, documents, worded_encoder, monkeypatch):
    old = Index(index).segments[0].folder
    add(index, documents[40:], worded_encoder)
    new = Index(index).segments[0].folder
    assert new != old
    for file in new.iterdir():
        is_other = file.name in ("documents.npy", "passages.npy", "files.json")
        assert os.path.samefile(file, old / file.name) is not is_other
    shared = contents(index)

    def refuse(*arguments):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    add(index, [], worded_encoder, refit="always")
    assert all(file.stat().st_nlink == 1 for file in Index(index).segments[0].folder.iterdir())
    assert_same(index, shared)
