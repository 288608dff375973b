"""The line that counts what was skipped."""

from pathlib import Path

from docsplit.data.readers.base import Skipped, Unreadable


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
