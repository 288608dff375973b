"""What the cards of untrained encoders are made of: trainings of a recipe, its settings' comments, open questions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.studies.reproduction.costs import launch_of, options_of, processes_of
from benchmarks.studies.reproduction.plan import Plan, training_group
from docsplit.runtime.files import ROOT

SOURCES = re.compile(r'Values marked "paper" are from (.*?); values without a source are our choice')


@dataclass(frozen=True)
class Training:
    """A method that a card is about, as the recipe trains it."""

    name: str
    method: Mapping[str, Any]
    options: Mapping[str, Any]  # those of its recipe included
    start: str  # on the Hub
    longformer: str | None  # the method that makes a Longformer of the start, if one does
    conversion: Mapping[str, Any]  # and its options
    processes: int
    seeds: int
    cells: int  # of one seed, its training among them
    train_hours: float  # of one seed
    measure_hours: float  # likewise, of all that is measured

    @property
    def recipe(self) -> str:
        """Return the file of its settings."""
        return str(self.method["recipe"])

    @property
    def hours(self) -> float:
        """Return the hours of all seeds."""
        return self.seeds * (self.train_hours + self.measure_hours)


@dataclass(frozen=True)
class Setting:
    """A setting of a recipe, and what its comments say."""

    name: str
    value: Any
    text: str  # of the value, as it is written
    source: str  # the comment behind it
    note: str  # the comment above it; the first one of a recipe is about all


def settings_of(recipe: Path) -> list[Setting]:
    """Read the settings of a recipe in their order, each with its comments."""
    settings, above = [], list[str]()
    for line in recipe.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            above.append(line.removeprefix("#").strip())
            continue
        if line.strip():
            (name, value) = next(iter(yaml.safe_load(line).items()))
            text, _, source = line.removeprefix(f"{name}:").partition(" # ")
            settings.append(Setting(name, value, text.strip(), source.strip(), " ".join(above) if settings else ""))
        above = []
    return settings


def where_from(recipe: Path) -> str:
    """Return the sections of the paper that a recipe's settings are from, as its first comment names them.

    Raises:
        ValueError: if it names none.
    """
    lines = recipe.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    if (found := SOURCES.search(comment)) is None:
        raise ValueError(f"{recipe} does not say where its values are from: expected {SOURCES.pattern!r}.")
    return found[1]


def decisions(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return what docs/paper_map.md decides of each open question, as Markdown.

    Raises:
        ValueError: if there is no such question.
    """
    page = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8").partition("\n| open | decided |\n")[2]
    known = dict(line.strip("| ").split(" | ", 1) for line in page.splitlines() if line.startswith("| "))
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"docs/paper_map.md has no open question {', '.join(unknown)}.")
    return [(name, known[name]) for name in names]


def training_of(plan: Plan, name: str) -> Training:
    """Return a method of the recipe as it is trained."""
    recipe, method = plan.recipe, plan.recipe["methods"][name]
    origin = recipe["methods"].get(method["from"])
    options = options_of({"recipe": method["recipe"], "options": method["options"]})
    measured = [group for (_, _, one), group in plan.evaluated.items() if one == name]
    return Training(
        name,
        method,
        options | {"corpus": method.get("corpus", recipe["corpus"])},
        method["from"] if origin is None else origin["from"],
        None if origin is None else method["from"],
        {} if origin is None else origin["convert"],
        processes_of(launch_of(recipe, method)),
        len(method.get("seeds") or recipe["seeds"]),
        1 + len(measured),
        plan.costs[training_group(name)].hours(recipe["speed"]),
        sum(plan.costs[group].hours(recipe["speed"]) for group in measured),
    )


def patterns(name: str) -> list[str]:
    """Return what `reproduce.py --only` takes to train a method, and to measure it."""
    return [f"{training_group(name)} seed", f": {name} seed"]
