"""Documents of all kinds of files: which are read, their bytes and titles, and the account of what is skipped."""

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import sys
import types

import pyarrow
import pytest
from datasets import Dataset

from docsplit.data.corpora import load_local
from docsplit.data.readers import documents as documents_module
from docsplit.data.readers.base import Document, Problems, TableColumns, Unreadable
from docsplit.data.readers.documents import documents_of, read_document_file, read_documents, title_of
from docsplit.data.readers.files import (
    INDEX_FILE,
    SUFFIXES,
    Encoding,
    File,
    encoding_of,
    find_files,
    flaw_of,
    read_fields,
)
from docsplit.data.readers.markup import text_of_markdown, without_data
from docsplit.index.index import MANIFEST_FILE
from tests.data.readers.fuzzed_documents import READERS, VALID, failure_of, fuzzed_documents
from tests.data.readers.office import make_docx, make_pdf

FUZZED = 80
PIP = 'pip install "markitdown[pdf,docx,pptx]"'
REPLACED = "\N{REPLACEMENT CHARACTER}"


def zstandard(content):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard}


@pytest.fixture
def read(write):
    def read(name, content, problems=None, encoding=None):
        return read_document_file(File(write(name, content), name), problems or Problems(), encoding)

    return read


# --- Folders ---


def test_a_folder_of_files(tmp_path, write, caplog, no_markitdown):
    write(".hidden/no.txt", "Not this.")
    write("a.txt", "\n--\nA ship in a storm.\nIt sank.")
    write("bad.txt", "À la carte. ".encode() * 9 + b"A caf\xe9.")
    write("latin.txt", b"D\xe9j\xe0 vu.")
    write("deep/er/c.HTML", "<title>A page</title><p>Torn sails.")
    write("noise.txt", b"\x81\x8d\x8f" * 20)
    write("pic\x1b[2J.png", b"\x89PNG")
    write("paper.pdf", b"%PDF")
    documents = {document.id: document for document in read_documents(tmp_path)}
    assert list(documents) == ["a.txt", "bad.txt", "deep/er/c.HTML", "latin.txt"]
    assert documents["a.txt"] == Document("a.txt", "\n--\nA ship in a storm.\nIt sank.", "A ship in a storm.")
    assert documents["deep/er/c.HTML"] == Document("deep/er/c.HTML", "Torn sails.", "A page")
    assert documents["latin.txt"].text == "Déjà vu."
    for told in (
        "Skipped 4 files: ",
        "1 hidden (.hidden)",
        r"1 .png (pic\x1b[2J.png)",
        f"1 .pdf for lack of markitdown: {PIP}",
        "1 .txt that are of an unknown encoding: --encoding names it (noise.txt)",
        "1 with bytes that are no utf-8, read as \N{REPLACEMENT CHARACTER}: see --encoding (bad.txt, line 1)",
        "1 of the encoding cp1252, it seems; --encoding names another (latin.txt)",
    ):
        assert told in caplog.text


def test_files_that_cannot_be_read_are_skipped_in_a_folder_and_an_error_alone(tmp_path, write, caplog, markitdown):
    with pytest.raises(ValueError, match="There is no file in it"):
        list(read_documents(tmp_path))
    archive = ".csv that are archives: unpack archives first (unzip, tar -xf)"
    broken = {
        "bad.docx": (b"Damage", ".docx that cannot be converted"),
        "bad.parquet": (b"no parquet", ".parquet that cannot be opened"),
        "bad.txt.gz": (b"no gzip", ".txt that cannot be opened"),
        "empty.jsonl": ("", ".jsonl without a row that can be read"),
        "package.json": (json.dumps({"name": "x", "version": 1}), ".json without a column 'text'"),
        "zip.csv": (b"PK\x03\x04" + b"x" * 30, archive),
        "tar.csv": (b"x" * 257 + b"ustar" + b"x" * 30, archive),
    }
    for name, (content, _) in broken.items():
        write(name, content)
    with pytest.raises(ValueError, match=r"no documents that can be read\. Skipped 7 files: "):
        list(read_documents(tmp_path))
    write("a.md", "A note.")
    assert [document.id for document in read_documents(tmp_path)] == ["a.md"]
    for name, (_, kind) in broken.items():
        assert kind in caplog.text
        with pytest.raises(Unreadable, match=name):
            list(read_documents(tmp_path / name))
    with pytest.raises(ValueError, match=r"There is no .*nowhere"):
        find_files(tmp_path / "nowhere")


def test_hidden_and_other_files_are_counted(tmp_path, write):
    for name in ("a.txt", "b/c.TXT", "b/d.csv.gz", "e.txt.XZ", "_d.txt", "b/x.png", "LICENSE", ".git/z.txt", ".x.txt",
                 "_tmp/part.csv", "b/.k/l.txt", "i.index/a.txt"):  # fmt: skip
        write(name)
    write("i.index/manifest.json", json.dumps({"encoder": {}, "segments": []}))
    write("other/manifest.json", "{}")
    for name, target in (("f", "b"), ("g.txt", "nothing"), ("h.txt", "a.txt")):
        (tmp_path / name).symlink_to(tmp_path / target)
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("...")
    os.mkfifo(tmp_path / "pipe.txt")  # without a writer it would be waited for as long as there is none
    found = find_files(tmp_path)
    names = ["_d.txt", "a.txt", "b/c.TXT", "b/d.csv.gz", r"caf\udce9.txt", "e.txt.XZ", "h.txt", "other/manifest.json"]
    assert [file.name for file in found.files] == names
    assert (found.files[4].stem, found.is_folder) == (r"caf\udce9", True)
    assert found.problems.counts["file"] == {
        ".png": (1, "b/x.png"),
        "without suffix": (1, "LICENSE"),
        "hidden": (4, ".git"),
        "that are links to folders: name what they lead to": (1, "f"),
        "that are no files, but pipes, devices or links to nothing": (2, "g.txt"),
        "that are indexes of search.py": (1, "i.index"),
    }
    for name in (".git/z.txt", "_tmp/part.csv"):  # who names a file wants it
        found = find_files(tmp_path / name)
        assert ([file.name for file in found.files], found.is_folder) == ([name.rpartition("/")[2]], False)
    for name, message in (("pipe.txt", "is no file, but a pipe"), ("i.index", "is an index of search")):
        with pytest.raises(ValueError, match=message):
            find_files(tmp_path / name)
    assert MANIFEST_FILE == INDEX_FILE


def test_what_is_skipped_is_counted_written_and_merged():
    problems, other = Problems(), Problems()
    for name in ("a.png", "b.png"):
        problems.add("file", ".png", name)
    problems.skip_row("that are no JSON", "a.jsonl, line 2")
    other.skip_row("that are no JSON", "b.jsonl, line 1")
    other.add("file", ".png", "c.png", 1000)
    problems.merge(Problems.from_json(other.to_json()))
    assert (problems.number_of("file"), problems.number_of("file", "row")) == (1002, 1004)
    files, rows = problems.warnings()
    assert files == "Skipped 1,002 files: 1,002 .png (a.png ...)"
    assert rows == "Skipped 2 rows: 2 that are no JSON (a.jsonl, line 2 ...)"
    with pytest.raises(Unreadable, match=r"^a\.csv, line 2 cannot be read, as one of the rows with a tail: 3 fields$"):
        Problems(refuses_rows=True).skip_row("with a tail", "a.csv, line 2", "3 fields")


def test_what_a_python_call_is_given_are_documents(tmp_path, write):
    """A folder, a file, texts by id, texts, `Document`s; no table."""
    write("notes/a.txt", "A ship.")
    write("notes/b.csv", "id,text\n1,A storm.\n")
    from_files = [Document("a.txt", "A ship.", "A ship."), Document("b.csv#1", "A storm.", "A storm.")]
    assert list(documents_of(str(tmp_path / "notes"))) == from_files
    assert list(documents_of(tmp_path / "notes" / "b.csv")) == [Document("1", "A storm.", "A storm.")]
    by_id = {"x": "A ship.\nIt sank.", "y": ""}
    assert list(documents_of(by_id)) == [Document("x", "A ship.\nIt sank.", "A ship."), Document("y", "")]
    assert list(documents_of(iter(["A ship.", from_files[0]]))) == [Document("0", "A ship.", "A ship."), from_files[0]]
    with pytest.raises(ValueError, match=r"Document 1 is a float: give texts \(strings\), or a folder or file"):
        list(documents_of(["a", float("nan")]))
    with pytest.raises(ValueError, match=r"are a Dataset with the columns \['id', 'text'\]: .* documents\['text'\]"):
        list(documents_of(Dataset.from_dict({"id": [1], "text": ["a"]})))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read_alike_and_damage_is_named(tmp_path, write, suffix):
    """Two tables with equal ids do not collide; a second frame is read too."""
    compress, rows = COMPRESS[suffix], json.dumps({"id": "a", "text": "A rope."})
    contents = {"a.note.TXT": "A ship.", "e.html": "<p>A boat.", "f.csv": "id,text\na,A ship.\n", "h.jsonl": rows}
    contents |= {"deep/f.csv": contents["f.csv"], "g.tsv": "id\ttext\na\tA ship.\n", "i.json": rows}
    for name, content in contents.items():
        write(f"{name}{suffix}", compress(content.encode()))
    expected = {f"{name}{suffix}" + "#a" * (not name.endswith(("TXT", "html"))) for name in contents}
    assert sorted(document.id for document in read_documents(tmp_path)) == sorted(expected)
    file = File(tmp_path / f"a.note.TXT{suffix}", "a")
    assert (file.read(), file.read(2), file.suffix, file.stem) == (b"A ship.", b"A ", ".txt", "a.note")
    content = bytes(range(256)) * 800
    whole = compress(content)
    assert File(write(f"b.txt{suffix}", whole + whole), "b.txt").read() == content * 2
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"no such thing", whole + whole[:9]):
        with pytest.raises(Unreadable, match=r"a\.txt\.\w+ cannot be opened: "):
            File(write(f"a.txt{suffix}", damaged), "a.txt").read()
    with pytest.raises(Unreadable, match=r"gone cannot be opened: No such file") as caught:
        File(tmp_path / "gone", "gone").read()
    assert (caught.value.reason, File(tmp_path / "gone", "gone").version()) == ("that are gone", None)


def test_ids_are_written_in_one_way_whatever_disk_files_lie_on(tmp_path, write):
    """A folder from a Mac has the ids that its copy has; two names that differ on a disk alone stay two."""
    composed, apart = "caf\xe9.txt", "cafe\u0301.txt"
    write(f"mac/{apart}", "A ship.")
    write(f"linux/{composed}", "A ship.")
    assert [*read_documents(tmp_path / "mac")] == [*read_documents(tmp_path / "linux")]
    assert [document.id for document in read_documents(tmp_path / "mac")] == [composed]
    write(f"linux/{apart}", "A boat.")
    found = find_files(tmp_path / "linux")
    assert [(file.name, file.path.name) for file in found.files] == [(composed, apart), (f"{composed}+", composed)]
    assert found.problems.number_of("text") == 1


# --- Encodings ---


def lines(path, newline=None, given=None):
    problems = Problems()
    read = list(File(path, path.name).lines(problems, given, newline))
    return read, {kind.split(":")[0]: count for kind, count in problems.counts.get("text", {}).items()}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_file_and_its_lines_are_decoded_alike(write, encoding):
    text = "Größe\n\n大きさ\u2028x\x0cy\n👩" + " It is a text." * 9 + REPLACED
    path = write("a.txt", ("\ufeff" * encoding.endswith("be") + text).encode(encoding))
    given = "cp1251" if encoding != "utf-8" else None  # a mark says more
    assert lines(path, given=given) == ([*enumerate(io.StringIO(text), 1)], {})
    assert File(path, "a").text(Problems(), given) == text


FRENCH = "L'été dernier, nous avons mangé des crêpes près de la forêt où l'élève écrivait."


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("He said \u201cno\u201d \u2013 it\u2019s a na\xefve caf\xe9.", "cp1252", "cp1252"),
        ("A plain text. " * 100_000 + FRENCH, "latin-1", "cp1252"),
        ("Корабль вышел в море и попал в шторм, паруса порвались.", "cp1251", "cp1251"),
        ("船は海を渡る。嵐の中で帆が破れた。" * 3, "shift-jis", "shift_jis"),
    ],
)
def test_other_encodings_are_detected_or_given(write, text, encoding, name):
    path = write("a.txt", text.encode(encoding))
    assert encoding_of(path.open("rb")) == Encoding(name, is_detected=True)
    assert lines(path)[0] == lines(path, given=encoding)[0] == [(1, text)]


DECLARED = {
    "iso-8859-2": "Zażółć gęślą jaźń",
    "windows-1250": "Příliš žluťoučký kůň",
    "koi8-r": "Лодка плывёт по реке",
    "ISO-8859-8-I": "הספינה חוצה את הנהר",
    "iso-8859-9": "Şehirde yağmur yağıyor",
    "iso-8859-1": "“café” – naïve…",  # which is cp1252 to browsers
    "windows-874": "เรือข้ามแม่น้ำ",
    "tis-620": "เรือข้ามแม่น้ำ",
    "x-sjis": "船が川を渡る①",
    "iso-2022-jp": "船が川を渡る",
    "gb2312": "船过河，渔夫捕鱼。朱镕基",
    "big5": "船過河，漁夫捕魚",
    "ks_c_5601-1987": "배가 강을 건너간다. 똠방",
}
WRITTEN = {
    **{"ISO-8859-8-I": "iso-8859-8", "iso-8859-1": "cp1252", "windows-874": "cp874", "x-sjis": "cp932"},
    **{"gb2312": "gb18030", "ks_c_5601-1987": "cp949"},
}


@pytest.mark.parametrize("label", DECLARED)
@pytest.mark.parametrize(
    "head",
    [
        "<!-- <meta charset='koi8-u'> --><meta http-equiv=Content-Type content='text/html; charset={}'>",
        '<META Charset = "{}">',
        "<?xml version='1.0' encoding='{}'?>",
    ],
)
def test_a_page_says_how_it_is_written(read, label, head):
    problems, text = Problems(), DECLARED[label]
    content = f"{head.format(label)}<title>T</title><p>{text}".encode(WRITTEN.get(label, label))
    assert read("a.html", content, problems).text == text
    assert problems.counts == {}
    assert read("a.html", content, encoding="cp437").text != text  # the option says more


def test_a_declaration_that_does_not_fit_is_not_believed(read):
    problems, russian = Problems(), "Корабль вышел в море и попал в шторм, паруса порвались."
    assert read("a.html", f"<meta charset=iso-8859-1><p>{russian}", problems).text == russian
    assert read("b.html", f"<meta charset=cp1251><p>{russian}".encode("utf-8-sig"), problems).text == russian
    for label in ("utf-16", "utf-7", "cp037", "punycode", "rot13", "no-such"):
        assert read("c.html", f"<meta charset={label}><p>+AGE- {russian}", problems).text == f"+AGE- {russian}"
        assert read("c.html", f"<meta charset={label}><p>+AGE-", problems).text == "+AGE-"
    assert problems.counts == {}
    for label in ("utf-8", "euc-jp"):
        assert read("d.html", f"<meta charset={label}><p>{russian}".encode("cp1251"), problems).text == russian
    detected = "of the encoding cp1251, it seems; --encoding names another"
    assert problems.counts["text"] == {detected: (2, "d.html")}
    damaged = f"<meta charset=gb2312><p>{'渔夫捕鱼。' * 30}".encode("gbk") + b"\xff</p>"
    assert read("e.html", damaged, problems).text.count("渔") == 30
    assert "with bytes that are no gb18030" in next(reversed(problems.counts["text"]))


def test_damaged_utf8_is_no_other_encoding(write):
    """Characters that are more than the bytes which cannot be read show what it is, wherever; so does noise."""
    english = b"The quick brown fox jumps over the lazy dog.\n" * 5000
    damaged = [f"{FRENCH} x".encode() + b"\xe9", english + b"\xff\n" + english + "\xe9 ".encode() * 3]
    noise = [bytes(range(256)) * 10, b"\x00\x01caf\xe9", b"\x81\x8d. A ship sank in the bay."]
    assert {encoding_of(io.BytesIO(content)) for content in damaged + noise} == {Encoding()}
    assert encoding_of(io.BytesIO(english + b"caf\xe9 noir\n" + english)).name == "cp1252"
    assert encoding_of(io.BytesIO(b"\xef\xbb\xbfab\xe9")) == Encoding(mark=b"\xef\xbb\xbf")
    path = write("a.txt", "éé\n".encode() + b"b\xe9\r\nc\xff")
    bad = {"with bytes that are no utf-8, read as \N{REPLACEMENT CHARACTER}": (2, "a.txt, line 2")}
    assert lines(path) == ([(1, "éé\n"), (2, f"b{REPLACED}\n"), (3, f"c{REPLACED}")], bad)
    assert lines(write("a.txt", b"a\r\nb\n"), newline="") == ([(1, "a\r\n"), (2, "b\n")], {})


def test_what_is_no_text_is_no_document(read):
    for text in ("A ship.\tx\r\n\x0c\x1b[1mbold\x1b[0m", f"{'x' * 99}{REPLACED}", "x" * 9000 + "\x00"):
        assert flaw_of(text) is None
    for text, flaw in (
        (f"{'x' * 98}{REPLACED}", "of an unknown encoding"),
        ("a\x00" + "x" * 1000, "binary"),
        ("\x01\x02 a", "binary"),
    ):
        with pytest.raises(Unreadable, match=rf"a\.md is {flaw}"):
            read("a.md", text)


def test_fields_are_split_without_quoting_and_lines_that_lack_one_are_named(write, caplog):
    path = write("a.tsv.gz", gzip.compress(b'1\t"caf\xe9\rnoir\r\n\n2\tb\n'))
    assert list(read_fields(path, 2, "\t")) == [["1", '"café\rnoir'], ["2", "b"]]
    assert "cp1252, it seems" in caplog.text
    for content, message in ((b"1 2\n3\n", r"b, line 2 has 1 fields, expected 2: '3'"), (b"1 2 3", "has 3 fields")):
        with pytest.raises(ValueError, match=message):
            list(read_fields(write("b", content), 2, None))
    with pytest.raises(ValueError, match=r"c\.gz cannot be opened: Not a gzipped file"):
        list(read_fields(write("c.gz", b"no gzip"), 2, None))


# --- What is no text ---

DATA = base64.b64encode(random.Random(0).randbytes(3000)).decode()
WRAPPED = "\n".join(DATA[start : start + 76] for start in range(0, len(DATA), 76))
WITH_DATA = {  # what is read of it
    f"# Minutes\n\n![plan](data:image/png;base64,{DATA})\n\nДа, 船 है.": "# Minutes\n\nplan\n\nДа, 船 है.",
    f"```html\n<img src='data:image/png;base64,{DATA}' alt=a>\n```\n": "```html\n<img src='' alt=a>\n```\n",
    f"[plan]: <data:image/png;base64,{WRAPPED}>\nA ship.": "[plan]: <>\nA ship.",
    f"ICON=data:;charset=utf-8;base64,{DATA}\nNAME=ship": "ICON=\nNAME=ship",
    f"url(data:image/svg+xml,{'%3Csvg' * 20}) A ship.": "url() A ship.",
    "A data:text/plain;base64,SGVsbG8= is short.": None,
    f"The data:{'1,2,' * 99} are numbers, and metadata:a/b;base64,{DATA} a key.": None,
}


@pytest.mark.parametrize("text", WITH_DATA)
def test_data_in_an_address_is_no_text_and_counted(read, text):
    problems, expected = Problems(), WITH_DATA[text] or text
    assert read("a.md", text, problems).text == expected
    kind = "with pictures or files in data: addresses, which are left out"
    assert problems.counts == ({"text": {kind: (1, "a.md")}} if expected != text else {})
    if "![" not in text:
        assert read("a.txt", text).text == expected
        assert read("a.html", f"<pre>{text.replace('<', '&lt;')}</pre>").text == expected.rstrip("\n")


FRONT = {  # the title, and what is read
    "---\ntitle: Der Hafen\ndate: 2020-01-01\nimage: https://x/y.png\ntags: [Fähre, 'pier, old']\n"
    "description: >\n  Of the\n  harbour.\n---\n\n# Boats\n": (
        "Der Hafen", "Der Hafen\n\nOf the harbour.\n\nFähre, pier, old\n\n# Boats\n"),
    "---\r\n# made by hand\r\n\r\nTitle: 'It''s: a ship'\r\ntags:\r\n- a\r\n- \"b \\u00e9\"\r\n...\r\nText\r\n": (
        "It's: a ship", "It's: a ship\n\na, b é\n\nText\r\n"),
    '+++\ntitle = "Лодки"\ndate = 2020-01-01\ndescription = """\nProse: here.\nMore\n"""\n'
    "[taxonomies]\ntags = ['a', 'b']\n+++\nText": ("Лодки", "Лодки\n\nProse: here. More\n\na, b\n\nText"),
    "---\nseo:\n  title: no\ndate: 2020-01-01\n---\n# 船\n\nText": ("船", "# 船\n\nText"),
    "---\nA ship: it sank,\nthe crew swam.\n\n---\nText": (
        "A ship: it sank,", "---\nA ship: it sank,\nthe crew swam.\n\n---\nText"),
    "---\n- a ship\n---\nText": ("- a ship", "---\n- a ship\n---\nText"),
}  # fmt: skip


@pytest.mark.parametrize("text", FRONT)
def test_of_front_matter_title_description_and_tags_are_text(read, text):
    """Rulers before and after prose are none."""
    assert read("a.md", text) == Document("a.md", FRONT[text][1], FRONT[text][0])
    assert read("a.txt", text).text == text


PICTURES = {
    "![Der Plan](img/plan_(1).png)\n": "Der Plan\n",
    '![a [b] c](<my pic.png> "The plan")': "a [b] c The plan",
    "[![Build](https://x/y.svg)](https://x)": "[Build](https://x)",
    "![a][b], ![C][].\n\n[b]: https://x/y.png\n[c]: z.png 'T'\n[d]: stays": "a, C.\n\n[d]: stays",
    "<img src='a.png' alt='The plan'> of <img src=b>two ![two\nlines](x)": "The plan of two two\nlines",
    "~~~\n![a](b)\n~~~\n`![a](b)` ![c](d)": "~~~\n![a](b)\n~~~\n`![a](b)` c",
    "````\n```\n![a](b)\n````\n![a](b)": "````\n```\n![a](b)\n````\na",
    "[a](b), a! [b](c), x[0]": "[a](b), a! [b](c), x[0]",
}


@pytest.mark.parametrize("text", PICTURES)
def test_of_a_picture_its_words_are_text_and_not_its_address(read, text):
    assert read("a.markdown", text).text == PICTURES[text]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    ["data:", "data:a/b;base64,", "data:a/b;c=data:a/b", "data:a/b;c", "\n" + "A" * 76, "![", "![a](", "![a](()",
     "![[]", "![]", "<img", "`", "`a", "```", "\n~~~", "\n---", "a: b\n", "- a\n", '"', "[a]: b\n", " ", "\n===",
     "(cid:", "(cid:1"],
)  # fmt: skip
def test_what_is_no_text_is_found_in_time(unit):
    for start in ("", "---\ntags: [", "![a][b]", "data:a/b;base64,A", "```\n"):
        text = start + unit * (1_000_000 // len(unit))
        text_of_markdown(without_data(text, Problems(), "a"))
        documents_module._NO_CHARACTER.sub("", text)
        title_of(text, has_headings=True)


# --- Titles and letters ---


def test_titles_are_of_the_page_or_the_first_line_or_the_file(read):
    assert read("d.html", "<title>A page</title><p>Boats.") == Document("d.html", "Boats.", "A page")
    assert read("e.html", "<p>Boats.").title == "Boats."
    assert read("g.x.txt.gz", gzip.compress(b"3")) == Document("g.x.txt.gz", "3", "g.x")
    titles = {read(f"h{suffix}", "A badge.\n\nTitle\n=====\n\nText.").title for suffix in (".md", ".txt")}
    assert titles == {"Title", "A badge."}  # of Markdown the first heading
    assert title_of("Intro.\n\n>>> # no\n\n# Sails\n\nTorn.", has_headings=True) == "Sails"
    assert title_of("\\\\server\\share is full") == "\\\\server\\share is full"  # no LaTeX
    # in NFC, so that copies are equal, and without lone surrogates
    assert Document("a", "cafe\u0301 \ud800", "e\u0301") == Document("a", "caf\xe9  ", "\xe9")


TITLES = {
    "a" * 90: "a" * 90,
    "a" * 91: "a" * 89 + "…",
    "1\n2": "",
    "## The  harbour\n\nBoats.": "The harbour",
    "From: a@b.c (A)\nSubject: Re: Sails\n\nHello.": "Re: Sails",
    "From: a@b.c\nSubject:\n\nHello.": "From: a@b.c",
    "From: a@b.c\n\nSubject: in the body": "From: a@b.c",
    "About ships\nSubject: no mail": "About ships",
    "11/26/26, 5:54 AM\n\nSails and ropes": "Sails and ropes",
    "11/26/26, 5:54 AM Sails and ropes\n1/3": "Sails and ropes",
    ".. _wine_dataset:\n\nWine recognition dataset\n------------------------\n": "Wine recognition dataset",
    "<!-- a comment -->\n# Sails": "Sails",
    "---\nname: x\ntitle: 'Of: ships'\n---\n": "Of: ships",
    "---\nsection: 1\n---\n\n# Ropes\n": "Ropes",
    "title: npm-publish": "title: npm-publish",  # without lines around it, it is a text
    "+++\ndate = 1\ntitle = 'Of: ships'\n+++\ntext": "Of: ships",
    "#+TITLE: Boats\n* One\n": "Boats",
    "== Boats ==\ntext": "Boats",
    "**Boats**\ntext": "Boats",
    "#!/usr/bin/env x\nBoats": "Boats",
    "% Boats\n% A. Author\n\ntext": "Boats",
    "From: a@b.c\nSubject: =?utf-8?B?w5xiZXIgQm9vdGU=?=\nDate: x\n\nText": "Über Boote",
    "Subject: =?iso-8859-1?Q?F=E4hren?=\n =?iso-8859-1?Q?_und_Boote?=\nTo: x\n\nText": "Fähren und Boote",
    "From: a@b.c\nSubject: A very long\n subject line\n\nText": "A very long subject line",
    "From: a@b.c\nSubject: =?x-no?Q?a?= =?utf-8?B?!?=\n\nText": "a",
    "From a@b.c Mon Jan 1 00:00:00 2020\n"
    + "Received: from x by y;\n\tMon\n" * 500
    + "subject: Boats\n\nText": "Boats",
    "From: a@b.c\r\nTo: x\r\nSubject: Boats\r\n\r\nText": "Boats",
    "Note: words\nand more words\nSubject: no mail": "Note: words",
    "---\r\nTitle: Boats\r\n---\r\n": "Boats",
    "[12.01.24, 10:31:02] Anna: Boats?\n": "Anna: Boats?",
    "12/01/24, 10:31\u202fPM - Anna: Boats?\n": "Anna: Boats?",
    "\u202b\u05e9\u05dc\u05d5\u05dd\u202c\nx": "\u05e9\u05dc\u05d5\u05dd",
    "\\documentclass[a4]{a}\n\\title{Boats on {\\bf Lakes} \\\\ 100\\% dry\\thanks{A {b}}}": "Boats on Lakes 100% dry",
    '% !TEX root = x\n\\documentclass{a}\n%\\title{}\n\\title[Short]{L\\"ong~title}': "Lo\u0308ng title",
    "\\title{Erd\\H{o}s, \\v Cech, na\\\"{\\i}ve Stra\\ss e, \\O re \\L{}\\'{o}d\\'z}\n": (
        "Erdo\u030bs, C\u030cech, nai\u0308ve Straße, Øre Ło\u0301dz\u0301"
    ),
    "\\documentclass{a}\n\\titleformat{\\section}{x}\n\\begin{document}\n\\section*{Boats}\nText": "Boats",
    "\\documentclass{a}\n\\begin{document}\nBoats sail.": "Boats sail.",
    "\\documentclass{a}\n\\title{Boats": "Boats",
    "\\server\\share is full": "\\server\\share is full",
}
MARKDOWN_TITLES = {
    "[![Build](https://x/y.svg)](https://x) ![b][c]\n\n# Boats\n\ntext": "Boats",
    '<p align="center"><img src="a.png"\n alt="b"></p>\n\n<h1 align=center>\nBoats</h1>\n\ntext': "Boats",
    "<!--\nCopyright 2020\n\n# No\n-->\n\nCopyright 2020 Someone\n\n# Boats\ntext": "Boats",
    "```sh\n# install\n\n# No\n```\n\n## [Boats](https://x) and *sh*ips #\n": "Boats and ships",
    "# **2 * 3** [ships][1], R\\&D, C#\n": "2 * 3 ships, R&D, C#",
    "[Boats](https://x) sail.\n\nText": "Boats sail.",
    "---\n+++\n---\nBoats\n=====\n": "Boats",
    "Boats on the lake\n=\n\n# Sails\n": "Boats on the lake",
    "Intro.\n\n船の本です\n---\n\n# Sails\n": "船の本です",
    "- a point\n---\n\na | b\n---\n\n2024\n---\n\nIntro.\n\n# Sails\n": "Sails",
}


@pytest.mark.parametrize("text", TITLES)
def test_the_title_of_a_text(text):
    assert title_of(text) == TITLES[text] == title_of(text, has_headings=True)


@pytest.mark.parametrize("text", MARKDOWN_TITLES)
def test_the_title_of_a_markdown_file_is_no_badge_tag_or_licence(text):
    assert title_of(text, has_headings=True) == MARKDOWN_TITLES[text]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit", ["\\title[", "\\title{", "[a](", "![", "<h1>", "```\n", "---\n", "=?utf-8?q?", "<!--", "\n"]
)
def test_titles_are_found_in_time(unit):
    for start in ("", "Subject: ", "\\section{x}"):
        assert len(title_of(start + unit * 200_000, has_headings=True)) <= 90


def test_blocks_headings_and_what_nobody_sees():
    page = (
        "<html><head><title>A  page</title><style>p {}</style></head><body><h1>Sails</h1><p>Torn <b>sails</b>"
        "\n\nand ropes.</p><script>let x = 1</script><ul><li>One &amp; two</li></ul><h2></h2></body></html>"
    )
    assert documents_module.text_of_page(page) == ("A page", "## Sails\n\nTorn sails and ropes.\n\nOne & two")


PAGES = {
    "<table><tr><th>Rope<th>Price<tr><td>rope</td><td>12</td><td>yes</td></tr></table>": "Rope Price\n\nrope 12 yes",
    "<header>a</header><nav>b</nav><main>c</main><aside>d</aside>e<footer>f</footer>": "a\n\nb\n\nc\n\nd\n\ne\n\nf",
    "<label>a</label><select><option>b<option>c</select><button>d</button><button>e</button>": "a b c d e",
    "<figure>a<figcaption>b</figcaption></figure><details><summary>c</summary>d</details>": "a\n\nb\n\nc\n\nd",
    "<p>a<b>b</b><span>c</span><wbr>d x<sup>2</sup> <custom-tag>e</custom-tag>f<img src=x>g": "abcd x2 e f g",
    "<a>Home</a><b><a>About</a></b> <a>us</a>s": "Home About uss",
    "<math><mi>x</mi><mo>=</mo><mn>2</mn></math><svg><title>No</title><text>a</text><text>b</text></svg>": "x = 2 a b",
    "<noscript>a <b>b</b></noscript><div id=root></div><template>no</template>": "a b",
    "<x-a><template shadowrootmode=open><p>a</p></template>b</x-a>": "a\n\nb",
    "<p hidden=until-found>a</p><p hidden=''>no": "a",
    "<h1>War<br>and <a>Peace<br/></a></h1><p>a<br>b": "## War and Peace\n\na\n\nb",
    "<p>a</p><p hidden>no <b>no</b></p><template>no<p>no</template><noscript>no</noscript>b": "a\n\nb",
    "<pre>def f():\n    return  1\n\n# x\n</pre>": "def f():\nreturn 1\n\n# x",
    "<p>a<!-- no --><p>b &copy; &#x1F600; &lt; 6": "a\n\nb © 😀 < 6",
    "<p>a <b>c</b> < 5 <!-- d <i>e</i> f": "a c < 5 d e f",  # a comment that is never closed is read
    "a<![ b]>c<![CDATA[d]]>e<![if x]>f": "acef",
    "<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><script src='a'/><p>a<br/>b</html>": "a\n\nb",
    "": "",
    " \n": "",
    "a": "a",
    "\x00a\ud800": "\ufffda?",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_visible_text_of_a_page(page):
    """Blocks and cells stand apart, and words of one line are one."""
    assert documents_module.text_of_page(page) == ("", PAGES[page])


PAGE_TITLES = {
    "<title>Boats</title><svg><title>Close</title></svg><title>More</title>a": "Boats",
    "<svg><title>Close</title></svg>a": "",
    "<head><title>Boats<body><p>a": "Boats",
    "<head><title>Boats</head><svg><title>Close</title></svg>a": "Boats",
    "<head><title/></head>a": "",
    "<title>The &lt;b> and <i> tags &amp; more</title>a": "The <b> and <i> tags & more",
    "<title>Boats</title><svg><title><p>a": "Boats",
    f"<title>{'Boats ' * 50}</title>a": f"{'Boats ' * 14}Boats\N{HORIZONTAL ELLIPSIS}",
}


@pytest.mark.parametrize("page", PAGE_TITLES)
def test_the_title_of_a_page_is_the_first_and_ends(page):
    assert documents_module.text_of_page(page) == (PAGE_TITLES[page], "a")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "mark", ["<a b='", "<!--", "<a", "</script", "<title", "<title>", "<div>", "</b><b>", "<ul><li>a", "&", "<svg>"]
)
def test_damaged_pages_are_read_in_time(mark):
    """A blink, where anything quadratic would take minutes; nested elements are read to the innermost."""
    title, text = documents_module.text_of_page(f"<title>T</title><p>{mark * 100_000}")
    assert title == "T"
    assert text.count("a") == (100_000 if mark == "<ul><li>a" else 0)


# --- PDF, Word and PowerPoint ---


def test_a_converted_file_is_a_document(read, markitdown, request):
    """Compressed or not; without what stands for slides and pictures, and without marks of escaping."""
    assert read("a.pdf", b"ok # A ship\n\nIt sank.") == Document("a.pdf", "# A ship\n\nIt sank..pdf", "A ship")
    assert read("b.docx.gz", gzip.compress(b"ok snake\\_case ![a\\]](b.png)")).text == "snake_case .docx"
    marked = b"ok Hel**lo** *wor*ld 2 \\* 3\n\n* *one*"  # a point of a list stays
    assert read("b.docx", marked).text == "Hello world 2 * 3\n\n* one.docx"
    assert read("c.pptx", b"ok <!-- Slide number: 1 -->\n![a](b.jpg)\n# C").text == "# C.pptx"
    assert read("d.pdf", "ok the ﬂoor ex-\necutes a\\_b".encode()).text == "the floor executes a\\_b.pdf"
    with pytest.raises(Unreadable, match=r"a\.pdf cannot be converted: .* Pdf threw Damage"):
        read("a.pdf", b"Damage")
    needs = rf"a\.\w+ needs markitdown: {re.escape(PIP)}"
    with pytest.raises(Unreadable, match=needs):  # markitdown is there, what reads pdf is not
        read("a.pdf", b"MissingDependencyException")
    request.getfixturevalue("no_markitdown")
    with pytest.raises(Unreadable, match=needs):
        read("a.docx", b"ok")


def test_a_pdf_without_text_names_ocr_and_one_with_some_is_read(read, markitdown, write, caplog, tmp_path):
    scan = "without text, such as scans: OCR first, such as ocrmypdf"
    numbers = "with (cid:1) and the like in place of letters: OCR first, such as ocrmypdf --force-ocr"
    stamp = "Scanned by Cam\f" * 9
    for content, flaw in (("1\f2\f3 ", scan), (stamp, scan), ("(cid:36)(cid:5) " * 50, numbers)):
        with pytest.raises(Unreadable) as caught:
            read("a.pdf", f"ok {content}".encode())
        assert (caught.value.reason, str(caught.value)) == (flaw, f"{tmp_path / 'a.pdf'} is one of the files {flaw}")
    problems = Problems()
    assert read("b.pdf", "ok Der (cid:3)Hafen (cid:12)\f船は".encode(), problems).text == "Der Hafen \f船は.pdf"
    assert problems.counts == {"text": {f"{numbers}; what can be read is read": (1, "b.pdf")}}
    assert read("c.pdf", "ok 船は海\f猫が眠る".encode()).text == "船は海\f猫が眠る.pdf"
    (tmp_path / "c.pdf").unlink()
    assert read("b.txt", b"ok (cid:36)").text == "ok (cid:36)"
    assert [document.id for document in read_documents(tmp_path)] == ["b.pdf", "b.txt"]
    assert f"1 .pdf {numbers} (a.pdf)" in caplog.text


@pytest.mark.timeout(30)
def test_ligatures_and_divided_words_of_pdf_become_words():
    for text, expected in (
        ("The ﬂoor of the oﬃce.", "The floor of the office."),
        ("It ex-\necutes, ex\u00ad\necutes, ex\u2010 \n  ecutes.", "It executes, executes, executes."),
        ("state-of-the-\nart, as state-of-the-art", "state-of-the-art, as state-of-the-art"),
        ("Jean-\nPaul, 2019-\n2020, a -\nb, pre- and post-war", "Jean-Paul, 2019-\n2020, a -\nb, pre- and post-war"),
        ("Ein-\nund Ausgang, Haupt-\noder Nebensache", "Ein- und Ausgang, Haupt- oder Nebensache"),
        ("short-\nand long-term, avant-\net après-guerre", "short- and long-term, avant- et après-guerre"),
        ("the thous-\nand ships of a thousand, th\u00ad\nor", "the thousand ships of a thousand, thor"),
        ("a" * 1_000_000 + "-1", "a" * 1_000_000 + "-1"),
        ("a-" * 300_000, "a-" * 300_000),
    ):
        assert documents_module.text_of_pdf(text) == expected


GIVEN_TITLES = {
    "On ﬂoors ": "On floors",
    "Sailing with Node.js": "Sailing with Node.js",
    "Unknown pleasures": "Unknown pleasures",
    **dict.fromkeys(
        "x.pdf my_draft.doc Microsoft_Word_-_x Untitled untitled_document (anonymous) Unknown 1 Document1 Dokument-2 "
        "Word_Document PowerPoint-Präsentation Slide_1 None".replace(" ", "\n")
        .replace("_", " ")
        .splitlines(),
        "A ship",
    ),
}


@pytest.mark.parametrize("title", [title for title in GIVEN_TITLES if title != "On ﬂoors "])
def test_the_title_of_a_word_file_is_in_its_properties_or_before_its_headings(read, monkeypatch, title):
    """Word's Title is a plain line to markitdown, and a heading after it is of a section."""
    markdown = types.SimpleNamespace(markdown="A ship\n\n# Part one\n\nIt sank.")
    converter = types.SimpleNamespace(convert_stream=lambda stream, stream_info: markdown)
    monkeypatch.setattr(documents_module, "_markitdown", lambda: (converter, dict))
    assert read("a.docx", make_docx("Part one", "It sank.", title=title)).title == GIVEN_TITLES[title]
    assert read("a.docx", make_docx("Part one", "It sank.")).title == "A ship"


def test_the_title_of_a_pdf_is_in_its_metadata(read, markitdown, monkeypatch):
    """A stub of pdfminer, which markitdown brings; names of files are no titles."""
    info = {}
    modules = {name: types.ModuleType(f"pdfminer.{name}") for name in ("pdfdocument", "pdfparser", "utils")}
    modules["pdfparser"].PDFParser = lambda file: file.read()
    modules["pdfdocument"].PDFDocument = lambda parser: types.SimpleNamespace(info=[info])
    modules["utils"].decode_text = bytes.decode
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"pdfminer.{name}", module)
    for title, expected in GIVEN_TITLES.items():
        info["Title"] = title.encode()
        assert read("a.pdf", b"ok A ship\n\nIt sank.").title == expected


def test_real_files_are_converted(read, write):
    pytest.importorskip("markitdown")
    text = "A torn sail &amp; a [rope], snake_case."
    assert read("a.docx", make_docx("Sails", text)) == Document(
        "a.docx", "# Sails\n\nA torn sail & a [rope], snake_case.", "Sails"
    )
    pdf = make_pdf(["Storms at sea", "A ship sank."])
    assert read("b.pdf", pdf) == Document("b.pdf", "Storms at sea\nA ship sank.", "Storms at sea")
    assert File(write("c.pdf", pdf), "c.pdf").version()[-1]
    for content in (b"", b"%PDF", b"A plain text.", make_docx("a", "b")[:100], pdf[:150]):
        for suffix in (".pdf", ".docx", ".pptx"):
            with pytest.raises(Unreadable, match="cannot be converted"):
                read(f"a{suffix}", content)


# --- Damaged documents of every suffix ---


def test_damaged_files_give_documents_or_a_line_that_names_them(tmp_path):
    for name, content in fuzzed_documents(FUZZED):
        (tmp_path / name).write_bytes(content)
    suffixes = {re.sub(r"^\d+|\.(gz|bz2|xz)$", "", path.name) for path in tmp_path.iterdir()}
    assert suffixes == {*VALID} == {*SUFFIXES}
    failures = {}
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        for reader in READERS if number % 8 == 0 else ("search", "stream"):  # the other ways cost most
            if failure := failure_of(reader, path):
                failures[path.name, reader] = failure
    assert failures == {}
    found = find_files(tmp_path)
    documents = list(documents_module.documents_in(found, TableColumns()))
    assert len({document.id for document in documents}) == len(documents)
    read = {re.sub("#.*", "", document.id, flags=re.DOTALL) for document in documents}
    assert len(read) + found.problems.number_of("file") >= FUZZED  # some are read up to where they are damaged
    assert len(read) > FUZZED / 3
    assert not any("None" in document.id for document in documents)
    assert load_local(tmp_path, "text").to_list() == [
        {"id": document.id, "title": document.title, "text": document.text} for document in documents
    ]
