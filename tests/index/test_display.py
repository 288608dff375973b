"""Names of documents, marks, and the part of a passage that is shown."""

import io

import pytest

from docsplit.index.display import BOLD, DIM, RESET, Style, shown_part

SENTENCES = ["Title of it.", "Nothing is here.", "A ship is in the harbour.", "Anchors are heavy."]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_marks_are_for_terminals_that_want_them(monkeypatch):
    assert Style.of(Terminal()).has_marks
    assert not Style.of(io.StringIO()).has_marks
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert not Style.of(Terminal()).has_marks
    monkeypatch.setenv("COLUMNS", "7")
    assert Style.of(Terminal()).width == 40


def test_whole_words_are_marked_whatever_their_case():
    style = Style(has_marks=True)
    marked = style.mark("Ship, shipping; 船 ship", {"ship", "船"})
    assert marked == f"{BOLD}Ship{RESET}, shipping; {BOLD}船{RESET} {BOLD}ship{RESET}"
    assert Style().mark("Ship", {"ship"}) == "Ship"


def test_a_document_has_its_title_first_and_its_id_whole():
    style = Style(80)
    assert style.document("a.txt", "A ship", "  1  ") == "  1  A ship  [a.txt]"
    assert style.document("a.txt", "a.txt") == style.document("a.txt", "") == "a.txt"
    long = style.document("folder/a.txt", "t" * 100)
    assert len(long) == 80
    assert long.endswith("t…  [folder/a.txt]")
    assert style.document("i" * 60, "t" * 100).endswith(f"[{'i' * 60}]")
    assert Style(80, has_marks=True).document("a", "b") == f"{BOLD}b{RESET}  {DIM}[a]{RESET}"


@pytest.mark.parametrize(
    ("words", "characters", "first"),
    [([], 100, 0), (["ship"], 100, 0), (["ship"], 20, 2), (["ship", "anchors"], 46, 2), (["anchors"], 20, 3)],
)
def test_a_passage_is_shown_from_the_sentence_with_most_words_within_reach(words, characters, first):
    shown = shown_part(" ".join(SENTENCES), "Another title", words, characters)
    assert shown == ("… " if first else "") + " ".join(SENTENCES[first:])


def test_a_first_sentence_that_is_the_title_is_left_out():
    assert shown_part(" ".join(SENTENCES), "Title of it.", [], 100) == " ".join(SENTENCES[1:])
    assert shown_part("Title of it.", "Title of it.", [], 100) == "Title of it."
    assert shown_part("See Also --------\nload : it ---x", "Title", [], 100) == "See Also load : it ---x"
    assert shown_part("", "Title", ["ship"], 100) == ""
