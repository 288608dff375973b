"""The numbers that are logged beside the loss."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from docsplit.data.collators import DocSplitCollator
from docsplit.evaluation.analysis.geometry import embedding_geometry, spread, usage
from docsplit.training.callbacks import NUM_SPREAD, EpochCallback, MetricsCallback
from modeling_docsplit import DocSplitOutput
from run_docsplit_pretraining import main


def test_geometry_against_a_loop():
    embeddings = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    unit = embeddings / embeddings.norm(dim=-1, keepdim=True)
    positives, negatives, distances, potentials = [], [], [], []
    for i in range(5):
        for j in range(5):
            cosine = float(unit[i, 0] @ unit[j, 1])
            distance = float((unit[i, 0] - unit[j, 1]).square().sum())
            (positives if i == j else negatives).append(cosine)
            (distances if i == j else potentials).append(distance if i == j else math.exp(-2 * distance))
    ours = {name: float(value) for name, value in embedding_geometry(embeddings).items()}
    assert ours["positive_cosine"] == pytest.approx(sum(positives) / 5, abs=1e-6)
    assert ours["negative_cosine"] == pytest.approx(sum(negatives) / 20, abs=1e-6)
    assert ours["alignment"] == pytest.approx(sum(distances) / 5, abs=1e-5)
    assert ours["uniformity"] == pytest.approx(math.log(sum(potentials) / 20), abs=1e-5)


class Scripted(nn.Module):
    """Gives the outputs of a list, one a call."""

    def forward(self, output, attention_mask):
        return output


def test_spread_and_histograms_are_those_of_the_documents_since_the_last_log():
    """A batch of two has no rank to speak of, and no more than four of the ensemble's functionals."""
    generator, model = torch.Generator().manual_seed(0), Scripted()
    stand_in = SimpleNamespace(
        model=model, args=SimpleNamespace(world_size=1), callback_handler=SimpleNamespace(callbacks=[])
    )
    callback = MetricsCallback(stand_in)
    for num_steps, documents in ((20, 2), (300, 2), (1, 1)):
        vectors, counts = [], []
        for _ in range(num_steps):
            vectors.append(torch.randn(documents, 2, 6, generator=generator))
            counts.append(torch.tensor([0, 1, 0, 3]) if len(counts) else torch.tensor([4, 0, 0, 0]))
            output = DocSplitOutput(loss=torch.zeros(()), contrastive_loss=torch.zeros(()), embeddings=vectors[-1])
            output.num_masked_negatives = torch.tensor(0)
            output.num_computed_tokens = 8 if len(counts) % 2 else torch.tensor(8)  # the host may know it
            output.objective_histograms = {"subnetworks": counts[-1]}
            model(output=output, attention_mask=torch.ones(2, 2))
        logged = callback.flush()
        first_views = torch.cat(vectors)[-NUM_SPREAD:, 0].numpy()
        expected = spread(first_views) if len(first_views) > 1 else {}
        expected |= {f"subnetworks_{name}": value for name, value in usage(sum(counts).numpy()).items()}
        assert {name: logged.get(name) for name in expected} == pytest.approx(expected, abs=1e-5)
        assert ("effective_rank" in logged) == (num_steps > 1)
        assert logged["padding_share"] == 0.5  # 4 tokens of 8


@pytest.mark.parametrize(("epoch", "expected"), [(0, 0), (0.5, 0), (1.0, 1), (2.97, 2), (None, 0)])
def test_the_epoch_reaches_the_collator(wordpiece, tmp_path, epoch, expected):
    collator = DocSplitCollator(wordpiece)
    collator.epoch.value = 7
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    EpochCallback(collator).on_epoch_begin(args, TrainerState(epoch=epoch), TrainerControl())
    assert collator.epoch.value == expected


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_finished_run_that_is_resumed_takes_no_step(tmp_path, corpus_file, run_here, strategy):
    """At a learning rate that is not 0 at the end: stock Trainer takes one step more."""
    saving = ("--save_strategy", strategy, "--save_steps", 4)
    words = (
        "--corpus", corpus_file, "--output_dir", tmp_path, "--vocab_size", 300, "--max_seq_length", 32, "--use_cpu",
        "--config_overrides", "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64",
        "--per_device_train_batch_size", 4, "--max_steps", 4, "--lr_scheduler_type", "constant", *saving,
    )  # fmt: skip
    run_here(main, *words)
    before = load_file(tmp_path / "model.safetensors")
    run_here(main, *words, "--resume_from_checkpoint", "--overwrite_output_dir")
    after = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "all_results.json").read_text())["global_step"] == 4


@pytest.mark.parametrize("resumed", [False, True])
def test_the_stall_is_the_time_of_the_loader_alone(resumed, tmp_path, monkeypatch):
    """A made-up clock moves 1 for each row fetched, and much more for all that is not fetching: the copy of a batch to
    the device, which waits for the device, steps, callbacks, evaluations. A run that resumes within an epoch is as
    any other."""
    now = [0]

    def passes(seconds):
        def do(*args, **kwargs):
            now[0] += seconds

        return do

    class Rows(list):
        def __getitem__(self, index):
            now[0] += 1
            return super().__getitem__(index)

    class Model(nn.Linear):
        def forward(self, x, attention_mask):
            now[0] += 20
            output = DocSplitOutput(loss=super().forward(x).sum())
            output.num_computed_tokens = torch.tensor(4)
            return output

    def copy(batch, *args, **kwargs):
        now[0] += 4000
        return batch

    class Slow(TrainerCallback):
        on_step_end = on_evaluate = on_log = staticmethod(passes(300))

    before = _BaseDataLoaderIter.__next__
    monkeypatch.setattr("docsplit.training.callbacks.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr("accelerate.data_loader.send_to_device", copy)
    rows = [{"x": torch.ones(2), "attention_mask": torch.ones(4)} for _ in range(24)]
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=4, max_steps=6, logging_steps=6, eval_steps=3,
        eval_strategy="steps", save_steps=2, report_to=[], disable_tqdm=True, remove_unused_columns=False,
        dataloader_pin_memory=False,
    )  # fmt: skip
    for checkpoint in [None, str(tmp_path / "checkpoint-2")] if resumed else [None]:
        trainer = Trainer(Model(2, 1), args, train_dataset=Rows(rows), eval_dataset=Rows(rows[:7]))
        MetricsCallback(trainer)
        trainer.add_callback(Slow)
        trainer.train(resume_from_checkpoint=checkpoint)
        (entry,) = [entry for entry in trainer.state.log_history if "loader_stall" in entry and entry["step"] == 6]
        fetched, seconds = 16 if checkpoint else 24, entry["training_seconds"]
        assert seconds > 8000
        assert entry["loader_stall"] == pytest.approx(fetched / seconds, rel=1e-3)
    assert _BaseDataLoaderIter.__next__ is before
