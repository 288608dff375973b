"""Everything of `make gpu` but the device: all rows, tiny; a row that raises; a call that skips. No time."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from benchmarks import gpu
from benchmarks.speed import gpu_pretraining
from benchmarks.speed.gpu_rows import ROWS, Setting
from tests.processes import ROOT


@pytest.fixture
def prepared(tmp_path, corpus_file):
    folder = tmp_path / "documents"
    gpu_pretraining.prepare(str(corpus_file), folder, vocab_size=300)
    return folder


def test_all_rows_then_those_that_failed(tmp_path, prepared):
    documents = prepared / "documents.npz"
    there = documents.read_bytes()
    documents.unlink()

    def measure():
        command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--device", "cpu", "--minutes", "9"]
        command += ["--output_dir", str(tmp_path), "--documents", str(prepared)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return result.stdout, {row["row"]: row for row in json.loads((tmp_path / "gpu.json").read_text())["rows"]}

    printed, rows = measure()
    assert f"{len(ROWS)} rows to measure, 0 there" in printed
    assert rows.keys() == ROWS.keys()
    assert {name for name, row in rows.items() if row["failed"]} == {"pretraining"}
    assert "No such file" in rows["pretraining"]["failed"]
    assert {line["what"] for row in rows.values() for line in row["lines"] if "failed" in line} == {
        "sentence-transformers, flash attention, no masked LM"
    }
    assert (tmp_path / "gpu.md").read_text() in printed

    documents.write_bytes(there)
    printed, rows = measure()
    assert f"1 rows to measure, {len(ROWS) - 1} there" in printed
    assert len(rows["pretraining"]["lines"][-1]["losses"]) == 4


def test_rows_of_another_gpu_or_code_are_measured_again(tmp_path):
    key = {"gpu": "NVIDIA H100 80GB HBM3", "code": "a", "tiny": False}
    there = [key | {"row": "smoke", "failed": None}, key | {"row": "waits", "failed": "it failed"}]
    assert list(gpu.rows_to_run(there, key, tmp_path))[:2] == ["waits", "step_36_full"]
    assert next(gpu.rows_to_run(there, key | {"code": "b"}, tmp_path)) == "smoke"
    assert "pretraining" not in gpu.rows_to_run([], key, tmp_path / "none")


def test_a_row_ends_at_its_limit_with_all_that_it_started(tmp_path, monkeypatch):
    script = f"cd {tmp_path}/smoke; touch ready; read; sleep 60 & echo $! > child; sleep 60"
    monkeypatch.setattr(gpu, "command_of", lambda *_: ["bash", "-c", script])
    process = gpu.Process("smoke", Setting("cpu", True, tmp_path / "smoke", tmp_path))
    process.wait_until_ready(deadline=float("inf"))
    lines, failed = process.run(1)
    assert (lines, failed) == ([], "stopped after 1 seconds")
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
