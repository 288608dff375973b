"""The text of a row. Sections and paragraphs are tested where `add_text` joins them, in test_corpora.py."""

import pytest

from docsplit.data.passages import SECTION_BREAK
from docsplit.data.readers.columns import (
    check_text_column,
    id_of_cell,
    join_paragraphs,
    join_sections,
    text_of_cell,
    text_of_row,
)


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


def test_cells_are_texts_ids_or_refused():
    cells = {1984: "1984", 1.5: "1.5", None: "", "a\ud800": "a ", "": ""}
    assert [text_of_cell(value, "") for value in cells] == [*cells.values()]
    assert text_of_cell(["a", "b"], "") == "a\nb"
    assert [id_of_cell(value, "") for value in (7, "0012", "a\ud800")] == ["7", "0012", r"a\ud800"]
    for value in ({}, [1], float("nan")):
        with pytest.raises(ValueError, match=r"a\.csv, row 1 is .*, expected a text"):
            text_of_cell(value, "a.csv, row 1")
    for value in (None, "", " ", 1.5, True, ["a"]):
        with pytest.raises(ValueError, match=r"a\.csv, row 1 is .*, expected a text or a whole number"):
            id_of_cell(value, "a.csv, row 1")
