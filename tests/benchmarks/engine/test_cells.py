"""Cells of a study run once, whatever is killed, and their rows are whole: toy scripts, real kills."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

from tests.benchmarks.engine.conftest import CASES


def finish(process, code=0):
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    return output


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def starts(folder):
    """Return the starts of each cell: its value, the process, and whether it was told to go on."""
    texts = [path.read_text() for path in sorted((folder / "work").glob("*/out/starts.txt"))]
    return [text.splitlines() for text in texts if text]  # not yet written: not yet started


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_cell_runs_once_and_its_row_is_whole(study, tmp_path):
    start = study({"all": {"grid": {"seed": [0, 1]}, "cases": CASES}})
    finish(start())
    rows = results_of(tmp_path)["rows"]
    assert [(row["method"], row["seed"], row["value"]) for row in rows] == [
        ("a", 0, 1.0), ("b", 0, 2.0), ("a", 1, 1.0), ("b", 1, 2.0),
    ]  # fmt: skip
    for row in rows:
        assert set(row) == {"cell", "data", "task", "method", "seed", "metric", "value", "seconds"}
        assert (row["data"], row["task"], row["metric"]) == ("toy", "add", "score")
    assert len({row["cell"] for row in rows}) == 4
    before = (tmp_path / "results.json").read_bytes()
    finish(start())
    assert [len(lines) for lines in starts(tmp_path)] == [1, 1, 1, 1]
    assert (tmp_path / "results.json").read_bytes() == before
    assert all(int(lines[0].split()[2]) == min(os.nice(0) + 10, 19) for lines in starts(tmp_path))


def test_a_killed_study_goes_on_and_leaves_no_process(study, tmp_path):
    gate = {"wait": str(tmp_path / "gate")}
    cases = [CASES[0], {"method": "b", "own": {"value": 2} | gate}, {"method": "c", "own": {"value": 3}}]
    start = study({"all": {"cases": cases}}, variables={"seed": 0})
    process = start()
    wait_for(lambda: len(starts(tmp_path)) == 2)
    listed = finish(start("--list"))
    assert [line.split()[0] for line in listed.splitlines()[:3]] == ["done", "running", "to"]
    assert "hours, one cell at a time" in listed
    assert "Another process runs cells" in finish(start(), code=1)
    (pid,) = {int(line.split()[0]) for lines in starts(tmp_path) for line in lines if _is_alive(int(line.split()[0]))}
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not _is_alive(pid))  # the step dies with its runner
    assert [row["method"] for row in results_of(tmp_path)["rows"]] == ["a"]
    assert [line.split()[0] for line in finish(start("--list")).splitlines()[:3]] == ["done", "stopped", "to"]
    (tmp_path / "gate").touch()
    finish(start())
    assert sorted(row["value"] for row in results_of(tmp_path)["rows"]) == [1, 2, 3]
    assert sorted(" ".join(line.split()[1] for line in lines) for lines in starts(tmp_path)) == [
        "False", "False", "False True",
    ]  # fmt: skip


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_failing_cell_is_recorded_and_the_others_go_on(study, tmp_path):
    cases = [{"method": "bad", "own": {"value": -1}}, CASES[1]]
    start = study({"all": {"cases": cases}}, variables={"seed": 0})
    assert "negative value" in finish(start(), code=1)
    results = results_of(tmp_path)
    assert [row["method"] for row in results["rows"]] == ["b"]
    (failed,) = [record for record in results["cells"].values() if record["status"] == "failed"]
    assert failed["error"] == "step 0: exit code 1"
    assert failed["log"][-2:] == ["A long way down", "negative value"]
    finish(start(), code=1)
    assert sorted(map(len, starts(tmp_path))) == [1, 1]
    finish(start("--retry"), code=1)
    assert sorted(map(len, starts(tmp_path))) == [1, 2]


def test_results_are_enough_to_go_on(study, tmp_path):
    finish(study({"all": {"cases": CASES[:1]}}, variables={"seed": 0})())
    start = study({"all": {"cases": CASES}}, variables={"seed": 0})
    (first,) = results_of(tmp_path)["cells"].values()
    shutil.rmtree(tmp_path / "work")
    finish(start())
    assert len(starts(tmp_path)) == 1  # the second cell alone
    assert [row["value"] for row in results_of(tmp_path)["rows"]] == [1, 2]
    assert results_of(tmp_path)["cells"][first["key"]] == first
    # One line where they are cut, and a cell whose record is cut runs again
    results, (record,) = tmp_path / "results.json", (tmp_path / "work").glob("*/cell.json")
    for path in (results, record):
        os.truncate(path, 100)
    (line,) = finish(start(), code=1).splitlines()
    assert line.startswith(f"error: {results} is damaged: it holds no JSON")
    assert "move it away" in line
    results.unlink()
    output = finish(start())
    assert output.count(f"{record} is damaged") == output.count("counts as stopped") == 1
    assert [row["value"] for row in results_of(tmp_path)["rows"]] == [1, 2]


def test_cells_of_other_code_stay_apart_until_they_are_accepted(study, tmp_path):
    finish(study({"all": {"cases": CASES[:1]}}, variables={"seed": 0})())
    old = results_of(tmp_path)
    shutil.rmtree(tmp_path / "work")
    start = study({"all": {"cases": CASES}}, variables={"seed": 0}, code=["benchmarks/engine/study.py"])
    assert "1 done, 1 to do" in finish(start("--any_code", "--list"))
    assert "1 finished cells of other code, data or options stay" in finish(start())
    results = results_of(tmp_path)
    assert [row["value"] for row in results["rows"]] == [1, 2]
    assert not set(results["cells"]) & set(old["cells"])
    assert (results["apart"], results["apart_rows"]) == (old["cells"], old["rows"])
