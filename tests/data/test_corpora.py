"""Documents from every source, what is dropped and why, and errors that name the remedy."""

import gzip
import json
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_from_disk
from pyarrow import parquet

from docsplit.data import corpora
from docsplit.data.corpora import add_text, documents_to_search, load_corpus, stream_corpus
from docsplit.data.passages import SECTION_BREAK, clean_text, to_passages
from docsplit.data.readers.columns import join_sections
from docsplit.data.seen_documents import document_id, sketch
from docsplit.data.segmentation import load_sentence_splitter
from docsplit.data.sets.arguments import LabelledArguments
from docsplit.data.sets.labelled import load_labelled, read_texts
from docsplit.training import adapting
from tests.conftest import make_corpus

TEXTS = ["The ship was in the storm. It had a sail.", "Bread and butter. Flour to sugar."]


def write(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv", "tsv", "parquet", "txt"])
def test_each_local_format_gives_the_same_texts(tmp_path, suffix):
    path = tmp_path / f"documents.{suffix}"
    dataset = Dataset.from_dict({"text": TEXTS})
    match suffix:
        case "json":
            path.write_text(json.dumps([{"text": text} for text in TEXTS]))
        case "jsonl":
            dataset.to_json(path)
        case "csv":
            dataset.to_csv(path)
        case "tsv":
            dataset.to_csv(path, sep="\t")
        case "parquet":
            dataset.to_parquet(path)
        case "txt":
            path.write_text("\n".join(TEXTS))
    assert load_corpus(str(path))["text"][:] == TEXTS


def test_rows_that_a_quote_swallowed_are_noticed(tmp_path, caplog):
    rows = [f"{chr(34) * (row % 5 == 0)}document {row}\tlabel" for row in range(10)]
    assert len(load_corpus(str(write(tmp_path, "bare.tsv", "\n".join(["text\tlabel", *rows]))))) == 5
    assert "line breaks in them: 1, the first is bare.tsv, line 2." in caplog.text
    assert "jsonl" in caplog.text
    caplog.clear()
    load_corpus(str(write(tmp_path, "quoted.tsv", 'text\tlabel\n"two\nlines"\tlabel\n"a\ttab"\tlabel\n')))
    assert not caplog.text


def test_a_folder_of_text_files_has_one_document_a_file(tmp_path):
    for number, text in enumerate(TEXTS):
        write(tmp_path, f"folder/{number}.txt", text.replace(". ", ".\n\n"))
    assert [text.split()[0] for text in load_corpus(str(tmp_path / "folder"))["text"]] == ["The", "Bread"]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "csv", "tsv", "txt"])
def test_bytes_that_are_no_utf8_are_replaced_counted_and_placed(tmp_path, caplog, suffix):
    """In the last of two files, far from its beginning: what is read first decides nothing."""
    head = {"csv": "text,label", "tsv": "text\tlabel"}.get(suffix)
    line = {"csv": "{},1", "tsv": "{}\t1", "txt": "{}"}.get(suffix, '{{"text": "{}"}}')
    mended = "caf\xe9 au lait" + " and a ship" * 20
    texts = ["a ship in a storm"] * 50 + [mended] * 2
    lines = ([head] if head else []) + [line.format(text) for text in texts]
    content = "\n".join(lines).encode("latin-1")
    if suffix == "txt":  # a folder of these has one document a file
        path = write(tmp_path, "latin.txt", content)
    else:
        path = tmp_path / "folder"
        good = "\n".join(lines[:-2]).encode()
        write(path, f"a.{suffix}", gzip.compress(good) if suffix.endswith("gz") else good)
        write(path, f"latin.{suffix}", gzip.compress(content) if suffix.endswith("gz") else content)
    dataset = load_corpus(str(path))
    assert dataset["text"][:][-3:] == ["a ship in a storm", *[mended.replace("\xe9", "\ufffd")] * 2]
    if suffix in ("txt", "csv", "tsv"):
        assert f"no UTF-8: 2, the first is latin.{suffix}, line {51 + bool(head)}." in caplog.text
    else:
        assert f"2 lines are not UTF-8, the first is {tmp_path}" in caplog.text
        assert f"latin.{suffix}, line 51: " in caplog.text
    caplog.clear()
    load_corpus(str(write(tmp_path, f"good.{suffix.removesuffix('.gz')}", "\n".join(lines))))
    assert "UTF-8" not in caplog.text


def test_a_parquet_file_whose_strings_are_no_utf8_is_refused(tmp_path):
    buffers = [None, pyarrow.py_buffer(np.int32([0, 3, 6])), pyarrow.py_buffer(b"abccf\xe9")]
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers)
    parquet.write_table(pyarrow.table({"text": text}), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=r"bad\.parquet as parquet: .*UTF8 sequence at string index 1"):
        load_corpus(str(tmp_path / "bad.parquet"))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_lone_surrogates_in_json_are_cleaned(tmp_path, suffix):
    content = b'{"text": "a \\ud800 ship"}\n{"text": "in a storm", "late": 1}\n'
    path = write(tmp_path, f"surrogates.{suffix}", gzip.compress(content) if suffix.endswith("gz") else content)
    texts = load_corpus(str(path))["text"][:]
    assert [text.split() for text in texts] == [["a", "ship"], ["in", "a", "storm"]]


def test_a_file_that_changed_is_read_anew(tmp_path):
    write(tmp_path, "surrogates.jsonl", '{"text": "a \\ud800 ship"}\n')
    assert len(load_corpus(str(tmp_path / "surrogates.jsonl"))) == 1
    write(tmp_path, "surrogates.jsonl", '{"text": "a \\ud800 ship"}\n{"text": "a storm"}\n')
    assert len(load_corpus(str(tmp_path / "surrogates.jsonl"))) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.jsonl", '{"text": "one"}\n{"text": "tw', r"broken\.jsonl, line 2"),
        ("broken.parquet", b"no parquet", r"broken\.parquet"),
        ("notes.docx", b"", r"notes\.docx"),
        ("empty.jsonl", "", "no documents"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        load_corpus(str(write(tmp_path, name, content)))


def test_a_folder_of_several_formats_is_read_whole_and_an_empty_one_is_named(tmp_path):
    write(tmp_path, "two/a.txt", "a b")
    write(tmp_path, "two/b.csv", "text\nc d\n")
    assert load_corpus(str(tmp_path / "two"), text_column="text")["text"][:] == ["a b", "c d"]
    assert load_corpus(str(tmp_path / "two"))["text"][:] == ["c d"]  # a table, for labels
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no file"):
        load_corpus(str(tmp_path / "none"))


def test_a_name_that_is_nowhere_raises():
    with pytest.raises(ValueError, match="neither 'python_docs', nor a file"):
        load_corpus("nobody/has-this")


def test_of_a_hub_data_set_the_train_split_alone_is_read(monkeypatch):
    """The recipes of the Bregman paper train on a data set whose validation and test documents are evaluated on."""
    parts = {name: Dataset.from_list([{"text": f"A {name} document."}]) for name in ("train", "validation", "test")}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration, split: parts[split])
    corpus = corpora.for_pretraining("somebody/documents:long", load_corpus("somebody/documents:long"))
    assert corpus["text"][:] == ["A train document."]


def test_a_missing_text_column_names_the_columns(corpus):
    with pytest.raises(ValueError, match=r"'body'.*\['text', 'label'\]"):
        add_text(corpus, "body")


def test_sections_become_the_text_where_there_is_none():
    sections = [{"heading": "", "text": "A ship."}, {"heading": "Storm", "text": "It sank."}]
    dataset = add_text(Dataset.from_dict({"sections": [sections, []]}), "text")
    assert dataset["text"][:] == [f"A ship.\n\n{SECTION_BREAK}Storm\n\nIt sank.", ""]
    of_lists = {"heading": ["", "Storm"], "text": ["A ship.", "It sank."]}
    for other in (of_lists, ["A ship.", "Storm\n\nIt sank."]):
        assert add_text(Dataset.from_list([{"sections": other}]), "text")["text"][0] == dataset["text"][0]


def test_lists_of_paragraphs_are_joined_as_the_probes_join_them(tmp_path):
    rows = [{"text": ["A ship.", "It sank."], "label": "a"}, {"text": [], "label": "b"}]
    dataset = add_text(Dataset.from_list(rows), "text")
    assert dataset["text"][:] == ["A ship.\nIt sank.", ""] == read_texts(Dataset.from_list(rows), ["text"], False, "x")
    assert dataset["label"][:] == ["a", "b"]
    assert add_text(Dataset.from_list([{"text": ["A ship.", None]}, {"text": None}]), "text")["text"][:] == [None] * 2
    assert add_text(Dataset.from_list([{"text": [1, 2]}]), "text")["text"][:] == [None]


def test_breaks_of_sections_change_neither_sentences_nor_the_document_id():
    sections = [
        *(
            {"heading": "Ships", "text": None},
            {"heading": "Sails", "text": "A sail.\nTorn"},
            {"heading": "", "text": ""},
        ),
        *({"heading": None, "text": "A rope. A tar"}, {"heading": "Storms", "text": "It sank."}),
    ]
    (text,) = join_sections({"sections": sections}, "text").values()
    plain = "Ships\n\nSails\n\nA sail.\nTorn\n\nA rope. A tar\n\nStorms\n\nIt sank."
    assert text != plain
    assert document_id(text) == document_id(plain)
    assert sketch([text]).tolist() == sketch([plain]).tolist()
    for name in ("rules", "sentencizer"):
        split = load_sentence_splitter(name)
        assert split(clean_text(text)) == split(plain)
    # a heading without a text begins the section of the next one
    assert [passage.text for passage in to_passages(text)] == [
        "Ships Sails A sail. Torn",
        "A rope. A tar",
        "Storms It sank.",
    ]


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


def test_the_built_in_corpus_is_cached_with_its_parts(built_in, monkeypatch):
    first = load_corpus("python_docs").to_list()
    assert [{name: row[name] for name in built_in[0]} for row in first] == built_in
    assert Counter(row["part"] for row in first) == {"train": 73, "validation": 12, "test": 15}
    monkeypatch.setattr(corpora, "read_python_docs", None)  # would fail if it were called
    assert load_corpus("python_docs").to_list() == first


def test_a_pretraining_reads_the_train_part_alone(built_in, caplog):
    caplog.set_level("INFO")
    dataset = load_corpus("python_docs")
    ids = [row["id"] for row in dataset if row["part"] == "train"]
    assert corpora.for_pretraining("python_docs", dataset)["id"][:] == ids
    assert "Of the 100 documents of python_docs a pretraining reads 73: 15 are the sealed test part" in caplog.text
    stream = corpora.stream_corpus("python_docs").rows
    assert sorted(row["id"] for row in stream) == sorted(ids)
    assert corpora.for_pretraining("my.jsonl", dataset) is dataset  # the name says what is sealed, not a column


def test_a_search_reads_the_built_in_corpus_or_a_part_of_it(built_in, tmp_path):
    rows = load_corpus("python_docs").to_list()
    whole = [(document.id, document.text) for document in corpora.documents_to_search(Path("python_docs"))]
    assert whole == [(row["id"], row["text"]) for row in rows]
    sealed = [document.id for document in corpora.documents_to_search(Path("python_docs:test"))]
    assert sealed == [row["id"] for row in rows if row["part"] == "test"]
    assert len(sealed) == 15
    with pytest.raises(ValueError, match="no part 'tset': choose among train, validation and test"):
        list(corpora.documents_to_search(Path("python_docs:tset")))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("A ship.")
    assert [document.text for document in corpora.documents_to_search(tmp_path / "notes")] == ["A ship."]


def test_what_a_folder_has_besides_is_counted_and_hidden_folders_are_left_alone(tmp_path, caplog):
    for name in ("a.txt", "b/c.txt", "d.md", "e.md", "f.html", "LICENSE", ".git/g.txt", "b/.ipynb_checkpoints/h.txt"):
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(f"A document called {name}.")
    texts = corpora.load_corpus(str(tmp_path / "docs"))["text"][:]
    assert sorted(texts) == [f"A document called {name}." for name in ("a.txt", "b/c.txt", "d.md", "e.md", "f.html")]
    skipped = "Skipped 3 files: 2 hidden (.git, b/.ipynb_checkpoints), 1 without suffix (LICENSE)"
    assert skipped in caplog.messages
    named = tmp_path / "docs" / ".git" / "g.txt"
    assert corpora.load_corpus(str(named))["text"][:] == ["A document called .git/g.txt."]  # who names it wants it


@pytest.fixture
def saved(tmp_path):
    """A data set with two splits as `datasets` saves it; of an earlier time a file is left over in one."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=["sea", "land"]), "id": Value("string")})
    splits = DatasetDict()
    for name in ("train", "test"):
        rows = [{"text": f"{name} {row}", "label": row % 2, "id": f"{name[0]}{row}"} for row in range(12)]
        splits[name] = Dataset.from_list(rows, features=features)
    splits.save_to_disk(tmp_path / "saved", num_shards={"train": 3, "test": 1})
    splits["train"].with_format("numpy").save_to_disk(tmp_path / "saved" / "train", num_shards=2)
    return tmp_path / "saved"


def test_a_saved_data_set_gives_its_train_split_wherever_a_folder_is_read(saved, caplog):
    caplog.set_level("INFO")
    texts = [f"train {row}" for row in range(12)]
    expected = load_from_disk(saved)["train"].with_format(None)
    for text_column in (None, "text"):
        dataset = load_corpus(str(saved), text_column=text_column)
        assert (dataset.to_list(), dataset.features) == (expected.to_list(), expected.features)
    assert [row["text"] for row in stream_corpus(str(saved), text_column="text").rows] == texts
    assert [(row.id, row.text) for row in documents_to_search(saved)] == list(zip(expected["id"], texts))
    assert adapting.read_texts(str(saved), "text") == texts
    notes = [message for message in caplog.messages if "splits" in message]
    assert notes == [f"{saved} is a data set with the splits train, test: train is read."] * 5
    caplog.clear()
    (saved.parent / "a.txt").write_text("A note.")
    assert [row.text for row in documents_to_search(saved.parent)] == ["A note."]  # among other files: which split?
    assert "1 data sets with splits (saved)" in caplog.text


def test_a_split_of_a_saved_data_set_is_read_by_its_name_or_folder(saved):
    tests = [f"test {row}" for row in range(12)]
    assert load_corpus(str(saved), "test")["text"][:] == load_corpus(str(saved / "test"))["text"][:] == tests
    assert [row["text"] for row in stream_corpus(str(saved), "test", "text").rows] == tests
    assert [row.text for row in documents_to_search(saved / "test")] == tests
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


def test_the_splits_of_a_saved_data_set_are_the_parts_of_labelled_documents(saved):
    """By --dataset_name, as those of the Hub, and by --train_file."""
    train, test = ([f"{name} {row}" for row in range(12)] for name in ("train", "test"))
    for options in (
        LabelledArguments(dataset_name=str(saved)),
        LabelledArguments(train_file=str(saved)),
        LabelledArguments(train_file=str(saved / "train"), test_file=str(saved)),
    ):
        split = load_labelled(options)
        assert (split.train_texts, split.test_texts) == (train, test)
        assert split.class_names == ["land", "sea"]
        assert split.test_labels.tolist() == [1, 0] * 6
    other = load_labelled(LabelledArguments(dataset_name=str(saved), train_split="test", test_split="train"))
    assert (other.train_texts, other.test_texts) == (test, train)
    alone = load_labelled(LabelledArguments(dataset_name=str(saved / "train")))
    assert sorted([*alone.train_texts, *(alone.validation_texts or []), *alone.test_texts]) == sorted(train)
