"""Run cases one after another, note each on the disk, and go on where a run was stopped.

A part of the soak is a function from a number of cases to cases; `PARTS` in `tests.soak.__main__` has a row for each.
A case is drawn by its number alone, so that a failed one can be run again.
"""

import json
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm


class BrokenPromise(AssertionError):
    """What docs/reliability.md promises did not hold."""


@dataclass(frozen=True)
class Case:
    """One attack.

    Attributes:
        name: which no other case of the part has.
        run: attacks in an empty folder, which is removed afterwards, and returns what came of it in a few words.
            Raises `BrokenPromise` if a promise did not hold.
    """

    name: str
    run: Callable[[Path], str]


@dataclass(frozen=True)
class Part:
    """A kind of attack.

    Attributes:
        promise: what holds in every case, for the table.
        cases: draws so many of them.
        count: how many `make soak` runs.
    """

    promise: str
    cases: Callable[[int], Iterator[Case]]
    count: int


def run_part(name: str, part: Part, count: int, records: Path) -> None:
    """Run the cases of a part that are not on record yet."""
    path = records / f"{name}.jsonl"
    done = {record["case"] for record in read_records(path)}
    records.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file, tqdm(total=count, desc=name, unit="case") as progress:
        for case in part.cases(count):
            if case.name not in done:
                file.write(json.dumps(run_case(case)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            progress.update()


def run_case(case: Case) -> dict[str, str | float | bool]:
    """Run a case, and return its record."""
    started, held = time.monotonic(), True
    folder = Path(tempfile.mkdtemp(prefix="docsplit-soak-"))
    try:
        outcome = case.run(folder)
    except BrokenPromise as error:
        held, outcome = False, str(error)
    except Exception:  # of the attack itself, or where a promise says that none comes out
        held, outcome = False, traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"case": case.name, "held": held, "outcome": outcome, "seconds": round(time.monotonic() - started, 2)}


def read_records(path: Path) -> list[dict]:
    """Read the records of a part; a line that a kill cut off is no record."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def summary(name: str, part: Part, records: Path) -> dict:
    """Count the cases of a part by outcome."""
    rows = read_records(records / f"{name}.jsonl")
    return {
        "part": name,
        "promise": part.promise,
        "cases": len(rows),
        "held": sum(row["held"] for row in rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows if row["held"]).most_common()),
        "broken": [{"case": row["case"], "outcome": row["outcome"]} for row in rows if not row["held"]],
        "minutes": round(sum(row["seconds"] for row in rows) / 60, 1),
    }


def table(summaries: list[dict]) -> str:
    """Make the table of docs/reliability.md."""
    lines = ["| attack | what is promised | cases | held |", "|---|---|---:|---:|"]
    lines += [f"| {row['part']} | {row['promise']} | {row['cases']:,} | {row['held']:,} |" for row in summaries]
    return "\n".join(lines) + "\n"
