"""Names of documents, and marks."""

import io

import pytest

from docsplit.runtime.display import BOLD, DIM, RESET, Style


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


def test_a_document_has_its_title_first_and_its_id_whole():
    style = Style(80)
    assert style.document("a.txt", "A ship", "  1  ") == "  1  A ship  [a.txt]"
    assert style.document("a.txt", "a.txt") == style.document("a.txt", "") == "a.txt"
    long = style.document("folder/a.txt", "t" * 100)
    assert len(long) == 80
    assert long.endswith("t…  [folder/a.txt]")
    assert style.document("i" * 60, "t" * 100).endswith(f"[{'i' * 60}]")
    assert Style(80, has_marks=True).document("a", "b") == f"{BOLD}b{RESET}  {DIM}[a]{RESET}"
