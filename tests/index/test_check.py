"""An index that is damaged anywhere gives the answers of before, or one line that names the file."""

import shutil

import numpy as np
import pytest

import search
from docsplit.data.readers.base import Document
from docsplit.index.changes import add, build, delete
from docsplit.index.index import IndexReader
from docsplit.index.results import Checked
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
