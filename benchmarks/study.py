"""A study: a YAML of groups of cells, and where they stand. What a YAML may say is told by `benchmarks.cells`."""

import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from docsplit.runtime.files import ROOT, hash_of_code, versions, write_text

RECORD = "cell.json"  # in a cell's folder, once it is finished
FIELDS = ("data", "task", "method", "seed")  # of each row, beside cell, metric, value and seconds
OF_A_GROUP = {"grid", "cases", "code", "data", "fields", "steps", "measures", "selection", "from"}
OF_A_STEP = {"script", "module", "recipe", "options", "again"}


class _Left(dict[str, Any]):
    """Variables; a name that there is no value for stays as it is written."""

    def __missing__(self, name: str) -> str:
        return "{" + name + "}"


def resolve(value: Any, variables: Mapping[str, Any]) -> Any:
    """Put variables into all strings of a value; "{name}" alone becomes what the variable is, a mapping say."""
    if isinstance(value, dict):
        return {name: resolve(one, variables) for name, one in value.items()}
    if isinstance(value, list):
        return [resolve(one, variables) for one in value]
    if not isinstance(value, str):
        return value
    parts = list(Formatter().parse(value))
    if len(parts) == 1 and not parts[0][0] and parts[0][1] in variables:
        found = variables[str(parts[0][1])]
        return resolve(found, {name: one for name, one in variables.items() if name != parts[0][1]})
    return value.format_map(_Left(variables))


@dataclass
class Cell:
    """One thing to run and measure; all but the paths of --set and `{folder}` is resolved."""

    group: str
    name: str
    key: str
    variables: dict[str, Any]
    fields: dict[str, Any]
    steps: list[dict[str, Any]]
    measures: list[dict[str, Any]]


class Study:
    """The cells of a YAML, and where they stand.

    Raises:
        ValueError: if the YAML says something that is not understood.
    """

    def __init__(self, path: Path, work_dir: Path, given: Mapping[str, Any]):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        groups = content["groups"].values()
        unknown = (
            set(content) - {"variables", "code", "groups"} | {name for one in groups for name in one} - OF_A_GROUP
        )
        if unknown := unknown | {name for one in groups for step in one["steps"] for name in step} - OF_A_STEP:
            raise ValueError(f"{path} has {', '.join(sorted(unknown))}, which a study does not know.")
        self.groups: dict[str, dict[str, Any]] = content["groups"]
        self.variables = content.get("variables", {}) | dict(given)
        self.paths = {
            name: str(Path(value).resolve())
            for name, value in given.items()
            if isinstance(value, str) and Path(value).exists()
        }
        self.work_dir, self.hashes = work_dir.resolve(), dict[str, str]()
        self.code: list[str] = content.get("code") or self._default_code()
        self.code_of = {name: hash_of_code(*self.code, *group.get("code", [])) for name, group in self.groups.items()}

    def _default_code(self) -> list[str]:
        steps = [step for group in self.groups.values() for step in group["steps"]]
        ours = {step.get("script") or step["module"].replace(".", "/") + ".py" for step in steps}
        ours = {name for name in ours if (ROOT / name).exists() and not Path(name).is_absolute()}
        return ["docsplit", *sorted(ours | {path.name for path in ROOT.glob("modeling_*.py")})]

    def cells(self) -> tuple[dict[str, Cell], dict[str, int]]:
        """Every cell that is known by now, by key, and how many more of each group wait for another one's."""
        cells: dict[str, Cell] = {}
        of_groups: dict[str, list[Cell]] = {}
        waiting: dict[str, int] = {}
        for name, group in self.groups.items():
            starts: list[dict[str, Any]] | None = [{}]
            if chosen := group.get("from"):
                if chosen["group"] not in of_groups | waiting:
                    raise ValueError(f"{name} is from {chosen['group']!r}, expected a group that stands above it.")
                starts = None if chosen["group"] in waiting else self._best(chosen, of_groups[chosen["group"]])
            grid = group.get("grid", {})
            combinations = [dict(zip(grid, values)) for values in product(*grid.values())]
            own = [combination | case for combination in combinations for case in group.get("cases", [{}])]
            if starts is None:
                waiting[name] = len(own) * group["from"].get("best", 1)
                continue
            of_groups[name] = [self._cell(name, start | variables) for start in starts for variables in own]
            for cell in of_groups[name]:
                cells.setdefault(cell.key, cell)
        return cells, waiting

    def _cell(self, group_name: str, variables: dict[str, Any]) -> Cell:
        group, known = self.groups[group_name], self.variables | variables
        # Folders and paths of this machine are left to the run: they are no part of the key.
        open_ = {name: value for name, value in known.items() if name not in self.paths}
        parts = {name: resolve(group.get(name, default), open_) for name, default in
                 (("steps", []), ("measures", []), ("fields", {}))}  # fmt: skip
        parts["fields"] = {name: parts["fields"].get(name, variables.get(name)) for name in FIELDS}
        for step in parts["steps"]:
            options = step.get("options", {})
            merged: dict[str, Any] = {}
            for one in options if isinstance(options, list) else [options]:
                if not isinstance(one, dict):
                    raise ValueError(f"{group_name}: {one!r} among the options of a step is no mapping.")
                merged |= one
            step["options"] = merged
        # "{model}" as data is a folder, or the name of something elsewhere, which stands among the options.
        files = [one for one in group.get("data", []) if one[1:-1] not in known or one[1:-1] in self.paths]
        data = [self._hash_of_data(pattern) for pattern in resolve(files, known | self.paths)]
        text = json.dumps([self.code_of[group_name], data, parts], sort_keys=True, default=str)
        key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        said = [f"{name}={value}" for name, value in variables.items() if not isinstance(value, dict | list)]
        return Cell(group_name, " ".join([group_name, *said]), key, variables, **parts)

    def _hash_of_data(self, pattern: str) -> str:
        """Of a file's contents, of all files in a folder, or of all that fit a pattern with *."""
        if pattern not in self.hashes:
            path = Path(pattern)
            found = path.parent.glob(path.name) if "*" in path.name else path.rglob("*") if path.is_dir() else [path]
            files = sorted(file for file in found if file.is_file())
            if not files:
                raise ValueError(f"There is no data file {pattern}: name the folder by --set.")
            contents = [(file.name, hashlib.blake2b(file.read_bytes()).hexdigest()) for file in files]
            self.hashes[pattern] = hashlib.blake2b(repr(contents).encode(), digest_size=8).hexdigest()
        return self.hashes[pattern]

    def _best(self, chosen: dict[str, Any], candidates: list[Cell]) -> list[dict[str, Any]] | None:
        """Variables of the best cells of a group; None as long as one is to do, or if none has a value."""
        selection, records = self.groups[chosen["group"]]["selection"], [self.record(cell) for cell in candidates]
        if any(record is None for record in records):
            return None
        sign = {"max": -1, "min": 1}[selection.get("mode", "max")]
        scored = []
        for order, (cell, record) in enumerate(zip(candidates, records)):
            values = [row["value"] for row in (record or {})["rows"] if row["metric"] == selection["metric"]]
            if values:
                scored.append((sign * statistics.mean(values), order, cell.variables))
        ordered = [variables for _, _, variables in sorted(scored, key=lambda one: one[:2])]
        return ordered[: chosen.get("best", 1)] or None

    def folder(self, cell: Cell) -> Path:
        """Where a cell's processes write."""
        return self.work_dir / cell.key

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """What a finished cell left, None if it is not finished."""
        path = self.folder(cell) / RECORD
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write(self, output: Path) -> list[dict[str, Any]]:
        """Put the records of all cells into one file; returns those that failed."""
        cells, waiting = self.cells()
        records = {key: record for key, cell in cells.items() if (record := self.record(cell))}
        results = {
            "versions": versions(),
            "cells": {key: {name: one for name, one in record.items() if name != "rows"}
                      for key, record in records.items()},
            "not_run": [cell.name for key, cell in cells.items() if key not in records],
            "waiting": waiting,
            "rows": [row for record in records.values() for row in record["rows"]],
        }  # fmt: skip
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, json.dumps(results, indent=1) + "\n")
        return [record for record in records.values() if record["status"] == "failed"]
