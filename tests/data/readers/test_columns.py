"""The text of a row. Sections and paragraphs are tested where `add_text` joins them, in test_corpora.py."""

import pytest

from docsplit.data.passages import SECTION_BREAK
from docsplit.data.readers.columns import check_text_column, join_paragraphs, join_sections, text_of_row


def test_a_text_is_a_string_or_paragraphs_or_sections():
    sections = [{"heading": "Sails", "text": "Torn."}, {"heading": "Ropes", "text": "Tarred."}]
    joined = f"Sails\n\nTorn.\n\n{SECTION_BREAK}Ropes\n\nTarred."
    assert text_of_row({"body": "A ship.", "sections": sections}, "body") == "A ship."
    assert text_of_row({"body": ["A ship.", "It sank."]}, "body") == "A ship.\nIt sank."
    assert text_of_row({"sections": sections}, "body") == joined == join_sections({"sections": sections}, "x")["x"]
    assert text_of_row({"body": 7}, "body") is None is join_paragraphs(["a", None])


def test_a_missing_column_names_those_there_are():
    check_text_column(["body"], "body")
    check_text_column(["sections"], "body")
    with pytest.raises(ValueError, match=r"--text_column is 'text', but the columns are \['body'\]"):
        check_text_column(["body"], "text")


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        (5, ""),
        ("A ship.", "A ship."),
        ([5, None, [1], "A ship."], "A ship."),
        ([{"heading": 5, "text": "A ship."}], "A ship."),
        ([{"heading": None, "text": ["A ship.", "It sank."]}], "A ship.\nIt sank."),
        ({"heading": 5, "text": ["A ship."]}, "A ship."),
        ({"heading": 5}, ""),
        ({}, ""),
    ],
)
def test_sections_that_are_none_are_no_text(sections, text):
    assert text_of_row({"sections": sections}, "body") == text
    assert text_of_row({}, "body") == ""
