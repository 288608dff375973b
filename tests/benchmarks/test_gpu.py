"""Everything of `make gpu` but the device: all rows, tiny; a row that raises; a call that skips. No time."""

import json

import psutil
import pytest
import torch

from benchmarks import gpu
from benchmarks.speed import gpu_pretraining
from benchmarks.speed.gpu_rows import ROWS, Setting


@pytest.fixture
def prepared(tmp_path, corpus_file):
    folder = tmp_path / "documents"
    gpu_pretraining.prepare(str(corpus_file), folder, vocab_size=300)
    return folder


IN_PROCESSES = ("attention", "pretraining")  # PyTorch's profiler, once used, slows all that comes after it


@pytest.mark.usefixtures("run_here")  # which puts back what a row changes in this process
@pytest.mark.parametrize("name", [name for name in ROWS if name not in IN_PROCESSES])
def test_a_row_measures_all_that_this_machine_has(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", int)
    lines = []
    ROWS[name].measure(Setting("cpu", True, tmp_path, tmp_path), lines.append)
    assert lines
    failed = {line["what"] for line in lines if "failed" in line}
    assert failed <= {"sentence-transformers, flash attention, no masked LM"}
    assert ({line.get("note") for line in lines} == {"there"}) == (name == "waits")  # tests that a GPU would run


def test_rows_in_their_processes_then_the_one_that_failed(tmp_path, prepared, run_here, monkeypatch, capsys):
    documents = prepared / "documents.npz"
    there = documents.read_bytes()
    documents.unlink()
    monkeypatch.setattr(gpu, "ROWS", {name: ROWS[name] for name in IN_PROCESSES})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ("--tiny", "--device", "cpu", "--minutes", 9, "--output_dir", tmp_path, "--documents", prepared)

    def measure():
        with pytest.raises(SystemExit, match=r"^0$"):
            run_here(gpu.main, *words)
        rows = {row["row"]: row for row in json.loads((tmp_path / "gpu.json").read_text())["rows"]}
        return capsys.readouterr().out, rows

    printed, rows = measure()
    assert "2 rows to measure, 0 there" in printed
    assert {name for name, row in rows.items() if row["failed"]} == {"pretraining"}
    assert "No such file" in rows["pretraining"]["failed"]
    assert len(rows["attention"]["lines"]) == 4
    assert (tmp_path / "gpu.md").read_text() in printed
    assert f"Missing: pretraining. The same command measures them, where {tmp_path / 'gpu.json'} is" in printed

    documents.write_bytes(there)
    printed, rows = measure()
    assert "1 rows to measure, 1 there" in printed
    assert "Missing" not in printed
    assert len(rows["pretraining"]["lines"][-1]["losses"]) == 4


@pytest.mark.usefixtures("run_here", "packs_as_on_gpu")
def test_the_first_row_packs_in_the_precision_of_all(tmp_path, monkeypatch):
    """It is tiny, and was in full precision, which packs of a GPU refuse."""
    monkeypatch.setattr(torch, "set_num_threads", int)
    monkeypatch.setattr(Setting, "precision", "bf16")
    lines = []
    ROWS["smoke"].measure(Setting("cpu", True, tmp_path, tmp_path), lines.append)
    assert len(lines) == 1
    monkeypatch.setattr(Setting, "precision", "fp32")
    with pytest.raises(RuntimeError, match=r"ours: .*16-bit precision"):
        ROWS["smoke"].measure(Setting("cpu", True, tmp_path, tmp_path), lines.append)


def test_rows_of_another_gpu_or_code_are_measured_again(tmp_path):
    key = {"gpu": "NVIDIA H100 80GB HBM3", "code": "a", "tiny": False}
    there = [key | {"row": "smoke", "failed": None}, key | {"row": "waits", "failed": "it failed"}]
    assert list(gpu.rows_to_run(there, key, tmp_path))[:2] == ["step_36", "step_192"]
    assert "waits" in gpu.rows_to_run(there, key, tmp_path)  # it failed
    assert next(gpu.rows_to_run(there, key | {"code": "b"}, tmp_path)) == "smoke"
    assert "pretraining" not in gpu.rows_to_run([], key, tmp_path / "none")


def test_a_row_ends_at_its_limit_with_all_that_it_started(tmp_path, monkeypatch):
    lines = [
        {"what": "ours", "documents": 36, "seconds": 2.0, "note": "1 of 3 rounds"}, {"what": "theirs", "seconds": 4.0},
        {"what": "ours", "documents": 36, "seconds": 1.0},
    ]  # fmt: skip
    (tmp_path / "said").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = f"cd {tmp_path}/smoke; touch ready; read; cp ../said lines.jsonl; sleep 60 & echo $! > child; sleep 60"
    monkeypatch.setattr(gpu, "command_of", lambda *_: ["bash", "-c", script])
    process = gpu.Process("smoke", Setting("cpu", True, tmp_path / "smoke", tmp_path))
    process.wait_until_ready(deadline=float("inf"))
    kept, failed = process.run(1)
    assert (kept, failed) == ([lines[2], lines[1]], "stopped after 1 seconds")
    child = int((tmp_path / "smoke" / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_prepared_documents_come_once_an_epoch_whole(prepared):
    documents = gpu_pretraining.PreparedDocuments(prepared / "documents.npz", 10_000)
    size = len(documents.units)
    first = [documents[index] for index in range(size)]
    again = [documents[index] for index in range(size, 2 * size)]
    assert {row["document_id"] for row in first} == {row["document_id"] for row in again} == {*documents.document_ids}
    assert [row["document_id"] for row in first] != [row["document_id"] for row in again]
    assert {row["epoch"] for row in first} == {0}
    assert sum(len(row["input_ids"]) for row in first) == len(documents.ids)
    assert all(row["unit_lengths"].sum() == len(row["input_ids"]) for row in first)
