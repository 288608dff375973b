"""Read the text of a row: a string, a list of paragraphs, or sections; and single cells of tables."""

from collections.abc import Iterator
from typing import Any

from docsplit.data.passages import SECTION_BREAK
from docsplit.data.readers.decoding import without_surrogates
from docsplit.data.readers.files import printable
from docsplit.runtime.files import JsonObject


def check_text_column(columns: list[str], text_column: str) -> None:
    """Check that rows with these columns have a text, or sections in place of it.

    Raises:
        ValueError: naming the columns.
    """
    if text_column not in columns and "sections" not in columns:
        raise ValueError(f"--text_column is {text_column!r}, but the columns are {columns}: name one of them.")


def text_of_row(row: JsonObject, text_column: str) -> str | None:
    """Return the text of a row, joined from paragraphs or sections where it is not a string; None without one."""
    return join_paragraphs(row[text_column]) if text_column in row else join_sections(row, text_column)[text_column]


def join_paragraphs(value: Any) -> str | None:
    """Join a list of paragraphs by newlines; a string stays, and anything else is None."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def text_of_cell(value: Any, place: str) -> str:
    """Return a text, paragraphs of one, or a number, such as the title 1984, as a text; nothing is an empty text.

    Raises:
        ValueError: for anything else, naming the place.
    """
    if isinstance(value, int | float) and value == value:
        return str(value)
    text = "" if value is None else join_paragraphs(value)
    if text is None:
        raise ValueError(f"{place} is {value!r}, expected a text.")
    return without_surrogates(text)


def id_of_cell(value: Any, place: str) -> str:
    """Return an id that is a text or a whole number.

    Raises:
        ValueError: for anything else, naming the place.
    """
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f"{place} is {value!r}, expected a text or a whole number.")
    return printable(str(value))


def join_sections(row: JsonObject, text_column: str) -> dict[str, str]:
    """Join sections to one text. They are dicts, a dict of lists (older `datasets`) or strings.

    A `SECTION_BREAK` stands between sections; it is white space for all but the maker of passages. A heading without a
    text goes with the section after it. What is none of this is no text.
    """
    text, ends = "", False  # whether the last section is complete
    for heading, body in _sections_of(row):
        if content := "\n\n".join(part for part in (heading, body) if part):
            text += ("\n\n" if text else "") + (SECTION_BREAK if ends else "") + content
            ends = bool(body)
    return {text_column: text}


def headings_of(row: JsonObject) -> list[str]:
    """List the headings of a row's `sections`, without those that are empty."""
    return [heading for heading, _ in _sections_of(row) if heading]


def _sections_of(row: JsonObject) -> Iterator[tuple[str | None, str | None]]:
    """Yield heading and text of each section."""
    sections = row.get("sections") or []
    if isinstance(sections, dict):
        columns = {name: values for name, values in sections.items() if isinstance(values, list)}
        sections = [dict(zip(columns, values)) for values in zip(*columns.values())]
    for section in sections if isinstance(sections, list) else [sections]:
        parts = section if isinstance(section, dict) else {"text": section}
        yield join_paragraphs(parts.get("heading")), join_paragraphs(parts.get("text"))
