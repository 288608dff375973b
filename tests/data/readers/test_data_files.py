"""How `datasets` is told to read files. What it reads is tested through `load_corpus`, in test_corpora.py."""

import gzip
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from docsplit.data.readers.corpus import load_local
from docsplit.data.readers.data_files import as_data_files, undecodable_lines
from docsplit.data.readers.files import File


def files_of(*names, folder=None):
    return [File(Path(folder or "/nowhere") / name, name) for name in names]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.json", "b.jsonl.gz"], ("json", {"encoding": "UTF-8"})),
        (["a.csv", "b.CSV.xz"], ("csv", {})),
        (["a.csv", "b.tsv"], ("csv", {})),
        (["a.txt", "b.txt.gz"], ("text", {"sample_by": "line"})),
        (["a.parquet"], ("parquet", {})),
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


def test_texts_that_look_like_dates_stay_texts(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "2024-01-01"}\n{"text": "b", "label": "2024-02-01"}\n')
    assert load_local(tmp_path / "a.jsonl")["label"][:] == ["2024-01-01", "2024-02-01"]


def test_lines_that_are_no_utf8_are_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\nb\xe9d\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"b\xe9d\n"))
    assert undecodable_lines([tmp_path / "a.txt", tmp_path / "b.txt.gz"]) == (2, f"{tmp_path}/a.txt, line 2")


def test_a_field_too_many_never_shifts_the_columns(tmp_path):
    """pandas takes the first column for the names of the rows: the text would be the label."""
    (tmp_path / "a.csv").write_text("text,label\na ship,sea,1\na tree,land,2\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 2 with more fields than the header"):
        load_local(tmp_path / "a.csv")
    assert len(load_local(tmp_path / "a.csv", "text")) == 0
    (tmp_path / "a.csv").write_text("text,label\na ship,sea,\n")
    assert load_local(tmp_path / "a.csv").to_list() == [{"text": "a ship", "label": "sea"}]


def test_a_damaged_file_is_one_line_and_logged_nowhere(tmp_path, caplog):
    """Of an xz that `datasets` unpacks before it reads, too."""
    whole = lzma.compress(b"text\na ship\n" * 1000)
    (tmp_path / "a.csv.xz").write_bytes(whole[:50] + b"\xff" * 9 + whole[60:])
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": \n')
    for name in ("a.csv.xz", "b.jsonl"):
        with pytest.raises(ValueError, match=name) as caught:
            load_local(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert caplog.messages == []


@pytest.mark.parametrize("kind", ["zip", "tar", "damaged zip", "cut zip"])
def test_an_archive_by_another_name_is_not_unpacked(tmp_path, kind):
    """`datasets` looks at the content, and would read the files in it."""
    (tmp_path / "inner.csv").write_text("text\na ship\n")
    path = tmp_path / "a.csv"
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            archive.add(tmp_path / "inner.csv", "inner.csv")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "inner.csv", "inner.csv")
    if kind == "damaged zip":
        path.write_bytes(path.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03"))
    if kind == "cut zip":
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"a\.csv is an archive: unpack archives first"):
        load_local(tmp_path / "a.csv")


def test_a_zst_file_without_its_end_is_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    content = zstandard.compress(b"text\n" + b"".join(b"number %d\n" % number for number in range(50_000)))
    for whole, name in ((content, "a.csv.zst"), (content[: len(content) // 2], "b.csv.zst")):
        (tmp_path / name).write_bytes(whole)
    assert len(load_local(tmp_path / "a.csv.zst")) == 50_000
    with pytest.raises(ValueError, match=r"b\.csv\.zst"):
        load_local(tmp_path / "b.csv.zst")
