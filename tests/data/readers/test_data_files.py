"""How `datasets` is told to read files. What it reads is tested through `load_corpus`, in test_corpora.py."""

import gzip
from pathlib import Path

import pytest

from docsplit.data.readers.data_files import as_data_files, load_data_files, undecodable_lines
from docsplit.data.readers.files import File


def files_of(*names, folder=None):
    return [File(Path(folder or "/nowhere") / name, name) for name in names]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.json", "b.jsonl.gz"], ("json", {"encoding": "UTF-8"})),
        (["a.csv", "b.CSV.xz"], ("csv", {})),
        (["a.tsv"], ("csv", {"sep": "\t"})),
        (["a.txt", "b.txt.gz"], ("text", {"sample_by": "line"})),
        (["a.parquet"], ("parquet", {})),
        (["a.csv", "b.tsv"], None),  # with the separator of one the other would be one column
        (["a.csv", "b.jsonl"], None),
        (["a.csv", "b.md"], None),
        (["a.md"], None),
        ([], None),
    ],
)
def test_files_of_one_format_are_read_together(names, expected):
    files = as_data_files(files_of(*names))
    assert (files and (files.loader, files.options)) == expected
    assert files is None or files.names == [f"/nowhere/{name}" for name in names]


def test_rows_keep_all_their_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\na ship\tsea\n")
    with gzip.open(tmp_path / "b.tsv.gz", "wt") as file:
        file.write("text\tlabel\na tree\tland\n")
    files = as_data_files(files_of("a.tsv", "b.tsv.gz", folder=tmp_path))
    assert load_data_files(files, tmp_path).to_list() == [
        {"text": "a ship", "label": "sea"},
        {"text": "a tree", "label": "land"},
    ]


def test_lines_that_are_no_utf8_are_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\nb\xe9d\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"b\xe9d\n"))
    assert undecodable_lines([tmp_path / "a.txt", tmp_path / "b.txt.gz"]) == (2, f"{tmp_path}/a.txt, line 2")
