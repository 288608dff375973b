"""An index that is damaged anywhere gives the answers of before, or one line that names the file."""

import os
import shutil
from contextlib import suppress

import numpy as np
import pytest
import xxhash

import search
from docsplit.data.readers.base import Document
from docsplit.index.changes import add, build, delete
from docsplit.index.index import ARRAYS, IndexReader
from docsplit.index.results import Checked
from docsplit.runtime.files import Damaged, read_sealed, write_sealed
from tests.index.conftest import ENCODER, WORDS, embed
from tests.index.mutations import trial

QUERIES = ("how does the kettle boil", "a ship in the harbour")
REMEDY = "Restore the index from a copy, or build it again in a new folder."


@pytest.fixture(scope="module")
def small(documents, tmp_path_factory):
    """An index of two segments, each with a deleted document."""
    directory = tmp_path_factory.mktemp("small") / "index"
    build(directory, documents[45:58], ENCODER, WORDS)
    add(directory, [*documents[58:64], Document("no more", "It goes away.")], ENCODER)
    delete(directory, ["no more", documents[53].id])
    return directory


@pytest.fixture
def index(small, tmp_path):
    return shutil.copytree(small, tmp_path / "index")


def answers(directory):
    index = IndexReader(directory)
    hits = [
        index.search(embed([query])[0], query, 5, method)
        for query in QUERIES
        for method in ("hybrid", "dense", "bm25")
    ]
    return hits, [segment.titles[row] for segment, row in index.documents()], index.document_vectors().tobytes()


def test_any_damage_is_named_or_harmless(index):
    wanted = answers(index)
    outcomes = [trial(index, seed, answers, wanted) for seed in range(100)]
    assert 40 < outcomes.count("named") < 100
    assert Checked.of(index).faults == []


def test_every_byte_of_the_data_counts(index):
    """Padding, too."""
    data = index / IndexReader(index).manifest.file
    content = bytearray(data.read_bytes())
    for place in np.random.default_rng(0).choice(len(content), 200, replace=False):
        content[place] ^= 1
        data.write_bytes(content)
        (fault,) = Checked.of(index).faults
        assert fault.startswith(f"{data} has changed since it was written, among the ")
        assert fault.endswith(f". {REMEDY}")
        content[place] ^= 1


def test_every_damaged_segment_is_listed(index, run_here, capsys):
    run_here(search.main, "check", index)
    assert "The index is sound: 1 file (0.0 MB) with 18 documents" in capsys.readouterr().out
    manifest = IndexReader(index).manifest
    data = index / manifest.file
    content = bytearray(data.read_bytes())
    for entry in manifest.segments:
        content[entry.start + entry.size // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(ValueError, match="is not sound: 2 faults"):
        run_here(search.main, "check", index)
    assert len(capsys.readouterr().out.splitlines()) == 2
    content[manifest.segments[0].start + manifest.segments[0].size // 2] ^= 1
    data.write_bytes(content)
    checked = Checked.of(index)
    assert (checked.documents, checked.bytes) == (manifest.segments[0].documents, len(content))
    data.write_bytes(content[:-1])
    (fault,) = Checked.of(index).faults
    assert f"{data} has {len(content) - 1:,} bytes, not {len(content):,}." in fault


def test_a_large_index_is_read_in_full_by_check_alone(index, monkeypatch):
    """Its size is compared whenever it is opened, and so are the contents of what is small."""
    data = index / IndexReader(index).manifest.file
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    with pytest.raises(ValueError, match="has changed since it was written"):
        IndexReader(index)
    monkeypatch.setattr("docsplit.index.index.READ_WHEN_OPENED", len(content) - 1)
    answers(index)
    assert len(Checked.of(index).faults) == 1


# --- From a stranger, whose digests fit ---


def resealed(index, change):
    """Change the manifest and the data of an index, and make its digests fit."""
    path = index / "manifest.json"
    manifest = read_sealed(path)
    data = bytearray((index / manifest["file"]).read_bytes())
    change(manifest, data)
    for entry in manifest["segments"]:
        entry["xxh3"] = xxhash.xxh3_128_hexdigest(bytes(data[entry["start"] : entry["start"] + entry["size"]]))
    write_sealed(path, manifest)
    if manifest["length"]:
        (index / manifest["file"]).write_bytes(data)


@pytest.mark.parametrize("name", ["{victim}", "../victim", "data-01234567.bin", "manifest.json", "lock"])
def test_a_file_elsewhere_is_neither_written_nor_read(index, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("three years of work")
    (index / "data-01234567.bin").symlink_to(victim)
    resealed(
        index,
        lambda manifest, _: manifest.update(file=name.format(victim=victim), length=0, segments=[], approximate=None),
    )
    for use in (IndexReader, lambda at: delete(at, []), lambda at: add(at, [Document("a", "A text.")], ENCODER)):
        with pytest.raises(Damaged, match=r"manifest\.json names files or arrays that no change of an index writes"):
            use(index)
    assert victim.read_text() == "three years of work"


@pytest.mark.parametrize("name", [".manifest.json.{pid}.partial", "lock", "cache", "approximate-01234567.faiss"])
def test_a_link_to_a_file_elsewhere_is_not_written_through(index, tmp_path, name):
    """Nor is a folder behind it emptied."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "embeddings-01").mkdir()
    work = victim / "embeddings-01" / "work"
    work.write_text("three years of work")
    link = index / name.format(pid=os.getpid())
    link.unlink(missing_ok=True)
    link.symlink_to(victim if name == "cache" else work)
    with suppress(OSError):  # filelock follows no link
        add(index, [Document("a", "A text.")], ENCODER)
    assert work.read_text() == "three years of work"


SHAPES = {
    "a type": {"tokens": ["|O", [13, 3]]},
    "another name": {"more": [1]},
    "no name": {"tokens": None},
    "other documents": {"order": [12]},
    "no rows": {"vectors": [12]},
    "other vectors": {"vectors": [1, 16]},
    "less than none": {"vectors": [-1, 8]},
    "out of the file": {"texts": [10**9]},
    "out of memory": {"vectors": [2**40, 2**40]},
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_arrays_that_no_change_writes_are_refused(index, changes):
    def change(manifest, _):
        arrays = manifest["segments"][0]["arrays"] | changes
        manifest["segments"][0]["arrays"] = {name: shape for name, shape in arrays.items() if shape is not None}

    resealed(index, change)
    with pytest.raises(Damaged, match=r"manifest\.json"):
        IndexReader(index)
    assert len(Checked.of(index).faults) == 1


@pytest.mark.parametrize("changes", [{"similarity": "euclidean"}, {"name": 3}, {"dimension": "8"}])
def test_an_encoder_that_no_index_has_is_refused(index, changes):
    resealed(index, lambda manifest, _: manifest["encoder"].update(changes))
    with pytest.raises(Damaged, match=r"manifest\.json: encoder: .* expected"):
        IndexReader(index)


@pytest.mark.parametrize("value", [-1, 10**6])
@pytest.mark.parametrize("name", [name for name, (kind, _) in ARRAYS.items() if kind != "|u1"])
def test_a_number_that_leads_nowhere_is_found(index, name, value):
    """Of counts and vectors any number can be computed with."""

    def change(manifest, data):
        entry = IndexReader(index).manifest.segments[0]
        place = entry.start
        for each, shape in entry.arrays.items():
            array = np.ndarray(shape, ARRAYS[each][0], buffer=data, offset=place)
            if each == name:
                array.flat[len(array) // 2] = value
            place += -(-array.nbytes // 64) * 64

    resealed(index, change)
    if name in ("vectors", "tokens", "words.counts", "lengths"):
        answers(index)
        return
    with pytest.raises(Damaged, match=r"data-\w+\.bin"):
        IndexReader(index)
    assert len(Checked.of(index).faults) == 1
