"""Passages: their lengths against a slow search, section borders where headings are and nowhere else, linear time."""

import random
import string
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docsplit.data.passages import (
    SECTION_BREAK,
    _is_longer,
    count_words,
    cut_long,
    passage_sizes,
    segment,
    split_sections,
    split_sentences,
    to_passages,
)
from docsplit.data.segmentation import clean_text

LENGTHS = st.lists(st.integers(1, 40) | st.integers(1, 400), max_size=60)
PIECES = st.sampled_from(
    [
        *("# Title\n", "## Title\n", "Title\n-----\n", "=====\nTitle\n=====\n", "-----\n", "```\n", SECTION_BREAK),
        *("\n", "\n\n", "\r\n", " ", "x", "Word. ", "It is so. ", "a | b\n--- | ---\n", ">>> # x\n", "\x00"),
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=100)


def sentence(num_words, rng):
    return " ".join("".join(rng.choices(string.ascii_lowercase, k=4)) for _ in range(num_words)).capitalize() + "."


def letters(text):
    return "".join(text.split())


def text_of(lengths, seed=0):
    rng = random.Random(seed)
    return " ".join(sentence(length, rng) for length in lengths)


# --- Lengths ---


def slow_sizes(lengths, words):
    """A passage ends as near to `words` as possible, among ends that make it neither too long nor too short."""
    sizes, rest = [], list(lengths)
    while rest:
        ends = range(1, len(rest) + 1)
        allowed = [end for end in ends if words / 5 <= sum(rest[:end]) <= 1.5 * words]
        if not allowed:  # a sentence too long, alone or after a beginning too short; or a remnant
            allowed = [end for end in ends if sum(rest[:end]) >= words / 5][:1] or [len(rest)]
        best = min(allowed, key=lambda end: (abs(sum(rest[:end]) - words), -end))
        sizes.append(best)
        rest = rest[best:]
    if len(sizes) > 1 and sum(lengths[-sizes[-1] :]) < words / 5:
        last = sizes.pop()
        sizes[-1] += last
    return sizes


@given(LENGTHS, st.sampled_from([1, 7, 30, 100]))
def test_sizes_equal_a_slow_search(lengths, words):
    assert passage_sizes(lengths, words) == slow_sizes(lengths, words)


def test_a_length_of_zero_is_refused():
    with pytest.raises(ValueError, match="0 words make no passage: expected 1 or more"):
        to_passages("A ship.", words=0)


# --- Texts ---


@given(TEXTS, st.sampled_from([1, 3, 100]))
@settings(deadline=None, max_examples=60)
def test_nothing_is_lost_and_sections_number_the_passages(text, words):
    """Borders at headings change no sentence: views of sentences and of passages have one text."""
    passages = to_passages(text, words)
    assert letters(" ".join(passage.text for passage in passages)) == letters(
        clean_text(text.replace(SECTION_BREAK, " "))
    )
    assert all(passage.text == passage.text.strip() != "" for passage in passages)
    numbers = [passage.section for passage in passages]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(set(numbers))))
    text = clean_text(text)
    assert [one for section in split_sections(text) for one in split_sentences(section)] == split_sentences(text)


@given(st.lists(LENGTHS.filter(lambda lengths: sum(lengths) >= 10), min_size=1, max_size=4))
@settings(deadline=None, max_examples=20)
def test_each_section_has_the_passages_that_it_has_alone(sections):
    texts = [text_of(lengths, seed) for seed, lengths in enumerate(sections)]
    together = segment(SECTION_BREAK.join(texts), 100, split_sentences)
    assert together == [segment(text, 100, split_sentences)[0] for text in texts]
    headed = [f"## Part {number}\n\n{text}" for number, text in enumerate(texts)]
    all_sections = segment("\n\n".join(headed), 100, split_sentences)
    assert all_sections == [segment(text, 100, split_sentences)[0] for text in headed]
    assert [section[0][0] for section in all_sections] == [f"## Part {number}" for number in range(len(texts))]


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        ([".. _wine_dataset:\n\n", "Wine\n----\n\nA wine."], [[0, 1]]),
        (["A wine was made.\n\n", "## See also\n"], [[0, 1]]),
        (["A wine was made.\n\n", "## A\n\nOne.\n\n", "## B\n\nIt was made again.\n\n", "## C"], [[0], [1, 2, 3]]),
        (["A wine was made.\n\n", "## A\n\nIt was made again."], [[0], [1]]),
        (["Wine."], [[0]]),
    ],
)
def test_a_section_that_is_hardly_a_text_joins_a_neighbour(texts, joined):
    """An anchor, a heading alone, or fewer than a tenth of the words of a passage."""
    passages = [" ".join(passage.text.split()) for passage in to_passages("".join(texts), 35)]
    assert passages == [" ".join("".join(texts[number] for number in numbers).split()) for numbers in joined]


# --- Headings ---

SECTIONS = [
    ["Before.\n", "# Part A\n\nText.\n", "## Part B\nNo empty line.\n", "### (2) `f`\n\nText."],  # Markdown
    ["Sum it.\n", "Parameters\n----------\nx : int\n    A number.\n", "See Also\n--------\nnp.sum"],  # numpydoc
    ["Before.\n", "Warns\n======\nText.\n", "Notes\n====\nText."],  # of about its length
    ["Before.\n", "=======\nPart A\n=======\n\nText.\n", "=======\nPart B\n=======\n\nText."],
    ["Before.\n", "# Part A\n\n## Part A.1\n\nText.\n", "Part B\n======\n\nPart B.1\n--------\nText."],  # no text
    ["# Title\n\n## Part A\nText.\n", "## Part B\nText."],
    ["```python\n\n# Load it\n\nf()\n```\n", "# Part A\n\nText."],
]


@pytest.mark.parametrize("expected", SECTIONS)
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_headings_begin_sections(expected, end):
    text = "\n".join(expected).replace("\n", end)
    sections = [section.replace(end.replace("\r\n", "\n"), "\n").strip() for section in split_sections(text)]
    assert sections == [section.strip() for section in expected]


@pytest.mark.parametrize(
    "text",
    [
        "Call it.\n\n# load the model\n\nmodel = load()",
        "Call it.\n\n# Load the model\nmodel = load()",
        "Call it.\n\n# The model is loaded here.\n\nmodel = load()",
        "Call it.\n\n    # Load it\n\n    f()",
        "Call it.\n\n>>> # Load it\n>>> f()",
        "Call it.\n# Load it\n\nf()",
        "Call it.\n\n```python\n\n# Load it\n\nf()\n```\n\nDone.",
        "#!/bin/sh\n\n#include <stdio.h>\n\n#Title\n\n# ---\n\n# | a |\n\n####### Seven",
        "A table.\n\na   | b\n--- | ---\n1   | 2",
        "A table.\n\n| Rank | Mesh |\n---------------\n| 1 | 2 |",
        "A table.\n\n===  ===\na    b\n===  ===\n1    2\n===  ===",
        "Output.\n\n>>> print(x)\nName\n----\n1",
        "Output.\n\nanimal: string\n----\n1",
        "Output.\n\n  Name\n  ----\n  1",
        "Output.\n\n-1.34 -0.92\n===========\n1",
        "A line.\n\n-----\n\nMore.\n\n=====\n=====\n\nDone.",
        f"A line.\n\n{'Word ' * 21}\n{'-' * 105}\n\nMore.",
    ],
)
def test_comments_tables_and_rulers_begin_none(text):
    assert split_sections(text) == [text]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "unit",
    [".", "#", "# ", "## A\n", "\n\n-----", "-- ", "```\n", "A\n-\n", SECTION_BREAK, "a. ", "x", "ก", "\u0301", "a\n"],
)
def test_much_of_the_same_is_cut_in_time(unit):
    """A blink, where anything quadratic in the length would take minutes."""
    text = unit * (100_000 // len(unit))
    passages = to_passages(text)
    assert letters("".join(passage.text for passage in passages)) == letters(text.replace(SECTION_BREAK, " "))
    sizes = [count_words(passage.text) for passage in passages if unit != "\u0301"]  # marks are not divided
    assert max(sizes, default=0) <= 150


SCRIPTS = {
    "Chinese": "我们在港口看见了一艘很大的船。",
    "Japanese": "船は港にいて、静かに待っていた。",
    "Burmese": "လှေသည်ရေကန်ကိုဖြတ်သွားသည်။",
    "Khmer": "ទូកបានឆ្លងកាត់បឹង។",
    "Tibetan": "གྲུ་གཟིངས་མཚོ་བརྒལ། །",
    "Armenian": "Նավը անցավ լիճը։ ",
    "Amharic": "ጀልባው ሐይቁን ተሻገረ።",
    "Hindi": "नाव झील पार कर गई। ",
    "Urdu": "کشتی جھیل پار کر گئی۔ ",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_has_its_stops(script):
    """Scripts without spaces put none after a stop either."""
    sentence = SCRIPTS[script]
    assert split_sentences(sentence * 30) == [sentence.strip()] * 30
    passages = [passage.text for passage in to_passages(sentence * 60)]
    assert letters("".join(passages)) == letters(sentence * 60)
    assert {sentence.strip()} == {one for passage in passages for one in split_sentences(passage)}
    sizes = [count_words(passage) for passage in passages]
    assert all(80 <= size <= 120 for size in sizes[:-1])


WITHOUT_STOPS = {
    "transcript": ("so we sail over the lake and then we eat ", " "),
    "lines of a log": ("2024-01-01 12:00:00 INFO the server has started on port 8080\n", "\n"),
    "table": ("rope\t12\tyes\n", "\n"),
    "Korean": ("배가 호수를 건너고 우리는 빵을 먹고 ", " "),
    "Thai": ("เรือแล่นข้ามทะเลสาบแล้วเราก็กินขนมปัง", ""),
    "Thai clauses": ("เรือแล่นข้ามทะเลสาบ แล้วเราก็กินขนมปัง ", " "),
    "Lao": ("ເຮືອແລ່ນຂ້າມທະເລສາບ", ""),
    "Chinese": ("船过了湖然后我们吃面包", ""),
    "base64": ("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo", ""),
    "one word": ("x", ""),
    "signs": ("=", ""),
}


@pytest.mark.parametrize("kind", WITHOUT_STOPS)
@pytest.mark.parametrize("words", [20, 100, 300])
def test_a_text_without_stops_is_cut_at_lines_or_spaces_or_characters(kind, words):
    """What is not cut an encoder does not read; with fewer words a passage is shorter."""
    unit, border = WITHOUT_STOPS[kind]
    text = unit * (30_000 // len(unit))
    passages = [passage.text for passage in to_passages(text, words)]
    assert letters("".join(passages)) == letters(text)
    sizes = [count_words(passage) for passage in passages]
    assert max(sizes) <= 1.5 * words
    assert min(sizes[:-1]) >= words / 2
    sentences, place = split_sentences(text), 0
    assert len(sentences) > 10  # there are two halves
    for sentence in sentences:
        between = text[place : (start := text.index(sentence, place))]
        assert between.strip() == ""
        assert between[:1] == border or place in (0, len(text))
        place = start + len(sentence)


@given(st.text(st.sampled_from("กเ็้ำaé\u0301\u200d\u093f्क"), max_size=60), st.integers(1, 9))
@settings(deadline=None)
def test_a_mark_stays_with_its_letter(text, words):
    pieces = cut_long(text, words)
    assert "".join(pieces) == text
    for piece in pieces[1:]:
        assert unicodedata.category(piece[0])[0] != "M"
    for piece in pieces[:-1]:
        assert piece[-1] not in "\u200d्"


def test_prose_is_not_cut():
    """A sentence of up to 200 words is one, and so is one of Chinese of 200 characters."""
    long = [sentence(200, random.Random(0)), "船" * 198 + "。"]
    assert split_sentences(" ".join(long)) == long
    assert [len(split_sentences(text)) for text in ("a " * 200, "a " * 201, "a\n" * 315)] == [1, 2, 3]


@pytest.mark.parametrize("unit", ["a ", "船", "é ", "船a ", "ก", "a" * 12, "é" * 12])
def test_a_text_is_longer_than_so_many_words_if_one_counts_more(unit):
    """What is short by its bytes is not counted."""
    for number in range(1, 12):
        text = (unit * number).strip()
        longer = [words for words in range(1, 25) if _is_longer(text, words)]
        assert longer == [words for words in range(1, 25) if count_words(text) > words]
