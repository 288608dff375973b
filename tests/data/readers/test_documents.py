"""One's own documents: what is in a folder, and what is passed over."""

import json
import os

import pytest
from datasets import Dataset

from docsplit.data.readers.documents import Document, read_documents


def test_a_folder_of_files(tmp_path, caplog):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "no.txt").write_text("Not this.")
    (tmp_path / "a.txt").write_text("\n--\nA ship in a storm.\nIt sank.")
    (tmp_path / "deep" / "b.md").write_text("# The harbour\n\nBoats.")
    (tmp_path / "deep" / "er" / "c.HTML").write_text(
        "<html><head><title>A  page</title><style>p {}</style></head><body><h1>Sails</h1><p>Torn <b>sails</b>"
        "\n\nand ropes.</p><script>let x = 1</script><ul><li>One &amp; two</li></ul></body></html>"
    )
    (tmp_path / "bad.txt").write_bytes(b"A caf\xe9.")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "paper.pdf").write_bytes(b"%PDF")
    documents = {document.id: document for document in read_documents(tmp_path)}
    assert list(documents) == ["a.txt", "bad.txt", "deep/b.md", "deep/er/c.HTML"]
    assert documents["a.txt"] == Document("a.txt", "\n--\nA ship in a storm.\nIt sank.", "A ship in a storm.")
    assert documents["deep/b.md"].title == "The harbour"
    page = documents["deep/er/c.HTML"]
    assert page.title == "A page"
    assert page.text == "## Sails\n\nTorn sails and ropes.\n\nOne & two"
    assert "1 files have bytes that are no UTF-8" in caplog.text
    assert "{'.pdf': 1, '.png': 1}" in caplog.text


def test_rows_of_data_files(tmp_path):
    rows = [{"text": "A ship.", "title": "Ships", "key": 7}, {"text": "A storm at sea.", "title": None, "key": 8}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Dataset.from_list([{"_id": "x", "text": ["A sail.", "A rope."]}]).to_parquet(tmp_path / "b.parquet")
    assert list(read_documents(tmp_path)) == [
        Document("a.jsonl#0", "A ship.", "Ships"),
        Document("a.jsonl#1", "A storm at sea.", "A storm at sea."),
        Document("x", "A sail.\nA rope.", "A sail."),
    ]
    assert [document.id for document in read_documents(tmp_path / "a.jsonl", id_column="key")] == ["7", "8"]
    with pytest.raises(ValueError, match="--id_column is 'name'"):
        list(read_documents(tmp_path / "a.jsonl", id_column="name"))
    with pytest.raises(ValueError, match="--text_column is 'body'"):
        list(read_documents(tmp_path / "a.jsonl", text_column="body"))


def test_a_name_that_is_no_utf8_is_the_same_each_time(tmp_path):
    """An index that held another one would take the file for a new document at each addition."""
    for name in (b"caf\xe9.txt", b"caf\xe8.txt"):
        (tmp_path / os.fsdecode(name)).write_text("...")
    documents = list(read_documents(tmp_path))
    assert [document.id for document in documents] == [r"caf\udce8.txt", r"caf\udce9.txt"]
    assert [document.title.encode() for document in documents] == [rb"caf\udce8", rb"caf\udce9"]


def test_nothing_to_read_says_what_was_found(tmp_path):
    (tmp_path / "paper.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"no documents that can be read, but 1 \.pdf: .*pdftotext"):
        list(read_documents(tmp_path))
    with pytest.raises(ValueError, match="There is no"):
        list(read_documents(tmp_path / "nowhere"))
