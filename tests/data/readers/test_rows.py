"""Rows of data files, and their ids."""

import json

import pytest
from datasets import Dataset

from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.files import File
from docsplit.data.readers.rows import Columns, read_rows

ROWS = [{"text": "A ship.", "title": "Ships", "key": 7}, {"text": "A storm at sea.", "title": None, "key": 8}]


@pytest.fixture
def file(write):
    path = write("b/a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    return File(path, "b/a.jsonl")


def ids(file, text_column="text", id_column=None, in_folder=False, problems=None):
    rows = read_rows(file, Columns(text_column, id_column), in_folder, problems or Problems())
    return [document.id for document in rows]


def test_ids_have_the_files_name_in_a_folder_and_where_there_is_no_column(file, write):
    assert list(read_rows(file, Columns(), in_folder=False, problems=Problems())) == [
        Document("b/a.jsonl#0", "A ship.", "Ships"),
        Document("b/a.jsonl#1", "A storm at sea.", "A storm at sea."),
    ]
    assert ids(file, in_folder=True) == ["b/a.jsonl#0", "b/a.jsonl#1"]
    assert ids(file, id_column="key") == ["7", "8"]
    assert ids(file, id_column="key", in_folder=True) == ["b/a.jsonl#7", "b/a.jsonl#8"]
    named = File(write("c.csv", "_id,text\nx,A ship.\n"), "c.csv")
    assert (ids(named), ids(named, in_folder=True)) == (["x"], ["c.csv#x"])


def test_paragraphs_are_joined(tmp_path):
    Dataset.from_list([{"text": ["A sail.", "A rope."]}]).to_parquet(tmp_path / "a.parquet")
    (document,) = read_rows(File(tmp_path / "a.parquet", "a.parquet"), Columns(), False, Problems())
    assert (document.text, document.title) == ("A sail.\nA rope.", "A sail.")


def test_files_without_texts_say_why(file, write):
    with pytest.raises(Unreadable, match="--text_column is 'body'") as caught:
        ids(file, text_column="body")
    assert caught.value.reason == "without a column 'body'"
    with pytest.raises(ValueError, match="--id_column is 'name'") as caught:
        ids(file, id_column="name")
    assert not isinstance(caught.value, Unreadable)  # whoever asks for a column wants it in every file
    for name, content, reason in (
        ("broken.jsonl", '{"text": "tw', "that cannot be read as jsonl"),
        ("broken.parquet", b"no parquet", "that cannot be read as parquet"),
        ("empty.jsonl", "", "without rows"),
        ("heads.csv", "text,label\n", "without rows"),
    ):
        with pytest.raises(Unreadable, match=name) as caught:
            ids(File(write(name, content), name))
        assert caught.value.reason == reason
