"""Rows of data files, their texts and ids: what cannot be read costs its row alone, and is counted with its place."""

import csv
import gzip
import io
import json

import pyarrow
import pytest
from datasets import Dataset
from pyarrow import parquet

from docsplit.data.passages import SECTION_BREAK
from docsplit.data.readers.base import Document, Problems, Unreadable
from docsplit.data.readers.documents import documents_in, find_documents
from docsplit.data.readers.files import File
from docsplit.data.readers.rows import (
    Columns,
    RowIds,
    check_text_column,
    id_of_cell,
    join_paragraphs,
    join_sections,
    parts_of,
    read_line_rows,
    read_texts,
    text_of_cell,
    text_of_row,
)


@pytest.fixture
def read(write):
    """Reads a file; returns its rows and what was skipped: kinds and places."""

    def read(name, content, encoding=None, **options):
        problems = Problems(**options)
        rows = list(read_line_rows(File(write(name, content), name), problems, encoding))
        return rows, {kind: places for kind, (_, places) in problems.counts.get("row", {}).items()}

    return read


# --- Lines ---

ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b\n"}]


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"{json.dumps(row)}\n" for row in ROWS),
        "\n\n".join(map(json.dumps, ROWS)),
        json.dumps(ROWS),
        f"\n{json.dumps(ROWS, indent=2)}\n",
        "\n".join(json.dumps(row, indent=2) for row in ROWS),
        json.dumps(ROWS).replace("}, {", "},\n{"),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".jsonl.gz"])
def test_json_is_read_by_lines_or_as_a_whole(read, content, suffix):
    content = gzip.compress(content.encode()) if suffix.endswith(".gz") else content
    assert read(f"a{suffix}", content) == (list(enumerate(ROWS)), {})


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("{", "that are no JSON"),
        ('{"text": ' + "[" * 100_000, "that are no JSON"),
        ('{"id": ' + "1" * 5000 + "}", "that are no JSON"),
        ("5", "that are no JSON objects"),
        ("[1]", "that are no JSON objects"),
        ('{"text": "\x00"}', "that are binary"),
        ('{"text": "d\ufffdj\ufffd"}', "that are of an unknown encoding"),
    ],
)
def test_a_broken_line_costs_itself_alone(read, broken, reason):
    """The rows after it keep their numbers when it is mended."""
    rows, skipped = read("a.jsonl", f'{{"text": "a"}}\n{broken}\n\n{{"text": "b"}}\n')
    assert rows == [(0, {"text": "a"}), (2, {"text": "b"})]
    assert skipped == {f".jsonl {reason}": ["a.jsonl, line 2"]}
    if "no JSON" in reason:
        with pytest.raises(Unreadable, match=rf"^a\.jsonl, line 2 {reason.replace('that are', 'is')}: "):
            read("a.jsonl", f'{{"text": "a"}}\n{broken}\n', refuses_rows=True)


def test_an_array_is_read_up_to_where_it_is_broken(read):
    content = json.dumps([{"text": "a"}, {"text": "b"}, {"text": "c"}], indent=1)
    rows, skipped = read("a.json", content.replace('"b"', '"b'))
    assert rows == [(0, {"text": "a"})]
    assert skipped == {".json that are no JSON, and all after them": ["a.json, line 5"]}
    rows, skipped = read("a.json", content[:-2])
    assert len(rows) == 3
    assert skipped == {".json and all after it, since the array does not end": ["a.json, line 10"]}


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".csv"])
def test_a_file_that_was_cut_is_read_up_to_there(read, suffix):
    line = {".jsonl": '{{"text": "{}"}}', ".txt": "{}", ".csv": "{}"}[suffix]
    lines = ["text"] * (suffix == ".csv") + [line.format(f"number {number}") for number in range(5000)]
    rows, skipped = read(f"a{suffix}.gz", gzip.compress("\n".join(lines).encode())[:-100])
    assert 1000 < len(rows) < 5000
    assert [row["text"] for _, row in rows] == [f"number {number}" for number in range(len(rows))]
    place = f"a{suffix}.gz, line {len(rows) + 1 + (suffix == '.csv')}"
    assert skipped == {f"{suffix} and all after it, since the file is damaged there": [place]}


def test_tables_are_read_as_the_csv_module_writes_them(read):
    file = io.StringIO()
    cells = [["1", 'a "ship", and\r\nmore'], ["0012", "x" * 200_000], ["NA", ""]]
    csv.writer(file).writerows([["id", "text"], *cells])
    rows, skipped = read("a.csv", file.getvalue())
    assert rows == [(number, dict(zip(("id", "text"), row))) for number, row in enumerate(cells)]
    assert skipped == {}
    assert read("a.csv", "id,text,id,\n1,a,2,\n3,b,4,\n")[0][0] == (0, {"id": "1", "text": "a", "": ""})


def test_a_row_that_does_not_fit_a_table_costs_itself_alone(read):
    rows, skipped = read("a.tsv", "id\ttext\n1\ta\tb\n2\n\n3\tc\t\n4\td\x00\n5\te\n")
    assert rows == [(1, {"id": "2", "text": None}), (2, {"id": "3", "text": "c"}), (4, {"id": "5", "text": "e"})]
    assert skipped == {
        ".tsv with more fields than the header": ["a.tsv, line 2"],
        ".tsv that are binary": ["a.tsv, line 6"],
    }
    rows, skipped = read("a.csv", 'text\na\n"b\nc\nd\n')
    assert rows == [(0, {"text": "a"})]
    assert skipped == {".csv and all after it, since a quote is never closed": ["a.csv, line 3"]}


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", "text\nDéjà\n"), ("a.jsonl", '{"text": "Déjà"}'), ("a.txt", "Déjà")]
)
def test_rows_are_read_in_the_encoding_of_their_file(read, name, content):
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "latin-1"):
        assert read(name, content.encode(encoding)) == ([(0, {"text": "Déjà"})], {})
    assert read(name, content.replace("Déjà", "Łódź").encode("cp1250"), "cp1250")[0][0][1]["text"] == "Łódź"


def test_a_binary_txt_has_no_lines(read):
    with pytest.raises(Unreadable, match=r"a\.txt is binary"):
        read("a.txt", bytes(range(256)) * 10)
    rows, skipped = read("a.txt", "A line.\n" * 2000 + "b\x00\n\nc")  # a line far from the beginning
    assert [number for number, _ in rows] == [*range(2000), 2001, 2002]
    assert skipped == {".txt that are binary": ["a.txt, line 2001"]}


def test_mended_rows_and_detected_files_are_counted_once(write):
    def notes(content):
        problems = Problems()
        rows = list(read_line_rows(File(write("a.jsonl", content), "a.jsonl"), problems))
        return len(rows), problems.counts["note"], problems.number_of("row")

    good, bad = '{"text": "ééé"}\n'.encode(), b'{"text": "' + b"x" * 200 + b'\xe9\xe9"}\n'
    content = good * 3 + bad + good + bad + b'{"text": "\xe9\xe9"}\n'
    assert notes(content) == (6, {"mended": (2, ["a.jsonl, line 4", "a.jsonl, line 6"])}, 1)
    latin = '{"text": "L\'élève écrivait"}\n'.encode("latin-1")
    assert notes(latin * 3) == (3, {"detected": (1, ["a.jsonl as cp1252"])}, 0)


# --- Texts and ids ---


def documents_of(path, text_column="text", id_column=None):
    found = find_documents(path)
    return list(documents_in(found, Columns(text_column, id_column)))


def test_ids_have_the_files_name_in_a_folder_and_where_there_is_no_column(write, tmp_path):
    rows = [{"text": "A ship.", "title": "Ships", "key": 7}, {"text": "A storm at sea.", "title": None, "key": 8}]
    path = write("b/a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert documents_of(path) == [
        Document("a.jsonl#0", "A ship.", "Ships"),
        Document("a.jsonl#1", "A storm at sea.", "A storm at sea."),
    ]

    def ids(path, id_column=None):
        return [row.id for row in documents_of(path, id_column=id_column)]

    assert ids(tmp_path) == ["b/a.jsonl#0", "b/a.jsonl#1"]
    assert (ids(path, "key"), ids(tmp_path, "key")) == (["7", "8"], ["b/a.jsonl#7", "b/a.jsonl#8"])
    with pytest.raises(ValueError, match="--id_column is 'name'") as caught:
        ids(tmp_path, "name")
    assert not isinstance(caught.value, Unreadable)  # whoever asks for a column wants it in every file
    assert ids(write("a.csv", "id,text\n0012,a\n,b\n1e3,c\n")) == ["0012", "a.csv#1", "1e3"]
    assert ids(write("c.csv", "_id,text\nx,A ship.\n")) == ["x"]


def test_files_without_texts_say_why(write):
    for name, content, reason in (
        ("other.jsonl", '{"body": "a"}', "without a column 'text'"),
        ("broken.jsonl", '{"text": "tw', "that cannot be read as jsonl"),
        ("broken.parquet", b"no parquet", "that cannot be read as parquet"),
        ("empty.jsonl", "", "without rows"),
        ("heads.csv", "text,label\n", "without rows"),
        ("zip.csv", b"PK\x03\x04" + b"x" * 30, "that is an archive"),
        ("tar.csv", b"x" * 257 + b"ustar" + b"x" * 30, "that is an archive"),
    ):
        with pytest.raises(Unreadable, match=name) as caught:
            documents_of(write(name, content))
        assert caught.value.reason == reason


def test_rows_without_an_id_get_the_number_of_their_row_and_are_counted():
    rows = [{"id": None}, {"id": "x"}, {"id": " "}, {}, {"id": float("nan")}, {"id": 7}, {"id": ["a"]}, {"id": "x"}]
    numbered = {number: f"a.jsonl#{number}" for number in (0, 2, 3, 4, 6, 7)}

    def ids(rows, in_folder=False):
        problems = Problems()
        given = RowIds(File(None, "a.jsonl"), None, in_folder, problems)
        return [given.of(number, row) for number, row in enumerate(rows)], problems.counts.get("note")

    assert ids(rows) == (
        [numbered.get(number, {1: "x", 5: "7"}.get(number)) for number in range(8)],
        {"without_id": (5, ["a.jsonl#0", "a.jsonl#2"]), "repeated_id": (1, ["x of row 7"])},
    )
    in_folder = [numbered.get(number, {1: "a.jsonl#x", 5: "a.jsonl#7"}.get(number)) for number in range(7)]
    assert ids(rows, in_folder=True)[0] == [*in_folder, "a.jsonl#7+"]  # row 5 is called like the number of row 7
    assert ids([{}, {}]) == (["a.jsonl#0", "a.jsonl#1"], None)  # where no row has an id, nothing is missing


def test_titles_that_are_no_texts(write):
    rows = [{"title": 1984}, {"title": ["a"]}, {"title": True}, {"title": float("nan")}, {"title": "a \ud800"}]
    content = "".join(json.dumps({"text": "First line."} | row) + "\n" for row in rows)
    titles = [document.title.strip() for document in documents_of(write("a.jsonl", content))]
    assert titles == ["1984", "First line.", "First line.", "First line.", "a"]


def test_a_parquet_file_is_read_up_to_where_it_is_damaged(write, tmp_path):
    texts = [f"number {number}" for number in range(3000)]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=1000)
    metadata = parquet.read_metadata(tmp_path / "a.parquet")
    start = metadata.row_group(1).column(0).dictionary_page_offset
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[start : start + 30] = bytes(30)
    file, problems = File(write("b.parquet", bytes(content)), "b.parquet"), Problems()
    assert [text for _, _, text in read_texts(file, Columns(), problems)] == texts[:1000]
    assert problems.counts["row"] == {
        ".parquet and all after it, since the file is damaged there": (1, ["b.parquet, row 1000"])
    }
    assert parts_of(file) == [0, 1, 2]
    parts = [[text for _, _, text in read_texts(file, Columns(), problems, part)] for part in parts_of(file)]
    assert parts == [texts[:1000], [], texts[2000:]]  # a stream can read on


def test_a_text_is_a_string_or_paragraphs_or_sections(tmp_path):
    sections = [{"heading": "Sails", "text": "Torn."}, {"heading": "Ropes", "text": "Tarred."}]
    joined = f"Sails\n\nTorn.\n\n{SECTION_BREAK}Ropes\n\nTarred."
    assert text_of_row({"body": "A ship.", "sections": sections}, "body") == "A ship."
    assert text_of_row({"sections": sections}, "body") == joined == join_sections({"sections": sections}, "x")["x"]
    assert text_of_row({"body": 7}, "body") is None is join_paragraphs(["a", None])
    assert join_paragraphs("e\u0301") == "\xe9"
    Dataset.from_list([{"text": ["A sail.", "A rope."]}]).to_parquet(tmp_path / "a.parquet")
    assert documents_of(tmp_path / "a.parquet")[0].text == "A sail.\nA rope."
    check_text_column(["sections"], "body")
    with pytest.raises(ValueError, match=r"--text_column is 'text', but the columns are \['body'\]"):
        check_text_column(["body"], "text")


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        (5, ""),
        ("A ship.", "A ship."),
        ([5, None, [1], "A ship."], "A ship."),
        ([{"heading": 5, "text": "A ship."}], "A ship."),
        ([{"heading": None, "text": ["A ship.", "It sank."]}], "A ship.\nIt sank."),
        ({"heading": 5, "text": ["A ship."]}, "A ship."),
        ({"heading": 5}, ""),
        ({}, ""),
    ],
)
def test_sections_that_are_none_are_no_text(sections, text):
    assert text_of_row({"sections": sections}, "body") == text
    assert text_of_row({}, "body") == ""


def test_cells_are_texts_ids_or_refused():
    cells = {1984: "1984", 1.5: "1.5", None: "", "a\ud800": "a ", "": ""}
    assert [text_of_cell(value, "") for value in cells] == [*cells.values()]
    assert text_of_cell(["a", "b"], "") == "a\nb"
    assert [id_of_cell(value, "") for value in (7, "0012", "a\ud800")] == ["7", "0012", r"a\ud800"]
    for value in ({}, [1], float("nan")):
        with pytest.raises(ValueError, match=r"a\.csv, row 1 is .*, expected a text"):
            text_of_cell(value, "a.csv, row 1")
    for value in (None, "", " ", 1.5, True, ["a"]):
        with pytest.raises(ValueError, match=r"a\.csv, row 1 is .*, expected a text or a whole number"):
            id_of_cell(value, "a.csv, row 1")


def test_an_unknown_encoding_is_refused():
    for name in ("cp1522", "rot13"):
        with pytest.raises(ValueError, match=f"--encoding '{name}' is none that Python knows"):
            Columns(encoding=name)
