"""Each decimal fraction that the pages of studies tell is one that was measured.

A page of docs/studies tells what the files print that it links to or takes its tables from, docs/results.md what the
pages print that it links to. Tables under a marker are compared in tests/test_tables.py, row by row.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.test_tables import SCALES, TABLE, numbers

SUMMARY = ROOT / "docs" / "results.md"
PAGES = sorted((ROOT / "docs" / "studies").glob("*.md"))
DECIMAL = r"[-+]?\d+\.\d+"
TOLD = re.compile(rf"\[({DECIMAL}), ({DECIMAL})\]|(?<![\w.])({DECIMAL})(?![\w.]*\d)")


def units(page: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield (paragraph, item or row of a table; files that it links to, or else its part of the page).

    Code and tables below a marker are left out.
    """
    text = re.sub(r"```.*?```|(?:^    .*\n)+", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(rf"<!-- (?:from|not measured).*?-->\n\n{TABLE.pattern}", "", text, flags=re.MULTILINE)
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE):
        for unit in re.split(r"\n\n|\n(?=- |\|)", part):
            yield unit, linked(page, unit) or linked(page, part)


def linked(page: Path, text: str) -> list[Path]:
    """Return the Markdown and JSON files that a text links to."""
    paths = [page.parent / target for target in re.findall(r"\]\(([^)#:]+)", text)]
    return [path for path in paths if path.suffix in (".md", ".json")]


def sources(page: Path) -> list[Path]:
    """Return the results that a page of a study is about: what it links to, or its tables are from, outside docs/."""
    text = page.read_text(encoding="utf-8")
    marked = [name.strip() for names in re.findall(r"<!-- from ([^>]*?) -->", text) for name in names.split(",")]
    paths = {(page.parent / name).resolve() for name in marked} | {path.resolve() for path in linked(page, text)}
    return sorted(path for path in paths if (ROOT / "docs").resolve() not in path.parents)


def untold(unit: str, files: list[Path]) -> list[str]:
    """Return the decimal fractions of a text that no file has, and the intervals that no row has with their number."""
    texts = [path.read_text(encoding="utf-8") for path in files]
    rows = [[*map(float, re.findall(DECIMAL, line))] for text in texts for line in text.splitlines()]
    known = [number for row in rows for number in row]
    for path, text in zip(files, texts):
        if path.suffix == ".json" and not path.with_suffix(".md").exists():  # nothing printed in the units of a page
            known += [value * scale for _, value, _ in numbers(json.loads(text)) for scale in SCALES]
    wrong, before = [], 0.0
    for told in TOLD.finditer(unit):
        low, high, number = told.groups()
        if number is not None:
            before = float(number)
            step = 10 ** -len(number.partition(".")[2])
            wrong += [] if any(abs(abs(value) - abs(before)) <= 0.5000001 * step for value in known) else [number]
        else:
            either_way = ([before, float(low), float(high)], [-before, -float(high), -float(low)])
            if not any(row[at : at + 3] in either_way for row in rows for at in range(len(row))):
                wrong.append(f"{before} {told[0]}")
    return wrong


def untold_by_pages(unit: str, files: list[Path]) -> list[str]:
    """Return the decimal fractions and intervals of a text that no page prints."""
    told = re.findall(rf"\[{DECIMAL}, {DECIMAL}\]|{DECIMAL}(?: ± {DECIMAL})?", unit.replace("+", ""))
    text = "".join(path.read_text(encoding="utf-8") for path in files).replace("+", "")
    return [number for number in told if not re.search(rf"(?<![\d.-]){re.escape(number)}(?!\d)", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_study_tells_what_was_measured_and_where_its_code_is(page):
    text, files = page.read_text(encoding="utf-8"), sources(page)
    assert {path.suffix for path in files} == {".md", ".json"}
    assert 0 < text.index("**Question.**") < text.index("**Answer.**") < text.index("## Not shown")
    assert re.search(r"`16246b7`|^    python reproduce\.py ", text.partition("## Code")[2], flags=re.MULTILINE)
    told = [unit for unit, _ in units(page) if TOLD.search(unit)]
    assert told
    assert {unit: wrong for unit in told if (wrong := untold(unit, files))} == {}


def test_the_summary_tells_what_the_pages_tell():
    told = [(unit, files) for unit, files in units(SUMMARY) if TOLD.search(unit)]
    assert len(told) > 10
    assert {unit: wrong for unit, files in told if (wrong := untold_by_pages(unit, files))} == {}
