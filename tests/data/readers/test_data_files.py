"""How `datasets` is told to read files. What it reads is tested through `load_corpus`, in test_corpora.py."""

import gzip
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from docsplit.data.readers.data_files import as_data_files, load_data_files, load_sound_files, undecodable_lines
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


@pytest.mark.parametrize("rows", ["a ship,sea,1\na tree,land,2\n", "a ship,sea,\n"])
def test_a_field_too_many_never_shifts_the_columns(tmp_path, rows):
    """pandas takes the first column for the names of the rows: the text would be the label."""
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}")
    files = as_data_files(files_of("a.csv", folder=tmp_path))
    for load in (load_data_files, load_sound_files):
        with pytest.raises(ValueError, match=r"a\.csv as csv: rows have more fields than the header has names"):
            load(files, tmp_path)


def test_a_table_in_another_encoding_is_read_where_the_file_says_so(tmp_path):
    for name, encoding in (("a.csv", "utf-16"), ("b.csv", "utf-32"), ("c.csv", "utf-8-sig")):
        (tmp_path / name).write_bytes("text,label\nDéjà vu.,a\n".encode(encoding))
        files = as_data_files(files_of(name, folder=tmp_path))
        assert load_data_files(files, tmp_path).to_list() == [{"text": "Déjà vu.", "label": "a"}]


def test_a_damaged_file_is_one_line_and_logged_nowhere(tmp_path, caplog):
    """Of an xz that `datasets` unpacks before it reads, too."""
    whole = lzma.compress(b"text\na ship\n" * 1000)
    (tmp_path / "a.csv.xz").write_bytes(whole[:50] + b"\xff" * 9 + whole[60:])
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": \n')
    for name in ("a.csv.xz", "b.jsonl"):
        with pytest.raises(ValueError, match=name) as caught:
            load_data_files(as_data_files(files_of(name, folder=tmp_path)), tmp_path)
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
        load_data_files(as_data_files(files_of("a.csv", folder=tmp_path)), tmp_path)


def test_a_zst_file_without_its_end_is_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    content = zstandard.compress(b"text\n" + b"".join(b"number %d\n" % number for number in range(50_000)))
    for whole, name in ((content, "a.csv.zst"), (content[: len(content) // 2], "b.csv.zst")):
        (tmp_path / name).write_bytes(whole)
    for read in (load_data_files, load_sound_files):
        assert len(read(as_data_files(files_of("a.csv.zst", folder=tmp_path)), tmp_path)) == 50_000
        with pytest.raises(ValueError, match=r"b\.csv\.zst"):
            read(as_data_files(files_of("b.csv.zst", folder=tmp_path)), tmp_path)
