"""The results file of a study: JSON that people read, and beside it the raw samples, compressed.

A row may carry `samples`: a metric on drawn test items, or its value for each query. Tables pool them over seeds and
test pairs of methods on them, so they are kept, but numbers that nobody reads one by one have no place in JSON: there
a row says how many it has, and they lie in `<study>.npz`, an array a cell.
"""

import json
import math
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from docsplit.runtime.files import Damaged, read_json, read_sealed, write_sealed, write_text, write_whole

STEPS = 1e5  # of a sample to one: samples have five decimals
SAMPLES = "samples"
UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)  # an .npz
Row = dict[str, Any]  # cell, data, task, method, seed, metric, value, seconds, and what the study adds


@dataclass
class Record:
    """A cell that ran."""

    name: str
    status: str  # done or failed
    key: str
    content: str
    commit: str | None = None
    seconds: float = 0.0  # by the clock
    rows: list[Row] = field(default_factory=list)
    error: str | None = None
    log: list[str] | None = None  # the end of a failed step's

    @classmethod
    def from_json(cls, values: Any, path: Path) -> "Record":
        """Make a record of what a file holds.

        Raises:
            Damaged: if that is no record.
        """
        try:
            record = cls(**{one.name: values[one.name] for one in fields(cls) if one.name in values})
        except TypeError as error:
            raise Damaged(f"{path} is damaged: it holds no record of a cell ({error}).") from error
        texts = [record.name, record.status, record.key, record.content]
        texts += [text or "" for text in (record.commit, record.error)]
        if not all(isinstance(text, str) for text in texts) or not _is_number(record.seconds):
            raise Damaged(f"{path} is damaged: a record of a cell has values of another type.")
        check_rows(record.rows, path)
        return record

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Read a record that `write` wrote.

        Raises:
            FileNotFoundError: if there is none.
            Damaged: if it is not what was written.
        """
        return cls.from_json(read_sealed(path), path)

    def write(self, path: Path) -> None:
        """Write the record whole or not at all."""
        write_sealed(path, asdict(self))

    def without_rows(self) -> dict[str, Any]:
        """Return the cell's entry in the results."""
        left_out = ("rows",) if self.error else ("rows", "error", "log")
        return {name: value for name, value in vars(self).items() if name not in left_out}


@dataclass
class Results:
    """The results of a study so far.

    `apart` are finished cells of other code, data or options than the study's.
    """

    versions: dict[str, str | None] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)
    cells: dict[str, Record] = field(default_factory=dict)  # by key
    apart: dict[str, Record] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """The rows of all cells of the study."""
        return [row for record in self.cells.values() for row in record.rows]

    @property
    def failed(self) -> list[Record]:
        """The cells of the study that failed."""
        return [record for record in self.cells.values() if record.status == "failed"]

    def what_is_missing(self) -> str:
        """Return the line below the tables that names the cells which they lack."""
        failed = [record.name for record in self.failed]
        return f"Cells not run: {', '.join(self.not_run) or 'none'}. Failed: {', '.join(failed) or 'none'}."


def check_rows(rows: Any, path: Path) -> None:
    """Refuse what are no rows: objects that have a metric and a finite value, and samples if they have any.

    Raises:
        Damaged: naming the file that they are from.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Damaged(f"{path} holds no list of rows.")
    for row in rows:
        if not isinstance(row.get("metric"), str) or not _is_number(row.get("value")):
            raise Damaged(f"{path} has a row without a metric and a number: {str(row)[:100]}.")
        samples = row.get(SAMPLES, 0)
        if not all(map(_is_number, samples if isinstance(samples, list) else [samples])):
            raise Damaged(f"{path} has samples of {row['metric']} that are no numbers.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_results(path: Path) -> Results:
    """Return the results that `write_results` wrote, samples included.

    Raises:
        FileNotFoundError: if there are none.
        Damaged: if they are not as written.
    """
    content = read_json(path)
    try:
        rows = defaultdict[str, list[Row]](list)
        for some in (content["rows"], content["apart_rows"]):
            check_rows(some, path)
            for row in some:
                rows[row["cell"]].append(row)
        _fill_in_samples(rows, path.with_suffix(".npz"))
        cells, apart = (
            {key: Record.from_json(entry | {"rows": rows[key]}, path) for key, entry in content[name].items()}
            for name in ("cells", "apart")
        )
        versions, not_run = content["versions"], content["not_run"]
        has_names = isinstance(not_run, list) and all(isinstance(name, str) for name in not_run)
        if not has_names or not isinstance(versions, dict):
            raise Damaged(f"{path} is damaged: versions or not_run are of another type.")
        return Results(versions, not_run, cells, apart)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise Damaged(f"{path} is damaged: it holds no results of a study ({problem}).") from error


def write_results(results: Results, path: Path) -> None:
    """Write the JSON, an entry a line, after the samples that it counts on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = results.cells | results.apart
    samples = {key: values for key, record in records.items() if (values := _samples_of(record.rows)).size}
    if samples:
        write_whole(path.with_suffix(".npz"), lambda temporary: _save(temporary, samples))
    parts = [f'"{name}": {json.dumps(getattr(results, name))}' for name in ("versions", "not_run")]
    parts += [f'"{name}": {_one_a_line({key: record.without_rows() for key, record in some.items()})}'
              for name, some in (("cells", results.cells), ("apart", results.apart))]  # fmt: skip
    parts += [f'"{name}": {_one_a_line([_counted(row) for record in some.values() for row in record.rows])}'
              for name, some in (("rows", results.cells), ("apart_rows", results.apart))]  # fmt: skip
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def _samples_of(rows: Sequence[Row]) -> np.ndarray:
    """Return the samples of a cell, row after row, in steps of the fifth decimal."""
    samples = [row[SAMPLES] for row in rows if SAMPLES in row]
    return np.rint(np.concatenate([*samples, []]) * STEPS).astype(np.int32)


def _save(path: Path, samples: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # savez would add an ending to the name
        np.savez_compressed(file, **samples)  # type: ignore[arg-type]


def _fill_in_samples(rows: Mapping[str, list[Row]], path: Path) -> None:
    """Replace the number of samples of each row by the samples."""
    sampled = {key: [row for row in of_cell if SAMPLES in row] for key, of_cell in rows.items()}
    if not any(sampled.values()):
        return
    try:
        with np.load(path) as file:
            samples = {key: file[key] for key, of_cell in sampled.items() if of_cell}
    except UNREADABLE as error:
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())}.") from error
    for key, steps in samples.items():
        if not all(isinstance(row[SAMPLES], int) for row in sampled[key]):
            raise Damaged(f"{path.with_suffix('.json')} is damaged: cell {key} has no numbers of samples.")
        ends = np.cumsum([row[SAMPLES] for row in sampled[key]])
        if ends[-1] != len(steps):
            places = f"{path.with_suffix('.json')} or {path}"
            raise Damaged(f"{places} is damaged: there are {len(steps)} samples of cell {key}, not {ends[-1]}.")
        for row, some in zip(sampled[key], np.split(steps, ends[:-1])):
            row[SAMPLES] = (some / STEPS).tolist()


def _counted(row: Row) -> Row:
    """Return a row with the number of its samples in their place."""
    return row | {SAMPLES: len(row[SAMPLES])} if SAMPLES in row else row


def _one_a_line(entries: dict[str, Any] | list[Any]) -> str:
    """Return JSON that a person can read and compare, an entry a line."""
    if isinstance(entries, dict):
        lines, brackets = [f"{json.dumps(name)}: {_compact(entry)}" for name, entry in entries.items()], "{}"
    else:
        lines, brackets = [_compact(entry) for entry in entries], "[]"
    return brackets[0] + "".join(f"\n {line}," for line in lines)[:-1] + ("\n" if lines else "") + brackets[1]


def _compact(entry: Any) -> str:
    return json.dumps(entry, separators=(",", ":"))
