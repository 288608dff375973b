"""Stems of BM25: those of bm25s and Snowball where words have spaces between them, characters where they have none."""

import json
import re
import unicodedata
from pathlib import Path

import bm25s
import numpy as np
import pytest
import Stemmer

from docsplit.data.bm25 import BM25
from docsplit.data.sets.rankings import Retrieved
from docsplit.data.words import (
    COMPOUNDS,
    LANGUAGES,
    PLAIN_COMPOUNDS,
    WORDS,
    Stems,
    stem_tokens,
    warn_of_other_language,
    whole_words,
)

DOCUMENTS = Path(__file__).parent / "documents.jsonl"
TEXTS = [json.loads(line)["text"] for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
TEXTS += ["x2 C++ naïve Übung Привет, мир a\u0301b 한국어 단어 I'm", ""]
# The language of the stems, a text, and what is counted of it
OF_LANGUAGES = [
    ("none", "मौसम विभाग ने बारिश, हिन्दी", ["मौसम", "विभाग", "ने", "बारिश", "हिन्दी"]),
    ("none", "बारिश\u200cबारिश श्\u200dरी", ["बारिशबारिश", "श्री"]),
    ("hindi", "किताबें किताबों", ["किताब", "किताब"]),
    ("tamil", "பூக்கள் பூக்களை", ["பூக்", "பூக்"]),
    ("none", "আগামীকাল ভারী বৃষ্টি", ["আগামীকাল", "ভারী", "বৃষ্টি"]),
    ("none", "రేపు వర్షం", ["రేపు", "వర్షం"]),
    ("none", "සිංහල", ["සිංහල"]),
    ("none", "ฝนตก phoneรุ่น", ["ฝน", "นต", "ตก", "phone", "รุ่น", "รุ่"]),
    ("none", "မိုးရွာ ၅", ["မိုးရွာ", "မိုး", "ရွာ", "5"]),
    ("none", "ខ្មែរ", ["ខ្មែ", "មែរ", "ខ្", "មែ"]),
    ("none", "הַגֶּשֶׁם סֵפֶר־חָדָשׁ", ["הגשם", "ספר", "חדש"]),
    ("none", "وَصَلَ كِتَابٌ كتـــاب", ["وصل", "كتاب", "كتاب"]),
    ("none", "ܫܠܳܡܳܐ Ի՞նչ за́мок ле́с мой ѓон", ["ܫܠܡܐ", "ինչ", "замок", "лес", "мой", "ѓон"]),
    ("none", "٢٠٢٣ ۱۳۹۹ २०२३ ๒๕๖๖ ٥", ["2023", "1399", "2023", "2566", "5"]),
    ("none", "کتاب\u200cها", ["كتاب", "ها"]),
    ("none", "책 비가 서울에서", ["책", "비가", "서울에서"]),
    ("none", "ﾃﾞｰﾀ サーバー", [*"データサーバー"]),
    ("none", "人々 二〇 〆切 葛\U000e0100 ㇰ", [*"人々二〇〆切葛ㇰ"]),
    ("none", "ＡＢ１２Ｃ ２", ["ab12c", "2"]),
    ("none", "İstanbul i\u0307stanbul ISPARTA", ["istanbul", "istanbul", "isparta"]),
    ("none", "İSTANBUL", ["istanbul"]),  # no identifier of two words
    ("turkish", "ISPARTA ısparta İstanbul", ["ıspar", "ıspar", "istanbul"]),
    ("german", "Gesamt\u00adkonzep\u00adtion", ["gesamtkonzeption"]),
    ("english", "article 5, version 2.4; x y", ["articl", "5", "version", "2", "4"]),
    ("english", "2½ ships™ №5 co\u200bop e\u200d\u0301t\u00e9 5\ufe0f\u20e3", ["2", "ship", "5", "coop", "été", "5"]),
]


@pytest.mark.parametrize("language", ["english", "none"])
def test_words_with_spaces_are_stemmed_as_bm25s_does(language):
    texts = [unicodedata.normalize("NFC", text.replace("_", " ").lower()) for text in TEXTS]  # without identifiers
    stemmer = None if language == "none" else Stemmer.Stemmer(language)
    texts = [re.sub(r"(?<!\w)\d(?!\w)", "", text) for text in texts]  # its digits are no words where they stand alone
    texts = [re.sub(r"[-/&+#.]", " ", text) for text in texts]  # and it counts nothing whole beside its parts
    expected = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)
    cut = stem_tokens(texts, language)
    word_of = {number: word for word, number in cut.vocab.items()}
    assert [[word_of[number] for number in numbers] for numbers in cut.ids] == expected
    assert [*map(Stems(language).of, texts)] == expected
    assert sorted(cut.vocab.values()) == [*range(len(cut.vocab))]


def test_an_accent_is_one_letter_however_it_is_written():
    assert Stems().of("cafe\u0301s") == Stems().of("caf\u00e9s") == ["caf\u00e9"]


@pytest.mark.parametrize(("language", "text", "stems"), OF_LANGUAGES)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_of_languages_have_their_marks_however_they_are_written(language, text, stems, form):
    written = unicodedata.normalize(form, text)
    assert Stems(language).of(written) == stems
    assert Stems(language).of(f"{written} क") == stems  # by the patterns of all scripts
    if language == WORDS:
        assert whole_words(written) == stems


@pytest.mark.parametrize(
    ("text", "stems"),
    [
        ("今天天气很好。", [*"今天天气很好"]),
        ("東京 is 333m高い", [*"東京", "333m", "333", *"高い"]),
        ("𠮷野家", [*"𠮷野家"]),
        ("get_user_by_id", ["get_user_by_id", "get", "user", "id"]),
        ("parseHTMLResponses", ["parsehtmlrespons", "pars", "html", "respons"]),
        ("__init__ siRNA PCRs H1N1 IDs", ["__init__", "init", "sirna", "si", "rna", "pcrs", "h1n1", "id"]),
    ],
)
def test_han_and_kana_are_cut_into_characters_and_identifiers_are_counted_whole_and_in_parts(text, stems):
    assert Stems().of(text) == stems


SAME = [  # ways of writing one word, of which a search for either finds both
    ("none", "کتاب", "كتاب"), ("none", "علی", "علي"), ("arabic", "کتابی", "كتابي"), ("none", "ہاتھ", "هاتھ"),
    ("none", "об'єкт", "об\u02bcєкт"), ("none", "п’ять", "п'ять"), ("none", "צ'יפס", "צ\u05f3יפס"),
    ("french", "œuvre", "oeuvre"), ("none", "Ærø", "aerø"), ("french", "l'œuvre", "oeuvre"),
    ("french", "l'homme", "homme"), ("french", "l\u02bchomme", "homme"), ("english", "dog's", "dog"),
    ("english", "U.S.A.", "USA"), ("english", "the U.S.A", "usa"), ("none", "S.A.D.T.", "sadt"),
    ("german", "z.B.", "zB"),
    ("english", "AT&T", "at&t"), ("english", "I/O", "IO"), ("english", "R&D costs", "r&d"), ("english", "km/h", "kmh"),
    ("english", "C++", "c++"), ("english", "C#", "c#"), ("english", "in C++17", "C++ 17"), ("english", "(F#)", "F#"),
    ("english", "Wi-Fi", "wifi"), ("english", "e\u2011mail", "email"), ("english", "COVID-19", "Covid19"),
    ("none", "веб-сайт", "вебсайт"), ("english", "5mg", "5 mg"), ("english", "16GB", "16 GB"),
    ("english", "Python3", "Python 3"), ("english", "1,250,000", "1250000"), ("german", "1.250.000", "1250000"),
    ("none", "1 250 000", "1250000"), ("none", "1\u202f250\u202f000", "1250000"), ("none", "1'250'000.50", "1250000"),
    ("none", "1.250.000.000", "1250000000"), ("none", "٥mg", "5 mg"), ("none", "我用C++编程", "C++"),
    ("none", "他在AT&T工作", "AT&T"), ("none", "使用I/O设备", "IO"), ("none", "在COVID-19期间", "Covid19"),
    ("none", "Wi-Fiを使う", "wifi"), ("none", "ใช้Wi-Fiที่", "wifi"),
]  # fmt: skip
OTHER = [  # what is not one word
    ("l'homme", "lhomme"), ("dog's", "dogs'x"), ("192.168.100.200", "192168100200"), ("3,141", "3141"),
    ("h2o", "h 2 o"),
    ("da39a3ee5e6b4b0d", "da 39"), ("1,25,000", "125000"), ("and/or", "andor"), ("TCP/IP", "tcpip"), ("C#", "C++"),
    ("state-of-the-art", "stateoftheart"), ("boundary-layer", "boundarylayer"),
    ("2020-11", "202011"), ("foo#bar", "bar#"), ("a ++", "a++"), ("ھ", "ه"),
    ("end.A new", "enda"), ("1,250.000", "1250000"), ("12,345,678,9", "123456789"), ("don't", "dont"),
    ("naïve", "naive"),
]  # fmt: skip


@pytest.mark.parametrize(("language", "one", "other"), SAME)
def test_ways_of_writing_a_word_find_each_other(language, one, other):
    ours, theirs = (Stems(language).of(f"{text} क") for text in (one, other))  # by the patterns of all scripts
    assert set(ours) & set(theirs) - {"क"}
    assert (Stems(language).of(one), Stems(language).of(other)) == (
        [stem for stem in ours if stem != "क"],
        [stem for stem in theirs if stem != "क"],
    )
    for text in (one, other):
        stems = Stems(language)
        assert list(map(stems.stem, stems.words_in(text))) == stems.of(text)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_words_do_not_find_each_other(one, other):
    assert not set(Stems("none").of(one)) & set(Stems("none").of(other)) - {"bar"}


def test_compounds_are_those_that_a_slow_search_finds():
    """At each letter, without a look for signs first; in random stretches of what compounds are made of."""
    rng = np.random.default_rng(0)
    parts = [*"aUь5", "AT", "TCP", "Wi", "ship", "250", "000", "1,250,000", *"-‐&/+#.,' _", "++", " ", "\n", "é"]
    for length in range(2, 30):
        for _ in range(60):
            text = "".join(rng.choice(parts, length))
            for compounds in (PLAIN_COMPOUNDS, COMPOUNDS):
                assert [*compounds.of(text)] == compounds.joined.findall(text) + compounds.numbers.findall(text), text


def test_letters_of_scripts_without_spaces_are_joined_to_nothing():
    assert Stems().of("東京-大阪") == [*"東京大阪"]
    assert Stems().of("我用C++编程") == [*"我用编程", "c++"]


def test_words_counted_whole_are_those_of_bm25_alone():
    """TF-IDF, names of groups and near copies have the parts, as before."""
    text = "U.S.A. AT&T C++ Wi-Fi 1,250,000 get_id"
    assert whole_words(text) == ["at", "wi", "fi", "1", "250", "000", "get_id"]
    assert Stems("none").of_runs(text) == ["wi", "fi", "1", "250", "000", "get_id", "get", "id"]
    assert Stems("none").of(text)[len(Stems("none").of_runs(text)) :] == ["usa", "at&t", "c++", "wifi", "1250000"]


def test_a_query_finds_other_forms_of_its_words_and_parts_of_identifiers_and_characters():
    documents = ["get_user_by_id(): a row", "parseHTMLResponse", "He retried it", "我们去北京大学看书", "x y"]
    queries = ["users", "html response", "retries", "北京大学", "get_user_by_id"]
    retrieved: Retrieved = BM25(documents).retrieve(queries, 1)
    assert retrieved.rows.ravel().tolist() == [0, 1, 2, 3, 0]
    assert BM25(documents, "none").retrieve(["retries"], 1).rows.tolist() == [[-1]]


def test_words_that_say_little_are_left_out_for_people_unless_no_other_is_there():
    assert Stems().content_words("How do I save arrays? Save!") == {"save": "save", "arrays": "array"}
    assert Stems("none").content_words("who does, who") == {"who": "who", "does": "does"}
    assert Stems().content_words("") == {}


GERMAN = ["Das Schiff ist nicht mehr in dem Hafen, und die Leute sind auf der Mole."] * 3


@pytest.mark.parametrize(
    ("texts", "language", "message"),
    [
        (GERMAN, "english", "Most texts look German, not English: give --language german."),
        ([*GERMAN, "The ship is not in the harbour, and the people are on it."], "finnish", ""),
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
