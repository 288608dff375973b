"""The benchmark of a step on a GPU, as it is on a CPU: its rows do the same work, and waits are counted. No time."""

import dataclasses
import json
import warnings
from types import SimpleNamespace

import pytest
import torch

from benchmarks.speed import gpu_step
from benchmarks.speed.gpu_step import FlashStep, OurStep, Step, StepJob, StStep, TrainerStep
from modeling_docsplit import DocSplitForContrastivePretraining


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


def test_a_round_trains_all_documents_and_counts_their_operations(step_job, monkeypatch):
    contender, trained = OurStep(step_job), []
    contender.model.register_forward_pre_hook(
        lambda model, args, inputs: trained.append(inputs["document_ids"].tolist()), with_kwargs=True
    )
    before = [parameter.detach().clone() for parameter in contender.model.parameters()]
    measured = contender.measure(1)
    documents = contender.documents(1)
    assert [row["document_id"] for row in documents] == [number for batch in trained[1:] for number in batch]
    assert measured["tokens_per_second"] * measured["seconds_per_step"] * step_job.steps == pytest.approx(
        sum(len(view.ids) for row in documents for view in row["views"])
    )
    needed = measured["flops_per_second"] * measured["seconds_per_step"] * step_job.steps
    assert needed == pytest.approx(gpu_step.jobs.useful_flops(contender.encoder, documents, mlm=True))
    assert any(not torch.equal(old, new) for old, new in zip(before, contender.model.parameters()))
    assert contender.count_waits() == {}
    assert len({row["document_id"] for row in documents}) == len(documents)


def test_views_have_the_length_that_is_asked_for(step_job):
    contender = OurStep(dataclasses.replace(step_job, view_tokens=40))
    documents = contender.documents(0)
    assert {len(view.ids) for row in documents for view in row["views"]} == {40}
    assert len(documents) == step_job.steps * step_job.batch_size
    assert not (documents[0]["views"][0].ids == contender.documents(1)[0]["views"][0].ids).all()


def test_waits_are_those_that_pytorch_warns_of_in_later_steps(job, monkeypatch):
    """The first two steps allocate and initialise. Other warnings are no waits; two lines of code are told apart."""
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    class Waiting(Step):
        def __init__(self):
            self.job = StepJob(**vars(job) | {"device": "cuda", "batch_size": 2})

        def documents(self, round_number):
            return [1, 2, 3, 4]

        def train(self, documents, untimed_steps, counter):
            assert modes == ["warn"]
            for step in range(len(documents) // 2):
                for _ in range(50 if step < 2 else 2):
                    warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
                warnings.warn("another", stacklevel=1)
                counter.on_step_end(None, None, None)

    assert list(Waiting().count_waits().values()) == [2, 1]
    assert modes == ["warn", "default"]


def test_packs_and_compilation_are_asked_of_the_model(step_job, monkeypatch):
    done = []
    monkeypatch.setattr(DocSplitForContrastivePretraining, "pack_sequences", lambda self, dtype: done.append(dtype))
    monkeypatch.setattr(DocSplitForContrastivePretraining, "compile", lambda self: done.append("compile"))
    OurStep(dataclasses.replace(step_job, packed=True, compile=True)).choose()
    assert done == [step_job.dtype, "compile"]
    OurStep(step_job).choose()
    assert done == [step_job.dtype, "compile"]


@pytest.mark.slow
def test_a_row_of_a_new_process_and_those_that_cannot_be(step_job, forked):
    row = gpu_step.measure_row(OurStep, dataclasses.replace(step_job, rounds=1))
    assert row["tokens_per_second_min"] == row["tokens_per_second"] == row["tokens_per_second_max"] > 0
    assert row["allocated_mb"] > 0
    assert "waits_per_step" not in row


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (ModuleNotFoundError("flash_attn is not installed"), {"failed": "flash_attn is not installed"}),
        (RuntimeError("ours failed:\n torch.OutOfMemoryError: CUDA out of memory"), {"failed": "out of memory"}),
        (RuntimeError("ours failed:\n ValueError: a fault"), None),
    ],
)
def test_a_row_that_cannot_be_measured_says_why_and_a_fault_is_an_error(error, row, step_job, monkeypatch):
    closed = []

    def ask(method, *arguments):
        if method == "warm_up":
            raise error

    process = SimpleNamespace(ask=ask, close=lambda: closed.append(True))
    monkeypatch.setattr(gpu_step, "Contender", lambda kind, job: process)
    if row is not None:
        assert gpu_step.measure_row(OurStep, step_job) == row
    else:
        with pytest.raises(RuntimeError, match="a fault"):
            gpu_step.measure_row(OurStep, step_job)
    assert closed == [True]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as failure:
        FlashStep(step_job)
    assert failure.value.name == "flash_attn"  # as `serve` reports it


@pytest.fixture
def made_up(monkeypatch):
    """Rows of made-up numbers: what is asked of each contender."""
    asked = []

    def measure_row(kind, job):
        asked.append((kind.__name__, job.batch_size, job.micro_batch_tokens))
        if kind is FlashStep:
            return {"failed": "flash_attn is not installed"}
        return {"tokens_per_second": 1e4, "tokens_per_second_min": 9e3, "tokens_per_second_max": 1.2e4, "loss": 2.0,
                "seconds_per_step": 0.5, "flops_per_second": 3e11, "allocated_mb": 100.0}  # fmt: skip

    monkeypatch.setattr(gpu_step, "measure_row", measure_row)
    monkeypatch.setattr(gpu_step, "measure_peaks", lambda job: {"fp32": 1e12})
    return asked


def test_what_it_writes_and_that_earlier_rows_stay(run_here, tmp_path, made_up, capsys):
    output = tmp_path / "gpu_step.json"
    options = ["--device", "cpu", "--model", "tiny", "--precision", "fp32", "--output", output]
    run_here(gpu_step.main, *options, "--documents", 4, 8, "--budget", 256, 512)
    ours = [("OurStep", size, budget) for size in (4, 8) for budget in (256, 512)]
    beside = [(kind, size, None) for size in (4, 8) for kind in ("TrainerStep", "FlashStep")]
    assert made_up == [*ours[:2], *beside[:2], *ours[2:], *beside[2:]]
    results = json.loads(output.read_text())
    assert {"hardware", "versions", "precision", "peak_flops"} <= set(results)
    assert [row["budget"] for row in results["rows"]] == [256, 512, None, None, 256, 512, None, None]
    assert results["rows"][0]["share_of_products"] == pytest.approx(0.3)
    assert results["rows"][0]["share_of_nominal"] is None  # of a CPU
    run_here(gpu_step.main, *options, "--documents", 4, "--budget", 512, "--beside")
    assert "7 rows of earlier runs stay" in capsys.readouterr().out
    again = json.loads(output.read_text())["rows"]
    assert len(again) == 8
    table = (tmp_path / "gpu_step.md").read_text()
    assert "10,000" in table
    assert "flash_attn is not installed" in table


def test_losses_that_differ_are_refused():
    def row(name, loss, **others):
        return {"contender": name, "loss": loss, "documents": 4, "view_tokens": None, "masked_lm": True} | others

    gpu_step.check_losses([row("ours", 2.0), row("st", 9.0, masked_lm=False), row("ours", 2.01)], "bf16")
    for other in (row("trainer_dynamic", 2.1), row("trainer_dynamic", float("nan"))):
        with pytest.raises(ValueError, match="do not do the same work"):
            gpu_step.check_losses([row("ours", 2.0), other], "bf16")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--documents", 1], "--documents must be 2 or more"),
        (["--dropout", 1], "--dropout from 0 to below 1"),
        (["--view_tokens", 513], "--view_tokens must be 8 to 512"),
    ],
)
def test_options_that_cannot_be(run_here, options, said, capsys):
    with pytest.raises(SystemExit):
        run_here(gpu_step.main, *options)
    assert said in " ".join(capsys.readouterr().err.split())
