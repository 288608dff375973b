"""Damaged documents of every suffix: each is read, or counted, or refused in one line; nothing fails or hangs."""

import re

import pytest

from docsplit.data.readers.corpus import load_local
from docsplit.data.readers.documents import Reading, find_documents
from tests.data.readers.fuzzed_documents import READERS, VALID, failure_of, fuzzed_documents

COUNT = 200
READ_AT_ONCE = 8  # of so many files one is read in the ways that cost most


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Fuzzed files of every suffix."""
    folder = tmp_path_factory.mktemp("fuzzed")
    for fuzzed in fuzzed_documents(COUNT):
        (folder / fuzzed.name).write_bytes(fuzzed.content)
    assert {re.sub(r"^\d+|\.(gz|bz2|xz)$", "", path.name) for path in folder.iterdir()} == {*VALID}
    return folder


def test_each_file_is_read_or_refused_in_a_line_that_names_it(folder):
    failures = {}
    for number, path in enumerate(sorted(folder.iterdir())):
        for reader in READERS if number % READ_AT_ONCE == 0 else ("search", "stream"):
            if failure := failure_of(reader, path):
                failures[path.name, reader] = failure
    assert failures == {}


def test_each_file_of_a_folder_gives_documents_or_is_counted(folder):
    reading = Reading(find_documents(folder))
    documents = list(reading.documents())
    assert len({document.id for document in documents}) == len(documents)
    read = {re.sub("#.*", "", document.id, flags=re.DOTALL) for document in documents}
    assert len(read) + reading.found.skipped.counts.total() == COUNT
    assert len(read) == reading.num_files > COUNT / 3
    for document in documents:
        document.text.encode()
        document.id.encode()
        assert "None" not in document.id
    for warning in reading.warnings():
        assert "\n" not in warning
    assert load_local(folder, "text").to_list() == [
        {"id": document.id, "title": document.title, "text": document.text} for document in documents
    ]


def test_the_same_seed_gives_the_same_files():
    assert list(fuzzed_documents(20, seed=3)) == list(fuzzed_documents(20, seed=3)) != list(fuzzed_documents(20))
