"""The lines of a result that people read."""

from dataclasses import replace

import pytest

from docsplit.data.passages import to_passages
from docsplit.data.words import Stems
from docsplit.index.index import Hit, IndexReader
from docsplit.index.overview import Group, Pair
from docsplit.index.results import (
    PASSAGE_LINES,
    SHOWN_PAIRS,
    Added,
    Answer,
    Built,
    Clusters,
    Deleted,
    Duplicates,
    Exported,
    Info,
    notes_on,
    shown_part,
)
from docsplit.runtime.command import Style


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (Deleted(1), "Deleted 1 document."),
        (Built(1234, 1, 2), "Indexed 1,234 documents (1 passage); without text, left out: 2."),
        (
            Added(5, 9, 1, None, 2, 3),
            "Added 3 documents (9 passages); replaced: 2; unchanged: 3; without text, left out: 1.",
        ),
        (Exported(60, 0), "The collection holds 60 passages."),
    ],
)
def test_counts_are_a_sentence(result, line):
    assert result.lines() == [line]


def test_an_index_is_described(built, documents):
    info = Info.of(IndexReader(built))
    assert (info.documents, info.passage_words) == (len(documents), 20)
    lines = info.lines()
    assert lines[0] == f"{len(documents)} documents in {info.passages} passages of about 20 words, and English stems."
    assert lines[1:] == ["Encoder: test, reads whole texts."]
    assert Built(1, 1, reading="It reads a half.").lines()[1:] == ["It reads a half."]
    described = Info(1, 2, "a/b", "Documents carry words.", 100, 256, "It reads a half.", ["/notes"]).lines()
    assert described[1:] == [
        "Encoder: a/b, reads up to 256 tokens.",
        "It reads a half.",
        "Documents carry words.",
        "From /notes",
    ]


def test_a_hit_says_what_its_score_is_made_of():
    words = ["ship", "harbour", "anchor"]
    hit = Hit("a.txt", 0.964, "Ships", "A ship in the harbour.", 0.618, ["ship", "harbour"], 0.512, 7.31, ["b", "c"])

    def lines(method, similarity="cosine", hit=hit):
        return Answer("query", method, [hit], 1.0, 1.0, similarity, words).lines()

    assert lines("hybrid") == [
        "  1  Ships  [a.txt] and 2 copies",
        "     score 0.964: cosine 0.62 passage, 0.51 document; BM25 7.3, 2 of 3 words: ship, harbour",
        "     A ship in the harbour.",
    ]
    assert "score 0.0325: " in lines("hybrid", hit=replace(hit, score=2 / 61.5))[1]  # of ranks
    by_meaning = replace(hit, document_similarity=None, bm25=None, copies=["b"])
    assert lines("dense", "dot", by_meaning)[:2] == ["  1  Ships  [a.txt] and 1 copy", "     dot product 0.62"]
    by_words = Hit("a.txt", 7.1, "Ships", "A ship.", None, ["ship", "harbour", "anchor"], bm25=7.1)
    assert lines("bm25", None, by_words)[1] == "     BM25 7.1, 3 of 3 words"
    assert lines("bm25", None, replace(by_words, words=[]))[1] == "     BM25 7.1, 0 of 3 words"
    nothing = Answer("query", "bm25", [], 0.1, 4.4)
    assert nothing.lines() == ["Nothing was found."]


def test_signs_of_operators_are_named_before_the_hits():
    assert notes_on('apple -pie "of grandmother\'s"') == [
        'There are no operators: all words of -pie, "of grandmother\'s" count.'
    ]
    for question in ("apple pie", "3 - 2", "from -5 to 5", "well-known", 'a 5" disk', '""', "--", "a - b"):
        assert notes_on(question) == []
    assert Answer("-pie", "bm25", [], 0.1, 4.4, notes=["A note."]).lines() == ["A note.", "Nothing was found."]


def test_hits_fit_the_terminal_whatever_their_length():
    hits = [Hit("a.txt", 0.5, "", "Short."), Hit("b.txt", 0.25, "t" * 200, "word " * 200), Hit("c", 0.125, "c", None)]
    hits.append(Hit("d", 0.1, "D", None, 0.5, ["longword" * 4] * 9, copies=["e"]))
    lines = Answer("query", "hybrid", hits, 1.0, 1.0, "cosine", ["word"] * 10).lines(Style(60))
    assert lines[:2] == ["  1  a.txt", "     score 0.500: 0 of 10 words"]
    assert "t…  [b.txt]" in lines[3]
    assert lines[4 + PASSAGE_LINES].endswith(" …")
    assert lines[5 + PASSAGE_LINES] == "  3  c"
    assert max(map(len, lines)) <= 60


def test_words_of_the_query_are_marked_on_a_terminal_alone():
    hit = Hit("a.txt", 0.03, "", "A Ship in the 船 harbour. Shipyards.", 0.6, ["ships", "船"])
    answer = Answer("query", "hybrid", [hit], 1.0, 1.0, "cosine", ["ships"], "english")
    marked = "A \033[1mShip\033[0m in the \033[1m船\033[0m harbour. Shipyards."
    assert marked in answer.lines(Style(100, has_marks=True))[-1]
    assert "\033" not in "".join(answer.lines())


def test_many_pairs_are_counted_and_some_shown():
    pairs = [Pair("a", f"b{number}", 0.99, 0.5, "First", "b0") for number in range(SHOWN_PAIRS + 7)]
    lines = Duplicates(0.9, pairs).lines()
    assert lines[:3] == ["similarity 0.990, 50 % same wording:", "     First  [a]", "     b0"]
    assert len(lines) == 3 * SHOWN_PAIRS + 1
    assert lines[-1].startswith(f"{SHOWN_PAIRS + 7} pairs of documents with a similarity of 0.9 or more; not shown, ")
    assert lines[-1].endswith(": 7.")
    one = Duplicates(0.9, [Pair("a", "b", 1.0, 1.0)]).lines()
    assert ("same text" in one[0], one[-1]) == (True, "1 pair of documents with a similarity of 0.9 or more.")


def test_a_group_has_its_words_and_first_documents():
    group = Group(1200, ["harbour", "ship"], ["a", "b", "c", "d", "e"], ["Ship", "Ship", "", "Boat", "Sea"])
    assert Clusters([group]).lines() == [
        "1,200 documents: harbour, ship",
        "     Ship  [a]",
        "     c",
        "     Boat  [d]",
    ]
    assert Clusters([Group(1, [], ["a"], [""])]).lines()[0].startswith("1 document: (no word")


SENTENCES = "Title of it. Nothing is here. A ship is in the harbour. Anchors are heavy."


@pytest.mark.parametrize(
    ("passage", "title", "words", "characters", "expected"),
    [
        (SENTENCES, "Another title", [], 100, SENTENCES),
        (SENTENCES, "Another title", ["ship"], 100, SENTENCES),
        (SENTENCES, "Another title", ["ship"], 20, "… A ship is in the harbour. Anchors are heavy."),
        (SENTENCES, "Another title", ["ship", "anchor"], 46, "… A ship is in the harbour. Anchors are heavy."),
        (SENTENCES, "Another title", ["anchor"], 20, "… Anchors are heavy."),
        (SENTENCES, "Title of it.", [], 100, SENTENCES.removeprefix("Title of it. ")),
        ("Title of it.", "Title of it.", [], 100, "Title of it."),
        ("See Also --------\nload : it ---x", "Title", [], 100, "See Also load : it ---x"),
        ("", "Title", ["ship"], 100, ""),
    ],
)
def test_a_passage_is_shown_from_the_sentence_with_most_words_within_reach(
    passage, title, words, characters, expected
):
    assert shown_part(passage, title, {*words}, Stems(), characters) == expected


MARKDOWN = [
    (
        '# Load it\n\nUse **both** `a_b` and [the *page*](http://x.y/z_(w) "T").',
        "Load it Use both a_b and the *page*.",
    ),
    ("![A chart](a.png) [![Tests](b.svg)](https://c) It is.", "A chart Tests It is."),
    ("Two things:\n\n- one\n- two - 3\n\nEnd.", "Two things: one · two - 3 End."),
    ("* one\n* two\n\nIt is said:\n\n> Said.\n> Again.\n\n## Next", "one · two It is said: Said. Again. Next"),
    ("| a | b |\n|---|:-:|\n| 1 | |", "a · b · 1"),
    (
        "```python\nf(*args, **kwargs)  # a\n```\n**One. Two.** Three.",
        "python f(*args, **kwargs) # a One. Two. Three.",
    ),
    ("``code with ` and **x**`` stays.", "code with ` and **x** stays."),
]
PLAIN = (
    "C# and C++, snake_case, __init__, *args, **kwargs, 2 * 3, x**2 + y**2, a | b, 5 > 3, no # 5, a[i](k), [1] (2) - a"
)


@pytest.mark.parametrize(("text", "expected"), [*MARKDOWN, (PLAIN, PLAIN)])
def test_a_passage_is_shown_without_marks_of_markdown(text, expected):
    (passage,) = to_passages(text, 100)
    assert shown_part(passage.text, "Title", set(), Stems(), 200) == expected
