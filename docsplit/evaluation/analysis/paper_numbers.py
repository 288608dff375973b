"""Numbers that the papers print, from docs/papers, to stand beside those measured here."""

import json
from pathlib import Path
from typing import Any

COLUMN = "paper (other weights and data)"
DOCSPLIT, GRAPH = "docsplit", "graph_clustering"


def read_paper(name: str) -> dict[str, Any]:
    """docs/papers/NAME.json, of a clone or of an installation."""
    package = Path(__file__).parents[2]
    folder = package / "papers"  # of an installation; those of a clone lie among its documents
    folder = folder if folder.is_dir() else package.parent / "docs" / "papers"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def set_named(paper: dict[str, Any], data: str) -> str | None:
    """Return the paper's name of a data set, if what results call the data has one of its spellings in it."""
    plain = "".join(letter for letter in data.lower() if letter.isalnum())
    found = [name for name, spellings in paper["names"].items() if any(one in plain for one in spellings)]
    return found[0] if found else None


def beside(paper: dict[str, Any], table: str, column: str, data: str) -> str:
    """Return the number of the same data set, else the range over those in the table: `1.06 to 1.12 (5 sets)`."""
    content = paper["tables"][table]
    position = content["columns"].index(column)
    values = {name: row[position] for name, row in content["rows"].items()}
    if (own := set_named(paper, data)) in values:
        return f"{values[own]:.2f}"
    return f"{min(values.values()):.2f} to {max(values.values()):.2f} ({len(values)} sets)"
