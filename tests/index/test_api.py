"""The index of the Python API: it answers as the parts do that it is made of, and loads its encoder once."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docsplit import Index
from docsplit.data.readers.base import Document, TableColumns
from docsplit.embedding import encoder as encoder_module
from docsplit.embedding.encoder import Encoder
from docsplit.index import api
from docsplit.index import index as index_module
from docsplit.index.changes import add, delete
from docsplit.index.index import Hit
from docsplit.index.results import Answer
from tests.conftest import make_corpus

TEXTS = [row["text"] for row in make_corpus(24)]
QUESTION = "the captain of a ship in the harbour"


@pytest.fixture
def loads(monkeypatch):
    """The names of the encoders that are loaded."""
    names, load = [], encoder_module.load_encoder

    def count(name, *more, **options):
        names.append(name)
        return load(name, *more, **options)

    monkeypatch.setattr(encoder_module, "load_encoder", count)
    return names


@pytest.fixture
def built(scattered, tmp_path):
    return Index.build(TEXTS, scattered, tmp_path / "the.index", passage_words=20)


@pytest.mark.parametrize("method", ["hybrid", "dense", "bm25"])
def test_it_finds_what_the_reader_finds_with_the_query_embedded(built, scattered, method):
    reader = index_module.IndexReader(built.directory)
    vector = Encoder(str(scattered)).embed_query(QUESTION)
    expected = reader.search(None if method == "bm25" else vector, QUESTION, 5, method)
    hits = built.search(QUESTION, count=5, method=method)
    assert [(hit.id, hit.title) for hit in hits] == [(hit.id, hit.title) for hit in expected]
    np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in expected], rtol=1e-5)
    assert len(hits) == 5
    assert all(hit.passage for hit in hits)
    assert all(" ".join((hit.passage or "").split()) in " ".join(TEXTS[int(hit.id)].split()) for hit in hits)


def test_the_encoder_is_loaded_once_and_not_before_it_is_needed(scattered, tmp_path, loads):
    index = Index.build(TEXTS[:8], scattered, tmp_path / "the.index")
    index.search(QUESTION)
    index.add({"new": TEXTS[8]})
    assert loads == [str(scattered)]
    opened = Index(str(tmp_path / "the.index"))
    assert len(opened) == 9
    opened.search(QUESTION, method="bm25")
    assert loads == [str(scattered)]
    opened.search(QUESTION)
    opened.search(QUESTION, method="dense")
    assert loads == [str(scattered)] * 2


def test_an_index_keeps_its_prompts_whatever_its_encoder_says_later(scattered, tmp_path):
    place = Path(shutil.copytree(scattered, tmp_path / "encoder"))

    def name(prompts):
        file = place / "config_sentence_transformers.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": prompts}))

    def found(index):
        return [(hit.id, round(hit.similarity, 5)) for hit in index.search(QUESTION, count=24, method="dense")]

    given = Index.build(TEXTS, place, tmp_path / "given", prompt="bread: ", query_prompt="storm: ")
    expected = found(given)
    assert expected != found(Index.build(TEXTS, place, tmp_path / "plain"))
    name({"document": "harbour ", "query": "harbour "})
    opened = Index(tmp_path / "given")
    assert found(opened) == expected
    name({"document": "bread: ", "query": "storm: "})
    assert found(Index.build(TEXTS, place, tmp_path / "named")) == expected
    shutil.rmtree(tmp_path / "given")
    Index.build(TEXTS, place, tmp_path / "given", query_prompt="sail: ")
    with pytest.raises(ValueError, match=r"other query_prompt\. .* build the index again"):
        opened.search(QUESTION)


@pytest.mark.parametrize("method", ["hybrid", "dense", "bm25"])
def test_what_is_like_a_document_is_found_as_in_an_index_without_it_and_without_the_encoder(built, loads, method):
    opened, reader = Index(built.directory), index_module.IndexReader(built.directory)
    segment, row = reader.find("3")
    vector = None if method == "bm25" else segment.vectors[segment.document_rows[row]]
    hits, answer = opened.like("3", 5, method), opened.answer_like("3", 5, method)
    assert (answer.rows, answer.query, answer.method) == (hits, "3", method)
    assert loads == []
    built.delete("3")
    assert hits == index_module.IndexReader(built.directory).search(vector, TEXTS[3], 5, method)
    assert len(hits) == 5
    with pytest.raises(ValueError, match="'3' is not in the index: an id is what a query prints"):
        opened.like("3")
    built.delete({document.id for document in built.documents()} - {"0"})
    assert opened.like("0", method=method) == []


@pytest.mark.parametrize("method", ["hybrid", "dense", "bm25"])
def test_documents_with_the_same_text_are_one_hit(scattered, tmp_path, method):
    """Whatever white space is in it; still as many hits are found as are wanted, and changes of the index count."""
    copies = {f"copy {number}": TEXTS[0].replace(" ", " \n" * (1 + number % 2)) for number in range(8)}
    index = Index.build(
        {"other": TEXTS[3], **copies, **dict(zip("abc", TEXTS[6:15:3]))}, scattered, tmp_path / "index"
    )
    index.add({"copy 8": f"\n{TEXTS[0]}", "no copy": f"{TEXTS[0]} A sail."})
    assert [hit.copies for hit in index.search(TEXTS[6], 1, method)] == [[]]
    hits = index.search(TEXTS[0], 4, method)
    (first,) = (hit for hit in hits if hit.copies)
    assert {first.id, *first.copies} == {*copies, "copy 8"}
    assert len({hit.id for hit in hits}) == len(hits) == 4
    assert not {hit.id for hit in hits} & {*first.copies}
    assert {hit.id for hit in index.like("copy 0", 20, method)} >= {"no copy", "other"}
    index.delete(copies)
    (hit,) = (hit for hit in index.search(TEXTS[0], 4, method) if hit.id == "copy 8")
    assert hit.copies == []
    every = index_module.IndexReader(index.directory).search(None, "the", 20, "bm25")  # evaluations see all
    assert all(hit.copies == [] for hit in every)


def test_a_score_can_be_made_of_the_numbers_of_its_hit(built):
    hits = built.search(QUESTION, count=len(TEXTS))
    similarities = [(hit.similarity + hit.document_similarity) / 2 for hit in hits]
    best, most = max(similarities) + 1, max(hit.bm25 for hit in hits)
    expected = [0.8 * (one + 1) / best + 0.2 * hit.bm25 / most for one, hit in zip(similarities, hits)]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-5)
    assert {hit.document_similarity for hit in built.search(QUESTION, method="dense")} == {None}
    assert all(hit.bm25 == hit.score for hit in built.search(QUESTION, method="bm25"))


def test_a_question_that_nothing_fits_is_said(built, monkeypatch):
    """By the cosine of one of the first hits and the share of the question's words, which is more of rarer words."""
    reader = index_module.IndexReader(built.directory)
    for cosine, words, expected in [
        (0.44, [], True),
        (0.42, [], False),
        (0.2, ["captain"], False),  # a document of three has it, and none has the other
        (0.2, ["captain", "quagga"], True),
    ]:
        hits = [Hit("a", 1.0, "", "", -0.1), Hit("b", 0.9, "", "", cosine, words)]
        answer = Answer("captain quagga", "hybrid", hits, 0, 0, "cosine", ["captain", "quagga"])
        assert api._fits(reader, answer) == expected
        assert not api._fits(reader, replace(answer, rows=[hits[0]] * api.FIRST + hits))
    assert (built.answer(QUESTION).fits, built.answer(QUESTION).notes) == (True, [])
    monkeypatch.setattr(api, "LEAST", 2)
    for count in (1, 9):
        answer = built.answer("-ship", count=count)
        assert (len(answer.rows), answer.fits) == (count, False)
        assert [note.partition(" ")[0] for note in answer.notes] == ["There", "Probably"]
    assert {built.answer(QUESTION, method=method).fits for method in ("dense", "bm25")} == {None}


def test_ids_and_texts_are_those_that_were_given(built):
    documents = built.documents()
    assert built.document("3").text == TEXTS[3]
    built.add([Document("new", "Of a ship.", "A title"), Document("file/a", TEXTS[0])])
    built.delete("3")
    assert {document.id: document.text for document in documents} == dict(zip(map(str, range(24)), TEXTS))
    assert built.document("new") == Document("new", "A title\n\nOf a ship.", "A title")
    assert [document.id for document in built.documents("file/")] == ["file/a"]
    assert {"3", "new"} & {document.id for document in built.documents()} == {"new"}


def test_documents_are_added_replaced_and_deleted(built):
    assert built.search(TEXTS[0], count=1)[0].id == "0"
    counts = built.add({"0": TEXTS[0], "new": "A lighthouse in a gale.", "empty": " "})
    assert (counts.documents, counts.unchanged, counts.empty, counts.replaced) == (1, 1, 1, 0)
    assert len(built) == len(TEXTS) + 1
    with pytest.raises(ValueError, match="'new' is in the index with another text"):
        built.add([Document("new", "Another text.")])
    assert built.add([Document("new", "Another lighthouse.", "A title")], replace=True).replaced == 1
    (hit,) = built.search("another lighthouse", count=1, method="bm25")
    assert (hit.id, hit.title) == ("new", "A title")
    assert built.delete("new") == 1
    assert built.delete(str(number) for number in range(3)) == 3
    assert len(built) == len(TEXTS) - 3
    assert not {hit.id for hit in built.search(QUESTION, count=100)} & {"0", "1", "2", "new"}
    with pytest.raises(ValueError, match="'0' for one: nothing was deleted"):
        built.delete(["3", "0"])
    assert len(built) == len(TEXTS) - 3


def test_what_others_change_is_seen(built, scattered):
    """No other document has volcanoes."""
    assert built.search("volcanoes", method="bm25") == []
    add(built.directory, [Document("theirs", "A volcano.")], Encoder(str(scattered)))
    assert [hit.id for hit in built.search("volcanoes", method="bm25")] == ["theirs"]
    delete(built.directory, ["theirs"])
    assert len(built) == len(TEXTS)
    assert built.search("volcanoes", method="bm25") == []


def test_a_folder_has_the_names_of_its_files_as_ids(scattered, tmp_path, caplog):
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "a.txt").write_text(f"The captain\n\n{TEXTS[0]}")
    (tmp_path / "notes" / "deep" / "b.md").write_text(f"# A harbour\n\n{TEXTS[1]}")
    (tmp_path / "notes" / "empty.txt").write_text("")
    index = Index.build(tmp_path / "notes", str(scattered), str(tmp_path / "the.index"))
    hits = {(hit.id, hit.title) for hit in index.search("harbour")}
    assert hits == {("a.txt", "The captain"), ("deep/b.md", "A harbour")}
    assert "Documents without text, which are not in the index: 1." in caplog.text
    assert index.add(tmp_path / "notes").unchanged == 2
    assert index_module.IndexReader(index.directory).manifest.sources == {
        str((tmp_path / "notes").resolve()): TableColumns()
    }


def test_it_follows_its_folder_and_gives_overviews(scattered, tmp_path):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    for number, text in enumerate(TEXTS[:12]):
        (folder / ("deep" if number % 2 else "") / f"{number}.txt").write_text(text)
    (folder / "copy.txt").write_text(TEXTS[0])
    index = Index.build(folder, scattered, tmp_path / "the.index")
    assert [{pair.id, pair.other} for pair in index.duplicates(0.9999)] == [{"0.txt", "copy.txt"}]
    assert index.duplicates(0.9999, under="deep/") == []
    assert sum(group.size for group in index.clusters(2, under="deep/")) == 6
    (folder / "1.txt").write_text(TEXTS[20])
    (folder / "copy.txt").unlink()
    counts = index.sync()
    assert (counts.documents, counts.removed, counts.unchanged) == (1, 1, 12)
    hits = index.search(QUESTION, count=100, under="deep/")
    assert {hit.id for hit in hits} == {f"deep/{number}.txt" for number in range(1, 12, 2)}
    assert index.info().documents == len(index) == 13


REFUSED = [
    (lambda built, new: built.search(" "), "The question is empty"),
    (lambda built, new: built.search("a", count=0), "count is 0: expected 1 or more"),
    (lambda built, new: built.search("a", fusion="mean"), "fusion is 'mean', weight 0.8: expected sum or rrf"),
    (lambda built, new: built.search("a", weight=2), "weight 2: expected"),
    (lambda built, new: built.search("a", method="words"), "method is 'words': expected one of hybrid, dense, bm25"),
    (lambda built, new: built.like("0", method="words"), "method is 'words': expected one of hybrid, dense, bm25"),
    (lambda built, new: built.document("nowhere"), "'nowhere' is not in the index"),
    (lambda built, new: built.add(["A text."]), r"need ids, .*: give \{id: text\}"),
    (lambda built, new: built.add({"a": 3}), "Document 'a' is a int: give texts"),
    (lambda built, new: built.add(new), "nowhere"),
    (lambda built, new: Index(new), "There is no index in"),
    (lambda built, new: Index.build(TEXTS, "x", new, language="latin"), "language is 'latin': expected one"),
    (lambda built, new: Index.build(TEXTS, object(), new), "The encoder is a object: give its name"),
]


def test_what_cannot_work_is_refused_before_anything_changes(built, encoder, tmp_path):
    for call, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            call(built, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="The index was built with"):
        Index(built.directory, encoder).search("a")
    assert len(built) == len(TEXTS)
    assert not (tmp_path / "nowhere").exists()


def test_threads_search_at_once_with_one_encoder(built, scattered, loads):
    questions = [f"{text} {QUESTION}" for text in TEXTS]
    expected = [[(hit.id, round(hit.score, 5)) for hit in built.search(question)] for question in questions]
    opened = Index(built.directory)
    with ThreadPoolExecutor(8) as threads:
        hits = list(threads.map(opened.search, questions * 4))
    assert loads == [str(scattered)]
    assert [[(hit.id, round(hit.score, 5)) for hit in found] for found in hits] == expected * 4
