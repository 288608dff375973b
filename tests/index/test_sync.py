"""What a folder has become, and a part of an index: both answer as an index does that is built so."""

import json
import shutil

import numpy as np
import pytest

from docsplit.data.passages import clean_text, to_passages
from docsplit.data.readers.base import USUAL, Document, TableColumns
from docsplit.data.readers.documents import read_documents
from docsplit.index import changes
from docsplit.index.changes import add, build
from docsplit.index.index import IndexReader
from docsplit.index.overview import clusters, duplicates
from tests.conftest import make_corpus
from tests.index.conftest import ENCODER, WORDS, Encoder, embed
from tests.index.mutations import contents

TEXTS = [row["text"] for row in make_corpus(200, seed=3)]
QUERIES = [TEXTS[0], TEXTS[7][:40], "the harbour and a kettle", "nothing of it"]


def sync(index, encoder, *how, **more):
    return changes.sync(index, lambda: encoder, *how, **more)


def write(folder):
    """Write a folder of texts and of rows, with and without ids."""
    for number in range(30):
        path = folder / ("", "deep", "deep/er")[number % 3] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXTS[number])
    write_rows(folder, [{"id": f"row {number}", "text": TEXTS[number]} for number in range(40, 60)])
    (folder / "table.csv").write_text("text,title\n" + "".join(f'"{TEXTS[number]}",t\n' for number in range(60, 70)))


def write_rows(folder, rows):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def change(folder, rng):
    """Change, add, remove, empty and rename some files, and rows of others."""
    paths = sorted(folder.rglob("*.txt"))
    for path in rng.choice(np.array(paths), 4, replace=False):
        match rng.integers(4):
            case 0:
                path.unlink()
            case 1:
                path.write_text(TEXTS[rng.integers(100, 200)])
            case 2:
                path.write_text(" ")
            case 3:
                path.rename(path.with_name(f"new {path.name}"))
    (folder / f"more {rng.integers(100)}.md").write_text(TEXTS[rng.integers(100, 200)])
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    del rows[rng.integers(len(rows))]
    rows[rng.integers(len(rows))]["text"] = TEXTS[rng.integers(100, 200)]
    write_rows(folder, [{"id": f"new {rng.integers(1000)}", "text": TEXTS[rng.integers(100, 200)]}, *rows])
    lines = (folder / "table.csv").read_text().splitlines(keepends=True)
    del lines[rng.integers(1, len(lines))]
    (folder / "table.csv").write_text("".join(lines))


def found(index):
    """What an index finds, whatever the order of its documents."""
    if not isinstance(index, IndexReader):
        index = IndexReader(index)
    hits = [
        sorted((hit.id, hit.title, hit.passage, round(hit.score, 4)) for hit in index.search(*query, 500, method))
        for method in ("hybrid", "dense", "bm25")
        for query in zip(embed(QUERIES), QUERIES)
    ]
    return hits, sorted((segment.ids[row], segment.texts[row]) for segment, row in index.documents())


def built_from(folder, directory, columns=USUAL):
    build(directory, read_documents(folder, columns), ENCODER, WORDS, (str(folder), columns))
    return directory


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "notes")
    return tmp_path / "notes"


@pytest.fixture
def index(folder, tmp_path):
    return built_from(folder, tmp_path / "the.index")


def test_after_any_changes_it_answers_as_an_index_of_the_folder_as_it_is(folder, index, tmp_path, monkeypatch):
    """And it embeds what is new alone; of what is unchanged nothing is cut into passages."""
    embedded, rng = set(), np.random.default_rng(1)
    encoder = Encoder(lambda texts: embedded.update(texts) or embed(texts))
    for trial in range(6):
        before = {segment.texts[row] for segment, row in IndexReader(index).documents()}
        change(folder, rng)
        embedded.clear()
        counts = sync(index, encoder)
        fresh = built_from(folder, tmp_path / f"fresh {trial}")
        assert found(index) == found(fresh)
        assert counts.documents + counts.unchanged == len(IndexReader(fresh))
        assert counts.removed
        assert counts.unchanged > 40
        new = {segment.texts[row] for segment, row in IndexReader(fresh).documents()} - before
        assert {" ".join(text.split()) for text in new} <= {" ".join(text.split()) for text in embedded}
        assert len(embedded) < 10 * (counts.documents + 1)
    embedded.clear()
    monkeypatch.setattr(changes, "to_passages", None)
    assert sync(index, encoder).documents == 0
    assert not embedded


@pytest.mark.parametrize("text", ["", " \n\x00", "\x1d\x1d", "\u3000\x85", "\u200b", "a", "\n## \n", "---\n---", "。"])
def test_a_text_is_empty_where_it_has_no_passage(text):
    assert bool(clean_text(text).strip()) == bool(to_passages(text))


def test_what_cannot_be_read_now_stays(folder, index):
    """A file, a link to nothing, a folder behind it, and all rows of a file of which one is damaged."""
    wanted = found(index)
    hidden = folder / ".hidden"
    hidden.mkdir()
    (folder / "deep" / "er").rename(hidden / "er")
    (folder / "deep" / "er").symlink_to(folder / "nowhere")
    moved = folder / "deep" / "1.txt"
    moved.rename(hidden / "1.txt")
    moved.symlink_to(folder / "nowhere.txt")
    (folder / "0.txt").write_bytes(b"\0" * 100)
    rows = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (folder / "rows.jsonl").write_text("".join(["{broken\n", *rows[2:]]))
    counts = sync(index, ENCODER)
    assert (counts.documents, counts.removed, counts.unread) == (0, 0, 10 + 1 + 1 + 2)
    assert counts.lines()[0].endswith("unchanged: 46; kept, since unreadable now: 14.")
    assert found(index) == wanted
    (folder / "0.txt").unlink()
    (folder / "deep" / "er").unlink()
    (folder / "rows.jsonl").write_text("".join(rows[2:]))
    counts = sync(index, ENCODER)
    assert (counts.documents, counts.removed, counts.unread) == (0, 13, 1)


def test_a_file_of_rows_that_is_damaged_loses_none(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(tmp_path, [{"id": number, "text": TEXTS[number]} for number in range(9)])
    index = built_from(path, tmp_path / "the.index")
    path.write_text("".join([*path.read_text().splitlines(keepends=True)[:7], "{broken"]))
    assert sync(index, ENCODER).unread == 2
    path.write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        sync(index, ENCODER)
    assert len(IndexReader(index)) == 9


@pytest.mark.parametrize("kind", ["missing", "empty", "most"])
def test_a_folder_that_lost_most_of_its_documents_empties_no_index(folder, index, kind):
    if kind == "most":
        for path in [*folder.rglob("*.txt")][:20]:
            path.unlink()
        (folder / "rows.jsonl").unlink()
    else:
        shutil.rmtree(folder)
    if kind == "empty":
        folder.mkdir()
    before = contents(index)
    with pytest.raises(ValueError, match=rf"\d+ of 60 documents are no longer in {folder}: --yes removes them"):
        sync(index, ENCODER)
    assert contents(index) == before
    assert sync(index, ENCODER, yes=True).removed == {"most": 40}.get(kind, 60)
    assert len(IndexReader(index)) == {"most": 20}.get(kind, 0)


def test_folder_and_index_may_move(folder, index, tmp_path):
    """The new place is kept as it was named; another name that leads there is understood."""
    wanted, place = found(index), tmp_path / "elsewhere" / "notes"
    place.parent.mkdir()
    folder.rename(place)
    index = index.rename(tmp_path / "moved.index")
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(ValueError, match=f"60 of 60 documents are no longer in {folder}.* name its new place"):
        sync(index, ENCODER)
    with pytest.raises(ValueError, match="Name a folder that the index has documents of"):
        sync(index, ENCODER, tmp_path / "nowhere", yes=True)
    assert sync(index, ENCODER, tmp_path / "link").unchanged == 60
    assert found(index) == wanted
    (place / "new.txt").write_text("A new text.")
    assert sync(index, ENCODER).documents == 1
    assert sync(index, ENCODER, f"{place}/").unchanged == 61
    assert [*IndexReader(index).manifest.sources] == [str(tmp_path / "link")]


def test_a_link_is_followed_where_it_leads_now(tmp_path):
    """`current` is pointed to the next release."""
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "a.txt").write_text(f"The price of release {release}.")
    link, source = tmp_path / "current", (str(tmp_path / "current"), USUAL)
    link.symlink_to("one")
    build(tmp_path / "the.index", read_documents(link), ENCODER, WORDS, source)
    assert sync(tmp_path / "the.index", ENCODER, tmp_path / "one").unchanged == 1
    link.unlink()
    link.symlink_to("two")
    assert sync(tmp_path / "the.index", ENCODER).replaced == 1
    assert sync(tmp_path / "the.index", ENCODER, link).unchanged == 1


def test_each_folder_has_its_own_documents_and_columns(folder, index, tmp_path):
    """And those from Python are of none."""
    other = tmp_path / "other"
    other.mkdir()
    columns = TableColumns("body", "key")
    (other / "a.jsonl").write_text('{"key": "x", "body": "A boat."}\n{"key": "y", "body": "A sail."}\n{"key": "z"}\n')
    add(index, read_documents(other, columns), ENCODER, source=(str(other), columns))
    add(index, [Document("mine", "A text of mine.")], ENCODER)
    (other / "a.jsonl").write_text('{"key": "y", "body": "A sail."}\n')
    (folder / "0.txt").unlink()
    counts = sync(index, ENCODER, other)
    assert (counts.documents, counts.unchanged, counts.removed) == (0, 1, 1)
    assert IndexReader(index).find("0.txt")
    assert sync(index, ENCODER, folder).removed == 1
    assert IndexReader(index).find("mine")
    (other / "3.txt").write_text("Not the text of the folder.")
    with pytest.raises(ValueError, match=r"1 documents of .* have ids of others .* such as '3\.txt'"):
        sync(index, ENCODER, other)
    assert sync(index, ENCODER, other, yes=True).replaced == 1
    with pytest.raises(ValueError, match=f"Name a folder .*{folder}, {other}.* `add` takes other documents"):
        sync(index, ENCODER, tmp_path, yes=True)  # another folder is not a moved one
    texts = tmp_path / "texts.index"
    build(texts, [Document("a", "A text.")], ENCODER)
    with pytest.raises(ValueError, match="were not read from a folder"):
        sync(texts, ENCODER, folder)


def test_after_an_addition_every_folder_is_followed_with_its_columns(folder, index, tmp_path):
    """The index answers as one that is built of both; one that has lost most stops the whole."""
    other, columns = tmp_path / "other.csv", TableColumns("body", "key")

    def write_table(rows):
        other.write_text("key,body\n" + "".join(f"t{number},{TEXTS[number]}\n" for number in rows))

    write_table(range(100, 110))
    add(index, read_documents(other, columns), ENCODER, source=(str(other), columns))
    add(index, [Document("mine", TEXTS[199])], ENCODER)
    write_table(range(103, 114))
    change(folder, np.random.default_rng(5))
    counts = sync(index, ENCODER)
    assert counts.removed >= 3
    fresh = built_from(folder, tmp_path / "fresh")
    add(fresh, read_documents(other, columns), ENCODER)
    add(fresh, [Document("mine", TEXTS[199])], ENCODER)
    assert found(index) == found(fresh)
    assert counts.documents + counts.unchanged == len(IndexReader(fresh)) - 1
    before = contents(index)
    write_table(range(103, 105))
    (folder / "new.txt").write_text(TEXTS[150])
    with pytest.raises(ValueError, match=f"9 of 11 documents are no longer in {other}"):
        sync(index, ENCODER)
    assert contents(index) == before


def test_of_an_id_that_folders_share_the_one_added_last_gives_the_document(tmp_path):
    """Whoever has it in the index: asked once, and then at rest; what moves between folders is no surprise."""
    first, last = tmp_path / "first", tmp_path / "last"
    for place in (first, last):
        place.mkdir()
        (place / f"{place.name} alone.txt").write_text(f"Of the {place.name}.")
    (first / "a.txt").write_text("A ship.")
    index = built_from(first, tmp_path / "the.index")
    add(index, read_documents(last), ENCODER, source=(str(last), USUAL))

    def texts():
        return {segment.ids[row]: segment.texts[row] for segment, row in IndexReader(index).documents()}

    for name in ("a.txt", "b.txt"):  # in the index, and in none of both before
        (first / name).write_text("A ship.")
        (last / name).write_text("A boat.")
        with pytest.raises(ValueError, match=rf"1 documents of {last} have ids of others .* such as '{name}'"):
            sync(index, ENCODER)
        assert sync(index, ENCODER, yes=True).documents == 1
        assert texts()[name] == "A boat."
        assert sync(index, ENCODER).documents == 0
    (last / "a.txt").unlink()
    (first / "b.txt").write_text("A boat.")
    counts = sync(index, ENCODER)
    assert (counts.documents, counts.replaced, counts.removed) == (1, 1, 0)
    assert (texts()["a.txt"], texts()["b.txt"]) == ("A ship.", "A boat.")
    (first / "a.txt").rename(last / "a.txt")
    assert sync(index, ENCODER).removed == 0
    assert sync(index, ENCODER, first).unchanged == 1
    assert len(texts()) == 4


def test_a_document_that_was_replaced_by_itself_leaves_with_its_folder(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(TEXTS[number])
    index = built_from(folder, tmp_path / "the.index")
    (folder / "0.txt").write_text("Another text.")
    add(index, read_documents(folder / "0.txt"), ENCODER, True, (str(folder / "0.txt"), USUAL))
    (folder / "0.txt").write_text("A third text.")
    assert sync(index, ENCODER).replaced == 1
    sync(index, ENCODER, folder)
    (folder / "0.txt").unlink()
    assert sync(index, ENCODER, folder).removed == 1


def test_a_failure_leaves_the_index_as_it_was(folder, index, monkeypatch):
    """Until the manifest is replaced."""
    before = contents(index)
    change(folder, np.random.default_rng(2))

    def stop(*arguments):
        raise KeyboardInterrupt

    for name in ("append_segment", "cells_of"):
        with monkeypatch.context() as patch:
            patch.setattr(changes, name, stop)
            with pytest.raises(KeyboardInterrupt):
                sync(index, ENCODER)
        assert contents(index) == before
    other = Encoder(embed)
    other.description = ENCODER.description | {"hash": "x"}
    with pytest.raises(ValueError, match="was built with"):
        sync(index, other)
    assert contents(index) == before


@pytest.mark.parametrize("prefix", ["deep/", "deep/e", "rows.jsonl#row 4", "1"])
def test_a_part_is_as_an_index_of_it_alone(folder, index, tmp_path, prefix):
    add(index, [Document("deep/new", TEXTS[190]), Document("1 new", TEXTS[191])], ENCODER)
    documents = [*read_documents(folder), Document("deep/new", TEXTS[190]), Document("1 new", TEXTS[191])]
    part = tmp_path / "part.index"
    build(part, [document for document in documents if document.id.startswith(prefix)], ENCODER, WORDS)
    view = IndexReader(index).under(prefix)
    assert found(view) == found(part)
    assert len(view) == len(IndexReader(part))
    assert duplicates(view, 0.2) == duplicates(IndexReader(part), 0.2)
    assert clusters(view, 3) == clusters(IndexReader(part), 3)
    assert view.current() is view
    changes.delete(index, [documents[-1].id])
    assert view.current().prefix == prefix
    with pytest.raises(ValueError, match=r"begins with 'nowhere/'"):
        view.under("nowhere/")
