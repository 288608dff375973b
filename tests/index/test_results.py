"""The lines of a result that people read."""

from dataclasses import asdict

from docsplit.index.index import Hit
from docsplit.index.overview import Group, Pair
from docsplit.index.results import PASSAGE_LINES, SHOWN_PAIRS, Added, Answer, Clusters, Deleted, Duplicates, Info


def test_counts_are_in_one_line():
    assert Deleted(1234).lines() == ["deleted: 1,234"]
    added = Added(documents=5, passages=1000, empty=1, replaced=2, unchanged=3)
    assert added.lines() == ["documents: 5, passages: 1,000, empty: 1, replaced: 2, unchanged: 3"]


def test_an_index_is_described_in_one_line_or_two():
    assert Info(1234, 5678, "a/b", None).lines() == ["documents: 1,234, passages: 5,678, encoder: a/b"]
    assert Info(1, 2, "a/b", "Documents carry words.").lines()[1:] == ["Documents carry words."]


def test_hits_fit_the_terminal_whatever_their_length(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    hits = [Hit("a.txt", 0.5, "", "Short."), Hit("b.txt", 0.25, "t" * 200, "word " * 200), Hit("c", 0.125, "c", None)]
    lines = Answer("query", "hybrid", hits, 1.0, 1.0).lines()
    assert lines[:2] == ["  1  0.5000  [a.txt]", "     Short."]
    assert lines[2].endswith("t…")
    assert lines[3 + PASSAGE_LINES :] == ["  3  0.1250  c[c]"]
    assert max(map(len, lines)) <= 60
    assert lines[2 + PASSAGE_LINES].endswith(" …")
    assert Answer("query", "bm25", [], 1.0, 1.0).lines() == ["Nothing was found."]


def test_many_pairs_are_counted_and_some_shown():
    pairs = [Pair("a", f"b{number}", 0.99, 0.5) for number in range(SHOWN_PAIRS + 7)]
    lines = Duplicates(0.9, pairs).lines()
    assert lines[0] == "0.990   50% of the words  a  =  b0"
    assert len(lines) == SHOWN_PAIRS + 1
    assert lines[-1] == f"{SHOWN_PAIRS + 7} pairs, 7 more than shown: --json has all."
    assert Duplicates(0.9, pairs[:1]).lines()[-1] == "1 pairs."


def test_a_group_has_its_words_and_first_ids():
    clusters = Clusters([Group(1200, ["harbour", "ship"], ["a", "b", "c", "d"])])
    assert clusters.lines() == [" 1,200  harbour, ship", "        a  b  c"]
    assert asdict(clusters) == {"rows": [{"size": 1200, "words": ["harbour", "ship"], "ids": ["a", "b", "c", "d"]}]}
