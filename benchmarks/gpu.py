"""What is worth measuring on a GPU, in the order of its worth, for a machine that is there for minutes.

    make gpu
    python -m benchmarks.gpu --minutes 9 --output_dir outputs/gpu
    python -m benchmarks.gpu --prepare python_docs      # tokenise the documents of the last row, where datasets is
    python -m benchmarks.gpu --tiny --device cpu --output_dir outputs/tiny        # all rows, but for the device

Each row is a process with a limit of its own. All start at once, so that all cores import, and each then waits for its
turn: nothing runs beside a row that is timed. The first row takes seconds and is a bit of all others; if it fails, the
rest is not tried. A row that fails costs itself alone, and one that meets its limit keeps the lines that it has. After
each row `gpu.json` and `gpu.md` in the output folder are whole; rows that are there for this GPU and this code, or in
benchmarks/results/gpu.json, are not measured again. A row that no longer fits into the minutes is left for the next
call, which needs gpu.json where this one wrote it; the last lines say so.

Speeds, shares and waits are those of `benchmarks.speed.gpu_step`. A machine needs torch, transformers,
sentence-transformers, scikit-learn, pyarrow, lxml, charset-normalizer, xxhash and pytest; the row `waits` trains by
the script, which needs all of requirements.txt.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.speed.gpu_rows import ROWS, Line, Setting

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "benchmarks/results/gpu.json"
CODE = ("docsplit", "benchmarks/gpu.py", "benchmarks/speed", "modeling_docsplit.py", "modeling_graph_document.py")
# Operations a second in bfloat16, dense, by NVIDIA's data sheets
NOMINAL_PEAKS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12, "NVIDIA A100-SXM4": 312e12}
LEAST = 20  # seconds that must be left for a row to begin
ENVIRONMENT = {  # of rows
    "JAX_PLATFORMS": "cpu",  # bm25s starts JAX where that is installed, which takes the GPU's memory
    "TQDM_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


# --- A row's process ---


def serve(name: str, setting: Setting) -> None:
    """Import, say so by a file, wait for a line on standard input, and measure: a line of JSON for each line."""
    for module in ("benchmarks.speed.gpu_step", "docsplit.embedding.encode"):
        with contextlib.suppress(ImportError):  # the row itself says what it lacks
            importlib.import_module(module)
    gc.freeze()  # each look for garbage would go through what was imported, for a quarter of a second
    (setting.folder / "ready").touch()
    if not sys.stdin.readline():
        return
    with (setting.folder / "lines.jsonl").open("a", encoding="utf-8") as file:

        def report(line: Line) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        ROWS[name].measure(setting, report)


def command_of(name: str, setting: Setting) -> list[str]:
    """Return the command of a row's process."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--row", name, "--device", setting.device]
    command += ["--output_dir", str(setting.folder), "--documents", str(setting.documents)]
    return [*command, *["--tiny"] * setting.tiny]


class Process:
    """The process of a row, from its start to its end."""

    def __init__(self, name: str, setting: Setting):
        self.name, self.folder = name, setting.folder
        self.folder.mkdir()
        self.log = (self.folder / "log").open("w")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": self.log, "stderr": self.log, "text": True}
        self.process = subprocess.Popen(command_of(name, setting), cwd=ROOT, start_new_session=True, **pipes)

    def wait_until_ready(self, deadline: float) -> None:
        """Wait until it has imported, has ended, or time is up."""
        while not (self.folder / "ready").exists() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def run(self, seconds: float) -> tuple[list[Line], str | None]:
        """Let it measure for so long; return its lines, and the end of its error if there is one."""
        failed = None
        try:
            self.process.communicate("go\n", timeout=seconds)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            failed = f"stopped after {seconds:.0f} seconds"
        if failed is None and (code := self.process.returncode):
            text = (self.folder / "log").read_text(errors="replace").strip().splitlines()
            failed = text[-1][-300:] if text and code > 0 else f"exit code {code}"
        self.end()
        path, lines = self.folder / "lines.jsonl", dict[Any, Line]()
        for line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            lines[line["what"], line.get("documents")] = line  # the last of several says most
        return list(lines.values()), failed

    def end(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


# --- The table ---


def markdown(records: list[dict[str, Any]]) -> str:
    """Return a table of all that was measured on each GPU and commit."""
    from docsplit.evaluation.results.markdown import markdown_table

    header = ["row", "documents", "tokens/s", "min ... max", "seconds"]
    header += ["of NVIDIA's peak, %", "of products, %", "waits a step", "MB", "note"]
    parts = []
    for gpu, commit in dict.fromkeys((record["gpu"], record["commit"]) for record in records):
        here = [record for record in records if (record["gpu"], record["commit"]) == (gpu, commit)]
        known = [line["flops_per_second"] for record in here if record["row"] == "smoke" for line in record["lines"]]
        nominal = next((peak for name, peak in NOMINAL_PEAKS.items() if gpu.startswith(name)), None)
        rows = []
        for record in here:
            rows += [cells(record["row"], line, nominal, known[0] if known else None) for line in record["lines"]]
            if record["failed"]:
                rows.append([record["row"], *[""] * 8, record["failed"]])
        versions = ", ".join(f"{name} {of_row}" for name, of_row in here[0]["versions"].items() if of_row)
        parts.append(f"**{gpu}**, commit {commit or 'unknown'}; {versions}\n\n{markdown_table(header, rows)}\n")
    return "\n".join(parts)


def cells(row: str, line: Line, nominal: float | None, product: float | None) -> list[str]:
    """Return the cells of a line; what was not measured is empty."""

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    flops = line.get("flops_per_second")
    low, high = (number(line.get(f"tokens_per_second_{end}"), ",.0f") for end in ("min", "max"))
    shares = [number(flops and peak and 100 * flops / peak, ".1f") for peak in (nominal, product)]
    middle = [number(line.get("documents"), ","), number(line.get("tokens_per_second"), ",.0f")]
    middle += [f"{low} ... {high}" if low else "", number(line.get("seconds"), ".3f"), *shares]
    ends = [number(line.get("waits"), ".1f"), number(line.get("memory_mb"), ",.0f")]
    return [f"{row}: {line['what']}", *middle, *ends, line.get("failed") or line.get("note", "")]


# --- All rows ---


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the records of an earlier call; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def rows_to_run(earlier: list[dict[str, Any]], key: dict[str, Any], documents: Path) -> Iterator[str]:
    """Name the rows that are missing or failed for this GPU and code; the last one only where it is prepared."""
    done = {record["row"] for record in earlier if key.items() <= record.items() and not record["failed"]}
    for name in ROWS:
        if name not in done and (name != "pretraining" or documents.exists()):
            yield name


def measure_all(options: argparse.Namespace, started: float) -> int:
    """Run the rows that are missing while there is time; return the exit status."""
    from docsplit.runtime.files import commit_of_code, hash_of_code, versions, write_text
    from docsplit.runtime.launching import hardware

    key = {"gpu": hardware(options.device), "code": hash_of_code(*CODE), "tiny": options.tiny}
    about = key | {"commit": commit_of_code(), "versions": versions()}
    output = options.output_dir / "gpu.json"
    options.output_dir.mkdir(parents=True, exist_ok=True)
    records = read_records(output) or ([] if options.tiny else read_records(COMMITTED))
    wanted = list(rows_to_run(records, key, options.documents))
    print(f"{key['gpu']}: {len(wanted)} rows to measure, {len(ROWS) - len(wanted)} there or not prepared.", flush=True)
    deadline = started + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(options.device, options.tiny, Path(folder), options.documents.resolve())
        processes = [Process(name, replace(setting, folder=Path(folder) / name)) for name in wanted]
        try:
            for process in processes:
                process.wait_until_ready(deadline)
            for process in processes:
                row, begun = ROWS[process.name], time.monotonic()
                if (left := deadline - begun) < LEAST:
                    print(f"{process.name}: left for the next call.", flush=True)
                    continue
                lines, failed = process.run(min(options.row_seconds or row.seconds, left))
                seconds = time.monotonic() - begun
                this = key | {"row": process.name}
                records = [record for record in records if not this.items() <= record.items()]
                records.append(about | this | {"seconds": round(seconds, 1), "lines": lines, "failed": failed})
                write_text(output, json.dumps({"rows": records}, indent=1) + "\n")
                write_text(output.with_suffix(".md"), markdown(records))
                told = f"{process.name} ({row.about}): {len(lines)} lines in {seconds:.0f} s"
                print(f"{told}; {failed}" if failed else told, flush=True)
                if failed and process.name == "smoke":
                    print("Nothing else was tried: mend this first.", flush=True)
                    return 1
        finally:
            for process in processes:
                process.end()
    print(f"\n{markdown(records)}\nWritten to {output} and {output.with_suffix('.md')}.")
    if missing := list(rows_to_run(records, key, options.documents)):
        print(f"Missing: {', '.join(missing)}. The same command measures them, where {output} is as it is now.")
        print("--row_seconds 300 gives each more time than its own limit.")
    if "pretraining" not in missing and not options.documents.exists():
        print(f"For the row pretraining carry {options.documents} too; --prepare python_docs writes it.")
    return 0


def main() -> None:
    """Measure, prepare, or serve as a row's process."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="after which no row begins or goes on (default: 9)")
    parser.add_argument("--row_seconds", type=float, help="limit of each row (default: its own, 45 to 240)")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/gpu"), help="default: outputs/gpu")
    parser.add_argument("--documents", type=Path, default=Path("outputs/gpu/documents"), help="folder of --prepare")
    parser.add_argument("--prepare", metavar="CORPUS", help="write the documents of the last row; measure nothing")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models: try the rows, measure nothing")
    parser.add_argument("--row", choices=list(ROWS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cpu" and not (options.tiny or options.prepare):
        parser.error("--device cpu needs --tiny: nothing on a CPU is worth minutes here.")
    os.environ |= ENVIRONMENT
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # Trainer would use all that it sees
    if options.row:
        serve(options.row, Setting(options.device, options.tiny, options.output_dir, options.documents))
    elif options.prepare:
        from benchmarks.speed.gpu_pretraining import prepare

        prepare(options.prepare, options.documents)
    else:
        sys.exit(measure_all(options, started))


if __name__ == "__main__":
    main()
