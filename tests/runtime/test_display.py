"""Names of documents, and marks."""

import io
import json
import logging

import pytest

from docsplit.runtime.command import BOLD, DIM, RESET, Style, as_command, as_json, shown, shown_lines


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


ACTING = [chr(number) for number in (*range(32), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F)]
ACTING += [chr(number) for number in (*range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xD800, 0xDFFF)]
HARMLESS = "Größe, 大きさ, حجم, क्षत्रिय, 👩\u200d👩\u200d👧, a\u00a0b \\x1b"


def test_nothing_that_acts_on_a_terminal_reaches_it():
    for character in ACTING:
        text = f"a{character}b"
        assert shown(text) == f"a{character.encode('unicode_escape').decode()}b"
        assert shown_lines(text) == (text if character in "\t\n" else shown(text))
        line = as_json({text: [text]})
        assert line.isprintable()
        assert json.loads(line) == {text: [text]}
    for write in (shown, shown_lines):
        assert write(HARMLESS) == HARMLESS
    assert as_json(HARMLESS) == json.dumps(HARMLESS, ensure_ascii=False)


def test_ids_and_titles_are_harmless_in_a_line():
    title, document_id = "A \x1b[31mred\x1b[0m\n ship \u202e", "a\x1b]0;x\x07\n.txt"
    assert Style(99).document(document_id, title) == r"A \x1b[31mred\x1b[0m ship \u202e  [a\x1b]0;x\x07\n.txt]"
    assert Style(99).document(document_id, "") == r"a\x1b]0;x\x07\n.txt"


def test_logs_and_errors_of_a_command_are_harmless(capsys, monkeypatch):
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)  # as it was, after the test
    handler = logging.StreamHandler(stream := io.StringIO())
    logging.getLogger("documents").addHandler(handler)

    def main():
        logging.getLogger("documents").warning("%s is\nskipped: %d %%", "a\x1b[2J.txt", 5)
        logging.getLogger("documents").warning("100 % of \x9b2J")
        raise ValueError("b\x1b[2J.txt is\nno text")

    with pytest.raises(SystemExit):
        as_command(main)()
    logging.getLogger("documents").removeHandler(handler)
    assert stream.getvalue() == "a\\x1b[2J.txt is\nskipped: 5 %\n100 % of \\x9b2J\n"
    assert capsys.readouterr().err == "error: b\\x1b[2J.txt is\nno text\n"
