"""Words of BM25: those of bm25s where words have spaces between them, characters where they have none."""

import json
from pathlib import Path

import bm25s
import pytest

from docsplit.data.bm25 import BM25
from docsplit.data.sets.rankings import Retrieved
from docsplit.data.words import telling_words, tokenize, words_in

DOCUMENTS = Path(__file__).parent / "documents.jsonl"


def test_words_with_spaces_are_those_of_bm25s():
    texts = [json.loads(line)["text"] for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
    texts += ["snake_case x2 3 C++ naïve Übung Привет, мир a\u0301b 한국어 단어 I'm", ""]
    assert tokenize(texts, return_ids=False) == bm25s.tokenize(texts, stopwords="en", return_ids=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("今天天气很好。", [*"今天天气很好"]),
        ("東京 is 333m高い", [*"東京", "333m", *"高い"]),
        ("𠮷野家", [*"𠮷野家"]),
    ],
)
def test_han_and_kana_are_cut_into_characters(text, words):
    assert tokenize([text], return_ids=False) == [words]


def test_a_word_inside_a_chinese_sentence_is_found():
    retrieved: Retrieved = BM25(["今天天气很好", "我们去北京大学看书", "他在家里睡觉"]).retrieve(["北京大学"], 2)
    assert retrieved.rows.tolist() == [[1, -1]]


def test_words_in_a_text_are_those_that_are_cut_with_stop_words():
    text = "The Ship, the ship and 東京: x"
    assert words_in(text) == {"the", "ship", "and", "東", "京"} >= set(tokenize([text], return_ids=False)[0])


def test_words_that_say_little_are_left_out_unless_no_other_is_there():
    assert telling_words(["how", "do", "save", "arrays", "save"]) == ["save", "arrays"]
    assert telling_words(["who", "does", "who"]) == ["who", "does"]
    assert telling_words([]) == []
