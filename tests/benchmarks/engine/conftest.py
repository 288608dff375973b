"""A study of toy scripts."""

import subprocess
import sys

import pytest
import yaml

from tests.processes import ROOT

CASES = [{"method": name, "own": {"value": value}} for name, value in {"a": 1, "b": 2}.items()]
TOY = """
import argparse, json, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=pathlib.Path)
parser.add_argument("--value", type=float)
parser.add_argument("--wait", type=pathlib.Path)
parser.add_argument("--go_on", default="False")
options = parser.parse_args()
options.output_dir.mkdir(parents=True, exist_ok=True)
with (options.output_dir / "starts.txt").open("a") as file:
    file.write(f"{os.getpid()} {options.go_on} {os.nice(0)}\\n")
if options.value < 0:
    print("A long way down")
    raise SystemExit("negative value")
while options.wait is not None and not options.wait.exists():
    time.sleep(0.01)
(options.output_dir / "results.json").write_text(json.dumps({"score": options.value}))
"""
RUN = """
import sys
from pathlib import Path
from benchmarks.engine.cells import run_study
run_study(Path(sys.argv.pop(1)), "", {"data_file": {}})
"""
MEASURE = {"metric": "score", "file": "{folder}/out/results.json", "value": "score"}


@pytest.fixture
def study(tmp_path):
    """Writes a study of toys, and returns a function that starts the runner."""
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "data.txt").write_text("one")

    def make(groups, **content):
        for group in groups.values():
            step = {"script": str(tmp_path / "toy.py"), "options": [{"output_dir": "{folder}/out"}, "{own}"]}
            group.setdefault("steps", [step | {"again": {"go_on": True}}])
            group.setdefault("measures", [MEASURE])
            group.setdefault("fields", {"data": "toy", "task": "add", "method": "{method}", "seed": "{seed}"})
            group.setdefault("data", ["{data_file}"])
        (tmp_path / "study.yaml").write_text(
            yaml.safe_dump({"code": ["benchmarks/engine/cells.py"], "groups": groups} | content, sort_keys=False)
        )

        def start(*options):
            words = ["--work_dir", tmp_path / "work", "--output", tmp_path / "results.json", *options]
            words += ["--data_file", tmp_path / "data.txt"]
            return subprocess.Popen(
                [sys.executable, "-c", RUN, tmp_path / "study.yaml", *map(str, words)],
                cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip

        return start

    return make
