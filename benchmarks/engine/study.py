"""A study: a YAML of groups of cells, and where they stand. `benchmarks.engine.cells` tells what a YAML may say."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from benchmarks.engine.results import Record, Results, read_results
from docsplit.runtime.files import ROOT, Damaged, hash_of_code, versions

RECORD = "cell.json"  # in a cell's folder, once it is finished
FIELDS = ("data", "task", "method", "seed")  # of each row, beside cell, metric, value and seconds
STUDY_WORDS = {"variables", "code", "groups"}
GROUP_WORDS = {"grid", "cases", "code", "data", "fields", "steps", "measures", "needs"}
STEP_WORDS = {"script", "module", "launch", "words", "recipe", "options", "again"}
Variables = dict[str, Any]
Group = dict[str, Any]  # as the YAML has it
Step = dict[str, Any]  # likewise, with one mapping of options


class _Left(Variables):
    """Variables; a name without a value stays as it is written."""

    def __missing__(self, name: str) -> str:
        return "{" + name + "}"


def resolve(value: Any, variables: Mapping[str, Any]) -> Any:
    """Put variables into all strings of a value; "{name}" alone becomes the variable itself, a mapping say."""
    if isinstance(value, dict):
        return {name: resolve(item, variables) for name, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, variables) for item in value]
    if not isinstance(value, str):
        return value
    parts = list(Formatter().parse(value))
    if len(parts) == 1 and not parts[0][0] and parts[0][1] in variables:
        name = str(parts[0][1])
        return resolve(variables[name], {other: item for other, item in variables.items() if other != name})
    return value.format_map(_Left(variables))


@dataclass
class Cell:
    """A few steps to run and measure, resolved but for `{folder}` and paths that options give."""

    group: str
    name: str
    key: str  # of code, data and options
    content: str  # of data and options alone
    variables: Variables
    fields: Variables
    steps: list[Step]
    measures: list[Variables]
    needs: dict[str, "Cell"] = field(default_factory=dict)  # by the variable that is that cell's folder


class Study:
    """The cells of a YAML, and where they stand.

    Args:
        source: the YAML, or what one would hold.
        given: variables that win over those of the YAML; values that are paths stay out of the keys.
        results: written before, from which finished cells are known where their folders are lost.
        any_code: whether cells that other code ran count as finished too.
        elsewhere: results of a run elsewhere, of which the same holds.
        only: patterns of names; the cells that have none of them in their name, and that none of those needs, are left
            out. None: all are kept.

    Raises:
        ValueError: if the YAML says something that is not understood.
    """

    def __init__(
        self,
        source: Path | Mapping[str, Any],
        work_dir: Path,
        given: Mapping[str, Any],
        results: Path | None = None,
        any_code: bool = False,
        only: Sequence[str] | None = None,
        elsewhere: Path | None = None,
    ):
        before = [read_results(path) for path in (elsewhere, results) if path is not None and path.exists()]
        self.finished = {key: record for some in before for key, record in (some.apart | some.cells).items()}
        done = {record.content: record for record in self.finished.values() if record.status == "done"}
        self.of_any_code = done if any_code else {}
        content = yaml.safe_load(source.read_text(encoding="utf-8")) if isinstance(source, Path) else source
        if unknown := _unknown_words(content):
            named = source if isinstance(source, Path) else "A study"
            raise ValueError(f"{named} has {', '.join(sorted(unknown))}, which a study does not know.")
        self.groups: dict[str, Group] = content["groups"]
        self.variables: Variables = content.get("variables", {}) | dict(given)
        self.paths = {
            name: str(Path(value).resolve())
            for name, value in given.items()
            if isinstance(value, str) and Path(value).exists()
        }
        self.work_dir, self.hashes, self.damaged = work_dir.resolve(), dict[str, str](), set[Path]()
        self.only = only
        self.code: list[str] = content.get("code") or self._default_code()
        code = {name: (*self.code, *group.get("code", [])) for name, group in self.groups.items()}
        hashes = {names: hash_of_code(*names) for names in set(code.values())}
        self.code_of = {name: hashes[names] for name, names in code.items()}

    def _default_code(self) -> list[str]:
        steps = [step for group in self.groups.values() for step in group["steps"]]
        files = {step.get("script") or step["module"].replace(".", "/") + ".py" for step in steps}
        files = {name for name in files if (ROOT / name).exists() and not Path(name).is_absolute()}
        return ["docsplit", *sorted(files | {path.name for path in ROOT.glob("modeling_*.py")})]

    def cells(self) -> dict[str, Cell]:
        """Return the cells that `only` names and all that they need, by key, in their order."""
        cells = self.all_cells()
        if self.only is None:
            return cells
        chosen = [cell for cell in cells.values()
                  if any(some in cell.name or fnmatchcase(cell.name, f"*{some}*") for some in self.only)]  # fmt: skip
        kept = {cell.key for cell in chosen}
        while more := {other.key for key in kept for other in cells[key].needs.values()} - kept:
            kept |= more
        return {key: cell for key, cell in cells.items() if key in kept}

    def all_cells(self) -> dict[str, Cell]:
        """Return every cell by key, whatever `only` says."""
        cells: dict[str, Cell] = {}
        cells_of: dict[str, list[Cell]] = {}
        for name, group in self.groups.items():
            grid = group.get("grid", {})
            combinations = [dict(zip(grid, values)) for values in product(*grid.values())]
            variants = [combination | case for combination in combinations for case in group.get("cases", [{}])]
            cells_of[name] = [self._cell(name, each, self._needed(name, each, cells_of)) for each in variants]
            cells |= {cell.key: cell for cell in cells_of[name]}
        return cells

    def _needed(
        self, group_name: str, variables: Variables, cells_of: Mapping[str, Sequence[Cell]]
    ) -> dict[str, Cell]:
        """Find the cell of each group that this one needs: with the same values of what both have in their grids."""
        needed = {}
        for name, other in self.groups[group_name].get("needs", {}).items():
            both = self.groups[group_name].get("grid", {}).keys() & self.groups.get(other, {}).get("grid", {}).keys()
            fitting = [
                cell
                for cell in cells_of.get(other, [])
                if all(cell.variables[known] == variables[known] for known in both)
            ]
            if len(fitting) != 1:
                raise ValueError(
                    f"{group_name} needs {other!r}, of which {len(fitting)} cells fit {variables}: expected one, of a "
                    "group that stands above it."
                )
            needed[name] = fitting[0]
        return needed

    def _cell(self, group_name: str, variables: Variables, needs: dict[str, Cell]) -> Cell:
        group, known = self.groups[group_name], self.variables | variables
        # Folders and paths of this machine are left to the run: they are no part of the key.
        open_ = {name: value for name, value in known.items() if name not in self.paths}
        parts = {name: resolve(group.get(name, default), open_) for name, default in
                 (("steps", []), ("measures", []), ("fields", {}))}  # fmt: skip
        parts["fields"] = {name: parts["fields"].get(name, variables.get(name)) for name in FIELDS}
        for step in parts["steps"]:
            step["options"] = _merged(step.get("options", {}), group_name)
        # "{model}" as data is a folder, or the name of something elsewhere, which stands among the options.
        files = [name for name in group.get("data", []) if name[1:-1] not in known or name[1:-1] in self.paths]
        data = [self._hash_of_data(pattern) for pattern in resolve(files, known | self.paths)]
        key, content = (
            _hash_of([*code, data, parts, *([of_needed] if needs else [])])
            for code, of_needed in (
                ([self.code_of[group_name]], {name: cell.key for name, cell in needs.items()}),
                ([], {name: cell.content for name, cell in needs.items()}),
            )
        )
        # The group and the other variables say all that options, and values with places in them, would add.
        short = {name: value for name, value in variables.items() if not isinstance(value, dict | list)}
        told = [f"{name}={value}" for name, value in short.items() if not re.match("--|.*{", str(value))]
        return Cell(group_name, " ".join([group_name, *told]), key, content, variables, **parts, needs=needs)

    def _hash_of_data(self, pattern: str) -> str:
        """Hash the contents of a file, of all files in a folder, or of all that fit a pattern with *."""
        if pattern not in self.hashes:
            path = Path(pattern)
            paths = path.parent.glob(path.name) if "*" in path.name else path.rglob("*") if path.is_dir() else [path]
            files = sorted(file for file in paths if file.is_file())
            if not files:
                raise ValueError(f"There is no data file {pattern}: --data_dir and the like name its folder.")
            contents = [(file.name, hashlib.blake2b(file.read_bytes()).hexdigest()) for file in files]
            self.hashes[pattern] = hashlib.blake2b(repr(contents).encode(), digest_size=8).hexdigest()
        return self.hashes[pattern]

    def folder(self, cell: Cell) -> Path:
        """Return the folder that a cell's processes write to."""
        return self.work_dir / cell.key

    def finished_folder(self, cell: Cell) -> Path:
        """Return the folder that a finished cell lies in, which has another key where other code ran it."""
        return self.work_dir / (self.record(cell) or cell).key

    def record(self, cell: Cell) -> Record | None:
        """Return the record of a finished cell, from its folder or the results; None if it is not finished."""
        path = self.folder(cell) / RECORD
        try:
            return Record.read(path)
        except FileNotFoundError:
            pass
        except Damaged as error:
            if path not in self.damaged:
                print(f"{error} The cell {cell.name} counts as stopped.", flush=True)
                self.damaged.add(path)
        return self.finished.get(cell.key) or self.of_any_code.get(cell.content)

    def forget(self, cell: Cell) -> None:
        """Let a finished cell run again."""
        (self.folder(cell) / RECORD).unlink(missing_ok=True)
        self.finished.pop(cell.key, None)
        self.of_any_code.pop(cell.content, None)

    def to_do(self, cells: Mapping[str, Cell]) -> dict[str, Cell]:
        """Return the cells that are not finished, and forget those whose folders they need and are lost."""
        to_do = {key: cell for key, cell in cells.items() if self.record(cell) is None}
        lost = [(cell, other) for cell in to_do.values() for other in cell.needs.values() if self._is_lost(other)]
        if not lost:
            return to_do
        for cell, other in lost:
            if self.record(other) is not None:  # said once, of the first cell that needs it
                print(f"{cell.name} needs the folder of {other.name}, which is lost: that one runs again.", flush=True)
                self.forget(other)
        return self.to_do(cells)  # the forgotten ones need others in turn

    def _is_lost(self, cell: Cell) -> bool:
        record = self.record(cell)
        return record is not None and record.status == "done" and not (self.work_dir / record.key).is_dir()

    def is_ready(self, cell: Cell) -> bool:
        """Whether all cells that it needs are done."""
        records = map(self.record, cell.needs.values())
        return all(record is not None and record.status == "done" for record in records)

    def folders_needed(self, cell: Cell) -> dict[str, str]:
        """Return the folders of the cells that it needs, by their variables."""
        return {name: str(self.finished_folder(other)) for name, other in cell.needs.items()}

    def results(self) -> Results:
        """Return the records of all finished cells, whatever `only` says; those of other code, data or options are
        kept, apart."""
        cells = self.all_cells()
        records = {record.key: record for cell in cells.values() if (record := self.record(cell))}
        finished = {record.content for record in records.values()}
        not_run = [cell.name for cell in cells.values() if cell.content not in finished]
        apart = {key: record for key, record in self.finished.items() if key not in records}
        return Results(versions(), not_run, records, apart)


def _unknown_words(content: Mapping[str, Any]) -> set[str]:
    """Return the names in a YAML that mean nothing."""
    groups = content["groups"].values()
    unknown = set(content) - STUDY_WORDS | {word for group in groups for word in group} - GROUP_WORDS
    return unknown | {word for group in groups for step in group["steps"] for word in step} - STEP_WORDS


def _merged(options: Any, group_name: str) -> Variables:
    """Return the options of a step as one mapping: later ones of a list win."""
    merged: Variables = {}
    for mapping in options if isinstance(options, list) else [options]:
        if not isinstance(mapping, dict):
            raise ValueError(f"{group_name}: {mapping!r} among the options of a step is no mapping.")
        merged |= mapping
    return merged


def _hash_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
