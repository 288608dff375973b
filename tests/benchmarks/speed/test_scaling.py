"""The benchmark of scaling: its batches, its peaks, and the tables of a tiny model. No time is asserted."""

import json
import threading

import pytest
import torch

from benchmarks.speed import scaling


def test_batches_have_the_lengths_and_masks_that_are_asked_for():
    batch = scaling.random_batch(200, 60, 128, seed=0)
    lengths = batch["attention_mask"].sum(dim=-1)
    assert (lengths.min() >= 8, int(lengths.max())) == (True, 128)
    assert lengths.double().median() == pytest.approx(60, rel=0.1)
    masked = batch["mlm_targets"] != -100
    assert (masked.sum() / lengths.sum()).item() == pytest.approx(0.15, abs=0.01)
    assert batch["mlm_targets"][masked].equal(batch["input_ids"][masked])
    assert batch["mlm_input_ids"][~masked].equal(batch["input_ids"][~masked])
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()


def test_the_peak_is_of_what_is_there_at_once():
    def one_after_the_other():
        for _ in range(3):
            torch.ones(2**20, dtype=torch.uint8)

    def together():
        return [torch.ones(2**20, dtype=torch.uint8) for _ in range(3)]

    once, thrice = (scaling.peak_memory(run, torch.device("cpu")) for run in (one_after_the_other, together))
    assert once == pytest.approx(2**20, rel=0.1)
    assert thrice == pytest.approx(3 * 2**20, rel=0.1)


def test_what_it_writes(run_here, tmp_path, monkeypatch, capsys):
    def start_processes(measure, args, nprocs, start_method):
        """In this process: one alone."""
        assert (nprocs, start_method) == (1, "spawn")
        threads = torch.get_num_threads()
        worker = threading.Thread(target=measure, args=(0, *args))
        worker.start()
        worker.join()
        torch.set_num_threads(threads)

    monkeypatch.setattr(scaling.mp, "start_processes", start_processes)
    monkeypatch.setattr(scaling, "VOCABULARY", 2000)
    sizes = ["--documents", 4, "--lengths", 32, "--processes", 1, "--tokens", 256, "--steps", 1]
    options = [*sizes, "--model", "tiny", "--device", "cpu", "--precision", "fp32"]
    run_here(scaling.main, *options, "--output", tmp_path / "scaling.json")
    results = json.loads((tmp_path / "scaling.json").read_text())
    assert [row["documents"] for row in results["batch"]] == [4]
    assert [(row["longest"], row["documents"]) for row in results["length"]] == [(32, 4)]
    assert [row["processes"] for row in results["processes"]] == [1]
    for row in (*results["batch"], *results["length"]):
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
        assert row["memory_mb"] > 0
    assert (tmp_path / "scaling.png").stat().st_size > 1000
    assert len(capsys.readouterr().out.splitlines()) == 3 * 3 + 3


def test_a_table_that_is_done_is_written_whatever_comes_after(run_here, tmp_path, monkeypatch):
    def run(job, folder):
        if job["longest"] == 32:
            raise torch.OutOfMemoryError
        return {"documents": job["documents"]}

    monkeypatch.setattr(scaling, "run", run)
    with pytest.raises(torch.OutOfMemoryError):
        run_here(
            scaling.main,
            "--documents",
            4,
            8,
            "--lengths",
            32,
            "--device",
            "cpu",
            "--output",
            tmp_path / "scaling.json",
        )
    results = json.loads((tmp_path / "scaling.json").read_text())
    assert results["batch"] == [{"documents": 4}, {"documents": 8}]
    assert "length" not in results


def test_there_are_no_more_processes_than_gpus(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert scaling.possible_processes([1, 2, 4, 8], "cuda") == [1, 2]
    assert capsys.readouterr().out == "Left out: 4, 8 processes, for there are 2 GPUs.\n"
    assert scaling.possible_processes([1, 4], "cpu") == [1, 4]
    assert capsys.readouterr().out == ""
