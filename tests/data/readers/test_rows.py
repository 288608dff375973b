"""Rows of data files, their texts and ids: what cannot be read costs its row alone, and is counted with its place."""

import csv
import gzip
import io
import json

import pandas
import pyarrow
import pytest
from datasets import Dataset
from pyarrow import parquet

from docsplit.data.corpora import load_local
from docsplit.data.passages import SECTION_BREAK
from docsplit.data.readers.base import Document, Problems, TableColumns, Unreadable
from docsplit.data.readers.documents import read_documents
from docsplit.data.readers.files import File
from docsplit.data.readers.rows import (
    check_text_column,
    id_of_cell,
    ids_of_rows,
    join_columns,
    join_paragraphs,
    parts_of,
    read_rows,
    read_texts,
    text_of_cell,
    text_of_row,
)
from tests.data.readers.office import make_xlsx

REPLACED = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def read(write):
    """Reads a file; returns its rows and what was skipped: kinds and places."""

    def read(name, content, encoding=None, **options):
        problems = Problems(**options)
        rows = list(read_rows(File(write(name, content), name), problems, encoding))
        return rows, {kind: place for kind, (_, place) in problems.counts.get("row", {}).items()}

    return read


# --- Lines ---

ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b\n"}]


@pytest.mark.parametrize(
    "content", ["\n\n".join(map(json.dumps, ROWS)), json.dumps(ROWS), f"\n{json.dumps(ROWS, indent=2)}\n"]
)
def test_json_is_read_by_lines_or_as_a_whole(read, content):
    assert read("a.jsonl", content) == read("a.json", content) == (list(enumerate(ROWS)), {})
    assert read("b.json", json.dumps({"text": "a"}, indent=1))[0] == [(0, {"text": "a"})]
    with pytest.raises(Unreadable, match=r"c\.json is no JSON: "):
        read("c.json", json.dumps(ROWS, indent=1)[:-2])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("{,", "that are no JSON"),
        ('{"text": ' + "[" * 100_000, "that are no JSON"),
        ('{"id": ' + "1" * 5000 + "}", "that are no JSON"),
        ("5", "that are no JSON objects"),
        ('{"text": "\x00"}', "that are binary"),
    ],
)
def test_a_broken_line_costs_itself_alone(read, broken, reason):
    """The rows after it keep their numbers when it is mended."""
    rows, skipped = read("a.jsonl", f'{{"text": "a"}}\n{broken}\n\n{{"text": "b"}}\n')
    assert rows == [(0, {"text": "a"}), (2, {"text": "b"})]
    assert skipped == {reason: "a.jsonl, line 2"}
    if "no JSON" in reason:
        with pytest.raises(Unreadable, match=rf"^a\.jsonl, line 2 cannot be read, as one of the rows {reason}: "):
            read("a.jsonl", f'{{"text": "a"}}\n{broken}\n', refuses_rows=True)


@pytest.mark.parametrize(
    ("name", "line"), [("a.jsonl", '{{"text": "{}"}}'), ("a.csv", "{}"), ("a.tsv", "{}\t"), ("a.txt", "{}")]
)
def test_an_odd_character_costs_no_row_but_bytes_that_are_none_may(read, name, line):
    """A row is short: one in a hundred is for files."""
    texts = [f"d{REPLACED}j{REPLACED}", f"{REPLACED} 船", "It\x92s.", "Größe — größer — am größten"]
    rows = [line.format(text) for text in texts]
    begin = ["text"] * name.endswith("sv")
    assert [row["text"] for _, row in read(name, "\n".join([*begin, *rows]))[0]] == texts
    content = "\n".join([*begin, *rows, line.format("d\udce9j\udce0")]).encode(errors="surrogateescape")
    skipped = {"that are of an unknown encoding: --encoding names it": f"{name}, line {len(begin) + 5}"}
    assert [read(name, content)[1], len(read(name, content)[0])] == [skipped, 4]


COLUMNS = pandas.DataFrame({"text": ["Der Wal singt", "猫が眠る", "Dogs bark"], "label": ["a", "b", "a"]})
BY_COLUMNS = {
    "list": json.dumps(COLUMNS.to_dict("list")),
    "one row": json.dumps(COLUMNS[:1].to_dict("list"), indent=1),
    "one column": json.dumps({"text": ["a", "b"]}),
    "by default": COLUMNS.to_json(),
    **{orient: COLUMNS.to_json(orient=orient, indent=2) for orient in ("columns", "index", "split", "table")},
}


@pytest.mark.parametrize("orient", BY_COLUMNS)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_table_by_columns_is_no_document(read, orient, name):
    with pytest.raises(
        Unreadable, match=rf'{name} is one of the files that hold columns, or rows by name: .*orient="records"\)$'
    ):
        read(name, BY_COLUMNS[orient])


def test_a_table_by_rows_and_a_row_of_lists_are_read(read):
    for options in ({}, {"lines": True}):
        rows = [(number, row) for number, row in enumerate(COLUMNS.to_dict("records"))]
        assert read("a.json", COLUMNS.to_json(orient="records", **options))[0] == rows
    sections = {"sections": {"heading": ["A"], "text": ["B"]}}
    for row in ({"title": "T", "text": ["a", "b"]}, {"text": ["a", "b"], "labels": ["c"]}, sections, {}):
        assert read("a.json", json.dumps(row))[0] == [(0, row)]
    lists = {"text": ["a", "b"], "labels": ["c", "d"]}
    assert read("a.jsonl", f"{json.dumps(lists)}\n" * 2)[0] == [(0, lists), (1, lists)]


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".csv"])
def test_a_file_that_was_cut_is_read_up_to_there(write, suffix, caplog):
    line = {".jsonl": '{{"text": "{}"}}', ".txt": "{}", ".csv": "{}"}[suffix]
    lines = ["text"] * (suffix == ".csv") + [line.format(f"number {number}") for number in range(5000)]
    path = write(f"a{suffix}.gz", gzip.compress("\n".join(lines).encode())[:-100])
    texts = load_local(path, "text")["text"][:]
    assert 1000 < len(texts) < 5000
    assert texts == [f"number {number}" for number in range(len(texts))]
    assert f"1 {suffix} that are damaged, from there on (a{suffix}.gz)" in caplog.text
    if suffix != ".txt":
        assert [document.text for document in read_documents(path.parent)] == texts
        with pytest.raises(Unreadable, match=rf"a\{suffix}\.gz is damaged after line \d\d\d\d: "):
            load_local(path)  # a table has to be whole


def test_tables_are_read_as_the_csv_module_writes_them(read):
    file = io.StringIO()
    cells = [["1", 'a "ship", and\r\nmore'], ["0012", "x" * 200_000], ["NA", ""]]
    csv.writer(file).writerows([["id", "text"], *cells])
    expected = [(number, dict(zip(("id", "text"), row))) for number, row in enumerate(cells)]
    assert read("a.csv", file.getvalue()) == (expected, {})
    assert read("a.csv", "id,text,id,\n1,a,2,\n3,b,4,\n")[0][0] == (0, {"id": "1", "text": "a", "": ""})
    assert read("a.csv", "text , Cafe\u0301\u00a0\n a ,b\n")[0] == [(0, {"text": "a ", "Caf\u00e9": "b"})]


def test_a_row_that_does_not_fit_a_table_costs_itself_alone(read):
    rows, skipped = read("a.tsv", "id\ttext\n1\ta\tb\n2\n\n3\tc\t\n4\td\x00\n5\te\n")
    assert rows == [(1, {"id": "2", "text": None}), (2, {"id": "3", "text": "c"}), (4, {"id": "5", "text": "e"})]
    assert skipped.pop("with more fields than the header") == "a.tsv, line 2"
    assert [*skipped.values()] == ["a.tsv, line 6"]  # binary, or no row before Python 3.11
    rows, skipped = read("a.csv", 'text\na\n"b\nc\nd\n')
    assert (rows, skipped) == (
        [(0, {"text": "a"})],
        {"with a quote that is never closed, and all after it": "a.csv, line 3"},
    )


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_end_at_what_divides_the_header(read, name, delimiter):
    rows = [("a, b; c | d\te", "sea"), ('"Go", he said.\nGo.', "land"), ("", "1,5")]
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([("text, in words", "label", "x"), *((*row, "") for row in rows)])
    expected = [
        (number, {"text, in words": text, "label": label, "x": ""}) for number, (text, label) in enumerate(rows)
    ]
    assert read(name, file.getvalue()) == (expected, {})
    assert read(name, f'sep={delimiter}\ntext\n"a{delimiter}b"\n') == ([(0, {"text": f"a{delimiter}b"})], {})
    assert read(name, f'text{delimiter} label\na{delimiter} "b{delimiter} c"\n') == (
        [(0, {"text": "a", "label": f"b{delimiter} c"})],
        {},
    )


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("before", ["", '"two\nlines"{0}"x ""y"" z"\n'])
def test_a_stray_quote_swallows_no_rows(write, delimiter, before):
    """Whether another quote ends it, or the file; fields of several lines stay fields."""
    texts = ['"never closed', 'a 5" disk', "third", '"fourth" he said', '"open', "last"]
    lines = [f"{text}{delimiter}label {row}" for row, text in enumerate(texts)]
    problems = Problems()
    content = f"text{delimiter}label\n" + before.format(delimiter) + "\n".join(lines)
    rows = [row for _, row in read_rows(File(write("a.csv", content), "a.csv"), problems)]
    if before:
        assert rows.pop(0) == {"text": "two\nlines", "label": 'x "y" z'}
    assert rows == [{"text": text, "label": f"label {row}"} for row, text in enumerate(texts)]
    assert problems.counts == {
        "text": {"with a stray quote, read as it stands": (3, f"a.csv, line {4 if before else 2}")}
    }


def test_what_a_stray_quote_leaves_unclear_is_counted_or_refused(read, write):
    content = 'text,label\n"one,\nand "so" on",x\nb,y\n'  # lines that are no rows
    assert read("a.csv", content) == (
        [(1, {"text": "b", "label": "y"})],
        {"that are no rows of a table": "a.csv, line 2"},
    )
    with pytest.raises(Unreadable, match=r"a\.csv, line 2 cannot be read.* to line 3"):
        read("a.csv", content, refuses_rows=True)
    assert read("a.csv", 'text,label\n"Go, now" he said,b\n')[0] == [(0, {"text": "Go, now he said", "label": "b"})]
    for content, noted in (  # the second quote may end a field
        ('text,label\n"a disk,b\nof 5",c\n', "a.csv, line 2"),
        ('text,label\n"Dear John,\nBest regards",c\n', None),
        ('text,label\n"Hello, John\nBest regards",c\n', None),
    ):
        problems = Problems()
        assert len(list(read_rows(File(write("a.csv", content), "a.csv"), problems))) == 1
        assert [place for _, place in problems.counts.get("text", {}).values()] == [noted] * bool(noted)
    three = 'text,label\n"a disk,b\nthird,c\nof 5",d\n'
    assert len(read("a.csv", three)[0]) == 1
    with pytest.raises(Unreadable, match=r"a\.csv, line 2 cannot be read.* of lines that are rows each"):
        read("a.csv", three, refuses_rows=True)
    many = "\n".join(f'"row {row},label' for row in range(50_000))
    assert len(read("a.csv", f"text,label\n{many}\n")[0]) == 50_000


def test_sheets_of_a_workbook(read, write, tmp_path):
    """Cells as a .csv has them, whatever the workbook says of its size; other sheets are named."""
    cells = [["text", None, "label"], ["Das Schiff", "x", 1], [None] * 3, ["Ein <Sturm>", None, 2.0], ["c", None, 0.5]]
    expected = [{"text": "Das Schiff", "": "x", "label": "1"}, {"text": "Ein <Sturm>", "": None, "label": "2"}]
    expected.append({"text": "c", "": None, "label": "0.5"})
    content = make_xlsx(cells, Second=[["other"]])
    assert read("a.xlsx", content) == (list(enumerate(expected)), {})
    problems = Problems()
    list(read_rows(File(write("a.xlsx", content), "a.xlsx"), problems))
    assert problems.counts == {"text": {"of several sheets: the first, First, is read": (1, "a.xlsx")}}
    assert load_local(write("b.xlsx", content)).to_list() == expected
    shown = [[" text\u00a0"], ["a_x000D_\nb _x005F_x000D_"]]
    assert read("a.xlsx", make_xlsx([["old"]], hidden=1, Shown=shown)) == ([(0, {"text": "a\r\nb _x000D_"})], {})
    assert [row.id for row in read_documents(write("c/d.xlsx", content).parent)] == [f"d.xlsx#{n}" for n in range(3)]
    remark = make_xlsx([["body"], ["a"], ["b", "more"]])
    assert read("a.xlsx", remark) == ([(0, {"body": "a"}), (1, {"body": "b"})], {})
    for damaged in (b"", b"text", content[:300], make_xlsx([])[:-40]):
        with pytest.raises(Unreadable, match=r"e\.xlsx"):
            list(read_texts(File(write("e.xlsx", damaged), "e.xlsx"), TableColumns(), Problems()))


ABOVE, BESIDE = "that are lines above the header, left out", "with cells beside the columns of the header, left out"
NAMES, WAL = ["text", "label"], ["Der Wal", "море"]
SHEETS = [  # rows, those that are read, and what is left out
    ([NAMES, WAL, ["猫", "b", "check again"], ["c", None, None, 5]], [WAL, ["猫", "b"], ["c", None]],
     {BESIDE: (2, "a.xlsx, row 3")}),
    ([["Our labels"], [None], [None, "Spring"], NAMES, WAL, ["c", "d"]], [WAL, ["c", "d"]],
     {ABOVE: (2, "a.xlsx, row 1")}),
    ([["Our labels"], NAMES, WAL, WAL, ["c", "d", "e"]], [WAL, WAL, ["c", "d"]],
     {ABOVE: (1, "a.xlsx, row 1"), BESIDE: (1, "a.xlsx, row 5")}),
    ([["text"], ["a"], [None], ["b", "more"], ["c", None]], [["a"], ["b"], ["c"]], {BESIDE: (1, "a.xlsx, row 4")}),
    ([["text"], ["a", "x"], ["b", "y"]], [["a"], ["b"]], {BESIDE: (2, "a.xlsx, row 2")}),
    ([NAMES, ["a"], ["b"], ["c", "d"]], [["a", None], ["b", None], ["c", "d"]], {}),
]  # fmt: skip


@pytest.mark.parametrize("refuses_rows", [False, True])
@pytest.mark.parametrize(("cells", "expected", "left_out"), SHEETS)
def test_a_remark_beside_a_row_and_a_title_above_the_header_cost_no_row(
    write, cells, expected, left_out, refuses_rows
):
    problems = Problems(refuses_rows=refuses_rows)
    rows = [row for _, row in read_rows(File(write("a.xlsx", make_xlsx(cells)), "a.xlsx"), problems)]
    assert rows == [dict(zip(NAMES, row)) for row in expected]
    assert problems.counts == ({"text": left_out} if left_out else {})


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["A ship in the storm", "Köln", "魚が川を渡る", "Корабль в море", "سفينة في البحر"])
def test_utf_16_without_a_mark_is_found(read, encoding, text):
    assert read("a.csv", f"text,label\n{text},x\n".encode(encoding))[0] == [(0, {"text": text, "label": "x"})]
    assert read("a.txt", f"{text}\n{text}".encode(encoding))[0][1] == (1, {"text": text})


def test_a_binary_txt_has_no_lines(read):
    with pytest.raises(ValueError, match="--encoding 'rot13' is none that Python knows"):
        TableColumns(encoding="rot13")
    assert read("a.txt", "Łódź".encode("cp1250"), "cp1250") == ([(0, {"text": "Łódź"})], {})
    with pytest.raises(Unreadable, match=r"a\.txt is binary"):
        read("a.txt", bytes(range(256)) * 10)
    rows, skipped = read("a.txt", "A line.\n" * 2000 + "b\x00\n\nc")  # a line far from the beginning
    assert [number for number, _ in rows] == [*range(2000), 2001, 2002]
    assert skipped == {"that are binary": "a.txt, line 2001"}


# --- Texts and ids ---


def test_ids_have_the_files_name_in_a_folder_and_where_there_is_no_column(write, tmp_path):
    rows = [{"text": "A ship.", "title": "Ships", "key": 7}, {"text": "A storm at sea.", "title": None, "key": 8}]
    path = write("b/a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert list(read_documents(path)) == [
        Document("a.jsonl#0", "A ship.", "Ships"),
        Document("a.jsonl#1", "A storm at sea.", "A storm at sea."),
    ]

    def ids(path, id_column=None):
        return [row.id for row in read_documents(path, TableColumns(id=id_column))]

    assert ids(tmp_path) == ["b/a.jsonl#0", "b/a.jsonl#1"]
    assert (ids(path, "key"), ids(tmp_path, "key")) == (["7", "8"], ["b/a.jsonl#7", "b/a.jsonl#8"])
    with pytest.raises(ValueError, match="--id_column is 'name'") as caught:
        ids(tmp_path, "name")
    assert not isinstance(caught.value, Unreadable)  # whoever asks for a column wants it in every file
    assert ids(write("c.csv", "_id,text\n0012,a\n,b\n1e3,c\n")) == ["0012", "c.csv#1", "1e3"]


def test_rows_without_an_id_or_with_a_repeated_one_get_the_number_of_their_row():
    rows = [None, "x", " ", float("nan"), ["a"], 7.0, "x", "a.jsonl#8", "x"]

    def ids(in_folder):
        problems = Problems()
        id_of = ids_of_rows(File(None, "a.jsonl"), None, in_folder, problems)
        return [id_of(number, {"id": value}) for number, value in enumerate(rows)], problems.counts["text"]

    numbered = [f"a.jsonl#{number}" for number in range(9)]
    (kind,) = ids(False)[1]
    assert ids(False) == (
        [numbered[0], "x", *numbered[2:5], "7", numbered[6], numbered[8], f"{numbered[8]}+"],  # row 7 is called like 8
        {kind: (2, "x of row 6")},
    )
    in_folder = [numbered[0], "a.jsonl#x", *numbered[2:5], "a.jsonl#7", numbered[6], "a.jsonl#a.jsonl#8", numbered[8]]
    assert ids(True)[0] == in_folder


def test_titles_that_are_no_texts(write):
    given = [1984, 1984.0, ["a"], True, float("nan"), "a \ud800"]
    content = "".join(json.dumps({"text": "First line.", "title": title}) + "\n" for title in given)
    titles = [document.title.strip() for document in read_documents(write("a.jsonl", content))]
    assert titles == ["1984", "1984", "First line.", "First line.", "First line.", "a"]


def test_a_parquet_file_is_read_up_to_where_it_is_damaged(write, tmp_path):
    texts = [f"number {number}" for number in range(3000)]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=1000)
    start = parquet.read_metadata(tmp_path / "a.parquet").row_group(1).column(0).dictionary_page_offset
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[start : start + 30] = bytes(30)
    file = File(write("b/b.parquet", bytes(content)), "b.parquet")
    assert parts_of(file) == [0, 1, 2]
    with pytest.raises(Unreadable, match=r"b\.parquet is damaged after line 1000: "):
        list(read_texts(file, TableColumns(), Problems()))
    read = [[text for _, _, text in read_texts(file, TableColumns(), Problems(), part)] for part in (0, 2)]
    assert read == [texts[:1000], texts[2000:]]  # a stream can read on
    assert [document.text for document in read_documents(tmp_path / "b")] == texts[:1000]
    cut = File(write("c.parquet.gz", gzip.compress((tmp_path / "a.parquet").read_bytes())[:-200]), "c.parquet.gz")
    with pytest.raises(Unreadable, match=r"c\.parquet\.gz cannot be opened: "):
        list(read_texts(cut, TableColumns(), Problems()))


@pytest.mark.parametrize("of_bytes", [pyarrow.binary(), pyarrow.large_binary(), pyarrow.list_(pyarrow.binary())])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_strings_that_are_not_marked_as_utf_8_are_texts(tmp_path, of_bytes, suffix, caplog):
    texts, path = ["Größe", "Корабль", "船"], tmp_path / f"a{suffix}"

    def write(texts):
        cells = [[text] for text in texts] if pyarrow.types.is_list(of_bytes) else texts
        picture = pyarrow.array([b"\x89PNG"] * len(texts), pyarrow.binary())
        ids = pyarrow.array([b"%d" % number for number in range(len(texts))], pyarrow.binary())
        table = pyarrow.table({"id": ids, "text": pyarrow.array(cells, of_bytes), "picture": picture})
        if suffix == ".parquet":
            parquet.write_table(table, path)
        else:
            with pyarrow.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)

    write([text.encode() for text in texts])
    assert [(row.id, row.text) for row in read_documents(path)] == list(zip("012", texts))
    dataset = load_local(path)
    assert dataset["text"][:] == ([[text] for text in texts] if pyarrow.types.is_list(of_bytes) else texts)
    assert dataset["picture"][:] == [b"\x89PNG"] * 3
    if not pyarrow.types.is_list(of_bytes):
        write([b"A ship.", b"caf\xe9", b"A boat."])
        assert [(row.id, row.text) for row in read_documents(path)] == [("0", "A ship."), ("2", "A boat.")]
        assert f"Skipped 1 row: 1 whose text is no utf-8 (a{suffix}, row 2)" in caplog.text


def test_data_in_an_address_is_no_text_of_a_row(write, caplog):
    text = f"![plan](data:image/png;base64,{'iVBORw0K' * 40}) A ship."
    (document,) = read_documents(write("a.jsonl", json.dumps({"text": text})))
    assert document.text == "![plan]() A ship."
    assert "1 with pictures or files in data: addresses, which are left out (a.jsonl, row 1)" in caplog.text


def test_a_table_without_a_header_is_named(write):
    data = "The first row looks like data: if it is, write the names of the columns in a row above it."
    for row, shown in (
        (("The whale sings in the sea", "sea"), "['The whale sings in the sea', 'sea']"),
        (("Кит поёт.", "море"), "['Кит поёт.', 'море']"),
        (("船は海を渡り嵐の中", "海"), "['船は海を渡り嵐の中', '海']"),
        (("1.5", "sea"), "['1.5', 'sea']"),
        (("word " * 50, "sea"), f"['{'word ' * 7}word…', 'sea']"),
    ):
        for name, content in (("a.csv", ",".join(row)), ("a.xlsx", make_xlsx([row, row]))):
            with pytest.raises(ValueError, match=r"--text_column is 'text', but the columns are \[") as caught:
                list(read_documents(write(name, f"{content}\n{content}\n" if name == "a.csv" else content)))
            assert str(caught.value).endswith(f"the columns are {shown}: name one. {data}")
    with pytest.raises(ValueError, match=r"are \['The text', 'Klasse', '2020'\]: name one\.$"):
        list(read_documents(write("b.csv", "The text,Klasse,2020\na,b,c\n")))


def test_a_text_is_a_string_or_paragraphs_or_sections(tmp_path):
    sections = [{"heading": "Sails", "text": "Torn."}, {"heading": "Ropes", "text": "Tarred."}]
    joined = f"Sails\n\nTorn.\n\n{SECTION_BREAK}Ropes\n\nTarred."
    assert text_of_row({"body": "A ship.", "sections": sections}, "body") == "A ship."
    assert text_of_row({"body": 7}, "body") is None is join_paragraphs(["a", None])
    for value, text in (
        (sections, joined),
        ([5, None, [1], "A ship."], "A ship."),
        ([{"heading": None, "text": ["A ship.", "It sank."]}, {"heading": 5}], "A ship.\nIt sank."),
        ({"heading": 5, "text": ["A ship."]}, "A ship."),  # as older `datasets` had them
        ({}, ""),
        (5, ""),
    ):
        assert text_of_row({"sections": value}, "body") == text
    Dataset.from_list([{"text": ["A sail.", "A rope."]}]).to_parquet(tmp_path / "a.parquet")
    assert next(read_documents(tmp_path / "a.parquet")).text == "A sail.\nA rope."
    check_text_column(["sections"], "body")
    with pytest.raises(ValueError, match=r"--text_column is 'text', but the columns are \['body'\]: name one\.$"):
        check_text_column(["body"], "text")
    with pytest.raises(
        ValueError,
        match=r"are \['text:label'\]: name one\. The first row names the columns; cells end at a comma, a semicolon",
    ):
        check_text_column(["text:label"], "text")
    row = {"title": "Sails", "text": ["Torn.", "Old."], "none": None, "blank": " ", "number": 5}
    assert join_columns([row["title"], row["none"], row["blank"], row["text"]]) == "Sails\n\nTorn.\nOld."
    assert join_columns([row["title"], row["number"]]) is None


def test_cells_are_texts_ids_or_refused():
    cells = {1984: "1984", 1.5: "1.5", None: "", "a\ud800": "a ", "": ""}
    assert [text_of_cell(value, "") for value in cells] == [*cells.values()]
    assert text_of_cell(["a", "b"], "") == "a\nb"
    assert [id_of_cell(value, "") for value in (7, "0012", "a\ud800")] == ["7", "0012", r"a\ud800"]
    texts, ids = [(text_of_cell, value) for value in ({}, [1], float("nan"))], (None, "", " ", 1.5, True, ["a"])
    for read, value in texts + [(id_of_cell, value) for value in ids]:
        with pytest.raises(ValueError, match=r"^a\.csv, row 1 is .*, expected a text( or a whole number)?\.$"):
            read(value, "a.csv, row 1")
