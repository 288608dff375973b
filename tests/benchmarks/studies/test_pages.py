"""Each study has a page of the same parts, and each decimal fraction that the pages tell is one that was measured.

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
ELSEWHERE = {"adaptation": "adaptation.md"}  # studies whose page is one of docs/
COMMANDS = {"reproduction": "python reproduce.py recipes/reproduction/small.yaml"}  # of studies without a report.main
PARTS = ["Setup", "What was measured", "What it says", "Not shown", "Commands"]
MOST_LINES, MOST_WORDS = 120, 1350  # of the summary: about two printed pages
DECIMAL = r"[-+]?\d+\.\d+"
INTERVAL = re.compile(rf"\[({DECIMAL}), ({DECIMAL})\]")
TOLD = re.compile(rf"{INTERVAL.pattern}|(?<![\w.])({DECIMAL})(?![\w.]*\d)")


def command_of(study: str) -> str:
    """Return the command that makes a study's report."""
    return COMMANDS.get(study, f"python -m benchmarks.studies.{study}.report")


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


def rounded(value: float, number: str) -> bool:
    """Return whether a value is a printed number, but for its sign."""
    digits = len(number.partition(".")[2])
    return abs(abs(value) - abs(float(number))) <= 0.5000001 * 10**-digits


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
            wrong += [] if any(rounded(value, number) for value in known) else [number]
        else:
            either_way = ([before, float(low), float(high)], [-before, -float(high), -float(low)])
            if not any(row[at : at + 3] in either_way for row in rows for at in range(len(row))):
                wrong.append(f"{before} {told[0]}")
    return wrong


def test_each_study_has_a_page_and_each_page_a_study():
    studies = {path.parent.name for path in (ROOT / "benchmarks" / "studies").glob("*/*.py")}
    assert {page.stem for page in PAGES} | ELSEWHERE.keys() == studies
    assert not {page.stem for page in PAGES} & ELSEWHERE.keys()
    for study, page in ELSEWHERE.items():
        assert command_of(study) in (ROOT / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_a_study_asks_answers_and_says_what_is_not_shown(page):
    text = page.read_text(encoding="utf-8")
    before, *_ = text.partition("\n## ")
    assert 0 < before.index("**Question.**") < before.index("**Answer.**")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == PARTS
    assert command_of(page.stem) in text.partition("## Commands")[2]
    assert f"](studies/{page.name})" in SUMMARY.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_study_tells_what_was_measured(page):
    files = sources(page)
    assert {path.suffix for path in files} == {".md", ".json"}
    told = [unit for unit, _ in units(page) if TOLD.search(unit)]
    assert told
    assert {unit: wrong for unit in told if (wrong := untold(unit, files))} == {}


def untold_by_pages(unit: str, files: list[Path]) -> list[str]:
    """Return the decimal fractions and intervals of a text that no page prints."""
    told = re.findall(rf"\[{DECIMAL}, {DECIMAL}\]|{DECIMAL}(?: ± {DECIMAL})?", unit.replace("+", ""))
    text = "".join(path.read_text(encoding="utf-8") for path in files).replace("+", "")
    return [number for number in told if not re.search(rf"(?<![\d.-]){re.escape(number)}(?!\d)", text)]


def test_the_summary_tells_what_the_pages_tell():
    told = [(unit, files) for unit, files in units(SUMMARY) if TOLD.search(unit)]
    assert len(told) > 10
    assert {unit: wrong for unit, files in told if (wrong := untold_by_pages(unit, files))} == {}


def test_the_summary_is_short():
    text = SUMMARY.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert len(re.findall(r"\w[\w.'-]*", re.sub(r"\]\([^)]*\)|<!--.*?-->", "", text))) <= MOST_WORDS


def test_what_nobody_measured_is_seen(tmp_path):
    results = tmp_path / "results.md"
    results.write_text("| A - B | -2.2 | -3.8 to -0.8 |\n| A - C | +1.4 | +0.6 to +2.3 |\n")
    assert untold("B is ahead by 2.2 points of 20 [0.8, 3.8].", [results]) == []
    for wrong in ("2.3 points [0.8, 3.8]", "1.4 points [0.8, 3.8]", "2.2 points [0.8, 3.7]", "-2.2 points [0.8, 3.8]"):
        assert len(untold(wrong, [results])) >= 1, wrong
    page = tmp_path / "page.md"
    page.write_text("It has 11.4 ± 0.3 and +0.2 [-3.0, +3.3].")
    assert untold_by_pages("11.4 ± 0.3 beside 0.2 [-3.0, 3.3]", [page]) == []
    for wrong in ("1.4", "11.4 ± 0.2", "[3.0, 3.3]", "[-3.0, 3.4]"):
        assert untold_by_pages(wrong, [page]) == [wrong]
    text = "Text 0.1.\n\n- A [1](page.md) 0.2\n- B 0.3\n\n| a [2](results.md) | 0.4 |\n"
    page.write_text(text + "\n<!-- from a.json -->\n\n| a |\n|---|\n| 0.5 |\n\n    code 0.6\n")
    found = {
        told[0]: [path.name for path in files] for unit, files in units(page) if (told := re.findall(r"0\.\d", unit))
    }
    assert found == {"0.1": ["page.md", "results.md"], "0.2": ["page.md"], "0.3": ["page.md", "results.md"],
                     "0.4": ["results.md"]}  # fmt: skip
