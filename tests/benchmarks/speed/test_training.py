"""The benchmark of training compares like with like and writes what others read. No time is asserted."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.speed import training
from benchmarks.speed.contenders import training as training_contenders
from benchmarks.speed.contenders.table import CONTENDERS
from docsplit.data import corpora


@pytest.fixture
def run(forked, run_here, capsys):
    def run(output: Path, *options: str) -> dict:
        run_here(training.main, "--models", "tiny", "--device", "cpu", "--output", output, *options)
        printed = capsys.readouterr().out
        assert "equal losses" in printed
        assert output.with_suffix(".md").read_text() in printed
        return json.loads(output.read_text())

    return run


@pytest.mark.slow
def test_two_contenders_and_their_ratios(run, tmp_path):
    results = run(tmp_path / "latest.json", "--contenders", "docsplit", "trainer_dynamic")
    assert {"hardware", "versions", "precision", "peak_flops"} <= set(results)
    rows = results["rows"]
    assert results["models"]["tiny"]["rows"] == rows
    assert set(rows) == {"docsplit", "trainer_dynamic"}
    for row in rows.values():
        assert row["tokens_per_second_min"] <= row["tokens_per_second"] <= row["tokens_per_second_max"]
        assert row["seconds_per_step"] > 0
        assert row["peak_memory_mb"] > 0
        assert 0 < row["mfu"] < 1
        assert 0 <= row["loader_stall"] < 1
    assert rows["docsplit"]["padding_share"] < rows["trainer_dynamic"]["padding_share"]
    assert set(results["ratios"]) == {"train_vs_trainer_dynamic", "memory_vs_trainer_dynamic"}


@pytest.mark.slow
def test_all_contenders(run, tmp_path):
    """Train in bf16 where the hardware has it: a CPU that emulates it takes ten minutes."""
    results = run(tmp_path / "latest.json", "--precision", "auto")
    assert set(results["rows"]) == set(CONTENDERS)
    assert set(results["ratios"]) == set(training.RATIOS)
    assert all(value > 0 for value in results["ratios"].values())
    assert results["models"]["tiny"]["unavailable"] == {}


def test_all_contenders_compute_the_same(job, corpus, monkeypatch):
    """Losses and vectors of the same texts, and the check says so where they are not the same."""
    monkeypatch.setattr(corpora, "load_corpus", lambda name: corpus)
    values = {name: build(job).prepare() for name, build in CONTENDERS.items()}
    training.check_equal(values)
    log_b = math.log(job.batch_size)
    assert abs(values["docsplit_contrastive"] - log_b) > 0.001 * log_b  # equal vectors would not prove much
    for name in ("trainer_dynamic", "st_mnrl", "st_encode"):
        with pytest.raises(ValueError, match=f"{name} does not compute"):
            training.check_equal(values | {name: values[name] * 1.001})
    with pytest.raises(ValueError, match="st_mnrl does not compute"):
        training.check_equal(values | {"st_mnrl": float("nan")})


def test_a_contender_with_another_loss_is_found(job, monkeypatch):
    right = {"docsplit": CONTENDERS["docsplit"](job).prepare()}
    monkeypatch.setattr(training_contenders, "TEMPERATURE", 0.06)
    with pytest.raises(ValueError, match="trainer_dynamic does not compute"):
        training.check_equal(right | {"trainer_dynamic": CONTENDERS["trainer_dynamic"](job).prepare()})
