"""Every measured table of README, docs and cards is what a committed file of results says.

Above a table stands `<!-- from FILE, FILE -->`, or `<!-- not measured here: REASON -->`; without, a card's results lie
in its folder, and those that cards share in `SHARED`. Each number of the table must be one of the files', rounded to
the digits that are shown, of the row's encoder where the file has it; with a spread, the two must stand together.
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.studies.search.report import PARTS
from tests.processes import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "studies").glob("*.md")),
    *sorted((ROOT / "model_cards").glob("*/README.md")),
]
SHARED = ROOT / "benchmarks" / "results" / "small_encoders"
TABLE = re.compile(r"((?:^\|.*\n)+)", re.MULTILINE)
MARKER = re.compile(r"<!-- (from|not measured here:) ([^>]*?) -->\s*$")
NUMERIC_CELL = re.compile(r"[-\d.,±%\[\] ]*\d[-\d.,±%\[\] ]*([GM]B|s|min|h|million)?")
NUMBER = re.compile(r"(?<![\w.])(-?\d[\d,]*(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?(?![\w.]*\d)")
SCALES = (1, 100, 1e-3, 1e-6, 1e-9)  # as it is; percent; thousands, millions, GB
LABELS = ("encoder", "row", "method", "name")


def tables(path: Path) -> Iterator[tuple[str, str]]:
    """(what stands before it, the table) of each table that has a cell of decimal fractions."""
    text = path.read_text(encoding="utf-8")
    for table in TABLE.finditer(text):
        if any("." in cell for _, cells in rows(table[0]) for cell in cells):
            yield text[: table.start()], table[0]


def rows(table: str) -> Iterator[tuple[str, list[str]]]:
    """(first cell, those of the others that are nothing but numbers) of each row below the heading."""
    for line in table.splitlines()[2:]:
        first, *cells = (cell.strip().replace("**", "") for cell in line.strip().strip("|").split("|"))
        yield first, [cell for cell in cells if NUMERIC_CELL.fullmatch(cell)]


def numbers(value, label=None) -> Iterator[tuple[str | None, float, float | None]]:
    """(label of its row, number, its spread) of all that a file holds."""
    if isinstance(value, dict):
        label = next((str(value[name]) for name in LABELS if isinstance(value.get(name), str)), label)
        for name, item in value.items():
            base = name.removesuffix("_mean") if name != "mean" else ""
            spread = value.get("std") if name in ("mean", "value", "ours") else value.get(f"{base}_std")
            if isinstance(item, int | float) and not isinstance(item, bool):
                yield label, item, None
                if isinstance(spread, int | float):
                    yield label, item, spread
            else:
                yield from numbers(item, label)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item, label)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield label, value, None


def over_seeds(content) -> list[dict]:
    """Return mean and deviation of a study's rows that differ in their seed alone."""
    groups = defaultdict(dict)
    for row in content.get("rows", []) if isinstance(content, dict) and "cells" in content else []:
        name = tuple(str(row.get(field)) for field in ("group", "task", "data", "metric", "method", "read", "encoder"))
        groups[name][row.get("seed")] = row.get("value")
    return [
        {"method": name[4], "mean": statistics.mean(values), "std": statistics.stdev(values)}
        for name, values in ((name, group.values()) for name, group in groups.items())
        if len(values) > 1 and all(isinstance(value, int | float) for value in values)
    ]


def over_sets(content) -> list[float]:
    """Return the means of a study's rows over its sets, and over parts of them, of each encoder, metric and method."""
    groups = defaultdict(list)
    for row in content.get("rows", []) if isinstance(content, dict) and "cells" in content else []:
        name = tuple(str(row.get(field)) for field in ("encoder", "task", "metric", "method"))
        groups[name].append(row["value"])
        for about, part in PARTS.items():
            if row.get("data") in part and about:
                groups[(*name, about)].append(row["value"])
    return [statistics.mean(values) for values in groups.values() if len(values) > 1]


def plain(label: str) -> str:
    """A label without Markdown, as it is compared: of `NAME=paths` the name."""
    return re.sub(r"[*`\[\]]|\(.*\)", "", label).partition("=")[0].strip().lower()


def shows(shown: str, value: float) -> bool:
    """Whether a printed number is a value, in one of the units."""
    digits = len(shown.partition(".")[2])
    number = float(shown.replace(",", ""))
    return any(abs(number - value * scale) <= 0.5000001 * 10**-digits for scale in SCALES)


def unexplained(table: str, contents: list) -> list[str]:
    """Numbers of a table, below its heading, that the files do not hold."""
    known = [(plain(label) if label else None, *rest) for content in contents for label, *rest in numbers(content)]
    labels = {label for label, *_ in known}
    wrong = []
    for first, cells in rows(table):
        of_encoder = [entry for entry in known if entry[0] == plain(first)] if plain(first) in labels else known
        for cell in cells:
            for shown, spread in NUMBER.findall(cell):
                if not any(
                    shows(shown, value) and (not spread or (std is not None and shows(spread, std)))
                    for _, value, std in of_encoder
                ):
                    wrong.append(f"{first}: {cell}")
    return wrong


ALL = [(path.relative_to(ROOT).as_posix(), number) for path in PAGES for number, _ in enumerate(tables(path))]


@pytest.mark.parametrize(("page", "number"), ALL)
def test_a_measured_table_is_what_its_results_say(page, number):
    path = ROOT / page
    before, table = list(tables(path))[number]
    files, marker = [*path.parent.rglob("*.json"), *SHARED.glob("*.json")], MARKER.search(before)
    assert marker or "model_cards" in path.parts, f"no marker above this table:\n{table}"
    if marker:
        if marker[1] != "from":
            return
        files = [path.parent / name.strip() for name in marker[2].split(",")]
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert unexplained(table, [*contents, *map(over_seeds, contents), *map(over_sets, contents)]) == []


def test_the_comparison_sees_a_wrong_digit_a_wrong_spread_and_a_wrong_row():
    results = [
        {"encoder": "A=x,y", "accuracy_mean": 0.3456, "accuracy_std": 0.0123, "test_documents": 777},
        {"encoder": "B", "accuracy_mean": 0.4, "accuracy_std": 0.02},
    ]
    table = "| | accuracy | of |\n|---|---|---|\n| A | **34.6 ± 1.2** | 777 |\n| B | 40.0 ± 2.0 | |\n"
    assert unexplained(table, [{"rows": results}]) == []
    for right, wrong in (("34.6", "34.7"), ("± 1.2", "± 1.3"), ("34.6 ± 1.2", "40.0 ± 2.0"), ("777", "778")):
        assert unexplained(table.replace(right, wrong), [{"rows": results}]) != [], wrong
    assert len(ALL) > 10
    studies = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs" / "studies").glob("*.md")}
    assert len(studies) > 5
    assert studies <= {page for page, _ in ALL}  # each has a measured table
