"""A folder of any files as a data set, and when it is read anew."""

import gzip
import json
import os

import pytest
from datasets import Dataset, load_dataset

from docsplit.data.corpora import add_text, stream_corpus
from docsplit.data.readers import corpus as corpus_module
from docsplit.data.readers.base import Problems
from docsplit.data.readers.corpus import load_local
from docsplit.data.readers.documents import read_documents
from docsplit.data.readers.stream import PROBLEMS, stream_local


@pytest.fixture
def folder(tmp_path, write, markitdown):
    """One file of each kind, and two that are skipped."""
    rows = [{"body": "A ship.", "title": "Ships"}, {"body": "A storm.", "title": None}]
    write("docs/a.txt", "A note.\nOf two lines.")
    write("docs/b.md", "# B")
    write("docs/c.html", "<title>C</title><p>Sails.")
    write("docs/d.pdf", b"ok A paper")
    write("docs/e.jsonl.gz", gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    write("docs/f.csv", "id,body\n7,A rope.\n")
    Dataset.from_list([{"body": ["A mast.", "A deck."]}]).to_parquet(write("docs/g.parquet"))
    write("docs/h.docx", b"Damage")
    write("docs/i.png")
    return tmp_path / "docs"


def test_a_folder_of_all_kinds_has_the_documents_that_search_reads(folder, monkeypatch):
    monkeypatch.setattr(corpus_module, "BATCH_DOCUMENTS", 3)
    dataset = load_local(folder, "body")
    assert dataset.column_names == ["id", "title", "body"]
    expected = list(read_documents(folder, "body"))
    assert len(expected) == 8
    assert dataset.data.table.column("id").num_chunks == 3
    assert dataset.to_list() == [{"id": row.id, "title": row.title, "body": row.text} for row in expected]


def test_a_second_run_reads_no_file_but_says_the_same(folder, monkeypatch, caplog):
    first = load_local(folder, "body")
    warnings = [message for message in caplog.messages if "Skipped" in message]
    assert warnings == ["Skipped 2 files: 1 .png (i.png), 1 .docx that cannot be converted (h.docx)"]
    monkeypatch.setattr(corpus_module, "write_documents", None)  # would fail if it were called
    caplog.clear()
    again = load_local(folder, "body")
    assert again.to_list() == first.to_list()
    assert again._fingerprint == first._fingerprint  # the key of what is made of it
    assert [message for message in caplog.messages if "Skipped" in message] == warnings


def test_a_change_of_files_options_or_converter_is_read_anew(folder, monkeypatch):
    def texts(column="body"):
        return load_local(folder, column)[column][:]

    before = texts()
    stat = (folder / "b.md").stat()
    (folder / "b.md").write_text("# C")  # of the same size
    os.utime(folder / "b.md", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert [(old, new) for old, new in zip(before, texts(), strict=True) if old != new] == [("# B", "# C")]
    (folder / "b.md").unlink()
    assert len(texts()) == len(before) - 1
    (folder / "h.docx").write_bytes(b"ok Mended")
    assert "Mended.docx" in texts()
    with pytest.raises(ValueError, match="--text_column is 'title'"):  # no file but the first has it
        add_text(load_local(folder / "f.csv", "title"), "title")
    assert "A ship." not in texts("text")
    found = corpus_module.find_documents(folder)
    key = corpus_module.key_of(found, "body")
    assert key == corpus_module.key_of(found, "body")
    monkeypatch.setattr(corpus_module, "converter_version", lambda: "99")
    assert corpus_module.key_of(found, "body") != key


@pytest.mark.parametrize("loader", ["json", "parquet"])
def test_data_files_of_one_format_are_exactly_as_datasets_reads_them(tmp_path, loader, write):
    rows = Dataset.from_dict({"text": ["a ship", "a tree"], "label": ["sea", "land"], "id": [1, 1]})
    for name in ("a", "b"):
        path = tmp_path / "rows" / f"{name}.{loader}"
        path.parent.mkdir(exist_ok=True)
        getattr(rows, f"to_{loader}")(str(path))
    names = [str(tmp_path / "rows" / f"{name}.{loader}") for name in "ab"]
    options = {"encoding": "UTF-8"} if loader == "json" else {}
    expected = load_dataset(loader, data_files=names, split="train", **options)
    for text_column in ("text", None):
        dataset = load_local(tmp_path / "rows", text_column)
        assert dataset.to_list() == expected.to_list()
        assert dataset._fingerprint == expected._fingerprint


@pytest.mark.parametrize("text_column", [None, "text"])
def test_cells_of_tables_are_texts_as_they_are_written(write, tmp_path, text_column):
    """Of the columns of all files, in each encoding; a row that is too short has nothing in the last ones."""
    write("rows/a.csv", "text,id,label\nNA,0012,1.0\n1984,7,\n")
    write("rows/b.csv.gz", gzip.compress('id,text,more\n,"a, ""b""",true\n3,null\n'.encode("utf-16")))
    write("rows/c.tsv", "\ttext\tid\tid\n0\tD\u00e9j\u00e0 vu\t+1\t2\n")
    dataset = load_local(tmp_path / "rows", text_column)
    rows = [
        {"text": "NA", "id": "0012", "label": "1.0"},
        {"text": "1984", "id": "7", "label": ""},
        {"text": 'a, "b"', "id": "", "more": "true"},
        {"text": "null", "id": "3"},
        {"text": "Déjà vu", "id": "+1", "": "0"},
    ]
    names = ["text", "id", "label", "more", ""]
    assert dataset.to_list() == [{name: row.get(name) for name in names} for row in rows]


def test_a_table_beside_other_files_keeps_its_labels_where_a_table_is_wanted(tmp_path, write, caplog):
    write("rows/a.csv", "text,label\na ship,sea\n")
    write("rows/README.md", "What it is.")
    assert load_local(tmp_path / "rows").to_list() == [{"text": "a ship", "label": "sea"}]
    assert "Skipped 1 file: 1 .md (README.md)" in caplog.messages
    assert load_local(tmp_path / "rows", "text")["id"][:] == ["README.md", "a.csv#0"]


def test_one_text_file_has_a_document_in_each_line_and_a_folder_one_in_each_file(tmp_path, write, caplog):
    caplog.set_level("INFO")
    lines = write("docs/a.txt", "A ship.\nA storm.\n")
    assert load_local(lines, "text").to_list() == [{"text": "A ship."}, {"text": "A storm."}]
    assert "a.txt is 1 file of 2 lines: each line is a document." in caplog.text
    assert load_local(tmp_path / "docs", "text").to_list() == [
        {"id": "a.txt", "title": "A ship.", "text": "A ship.\nA storm.\n"}
    ]
    assert load_local(write("b.md", "# B\n"), "text").to_list() == [{"id": "b.md", "title": "B", "text": "# B\n"}]


def test_a_stream_copies_only_what_datasets_cannot_stream(folder, tmp_path, write):
    assert sorted(row["body"] for row in stream_corpus(str(folder), text_column="body").rows) == sorted(
        load_local(folder, "body")["body"]
    )
    assert stream_local(folder, "body") is None
    for name in ("x.txt", "y.txt"):
        write(f"notes/{name}", f"A note called\n{name}.")
    rows = stream_corpus(str(tmp_path / "notes"), text_column="text").rows
    assert sorted(row["text"] for row in rows) == ["A note called\nx.txt.", "A note called\ny.txt."]


def test_nothing_is_left_of_a_folder_that_cannot_be_read(tmp_path, write, monkeypatch):
    monkeypatch.setattr(corpus_module, "cache_directory", lambda: tmp_path / "cache")
    write("docs/a.png")
    with pytest.raises(ValueError, match=r"no documents that can be read\. Skipped 1 file: 1 \.png"):
        load_local(tmp_path / "docs", "text")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_txt_of_another_encoding_is_the_same_in_maps_and_streams(tmp_path, write, caplog):
    """UTF-16 is read where the file says so; lines of Latin-1 are counted; a file is never trained on as noise."""
    caplog.set_level("INFO")
    write("docs/a.txt", "Déjà vu.".encode("utf-16"))
    write("docs/b.txt", "Déjà vu.".encode("latin-1"))
    write("docs/c.txt", b"\x89PNG\x00\x00")
    lines = write("lines.txt", "Déjà vu.\nA ship.".encode("latin-1"))
    for path, text, skipped in (
        (tmp_path / "docs", "Déjà vu.", "1 .txt that is not UTF-8 (b.txt at byte 1), 1 .txt that is binary (c.txt)"),
        (lines, "A ship.", "1 .txt that are not UTF-8 (lines.txt, line 1)"),
    ):
        for read in (
            lambda path: load_local(path, "text"),
            lambda path: stream_corpus(str(path), text_column="text").rows,
        ):
            caplog.clear()
            rows, problems = list(read(path)), Problems()
            assert [row["text"] for row in rows if row["text"]] == [text]
            for row in rows:
                if row.get(PROBLEMS):
                    problems.merge(Problems.from_json(row[PROBLEMS]))
            assert skipped in caplog.text + " ".join(problems.warnings())
    assert "lines.txt is 1 file: each of its lines is a document." in caplog.text


def test_a_row_that_cannot_be_read_costs_a_corpus_that_row_and_a_table_the_run(tmp_path, write, caplog):
    path = write("a.jsonl", '{"text": "A ship.", "label": 1}\n{"text": "A s\n{"text": "A rope."}\n')
    assert load_local(path, "text")["text"][:] == ["A ship.", "A rope."]
    assert [message for message in caplog.messages if "a.jsonl" in message] == [
        "Skipped 1 row: 1 .jsonl that are no JSON (a.jsonl, line 2)"
    ]
    with pytest.raises(ValueError, match=r"^.*a\.jsonl, line 2 is no JSON: "):
        load_local(path)


@pytest.mark.parametrize("name", ["a[1].jsonl", "a*.jsonl", "d::e.jsonl", "f?g.jsonl"])
def test_a_name_is_no_pattern(write, name):
    write("a1.jsonl", '{"text": "Of another file."}')
    assert load_local(write(name, '{"text": "A ship."}'), "text")["text"][:] == ["A ship."]


def test_a_file_that_vanishes_after_the_listing_is_counted(tmp_path, write, monkeypatch, caplog):
    write("docs/a.txt", "A ship.")
    gone = write("docs/b.txt", "A storm.")
    find = corpus_module.find_documents

    def find_and_lose(path):
        found = find(path)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(corpus_module, "find_documents", find_and_lose)
    rows = list(stream_corpus(str(tmp_path / "docs"), text_column="text").rows)
    assert [row["text"] for row in rows] == ["A ship.", ""]
    assert ".txt that is gone" in rows[1][PROBLEMS]
    gone.write_text("A storm.")
    assert load_local(tmp_path / "docs", "text")["text"][:] == ["A ship."]
    assert "Skipped 1 file: 1 .txt that is gone (b.txt)" in caplog.messages


def test_documents_of_a_table_with_a_field_too_many_keep_their_columns(write, caplog):
    assert load_local(write("a.csv", "text,label\na ship,sea,\na tree,land,\n"), "text")["text"][:] == [
        "a ship",
        "a tree",
    ]
    assert load_local(write("b.csv", "text,label\na ship,sea,1\na tree,land\n"), "text")["text"][:] == ["a tree"]
    assert "Skipped 1 row: 1 .csv with more fields than the header (b.csv, line 2)" in caplog.messages
