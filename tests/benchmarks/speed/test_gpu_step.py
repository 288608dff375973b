"""The benchmark of a step on a GPU, as it is on a CPU: its rows do the same work. No time."""

import dataclasses
import json

import pytest

from benchmarks.speed import gpu_step
from benchmarks.speed.gpu_step import FlashStep, OurStep, StepJob, StStep, TrainerStep


@pytest.fixture
def step_job(job):
    return StepJob(**vars(job) | {"micro_batch_tokens": 300, "batch_size": 4})


def test_all_contenders_have_the_loss_of_the_same_documents(step_job):
    """With masked LM, and without it, as sentence-transformers trains."""
    joint = [kind(step_job).prepare() for kind in (OurStep, TrainerStep)]
    assert joint[1] == pytest.approx(joint[0], rel=1e-5)
    contrastive = dataclasses.replace(step_job, masked_lm=False)
    losses = [kind(contrastive).prepare() for kind in (OurStep, TrainerStep, StStep)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    assert abs(losses[0] - joint[0]) > 0.01


def test_what_it_writes_and_that_earlier_rows_stay(run_here, tmp_path, monkeypatch, capsys):
    asked = []

    def measure_row(kind, job):
        asked.append((kind.__name__, job.batch_size, job.micro_batch_tokens))
        if kind is FlashStep:
            return {"failed": "flash_attn is not installed"}
        numbers = ("tokens_per_second", "tokens_per_second_min", "tokens_per_second_max", "seconds_per_step")
        return dict.fromkeys(numbers, 1e4) | {"loss": 2.0, "flops_per_second": 3e11, "allocated_mb": 100.0}

    monkeypatch.setattr(gpu_step, "measure_row", measure_row)
    monkeypatch.setattr(gpu_step, "in_process", lambda function, *given: {"fp32": 1e12})
    output = tmp_path / "gpu_step.json"
    options = ["--device", "cpu", "--model", "tiny", "--precision", "fp32", "--output", output]
    run_here(gpu_step.main, *options, "--documents", 4, 8, "--budget", 256, 512)
    ours = [("OurStep", size, budget) for size in (4, 8) for budget in (256, 512)]
    beside = [(kind, size, None) for size in (4, 8) for kind in ("TrainerStep", "FlashStep")]
    assert asked == [*ours[:2], *beside[:2], *ours[2:], *beside[2:]]
    results = json.loads(output.read_text())
    assert results["rows"][0]["share_of_products"] == pytest.approx(0.3)
    run_here(gpu_step.main, *options, "--documents", 4, "--budget", 512, "--beside")
    assert "7 rows of earlier runs stay" in capsys.readouterr().out
    assert len(json.loads(output.read_text())["rows"]) == 8
    assert "flash_attn is not installed" in (tmp_path / "gpu_step.md").read_text()
