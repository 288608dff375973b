"""Cards of encoders that nobody has trained: made of recipes and docs/papers, and their commands work."""

import json
import re

import pytest

from benchmarks.studies.reproduction.cards import (
    CARDS,
    RECIPE,
    card_text,
    write_cards,
)
from benchmarks.studies.reproduction.plan import make_plan, read_recipe
from tests.processes import ROOT


@pytest.fixture(scope="module")
def plan():
    return make_plan(read_recipe(ROOT / RECIPE), with_all_data=True)


@pytest.fixture(scope="module")
def texts(plan):
    return {card.name: card_text(plan, card) for card in CARDS}


def test_the_committed_cards_are_what_the_command_writes(tmp_path):
    for path in write_cards(tmp_path):
        committed = ROOT / "model_cards" / path.parent.name / "README.md"
        assert committed.read_bytes() == path.read_bytes(), "python -m benchmarks.studies.reproduction.cards"
    untrained = {path.parent.name for path in (ROOT / "model_cards").glob("*/README.md")
                 if "**Not trained yet.**" in path.read_text()}  # fmt: skip
    assert untrained == {card.name for card in CARDS}


def tables(text):
    """(paper, number, part, rows) of each table of figures in a card; a row is its name and its cells."""
    title, source = (
        r"^\*\*[^*]*?, Table (\w+)(?:, ([^*]*))?\*\*: .*",
        r"<!-- from \.\./\.\./docs/papers/(\w+)\.json -->",
    )
    found = re.findall(rf"{title}\n\n{source}\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    for number, part, paper, table in found:
        rows = [[cell.strip().strip("*") for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]
        yield paper, number, part, {name: cells for name, *cells in rows}


@pytest.mark.parametrize(("card", "count"), zip(CARDS, (3, 3, 5, 5)), ids=[card.name for card in CARDS])
def test_figures_are_those_of_docs_papers_digit_for_digit(card, count, texts):
    shown = list(tables(texts[card.name]))
    assert len(shown) == count == texts[card.name].count("\n| paper (other weights and data) ")
    for paper, number, part, rows in shown:
        contents = json.loads((ROOT / "docs" / "papers" / f"{paper}.json").read_text(), parse_float=str, parse_int=str)
        (table,) = [one for one in contents["tables"] if (one["table"], one.get("part", "")) == (number, part)]
        assert rows == {name: [value or "" for value in values] for name, values in table["rows"].items()}
