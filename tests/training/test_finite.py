"""A training whose loss or weights are not finite stops at once, everywhere, and leaves none of them on the disk."""

import os
import signal
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from docsplit.data.collators import DocSplitCollator
from docsplit.data.preparation import tokenize
from docsplit.modeling.starts import HEAD_FILE
from docsplit.release.records import MANIFEST
from docsplit.training.callbacks import InterruptCallback
from docsplit.training.finite import FiniteCallback
from modeling_docsplit import DocSplitForContrastivePretraining
from run_docsplit_pretraining import main
from tests.conftest import tiny_config
from tests.processes import ROOT, Script, spawn, start
from tests.waits import Watch, move, register, watched

TINY = "hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=64,max_position_embeddings=64"


FROM_NOTHING = ["--config_overrides", TINY]
FROM_A_CHECKPOINT = ["--model_name_or_path", str(ROOT / "tests/data/checkpoints/docsplit")]


@pytest.fixture
def diverging(tmp_path, corpus_file):
    """Options of a run whose parameters leave all bounds at once, while nothing is logged or saved."""
    return [
        "--corpus", str(corpus_file), "--output_dir", str(tmp_path / "run"), "--vocab_size", "300", "--use_cpu",
        "--pooling", "mean", "--max_seq_length", "48", "--disable_tqdm", "true", "--per_device_train_batch_size", "4",
        "--learning_rate", "1e38", "--max_grad_norm", "0", "--warmup_steps", "0", "--save_strategy", "no",
        "--logging_steps", "50", "--max_steps", "20",
    ]  # fmt: skip


def weight_files(folder):
    return [path.name for path in folder.rglob("*") if path.suffix in (".safetensors", ".bin", ".pt")]


@pytest.mark.parametrize(
    "options",
    [
        FROM_NOTHING,
        ["--gradient_accumulation_steps", "2", *FROM_NOTHING],
        ["--lora_r", "4", *FROM_A_CHECKPOINT],
        ["--objective", "momentum_contrast", "--momentum_queue_size", "16", "--mlm_weight", "0", *FROM_NOTHING],
        [
            "--objective",
            "contrastive_tension",
            "--mlm_weight",
            "0",
            "--per_device_train_batch_size",
            "8",
            *FROM_NOTHING,
        ],
        ["--save_strategy", "steps", "--save_steps", "1", *FROM_NOTHING],
        ["--save_strategy", "epoch", "--max_steps", "1", *FROM_NOTHING],  # its only step is its last
    ],
    ids=["plain", "accumulation", "lora", "moco", "tension", "saving", "last_step"],
)
def test_a_diverging_run_stops_within_two_steps_and_writes_no_weights(run_here, diverging, tmp_path, options):
    with pytest.raises(FloatingPointError, match=r"not finite after step [12]: .*--learning_rate.*--max_grad_norm 1"):
        run_here(main, *diverging, *options)
    checkpoints = list((tmp_path / "run").glob("checkpoint-*"))
    for folder in checkpoints:  # of the first step, after which they may be huge and yet finite
        assert all(value.isfinite().all() for value in load_file(folder / "model.safetensors").values())
    assert checkpoints or weight_files(tmp_path / "run") == []


def test_the_process_ends_with_a_failure(diverging, tmp_path):
    script = Script("run_docsplit_pretraining.py", *diverging, *FROM_NOTHING).wait()
    assert script.returncode not in (0, None)
    assert "not finite after step" in script.stderr
    assert weight_files(tmp_path / "run") == []


def test_two_processes_stop_alike(diverging, tmp_path):
    """Neither waits for the other: each ends by itself, well within the time after which a collective gives up."""
    for script in start("run_docsplit_pretraining.py", *diverging, *FROM_NOTHING, processes=2):
        assert script.wait(60).returncode == 1, script.stderr
        assert "not finite after step" in script.stderr
    assert weight_files(tmp_path / "run") == []


class SpoilAParameter(TrainerCallback):
    """As an optimizer might, in the third step."""

    def on_optimizer_step(self, args, state, control, model, **kwargs):
        if state.global_step == 2:
            with torch.no_grad():
                next(model.parameters())[0, 0] = torch.inf


def train(model, documents, tokenizer, folder, *callbacks):
    args = TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=4, remove_unused_columns=False, use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="no", logging_nan_inf_filter=False,
    )  # fmt: skip
    collator, finite = DocSplitCollator(tokenizer, max_seq_length=64), FiniteCallback(model, InterruptCallback())
    trainer = Trainer(model, args, collator, documents, callbacks=[*callbacks, finite])
    trainer.train()
    return trainer


@pytest.mark.parametrize("where", ["loss", "parameter", "nothing"])
def test_a_loss_or_a_parameter_is_enough(tiny_model, corpus, wordpiece, tmp_path, where):
    documents = tokenize(corpus, wordpiece)[0].with_format("numpy")
    calls = []

    def spoil(model, inputs, output):
        calls.append(1)
        if len(calls) == 3:  # without gradient: the parameters stay finite
            output.loss = output.loss + torch.tensor(torch.nan)
            output.loss.register_hook(torch.zeros_like)

    if where == "loss":
        tiny_model.register_forward_hook(spoil)
    if where == "nothing":
        assert train(tiny_model, documents, wordpiece, tmp_path).state.global_step == 6
        return
    with pytest.raises(FloatingPointError, match="step 3"):
        train(tiny_model, documents, wordpiece, tmp_path, *([SpoilAParameter()] if where == "parameter" else []))


def test_gradients_that_the_scaler_skips_are_no_reason_to_stop(tiny_model, tmp_path):
    """As under fp16: infinite gradients, a step that is left out, a finite loss and unchanged parameters."""
    callback = FiniteCallback(tiny_model, InterruptCallback())
    for parameter in tiny_model.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    tiny_model.train()
    callback._observe(tiny_model, None, SimpleNamespace(loss=torch.tensor(1.0)))
    callback.on_step_end(args, TrainerState(global_step=1), TrainerControl())
    callback.on_train_end(args, TrainerState(global_step=1), TrainerControl())


@pytest.mark.parametrize("lora", [False, True])
def test_weights_that_are_not_finite_are_not_written(tiny_model, wordpiece, tmp_path, lora):
    if lora:
        tiny_model.add_lora(2)
    tiny_model.save_pretrained(tmp_path / "good")
    before = {file: file.read_bytes() for file in (tmp_path / "good").rglob("*") if file.is_file()}
    assert tmp_path / "good" / HEAD_FILE in before
    with torch.no_grad():
        list(tiny_model.encoder.parameters())[-1].view(-1)[0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"1 of .* weights are not finite"):
        tiny_model.save_pretrained(tmp_path / "bad")
    assert not (tmp_path / "bad").exists() or list((tmp_path / "bad").iterdir()) == []
    with pytest.raises(FloatingPointError):
        tiny_model.save_pretrained(tmp_path / "good")  # a release that is there loses nothing, its head included
    assert {file: file.read_bytes() for file in (tmp_path / "good").rglob("*") if file.is_file()} == before


def test_so_is_a_training_state(wordpiece, tmp_path):
    settings = {"objective": "momentum_contrast", "momentum_queue_size": 8, "mlm_weight": 0}
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), pooling="mean", max_seq_length=64, **settings)
    buffers = [buffer for buffer in model.objective.buffers() if buffer.is_floating_point()]
    buffers[0].view(-1)[0] = torch.inf
    with pytest.raises(FloatingPointError, match="objective"):
        model.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_device_answers_one_step_later_or_at_once_before_a_checkpoint():
    spawn(_answers_of_a_device, ())


def _answers_of_a_device(index):
    args, device = SimpleNamespace(world_size=1, learning_rate=1e-3, max_grad_norm=1.0, fp16=False), register()
    model = torch.nn.Linear(2, 2).eval()
    move(model)

    def end_step(callback, loss, control):
        callback._observe(model.train(), None, SimpleNamespace(loss=torch.tensor(loss)))
        with watched(Watch()):
            callback.losses = [loss.to(device) for loss in callback.losses]
            callback.on_step_end(args, TrainerState(global_step=1), control)

    for control in (TrainerControl(), TrainerControl(should_save=True), TrainerControl(should_training_stop=True)):
        callback = FiniteCallback(model, InterruptCallback())
        if control == TrainerControl():
            end_step(callback, torch.nan, control)
        with pytest.raises(FloatingPointError, match="after step 1"):
            end_step(callback, torch.nan, control)

    # A signal to another process: the answers of two are reduced
    args.world_size = 2
    callback, control = FiniteCallback(model, InterruptCallback()), TrainerControl()
    with mock.patch.object(dist, "all_reduce", lambda answers, op: answers[1].zero_()):
        end_step(callback, 1.0, control)
        assert (callback.interrupt.stopped, control.should_save) == (False, False)
        end_step(callback, 1.0, control)
    assert callback.interrupt.stopped
    assert (control.should_save, control.should_training_stop, callback.pending) == (True, True, None)


def test_a_signal_to_one_process_stops_both_after_the_same_step(tmp_path, corpus_file):
    words = [
        "--corpus", str(corpus_file), "--output_dir", str(tmp_path), "--vocab_size", "300", "--use_cpu", "--pooling",
        "mean", "--max_seq_length", "48", "--disable_tqdm", "true", "--logging_steps", "1", "--num_train_epochs",
        "100", "--per_device_train_batch_size", "4", *FROM_NOTHING,
    ]  # fmt: skip
    first, second = start("run_docsplit_pretraining.py", *words, processes=2)
    while "tokens/s" not in first.stdout:
        assert first.returncode is second.returncode is None, first.stderr + second.stderr
        time.sleep(0.01)
    os.kill(second.pid, signal.SIGTERM)
    assert [script.wait(100).returncode for script in (first, second)] == [130, 130], first.stderr + second.stderr
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    assert (checkpoint / MANIFEST).exists()
