"""Local files as a stream: shards, rows, and what was wrong. How training reads it is tested in test_streaming.py."""

import pyarrow
import pytest
from pyarrow import parquet

from docsplit.data.readers import stream as stream_module
from docsplit.data.readers.base import Problems
from docsplit.data.readers.stream import PROBLEMS, stream_local, take_problems


def texts_of(stream):
    return [row["text"] for row in stream if not row[PROBLEMS]]


def test_shards_are_files_and_row_groups(tmp_path, write):
    texts = [f"number {number}" for number in range(10)]
    parquet.write_table(pyarrow.table({"text": texts, "n": range(10)}), write("p/a.parquet"), row_group_size=4)
    parquet.write_table(pyarrow.table({"n": [1], "text": ["more"]}), write("p/b.parquet"))
    stream, _ = stream_local(tmp_path / "p", None)
    assert stream.num_shards == 4
    shards = [texts_of(stream.shard(4, number)) for number in range(4)]
    assert shards == [texts[:4], texts[4:8], texts[8:], ["more"]]
    assert texts_of(stream) == [*texts, "more"]
    for name in "xy":
        write(f"t/{name}.txt", f"{name}\nis a document.")
    assert stream_local(tmp_path / "t", "text")[0].num_shards == 2
    assert stream_local(write("t/z.md"), "text") is None


def test_problems_are_told_after_the_texts_of_their_file(tmp_path, write, monkeypatch):
    monkeypatch.setattr(stream_module, "TEXTS_AT_ONCE", 2)
    write("docs/a.jsonl", '{"text": "a"}\n{"text": "b"}\n{\n{"text": "c"}\n')
    write("docs/b.jsonl", '{"body": "a"}')
    write("docs/c.jsonl", '{"text": "d"}')
    stream, _ = stream_local(tmp_path / "docs", "text")
    assert [bool(row[PROBLEMS]) for row in stream] == [False, False, False, True, True, False]
    assert [table.num_rows for table in stream.with_format("arrow").iter(batch_size=4)] == [4, 2]
    problems = Problems()
    tables = [take_problems(table, problems) for table in stream.with_format("arrow").iter(batch_size=4)]
    assert [table["text"].to_pylist() for table in tables] == [["a", "b", "c"], ["d"]]
    assert problems.warnings() == [
        "Skipped 1 file: 1 .jsonl without a column 'text' (b.jsonl)",
        "Skipped 1 row: 1 .jsonl that are no JSON (a.jsonl, line 3)",
    ]
    other = pyarrow.table({"text": ["a"]})
    assert take_problems(other, problems) is other


def test_a_file_that_is_named_itself_is_refused(write):
    stream, _ = stream_local(write("b.jsonl", '{"body": "a"}'), "text")
    with pytest.raises(ValueError, match=r"b\.jsonl: --text_column is 'text', but the columns are \['body'\]"):
        list(stream)


def test_the_fingerprint_is_of_the_files_and_the_column(tmp_path, write):
    write("docs/a.jsonl", '{"text": "a"}')
    key = stream_local(tmp_path / "docs", "text")[1]
    assert stream_local(tmp_path / "docs", "text")[1] == key
    assert stream_local(tmp_path / "docs", "body")[1] != key
    write("docs/a.jsonl", '{"text": "ab"}')
    assert stream_local(tmp_path / "docs", "text")[1] != key
