"""Stems of BM25: those of bm25s and Snowball where words have spaces between them, characters where they have none."""

import json
import unicodedata
from pathlib import Path

import bm25s
import pytest
import Stemmer

from docsplit.data.bm25 import BM25
from docsplit.data.sets.rankings import Retrieved
from docsplit.data.words import LANGUAGES, Stems, tokenize, warn_of_other_language

DOCUMENTS = Path(__file__).parent / "documents.jsonl"
TEXTS = [json.loads(line)["text"] for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
TEXTS += ["x2 3 C++ naïve Übung Привет, мир a\u0301b 한국어 단어 I'm", ""]


@pytest.mark.parametrize("language", ["english", "none"])
def test_words_with_spaces_are_stemmed_as_bm25s_does(language):
    texts = [unicodedata.normalize("NFC", text.replace("_", " ").lower()) for text in TEXTS]  # without identifiers
    stemmer = None if language == "none" else Stemmer.Stemmer(language)
    expected = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)
    cut = tokenize(texts, language)
    word_of = {number: word for word, number in cut.vocab.items()}
    assert [[word_of[number] for number in numbers] for numbers in cut.ids] == expected
    assert [*map(Stems(language).of, texts)] == expected
    assert sorted(cut.vocab.values()) == [*range(len(cut.vocab))]


def test_an_accent_is_one_letter_however_it_is_written():
    assert Stems().of("cafe\u0301s") == Stems().of("caf\u00e9s") == ["caf\u00e9"]


@pytest.mark.parametrize(
    ("text", "stems"),
    [
        ("今天天气很好。", [*"今天天气很好"]),
        ("東京 is 333m高い", [*"東京", "333m", *"高い"]),
        ("𠮷野家", [*"𠮷野家"]),
        ("get_user_by_id", ["get_user_by_id", "get", "user", "id"]),
        ("parseHTMLResponses", ["parsehtmlrespons", "pars", "html", "respons"]),
        ("__init__ siRNA PCRs H1N1 IDs", ["__init__", "init", "sirna", "si", "rna", "pcrs", "h1n1", "id"]),
    ],
)
def test_han_and_kana_are_cut_into_characters_and_identifiers_are_counted_whole_and_in_parts(text, stems):
    assert Stems().of(text) == stems


def test_a_query_finds_other_forms_of_its_words_and_parts_of_identifiers_and_characters():
    documents = [
        "def get_user_by_id(): return a row",
        "parseHTMLResponse",
        "He retried it",
        "我们去北京大学看书",
        "x y",
    ]
    queries = ["users", "html response", "retries", "北京大学", "get_user_by_id"]
    retrieved: Retrieved = BM25(documents).retrieve(queries, 1)
    assert retrieved.rows.ravel().tolist() == [0, 1, 2, 3, 0]
    assert BM25(documents, "none").retrieve(["retries"], 1).rows.tolist() == [[-1]]


def test_words_that_say_little_are_left_out_for_people_unless_no_other_is_there():
    assert Stems().telling("How do I save arrays? Save!") == {"save": "save", "arrays": "array"}
    assert Stems("none").telling("who does, who") == {"who": "who", "does": "does"}
    assert Stems().telling("") == {}


GERMAN = ["Das Schiff ist nicht mehr in dem Hafen, und die Leute sind auf der Mole."] * 3


@pytest.mark.parametrize(
    ("texts", "language", "message"),
    [
        (GERMAN, "english", "Most texts look German, not English: give --language german."),
        (
            [*GERMAN, "The ship is not in the harbour, and the people are on it."],
            "finnish",
            "",
        ),
        (GERMAN, "german", ""),
        (GERMAN, "none", ""),
        (TEXTS, "english", ""),
        (["x = 1", "東京"], "english", ""),
    ],
)
def test_texts_of_another_language_get_one_line(texts, language, message, caplog):
    assert language in LANGUAGES
    warn_of_other_language(texts, language)
    assert len(caplog.messages) == bool(message)
    assert message in caplog.text
