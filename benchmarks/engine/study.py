"""A study: a YAML of groups of cells, and where they stand. `benchmarks.engine.cells` tells what a YAML may say."""

import hashlib
import json
import re
import statistics
from collections import defaultdict
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
    key: str  # of code, data and options
    content: str  # of data and options alone
    variables: dict[str, Any]
    fields: dict[str, Any]
    steps: list[dict[str, Any]]
    measures: list[dict[str, Any]]


class Study:
    """The cells of a YAML, and where they stand.

    Args:
        results: written before, from which finished cells are known where their folders are lost.
        any_code: whether cells that other code ran count as finished too.

    Raises:
        ValueError: if the YAML says something that is not understood.
    """

    def __init__(
        self,
        path: Path,
        work_dir: Path,
        given: Mapping[str, Any],
        results: Path | None = None,
        any_code: bool = False,
    ):
        self.finished = _finished(results) if results is not None and results.exists() else {}
        contents = {record["content"]: record for record in self.finished.values() if record["status"] == "done"}
        self.of_any_code = contents if any_code else {}
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        groups = content["groups"].values()
        unknown = set(content) - {"variables", "code", "formerly", "groups"}
        unknown |= {name for group in groups for name in group} - OF_A_GROUP
        if unknown := unknown | {name for one in groups for step in one["steps"] for name in step} - OF_A_STEP:
            raise ValueError(f"{path} has {', '.join(sorted(unknown))}, which a study does not know.")
        self.groups: dict[str, dict[str, Any]] = content["groups"]
        self.variables = content.get("variables", {}) | dict(given)
        self.formerly: dict[str, str] = content.get("formerly", {})
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
        hashed = parts | {"steps": [self._under_its_first_name(step) for step in parts["steps"]]}
        key, content = (_hash_of([*code, data, hashed]) for code in ([self.code_of[group_name]], []))
        # Options, and what has places in it, say nothing that the group and other variables do not.
        short = {name: value for name, value in variables.items() if not isinstance(value, dict | list)}
        said = [f"{name}={value}" for name, value in short.items() if not re.match("--|.*{", str(value))]
        return Cell(group_name, " ".join([group_name, *said]), key, content, variables, **parts)

    def _under_its_first_name(self, step: dict[str, Any]) -> dict[str, Any]:
        """A step as it was called when its results were made: moving its module makes no cell another one."""
        return step | {"module": self.formerly.get(step["module"], step["module"])} if "module" in step else step

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
        """What a finished cell left in its folder or in the results, None if it is not finished."""
        path = self.folder(cell) / RECORD
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        return self.finished.get(cell.key) or self.of_any_code.get(cell.content)

    def forget(self, cell: Cell) -> None:
        """Let a finished cell run again."""
        (self.folder(cell) / RECORD).unlink(missing_ok=True)
        self.finished.pop(cell.key, None)

    def write(self, output: Path) -> tuple[list[dict[str, Any]], int]:
        """Put the records of all cells into one file.

        Finished cells that are none of the study's now, of other code, data or options, are kept in it, apart.

        Returns: the records that failed, and how many cells are kept apart.
        """
        cells, waiting = self.cells()
        records = {record["key"]: record for cell in cells.values() if (record := self.record(cell))}
        finished = {record["content"] for record in records.values()}
        apart = {key: record for key, record in self.finished.items() if key not in records}
        results = {
            "versions": versions(),
            "not_run": [cell.name for cell in cells.values() if cell.content not in finished],
            "waiting": waiting,
        }
        lines = [f'"{name}": {json.dumps(value)}' for name, value in results.items()]
        lines += [
            f'"{name}": {_one_a_line(_without_rows(some))}' for name, some in (("cells", records), ("apart", apart))
        ]
        lines += [f'"{name}": {_one_a_line([row for record in some.values() for row in record["rows"]])}'
                  for name, some in (("rows", records), ("apart_rows", apart))]  # fmt: skip
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, "{\n" + ",\n".join(lines) + "\n}\n")
        return [record for record in records.values() if record["status"] == "failed"], len(apart)


def _hash_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _finished(results: Path) -> dict[str, dict[str, Any]]:
    """Records by key, with their rows, of a file that `Study.write` wrote."""
    content = json.loads(results.read_text(encoding="utf-8"))
    rows = defaultdict[str, list[dict[str, Any]]](list)
    for row in [*content["rows"], *content["apart_rows"]]:
        rows[row["cell"]].append(row)
    return {key: record | {"rows": rows[key]} for key, record in (content["cells"] | content["apart"]).items()}


def _without_rows(records: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {key: {name: one for name, one in record.items() if name != "rows"} for key, record in records.items()}


def _one_a_line(values: dict[str, Any] | list[Any]) -> str:
    """JSON that a person can read and compare: an entry a line."""
    if isinstance(values, dict):
        inner, brackets = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()], "{}"
    else:
        inner, brackets = [json.dumps(value) for value in values], "[]"
    return brackets[0] + "".join(f"\n {line}," for line in inner)[:-1] + ("\n" if inner else "") + brackets[1]
