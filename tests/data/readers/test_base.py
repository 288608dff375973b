"""The line that counts what was skipped."""

from pathlib import Path

import pytest

from docsplit.data.readers.base import Problems, Skipped, Unreadable


def test_skipped_files_are_counted_by_kind_with_two_names_each():
    skipped = Skipped()
    for name in ("a.png", "b/c.png", "d.png"):
        skipped.add(".png", name)
    skipped.add("without suffix", "Makefile")
    skipped.add("without suffix", "LICENSE")
    line = "Skipped 5 files: 3 .png (a.png, b/c.png ...), 2 without suffix (Makefile, LICENSE)"
    assert skipped.sentence() == line
    one = Skipped()
    one.add(".pdf that cannot be converted", "a.pdf")
    assert one.sentence() == "Skipped 1 file: 1 .pdf that cannot be converted (a.pdf)"


def test_what_would_help_is_said_once():
    skipped = Skipped()
    for suffix in (".pdf", ".docx"):
        error = Unreadable.for_lack_of("something", "pip install something", Path(f"x/a{suffix}"))
        assert str(error) == f"x/a{suffix} needs something: pip install something"
        skipped.add(f"{suffix} {error.reason}", f"a{suffix}", error.remedy)
    assert skipped.sentence() == (
        "Skipped 2 files: 1 .pdf for lack of something (a.pdf), 1 .docx for lack of something (a.docx). "
        "To read more: pip install something"
    )


def test_an_unreadable_file_has_a_reason_and_a_message():
    error = Unreadable("that cannot be opened", "a.txt cannot be opened: no")
    assert (error.reason, str(error)) == ("that cannot be opened", "a.txt cannot be opened: no")
    assert isinstance(error, ValueError)


def test_problems_are_written_and_read_and_added_up():
    problems, other = Problems(), Problems()
    assert not problems.is_any
    problems.skip_row(".jsonl that are no JSON", "a.jsonl, line 2")
    problems.note("mended", "a.jsonl, line 5")
    other.skip_row(".jsonl that are no JSON", "b.jsonl, line 1")
    other.skip_file(".txt", "c.txt", Unreadable("that is not UTF-8", "...", "iconv", "c.txt at byte 7"))
    other.note("mended", "d.txt at byte 1")
    problems.merge(Problems.from_json(other.to_json()))
    assert problems.num_skipped == 3
    skipped, rows, mended = problems.warnings()
    assert skipped == "Skipped 1 file: 1 .txt that is not UTF-8 (c.txt at byte 7). To read more: iconv"
    assert rows == "Skipped 2 rows: 2 .jsonl that are no JSON (a.jsonl, line 2; b.jsonl, line 1)"
    assert mended.startswith("Texts with bytes that are no UTF-8: 2, the first is a.jsonl, line 5.")


def test_rows_of_tables_are_refused():
    problems = Problems(refuses_rows=True)
    with pytest.raises(Unreadable, match=r"^a\.jsonl, line 2 is no JSON: Expecting value$"):
        problems.skip_row(".jsonl that are no JSON", "a.jsonl, line 2", "Expecting value")
    with pytest.raises(Unreadable, match=r"^a\.csv, line 2 with more fields than the header: not read: 3 fields$"):
        problems.skip_row(".csv with more fields than the header", "a.csv, line 2", "3 fields")


def test_names_of_files_cannot_act_on_a_terminal():
    skipped = Skipped()
    skipped.add(".png", "a\x1b[2J\n.png")
    assert skipped.sentence() == r"Skipped 1 file: 1 .png (a\x1b[2J\n.png)"
