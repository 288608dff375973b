"""Rows of text files: what cannot be read costs its row alone, and is counted with its place."""

import csv
import gzip
import io
import json

import pytest

from docsplit.data.readers.base import Problems, Unreadable
from docsplit.data.readers.files import File
from docsplit.data.readers.lines import read_line_rows


@pytest.fixture
def read(write):
    """Reads a file; returns its rows and what was skipped: kinds and places."""

    def read(name, content, **options):
        problems = Problems(**options)
        rows = list(read_line_rows(File(write(name, content), name), problems))
        return rows, {kind: problems.rows.names[kind] for kind in problems.rows.counts}

    return read


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
@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".jsonl.gz"])
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
        ('{"text": "d\ufffdj\ufffd"}', "that are not UTF-8"),
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
    rows, skipped = read("a.json", b'[\n{"text": "' + b"x" * 200 + b'\xe9"},\n{"text": "\xe9"}]')
    assert [number for number, _ in rows] == [0]  # some bytes of a text may be damaged
    assert skipped == {".json that are not UTF-8": ["a.json, line 3"]}


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
def test_a_mark_says_the_encoding_of_rows(read, name, content):
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert read(name, content.encode(encoding)) == ([(0, {"text": "Déjà"})], {})


def test_a_binary_txt_has_no_lines(read):
    with pytest.raises(Unreadable, match=r"a\.txt is binary"):
        read("a.txt", bytes(range(256)) * 10)
    rows, skipped = read("a.txt", "A line.\n" * 2000 + "b\x00\n\nc")  # a line far from the beginning
    assert [number for number, _ in rows] == [*range(2000), 2001, 2002]
    assert skipped == {".txt that are binary": ["a.txt, line 2001"]}


def test_mended_rows_are_counted_once(write):
    problems = Problems()
    good, bad = b'{"text": "a"}\n', b'{"text": "' + b"x" * 200 + b'\xe9\xe9"}\n'
    file = File(write("a.jsonl", good + bad + good + bad + b'{"text": "\xe9\xe9"}\n'), "a.jsonl")
    assert len(list(read_line_rows(file, problems))) == 4
    assert problems.notes == {"mended": (2, "a.jsonl, line 2")}
    assert problems.num_skipped == 1
