"""A study of toy scripts: its cells run once, whatever is killed, and what is read of them is what was written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.engine.cells import run_study
from benchmarks.engine.results import Record, Results, read_results, write_results
from benchmarks.engine.study import Study
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
    """Writes a study of toys."""
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "data.txt").write_text("one")

    def write(groups, **content):
        for group in groups.values():
            step = {"script": str(tmp_path / "toy.py"), "options": [{"output_dir": "{folder}/out"}, "{own}"]}
            group.setdefault("steps", [step | {"again": {"go_on": True}}])
            group.setdefault("measures", [MEASURE])
            group.setdefault("fields", {"data": "toy", "task": "add", "method": "{method}", "seed": "{seed}"})
            group.setdefault("data", ["{data_file}"])
        content = {"code": ["benchmarks/engine/cells.py"], "groups": groups} | content
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    return write


def words(folder, *options):
    words = [folder / "study.yaml", "--work_dir", folder / "work", "--output", folder / "results.json", *options]
    return [*map(str, words), "--data_file", str(folder / "data.txt")]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the study, and returns what it says."""

    def run(*options, code=0):
        path, *given = words(tmp_path, *options)
        monkeypatch.setattr(sys, "argv", ["study", *given])
        with pytest.raises(SystemExit) as ended:
            run_study(Path(path), "", {"data_file": {}})
        said = "".join(capsys.readouterr())
        assert isinstance(ended.value.code, str) if code is None else ended.value.code == code, said
        return said or ended.value.code

    return run


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def starts(folder):
    """Return the starts of each cell: the process, whether it was told to go on, and its niceness."""
    texts = [path.read_text() for path in sorted((folder / "work").glob("*/out/starts.txt"))]
    return [[line.split() for line in text.splitlines()] for text in texts if text]  # not yet written: not yet started


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_cell_runs_once_and_its_row_is_whole(study, run, tmp_path):
    study({"all": {"grid": {"seed": [0, 1]}, "cases": CASES}})
    run()
    rows = results_of(tmp_path)["rows"]
    assert [(row["method"], row["seed"], row["value"]) for row in rows] == [
        ("a", 0, 1.0), ("b", 0, 2.0), ("a", 1, 1.0), ("b", 1, 2.0),
    ]  # fmt: skip
    for row in rows:
        assert set(row) == {"cell", "data", "task", "method", "seed", "metric", "value", "seconds"}
        assert (row["data"], row["task"], row["metric"]) == ("toy", "add", "score")
    assert len({row["cell"] for row in rows}) == 4
    before = (tmp_path / "results.json").read_bytes()
    run()
    assert (tmp_path / "results.json").read_bytes() == before
    assert [int(niceness) for ((_, _, niceness),) in starts(tmp_path)] == [min(os.nice(0) + 10, 19)] * 4


def test_a_killed_study_goes_on_and_leaves_no_process(study, run, tmp_path):
    gate = {"wait": str(tmp_path / "gate")}
    cases = [CASES[0], {"method": "b", "own": {"value": 2} | gate}, {"method": "c", "own": {"value": 3}}]
    study({"all": {"cases": cases}}, variables={"seed": 0})
    process = subprocess.Popen([sys.executable, "-c", RUN, *words(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(lambda: len(starts(tmp_path)) == 2)
    listed = run("--list")
    assert [line.split()[0] for line in listed.splitlines()[:3]] == ["done", "running", "to"]
    assert "hours, one cell at a time" in listed
    assert "Another process runs cells" in run(code=None)
    (pid,) = [int(pid) for ((pid, _, _),) in starts(tmp_path) if _is_alive(pid)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not _is_alive(pid))  # the step dies with its runner
    assert [row["method"] for row in results_of(tmp_path)["rows"]] == ["a"]
    assert [line.split()[0] for line in run("--list").splitlines()[:3]] == ["done", "stopped", "to"]
    (tmp_path / "gate").touch()
    run()
    assert sorted(row["value"] for row in results_of(tmp_path)["rows"]) == [1, 2, 3]
    assert sorted([go_on for _, go_on, _ in of_cell] for of_cell in starts(tmp_path)) == [
        ["False"], ["False"], ["False", "True"],
    ]  # fmt: skip


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_failing_cell_is_recorded_and_the_others_go_on(study, run, tmp_path):
    study({"all": {"cases": [{"method": "bad", "own": {"value": -1}}, CASES[1]]}}, variables={"seed": 0})
    assert "negative value" in run(code=1)
    results = results_of(tmp_path)
    assert [row["method"] for row in results["rows"]] == ["b"]
    (failed,) = [record for record in results["cells"].values() if record["status"] == "failed"]
    assert failed["error"] == "step 0: exit code 1"
    assert failed["log"][-2:] == ["A long way down", "negative value"]
    run(code=1)
    assert sorted(map(len, starts(tmp_path))) == [1, 1]
    run("--retry", code=1)
    assert sorted(map(len, starts(tmp_path))) == [1, 2]


def test_results_are_enough_to_go_on(study, run, tmp_path):
    study({"all": {"cases": CASES[:1]}}, variables={"seed": 0})
    run()
    study({"all": {"cases": CASES}}, variables={"seed": 0})
    (first,) = results_of(tmp_path)["cells"].values()
    shutil.rmtree(tmp_path / "work")
    run()
    assert len(starts(tmp_path)) == 1  # the second cell alone
    assert [row["value"] for row in results_of(tmp_path)["rows"]] == [1, 2]
    assert results_of(tmp_path)["cells"][first["key"]] == first
    # One line where they are cut, and a cell whose record is cut runs again
    results, (record,) = tmp_path / "results.json", (tmp_path / "work").glob("*/cell.json")
    for path in (results, record):
        os.truncate(path, 100)
    (line,) = run(code=1).splitlines()
    assert line.startswith(f"error: {results} is damaged: it holds no JSON")
    assert "move it away" in line
    results.unlink()
    assert run().count(f"{record} is damaged") == 1
    assert [row["value"] for row in results_of(tmp_path)["rows"]] == [1, 2]


def test_cells_of_other_code_stay_apart_until_they_are_accepted(study, run, tmp_path):
    study({"all": {"cases": CASES[:1]}}, variables={"seed": 0})
    run()
    old = results_of(tmp_path)
    shutil.rmtree(tmp_path / "work")
    study({"all": {"cases": CASES}}, variables={"seed": 0}, code=["benchmarks/engine/study.py"])
    assert "1 done, 1 to do" in run("--any_code", "--list")
    assert "1 finished cells of other code, data or options stay" in run()
    results = results_of(tmp_path)
    assert [row["value"] for row in results["rows"]] == [1, 2]
    assert not set(results["cells"]) & set(old["cells"])
    assert (results["apart"], results["apart_rows"]) == (old["cells"], old["rows"])


def test_code_data_and_options_make_a_cell_another_one_and_places_do_not(study, tmp_path):
    study({"all": {"cases": CASES}}, variables={"seed": 0})

    def keys(file=tmp_path / "data.txt", **variables):
        return list(Study(tmp_path / "study.yaml", tmp_path / "work", {"data_file": str(file)} | variables).cells())

    first = keys()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data.txt").write_text("one")
    assert keys(tmp_path / "elsewhere" / "data.txt") == first
    assert not set(keys(seed=1)) & set(first)
    (tmp_path / "data.txt").write_text("two")
    assert not set(keys()) & set(first)
    (tmp_path / "data.txt").write_text("one")
    assert keys() == first
    study({"all": {"cases": CASES}}, variables={"seed": 0}, code=["benchmarks/engine/study.py"])
    assert not set(keys()) & set(first)


def chain():
    """A start, two encoders trained from it, and what is measured of each."""
    seeds, trained = {"seed": [0, 1]}, [{"method": "b", "own": {"value": 2}}]
    measured = [{"own": {"value": 3, "wait": "{encoder}/out/results.json"}}]  # the toy waits for this file
    fields = {"data": "toy", "method": "a", "seed": None}
    return {
        "start": {"cases": [{"own": {"value": 1}}], "fields": fields},
        "trained": {"grid": seeds, "cases": trained, "needs": {"origin": "start"}},
        "measured": {"grid": seeds, "cases": measured, "needs": {"encoder": "trained"}, "fields": fields},
    }


def test_a_cell_waits_for_the_one_with_its_variables_and_a_lost_folder_is_made_again(study, run, tmp_path):
    def started(output):
        return [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("started")]

    study(chain())
    order = started(run("--jobs", "2"))
    assert order[0] == "start"
    given = {"data_file": str(tmp_path / "data.txt")}
    cells = {cell.name: cell for cell in Study(tmp_path / "study.yaml", tmp_path / "work", given).cells().values()}
    assert sorted(cells) == sorted(order)
    for seed in (0, 1):
        trained, measured = f"trained seed={seed} method=b", f"measured seed={seed}"
        assert order.index(trained) < order.index(measured)
        assert cells[measured].needs["encoder"] == cells[trained]
        assert cells[trained].needs["origin"] == cells["start"]
    assert len(read_results(tmp_path / "results.json").rows) == 5

    # The results alone are no encoder: what another cell needs is made again, and nothing else
    shutil.rmtree(tmp_path / "work" / cells["trained seed=1 method=b"].key)
    groups = chain()
    groups["measured"]["cases"][0]["own"]["value"] = 4
    study(groups)
    output = run()
    assert "trained seed=1 method=b, which is lost: that one runs again" in output
    assert sorted(started(output)) == ["measured seed=0", "measured seed=1", "trained seed=1 method=b"]


def test_what_is_read_is_what_was_written_and_samples_are_no_part_of_the_json(tmp_path):
    def row(value, count):
        samples = {"samples": np.random.default_rng(count).normal(size=count).round(5).tolist()} if count else {}
        return {"cell": "a", "metric": "accuracy", "value": value} | samples

    cells = {
        "a": Record("first", "done", "a", "x", "commit", 1.5, [row(0.1, 7), row(0.2, 0), row(0.3, 300)]),
        "c": Record("third", "failed", "c", "z", error="step 0: exit code 1", log=["one", "two"]),
    }
    apart = {"d": Record("old", "done", "d", "w", rows=[row(0.5, 3) | {"cell": "d"}])}
    results, path = Results({"python": "3"}, ["fourth"], cells, apart), tmp_path / "new" / "study.json"
    write_results(results, path)
    assert read_results(path) == results
    content = json.loads(path.read_text())
    assert [row.get("samples") for row in content["rows"]] == [7, None, 300]
    assert content["apart_rows"] == [row(0.5, 3) | {"cell": "d", "samples": 3}]
    before = [file.read_bytes() for file in sorted(path.parent.iterdir())]
    write_results(read_results(path), path)
    assert [file.read_bytes() for file in sorted(path.parent.iterdir())] == before
