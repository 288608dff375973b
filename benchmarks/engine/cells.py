"""Run the cells of a study, each a few scripts of this project as processes, and collect their rows in one file.

A study is a YAML of groups of cells. `{name}` stands for a variable: of `variables`, of an option (which wins), of
the cell, or `{folder}`, the cell's own. A value that is one such name and nothing else keeps its type.

    variables: {model: bert-base-uncased}
    code: [docsplit, modeling_docsplit.py]          # whose change makes a cell another one; default: docsplit, the
    groups:                                         # files modeling_*.py, and the scripts and modules of the steps
      train:
        grid: {seed: [0, 1, 2]}                     # all combinations
        cases: [{method: a, own: {view: crop}}]     # and each with each of these; optional
        code: [benchmarks/mine.py]                  # more of it, for this group; optional
        data: ["{data_dir}/train.parquet"]          # files and folders whose contents make a cell another one
        fields: {data: news, task: labels, method: "{method}", seed: "{seed}"}   # of each row; seed null: untrained
        steps:
          - {script: run_docsplit_pretraining.py, options: [{output_dir: "{folder}/encoder"}, "{own}"],
             again: {resume_from_checkpoint: true}}                              # added where it was stopped before
        measures:
          - {metric: tokens, file: "{folder}/encoder/all_results.json", value: train_tokens}
          - {rows: "{folder}/rows.json"}            # or rows as they are, which may say more than the fields do
      measure:
        needs: {encoder: train}                     # {encoder}: the folder of its cell of the same place in the grid
        grid: {seed: [0, 1, 2]}

The key of a cell is a hash of the code, the contents of the data, and the options; given paths are left out.
A finished cell leaves `cell.json` in its folder, whole or not at all; the results are put together from these, so a
kill loses at most the step that ran. A cell that stands in the results is finished too: a study goes on from them
where the folders are lost, on another machine for example. What a cell to do needs from a lost folder is made again.
Cells of other code, data or options are kept in the
results, apart, and come back with that code, or with --any_code. Failed cells keep the end of their log and are run
again with --retry alone. A cell begins when those that it needs are done; their keys are part of its own. The code
must not change while a study runs: use a worktree.

The results hold what tables, figures and tests read. Raw samples (values of single queries or test items, bootstrap
draws) stay in the work_dir, outside the repository. Where a table needs them they are the row's `samples`, of five
decimals each: `benchmarks.engine.results` puts them into one compressed .npz beside the JSON.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from benchmarks.engine.results import Record, Results, Row, check_rows, read_results, write_results
from benchmarks.engine.study import RECORD, Cell, Study, resolve
from docsplit.runtime.command import end_with
from docsplit.runtime.files import (
    ROOT,
    Damaged,
    commit_of_code,
    hash_of_code,
    read_any_json,
    read_json,
    read_sealed,
    write_sealed,
    write_text,
)

SPENT = "seconds.json"  # in a cell's folder once a step is finished
PID = "pid"  # in a cell's folder while it runs
TAIL_LINES = 30  # of the log of a failed cell
POLL_SECONDS = 0.05
Arguments = Mapping[str, Mapping[str, Any]]  # options of a study, each as `add_argument` takes it


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return the command-line words of options; None leaves an option out, a list gives several values."""
    words = []
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def command_of(step: Mapping[str, Any]) -> list[str]:
    """Return the words of a step behind `python`; a step with `launch` is started by Accelerate's launcher."""
    launcher = ["-m", "accelerate.commands.launch", *map(str, step["launch"])] if step.get("launch") else []
    program = ["-m", step["module"]] if "module" in step else [str(ROOT / step["script"])]
    recipe = [step["recipe"]] if step.get("recipe") else []
    return [*launcher, *program, *recipe, *map(str, step.get("words", [])), *words_of(step["options"])]


@dataclass
class Running:
    """A cell whose steps run one after another, without waiting for them."""

    study: Study
    cell: Cell
    cores: set[int]
    niceness: int
    started: float = field(default_factory=time.monotonic)
    step: int = -1
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder = self.study.folder(self.cell)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.variables = self.study.paths | self.study.folders_needed(self.cell) | {"folder": str(self.folder)}
        self.seconds = _spent(self.folder / SPENT, len(self.cell.steps))  # of steps that were finished before
        write_text(self.folder / PID, str(os.getpid()))
        self._start_next()

    def _start_next(self) -> None:
        self.step = len(self.seconds)
        step = resolve(self.cell.steps[self.step], self.variables)
        log = self.folder / f"step-{self.step}.log"
        options = step["options"] | (step.get("again", {}) if log.exists() else {})
        command = [sys.executable, *command_of(step | {"options": options})]
        environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ  # they run beside other work
        self.step_started = time.monotonic()
        with log.open("a") as file:
            file.write(shlex.join(command) + "\n")
            file.flush()
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
                preexec_fn=lambda: self._in_child(),
            )  # fmt: skip

    def _in_child(self) -> None:
        os.nice(self.niceness)
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        if hasattr(libc := ctypes.CDLL(None), "prctl"):
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG (Linux): no step outlives a runner that is killed

    def poll(self) -> bool:
        """Whether the cell is finished; begin its next step when one has ended."""
        assert self.process is not None
        if self.process.poll() is None:
            return False
        self.seconds.append(time.monotonic() - self.step_started)
        error = f"exit code {self.process.returncode}" if self.process.returncode else None
        if error is None and len(self.seconds) < len(self.cell.steps):
            write_sealed(self.folder / SPENT, {"seconds": self.seconds})
            self._start_next()
            return False
        self._finish(error)
        return True

    def _finish(self, error: str | None) -> None:
        """Leave a record of what was measured, or of what failed."""
        rows: list[Row] = []
        if error is None:
            try:
                rows = list(self._rows())
                json.dumps(rows, allow_nan=False)
            except (OSError, ValueError, KeyError) as problem:
                error = f"nothing to measure: {type(problem).__name__}: {problem}"
        cell = self.cell
        record = Record(cell.name, "done" if error is None else "failed", cell.key, cell.content, commit_of_code(),
                        seconds=round(sum(self.seconds), 1), rows=rows)  # fmt: skip
        if error is not None:
            record.error = f"step {self.step}: {error}"
            log = (self.folder / f"step-{self.step}.log").read_text(errors="replace")
            record.log = log.splitlines()[-TAIL_LINES:]
        record.write(self.folder / RECORD)
        (self.folder / PID).unlink()

    def _rows(self) -> Iterator[Row]:
        """Yield what the steps measured, each row with the cell's fields."""
        fields = {"cell": self.cell.key} | self.cell.fields
        for measure in resolve(self.cell.measures, self.variables):
            path = Path(measure.get("file") or measure["rows"])
            if "rows" in measure:
                rows = read_any_json(path)
            else:
                rows = [{"metric": measure["metric"], "value": read_json(path)[measure["value"]]}]
            check_rows(rows, path)
            for row in rows:
                yield fields | row | {"seconds": round(sum(self.seconds), 2)}


def _spent(path: Path, num_steps: int) -> list[float]:
    """Read the seconds of the steps that a stopped cell has finished; none, with a line, where that is damaged."""
    try:
        seconds = read_sealed(path)["seconds"]
        if len(seconds) < num_steps:
            return seconds
        print(f"{path} is of another study: the cell starts from its first step.", flush=True)
    except FileNotFoundError:
        pass
    except Damaged as error:
        print(f"{error} The cell starts from its first step.", flush=True)
    return []


@contextlib.contextmanager
def only_runner(work_dir: Path) -> Iterator[bool]:
    """Whether this process alone has the folder; a lock that ends with the process."""
    work_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(Timeout), FileLock(work_dir / "lock", timeout=0):
        yield True
        return
    yield False


def show(study: Study, is_active: bool) -> str:
    """Return a line a cell, and the hours left, by the median of the finished cells of the same group, else of all."""
    lines, counts, seconds, left = [], Counter[str](), defaultdict[str, list[float]](list), list[str]()
    for cell in study.cells().values():
        record, folder = study.record(cell), study.folder(cell)
        if record is None:
            status = "running" if is_active and (folder / PID).exists() else "stopped" if folder.exists() else "to do"
            lines.append(f"{status:18}  {cell.key}  {cell.name}")
            left.append(cell.group)
        else:
            status = record.status
            seconds[cell.group if status == "done" else ""].append(record.seconds)
            lines.append(f"{status:8}{record.seconds:8.0f} s  {cell.key}  {cell.name}")
            lines += [f"    {line}" for line in [record.error, *(record.log or [])[-3:]]] if status == "failed" else []
        counts[status] += 1
    done = [duration for group, values in seconds.items() if group for duration in values]
    hours = sum(statistics.median(seconds.get(group, done)) for group in left) / 3600 if done else None
    estimate = "unknown, for no cell is finished" if hours is None else f"{hours:.2f} hours, one cell at a time"
    return "\n".join([*lines, f"{', '.join(f'{n} {name}' for name, n in counts.items() if n)}; left: {estimate}"])


def run(study: Study, options: argparse.Namespace) -> int:
    """Run the cells that are to do; return the exit code, 0 if no cell of the study failed.

    Args:
        options: output, jobs, nice and retry of `add_options`.
    """
    output, jobs = options.output, options.jobs
    running: list[Running] = []
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    free = [set(cores[job::jobs] or cores) for job in range(jobs)]
    if options.retry:
        for cell in study.cells().values():
            if (record := study.record(cell)) and record.status == "failed":
                study.forget(cell)
    results = study.results()
    write_results(results, output)
    if results.apart:
        print(f"{len(results.apart)} finished cells of other code, data or options stay in {output}, apart from the "
              "study's (--any_code counts those of other code as finished).", flush=True)  # fmt: skip
    try:
        while True:
            cells = study.cells()
            busy = {job.cell.key for job in running}
            to_do = [cell for key, cell in study.to_do(cells).items() if key not in busy and study.is_ready(cell)]
            while to_do and len(running) < jobs:
                code = [*study.code, *study.groups[to_do[0].group].get("code", [])]
                if hash_of_code(*code) != study.code_of[to_do[0].group]:
                    raise RuntimeError(f"The code ({', '.join(code)}) changed while the study ran: start again.")
                running.append(Running(study, to_do.pop(0), free.pop(), options.nice))
                print(f"started   {running[-1].cell.name}", flush=True)
            if not running:
                break
            while not (finished := [job for job in running if job.poll()]):
                time.sleep(POLL_SECONDS)
            running = [job for job in running if job not in finished]
            results = study.results()
            write_results(results, output)
            for job in finished:
                free.append(job.cores)
                record = results.cells[job.cell.key]
                print(f"{record.status:9} {job.cell.name}: {record.seconds:.0f} s", flush=True)
    finally:
        for job in running:
            if job.process is not None:
                job.process.kill()
                job.process.wait()
    print(show(study, is_active=False) + f"\nWritten: {output}")
    records = map(study.record, study.cells().values())
    return 1 if any(record is not None and record.status == "failed" for record in records) else 0


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options that every study takes."""
    work_dir, output = Path(f"outputs/{name}_study"), Path(f"benchmarks/results/{name}.json")
    parser.add_argument(
        "--work_dir", type=Path, default=work_dir, help="folders of the cells: encoders, logs, samples"
    )
    parser.add_argument("--output", type=Path, default=output, help="the results, rewritten whole after each cell")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; cores are divided (default: 1)")
    parser.add_argument("--nice", type=int, default=10, help="niceness of the processes (default: 10)")
    parser.add_argument("--retry", action="store_true", help="run failed cells again")
    parser.add_argument("--any_code", action="store_true", help="count cells of other code as finished")
    parser.add_argument("--list", action="store_true", help="list the cells and the hours left; run nothing")


def run_study(
    path: Path,
    doc: str | None,
    arguments: Arguments,
    markdown: Callable[[Results], str] | None = None,
    plot: Callable[[Results, Path], None] | None = None,
    results_name: str | None = None,
) -> NoReturn:
    """List or run the cells of a study as its command line says, then write tables and a figure of all results so far.

    Groups that are named after an option which is not given, and has no default in the YAML, are left out.

    Args:
        path: of the YAML.
        doc: the help.
        arguments: options, as `add_argument` takes them; variables of the YAML where they are given.
        results_name: of the results and of the folder of the cells. Default: the name of the YAML's folder.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, settings in arguments.items():
        parser.add_argument(f"--{name}", **settings)
    add_options(parser, results_name or path.parent.name)
    options = parser.parse_args()
    given = {name: value for name in arguments if (value := getattr(options, name)) is not None}
    try:
        study = Study(path, options.work_dir, given, options.output, options.any_code)
    except Damaged as error:
        end_with(
            f"{error} Take it from a copy, or move it away: a study writes its results anew from its --work_dir "
            f"({options.work_dir})."
        )
    except (OSError, ValueError) as error:
        end_with(str(error))
    missing = tuple(name for name in arguments if name not in study.variables)
    study.groups = {name: group for name, group in study.groups.items() if not name.startswith(missing)}
    with only_runner(study.work_dir) as is_alone:
        if options.list:
            print(show(study, is_active=not is_alone))
            sys.exit(0)
        if not is_alone:
            raise SystemExit(f"Another process runs cells in {study.work_dir}: --list shows them.")
        code = run(study, options)
    results = read_results(options.output)
    if markdown is not None:
        write_text(options.output.with_suffix(".md"), markdown(results))
    if plot is not None:
        plot(results, options.output.with_suffix(".png"))
    sys.exit(code)
