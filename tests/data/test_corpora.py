"""Documents from every source, what is dropped and why, and errors that name the remedy."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_from_disk
from pyarrow import parquet

from docsplit.data import corpora
from docsplit.data.copies import document_id, sketch
from docsplit.data.corpora import PROBLEMS, documents_to_search, load_corpus, load_local, stream_corpus, take_problems
from docsplit.data.passages import clean_text, to_passages
from docsplit.data.preparation import tokenize
from docsplit.data.readers import files
from docsplit.data.readers.base import Problems, TableColumns
from docsplit.data.readers.documents import read_documents
from docsplit.data.readers.rows import join_sections
from docsplit.data.segmentation import load_sentence_splitter
from docsplit.data.sets.labelled import load_labelled
from docsplit.data.sets.set_arguments import LabelledArguments
from docsplit.training import adapting
from tests.conftest import make_corpus
from tests.processes import run


def test_a_parquet_file_whose_strings_are_no_utf8_is_refused(tmp_path):
    buffers = [None, pyarrow.py_buffer(np.int32([0, 3, 6])), pyarrow.py_buffer(b"abccf\xe9")]
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers)
    parquet.write_table(pyarrow.table({"text": text}), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=r"bad\.parquet as parquet: .*UTF8 sequence at string index 1"):
        load_corpus(str(tmp_path / "bad.parquet"))


def test_breaks_of_sections_change_neither_sentences_nor_the_document_id():
    parts = [("Ships", None), ("Sails", "A sail.\nTorn"), ("", ""), (None, "A rope. A tar"), ("Storms", "It sank.")]
    text = join_sections({"sections": [{"heading": heading, "text": part} for heading, part in parts]})
    plain = "Ships\n\nSails\n\nA sail.\nTorn\n\nA rope. A tar\n\nStorms\n\nIt sank."
    assert text != plain
    assert (document_id(text), sketch([text]).tolist()) == (document_id(plain), sketch([plain]).tolist())
    for name in ("rules", "sentencizer"):
        split = load_sentence_splitter(name)
        assert split(clean_text(text)) == split(plain)
    # a heading without a text begins the section of the next one
    expected = ["Ships Sails A sail. Torn", "A rope. A tar", "Storms It sank."]
    assert [passage.text for passage in to_passages(text, 10)] == expected


READ_AGAIN = """
import json, sys
from docsplit.data.corpora import load_corpus
from docsplit.data.preparation import tokenize
from transformers import AutoTokenizer
documents = load_corpus(sys.argv[1])
tokenized, counts = tokenize(documents, AutoTokenizer.from_pretrained(sys.argv[2]))
print(json.dumps([documents["text"][:], counts["used"], tokenized["document_id"][:], tokenized["unit_lengths"][:]]))
"""


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_what_datasets_writes_beside_rows_is_not_read_by_the_next_process(tmp_path, wordpiece, suffix):
    """`map`, `shuffle` and others keep their results in the folder that the rows came from."""
    rows = Dataset.from_list([{"text": row["text"]} for row in make_corpus(24)])
    (folder := tmp_path / "documents").mkdir()
    if suffix == "arrow":
        rows.save_to_disk(tmp_path / "saved")
        (tmp_path / "saved" / "data-00000-of-00001.arrow").rename(folder / "rows.arrow")
        Dataset.from_file(str(folder / "rows.arrow")).shuffle(seed=0)
        assert len(list(folder.iterdir())) == 2
    else:
        {"jsonl": rows.to_json, "parquet": rows.to_parquet}[suffix](str(folder / f"rows.{suffix}"))
    wordpiece.save_pretrained(tmp_path / "tokenizer")
    for dataset in (load_corpus(str(folder)), tokenize(load_corpus(str(folder)), wordpiece)[0]):
        place, column = Path(dataset.cache_files[0]["filename"]).parent, dataset.column_names[0]
        num_files = len(list(place.iterdir()))
        for derive in (
            lambda dataset: dataset.train_test_split(test_size=6, seed=0),
            lambda dataset: dataset.shuffle(seed=0),
            lambda dataset, column=column: dataset.sort(column),
            lambda dataset: dataset.filter(lambda row, number: number % 2, with_indices=True),
            lambda dataset: dataset.map(lambda row: {"more": 1}),
        ):
            derive(dataset)
            assert len(list(place.iterdir())) > num_files  # else nothing is shown
            num_files = len(list(place.iterdir()))
    texts, used, ids, lengths = json.loads(run("-c", READ_AGAIN, folder, tmp_path / "tokenizer").stdout)
    assert (texts, used) == (rows["text"][:], 24)
    assert ids == [document_id(text) for text in texts]
    assert None not in lengths


@pytest.fixture
def built_in(monkeypatch, tmp_path):
    """The names and texts of a python_docs of 100 documents, each with a section and no link."""
    rows = [
        row | {"id": str(number), "title": f"Title {number}", "links": []}
        for number, row in enumerate(make_corpus(100))
    ]
    rows = [row | {"sections": [{"heading": "", "text": row["text"]}]} for row in rows]
    monkeypatch.setattr(corpora, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(corpora, "read_python_docs", lambda: iter(rows))
    return rows


def test_the_built_in_corpus_is_cached_and_a_pretraining_and_a_search_read_a_part_of_it(built_in, monkeypatch):
    rows = load_corpus("python_docs").to_list()
    assert [{name: row[name] for name in built_in[0]} for row in rows] == built_in
    assert Counter(row["part"] for row in rows) == {"train": 73, "validation": 12, "test": 15}
    monkeypatch.setattr(corpora, "read_python_docs", None)  # would fail if it were called
    dataset = load_corpus("python_docs")
    assert dataset.to_list() == rows
    ids = {part: [row["id"] for row in rows if part in ("", row["part"])] for part in ("", "train", "test")}
    assert corpora.for_pretraining("python_docs", dataset)["id"][:] == ids["train"]
    assert sorted(row["id"] for row in stream_corpus("python_docs").rows) == sorted(ids["train"])
    assert corpora.for_pretraining("my.jsonl", dataset) is dataset  # the name says what is sealed, not a column
    whole, sealed = (list(documents_to_search(Path(name))) for name in ("python_docs", "python_docs:test"))
    assert [(row.id, row.text) for row in whole] == [(row["id"], row["text"]) for row in rows]
    assert [row.id for row in sealed] == ids["test"]
    with pytest.raises(ValueError, match="no part 'tset': choose among train, validation and test"):
        list(documents_to_search(Path("python_docs:tset")))


@pytest.fixture
def saved(tmp_path):
    """A data set with two splits as `datasets` saves it; of an earlier time a file is left over in one."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=["sea", "land"])})
    splits = DatasetDict()
    for name in ("train", "test"):
        rows = [{"text": f"{name} {row}", "label": row % 2} for row in range(12)]
        splits[name] = Dataset.from_list(rows, features=features)
    splits.save_to_disk(tmp_path / "saved", num_shards={"train": 3, "test": 1})
    splits["train"].with_format("numpy").save_to_disk(tmp_path / "saved" / "train", num_shards=2)
    return tmp_path / "saved"


TRAIN, TEST = ([f"{name} {row}" for row in range(12)] for name in ("train", "test"))


def test_a_saved_data_set_gives_its_train_split_or_the_one_that_is_named(saved, caplog):
    caplog.set_level("INFO")
    expected = load_from_disk(saved)["train"].with_format(None)
    for text_column in (None, "text"):
        dataset = load_corpus(str(saved), text_column=text_column)
        assert (dataset.to_list(), dataset.features) == (expected.to_list(), expected.features)
    assert f"{saved} is a data set with the splits train, test: train is read." in caplog.messages
    assert [row["text"] for row in stream_corpus(str(saved), text_column="text").rows] == TRAIN
    assert [row.text for row in documents_to_search(saved)] == adapting.texts_to_adapt(str(saved), "text") == TRAIN
    assert load_corpus(str(saved), "test")["text"][:] == load_corpus(str(saved / "test"))["text"][:] == TEST
    assert [row["text"] for row in stream_corpus(str(saved), "test", "text").rows] == TEST
    assert [row.text for row in documents_to_search(saved / "test")] == TEST
    (saved.parent / "a.txt").write_text("A note.")
    assert [row.text for row in documents_to_search(saved.parent)] == ["A note."]  # among other files: which split?
    assert "1 that are data sets with splits: name one (saved)" in caplog.text
    with pytest.raises(ValueError, match=r"saved has no split 'dev', but train, test: .*saved/train"):
        load_corpus(str(saved), "dev")
    (saved / "test" / "data-00000-of-00001.arrow").write_bytes(b"damage")
    with pytest.raises(ValueError, match=r"Cannot read .*saved/test"):
        load_corpus(str(saved / "test"))
    (saved / "dataset_dict.json").write_text('{"splits": [')
    with pytest.raises(ValueError, match=r"dataset_dict\.json is damaged: it holds no JSON"):
        load_corpus(str(saved))
    (saved / "train" / "state.json").write_text("{}")  # of another program
    assert load_corpus(str(saved / "train"), text_column="text")["text"][:]


@pytest.mark.parametrize("name", ["../../mine", "{}/mine", "..", "", 3, None, "C:mine", "..\\mine"])
def test_a_saved_data_set_has_its_files_beside_it(saved, tmp_path, name):
    """Whoever made it may not have the files of who reads it read."""
    name = name.format(tmp_path) if isinstance(name, str) else name
    Dataset.from_dict({"text": ["My salary is 1."]}).save_to_disk(tmp_path / "mine")
    in_mine = f"{name}/data-00000-of-00001.arrow" if name and "mine" in str(name) else name
    state = saved / "train" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"_data_files": [{"filename": in_mine}]}))
    (saved.parent / "other").mkdir()
    (saved.parent / "other" / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    (saved.parent / "splits").mkdir()
    (saved / "train").rename(saved.parent / "splits" / "train")  # a folder of other files
    for folder, file in (("splits/train", "state"), ("splits", "state"), ("other", "dataset_dict")):
        for read in (load_corpus, stream_corpus, lambda path: [*documents_to_search(Path(path))]):
            with pytest.raises(ValueError, match=rf"{file}\.json"):
                read(str(tmp_path / folder))


def test_the_splits_of_a_saved_data_set_are_the_parts_of_labelled_documents(saved):
    """By --dataset_name, as those of the Hub, and by --train_file."""
    folder, train = str(saved), str(saved / "train")
    for options, parts in (
        ({"dataset_name": folder}, (TRAIN, TEST)),
        ({"train_file": folder}, (TRAIN, TEST)),
        ({"train_file": train, "test_file": folder}, (TRAIN, TEST)),
        ({"dataset_name": folder, "train_split": "test", "test_split": "train"}, (TEST, TRAIN)),
    ):
        split = load_labelled(LabelledArguments(**options))
        assert (split.train_texts, split.test_texts) == parts
        assert (split.class_names, split.test_labels.tolist()) == (["land", "sea"], [1, 0] * 6)
    alone = load_labelled(LabelledArguments(dataset_name=train))
    assert sorted([*alone.train_texts, *(alone.validation_texts or []), *alone.test_texts]) == sorted(TRAIN)


# --- Local files: what is read, and when it is read anew ---


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


def test_a_folder_of_all_kinds_has_the_documents_that_search_reads_and_is_read_once(folder, monkeypatch, caplog):
    monkeypatch.setattr(corpora, "ROWS_AT_ONCE", 3)
    first = load_local(folder, "body")
    expected = list(read_documents(folder, TableColumns("body")))
    assert len(expected) == 8
    assert first.data.table.column("id").num_chunks == 3
    assert first.to_list() == [{"id": row.id, "title": row.title, "body": row.text} for row in expected]
    monkeypatch.setattr(corpora, "documents_in", None)  # would fail if it were called
    caplog.clear()
    again = load_local(folder, "body")
    assert again.to_list() == first.to_list()
    assert again._fingerprint == first._fingerprint  # the key of what is made of it
    warnings = [message for message in caplog.messages if "Skipped" in message]
    assert warnings == ["Skipped 2 files: 1 .png (i.png), 1 .docx that cannot be converted (h.docx)"]


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
    assert "A ship." not in texts("text")
    found = corpora.find_files(folder)
    key = corpora.key_of(found, "body", None)
    assert key == corpora.key_of(found, "body", None)
    monkeypatch.setattr(files, "converter_version", lambda: "99")
    assert corpora.key_of(found, "body", None) != key


@pytest.mark.parametrize("name", ["a.md", "a.jsonl", "a.csv", "a.parquet", "a.arrow"])
def test_another_file_of_the_same_size_and_time_is_read(tmp_path, name):
    """Whatever copied it: its beginning and its end are compared."""
    path, contents = tmp_path / "docs" / name, []
    path.parent.mkdir()
    for text in ("one cat", "two dog"):
        rows = Dataset.from_dict({"text": [text, "the same"]})
        if name == "a.parquet":
            rows.to_parquet(tmp_path / text)
        elif name == "a.arrow":
            rows.save_to_disk(tmp_path / "saved")
            (tmp_path / "saved" / "data-00000-of-00001.arrow").rename(tmp_path / text)
        else:
            lines = {"a.md": "{}", "a.jsonl": '{{"text": "{}"}}', "a.csv": "text\n{}"}[name]
            (tmp_path / text).write_text(lines.format(text))
        contents.append((tmp_path / text).read_bytes())
    assert len(contents[0]) == len(contents[1])
    for content, text in zip(contents, ("one cat", "two dog")):
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
        for column in (None, "text"):
            assert load_local(path.parent, column)["text"][0] == text
    fingerprints = set()
    for end in ("one", "two"):
        path.write_bytes(bytes(3 * 2**20) + end.encode())
        os.utime(path, ns=(10**18, 10**18))
        fingerprints.add(files.File(path, name).version())
    assert len(fingerprints) == 2


def test_data_files_of_one_format_keep_their_columns_and_types(tmp_path, write):
    """As their maker wrote them; json's types fit all rows, and no text becomes a time, wherever it stands."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=["sea", "land"])})
    rows = Dataset.from_dict({"text": ["a ship", "a tree"], "label": [0, 1]}, features=features)
    for name in ("a", "a[1]"):  # a name is no pattern
        rows.to_parquet(tmp_path / f"{name}.parquet")
    assert load_local(tmp_path / "a[1].parquet", "text").to_list() == [*rows]
    dataset = load_local(tmp_path, "text")
    assert (dataset.to_list(), dataset.features) == ([*rows, *rows], features)
    first = {"text": "a", "day": "2024-01-01", "n": 1, "deep": {"day": "2024-01-01T00:00:00Z"}}
    second = {"text": "b", "day": "2024-02-01", "n": 1.5, "deep": {"day": "2024-02-01", "more": [1]}, "late": True}
    path = write("rows/a.jsonl", f"{json.dumps(first)}\n{json.dumps(second)}\n")
    first |= {"n": 1.0, "deep": first["deep"] | {"more": None}, "late": None}
    assert load_local(path).to_list() == load_local(path, "text").to_list() == [first, second]
    mixed = write(
        "rows/b.jsonl", '{"text": "A ship.", "id": 1}\n{"text": "A storm.", "id": "x"}\n{"text": 5, "id": NaN}\n'
    )
    assert load_local(mixed)["id"][:] == ["1", "x", None]  # what has no common type becomes text, but nothing
    assert load_local(mixed)["text"][:] == ["A ship.", "A storm.", None]  # a number is no text
    with pytest.raises(ValueError, match=r"Cannot read .*c\.jsonl: "):
        load_local(write("rows/c.jsonl", '{"text": "A ship.", "id": ["x"]}\n{"text": "A storm.", "id": "x"}\n'))


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
    assert load_local(write("d.csv", "text,a\0b\na ship,1\n")).column_names == ["text", "ab"]


def test_one_text_file_has_a_document_in_each_line_and_a_folder_one_in_each_file(tmp_path, write, caplog):
    caplog.set_level("INFO")
    lines = write("docs/a.txt", "A ship.\nA storm.\n")
    assert load_local(lines, "text").to_list() == [{"text": "A ship."}, {"text": "A storm."}]
    assert "a.txt is 1 file of 2 lines: each line is a document." in caplog.text
    assert load_local(tmp_path / "docs", "text").to_list() == [
        {"id": "a.txt", "title": "A ship.", "text": "A ship.\nA storm.\n"}
    ]
    assert load_local(write("b.md", "# B\n"), "text").to_list() == [{"id": "b.md", "title": "B", "text": "# B\n"}]


TABLES = {  # what a corpus reads of it, and why no table of labels is read
    "a.jsonl": ('{"text": "A ship.", "label": 1}\n{"text": "A s\n{"text": "A rope."}\n', ["A ship.", "A rope."],
                r"a\.jsonl, line 2 cannot be read, as one of the rows that are no JSON: "),
    "a.csv": ("text,label\na ship,sea,1\na sail,sea,\n", ["a sail"], r"line 2 .*with more fields than the header"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_row_that_cannot_be_read_costs_a_corpus_that_row_and_a_table_the_run(write, name, caplog):
    """With a field too many, pandas would take the first column for the names of the rows."""
    content, texts, message = TABLES[name]
    path = write(name, content)
    assert load_local(path, "text")["text"][:] == texts
    assert f"({name}, line 2)" in caplog.text
    with pytest.raises(ValueError, match=message):
        load_local(path)


def test_a_table_beside_other_files_keeps_its_labels_where_a_table_is_wanted(tmp_path, write, caplog):
    write("rows/a.csv", "text,label\na ship,sea\n")
    write("rows/README.md", "What it is.")
    assert load_local(tmp_path / "rows").to_list() == [{"text": "a ship", "label": "sea"}]
    assert "Skipped 1 file: 1 .md (README.md)" in caplog.messages
    assert load_local(tmp_path / "rows", "text")["id"][:] == ["README.md", "a.csv#0"]


# --- Streams ---


def texts_of(stream):
    return [row["text"] for row in stream if not row[PROBLEMS]]


def test_a_stream_has_the_texts_of_a_corpus_and_what_was_wrong(tmp_path, write, monkeypatch):
    write("docs/a.txt", "Déjà vu.".encode("utf-16"))
    write("docs/b.txt", "Déjà vu.".encode("latin-1"))
    write("docs/c.txt", b"\x89PNG\x00\x00")
    gone = write("docs/d.md", "A storm.")
    find = corpora.find_files

    def find_and_lose(path):
        gone.write_text("A storm.")
        found = find(path)
        gone.unlink()
        return found

    monkeypatch.setattr(corpora, "find_files", find_and_lose)
    write("docs/e.jsonl", '{"text": "a"}\n{"text": "b"}\n{\n{"text": "c"}\n')
    write("docs/f.jsonl", '{"body": "a"}')
    monkeypatch.setattr(corpora, "ROWS_AT_ONCE", 2)
    stream, problems = stream_corpus(str(tmp_path / "docs"), text_column="text").rows, Problems()
    texts = [*["Déjà vu."] * 2, "a", "b", "c"]
    assert texts_of(stream) == load_corpus(str(tmp_path / "docs"), text_column="text")["text"][:] == texts
    (table,) = stream.with_format("arrow").iter(batch_size=99)
    assert take_problems(table, problems)["text"].to_pylist() == texts
    assert problems.counts["file"] == {
        ".txt that are binary": (1, "c.txt"),
        ".md that are gone": (1, "d.md"),
        ".jsonl without a column 'text'": (1, "f.jsonl"),
    }
    assert problems.counts["row"] == {"that are no JSON": (1, "e.jsonl, line 3")}
    other = pyarrow.table({"text": ["a"]})
    assert take_problems(other, problems) is other


def test_a_stream_copies_only_what_datasets_cannot_stream(folder, write):
    rows = stream_corpus(str(folder), text_column="body").rows
    assert sorted(row["body"] for row in rows) == sorted(load_local(folder, "body")["body"])
    assert corpora._stream_local(folder, "body", None) is None
    lines = write("lines.txt", "Déjà vu.\nA ship.".encode("latin-1"))
    assert texts_of(stream_corpus(str(lines), encoding="cp1251").rows) == ["D\u0439j\u0430 vu.", "A ship."]


def test_shards_are_files_and_row_groups(tmp_path, write):
    texts = [f"number {number}" for number in range(10)]
    parquet.write_table(pyarrow.table({"text": texts, "n": range(10)}), write("p/a.parquet"), row_group_size=4)
    parquet.write_table(pyarrow.table({"n": [1], "text": ["more"]}), write("p/b.parquet"))
    stream = stream_corpus(str(tmp_path / "p")).rows
    assert [texts_of(stream.shard(4, number)) for number in range(4)] == [texts[:4], texts[4:8], texts[8:], ["more"]]
    assert texts_of(stream) == [*texts, "more"]
    for name in ("x.txt", "y.txt", "z.md"):
        write(f"t/{name}", f"{name}\nis a document.")
    stream = stream_corpus(str(tmp_path / "t"), text_column="text").rows
    assert (stream.num_shards, texts_of(stream)[1:]) == (3, ["y.txt\nis a document.", "z.md\nis a document."])
