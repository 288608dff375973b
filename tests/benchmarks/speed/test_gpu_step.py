"""A step on a GPU, as it is on a CPU: contenders do the same work, and one that fails costs itself alone. No time."""

import dataclasses

import pytest

from benchmarks.speed.gpu_step import (
    CachedStStep,
    FlashStep,
    GroupedStep,
    OurStep,
    StepJob,
    StStep,
    TrainerStep,
    check_losses,
    measure_in_turns,
)


@pytest.fixture
def step_job(job):
    return StepJob(**vars(job) | {"micro_batch_tokens": 300, "batch_size": 4})


def test_all_contenders_have_the_loss_of_the_same_documents(step_job):
    """With masked LM, and without it, as sentence-transformers trains."""
    joint = [kind(step_job).prepare() for kind in (OurStep, TrainerStep, GroupedStep)]
    assert joint[1:] == pytest.approx([joint[0]] * 2, rel=1e-5)
    contrastive = dataclasses.replace(step_job, masked_lm=False)
    losses = [kind(contrastive).prepare() for kind in (OurStep, TrainerStep, StStep, CachedStStep)]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)
    assert abs(losses[0] - joint[0]) > 0.01
    kinds = {"ours": (OurStep, step_job), "theirs": (TrainerStep, step_job)}
    check_losses({"ours": 2.0, "theirs": 2.0001}, kinds)
    for other in (2.01, float("nan")):
        with pytest.raises(ValueError, match="theirs has the loss"):
            check_losses({"ours": 2.0, "theirs": other}, kinds)


class FailingStep(OurStep):
    def measure(self, round_number):
        if round_number == 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().measure(round_number)


def test_a_contender_that_fails_has_a_line_and_the_others_go_on(step_job):
    lines = []
    alone = dataclasses.replace(step_job, masked_lm=False)
    kinds = {"flash": (FlashStep, alone), "fails": (FailingStep, step_job), "ours": (OurStep, step_job)}
    measure_in_turns(kinds | {"theirs": (StStep, alone)}, lines.append)
    flash, *_, fails, ours, theirs = {line["what"]: line for line in lines}.values()
    assert flash["failed"].endswith("flash_attn is not installed")
    assert (fails["what"], fails["failed"]) == ("fails", "out of memory")
    assert [line["what"] for line in (ours, theirs)] == ["ours", "theirs"]
    notes = [line["note"] for line in lines if line["what"] == "ours"]
    assert notes == [*(f"{number} of {step_job.rounds} rounds" for number in range(1, step_job.rounds)), ""]
    for line in (ours, theirs):
        assert line["tokens_per_second_min"] <= line["tokens_per_second"] <= line["tokens_per_second_max"]
