"""The search script: each verb as its user calls it, on files that a small encoder reads."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import explore
import search
from docsplit.data.passages import to_passages
from docsplit.data.readers.documents import read_documents
from docsplit.embedding import encode
from docsplit.embedding.encoder import Encoder
from docsplit.index.index import IndexReader
from docsplit.runtime.files import ROOT
from tests.conftest import make_corpus
from tests.explorer.test_page import payload_of


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes")
    for number, row in enumerate(make_corpus(24)):
        (folder / f"{row['label']}-{number}.txt").write_text(row["text"])
    first = sorted(folder.iterdir())[0]
    (folder / "copy.txt").write_text(first.read_text())
    return folder


@pytest.fixture
def answer(run_here, capsys):
    def run(*words, as_json=True):
        capsys.readouterr()
        run_here(search.main, *words, *(["--json"] if as_json else []))
        out = capsys.readouterr().out
        return json.loads(out) if as_json else out

    return run


@pytest.fixture
def index(notes, scattered, tmp_path, answer):
    counts = answer("build", notes, "--model", scattered, "--index_dir", tmp_path / "index", "--passage_words", 20)
    assert counts["documents"] == 25 == len(IndexReader(tmp_path / "index"))
    assert not (tmp_path / "index" / "cache").exists()
    return tmp_path / "index"


def test_a_query_finds_what_the_encoder_says(index, notes, scattered, answer):
    query = sorted(notes.iterdir())[3].read_text()[:60]
    answered = answer("query", index, query, "--method", "dense", "--count", 3)
    encoder = Encoder(str(scattered))
    best = {}
    for document in read_documents(notes):
        if document.id == "copy.txt":  # one hit with the first
            continue
        passages = [passage.text for passage in to_passages(document.text, 20)]
        best[document.id] = float((encoder.embed_for_index(passages) @ encoder.embed_query(query)).max())
    expected = sorted(best, key=lambda key: -best[key])[:3]
    assert [row["score"] for row in answered["rows"]] == pytest.approx([best[key] for key in expected], abs=1e-5)
    by_words = answer("query", index, "kettle", "--method", "bm25")["rows"]
    assert by_words
    assert all("kettle" in (notes / row["id"]).read_text().lower() for row in by_words)
    text = answer("query", index, query, as_json=False)
    numbers = r"score \S+: cosine 0\.\d\d passage, 0\.\d\d document; BM25 \d+\.\d, \d+ of \d+ words"
    assert re.match(rf"  1  .+  \[.+\.txt\]( and 1 copy)?\n     {numbers}", text)
    assert answer("query", index, "nosuchword", "--method", "bm25", as_json=False) == "Nothing was found.\n"
    like = answer("query", index, "--like", "copy.txt", "--count", 3)
    first = sorted(path.name for path in notes.iterdir() if path.name != "copy.txt")[0]
    assert (like["query"], like["rows"][0]["id"], len(like["rows"])) == ("copy.txt", first, 3)
    assert "copy.txt" not in {row["id"] for row in like["rows"]}


def test_what_changed_is_embedded_and_nothing_else(index, notes, tmp_path, answer, monkeypatch):
    changed = tmp_path / "changed"
    shutil.copytree(notes, changed)
    names = sorted(path.name for path in changed.iterdir())
    (changed / names[0]).write_text("Quite another text about volcanoes.")
    (changed / "new.md").write_text("# New\n\nA new text about volcanoes.")
    embedded, embed = [], Encoder.embed_for_index
    monkeypatch.setattr(Encoder, "embed_for_index", lambda self, texts: embedded.extend(texts) or embed(self, texts))
    counts = answer("add", index, changed, "--replace")
    assert (counts["documents"], counts["replaced"], counts["unchanged"]) == (2, 1, 24)
    assert sorted(embedded) == ["# New A new text about volcanoes.", "Quite another text about volcanoes."]
    ids = {row["id"] for row in answer("query", index, "volcanoes", "--method", "bm25")["rows"]}
    assert ids == {names[0], "new.md"}
    assert answer("delete", index, "new.md") == {"deleted": 1}
    assert {row["id"] for row in answer("query", index, "volcanoes", "--method", "bm25")["rows"]} == {names[0]}


def test_an_index_follows_its_folder_and_is_searched_in_part(notes, scattered, tmp_path, answer, failure_of):
    folder, index = tmp_path / "notes", tmp_path / "index"
    shutil.copytree(notes, folder / "old")
    answer("build", folder, "--model", scattered, "--index_dir", index, "--passage_words", 20)
    names = sorted(path.name for path in (folder / "old").iterdir())
    (folder / "old" / names[0]).unlink()
    (folder / "old" / names[1]).write_text("A kettle.")
    (folder / "new.txt").write_text("A kettle.")
    text = answer("sync", index, as_json=False)
    assert text == "Added 1 document (2 passages); replaced: 1; removed: 1; unchanged: 23.\n"
    words = ("query", index, "kettle", "--count", 100, "--method")
    for method in ("bm25", "hybrid"):
        ids = {name for row in answer(*words, method)["rows"] for name in (row["id"], *row["copies"])}
        assert ids > {"new.txt", f"old/{names[1]}"}
        in_part = answer(*words, method, "--under", "old/")["rows"]
        assert {name for row in in_part for name in (row["id"], *row["copies"])} == ids - {"new.txt"}
    pairs = [{row["id"], row["other"]} for row in answer("duplicates", index, "--threshold", 0.9999)["rows"]]
    assert {"new.txt", f"old/{names[1]}"} in pairs
    in_part = answer("duplicates", index, "--threshold", 0.9999, "--under", "old/")["rows"]
    assert [{row["id"], row["other"]} for row in in_part] == [pair for pair in pairs if "new.txt" not in pair]
    groups = answer("clusters", index, "--count", 2, "--under", "old/")["rows"]
    assert sum(group["size"] for group in groups) == 24
    assert "No document" in failure_of(search.main, "query", index, "kettle", "--under", "nowhere")
    shutil.rmtree(folder / "old")
    assert "24 of 25 documents are no longer in" in failure_of(search.main, "sync", index)
    assert answer("sync", index, folder, "--yes")["removed"] == 24


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 there")
def test_a_name_that_is_no_utf8_hides_no_other_document(index, notes, tmp_path, run_here):
    """It is found, and its id has codes, by which it is deleted."""
    more = tmp_path / "more"
    shutil.copytree(notes, more)
    (more / os.fsdecode(b"caf\xe9.txt")).write_text("Quite another text about volcanoes.")

    def run(*words):
        with pytest.MonkeyPatch.context() as patch, io.TextIOWrapper(io.BytesIO(), "utf-8", "strict") as out:
            patch.setattr(sys, "stdout", out)  # as of a new process, which refuses lone surrogates
            run_here(search.main, *words)
            out.flush()
            return out.buffer.getvalue()

    assert b"Added 1 document (1 passage); unchanged: 25." in run("add", index, more)
    assert b"unchanged: 26." in run("add", index, more)
    for words in (("--json",), ()):
        assert b"caf" in run("query", index, "volcanoes", "--method", "bm25", *words)
    assert run("delete", index, r"caf\udce9.txt") == b"Deleted 1 document.\n"


def test_duplicates_and_clusters(index, notes, answer, tmp_path, failure_of):
    first = sorted(name.name for name in notes.iterdir() if name.name != "copy.txt")[0]
    rows = answer("duplicates", index, "--threshold", 0.99999)["rows"]
    assert [({row["id"], row["other"]}, row["same_words"]) for row in rows] == [({first, "copy.txt"}, 1.0)]
    assert "same text" in answer("duplicates", index, as_json=False)
    groups = answer("clusters", index, "--count", 3)["rows"]
    assert sum(group["size"] for group in groups) == 25 == len({name for group in groups for name in group["ids"]})
    lines = answer("clusters", index, "--count", 3, as_json=False).splitlines()
    assert sum(bool(re.search("[0-9] documents?: ", line)) for line in lines) == 3
    table = tmp_path / "new" / "groups.csv"
    assert answer("clusters", index, "--count", 3, "--output_file", table)["rows"] == groups
    with table.open(encoding="utf-8", newline="") as file:
        rows = [(row["id"], row["group"], row["words"]) for row in csv.DictReader(file)]
    words = ["; ".join(group["words"]) for group in groups]
    assert rows == [(name, str(n + 1), words[n]) for n, group in enumerate(groups) for name in group["ids"]]
    assert f"{table} exists: name another" in failure_of(search.main, "clusters", index, "--output_file", table)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("build", "NOTES", "--model", "ENCODER", "--index_dir", "INDEX"), "There is an index"),
        (("query", "nowhere", "kettle"), "There is no index"),
        (("query", "INDEX", " "), "The question is empty"),
        (("duplicates", "INDEX", "--threshold", 7), "--threshold 7: give a number from 0 to 1"),  # cosines
        (("duplicates", "INDEX", "--threshold", -0.1), "--threshold -0.1: give a number from 0 to 1"),
    ],
)
def test_bad_input_is_one_clear_line(index, notes, scattered, failure_of, words, message):
    named = {"NOTES": notes, "ENCODER": scattered, "INDEX": index}
    assert message in failure_of(search.main, *(named.get(word, word) for word in words))


def test_a_build_that_is_stopped_goes_on(notes, scattered, tmp_path, run_here, answer, monkeypatch):
    """The embeddings of the first run are not computed again."""
    from docsplit.index import changes

    def full(*arguments):
        raise OSError(28, "No space left on device")

    words = ("build", notes, "--model", scattered, "--index_dir", tmp_path / "index")
    monkeypatch.setattr(changes, "append_segment", full)
    with pytest.raises(OSError, match="No space left"):
        run_here(search.main, *words)
    monkeypatch.undo()
    assert (tmp_path / "index" / "cache").exists()
    monkeypatch.setattr(encode.Embedder, "embed", lambda *arguments: pytest.fail("embedded again"))
    assert answer(*words)["documents"] == 25


@pytest.mark.parametrize("words", [("kettle", "--method", "bm25"), ("--like", "copy.txt")])
def test_a_search_without_the_encoder_loads_no_library_of_models(index, words):
    """Nor anything else that takes a second."""
    code = (
        "import sys, search; search.main(); heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'networkx'}; "
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "query", str(index), *words]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"\d of \d+ word", printed)
    assert printed.endswith("HEAVY []\n")


BEFORE_WORK = """
import sys, search
for words in sys.argv[1].split("\\n"):
    sys.argv[1:] = words.split()
    try:
        search.main()
    except ValueError as error:
        print(error)
print("HEAVY", "torch" in sys.modules)
"""


def test_what_cannot_work_or_changes_nothing_loads_no_encoder(notes, index, scattered, tmp_path):
    """A missing folder, a table without texts, a folder that is taken, and `sync` where no text is new."""
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    model, new = f"--model {scattered} --index_dir", tmp_path / "new"
    shutil.copytree(notes, folder := tmp_path / "notes")
    calls = {
        f"build {tmp_path}/none {model} {new}": "There is no",
        f"build {tmp_path}/bad.csv {model} {new}": "--text_column is 'text', but the columns are",
        f"build {folder} {model} {index}": "There is an index in",
        f"build {folder} {model} {folder}": "is there already: name a new folder",
        f"add {index} {tmp_path}/none": "There is no",
        f"add {index} {tmp_path}/bad.csv": "--text_column is 'text', but the columns are",
        f"sync {index}": "unchanged: 25.",
        f"sync {index} {folder}/none": "Name a folder that the index has documents of",
    }
    command = [sys.executable, "-c", BEFORE_WORK, "\n".join(calls)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *lines, heavy = done.stdout.splitlines()
    assert heavy == "HEAVY False"
    assert len(lines) == len(calls)
    for line, expected in zip(lines, calls.values()):
        assert expected in line
    assert not new.exists()


def test_an_index_whose_encoder_was_moved_is_searched_and_explored(
    notes, scattered, headless, tmp_path, run_here, answer, failure_of, capsys
):
    first, moved, index = tmp_path / "first", tmp_path / "moved", tmp_path / "notes.index"
    shutil.copytree(scattered, first)
    answer("build", notes, "--model", first, "--index_dir", index)
    first.rename(moved)
    page = tmp_path / "page.html"
    assert f"There is no {first}" in failure_of(explore.main, index, "--output", page)
    assert "was built with" in failure_of(explore.main, index, "--model", headless, "--output", page)
    assert "was built with" in failure_of(search.main, "query", index, "kettle", "--model", headless)
    assert answer("query", index, "kettle", "--model", moved)["rows"]
    run_here(explore.main, index, "--model", moved, "--map", "pca", "--output", page)
    assert len(payload_of(page.read_text())["titles"]) == 25
    with pytest.raises(SystemExit):
        run_here(explore.main, moved, "--model", moved)
    assert "is no index" in capsys.readouterr().err


def test_a_program_asks_through_a_pipe_and_gets_an_answer_a_line(index):
    """Each answer comes before the next question; an empty line is none."""
    command = [sys.executable, "search.py", "query", str(index), "--method", "bm25", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for question in ("kettle", "the harbour", "nosuchword"):
            process.stdin.write(f"\n{question}\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["query"] == question
        process.stdin.close()
        assert process.stdout.read() == ""


def test_a_pipe_of_questions_is_printed_with_each_before_its_hits(index):
    command = [sys.executable, "search.py", "query", str(index), "--method", "bm25", "--count", "1"]
    questions = "kettle -\x1bharbour\nnosuchword\n"
    done = subprocess.run(command, cwd=ROOT, input=questions, stdout=subprocess.PIPE, text=True, check=True)
    first, second = done.stdout.split("\n\n")
    lines = first.splitlines()
    assert lines[0] == "kettle -\\x1bharbour"
    assert lines[1].startswith("  1  ")
    assert second == "nosuchword\nNothing was found.\n"


def test_operators_are_named_in_the_answer(index, answer):
    words = ("query", index, "kettle -harbour", "--method", "bm25")
    note = "There are no operators: all words of -harbour count."
    assert answer(*words)["notes"] == [note]
    assert answer(*words, as_json=False).startswith(f"{note}\n  1  ")
    assert answer("query", index, "kettle harbour", "--method", "bm25")["notes"] == []


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal is a pty")
def test_a_person_is_asked_and_no_prompt_stands_among_answers_in_a_file(index, tmp_path):
    import pty

    ours, terminal = pty.openpty()
    command = [sys.executable, "search.py", "query", str(index), "--method", "bm25", "--json"]
    with (tmp_path / "answers").open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdin=terminal, stdout=file, stderr=subprocess.PIPE)
    os.write(ours, b"kettle\nharbour\n\n")
    assert process.communicate(timeout=60)[1].decode() == "25 documents. An empty line ends.\n"
    lines = (tmp_path / "answers").read_text().splitlines()
    assert [json.loads(line)["query"] for line in lines] == ["kettle", "harbour"]
    os.close(ours)
    os.close(terminal)
