"""Rows of data files, and their ids."""

import json

import pyarrow
import pytest
from datasets import Dataset
from pyarrow import parquet

from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.files import File
from docsplit.data.readers.rows import Columns, parts_of, read_rows, read_texts

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


def test_rows_without_an_id_get_the_number_of_their_row_and_are_counted(write):
    rows = [{"id": None}, {"id": "x"}, {"id": " "}, {}, {"id": float("nan")}, {"id": 7}, {"id": ["a"]}, {"id": "x"}]
    content = "".join(json.dumps({"text": "A ship."} | row) + "\n" for row in rows)
    file, problems = File(write("a.jsonl", content), "a.jsonl"), Problems()
    numbered = {number: f"a.jsonl#{number}" for number in (0, 2, 3, 4, 6, 7)}
    assert ids(file, problems=problems) == [numbered.get(number, {1: "x", 5: "7"}.get(number)) for number in range(8)]
    assert problems.notes == {"without_id": (5, "a.jsonl#0"), "repeated_id": (1, "x of row 7")}
    in_folder = [numbered.get(number, {1: "a.jsonl#x", 5: "a.jsonl#7"}.get(number)) for number in range(7)]
    assert ids(file, in_folder=True) == [*in_folder, "a.jsonl#7+"]  # row 5 is called like the number of row 7
    without = File(write("b.jsonl", '{"text": "a"}\n{"text": "b"}\n'), "b.jsonl")
    assert ids(without, problems=(problems := Problems())) == ["b.jsonl#0", "b.jsonl#1"]
    assert not problems.is_any  # where no row has an id, nothing is missing


def test_ids_of_tables_stay_as_they_are_written(write):
    assert ids(File(write("a.csv", "id,text\n0012,a\n,b\n1e3,c\n"), "a.csv")) == ["0012", "a.csv#1", "1e3"]


def test_titles_that_are_no_texts(write):
    rows = [{"title": 1984}, {"title": ["a"]}, {"title": True}, {"title": float("nan")}, {"title": "a \ud800"}]
    content = "".join(json.dumps({"text": "First line."} | row) + "\n" for row in rows)
    documents = read_rows(File(write("a.jsonl", content), "a.jsonl"), Columns(), False, Problems())
    assert [document.title for document in documents] == ["1984", "First line.", "First line.", "First line.", "a"]


def test_a_parquet_file_is_read_up_to_where_it_is_damaged(write, tmp_path):
    texts = [f"number {number}" for number in range(3000)]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=1000)
    metadata = parquet.read_metadata(tmp_path / "a.parquet")
    start = metadata.row_group(1).column(0).dictionary_page_offset
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[start : start + 30] = bytes(30)
    file, problems = File(write("b.parquet", bytes(content)), "b.parquet"), Problems()
    documents = list(read_rows(file, Columns(), False, problems))
    assert [document.text for document in documents] == texts[:1000]
    assert problems.rows.names == {
        ".parquet and all after it, since the file is damaged there": ["b.parquet, row 1000"]
    }
    assert parts_of(file) == [0, 1, 2]
    parts = [list(read_texts(file, Columns(), part, problems)) for part in parts_of(file)]
    assert parts == [texts[:1000], [], texts[2000:]]  # a stream can read on
