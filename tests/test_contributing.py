"""The tree of CONTRIBUTING.md names every folder and script, on the floor that the layout gives it."""

import re
from pathlib import Path

from tests.test_layout import FLOORS, SCRIPTS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def tree():
    """The lines of the tree: each path, and the floor that the page gives it, None where it gives none."""
    section = PAGE.partition("## The tree\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    ( *)(\S+) +(?:floor (\d): )?\S.*$", section, flags=re.MULTILINE)
    assert len(lines) <= 60
    floors, folder = {}, ""
    for indent, name, floor in lines:
        folder = folder if indent else ""
        floors[folder + name] = int(floor) if floor else None
        folder = name if name.endswith("/") and not indent else folder
    return floors


def test_the_tree_has_the_floors_of_the_layout():
    floors = {path.strip("/").removesuffix(".py").replace("/", "."): floor for path, floor in tree().items()}
    assert {room: floors[room] for room in FLOORS} == FLOORS
    assert [floor for floor in floors.values() if floor is not None] == sorted(FLOORS.values(), reverse=True)
    assert set(SCRIPTS) < set(floors)
