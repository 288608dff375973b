"""The numbers that are logged beside the loss, and the epoch that the views are drawn for."""

import json
import math
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)

from docsplit.data.collators import DocSplitCollator
from docsplit.data.preparation import tokenize
from docsplit.evaluation.analysis.geometry import embedding_geometry, spread, usage
from docsplit.modeling.pretrained import prompt_of
from docsplit.training.callbacks import NUM_SPREAD, DocSplitCallback
from modeling_docsplit import DocSplitForContrastivePretraining, DocSplitOutput
from run_docsplit_pretraining import main
from tests.conftest import tiny_config, weights_of


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
        model=model,
        args=SimpleNamespace(world_size=1),
        callback_handler=SimpleNamespace(callbacks=[]),
        data_collator=None,
        get_batch_samples=None,
    )
    callback = DocSplitCallback(stand_in)
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("has_callback", [True, False])
def test_a_trainer_of_ones_own_tells_the_truth(has_callback, workers, corpus, wordpiece, tmp_path, caplog):
    """Other views in each epoch, or a line that says not; what was drawn in config.json; the parts of the loss."""
    torch.manual_seed(0)
    model = DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=64)
    documents = tokenize(corpus.select(range(24)), wordpiece)[0].with_format("numpy")
    collator = DocSplitCollator.for_model(model, wordpiece, view="crop", max_seq_length=20, prompt="storm ")
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, num_train_epochs=3, per_device_train_batch_size=6, logging_steps=2,
        remove_unused_columns=False, dataloader_num_workers=workers, eval_strategy="steps", eval_steps=1,
        report_to=[], disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model, args, collator, documents, documents.select(range(6)), processing_class=wordpiece)
    if has_callback:
        DocSplitCallback(trainer)
    drawn: dict[int, set[str]] = defaultdict(set)

    def note(model, args, inputs):
        for document, views in zip(inputs["document_ids"].tolist(), inputs["input_ids"], strict=True):
            if model.training:
                drawn[document].add(wordpiece.decode(views[0], skip_special_tokens=True))
            assert views.shape[-1] <= 20

    model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train()
    trainer.save_model()
    assert len(drawn) == len(documents)
    lines = [record.getMessage() for record in caplog.records if "the same views" in record.getMessage()]
    if has_callback:
        assert sum(len(views) == 3 for views in drawn.values()) > 20  # two spans may be alike by chance
        assert lines == []
    else:
        assert {len(views) for views in drawn.values()} == {1}
        assert len(lines) == 1
        assert "DocSplitCallback(trainer)" in lines[0]
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry in entries:
        parts = {name: entry[name] for name in ("contrastive_loss", "mlm_loss") if name in entry}
        assert bool(parts) == has_callback
        if has_callback:
            assert entry["loss"] == pytest.approx(parts["contrastive_loss"] + 0.1 * parts["mlm_loss"], abs=2e-4)
    settings = json.loads((tmp_path / "config.json").read_text())["docsplit"]
    assert (settings["view"], settings["max_seq_length"], prompt_of(settings)) == ("crop", 20, "storm ")
    released = SentenceTransformer(str(tmp_path), device="cpu")
    assert released.max_seq_length == 20
    np.testing.assert_array_equal(released.encode_document("a ship"), released.encode("storm a ship"))


@pytest.mark.parametrize(("epoch", "expected"), [(0, 0), (0.5, 0), (1.0, 1), (2.97, 2), (None, 0)])
def test_the_epoch_reaches_the_collator(wordpiece, tiny_model, tmp_path, epoch, expected):
    collator = DocSplitCollator(wordpiece)
    collator.epoch.value = 7
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    callback = DocSplitCallback(Trainer(tiny_model, args, collator))
    callback.on_epoch_begin(args, TrainerState(epoch=epoch), TrainerControl())
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
    before = weights_of(tmp_path)
    run_here(main, *words, "--resume_from_checkpoint", "--overwrite_output_dir")
    after = weights_of(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "all_results.json").read_text())["global_step"] == 4


@pytest.mark.parametrize("resumed", [False, True])
def test_the_stall_is_the_time_of_the_loader_alone(resumed, tmp_path, monkeypatch):
    """A made-up clock moves 1 for each row fetched, and much more for all that is not fetching: steps, callbacks,
    evaluations. A run that resumes within an epoch is as any other."""
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

    class Collator:
        epoch = SimpleNamespace(value=0)

        def __call__(self, rows):
            return default_data_collator(rows)

    class Slow(TrainerCallback):
        on_step_end = on_evaluate = on_log = staticmethod(passes(300))

    monkeypatch.setattr("docsplit.training.callbacks.time", SimpleNamespace(perf_counter=lambda: now[0]))
    rows = [{"x": torch.ones(2), "attention_mask": torch.ones(4)} for _ in range(24)]
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=4, max_steps=6, logging_steps=6, eval_steps=3,
        eval_strategy="steps", save_steps=2, report_to=[], disable_tqdm=True, remove_unused_columns=False,
        dataloader_pin_memory=False,
    )  # fmt: skip
    for checkpoint in [None, str(tmp_path / "checkpoint-2")] if resumed else [None]:
        trainer = Trainer(Model(2, 1), args, Collator(), Rows(rows), eval_dataset=Rows(rows[:7]))
        DocSplitCallback(trainer)
        trainer.add_callback(Slow)
        trainer.train(resume_from_checkpoint=checkpoint)
        (entry,) = [entry for entry in trainer.state.log_history if "loader_stall" in entry and entry["step"] == 6]
        fetched, seconds = 16 if checkpoint else 24, entry["training_seconds"]
        assert seconds > 400
        assert entry["loader_stall"] == pytest.approx(fetched / seconds, rel=1e-3)


def test_the_callback_may_be_added_twice_and_a_training_may_fail(corpus, wordpiece, tmp_path, caplog):
    """Neither leaves loaders that call themselves; copies among the documents are no views that come again."""
    documents = tokenize(corpus.select([*range(8), *range(8)]), wordpiece)[0].with_format("numpy")

    def train(fails):
        model = DocSplitForContrastivePretraining(tiny_config(wordpiece), max_seq_length=32)
        collator = DocSplitCollator.for_model(model, wordpiece)
        args = TrainingArguments(
            str(tmp_path), use_cpu=True, per_device_train_batch_size=4, num_train_epochs=1, report_to=[],
            remove_unused_columns=False, disable_tqdm=True, save_strategy="no", logging_steps=1,
        )  # fmt: skip
        trainer = Trainer(model, args, collator, documents, processing_class=wordpiece)
        trainer.add_callback(DocSplitCallback(trainer))
        if fails:
            model.register_forward_pre_hook(lambda *_: 1 / 0)
        trainer.train()
        return [entry for entry in trainer.state.log_history if "contrastive_loss" in entry]

    with pytest.raises(ZeroDivisionError):
        train(fails=True)
    assert len(train(fails=False)) == 4
    assert "the same views" not in caplog.text
