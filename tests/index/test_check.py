"""An index that is damaged anywhere gives the answers of before, or one line that names the file."""

import dataclasses
import shutil

import numpy as np
import pytest

import search
from docsplit.data.readers.base import Document
from docsplit.index import changes
from docsplit.index.changes import add, build, delete
from docsplit.index.check import check
from docsplit.index.index import Index
from docsplit.index.manifest import TokensEntry, WordsEntry, read_manifest
from docsplit.index.segments import query_words, seal_segment, write_array
from docsplit.runtime.files import seal_folder
from tests.index.conftest import ENCODER, WORDS, embed
from tests.index.mutations import contents, trial

QUERIES = ("how does the kettle boil", "a ship in the harbour")


@pytest.fixture(scope="module")
def small(documents, tmp_path_factory):
    """An index with all that an index may have, but an inverted file."""
    directory = tmp_path_factory.mktemp("small") / "index"
    build(directory, documents[45:58], ENCODER, WORDS)
    add(directory, [*documents[58:64], Document("no more", "It goes away.")], ENCODER)
    delete(directory, ["no more", documents[53].id])
    (directory / "words-01234567").mkdir()
    (directory / "words-01234567" / "words.safetensors").write_bytes(bytes(range(256)))
    seal_folder(directory / "words-01234567")
    manifest = dataclasses.replace(Index(directory).manifest, words=WordsEntry("words-01234567", 18))
    changes._commit(directory, manifest)
    return directory


@pytest.fixture
def index(small, tmp_path):
    return shutil.copytree(small, tmp_path / "index")


def answers(directory):
    index = Index(directory)
    hits = [
        index.search(embed([query])[0], query_words(query), 5, method)
        for query in QUERIES
        for method in ("hybrid", "dense", "bm25")
    ]
    return hits, [segment.titles[row] for segment, row in index.documents()], index.document_vectors().tobytes()


def test_any_damage_is_named_or_harmless(index):
    wanted = answers(index)
    outcomes = [trial(index, seed, answers, wanted) for seed in range(150)]
    assert 100 < outcomes.count("named") < 150
    assert check(index).faults == []


def test_a_sound_index_is_said_to_be_so(small, run_here, capsys):
    run_here(search.main, "check", small)
    files = len([name for name in contents(small) if name not in ("lock", "manifest.json")])
    assert f"The index is sound: {files} files (0.0 MB) with 18 documents" in capsys.readouterr().out


def test_every_damaged_file_is_listed(index, run_here, capsys):
    changed = [
        "words-01234567/words.safetensors",
        *(f"segments/{e.name}/texts.utf8" for e in read_manifest(index).segments),
    ]
    for name in changed:
        (index / name).write_bytes(b"x" + (index / name).read_bytes()[1:])
    gone = next(index.glob("segments/*/ids.utf8"))
    gone.unlink()
    with pytest.raises(ValueError, match="is not sound: 4 faults"):
        run_here(search.main, "check", index)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("Restore the index from a copy, or build it again in a new folder.") for line in lines)
    for name in changed:
        assert sum(f"{index / name} has changed since it was written" in line for line in lines) == 1
    assert sum(f"{gone} is missing" in line for line in lines) == 1


def test_a_large_index_is_read_in_full_by_check_alone(index, monkeypatch):
    """Its sizes are compared whenever it is opened, and so are the contents of what is small."""
    monkeypatch.setattr("docsplit.index.index.READ_WHEN_OPENED", 0)
    path = next(index.glob("segments/*/titles.utf8"))
    original = path.read_bytes()
    path.write_bytes(b"#" + original[1:])
    answers(index)
    assert len(check(index).faults) == 1
    path.write_bytes(original[1:])
    with pytest.raises(ValueError, match=r"titles\.utf8 has [\d,]+ bytes, not [\d,]+\."):
        Index(index)
    path.write_bytes(original)
    for path in (next(index.glob("segments/*/files.json")), next(index.glob("segments/*/deleted-*.npy"))):
        original = path.read_bytes()
        path.write_bytes(original[:-1] + b"\x01")
        with pytest.raises(ValueError, match=rf"{path.name} has changed since it was written"):
            Index(index)
        path.write_bytes(original)


def reverse(values):
    return values[::-1]


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("order", reverse, r"order\.npy does not sort the ids"),
        ("order", np.zeros_like, r"order\.npy does not have each row once"),
        ("order", lambda values: values[1:], r"order\.npy is damaged: it has 6 rows, not 7"),
        ("order", lambda values: values.astype(np.float32), r"order\.npy is damaged: it holds another kind of array"),
        ("ids.ends", lambda values: np.append(values[1::-1], values[2:]), r"ids\.ends\.npy falls"),
        ("texts.ends", lambda values: values - 1, r"texts\.utf8 is damaged: it has"),
        ("titles.ends", lambda values: values[1:], r"titles\.ends\.npy is damaged: it has 6 rows, not 7"),
        ("passage_starts", lambda values: values + (values > 0), "its passages are not those of its texts"),
        ("passages", lambda values: values[1:], "its passages are not those of its texts"),
        ("passages", lambda values: values[:, 1:], r"passages\.npy is damaged: it has 7 rows, not 8"),
        ("documents", lambda values: values * np.nan, "its vectors are not all finite"),
        ("documents", lambda values: values[1:], r"documents\.npy is damaged: it has 6 rows, not 7"),
        ("words.rows", reverse, "its counts of words contradict each other"),
        ("words.rows", lambda values: values + 100, "its counts of words contradict each other"),
        ("words.counts", lambda values: values + 1, "its counts of words contradict each other"),
        ("words.starts", lambda values: values + 1, "its counts of words contradict each other"),
        ("words.lengths", lambda values: values + 1, "its counts of words contradict each other"),
    ],
)
def test_files_that_were_written_wrong_do_not_fit_together(index, name, change, reason):
    """Their checksums are right: as after a fault of the program."""
    entry = read_manifest(index).segments[-1]
    folder = index / "segments" / entry.name
    assert len(np.load(folder / "order.npy")) == 7
    np.save(folder / f"{name}.npy", change(np.load(folder / f"{name}.npy")))
    seal_segment(folder)
    manifest = read_manifest(index)
    del manifest.files[f"segments/{entry.name}/files.json"]
    dataclasses.replace(manifest, files=manifest.recorded(index)).write(index)
    (fault,) = check(index).faults
    assert str(folder) in fault
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(fault)


@pytest.mark.parametrize("rows", [[7], [-1], [2, 2], [3, 2], [2, 3]])
def test_deleted_rows_are_rows_and_are_counted(index, rows):
    manifest = read_manifest(index)
    entry = manifest.segments[-1]
    name = f"segments/{entry.name}/{entry.deleted}"
    write_array(index / name, np.array(rows))
    del manifest.files[name]
    dataclasses.replace(manifest, files=manifest.recorded(index)).write(index)
    faults = " ".join(check(index).faults)
    if len(rows) == 1:
        assert "rows are deleted that it does not have" in faults
    else:
        assert "it has 5 documents, and the manifest says 6" in faults
        assert ("does not have rows once each, in order" in faults) == (rows != [2, 3])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": TokensEntry(1, 1, 1)}, "its documents have other tokens"),
        ({"segments": "twice"}, "a document is in two segments"),
        ({"approximate": "other"}, "approximate-01234567.faiss is of other passages"),
    ],
)
def test_the_manifest_says_what_is_there(index, change, reason):
    manifest = read_manifest(index)
    entry = manifest.segments[0]
    if "segments" in change:
        (index / "segments" / ("0" * 32)).mkdir()
        shutil.copytree(index / "segments" / entry.name, index / "segments" / ("0" * 32), dirs_exist_ok=True)
        change = {"segments": [*manifest.segments, dataclasses.replace(entry, name="0" * 32)]}
    if "approximate" in change:
        (index / "approximate-01234567.faiss").touch()
        change = {
            "approximate": changes.approximate.InvertedFile("approximate-01234567.faiss", [entry.name], [1], 1, 1.0)
        }
    manifest = dataclasses.replace(manifest, **change)
    dataclasses.replace(manifest, files=manifest.recorded(index)).write(index)
    (fault,) = check(index).faults
    assert reason in fault


def test_what_is_no_finished_index_is_refused(documents, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="There is no index"):
        check(tmp_path)
    with pytest.raises(ValueError, match="None of the documents has text"):
        build(tmp_path, [Document("e", "")], ENCODER, WORDS)
    with pytest.raises(ValueError, match="is not built to its end"):
        check(tmp_path)
