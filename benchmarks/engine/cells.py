"""Run the cells of a study, each a few scripts of this project as processes, and collect their rows in one file.

    python -m benchmarks.engine.cells study.yaml --work_dir outputs/study --output study.json --set model=NAME
    python -m benchmarks.engine.cells study.yaml ... --list             # what is done, running, to do, and hours left
    python -m benchmarks.engine.cells study.yaml ... --budget_hours 7   # running again goes on where it was stopped

A study is a YAML of groups of cells. `{name}` stands for a variable: of `variables`, of --set (which wins), of the
cell, or `{folder}`, the cell's own. A value that is one such name and nothing else keeps its type.

    variables: {model: bert-base-uncased}
    code: [docsplit, modeling_docsplit.py]          # whose change makes a cell another one; default: docsplit, the
    formerly: {benchmarks.new: benchmarks.old}      # files modeling_*.py, and the scripts and modules of the steps
    groups:                                         # formerly: modules that moved; cells keep the old name in the key
      search:
        grid: {learning_rate: [1.0e-5, 3.0e-5]}     # all combinations
        cases: [{method: a, own: {view: crop}}]     # and each with each of these; optional
        code: [benchmarks/mine.py]                  # more of it, for this group; optional
        data: ["{data_dir}/train.parquet"]          # files and folders whose contents make a cell another one
        fields: {data: news, task: labels, method: "{method}", seed: 0}       # of each row; seed null: untrained
        steps:
          - {script: run_docsplit_pretraining.py, options: [{output_dir: "{folder}/encoder"}, "{own}"],
             again: {resume_from_checkpoint: true}}                           # added where it was stopped before
        measures:
          - {metric: accuracy, file: "{folder}/probe/results.json", where: {head: linear, shots: 5},
             value: accuracy_mean}                  # of the one entry of `rows` there, or of the file's own names
          - {rows: "{folder}/rows.json"}            # or rows as they are, which may say more than the fields do
        selection: {metric: validation, mode: max}  # what the best cells of the group are chosen by
      confirmation:
        from: {group: search, best: 1}              # with the variables of those; begins when all of them are done
        needs: {start: pretraining}                 # {start}: the folder of its cell of the same place in the grid
        grid: {seed: [0, 1, 2]}

The key of a cell is a hash of the code, the contents of the data, and the options; paths given by --set are left out.
A finished cell leaves `cell.json` in its folder, whole or not at all; the results are put together from these, so a
kill loses at most the steps that ran. A cell that stands in the results is finished too: a study goes on from them
where the folders are lost, on another machine for example. What a cell to do needs from a lost folder is made again,
and compared with what it was by a hash of its weights. Cells of other code, data or options are kept in the
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

import yaml
from filelock import FileLock, Timeout

from benchmarks.engine.results import Record, Results, Row, check_rows, read_results, write_results
from benchmarks.engine.study import RECORD, Cell, Study, resolve, weights_in
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
        self.read_weights = self.study.weights_needed(self.cell)
        # Of steps that were finished before: by the clock, and of the cores
        self.seconds, self.cpu_seconds = _spent(self.folder / SPENT, len(self.cell.steps))
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
        before = _cpu_seconds_of_children()
        if self.process.poll() is None:
            return False
        self.cpu_seconds.append(round(_cpu_seconds_of_children() - before, 2))
        self.seconds.append(time.monotonic() - self.step_started)
        error = f"exit code {self.process.returncode}" if self.process.returncode else None
        if error is None and len(self.seconds) < len(self.cell.steps):
            write_sealed(self.folder / SPENT, {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds})
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
        record = Record(
            self.cell.name,
            "done" if error is None else "failed",
            self.cell.key,
            self.cell.content,
            commit_of_code(),
            seconds=round(sum(self.seconds), 1),
            cpu_seconds=round(sum(self.cpu_seconds), 1),
            steps=[round(seconds, 1) for seconds in self.seconds],
            weights=weights_in(self.folder),
            read_weights=self.read_weights,
            rows=rows,
        )
        if error is not None:
            record.error = f"step {self.step}: {error}"
            log = (self.folder / f"step-{self.step}.log").read_text(errors="replace")
            record.log = log.splitlines()[-TAIL_LINES:]
        record.write(self.folder / RECORD)
        (self.folder / PID).unlink()
        if error is None and (before := self.study.weights_before.get(self.cell.content)):
            same = "as before, bit for bit" if before == record.weights else "otherwise than before"
            print(f"{self.cell.name} ran again, and its weights came out {same}.", flush=True)

    def _rows(self) -> Iterator[Row]:
        """Yield what the steps measured, each row with the cell's fields."""
        fields = {"cell": self.cell.key} | self.cell.fields
        for measure in resolve(self.cell.measures, self.variables):
            path = Path(measure.get("file") or measure["rows"])
            if "rows" in measure:
                rows = read_any_json(path)
            else:
                where, content = measure.get("where", {}), read_json(path)
                rows = content.get("rows", [content])
                if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                    raise Damaged(f"{path} holds no list of rows.")
                rows = [row for row in rows if all(row.get(name) == value for name, value in where.items())]
                if len(rows) != 1:
                    raise ValueError(f"{len(rows)} rows of {measure['file']} have {where}, expected one.")
                rows = [{"metric": measure["metric"], "value": rows[0][measure["value"]]}]
            check_rows(rows, path)
            for row in rows:
                yield fields | row | {"seconds": round(sum(self.seconds), 2)}


def _spent(path: Path, num_steps: int) -> tuple[list[float], list[float]]:
    """Read the seconds of the steps that a stopped cell has finished; none, with a line, where that is damaged."""
    try:
        content = read_sealed(path)
        seconds, cpu_seconds = content["seconds"], content["cpu_seconds"]
        if len(seconds) == len(cpu_seconds) < num_steps:
            return seconds, cpu_seconds
        print(f"{path} is of another study: the cell starts from its first step.", flush=True)
    except FileNotFoundError:
        pass
    except Damaged as error:
        print(f"{error} The cell starts from its first step.", flush=True)
    return [], []


def _cpu_seconds_of_children() -> float:
    """Return the CPU time of all processes that have ended: the clock says little where cores are shared."""
    times = os.times()
    return times.children_user + times.children_system


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
    cells, waiting = study.cells()
    lines, counts, seconds, left = [], Counter[str](), defaultdict[str, list[float]](list), list[str]()
    for cell in cells.values():
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
    counts["waiting"] += sum(waiting.values())
    left += [group for group, number in waiting.items() for _ in range(number)]
    done = [duration for group, values in seconds.items() if group for duration in values]
    hours = sum(statistics.median(seconds.get(group, done)) for group in left) / 3600 if done else None
    estimate = "unknown, for no cell is finished" if hours is None else f"{hours:.2f} hours, one cell at a time"
    return "\n".join([*lines, f"{', '.join(f'{n} {name}' for name, n in counts.items() if n)}; left: {estimate}"])


def run(study: Study, options: argparse.Namespace) -> int:
    """Run the cells that are to do; return the exit code, 0 if no cell of the study failed.

    Args:
        options: those of `add_options`.
    """
    output, jobs, budget_hours = options.output, options.jobs, options.budget_hours
    running: list[Running] = []
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    free = [set(cores[job::jobs] or cores) for job in range(jobs)]
    if options.retry:
        for cell in study.cells()[0].values():
            if (record := study.record(cell)) and record.status == "failed":
                study.forget(cell)
    results, has_time = study.results(), True
    write_results(results, output)
    if results.apart:
        print(f"{len(results.apart)} finished cells of other code, data or options stay in {output}, apart from the "
              "study's (--any_code counts those of other code as finished).", flush=True)  # fmt: skip
    try:
        while True:
            cells, _ = study.cells()
            busy = {job.cell.key for job in running}
            to_do = [cell for key, cell in study.to_do(cells).items() if key not in busy and study.is_ready(cell)]
            spent = sum(record.seconds for cell in cells.values() if (record := study.record(cell)))
            spent += sum(time.monotonic() - job.started for job in running)
            has_time = budget_hours is None or spent < 3600 * budget_hours
            while to_do and len(running) < jobs and has_time:
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
    if not has_time:
        print(f"--budget_hours {budget_hours} are spent: no further cell was started.")
    print(show(study, is_active=False) + f"\nWritten: {output}")
    records = map(study.record, study.cells()[0].values())
    return 1 if any(record is not None and record.status == "failed" for record in records) else 0


def add_options(parser: argparse.ArgumentParser, work_dir: str | None = None, output: str | None = None) -> None:
    """Add the options that every study takes; the folders may have defaults."""
    for name, default, text in (
        ("work_dir", work_dir, "folders of the cells: encoders, logs and raw samples"),
        ("output", output, "the results, rewritten whole after each cell"),
    ):
        parser.add_argument(f"--{name}", type=Path, default=default, required=default is None, help=text)
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; cores are divided (default: 1)")
    parser.add_argument("--nice", type=int, default=10, help="niceness of the processes (default: 10)")
    parser.add_argument(
        "--budget_hours",
        type=float,
        help="start no cell once all cells, finished ones included, took so many hours (default: no limit)",
    )
    parser.add_argument("--retry", action="store_true", help="run failed cells again")
    parser.add_argument("--any_code", action="store_true", help="count cells of other code as finished")
    parser.add_argument(
        "--list", action="store_true", help="list the cells that are done, running and to do; run nothing"
    )


def open_study(path: Path, given: Mapping[str, Any], options: argparse.Namespace) -> Study:
    """Open a study with the options of `add_options`; end the process in one line where it cannot be understood."""
    try:
        return Study(path, options.work_dir, given, options.output, options.any_code)
    except Damaged as error:
        end_with(
            f"{error} Take it from a copy, or move it away: a study writes its results anew from its --work_dir "
            f"({options.work_dir})."
        )
    except (OSError, ValueError) as error:
        end_with(str(error))


def list_or_run(study: Study, options: argparse.Namespace) -> int:
    """List or run the cells, as the options say; return the exit code."""
    with only_runner(study.work_dir) as is_alone:
        if options.list:
            print(show(study, is_active=not is_alone))
            return 0
        if not is_alone:
            raise SystemExit(f"Another process runs cells in {study.work_dir}: --list shows them.")
        return run(study, options)


def run_study(
    path: Path,
    doc: str | None,
    arguments: Arguments,
    markdown: Callable[[Results], str],
    plot: Callable[[Results, Path], None],
) -> NoReturn:
    """Run a study from its command line: run its cells, then write tables and a figure of all results so far.

    Groups that are named after an option which is not given, and has no default in the YAML, are left out.

    Args:
        path: of the YAML; the folder of the cells and the results have the name of its folder.
        doc: the help.
        arguments: options beside --data_dir, as `add_argument` takes them; variables of the YAML where they are given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="folder with a folder of each data set")
    for name, settings in arguments.items():
        parser.add_argument(f"--{name}", **settings)
    add_options(parser, f"outputs/{path.parent.name}_study", f"benchmarks/results/{path.parent.name}.json")
    options = parser.parse_args()
    given = {name: value for name in ("data_dir", *arguments) if (value := getattr(options, name)) is not None}
    study = open_study(path, given, options)
    missing = tuple(name for name in arguments if name not in study.variables)
    study.groups = {name: group for name, group in study.groups.items() if not name.startswith(missing)}
    code = list_or_run(study, options)
    if not options.list:
        results = read_results(options.output)
        write_text(options.output.with_suffix(".md"), markdown(results))
        plot(results, options.output.with_suffix(".png"))
    sys.exit(code)


def main() -> None:
    """Run a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="the YAML of the study")
    add_options(parser)
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="variables of the YAML; values that exist as paths are paths",
    )
    options = parser.parse_args()
    given = {name: yaml.safe_load(value) for name, value in (word.split("=", 1) for word in options.set)}
    sys.exit(list_or_run(open_study(options.study, given, options), options))


if __name__ == "__main__":
    main()
